"""Which rows to measure: those after which the priors leave the rows that matter least unsure.

What rows of one's own pull (`fit.pull`) is linearised where it stands before them. Of TPOT or TTFT row i has

    log yᵢ = log ŷᵢ + aᵢ·z + g(xᵢ) + e        z ~ N(0, I), aᵢ from `fit.sensitivities`

g is the error of the form itself, smooth along x, the logarithms of concurrency, lengths and GPUs: a Gaussian process
of standard deviation m (`Own.misfit`) and lengths ℓ (`ALONG`) within one LLM, GPU, engine and precision (Kennedy and
O'Hagan, Journal of the Royal Statistical Society B 63 (2001) 425). e is Student's t of scale s, whose Fisher
information equals a normal's with variance σ² = s²·(ν + 3)/(ν + 1). With C_ij = aᵢ·aⱼ + m²·exp(-½ Σ ((xᵢ - xⱼ)/ℓ)²)
a row t that matters has after rows R the variance

    v_t(R) = C_tt - C_tR (C_RR + σ²I)⁻¹ C_Rt

which no measured value enters: so it can be had before anything is measured. Chosen are the rows with the least

    Σ over TPOT, TTFT of mean_t v_t(R) / mean_t v_t(∅)

by adding the best row, one after another, and then exchanging one for a better one until none is (Fedorov's
algorithm): Bayesian design for the mean variance of predictions (Chaloner and Verdinelli, Statistical Science 10 (1995)
273). Exchanges end in a local optimum, which need not be the global one. The later prediction (`fit.pull`) has no
g: it keeps rows from extremes, where the form is sharpest and the least to be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optmodels.arrays import Array, Index
from optmodels.errors import InputError, Mistake
from optmodels.latency.engines.document import OWN_WORKLOADS, read_engine_model
from optmodels.latency.engines.fit import FREEDOM, Fitted, Form, Own, sensitivities
from optmodels.latency.engines.forms import FIRST_TOKEN_FORM, STEP_FORM
from optmodels.latency.engines.own import TARGETS, JoinedLoops, Loops
from optmodels.latency.engines.terms import Loads, ModelInstance

MOST_PAIRS = 20_000_000  # of a candidate and a loop: 160 MB
BETTER = 1e-9  # by which an exchange has to lower the sum
ALONG = {"concurrency": 1.5, "input_tokens": 1.5, "output_tokens": 3.0, "gpus": 2.0}  # ℓ, in logarithms
SAME = ("engine|llm", "gpu|precision")  # levels within which the form's error is equal


@dataclass(frozen=True)
class ChosenRows:
    """Rows to measure, and how unsure the rows that matter are by the priors.

    Attributes:
        rows: places among the candidates, in the order of `JoinedLoops`, (count,).
        before: target → standard deviation of log(measured/predicted) of each row that matters, (T,).
        after: the same once the rows are measured.
    """

    rows: Index
    before: dict[str, Array]
    after: dict[str, Array]


def choose(
    models: tuple[Fitted, Fitted], candidates: Sequence[Loops], matter: Sequence[Loops], count: int,
    known: Sequence[Loops] = (), forms: tuple[Form, Form] = (STEP_FORM, FIRST_TOKEN_FORM),
    along: Mapping[str, float] = ALONG,
) -> ChosenRows:  # fmt: skip
    """Choose `count` of the candidates, with the known rows over `OWN_WORKLOADS` workloads as far as there are any.

    Args:
        models: coefficients of the step and of the first token, before any row of one's own.
        candidates: rows that may be measured, N.
        matter: rows that are to be predicted, T.
        count: rows to choose.
        known: rows measured already; `Choice.before` counts them in.
        forms: priors of the step and of the first token.
        along: ℓ of concurrency, lengths and GPUs, in logarithms.

    Raises:
        InputError: fewer candidates than rows to choose, or more than can be compared.
    """
    every = JoinedLoops([*candidates, *known, *matter])
    n = sum(every.sizes[: len(candidates)])
    if count > n:
        raise InputError(Mistake(None, "rows", count, f"at most the {n:,} candidates"))
    if n * sum(every.sizes) > MOST_PAIRS:
        expected = f"at most {MOST_PAIRS:,} pairs of one and of all loops, {sum(every.sizes):,} here"
        raise InputError(Mistake(None, "candidates", n, expected))
    measured = sum(every.sizes[len(candidates) : len(candidates) + len(known)])
    alike = _Alike(every, along)
    priors = [
        _Prior(sensitivities(form, model, terms, every.labels), alike, form.own, n, measured)
        for form, model, terms in zip(forms, models, (every.step, every.first(models[0])), strict=True)
    ]
    lengths = [np.stack([s.loads.input_tokens, s.loads.output_tokens], axis=1) for s in (*candidates, *known)]
    workload = np.unique(np.concatenate(lengths), axis=0, return_inverse=True)[1].reshape(-1)
    workload, before = workload[:n], workload[n:]
    least = min(OWN_WORKLOADS, len(np.union1d(workload, before)), len(np.unique(before)) + count)

    def added(rows: list[int], more: int) -> tuple[float, int]:
        """The least sum with one more row, and which; `more` are still to come after it."""
        left = np.sum([p.left(rows) for p in priors], axis=0)
        there = np.union1d(workload[rows], before)
        allowed = ~np.isin(np.arange(n), rows)
        if least - len(there) > more:
            allowed &= ~np.isin(workload, there)
        best = int(np.argmin(np.where(allowed, left, np.inf)))
        return float(left[best]), best

    rows: list[int] = []
    for more in reversed(range(count)):
        value, row = added(rows, more)
        rows.append(row)
    while True:
        without = [rows[:k] + rows[k + 1 :] for k in range(count)]
        found = [added(rest, 0) for rest in without]
        k = min(range(count), key=lambda k: found[k][0])
        if found[k][0] >= value - BETTER:
            break
        value, rows = found[k][0], [*without[k], found[k][1]]
    chosen = np.array(sorted(rows), dtype=np.intp)
    return ChosenRows(
        chosen,
        {t: np.sqrt(p.variance([])) for t, p in zip(TARGETS, priors, strict=True)},
        {t: np.sqrt(p.variance(chosen.tolist())) for t, p in zip(TARGETS, priors, strict=True)},
    )


def measurable(d: ModelInstance, concurrency: Sequence[int], lengths: Sequence[tuple[int, int]]) -> Loops:
    """The closed-loop runs of a deployment that its KV cache and the LLM's context hold.

    Args:
        d: one model instance.
        concurrency: requests at once.
        lengths: (input, output) tokens.
    """
    deployed = read_engine_model().at(d)
    room = {pair: deployed.kv_tokens(sum(pair)) for pair in lengths if sum(pair) <= d.llm.max_positions}
    found = [(C, *pair) for pair in room for C in concurrency if C * sum(pair) <= room[pair]]
    return Loops(d, Loads(*np.array(found, dtype=float).reshape(-1, 3).T))


class _Alike:
    """Correlation of the form's errors: between runs of one LLM, GPU, engine and precision, by their distance."""

    def __init__(self, rows: JoinedLoops, along: Mapping[str, float]) -> None:
        names = ["|".join(each) for each in zip(*(rows.labels[k] for k in SAME), strict=True)]
        self.level = np.unique(names, return_inverse=True)[1]
        of = [{**vars(s.loads), "gpus": np.full(n, float(s.deployment.gpus))}
              for s, n in zip(rows.loops, rows.sizes, strict=True)]  # fmt: skip
        self.x = [np.log(np.concatenate([each[name] for each in of])) / length for name, length in along.items()]

    def __call__(self, a: Index, b: Index) -> Array:
        """Of rows a with rows b, (|a|, |b|)."""
        distance = sum(((x[a][:, None] - x[b]) ** 2 for x in self.x), np.zeros(1))
        return np.asarray(np.exp(-distance / 2.0) * (self.level[a][:, None] == self.level[b]))


