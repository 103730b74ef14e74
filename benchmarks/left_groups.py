"""Leave-group-out errors, coverage and the interval of the shipped coefficients (`engine_model`).

A group is one engine, LLM, GPU and precision. A fit leaves out every row of one GPU, LLM, engine, precision or pair of
two of these, and predicts the rows left out. The workloads of known groups are left out in folds. Every group has the
same weight, whatever its number of rows. A row counts as a new pair where both parts were still in the fit.

Coverage is nested: the interval of a group is estimated without any residual of that group. The interval that is
written is estimated from all residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from scipy.stats import norm, t

from optmodels.latency.engines.document import KINDS, LEAST_OWN, Judged
from optmodels.latency.engines.interval import LEVELS, PAIRS, PARTS, Interval
from optmodels.latency.fit.document import LEVELS as SAFETY

LEAST_ROWS = min(LEAST_OWN.values())  # of a level in the fit, else it counts as unseen
CONFIDENCE = 0.9  # at which few levels widen their standard deviation
MARGIN = 0.5  # standard errors that quantiles of unseen kinds are on the safe side
FREEDOM = 4.0  # of Student's t, the likelihood of residuals: a few wild rows say little of the levels
RIDGE = 1e-3  # on variances: levels that residuals cannot tell apart share them evenly
FOLDS = 8
JUDGED_LEVELS = ("0.9", "0.8")  # safety levels by which choices are judged
LIMITS = (0.25, 0.5, 0.75)
LEAST_CONFIGURATIONS = 2  # engine, LLM, GPU and precision; with counts of GPUs and concurrency, many more rows
Predict = Callable[[np.ndarray], dict[str, np.ndarray]]  # rows to fit, (n,) → seconds of all rows by target


@dataclass(frozen=True)
class LeftOut:
    """Residuals of rows that were left out, one row for each row and kind.

    Attributes:
        frame: `kind`, `value` left out, `group`, `row`, and log(measured/predicted) by target.
        unseen: whether each of `LEVELS` was missing from the fit, (n, levels).
    """

    frame: pd.DataFrame
    unseen: np.ndarray

    def take(self, mask: np.ndarray) -> LeftOut:
        """The rows of a mask."""
        return LeftOut(self.frame[mask].reset_index(drop=True), self.unseen[mask])


def weights(frame: pd.DataFrame) -> np.ndarray:
    """Of each row, (n,): groups of a kind have the same, and so have kinds."""
    kind = frame.kind if "kind" in frame else pd.Series("", frame.index)
    one = 1.0 / frame.groupby([kind, "group"]).group.transform("size")
    return (one / one.groupby(kind).transform("sum")).to_numpy()


def named(frame: pd.DataFrame, llm: pd.Series) -> dict[str, np.ndarray]:
    """The name of every row in every level; `llm`: with LLMs of one shape under one name."""
    parts = {"engine": frame.engine, "llm": llm, "gpu": frame.gpu, "precision": frame.precision}
    return {k: pd.Series(np.add.reduce([parts[p] + "|" for p in k.split("|")])).str[:-1].to_numpy() for k in LEVELS}


def folded(level: np.ndarray) -> np.ndarray:
    """Levels in at most `FOLDS` folds, the largest apart from one another."""
    names = pd.Series(level).value_counts().index
    return np.array([str(names.get_loc(v) % FOLDS) for v in level])


def residuals(
    names: dict[str, np.ndarray], workload: np.ndarray, clean: np.ndarray, seen: dict[str, np.ndarray], predict: Predict
) -> LeftOut:
    """Fit without each part, pair and fold of workloads, and predict what was left out.

    Args:
        names: level → name of each row.
        workload: of each row.
        clean: rows that may be fitted; only these are judged.
        seen: measured seconds by target.
        predict: fits some rows and predicts all.
    """
    found, unseen = [], []
    for kind, value, inside in _left_out(names, workload, clean):
        fitted = clean & ~inside
        missing = np.stack([_missing(names[k], fitted) for k in LEVELS], axis=1)
        here = clean & inside
        if kind == "known":
            here &= ~missing.any(axis=1)
        elif kind in PAIRS:  # new as a pair only: both parts are in the fit
            here &= ~missing[:, [LEVELS.index(p) for p in kind.split("|")]].any(axis=1)
        if not here.any():
            continue
        predicted = predict(fitted)
        rows = np.flatnonzero(here)
        columns = {t: np.log(seen[t][rows] / predicted[t][rows]) for t in seen}
        found.append(pd.DataFrame({"kind": "pair" if kind in PAIRS else kind, "value": f"{kind}={value}",
                                   "group": names[LEVELS[-1]][rows], "row": rows, **columns}))  # fmt: skip
        unseen.append(missing[rows])
        print(f"left out: {kind} {value}", flush=True)
    return LeftOut(pd.concat(found, ignore_index=True), np.concatenate(unseen))


def _left_out(
    names: dict[str, np.ndarray], workload: np.ndarray, clean: np.ndarray
) -> Iterator[tuple[str, str, np.ndarray]]:
    """What is left out at a time: kind, name and rows, (n,)."""
    for kind, level in (("known", folded(workload)), *((k, names[k]) for k in (*PARTS, *PAIRS[:3]))):
        for value in np.unique(level[clean]):
            yield kind, value, level == value


def _missing(level: np.ndarray, fitted: np.ndarray) -> np.ndarray:
    """Whether a level has fewer than `LEAST_ROWS` rows in the fit, (n,)."""
    counts = pd.Series(level[fitted]).value_counts()
    return ~np.isin(level, counts.index[counts >= LEAST_ROWS])


def interval(left: LeftOut, target: str, start: np.ndarray | None = None) -> Interval:
    """Standard deviations by maximum likelihood and conformal quantiles, kinds and their groups with equal weight."""
    variances = likeliest(left, target, start)
    variances[1:] *= _few(left)
    r = left.frame[target] / np.sqrt(variances[0] + left.unseen.astype(float) @ variances[1:])
    z = left.frame.assign(**{target: r})
    return Interval(
        known=float(np.sqrt(variances[0])), unseen=dict(zip(LEVELS, np.sqrt(variances[1:]).tolist(), strict=True)),
        quantiles={kind: quantiles(z[z.kind == kind], target, MARGIN * (kind != "known")) for kind in KINDS},
    )  # fmt: skip


def likeliest(left: LeftOut, target: str, start: np.ndarray | None = None) -> np.ndarray:
    """Variances of a row and of `LEVELS` by maximum likelihood, (1 + levels,)."""
    r, unseen, weight = left.frame[target].to_numpy(), left.unseen.astype(float), weights(left.frame)

    def loss(log_variances: np.ndarray) -> tuple[float, np.ndarray]:
        variances = np.exp(log_variances)
        V = variances[0] + unseen @ variances[1:]
        e = r * r / V / FREEDOM
        slope = weight * (0.5 - (FREEDOM + 1.0) / 2.0 * e / (1.0 + e)) / V
        value = (weight * (np.log(V) / 2.0 + (FREEDOM + 1.0) / 2.0 * np.log1p(e))).sum() + RIDGE * variances[1:].sum()
        gradient = np.concatenate([[slope.sum()], unseen.T @ slope + RIDGE]) * variances
        return float(value), gradient

    if start is None:
        start = np.full(1 + len(LEVELS), np.median(np.abs(r)) ** 2)
    bounds = [(-14.0, 2.0)] * len(start)
    return np.exp(minimize(loss, np.log(start), jac=True, method="L-BFGS-B", bounds=bounds).x)


def _few(left: LeftOut) -> np.ndarray:
    """What few known levels widen the variance of a new one by, (levels,).

    A new one of m levels of unknown variance has Student's t with m − 1 degrees of freedom, times 1 + 1/m.
    """
    found = []
    for k, level in enumerate(LEVELS):
        groups = [name.split("|") for name in left.frame.group[left.unseen[:, k]].unique()]
        places = [PARTS.index(p) for p in level.split("|")]
        m = max(2, len({tuple(names[i] for i in places) for names in groups}))
        found.append((1.0 + 1.0 / m) * (t.ppf(CONFIDENCE, m - 1) / norm.ppf(CONFIDENCE)) ** 2)
    return np.array(found)


def quantiles(frame: pd.DataFrame, column: str, margin: float = 0.0) -> dict[str, float]:
    """Safety level → quantile, groups with equal weight, for every level that the groups support.

    Of G groups a fresh one may be worse than all: the share above the quantile shrinks by G/(G + 1), and by `margin`
    times its standard error √(p(1 − p)/G).
    """
    groups, weight, values = frame.group.nunique(), weights(frame), frame[column].to_numpy()
    error = margin / np.sqrt(groups)
    above = {f"{p:g}": (1.0 - p) * groups / (groups + 1.0) - error * np.sqrt(p * (1.0 - p)) for p in SAFETY}
    return {p: weighted_quantile(values, weight, 1.0 - s) for p, s in above.items() if s * len(values) >= 1.0}


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The least value that a share of the weight does not exceed."""
    order = np.argsort(values)
    place = np.searchsorted(np.cumsum(weights[order]), share * weights.sum() * (1.0 - 1e-12))
    return float(values[order][min(place, len(values) - 1)])


