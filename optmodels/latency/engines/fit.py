"""Global coefficients fitted over many engines, GPUs and LLMs, in two stages.

Stage 1, one non-negative sum of physical terms T_j (`terms`), whose coefficients may differ a little by engine and by
precision: for a row of engine e and precision q

    ŷ = Σ_j exp(θ_j + δ_{j,e} + ε_{j,q})·T_j        θ_j ~ N(log prior_j, σ_j²), δ ~ N(0, τ_j²), ε ~ N(0, υ_j²)

and log y − log ŷ follows Student's t with 3 degrees of freedom: rows that no physics explains pull little. An engine or
a precision that was never seen has δ = 0, ε = 0.

Stage 2, with stage 1 frozen (fitting both at once distorts the physics): log ŷ gains a sum of factors, one for each
level of each grouping (the engine, the LLM, …), each shrunken towards zero by a normal prior. A level that was never
seen has the factor 1.

Both stages are fitted in benchmarks/engine_fit.py. Rows of levels that the fit never saw add these levels and leave all
others: a maker's GPUs with coefficients of their own (`adjust`).

A few rows of one's own pull both (`pull`): the factors of their engine, LLM, GPU, … by the same priors again, so that
each takes its share of the rows' information, and the coefficients of their engine's version by priors of their own.
Facts that they state of the engine and the LLM then hold on every GPU that is compared; facts on the GPU do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from optmodels.arrays import Array, Index

Labels = Mapping[str, Sequence[str]]  # grouping → the row's level, (n,)
Whole = tuple[Index, Array]  # which parameter multiplies a row's sum, and the variable it goes along
# From θ: the factors (grouping → level) and the slopes (grouping → level → variable).
Reach = tuple[float, float]  # the least and the most
Slopes = dict[str, dict[str, dict[str, float]]]  # grouping → level → variable → slope
Reaches = dict[str, dict[str, dict[str, Reach]]]  # the same → the variable's least and most
_EVERYWHERE: Reach = -np.inf, np.inf
_Read = Callable[[Array], tuple[dict[str, dict[str, float]], Slopes, Reaches]]  # log-factors, slopes, from θ
_ReadLevels = Callable[[Array], dict[str, dict[str, dict[str, float]]]]  # grouping → level → term → δ, from θ
FREEDOM = 3.0  # of Student's t
OWN = "version"  # grouping whose coefficients one's own rows pull


@dataclass(frozen=True)
class Own:
    """Assumptions about a few rows of one's own.

    Attributes:
        spread: term → standard deviation of the logarithm of the factors on its coefficient; "*": other terms.
        factors: share of the factors' standard deviations that is left to them.
        noise: scale of Student's t of their log-ratios.
        misfit: standard deviation of the form's error, smooth along the loads; for the choice of rows (`choice`).
    """

    spread: Mapping[str, float]
    factors: float
    noise: float
    misfit: float = 0.0


@dataclass(frozen=True)
class Form:
    """Assumptions before any data: priors of one target's coefficients and factors.

    Attributes:
        prior: term → (coefficient expected, standard deviation of its logarithm).
        spread: grouping → term → standard deviation of the coefficient's logarithm between levels; "*": other terms.
        factors: grouping → standard deviation of the logarithm of its factors.
        noise: scale of Student's t in stage 1 and 2, of log-ratios.
        own: the same of a few rows of one's own.
        trends: grouping → variable → standard deviation of its levels' slopes along it.
    """

    prior: Mapping[str, tuple[float, float]]
    spread: Mapping[str, Mapping[str, float]]
    factors: Mapping[str, float]
    noise: tuple[float, float]
    own: Own = Own({"*": 0.1}, 1.0, 0.1)
    trends: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Fitted:
    """Coefficients by term; logarithms of the levels' factors on them and on the whole, with slopes along variables.

    A level's trend is level beyond what was measured of this level (`reach`).
    """

    coefficients: dict[str, float]
    adjustments: dict[str, dict[str, dict[str, float]]]  # grouping → level → term → δ
    factors: dict[str, dict[str, float]]  # grouping → level → log-factor
    trends: Slopes = field(default_factory=dict)
    reach: Reaches = field(default_factory=dict)

    def predict(self, terms: Mapping[str, Array], labels: Labels) -> Array:
        """Seconds, (n,).

        Args:
            terms: and variables of trends, by name, (n,) each.
            labels: the level of each row in each grouping, (n,), or one for all rows, (1,).
        """
        weight = self._weights(labels)
        total = np.zeros(len(next(iter(terms.values()))))
        for j, name in enumerate(self.coefficients):
            total += terms[name] * weight[:, j]
        return total * self._along(terms, labels)

    def parts(self, terms: Mapping[str, Array], labels: Labels) -> Array:
        """Seconds of each term, in the order of `coefficients`, (n, J)."""
        each: Array = np.stack([terms[name] for name in self.coefficients], axis=1) * self._weights(labels)
        return each * np.reshape(self._along(terms, labels), (-1, 1))

    def _along(self, terms: Mapping[str, Array], labels: Labels) -> Array:
        """Factor of the trends on each row, (n,) or (1,)."""
        total: Array = np.zeros(1)
        for grouping, levels in self.trends.items():
            found, place = _places(labels[grouping])
            for name in sorted({name for v in found for name in levels.get(v, ())}):
                ends = [self.reach.get(grouping, {}).get(v, {}).get(name, _EVERYWHERE) for v in found]
                slope = np.array([levels.get(v, {}).get(name, 0.0) for v in found])[place]
                total = total + slope * np.clip(terms[name], *np.array(ends)[place].T)
        return np.exp(total)

    def _weights(self, labels: Labels) -> Array:
        """Factor on each term, (n, J) or (1, J)."""
        names = list(self.coefficients)
        weight: Array = np.log([[self.coefficients[name] for name in names]])
        for grouping, levels in self.adjustments.items():
            found, place = _places(labels[grouping])
            weight = weight + np.array([[levels.get(v, {}).get(name, 0.0) for name in names] for v in found])[place]
        for grouping, factors in self.factors.items():
            found, place = _places(labels[grouping])
            weight = weight + np.array([factors.get(v, 0.0) for v in found])[place, None]
        return np.exp(weight)


def pull(form: Form, fitted: Fitted, terms: Mapping[str, Array], seconds: Array, labels: Labels) -> Fitted:
    """A fit pulled by a few rows of one's own: coefficients of their engine's version, factors of their levels.

    Args:
        form: priors; `form.own` states how far the rows may pull.
        fitted: coefficients fitted to others' rows.
        terms, seconds, labels: of one's own rows, as for `fit`.
    """
    return adjust(_own(form), fitted, terms, seconds, labels)


def adjust(form: Form, fitted: Fitted, terms: Mapping[str, Array], seconds: Array, labels: Labels) -> Fitted:
    """A fit whose coefficients stay: the rows add to its adjustments and factors of their own levels, jointly.

    Args:
        form: `spread` and `factors` of the groupings that are adjusted; `noise[1]`.
        fitted: coefficients, adjustments and factors of others' rows.
        terms, seconds, labels: rows, as for `fit`.
    """
    unknown, coefficients, wholes, read_levels, read = _adjusted(form, list(fitted.coefficients), terms, labels)
    theta = _mode(fitted.parts(terms, labels), np.log(seconds), coefficients, wholes, unknown, form.noise[1])
    adjustments = {g: dict(known) for g, known in fitted.adjustments.items()}
    for g, levels in read_levels(theta).items():
        mine = adjustments.setdefault(g, {})
        for v, changes in levels.items():
            mine[v] = {name: d + mine.get(v, {}).get(name, 0.0) for name, d in changes.items()}
    factors = {g: dict(known) for g, known in fitted.factors.items()}
    for g, found in read(theta)[0].items():
        for v, u in found.items():
            factors.setdefault(g, {})[v] = factors.get(g, {}).get(v, 0.0) + u
    return replace(fitted, adjustments=adjustments, factors=factors)


def sensitivities(form: Form, fitted: Fitted, terms: Mapping[str, Array], labels: Labels) -> Array:
    """How log ŷ moves with each parameter that `pull` would estimate, times its prior's standard deviation, (n, P).

    At the parameters' prior mean: with z ~ N(0, I) the rows are log y = log ŷ + A·z + noise, before any is measured.
    """
    unknown, coefficients, wholes, *_ = _adjusted(_own(form), list(fitted.coefficients), terms, labels)
    _, deviation = unknown.prior
    return _jacobian(fitted.parts(terms, labels), coefficients, wholes, len(deviation)) * deviation


def _own(form: Form) -> Form:
    """Rows of one's own as a form: coefficients of their engine's version, and a share of the factors' spread."""
    shares = {g: form.own.factors * x for g, x in form.factors.items()}
    return Form({}, {OWN: form.own.spread}, shares, (form.own.noise, form.own.noise))


