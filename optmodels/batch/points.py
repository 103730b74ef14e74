"""Operating points of one workload in static batches: configurations, their latency curves, and their cost.

A *configuration* is physical: strategy family, main machine with its parallelism, AO machine, k/K/N. It has one
latency curve over α. A *candidate* is a configuration bought in one market per role; it adds only a cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from optmodels.arrays import Array, Columns, Index, Mask
from optmodels.batch.static import MOST_PARTS, BatchCase, BatchLimits, OperatingPoint, StaticBatch
from optmodels.catalog.types import MARKETS, Machine, Market
from optmodels.errors import InputError, Mistake
from optmodels.latency.calibration import calibrate
from optmodels.latency.steps import static_batch
from optmodels.latency.strategies import (
    AO_FAMILIES,
    FAMILIES,
    BatchModel,
    Curves,
    Family,
    Hardware,
    concatenate,
)
from optmodels.units import GBPS, GIB

NONE = -1
MOST_CONFIGURATIONS = 1_500_000  # of a family, which takes about 1 GB; more are refused


@dataclass(frozen=True)
class Configurations(Columns):
    """Physical configurations, one row each; shape (n,)."""

    family: Index  # index into FAMILIES
    main: Index  # index into case.machines
    ao: Index  # the same, or NONE
    tp: Index  # GPUs per replica of the main machine
    dp: Index  # replicas per main machine
    count: Index  # k passes, K pairs, N sharing mains, or replicas of a single machine
    batch: Index  # requests per replica and pass (the largest part)
    ranks: Index  # attention ranks of a replica, of tp GPUs each; 1 but of engines


@dataclass(frozen=True)
class BatchCandidates(Columns):
    """Configurations × markets; shape (m,)."""

    configuration: Index
    main_market: Index  # index into MARKETS
    ao_market: Index  # the same, or NONE
    usd_per_hour: Array


@dataclass(frozen=True)
class Optimum:
    """The best α of each configuration within the limits, and its latencies; shape (n,).

    Where no α is feasible, the α with the shortest E2E in the memory range, if there is one, else NaN.
    """

    alpha: Array
    ttft_s: Array
    tpot_s: Array
    e2e_s: Array
    feasible: Mask


@dataclass(frozen=True, repr=False)
class StaticTables:
    """Everything a method may look at."""

    case: BatchCase
    configurations: Configurations
    curves: Curves
    candidates: BatchCandidates
    measured: tuple[OperatingPoint, ...] = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.case.problem.name}: {len(self.candidates)} candidates>"

    @property
    def limits(self) -> BatchLimits:
        """The SLO."""
        return self.case.limits

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The pool."""
        return self.case.machines

    def restricted(self, rows: Index | Mask) -> Self:
        """The same tables with only some candidates (configurations stay)."""
        return replace(self, candidates=self.candidates.take(rows))

    def compact(self) -> Self:
        """Drop configurations that no candidate uses."""
        used, index = np.unique(self.candidates.configuration, return_inverse=True)
        return replace(
            self,
            configurations=self.configurations.take(used),
            curves=self.curves.take(used),
            candidates=replace(self.candidates, configuration=index.astype(np.intp)),
            measured=tuple(self.measured[i] for i in used) if self.measured else (),
        )

    @cached_property
    def optimum(self) -> Optimum:
        """Exhaustive evaluation of every configuration at its best α (see `optimise`)."""
        return optimise(self.curves, self.limits)

    def spot_free(self) -> Mask:
        """Candidates without a part bought on the spot market."""
        spot = MARKETS.index("spot")
        return (self.candidates.main_market != spot) & (self.candidates.ao_market != spot)


def build_tables(problem: StaticBatch) -> StaticTables:
    """Enumerate configurations, compute their curves, price every market combination."""
    case = problem.resolve()
    if case.operating_points:
        configurations, curves, measured = _measured(case)
    else:
        configurations, curves = _modelled(case)
        measured = ()
    return StaticTables(case, configurations, curves, priced(case, configurations), measured)


# ---------------------------------------------------------------------------------------------- configurations