def factors(left: LeftOut, target: str) -> dict[str, np.ndarray]:
    """Safety level → what it multiplies each row by, estimated without the residuals of its group, (n,)."""
    found, start = {p: np.ones(len(left.frame)) for p in JUDGED_LEVELS}, likeliest(left, target)
    for group in left.frame.group.unique():
        mine = (left.frame.group == group).to_numpy()
        of = interval(left.take(~mine), target, start)
        for levels in np.unique(left.unseen[mine], axis=0):
            named_levels = [k for k, new in zip(LEVELS, levels, strict=True) if new]
            here, each = mine & (left.unseen == levels).all(axis=1), of.factors(named_levels)
            for p in JUDGED_LEVELS:
                found[p][here] = each[p]
    return found


def judged(left: LeftOut, target: str, above: np.ndarray) -> dict[str, Judged]:
    """Errors and coverage of every kind; `above`: `factors`."""
    masks = {kind: (left.frame.kind == kind).to_numpy() for kind in KINDS}
    return {kind: errors_of(left.frame[mine], target, above[mine]) for kind, mine in masks.items()}


def errors_of(frame: pd.DataFrame, target: str, above: np.ndarray) -> Judged:
    """Errors of log(measured/predicted) in a column, and coverage of factors, (n,); groups have equal weight."""
    r, weight = frame[target].to_numpy(), weights(frame)
    wrong = np.expm1(-r)
    return Judged(
        groups=frame.group.nunique(), rows=len(frame), median=weighted_quantile(np.abs(wrong), weight, 0.5),
        signed=weighted_quantile(wrong, weight, 0.5), covered=float(weight[np.exp(r) <= above].sum() / weight.sum()),
        factor=weighted_quantile(above, weight, 0.5),
    )  # fmt: skip