def _adjusted(
    form: Form, names: Sequence[str], terms: Mapping[str, Array], labels: Labels
) -> tuple[_Unknown, list[Index], list[Whole], _ReadLevels, _Read]:
    """Estimates of `adjust`: coefficients by level, (n, J) a grouping, and factors; and how to read them."""
    unknown = _Unknown()
    coefficients, read_levels = _levels(form.spread, names, labels, unknown)
    wholes, read = _wholes(form.factors, {}, terms, labels, unknown)
    return unknown, coefficients, wholes, read_levels, read


def _levels(
    spread: Mapping[str, Mapping[str, float]], names: Sequence[str], labels: Labels, unknown: _Unknown
) -> tuple[list[Index], _ReadLevels]:
    """Adds a parameter for each term of each level of each grouping; and how to read them back."""
    J, coefficients, where = len(names), [], []
    for g, by_term in spread.items():
        found, place = _places(labels[g])
        start = unknown.add(np.zeros(J * len(found)), _spread(by_term, names) * len(found))
        coefficients.append(start + place[:, None] * J + np.arange(J))
        where.append((g, start, found))

    def read(theta: Array) -> dict[str, dict[str, dict[str, float]]]:
        each = {g: theta[start : start + J * len(found)].reshape(-1, J).tolist() for g, start, found in where}
        return {
            g: {v: dict(zip(names, d, strict=True)) for v, d in zip(found, each[g], strict=True)}
            for g, _, found in where
        }

    return coefficients, read