class _Prior:
    """One target: what rows state of the rows that matter.

    Args:
        sensitivity: sensitivity of the candidates, the known rows and the rows that matter, in this order, (N, P).
        alike: correlation of the form's errors on them.
        own: how far it misses, and the noise.
        n: candidates.
        known: rows that are known.
    """

    def __init__(self, sensitivity: Array, alike: _Alike, own: Own, n: int, known: int) -> None:
        self.sensitivity, self.alike, self.misfit = sensitivity, alike, own.misfit
        self.noise = own.noise**2 * (FREEDOM + 3.0) / (FREEDOM + 1.0)
        self.every = np.arange(len(sensitivity))
        self.candidates, self.known, self.matter = np.split(self.every, [n, n + known])
        self.variances = (sensitivity**2).sum(axis=1) + own.misfit**2
        self.together = self._covariance(self.matter, self.candidates)
        self.whole = float(self.variance([]).mean())

    def variance(self, rows: list[int]) -> Array:
        """v_t(R), (T,)."""
        return np.asarray((self.variances - (self._explained(rows) ** 2).sum(axis=0))[self.matter])

    def left(self, rows: list[int]) -> Array:
        """Σ_t v_t(R ∪ {i}) / Σ_t v_t(∅) for every candidate i, (n,)."""
        explained = self._explained(rows)
        now = self.variances - (explained**2).sum(axis=0)
        together = self.together - explained[:, self.matter].T @ explained[:, self.candidates]
        cut = (together**2).mean(axis=0) / (now[self.candidates] + self.noise)
        return np.asarray((now[self.matter].mean() - cut) / self.whole)

    def _explained(self, rows: list[int]) -> Array:
        """L⁻¹ C_R· with L Lᵀ = C_RR + σ²I, (|R|, N): its columns' products are what R takes off C."""
        R = np.concatenate([self.known, np.array(rows, dtype=np.intp)])
        lower = np.linalg.cholesky(self._covariance(R, R) + self.noise * np.eye(len(R)))
        return np.asarray(np.linalg.solve(lower, self._covariance(R, self.every)))

    def _covariance(self, a: Index, b: Index) -> Array:
        """C of rows a with rows b, (|a|, |b|)."""
        return np.asarray(self.sensitivity[a] @ self.sensitivity[b].T + self.misfit**2 * self.alike(a, b))