@dataclass(frozen=True)
class Choices:
    """Choices among measured configurations at a safety level, by predictions without what was left out.

    Attributes:
        made: number of choices; elsewhere no configuration is predicted to keep the limit.
        kept: share of which the measured TPOT keeps the limit, workloads with equal weight.
        regret: median of the measured cost over the least of all configurations that keep the limit, less one.
        equally_safe: the same over the least of those whose measured TPOT, times the same factor, keeps it.
    """

    made: int
    kept: float
    regret: float
    equally_safe: float


def choices(left: LeftOut, above: np.ndarray, rows: pd.DataFrame, usd_per_hour: np.ndarray) -> dict[str, Choices]:
    """Of every kind: the cheapest configuration of an LLM and lengths that keeps a limit of TPOT at a safety level.

    Limits are quantiles (`LIMITS`) of the measured TPOT. The cost is that of a request in a closed loop.

    Args:
        left: residuals of what was left out.
        above: TPOT's `factors` of the level, (n,).
        rows: `work` (LLM and lengths), `concurrency`, `output_tokens`, `tpot_s`, `ttft_s`, (n,).
        usd_per_hour: price of a row's GPUs, (n,).
    """
    frame = left.frame.assign(above=above).drop_duplicates(["kind", "row"])
    of = rows.iloc[frame.row].reset_index(drop=True)
    frame = frame.reset_index(drop=True).assign(work=of.work)
    for name, tpot, ttft in (
        ("predicted", of.tpot_s / np.exp(frame.tpot_s), of.ttft_s / np.exp(frame.ttft_s)),
        ("measured", of.tpot_s, of.ttft_s),
    ):
        seconds = ttft + (of.output_tokens - 1.0) * tpot
        frame[name] = tpot
        frame[f"{name}_usd"] = usd_per_hour[frame.row] * seconds / of.concurrency
    found = {}
    for kind, all_of in frame.groupby("kind"):
        made = []
        for work, part in all_of.groupby("work"):
            if part.group.nunique() < LEAST_CONFIGURATIONS:
                continue
            for limit in part.measured.quantile(LIMITS):
                safe = part[part.predicted * part.above <= limit]
                if len(safe):
                    mine = safe.loc[safe.predicted_usd.idxmin()]
                    made.append((work, mine.measured <= limit, *(
                        mine.measured_usd / part[part.measured * factor <= limit].measured_usd.min() - 1.0
                        for factor in (1.0, part.above)
                    )))  # fmt: skip
        table = pd.DataFrame(made, columns=["group", "kept", "regret", "equally_safe"])
        if len(table):
            weight, kept = weights(table), table.kept.to_numpy(bool)
            medians = {}
            for name in ("regret", "equally_safe"):
                one = kept & table[name].notna().to_numpy()  # with such a margin none may be left
                medians[name] = weighted_quantile(table[name].to_numpy()[one], weight[one], 0.5)
            found[str(kind)] = Choices(len(table), float(weight[kept].sum() / weight.sum()), **medians)
    return found
