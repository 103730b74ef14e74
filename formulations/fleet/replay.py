"""A fleet plan on a trace: every deployment as slots, requests sent by the planned shares.

A fleet's service times are known by bucket and deployment: TTFT and time between tokens of the bucket's mean lengths at
the planned batch. A request of a bucket takes ``TTFT·prompt/mean prompt + TPOT·output`` there (measured points:
``batch/rate``, in proportion to its tokens where the bucket's are known), so that a trace shows what lengths within a
bucket and bursts do to a plan that was made for means. Slots serve in order of arrival.

Engines that batch continuously are simulated step by step (`optmodels.simulation.continuous`), each with step costs,
KV cache and limits as planned; then TTFT, time per output token and E2E are the requests' own, next to
the plan's bounds. Disaggregated prefill and decode are simulated one after the other, for nothing comes back: a
request has its first token where it is prefilled, after the planned seconds of sending its KV cache, and goes on, after
the seconds of receiving it, on a decode engine that has the whole prompt (`optmodels.simulation.stages`). Of an engine
of several attention ranks a request goes to the one with the fewest waiting and running, as by vLLM's own balancer.

Policies: ``planned_shares`` (deficit round robin over the deployments that serve the bucket, in turn within a line;
where the plan's prefix-cache hits are of a routing that keeps requests together and the trace states which, these take
their turn as one) and
``random`` (drawn by the same shares: as the plan's waiting formulas assume, Poisson streams staying Poisson).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from formulations.fleet.engines import exchange, simulated, transfer_s
from formulations.fleet.plan import DeploymentLine, FleetPlan, PeriodLine, ShareLine
from formulations.fleet.problem import Demand, Fleet, FleetCase
from optmodels.arrays import Array, Ints, Mask
from optmodels.engine.continuous import LatencyLimit, seconds_and_quantile
from optmodels.errors import InputError, Mistake
from optmodels.simulation.continuous import EDGES_S, Arrivals, Engine, Gaps, at_quantile, gap_quantiles, of_edges
from optmodels.simulation.options import ReplayOptions
from optmodels.simulation.stages import simulate_stages
from optmodels.simulation.summary import QUANTILES, quantiles
from optmodels.traces.buckets import sort_into_buckets
from optmodels.traces.types import Trace

POLICIES = ("planned_shares", "random")
UNUSED = "predicted output lengths change nothing: shares of a fleet do not go by lengths"
DRAWN = 100_000  # requests, where there is no trace
NO_TIMES = "measured points of one stage have rates alone, no seconds to replay"


def waits(arrivals: Array, services: Array, slots: int) -> Array:
    """Waiting of every request before the first of equal slots that is free, in order of arrival."""
    free = [0.0] * slots
    waited = np.empty(len(arrivals))
    for i, (at, service) in enumerate(zip(arrivals.tolist(), services.tolist(), strict=True)):
        start = max(at, free[0])
        heapq.heapreplace(free, start + service)
        waited[i] = start - at
    return waited


@dataclass(frozen=True)
class ReplayedRequests:
    """Of every request: the deployment line (−1: none) and seconds."""

    line: Ints
    wait_s: Array
    ttft_s: Array
    e2e_s: Array
    busy_s: float  # slots together; engines together
    tpot_s: Array | None = None  # of engines
    edges_s: Array | None = None  # of counted times between tokens, where a limit is on them
    gaps: Ints | None = None  # by demand and line, (D, J, B + 1)

    def pauses(self, demand: int | None = None, line: int | None = None) -> tuple[Array, Array]:
        """Times between tokens of a demand (None: any) on a line (None: on any), and how many of each there are."""
        if self.gaps is None or self.edges_s is None:
            return np.zeros(0), np.zeros(0)
        some = self.gaps if demand is None else self.gaps[[demand]]
        counts = (some if line is None else some[:, [line]]).sum(axis=(0, 1))
        return of_edges(self.edges_s, counts)


def replay(
    problem: Fleet, plan: Mapping[str, Any], trace: Trace | None = None, options: ReplayOptions | None = None
) -> dict[str, Any]:
    """Replay the busiest period of a plan.

    Args:
        problem: the instance.
        plan: its plan as JSON data.
        trace: requests, with a label ``class`` (``workload/bucket``) or ``model`` (workload) unless there is one
            workload; such requests go to the bucket with the nearest lengths. None: the instance's own, where its
            workloads were cut from traces, else 100,000 Poisson arrivals at the plan's rates.
        options: policy and seed; service times are the plan's, so ``speed`` changes nothing.

    Returns:
        ``period``, ``predicted`` and ``policies``, and for every demand the planned and replayed waiting (``demands``).

    Raises:
        InputError: unknown policy, requests of an unknown workload, or lengths that the buckets do not have.
    """
    o = options or ReplayOptions()
    if o.policy is not None and o.policy not in POLICIES:
        raise InputError(Mistake(None, "policy", o.policy, f"one of {', '.join(POLICIES)}, for fleet plans"))
    if o.overflow_protection:
        raise InputError(Mistake(None, "overflow_protection", True, "none: fleet plans serve all requests they take"))
    if o.queue == "deadline":
        raise InputError(Mistake(None, "queue", o.queue, "fifo: fleet plans serve in order of arrival"))
    if o.controller is not None:
        raise InputError(Mistake(None, "controller", o.controller, "none: fleet plans have fixed batches"))
    p, case = FleetPlan.model_validate(plan), problem.resolve()
    if any(d.point is not None and d.stage != "both" for q in p.periods for d in q.deployments):
        raise InputError(Mistake(None, "points", NO_TIMES, "a plan whose measured points serve whole requests"))
    period = max(p.periods, key=lambda q: q.requests_per_s)
    demands = {d.name: d for d in case.demands}
    rng = np.random.default_rng(o.seed)
    own, trace = trace is None, case.trace if trace is None else trace
    requests, code = drawn(case, period.name, rng) if trace is None else (trace, codes_of(case, trace))
    planned = planned_of(case, period)
    policies, rows = {}, []
    for policy in (o.policy,) if o.policy else POLICIES:
        seen = (simulate_engines if problem.continuous else _serve)(
            case, period, requests, code, planned, policy, rng, p.stretch
        )
        policies[policy], lines = figures(case, period, requests, code, planned, seen, p.stretch)
        rows += [{"policy": policy, **r} for r in lines]
        if o.keep is not None:
            names = np.array([*demands], dtype=object)
            lines_of = np.array([*(d.name for d in period.deployments), ""], dtype=object)
            o.keep(policy, {
                "arrival_s": requests.arrival_s, "input_tokens": requests.prompt_tokens,
                "output_tokens": requests.output_tokens, "demand": names[code], "deployment": lines_of[seen.line],
                "wait_s": seen.wait_s, "ttft_s": seen.ttft_s, "e2e_s": seen.e2e_s,
            })  # fmt: skip
    span = requests.duration_s
    predicted = {
        "served_share": period.served_requests_per_s / period.requests_per_s if period.requests_per_s else 1.0,
        "requests_per_s": period.requests_per_s,
        "utilisation": _mean_utilisation(period.deployments),
    }
    return {
        "sent": _sent_words(case, own, trace), "period": period.name, "requests": len(requests), "seconds": span,
        "predicted": predicted, "policies": policies, "demands": rows,
    } | ({} if requests.predicted_output_tokens is None else {"notes": [UNUSED]})  # fmt: skip


def _sent_words(case: FleetCase, own: bool, trace: Trace | None) -> str | None:
    """Which requests were replayed, in words; None: a given trace."""
    if trace is None:
        where = "pieces of the trace" if len(case.pieces[0]) > 1 else "mean rates"
        return f"{DRAWN:,} requests drawn at random (Poisson) at the plan's {where}"
    return case.requests_in_words if own else None


def planned_of(case: FleetCase, period: PeriodLine) -> list[list[tuple[int, ShareLine]]]:
    """Of every demand the lines that serve it, by index, with its share there."""
    return [[(k, s) for k, d in enumerate(period.deployments) for s in d.serves
             if s.demand == demand.name and s.requests_per_s > 0] for demand in case.demands]  # fmt: skip


def _mean_utilisation(lines: list[DeploymentLine]) -> float:
    slots = np.array([d.count * d.batch for d in lines], dtype=float)
    return float(np.array([d.utilisation for d in lines]) @ slots / slots.sum()) if slots.sum() > 0 else 0.0


def drawn(case: FleetCase, period: str, rng: np.random.Generator) -> tuple[Trace, Ints]:
    """Poisson arrivals at the period's rates, every request with its bucket's mean lengths.

    In the pieces of a trace whose requests are not known, one after the other, at the rates of each.
    """
    at = [q.name for q in case.periods].index(period)
    seconds, factors = case.pieces
    rates = factors * np.array([d.requests_per_s[at] for d in case.demands])  # (K, W)
    if len(rates) == 1:
        code = rng.choice(rates.shape[1], DRAWN, p=rates[0] / rates[0].sum())
        arrival = np.cumsum(rng.exponential(1.0 / rates[0].sum(), DRAWN))
    else:
        length = seconds * DRAWN / (rates.sum(axis=1) @ seconds)
        piece = rng.choice(len(rates), DRAWN, p=rates.sum(axis=1) * length / DRAWN)
        shares = rates.cumsum(axis=1) / np.maximum(rates.sum(axis=1), 1e-300)[:, None]
        code = np.minimum((rng.random(DRAWN)[:, None] > shares[piece]).sum(axis=1), rates.shape[1] - 1)
        arrival = (np.cumsum(length) - length)[piece] + rng.random(DRAWN) * length[piece]
        order = np.argsort(arrival, kind="stable")
        arrival, code = arrival[order], code[order]
    prompt = np.array([d.input_tokens or 1 for d in case.demands], np.int64)
    output = np.array([d.output_tokens or 1 for d in case.demands], np.int64)
    return Trace("drawn", arrival, prompt[code], output[code]), code.astype(np.int64)


def codes_of(case: FleetCase, trace: Trace) -> Ints:
    """The demand of every request."""
    names = [d.name for d in case.demands]
    label = trace.labels.get("class")
    if label is not None and set(label.names) <= set(names):
        return np.array([names.index(n) for n in label.names], np.int64)[label.codes]
    workloads = [w.name for w in case.workloads]
    label = trace.labels.get("model")
    if label is not None and set(label.names) <= set(workloads):
        of = np.array([workloads.index(n) for n in label.names], np.int64)[label.codes]
    elif len(workloads) == 1:
        of = np.zeros(len(trace), np.int64)
    else:
        value = list(label.names)[:5] if label is not None else "no label model or class"
        raise InputError(Mistake(None, "trace", value, f"requests labelled with {', '.join(workloads)}"))
    code = np.zeros(len(trace), np.int64)
    for i, name in enumerate(workloads):
        mine = np.flatnonzero(of == i)
        buckets = [k for k, d in enumerate(case.demands) if d.workload == name]
        if not len(mine):
            continue
        if not buckets:
            raise InputError(Mistake(None, "trace", name, "requests of workloads with a rate above 0"))
        if len(buckets) == 1:
            code[mine] = buckets[0]
            continue
        if any(case.demands[k].input_tokens is None or case.demands[k].output_tokens is None for k in buckets):
            raise InputError(Mistake(None, "trace", name, "a label class with workload/bucket: lengths are unknown"))
        of_buckets = [case.demands[k] for k in buckets]
        code[mine] = np.array(buckets)[sort_into_buckets(
            trace.prompt_tokens[mine], trace.output_tokens[mine], [d.bounds for d in of_buckets],
            [(d.input_tokens or 1, d.output_tokens or 1) for d in of_buckets],
        )]  # fmt: skip
    return code


def _service(case: FleetCase, d: DeploymentLine, s: ShareLine, demand: Demand, trace: Trace, rows: Ints) -> Array:
    """Seconds to the first token and of the whole request in a slot, (2, m)."""
    prompt, output = trace.prompt_tokens[rows].astype(float), trace.output_tokens[rows].astype(float)
    if s.ttft_s is not None and s.e2e_s is not None and demand.input_tokens and demand.output_tokens:
        first = s.ttft_s * prompt / demand.input_tokens
        return np.array([first, first + (s.e2e_s - s.ttft_s) * output / demand.output_tokens])
    assert d.point is not None
    point = next(q for q in case.points or () if q.name == d.point)
    whole = d.batch / point.requests_per_s[s.demand] * np.ones(len(rows))
    if demand.input_tokens is not None and demand.output_tokens is not None:
        whole *= (prompt + output) / demand.tokens
    return np.array([np.zeros(len(rows)), whole])


def _serve(
    case: FleetCase, period: PeriodLine, trace: Trace, code: Ints, planned: list[list[tuple[int, ShareLine]]],
    policy: str, rng: np.random.Generator, stretch: float,
) -> ReplayedRequests:  # fmt: skip
    """Send every request to a line of deployments and one of its members, and let the slots serve them."""
    line, member = _sent(period, code, planned, policy, rng)
    service, wait = np.zeros((2, len(trace))), np.full(len(trace), np.nan)
    for k, lines in enumerate(planned):
        for j, s in lines:
            mine = np.flatnonzero((code == k) & (line == j))
            service[:, mine] = _service(case, period.deployments[j], s, case.demands[k], trace, mine)
    for j, d in enumerate(period.deployments):
        for c in range(d.count):
            own = np.flatnonzero((line == j) & (member == c))
            wait[own] = waits(trace.arrival_s[own], service[1, own], d.batch)
    return ReplayedRequests(line, wait, wait + service[0], wait + service[1], float(service[1, line >= 0].sum()))


def itl_edges(case: FleetCase) -> Array:
    """Edges that times between tokens are counted by: `EDGES_S`, and every limit on them."""
    limits = [seconds_and_quantile(w.slo.itl_s)[0] * (1 + 1e-9) for w in case.workloads if w.slo.itl_s is not None]
    return np.unique(np.concatenate([limits, EDGES_S]))


def simulate_engines(
    case: FleetCase, period: PeriodLine, trace: Trace, code: Ints, planned: list[list[tuple[int, ShareLine]]],
    policy: str, rng: np.random.Generator, stretch: float,
) -> ReplayedRequests:  # fmt: skip
    """Send every request to a line and one of its engines, and simulate the engines step by step.

    A workload's prefix cache is full from the beginning, unless the trace states shared prefixes.
    """
    engines: list[Engine] = []
    first, slower, sends, receives = [], [], [], []
    for d in period.deployments:
        one, factor = simulated(case, d)
        first.append(len(engines))
        slower.append(factor)
        receives.append(transfer_s(case, d))
        sends.append((receives[-1] + case.problem.deployment.link.latency_s) * (d.stage == "prefill"))
        engines += [one] * (d.count * (d.replicas_per_machine or 1))
    whole = [[(j, s) for j, s in lines if period.deployments[j].stage != "decode"] for lines in planned]
    group = _together(case, trace) if policy != "random" else None
    line, member = _sent(period, code, whole, policy, rng, engines=True, group=group)
    served, starts = line >= 0, np.array([*first, 0])
    here = np.array([d.stage == "prefill" for d in period.deployments] + [False])[line]  # and the rest elsewhere
    caches = [d.engine.kv_tokens for d in period.deployments if d.engine] + [0.0]  # refused: on none
    hit = np.array([[case.hit_share(d.workload, kv) for d in case.demands] for kv in caches])[line, code]
    received = np.zeros(len(trace), np.int64) if trace.prefixes is not None else (hit * trace.prompt_tokens).astype(int)
    then, sent_s, received_s = np.full(len(trace), -1, np.int64), np.zeros(len(trace)), np.zeros(len(trace))
    if here.any():
        to = _decoded_on(case, period, line, code, here, policy, rng, stretch)
        _, members = _members(period, np.where(here, to, -1), policy, rng)
        then = np.where(here, starts[to] + members, -1)
        sent_s = np.array([*sends, np.zeros(len(case.demands))])[line, code]
        received_s = np.array(receives)[to, code]
    lines = len(period.deployments)
    edges = itl_edges(case)
    counted = np.where(served, code * lines + line, -1)
    seen = simulate_stages(
        Arrivals.of(
            trace.arrival_s, trace.prompt_tokens, trace.output_tokens,
            received_tokens=np.minimum(received, trace.prompt_tokens - 1), prefixes=trace.prefixes,
        ),
        engines, np.where(served, starts[line] + member, -1), np.array([*slower, 1.0])[line], then, sent_s, received_s,
        Gaps(edges, counted) if len(edges) > len(EDGES_S) else None,
    )  # fmt: skip
    waited = np.where(served, seen.queue_s, np.nan)
    gaps: Ints | None = None
    if seen.gaps is not None:
        gaps = np.zeros((len(case.demands), lines, len(edges) + 1), np.int64)
        gaps.reshape(-1, len(edges) + 1)[: len(seen.gaps)] = seen.gaps
    return ReplayedRequests(line, waited, seen.ttft_s, seen.e2e_s, seen.busy_s, seen.tpot_s, edges, gaps)


def paired(case: FleetCase, period: PeriodLine, demand: str, stretch: float) -> dict[tuple[int, int], float]:
    """Shares of a demand by (prefill line, decode line): the slowest prefill first, with the slowest in time for it.

    In time is what keeps a deadline `stretch` times as long, as the plan's model had it.
    """
    limit = stretch * seconds_and_quantile(case.workload(demand.rpartition("/")[0]).slo.deadline_s)[0]
    ends: dict[str, list[tuple[float, int, Any, float]]] = {"prefill": [], "decode": [], "both": []}
    for j, d in enumerate(period.deployments):
        place = None if d.stage == "both" else exchange(case, d)
        ends[d.stage] += [(s.e2e_s or 0.0, j, place, s.share) for s in d.serves if s.demand == demand]
    rests = sorted(ends["decode"], reverse=True)
    left = [share for *_, share in rests]
    found: dict[tuple[int, int], float] = {}
    for seconds, j, place, share in sorted(ends["prefill"], reverse=True):
        for i, (other_s, other, there, _) in enumerate(rests):
            taken = min(share, left[i]) if place == there and seconds + other_s <= limit * (1 + 1e-6) else 0.0
            if taken > 0:
                found[j, other] = found.get((j, other), 0.0) + taken
                share, left[i] = share - taken, left[i] - taken
    return found


def _decoded_on(
    case: FleetCase, period: PeriodLine, line: Ints, code: Ints, here: Mask, policy: str,
    rng: np.random.Generator, stretch: float,
) -> Ints:  # fmt: skip
    """Line that decodes each request `here`; 0 for others."""
    to = np.zeros(len(line), np.int64)
    for k, demand in enumerate(case.demands):
        pairs = paired(case, period, demand.name, stretch)
        for j in {first for first, _ in pairs}:
            rows = np.flatnonzero(here & (code == k) & (line == j))
            others = [other for first, other in pairs if first == j]
            shares = np.array([pairs[j, other] for other in others])
            shares /= shares.sum()
            turn = rng.choice(len(shares), len(rows), p=shares) if policy == "random" else in_turn(shares, len(rows))
            to[rows] = np.array(others)[turn]
    return to


def _sent(
    period: PeriodLine, code: Ints, planned: list[list[tuple[int, ShareLine]]], policy: str,
    rng: np.random.Generator, engines: bool = False, group: Ints | None = None,
) -> tuple[Ints, Ints]:  # fmt: skip
    """Line of deployments (−1: none) and member (deployment, or engine among them) of every request.

    Requests of one `group` are kept together.
    """
    n = len(code)
    line = np.full(n, -1, np.int64)
    for k, lines in enumerate(planned):
        rows = np.flatnonzero(code == k)
        share = np.array([s.share for _, s in lines])
        if not len(rows) or not len(lines):
            continue
        # Unserved requests are a last line of their own.
        shares = np.append(share, max(0.0, 1.0 - share.sum())) / max(1.0, share.sum())
        if group is not None:
            groups, at = np.unique(group[rows], return_inverse=True)
            turn = in_turn(shares, len(groups))[at]
        else:
            turn = rng.choice(len(shares), len(rows), p=shares) if policy == "random" else in_turn(shares, len(rows))
        for q, (j, _) in enumerate(lines):
            line[rows[turn == q]] = j
    return _members(period, line, policy, rng, engines, group)


def _together(case: FleetCase, trace: Trace) -> Ints | None:
    """Codes of requests that the plan's routing keeps together; None where it does not, or no field states which."""
    known = trace.prefixes is not None if case.routing == "first_block" else "session" in trace.labels
    if case.routing is None or case.routing == "random" or not known:
        return None
    from optmodels.simulation.prefix_hits import together  # takes a second of Numba to import

    return together(trace, case.routing)