class _Unknown:
    """Prior means and standard deviations of the parameters, block after block."""

    def __init__(self) -> None:
        self.means: list[Array] = []
        self.deviations: list[Array] = []

    def add(self, mean: Array, deviation: Sequence[float]) -> int:
        """Add a block; return the index of its first parameter."""
        start = sum(map(len, self.means))
        self.means.append(np.asarray(mean))
        self.deviations.append(np.asarray(deviation, dtype=float))
        return start

    @property
    def prior(self) -> tuple[Array, Array]:
        """Means and standard deviations of the parameters."""
        return np.concatenate(self.means), np.concatenate(self.deviations)


def _places(levels: Sequence[str]) -> tuple[list[str], Index]:
    """The distinct levels, sorted, and which of them each row has."""
    if len(levels) == 1:  # one for all rows: so it is where a deployment's coefficients are asked for, often
        return [str(levels[0])], np.zeros(1, dtype=np.intp)
    found, place = np.unique(np.asarray(levels, dtype=str), return_inverse=True)
    return found.tolist(), place


def _spread(by_term: Mapping[str, float], names: Sequence[str]) -> list[float]:
    return [by_term.get(name, by_term["*"]) for name in names]


def _wholes(
    factors: Mapping[str, float], trends: Mapping[str, Mapping[str, float]], terms: Mapping[str, Array],
    labels: Labels, unknown: _Unknown,
) -> tuple[list[Whole], _Read]:  # fmt: skip
    """Adds a parameter for each level of each grouping, and one for each of its slopes; and how to read them back."""
    each = [(g, "", x) for g, x in factors.items()]
    each += [(g, name, x) for g, slopes in trends.items() for name, x in slopes.items()]
    wholes, where = [], []
    for g, name, deviation in each:
        found, place = _places(labels[g])
        start = unknown.add(np.zeros(len(found)), [deviation] * len(found))
        wholes.append((start + place, terms[name] if name else np.ones(len(place))))
        where.append((g, name, start, found, place))

    reach: Reaches = {}
    for g, name, _, found, place in where:
        for i, v in enumerate(found if name else ()):
            mine = terms[name][place == i]
            reach.setdefault(g, {}).setdefault(v, {})[name] = float(mine.min()), float(mine.max())

    def read(theta: Array) -> tuple[dict[str, dict[str, float]], Slopes, Reaches]:
        constant: dict[str, dict[str, float]] = {}
        slopes: Slopes = {}
        for g, name, start, found, _ in where:
            for i, v in enumerate(found):
                if name:
                    slopes.setdefault(g, {}).setdefault(v, {})[name] = float(theta[start + i])
                else:
                    constant.setdefault(g, {})[v] = float(theta[start + i])
        return constant, slopes, reach

    return wholes, read