def _replicas(case: BatchCase) -> tuple[Index, Index, Index]:
    """(machine, tp, dp) of every way to run replicas on a main machine: tp·dp = GPUs, tp divides the heads.

    Iterations of engines are known by the 16-bit peak: machines without one run none.
    """
    rows = [
        (i, tp, m.gpu_count // tp)
        for i, m in enumerate(case.machines)
        if case.source is None or m.gpu is None or case.gpus[m.gpu].fp16_flops is not None
        for tp in case.problem.strategies.tensor_parallel
        if m.gpu_count % tp == 0
        and case.architecture.heads % tp == 0
        and m.gpu_count // tp <= case.problem.workload.batch
    ]
    i, tp, dp = (np.array(c, dtype=np.intp) for c in zip(*rows, strict=True)) if rows else (np.zeros(0, np.intp),) * 3
    return i, tp, dp


def _hardware(case: BatchCase, machine: Index, tp: Index, dp: Index) -> Hardware:
    """The part of each machine that one of dp replicas of tp GPUs has."""

    def column(value: object) -> Array:
        assert callable(value)
        return np.array([np.nan if (v := value(m)) is None else float(v) for m in case.machines])[machine]

    gpu = {name: case.gpus[name] for name in case.gpus}
    replicas = dp.astype(float)
    return Hardware(
        tp=tp.astype(float),
        flops=tp * column(lambda m: case.gpu_flops(gpu[m.gpu])),
        mem_bytes_per_s=tp * column(lambda m: gpu[m.gpu].mem_bytes_per_s),
        vram_bytes=tp * column(lambda m: m.vram_gib / m.gpu_count) * GIB,
        pcie_bytes_per_s=tp * column(lambda m: gpu[m.gpu].pcie_bytes_per_s),
        disk_bytes_per_s=column(lambda m: m.disk_gbps) * GBPS / replicas,
        net_bytes_per_s=column(lambda m: m.net_gbps) * GBPS / replicas,
        link_bytes_per_s=column(lambda m: gpu[m.gpu].link_bytes_per_s),
        ram_bytes=column(lambda m: m.ram_gib) * GIB / replicas,
        disk_bytes=np.full(len(machine), case.problem.memory.volume_gib) * GIB / replicas,
    )


def _ceil_div(a: int, b: Any) -> Any:
    return -(-a // b)


def fewest_parts(whole: int) -> Index:
    """The fewest parts for every size that the largest of them can have, ascending: ⌈whole/v⌉ of v = 1 … whole.

    The largest of c parts of D requests has v = ⌈D/c⌉; the fewest parts with none above v are ⌈D/v⌉ ≤ c, and their
    largest is v too, as fewer parts have no smaller one. Any other c is dominated by them: a part takes the same time
    and memory, while more machines cost more, more passes take longer, and more machines that share one wait longer
    for it and get less of its memory. There are at most 2√D: c ≤ √D, or v < √D.
    """
    return np.unique(_ceil_div(whole, np.arange(1, whole + 1)))


def _splits(
    case: BatchCase, model: BatchModel, family: Family, machine: Index, tp: Index, dp: Index
) -> tuple[Index, Index]:
    """(row of `_replicas`, count) of every split of the batch into non-empty parts.

    Counts are the listed ones; without a list the `fewest_parts` that fit next to the weights at some α, or the fewest
    of all where none does.
    """
    batch, allowed = case.problem.workload.batch, case.problem.strategies.allowed(family)
    rows: list[Index] = []
    counts: list[Index] = []
    for replicas in np.unique(dp):
        some = np.array(sorted(set(allowed)), dtype=np.intp)
        if isinstance(allowed, range):
            some = np.intersect1d(some, fewest_parts(int(_ceil_div(batch, replicas))))
        row, count = np.meshgrid(np.flatnonzero(dp == replicas), some[some * replicas <= batch], indexing="ij")
        rows.append(row.ravel())
        counts.append(count.ravel())
    r, c = (np.concatenate([np.zeros(0, dtype=np.intp), *x]) for x in (rows, counts))
    if isinstance(allowed, range):
        vram = np.array([m.vram_gib / m.gpu_count for m in case.machines])[machine] * tp * GIB * model.vram_usable
        fits = model.fixed_bytes(_ceil_div(batch, dp[r] * c), tp[r].astype(float)) <= vram[r]
        fewest = np.full(len(machine), MOST_PARTS)
        np.minimum.at(fewest, r, c)
        keep = fits | ((c == fewest[r]) & ~np.isin(r, r[fits]))
        r, c = r[keep], c[keep]
    return r, c


def stand_together(case: BatchCase) -> Mask:
    """Machines that stand together, (n, n): the same region, and no two clouds; a machine without one is in either."""
    region = np.array([m.region for m in case.machines])
    cloud = np.array([m.provider for m in case.machines])
    unknown = cloud == ""
    same: Mask = (cloud[:, None] == cloud) | unknown[:, None] | unknown
    return (region[:, None] == region) & same


def _family_configurations(case: BatchCase, model: BatchModel, family: Family) -> Configurations:
    """Every configuration of one family.

    Raises:
        InputError: too many.
    """
    machine, tp, dp = _replicas(case)
    r, c = _splits(case, model, family, machine, tp, dp)
    ao = np.array([NONE], dtype=np.intp)
    if family in AO_FAMILIES:
        together = stand_together(case)
        ways = int(together.sum(axis=1)[machine[r]].sum())
        if ways > MOST_CONFIGURATIONS:
            expected = f"at most {MOST_CONFIGURATIONS:,} configurations of {family}"
            hint = "list fewer counts (strategies.parallel, strategies.shared), or fewer machines"
            raise InputError(Mistake(None, "strategies", f"{ways:,} configurations", expected, hint=hint))
        pair, ao = np.nonzero(together[machine[r]])
        r, c = r[pair], c[pair]
    return Configurations(
        family=np.full(len(r), FAMILIES.index(family), dtype=np.intp),
        main=machine[r], ao=np.broadcast_to(ao, r.shape), tp=tp[r], dp=dp[r], count=c,
        batch=_ceil_div(case.problem.workload.batch, dp[r] * c), ranks=np.ones_like(c),
    )  # fmt: skip


def _known(*columns: Array) -> Mask:
    """Rows where every needed capacity of the hardware is known."""
    return np.logical_and.reduce([~np.isnan(c) for c in columns])


def _family_curves(
    case: BatchCase, model: BatchModel, family: Family, c: Configurations
) -> tuple[Configurations, Curves] | None:
    """Curves of one family's configurations; rows whose machine lacks a needed figure are left out."""
    hw = _hardware(case, c.main, c.tp, c.dp)
    needs = {"kvo_ram": hw.ram_bytes * hw.pcie_bytes_per_s, "kvo_disk": hw.disk_bytes_per_s}.get(family, hw.flops)
    keep = _known(hw.flops, needs)
    if family in AO_FAMILIES:
        one = np.ones_like(c.ao)
        gpus = np.array([m.gpu_count for m in case.machines], dtype=np.intp)[c.ao]
        ao = _hardware(case, c.ao, gpus, one).share(c.dp.astype(float))
        keep &= _known(hw.net_bytes_per_s, ao.net_bytes_per_s, ao.flops)
        ao = ao.take(np.flatnonzero(keep))
    c, hw = c.take(keep), hw.take(np.flatnonzero(keep))
    if not len(c):
        return None
    B, count = c.batch.astype(float), c.count.astype(float)
    match family:
        case "high_end" | "multi_pass":
            return c, model.resident(hw, B, passes=count if family == "multi_pass" else np.ones(len(c)))
        case "kvo_ram":
            return c, model.kv_offload(hw, B, hw.pcie_bytes_per_s, hw.ram_bytes * model.ram_usable)
        case "kvo_disk":
            return c, model.kv_offload(hw, B, hw.disk_bytes_per_s, hw.disk_bytes)
        case _:
            sharing = count if family == "ao_shared" else np.zeros(len(c))
            return c, model.attention_offload(hw, ao, B, sharing)


def _modelled(case: BatchCase) -> tuple[Configurations, Curves]:
    p = case.problem
    model = BatchModel(
        work=case.work, input_tokens=p.alike.input_tokens, output_tokens=p.alike.output_tokens,
        variant=p.latency.variant, vram_usable=p.memory.vram_usable, ram_usable=p.memory.ram_usable,
        chunk_tokens=float(p.memory.chunk_tokens), runtime_bytes=(p.memory.runtime_gib or 0.0) * GIB,
        alpha_min=p.strategies.alpha.min, alpha_max=p.strategies.alpha.max,
    )  # fmt: skip
    parts = [
        part
        for family in FAMILIES
        if family in p.strategies.families
        and (part := _family_curves(case, model, family, _family_configurations(case, model, family))) is not None
    ]
    if not parts:
        return _no_configurations(), constant_curves(case, np.zeros((0, 3)))
    configurations = Configurations.joined([c for c, _ in parts])
    curves = concatenate([curve for _, curve in parts])
    if case.calibration is not None:
        gpus = [case.machines[i].gpu or "" for i in configurations.main]
        families = [FAMILIES[i] for i in configurations.family]
        curves = calibrate(curves, case.calibration, gpus, families, safety=p.latency.safety)
    elif case.source is not None:
        curves = _levelled(case, configurations, curves)
    return configurations, curves


def _levelled(case: BatchCase, c: Configurations, curves: Curves) -> Curves:
    """Curves whose latencies without offloading come from the instance's latency model.

    The roofline gives the shape over α; prefill and decode each take the model's ratio to it at α = 0. That an
    offloaded share costs as many times its roofline is a transfer: no engine has been measured with one.
    """
    w, n = case.problem.alike, len(curves)
    zero = np.zeros(n)
    slope, intercept = {"prefill": np.ones(n), "decode": np.ones(n)}, np.zeros(n)
    raw = {"prefill": curves.layers * curves.prefill, "decode": curves.layers * curves.unqueued_decode(zero)}
    gpus = np.array([m.gpu or "" for m in case.machines], dtype=object)[c.main]
    for gpu, tp in sorted(set(zip(gpus.tolist(), c.tp.tolist(), strict=True))):
        rows = np.flatnonzero((gpus == gpu) & (c.tp == tp))
        costs, provenance = case.costs(gpu, tp)
        tpot, ttft = provenance.factors(case.problem.latency.safety)
        first, decode = static_batch(
            costs, c.batch[rows].astype(float), w.input_tokens, w.output_tokens, case.problem.memory.chunk_tokens
        )
        intercept[rows] = ttft * costs.request_s
        slope["prefill"][rows] = ttft * (first - costs.request_s) / raw["prefill"][rows]
        if w.output_tokens > 1:
            slope["decode"][rows] = tpot * decode / raw["decode"][rows]
    return replace(
        curves, prefill_slope=slope["prefill"], prefill_intercept=intercept, decode_slope=slope["decode"]
    )  # fmt: skip


def _no_configurations() -> Configurations:
    empty = np.zeros(0, dtype=np.intp)
    return Configurations(*(empty,) * len(fields(Configurations)))


# ---------------------------------------------------------------------------------------------- measured points


def _measured(case: BatchCase) -> tuple[Configurations, Curves, tuple[OperatingPoint, ...]]:
    """Measured operating points as configurations with a constant curve."""
    names = {m.machine: i for i, m in enumerate(case.machines)}
    points = tuple(o for o in case.operating_points if o.family in case.problem.strategies.families)
    if not points:
        return _no_configurations(), constant_curves(case, np.zeros((0, 3))), ()
    batch = case.problem.workload.batch
    configurations = Configurations(
        family=np.array([FAMILIES.index(o.family) for o in points], dtype=np.intp),
        main=np.array([names[o.main] for o in points], dtype=np.intp),
        ao=np.array([NONE if o.ao is None else names[o.ao] for o in points], dtype=np.intp),
        tp=np.array([o.tp for o in points], dtype=np.intp),
        dp=np.array([o.replicas_per_machine for o in points], dtype=np.intp),
        count=np.array([o.count for o in points], dtype=np.intp),
        batch=np.array([-(-batch // (o.count * o.replicas_per_machine)) for o in points], dtype=np.intp),
        ranks=np.ones(len(points), dtype=np.intp),
    )
    rows = np.array([
        (o.ttft_s or 0.0, o.tpot_s or 0.0, o.e2e_s if o.e2e_s is not None else case.tokens / (o.tps or np.nan))
        for o in points
    ])  # fmt: skip
    curves = constant_curves(case, rows)
    alpha = np.array([o.alpha for o in points])
    return configurations, replace(curves, alpha_lo=alpha, alpha_hi=alpha), points


def constant_curves(case: BatchCase, rows: Array) -> Curves:
    """Curves that are (TTFT, TBT, E2E) as given, whatever α; rows (n, 3)."""
    n = len(rows)
    zero, lines = np.zeros(n), np.zeros((n, 3))
    return Curves(
        layers=1, input_tokens=max(x.input_tokens for x in case.lengths),
        output_tokens=max(x.output_tokens for x in case.lengths),
        prefill=rows[:, 0], prefill_transfer=zero, base=rows[:, 1], base_per_token=zero,
        line=lines, line_alpha=lines, line_per_token=lines, line_per_token_alpha=lines,
        sharing=zero, passes=np.ones(n), prefill_slope=np.ones(n), prefill_intercept=zero,
        decode_slope=np.ones(n), decode_intercept=zero, measured_e2e=rows[:, 2],
        vram_fixed=zero, kv=zero, vram=zero, kv_host=zero, host=zero, alpha_lo=zero, alpha_hi=zero,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- candidates


def priced(case: BatchCase, c: Configurations) -> BatchCandidates:
    """Every configuration in every allowed market combination that has a price."""
    prices = np.array([[m.prices.get(k) or np.nan for k in MARKETS] for m in case.machines])
    allowed = case.problem.markets
    count = c.count.astype(float)
    is_multi_pass = c.family == FAMILIES.index("multi_pass")
    mains = np.where(is_multi_pass, 1.0, count)
    parallel = c.family == FAMILIES.index("ao_parallel")
    aos = np.where(parallel, count, 1.0)
    parts: list[BatchCandidates] = []
    for main_market in sorted({MARKETS.index(m) for m in allowed.main}):
        main_cost = mains * prices[c.main, main_market]
        alone = np.flatnonzero((c.ao == NONE) & ~np.isnan(main_cost))
        parts.append(
            BatchCandidates(alone, np.full_like(alone, main_market), np.full_like(alone, NONE), main_cost[alone])
        )
        for ao_market in sorted({MARKETS.index(m) for m in allowed.ao}):
            cost = main_cost + aos * prices[c.ao, ao_market]
            both = np.flatnonzero((c.ao != NONE) & ~np.isnan(cost))
            parts.append(
                BatchCandidates(both, np.full_like(both, main_market), np.full_like(both, ao_market), cost[both])
            )
    return BatchCandidates.joined(parts)


# ------------------------------------------------------------------------------------------------- evaluation


def in_memory(curves: Curves) -> Mask:
    """Configurations with some α that fits every memory."""
    return curves.alpha_lo <= curves.alpha_hi


def optimise(curves: Curves, limits: BatchLimits) -> Optimum:
    """The α with the shortest E2E of each configuration within TTFT, TBT and throughput limits.

    Every curve is convex on its α-range (`latency.strategies`), so each limit allows one interval and the best
    feasible α is the unconstrained one clipped to their intersection.
    """
    n = len(curves)
    alpha, ttft, tbt, e2e = (np.full(n, np.nan) for _ in range(4))
    feasible = np.zeros(n, dtype=bool)
    rows = np.flatnonzero(in_memory(curves))
    if not len(rows):
        return Optimum(alpha, ttft, tbt, e2e, feasible)
    part = curves.take(rows)
    best = part.fastest_alpha()
    best_ttft, best_tbt, best_e2e = part.metrics(best)
    over = (best_ttft > limits.ttft_s) | (best_tbt > limits.tpot_s)
    movable = np.flatnonzero(over & (part.alpha_hi > part.alpha_lo))
    if len(movable):
        best[movable] = _clip_to_limits(part.take(movable), best[movable], limits)
        best_ttft[movable], best_tbt[movable], best_e2e[movable] = part.take(movable).metrics(best[movable])
    alpha[rows], ttft[rows], tbt[rows], e2e[rows] = best, best_ttft, best_tbt, best_e2e
    feasible[rows] = (best_ttft <= limits.ttft_s) & (best_tbt <= limits.tpot_s) & (best_e2e <= limits.e2e_s)
    return Optimum(alpha, ttft, tbt, e2e, feasible)


def optimise_each(curves: Sequence[Curves], limits: Sequence[BatchLimits]) -> list[Optimum]:
    """`optimise` of several lists of curves in one go, of the same request lengths and layers.

    Their limits may differ in E2E alone, which chooses no α.
    """
    sizes = [len(part) for part in curves]
    one = replace(limits[0], e2e_s=np.inf)
    found = optimise(concatenate([part for part in curves if len(part)] or [*curves[:1]]), one)
    e2e_s = np.repeat([limit.e2e_s for limit in limits], sizes)
    found = replace(found, feasible=found.feasible & (found.e2e_s <= e2e_s))
    ends = np.cumsum(sizes)[:-1]
    columns = [np.split(getattr(found, f.name), ends) for f in fields(Optimum)]
    return [Optimum(*parts) for parts in zip(*columns, strict=True)]


def _clip_to_limits(curves: Curves, fastest: Array, limits: BatchLimits) -> Array:
    """The α nearest to the fastest one that meets the TTFT and TBT limits, where there is one; else the fastest."""
    _, hi = curves.sublevel("ttft", limits.ttft_s, curves.alpha_lo)  # TTFT never falls with α
    capped = replace(curves, alpha_hi=np.maximum(np.minimum(curves.alpha_hi, hi), curves.alpha_lo))
    calm = capped.calmest_alpha()
    left, right = capped.sublevel("tbt", limits.tpot_s, calm)
    ok = (capped.ttft(left) <= limits.ttft_s) & (capped.tbt(calm) <= limits.tpot_s)
    return np.where(ok, np.clip(fastest, left, right), fastest)


@dataclass(frozen=True)
class Nodes:
    """Curves interpolated at J values of α per configuration; seconds.

    Between nodes a chord overestimates the convex curve by at most `error` (relative, certified by convexity);
    at the minimiser and at the ends of every limit's interval, which are nodes, it is exact. So the optimum over
    the interpolant is the optimum over the curve.
    """

    alpha: Array  # (n, J), non-decreasing
    ttft_s: Array
    tpot_s: Array
    e2e_s: Array
    error: Array  # (n,)


def linearise(curves: Curves, limits: BatchLimits, max_error: float = 1e-3, most: int = 1025) -> Nodes:
    """Interpolate E2E and TBT between this many nodes that the certified error is at most `max_error`."""
    fastest, calm, lo, hi = curves.fastest_alpha(), curves.calmest_alpha(), curves.alpha_lo, curves.alpha_hi
    ends = [
        *curves.sublevel("ttft", limits.ttft_s, lo),
        *curves.sublevel("tbt", limits.tpot_s, calm),
        *curves.sublevel("e2e", limits.e2e_s, fastest),
    ]
    grid = lo[:, None] + (hi - lo)[:, None] * np.linspace(0.0, 1.0, 5)
    alpha = np.sort(np.column_stack([fastest, calm, curves.prefill_kink(), *ends, grid]), axis=1)
    ttft, tbt, e2e = _metrics_at(curves, alpha)
    largest, open_ = np.zeros(len(alpha)), np.arange(len(alpha))  # errors; points with one above `max_error`
    while True:
        error = np.zeros((len(alpha), alpha.shape[1] - 1))
        x = alpha[open_]
        error[open_] = np.maximum(interval_errors(x, e2e[open_]), interval_errors(x, tbt[open_]))
        largest[open_] = error[open_].max(axis=1, initial=0.0)
        refine = error > max_error
        open_ = np.flatnonzero(refine.any(axis=1))
        if not len(open_) or alpha.shape[1] >= most:
            return Nodes(alpha, ttft, tbt, e2e, largest)
        # Halve the worst intervals of every row, the same number in each: a good interval gives a node twice.
        width = min(16, int(refine.sum(axis=1).max()), most - alpha.shape[1])
        worst = np.argsort(-error, axis=1)[:, :width]
        rows = np.arange(len(alpha))[:, None]
        split = np.where(refine[rows, worst], 0.5, 0.0)
        new = alpha[rows, worst] * (1 - split) + alpha[rows, worst + 1] * split
        alpha = np.concatenate([alpha, new], axis=1)
        order = np.argsort(alpha, axis=1, kind="stable")
        alpha = alpha[rows, order]
        ttft, tbt, e2e = (
            np.concatenate([old, extra], axis=1)[rows, order]
            for old, extra in zip((ttft, tbt, e2e), _metrics_at(curves, new), strict=True)
        )


def _metrics_at(curves: Curves, alpha: Array) -> tuple[Array, Array, Array]:
    """(TTFT, TBT, E2E) at alpha of shape (n, J), each of that shape."""
    values = [curves.metrics(alpha[:, j]) for j in range(alpha.shape[1])]
    ttft, tbt, e2e = (np.stack(metric, axis=1) for metric in zip(*values, strict=True))
    return ttft, tbt, e2e


SAME_NODE = 1e-12


def interval_errors(x: Array, y: Array) -> Array:
    """Certified relative error of linear interpolation of a convex function, per interval between nodes.

    On [x_i, x_{i+1}] a convex function lies below the chord and above both neighbouring chords prolonged, so the
    error is at most chord minus the larger prolongation, which is largest where the two prolongations meet.

    Args:
        x: nodes, shape (n, J), non-decreasing along a row; intervals between equal nodes have no error.
        y: values, shape (n, J).

    Returns:
        Shape (n, J − 1).
    """
    width = np.diff(x, axis=1)
    real = width > SAME_NODE
    column = np.broadcast_to(np.arange(width.shape[1]), width.shape)
    before = np.maximum.accumulate(np.where(real, column, -1), axis=1)
    before = np.concatenate([np.full((len(x), 1), -1), before[:, :-1]], axis=1)  # the last real interval to the left
    last = width.shape[1]
    after = np.minimum.accumulate(np.where(real, column, last)[:, ::-1], axis=1)[:, ::-1]
    after = np.concatenate([after[:, 1:], np.full((len(x), 1), last)], axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        slope = np.diff(y, axis=1) / np.where(real, width, np.nan)
        rows = np.arange(len(x))[:, None]
        left = np.where(before >= 0, slope[rows, np.maximum(before, 0)], -np.inf)
        right = np.where(after < last, slope[rows, np.minimum(after, last - 1)], np.inf)
        # Gaps of the chord's slope to its neighbours', g = chord − left ≥ 0 and h = right − chord ≥ 0: the
        # prolongations meet width·g·h/(g + h) below the chord.
        g, h = slope - left, right - slope
        gap = width * np.where(np.isinf(g), h, np.where(np.isinf(h), g, g * h / (g + h)))
        least = np.minimum(y[:, :-1], y[:, 1:])
        error = np.where(least > 0, np.maximum(np.where(np.isnan(gap), 0.0, gap), 0.0) / least, 0.0)
    return np.where(real, error, 0.0)


def batch_split(batch: int, parts: int) -> list[int]:
    """Split a batch into parts that differ by at most one, largest first."""
    small, extra = divmod(batch, parts)
    return [small + 1] * extra + [small] * (parts - extra)


def market_name(index: int) -> Market | None:
    """Market of an index column, None for NONE."""
    return None if index == NONE else MARKETS[index]
