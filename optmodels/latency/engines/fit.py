"""Global coefficients fitted over many engines, GPUs and LLMs, in two stages.

Stage 1, one non-negative sum of physical terms T_j (`terms`), whose coefficients may differ a little by engine and by
precision: for a row of engine e and precision q

    ŷ = Σ_j exp(θ_j + δ_{j,e} + ε_{j,q})·T_j        θ_j ~ N(log prior_j, σ_j²), δ ~ N(0, τ_j²), ε ~ N(0, υ_j²)

and log y − log ŷ follows Student's t with 3 degrees of freedom: rows that no physics explains pull little. An engine or
a precision that was never seen has δ = 0, ε = 0.

Stage 2, with stage 1 frozen (fitting both at once distorts the physics): log ŷ gains a sum of factors, one for each
level of each grouping (`FACTORS`: the engine, the LLM, …), each shrunken towards zero by a normal prior. A level that
was never seen has the factor 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Labels = Mapping[str, Sequence[str]]  # grouping → the row's level, (n,)
FREEDOM = 3.0  # of Student's t


@dataclass(frozen=True)
class Form:
    """What is assumed before any data: priors of one target's coefficients and factors.

    Attributes:
        prior: term → (coefficient expected, standard deviation of its logarithm).
        spread: grouping → term → standard deviation of the coefficient's logarithm between levels; "*": other terms.
        factors: grouping → standard deviation of the logarithm of its factors.
        noise: scale of Student's t in stage 1 and 2, of log-ratios.
    """

    prior: Mapping[str, tuple[float, float]]
    spread: Mapping[str, Mapping[str, float]]
    factors: Mapping[str, float]
    noise: tuple[float, float]


@dataclass(frozen=True)
class Fitted:
    """Coefficients by term; logarithms of what levels multiply them and the whole by."""

    coefficients: dict[str, float]
    adjustments: dict[str, dict[str, dict[str, float]]]  # grouping → level → term → δ
    factors: dict[str, dict[str, float]]  # grouping → level → log-factor

    def predict(self, terms: Mapping[str, Array], labels: Labels) -> Array:
        """Seconds, (n,)."""
        names = list(self.coefficients)
        weight = np.log(np.array([self.coefficients[name] for name in names]))[:, None] + np.zeros(len(terms[names[0]]))
        whole = np.zeros(weight.shape[1])
        for grouping, levels in self.adjustments.items():
            weight = weight + np.array([[levels.get(v, {}).get(name, 0.0) for v in labels[grouping]] for name in names])
        for grouping, found in self.factors.items():
            whole = whole + np.array([found.get(v, 0.0) for v in labels[grouping]])
        sum_of_terms: Array = (np.stack([terms[name] for name in names]) * np.exp(weight)).sum(axis=0)
        return sum_of_terms * np.exp(whole)


def fit(form: Form, terms: Mapping[str, Array], seconds: Array, labels: Labels) -> Fitted:
    """Fit both stages.

    Args:
        form: priors.
        terms: by the names of the form's priors, (n,) each.
        seconds: measured, (n,).
        labels: for every grouping of the form, (n,).
    """
    first = _first_stage(form, terms, seconds, labels)
    residual = np.log(seconds / first.predict(terms, labels))
    return Fitted(first.coefficients, first.adjustments, _second_stage(form, residual, labels))


def _first_stage(form: Form, terms: Mapping[str, Array], seconds: Array, labels: Labels) -> Fitted:
    """Posterior mode by Gauss–Newton with Student weights and Levenberg's damping."""
    names = list(form.prior)
    X = np.stack([terms[name] for name in names], axis=1)
    n, J = X.shape
    target = np.log(seconds)
    levels = {g: sorted(set(labels[g])) for g in form.spread}
    mean = np.concatenate((np.log([form.prior[name][0] for name in names]),
                           np.zeros(J * sum(map(len, levels.values())))))  # fmt: skip
    deviation = [np.array([form.prior[name][1] for name in names])]
    columns = [np.broadcast_to(np.arange(J), (n, J))]  # of each row's parameters, by block
    start = J
    for g, found in levels.items():
        each = [form.spread[g].get(name, form.spread[g]["*"]) for name in names]
        deviation += [np.array(each)] * len(found)
        place = np.array([found.index(v) for v in labels[g]])
        columns.append(start + place[:, None] * J + np.arange(J))
        start += J * len(found)
    precision = 1.0 / np.concatenate(deviation) ** 2
    noise = form.noise[0]

    def parts(theta: Array) -> Array:
        weighted: Array = X * np.exp(sum(theta[c] for c in columns))
        return weighted

    def loss(theta: Array) -> float:
        e = (np.log(parts(theta).sum(axis=1)) - target) / noise
        return float((FREEDOM + 1) / 2 * np.log1p(e * e / FREEDOM).sum() + (precision * (theta - mean) ** 2).sum() / 2)

    theta: Array = mean.copy()
    value, damping = loss(mean), 1e-3
    for _ in range(100):
        A = parts(theta)
        total = A.sum(axis=1)
        e = (np.log(total) - target) / noise
        weight = (FREEDOM + 1) / (FREEDOM + e * e) / noise**2
        jacobian = np.zeros((n, len(theta)))
        for c in columns:
            np.put_along_axis(jacobian, c, A / total[:, None], axis=1)
        hessian = jacobian.T @ (jacobian * weight[:, None]) + np.diag(precision)
        gradient = jacobian.T @ (weight * e * noise) + precision * (theta - mean)
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
    adjustments: dict[str, dict[str, dict[str, float]]] = {}
    start = J
    for g, found in levels.items():
        adjustments[g] = {}
        for level in found:
            adjustments[g][level] = dict(zip(names, theta[start : start + J].tolist(), strict=True))
            start += J
    return Fitted(dict(zip(names, np.exp(theta[:J]).tolist(), strict=True)), adjustments, {})


def _second_stage(form: Form, residual: Array, labels: Labels) -> dict[str, dict[str, float]]:
    """Shrunken factors of the log-residuals by reweighted least squares."""
    places: dict[tuple[str, str], int] = {}
    for g in form.factors:
        for level in sorted(set(labels[g])):
            places[g, level] = len(places)
    if not places:
        return {}
    n = len(residual)
    Z = np.zeros((n, len(places)))
    for g in form.factors:
        Z[np.arange(n), [places[g, v] for v in labels[g]]] = 1.0
    precision = np.array([form.factors[g] ** -2.0 for g, _ in places])
    noise = form.noise[1]
    u: Array = np.zeros(len(places))
    for _ in range(15):
        e = (residual - Z @ u) / noise
        weight = (FREEDOM + 1) / (FREEDOM + e * e) / noise**2
        u = np.asarray(np.linalg.solve(Z.T @ (Z * weight[:, None]) + np.diag(precision), Z.T @ (weight * residual)))
    return {g: {level: float(u[places[h, level]]) for h, level in places if h == g} for g in form.factors}