def _jacobian(parts: Array, coefficients: Sequence[Index], wholes: Sequence[Whole], count: int) -> Array:
    """Derivatives of log Σ_j of `parts`, (n, J), with respect to `count` parameters, (n, count)."""
    n = len(parts)
    found = np.zeros((n, count))
    for c in coefficients:
        np.put_along_axis(found, c, parts / parts.sum(axis=1, keepdims=True), axis=1)
    for w, along in wholes:
        found[np.arange(n), w] = along
    return found


def _mode(
    X: Array, target: Array, coefficients: Sequence[Index], wholes: Sequence[Whole], unknown: _Unknown, noise: float
) -> Array:
    """Posterior mode of θ in log y = log Σ_j X_j·exp(Σ_c θ[c_j]) + Σ_w θ[w]·v_w + noise·t.

    Gauss–Newton with Student weights and Levenberg's damping.

    Args:
        X: terms, (n, J).
        target: logarithms of seconds, (n,).
        coefficients: indices of θ that multiply each term, (n, J) each.
        wholes: indices of θ that multiply the sum, and the variables v they go along (ones: a factor), (n,) each.
        unknown: prior of θ.
        noise: scale of Student's t.
    """
    mean, deviation = unknown.prior
    precision, n = deviation**-2.0, len(target)

    def parts(theta: Array) -> Array:
        log_weight = sum((theta[c] for c in coefficients), np.zeros(1))
        whole = sum((theta[w] * along for w, along in wholes), np.zeros(n))
        return X * np.exp(log_weight + whole[:, None])

    def loss(theta: Array) -> float:
        e = (np.log(parts(theta).sum(axis=1)) - target) / noise
        return float((FREEDOM + 1) / 2 * np.log1p(e * e / FREEDOM).sum() + (precision * (theta - mean) ** 2).sum() / 2)

    if not coefficients:  # log y is linear in θ, with as many non-zeros a row as there are groupings
        from scipy.sparse import csr_array

        places = np.concatenate([w for w, _ in wholes]), np.tile(np.arange(n), len(wholes))
        linear = csr_array((np.concatenate([v for _, v in wholes]), places[::-1]), shape=(n, len(mean)))
    theta: Array = mean.copy()
    value, damping = loss(mean), 1e-3
    for _ in range(100):
        A = parts(theta)
        total = A.sum(axis=1)
        e = (np.log(total) - target) / noise
        weight = (FREEDOM + 1) / (FREEDOM + e * e) / noise**2
        if coefficients:
            jacobian = _jacobian(A, coefficients, wholes, len(theta))
            hessian = jacobian.T @ (jacobian * weight[:, None]) + np.diag(precision)
            gradient = jacobian.T @ (weight * e * noise) + precision * (theta - mean)
        else:
            hessian = (linear.T @ linear.multiply(weight[:, None])).toarray() + np.diag(precision)
            gradient = linear.T @ (weight * e * noise) + precision * (theta - mean)
        while True:
            step = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), -gradient)
            better = loss(theta + step)
            if better <= value or damping > 1e9:
                break
            damping *= 4.0
        gain = value - better
        theta, value, damping = theta + step, better, max(damping / 4.0, 1e-9)
        if gain <= 1e-6 * abs(value):
            break
    return theta