def _members(
    period: PeriodLine, line: Ints, policy: str, rng: np.random.Generator, engines: bool = True,
    group: Ints | None = None,
) -> tuple[Ints, Ints]:  # fmt: skip
    """The line of each request, and which of its deployments or engines it goes to."""
    member = np.zeros(len(line), np.int64)
    for j, d in enumerate(period.deployments):
        mine = np.flatnonzero(line == j)
        members = d.count * (d.replicas_per_machine or 1) if engines else d.count
        turn = np.arange(len(mine)) if group is None else np.unique(group[mine], return_inverse=True)[1]
        member[mine] = rng.integers(members, size=len(mine)) if policy == "random" else turn % members
    return line, member


def in_turn(shares: Array, n: int) -> Ints:
    """Deficit round robin: which line every one of n requests in a row goes to."""
    credit, chosen = np.zeros(len(shares)), np.empty(n, np.int64)
    able = shares > 0
    for i in range(n):
        credit += shares
        q = int(np.where(able, credit, -np.inf).argmax())
        credit[q] -= 1.0
        chosen[i] = q
    return chosen


def figures(
    case: FleetCase,
    period: PeriodLine,
    trace: Trace,
    code: Ints,
    planned: list[list[tuple[int, ShareLine]]],
    seen: ReplayedRequests,
    stretch: float,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Over all requests, and by demand: planned waiting next to the replayed, and the share within each limit."""
    served = seen.line >= 0
    rows: list[dict[str, Any]] = []
    for k, d in enumerate(case.demands):
        mine = served & (code == k)
        if not mine.any():
            continue
        slo = case.workload(d.workload).slo
        row: dict[str, Any] = {"demand": d.name, "requests": int(mine.sum())}
        limits: list[tuple[str, LatencyLimit | None, Array, str]] = [
            ("ttft", slo.ttft_s, seen.ttft_s, "ttft_s"), ("deadline", slo.deadline_s, seen.e2e_s, "e2e_s"),
        ]  # fmt: skip
        if seen.tpot_s is not None:
            limits.insert(1, ("tpot", slo.tpot_s, seen.tpot_s, "tpot_s"))
        for name, limit, values, field in limits:
            if limit is None:
                continue
            seconds, percentile = seconds_and_quantile(limit)
            row |= {f"{name}_limit_s": seconds, f"{name}_percentile": percentile,
                    f"{name}_within": float((values[mine] <= seconds * (1 + 1e-9)).mean())}  # fmt: skip
            if seen.tpot_s is not None:
                known = values[mine][~np.isnan(values[mine])]
                if len(known):
                    row[f"{name}_replayed_s"] = float(
                        known.mean() if percentile is None else np.quantile(known, percentile)
                    )
                row[f"{name}_planned_s"] = max(getattr(s, field) or 0.0 for _, s in planned[k])
                if name == "deadline":
                    part = {j: s.e2e_s or 0.0 for j, s in planned[k]}
                    pairs = paired(case, period, d.name, stretch)
                    both = [part[j] for j in part if period.deployments[j].stage == "both"]
                    row["deadline_planned_s"] = max(both + [part[i] + part[j] for i, j in pairs])
        if slo.itl_s is not None and seen.gaps is not None:
            seconds, percentile = seconds_and_quantile(slo.itl_s)
            pauses, many = seen.pauses(k)
            row |= {"itl_limit_s": seconds, "itl_percentile": percentile}
            if len(pauses):
                row |= {
                    "itl_within": float(many[pauses <= seconds * (1 + 1e-9)].sum() / many.sum()),
                    "itl_replayed_s": at_quantile(pauses, many, percentile),
                }  # fmt: skip
            row["itl_planned_s"] = max(s.itl_s or 0.0 for _, s in planned[k])
        if seen.tpot_s is not None:
            rows.append(row)
            continue
        share = np.array([s.share for _, s in planned[k]])
        first = slo.ttft_s if slo.ttft_s is not None else slo.deadline_s
        percentile = seconds_and_quantile(first)[1]
        waited = seen.wait_s[mine]
        row |= {
            "planned_wait_s": float(share @ np.array([s.wait_s for _, s in planned[k]]) / share.sum()),
            "replayed_wait_s": float(waited.mean() if percentile is None else np.quantile(waited, percentile)),
        }
        rows.append(row)
    span = float((trace.arrival_s + seen.e2e_s)[served].max(initial=trace.duration_s))
    slots = sum(d.count * (d.batch if seen.tpot_s is None else d.replicas_per_machine or 1) for d in period.deployments)
    return {
        "served_share": float(served.mean()) if len(served) else 1.0,
        "requests_per_s": len(trace) / trace.duration_s if trace.duration_s > 0 else 0.0,
        "utilisation": seen.busy_s / (slots * span) if slots and span > 0 else 0.0,
        "waiting_s": quantiles(seen.wait_s[served]),
        "ttft_s": quantiles(seen.ttft_s[served]),
        "e2e_s": quantiles(seen.e2e_s[served]),
        **({} if seen.tpot_s is None else {"tpot_s": quantiles(seen.tpot_s[served & ~np.isnan(seen.tpot_s)])}),
        **({} if seen.gaps is None else {"itl_s": gap_quantiles(*seen.pauses(), QUANTILES)}),
    }, rows  # fmt: skip
