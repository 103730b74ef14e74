"""A plan's requests by name: which one is served by which instance, in which of its slots, from when on.

The column form states how many requests of a class, arriving in a bin, are meant for a configuration. Here every one of
them gets an instance, a slot and a start, or is refused:

1. *Flow* (networkx), class by class. Requests of a bin that may use the same configurations are one node; a
   configuration takes in each bin the rise of its rounded curve of admissions, or the rest of a neighbouring bin
   at a price. The most that can, moved the least: a minimum-cost maximum flow, hence integral.

       source → (bin, who may use what): requests → (configuration, bin) → sink: ⌊M(t) + ½⌋ − ⌊M(t − 1) + ½⌋
                                                      ↕ one bin: cost 1

   Of a node's requests the shortest are served, and those with most time go to the slowest configuration.
2. *Prices* (`orchestration.prices`): an upper bound on how many can be in time, request by request, and where
   each would go at the bound's prices of slots; where that serves more than the flow, it is taken.
3. *Slots* (`orchestration.slots`): a start for each, everybody in time; and for those left out, wherever
   room is found or can be made. A request keeps its slot for prefill and decoding at the full-batch rate, the worst
   case, so that the schedule holds whatever the load.

Its attainment is therefore reached by a dispatcher that knows all requests beforehand: a certified lower bound next to
the prediction of the column form, whose requests are divisible.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from formulations.orchestration.flow import weights
from formulations.orchestration.making import rows_of
from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables
from formulations.orchestration.prices import most_in_time
from formulations.orchestration.slots import schedule
from optmodels.arrays import Array, Ints, Mask
from optmodels.solver.deadline import leave_out, seconds_for

MOST_NAMED = 200_000  # requests
MOST_NODES = 2_000  # bins × configurations of the network of a class: seconds
TRIES = 10_000  # repairs of each model's schedule
MOST_REMEMBERED = 4
NAMES = "names of requests"


@dataclass(frozen=True)
class Named:
    """Requests in the order of the trace.

    Attributes:
        instance: (n,) index of the plan's instance; −1: refused.
        slot: (n,) of the instance, from 0; −1: refused.
        start_s: (n,) planned begin of prefill; infinity: refused.
        finish_s: (n,) last token, at the rate of a full batch.
        meant: requests that the flow found a configuration for.
        attainment_bound: no names for these instances have more in time, at the full-batch rate.
        cut_short: the clock stopped what would have improved them.
    """

    instance: Ints
    slot: Ints
    start_s: Array
    finish_s: Array
    meant: int
    attainment_bound: float
    cut_short: bool = False

    @property
    def served(self) -> Mask:
        """(n,) not refused: in time."""
        return self.instance >= 0

    @property
    def attainment(self) -> float:
        """Share in time."""
        return float(self.served.mean()) if len(self.instance) else 0.0


_REMEMBERED: dict[bytes, Named] = {}


def _late() -> bool:
    """Whether the time limit of the call, if any, leaves no time for names."""
    return seconds_for(NAMES, math.inf) <= 0


def name_requests(t: OrchestrationTables, p: OrchestrationPlan, over: Callable[[], bool] = _late) -> Named | None:
    """Every request of the trace on an instance of the plan, or refused; None where there are none or too many.

    Once `over` returns true, schedules are not improved further and no further model is begun; the result is then None.
    Either way the log names the part as left out, so that the check of a result knows where the clock decided.
    """
    if t.taken is not None:
        return None  # on a shared engine a request's time depends on the others'
    if t.case.trace is None or t.class_of is None or t.deadline_s is None or len(t.case.trace) > MOST_NAMED:
        return None
    stopped = False

    def stop() -> bool:
        nonlocal stopped
        stopped = stopped or over()
        if stopped:
            leave_out(NAMES)
        return stopped

    key = _digest(t, p)
    if key not in _REMEMBERED:
        n = len(t.case.trace)
        found = Named(np.full(n, -1), np.full(n, -1), np.full(n, np.inf), np.full(n, np.inf), 0, 0.0)
        parts = []
        for m in range(len(t.case.models)):
            if stop():
                return None
            parts.append(_of_model(t, p, m, found, stop))
        while len(_REMEMBERED) >= MOST_REMEMBERED:
            del _REMEMBERED[next(iter(_REMEMBERED))]
        meant, most = sum(x for x, _ in parts), sum(x for _, x in parts)
        bound = most / max(n, 1)
        _REMEMBERED[key] = replace(found, meant=meant, attainment_bound=bound, cut_short=stopped)
    if _REMEMBERED[key].cut_short:
        leave_out(NAMES)
    return _REMEMBERED[key]


def _digest(t: OrchestrationTables, p: OrchestrationPlan) -> bytes:
    """Everything that the names depend on: a solve asks for them when it chooses a dispatcher, reports and writes."""
    trace, o = t.case.trace, t.case.problem.objective
    assert trace is not None and t.deadline_s is not None and t.class_of is not None
    found = blake2b(p.model_dump_json(include={"configurations", "instances", "shares"}).encode())
    rates = [np.append(x.tokens_per_s, x.prefill_s_per_token) for x in t.configurations]
    for v in (trace.arrival_s, trace.prompt_tokens, trace.output_tokens, t.deadline_s, t.case.request_model, t.class_of,
              t.classes.arrivals, t.classes.weight, *rates):  # fmt: skip
        found.update(np.ascontiguousarray(v).tobytes())
    found.update(f"{o.model_dump_json()} {t.case.problem.slo.ttft_s} {t.bin_s}".encode())
    return found.digest()


def _of_model(
    t: OrchestrationTables, p: OrchestrationPlan, m: int, found: Named, over: Callable[[], bool]
) -> tuple[int, float]:
    """Fill in the requests of one model; returns how many the flow found a configuration for, and the most in time."""
    trace = t.case.trace
    assert trace is not None and t.deadline_s is not None and t.class_of is not None
    lines = [j for j, c in enumerate(p.configurations) if c.model == t.case.models[m]]
    mine = np.flatnonzero(t.servable(t.case.request_model, trace.prompt_tokens + trace.output_tokens) == m)
    hosts = [[i for i, x in enumerate(p.instances) if x.configuration == j] for j in lines]
    if not len(mine) or not any(hosts):
        return 0, 0.0
    rows = rows_of(t, p)
    used = [t.configurations[rows[j]] for j in lines]
    arrival, prompt, output = (
        np.asarray(v[mine], dtype=np.float64) for v in (trace.arrival_s, trace.prompt_tokens, trace.output_tokens)
    )
    prefill = np.stack([x.prefill_s_per_token * prompt for x in used], axis=1)
    service = prefill + np.stack([output / x.worst_rate for x in used], axis=1)
    wait = np.minimum(t.deadline_s[mine][:, None] - service, t.case.ttft_limit_s - prefill)
    latest = np.where(wait >= 0, arrival[:, None] + wait, -np.inf)
    choice = _choice(t, p, lines, mine, wait, service, output)
    # Slot by slot around the instances: the one who takes the first idle one spreads the load over them.
    slots = [(q, i, s) for q, (x, own) in enumerate(zip(used, hosts, strict=True)) for s in range(x.slots) for i in own]
    kind, host, slot = (np.array(v, dtype=np.int64) for v in zip(*slots, strict=True))
    cost = np.array([x.gpus / x.slots for x in used])
    gain = _gain(t, mine, output)

    def placed(choice: Ints, tries: int = 0) -> tuple[Ints, Array]:
        return schedule(arrival, latest, service, gain, choice, kind, cost, tries, over=over)

    served = placed(choice)[0] >= 0
    each = np.bincount(kind, minlength=len(used))
    most, priced = most_in_time(arrival, latest, service, each, int(served.sum()))
    better = gain[placed(priced)[0] >= 0].sum() > gain[served].sum()
    where, start = placed(priced if better else choice, TRIES)
    served = where >= 0
    chosen, at = mine[served], where[served]
    found.instance[chosen], found.slot[chosen] = host[at], slot[at]
    found.start_s[chosen] = start[served]
    found.finish_s[chosen] = start[served] + service[np.flatnonzero(served), kind[at]]
    return int((choice >= 0).sum()), most


def _gain(t: OrchestrationTables, mine: Ints, output: Array) -> Array:
    """Contribution of each request to the objective if it starts at once."""
    assert t.class_of is not None
    w, o, k = weights(t), t.case.problem.objective, t.class_of[mine]
    S, T, L = o.weights
    each = S * w.satisfaction[k] + T * w.throughput[k] / t.classes.output_tokens[k] * output + L * w.latency
    return np.maximum(each * len(k), 1e-9)


def _choice(
    t: OrchestrationTables, p: OrchestrationPlan, lines: list[int], mine: Ints, wait: Array, service: Array,
    output: Array,
) -> Ints:  # fmt: skip
    """(n,) which of the model's configurations each request is meant for; −1: none.

    None at all where the flow's network is too large: then prices alone propose, and the bound that they prove stands.
    """
    if t.bins * len(lines) > MOST_NODES:
        return np.full(len(mine), -1, dtype=np.int64)
    assert t.case.trace is not None and t.class_of is not None
    position = {j: q for q, j in enumerate(lines)}
    able = wait >= 0
    code = able @ (1 << np.arange(len(lines), dtype=np.int64))
    bin_ = np.minimum((t.case.trace.arrival_s[mine] / t.bin_s).astype(np.int64), t.bins - 1)
    admitted: dict[int, Array] = {}
    s = p.shares
    for k, j, b, value in zip(s.request_class, s.configuration, s.bin, s.admitted, strict=True):
        if j in position:
            admitted.setdefault(k, np.zeros((len(lines), t.bins)))[position[j], b] += value
    choice = np.full(len(mine), -1, dtype=np.int64)
    slowest = np.argsort(-service.mean(axis=0), kind="stable")
    for k, rates in admitted.items():
        own = np.flatnonzero((t.class_of[mine] == k) & (code > 0))
        level = np.floor(np.cumsum(rates, axis=1) + 0.5).astype(np.int64)
        quota = np.diff(level, axis=1, prepend=0)
        cells: dict[tuple[int, int], Ints] = {}
        for key in np.unique(np.stack((bin_[own], code[own])), axis=1).T.tolist():
            cells[key[0], key[1]] = own[(bin_[own] == key[0]) & (code[own] == key[1])]
        sent = _flow({key: len(v) for key, v in cells.items()}, quota)
        for key, members in cells.items():
            wanted = [(q, sent.get((*key, int(q)), 0)) for q in slowest]
            chosen = members[np.argsort(output[members], kind="stable")][: sum(f for _, f in wanted)]
            patient = chosen[np.argsort(-(wait[chosen] / output[chosen, None]).max(axis=1), kind="stable")]
            at = 0
            for q, f in wanted:
                choice[patient[at : at + f]] = q
                at += f
    return choice


def _flow(cells: dict[tuple[int, int], int], quota: Ints) -> dict[tuple[int, int, int], int]:
    """Requests of each (bin, configurations that may be used, as bits) sent to each configuration.

    Args:
        cells: how many there are.
        quota: (configurations, bins) how many each configuration takes.
    """
    import networkx as nx  # a third of a second that other verbs need not wait

    C, T = quota.shape
    G: Any = nx.DiGraph()
    for (b, code), count in cells.items():
        G.add_edge("source", (b, code), capacity=count)
        for q in range(C):
            if code >> q & 1:
                G.add_edge((b, code), ("to", q, b))
    for q in range(C):
        for b in range(T):
            if quota[q, b] > 0:
                G.add_edge(("to", q, b), "sink", capacity=int(quota[q, b]))
            if b > 0:
                G.add_edge(("to", q, b), ("to", q, b - 1), weight=1)
                G.add_edge(("to", q, b - 1), ("to", q, b), weight=1)
    if "source" not in G or "sink" not in G:
        return {}
    flow = nx.max_flow_min_cost(G, "source", "sink")
    return {
        (b, code, q): f for b, code in cells for (_, q, _), f in flow[b, code].items() if f
    }  # fmt: skip


def figures(t: OrchestrationTables, p: OrchestrationPlan, named: Named) -> dict[str, Any]:
    """Attainment of the named requests, in the form of the prediction."""
    assert t.case.trace is not None
    table, served = requests_table(t, p, named), named.served
    first = (table["first_token_s"] - table["arrival_s"])[served]
    return {
        "attainment": named.attainment,
        "attainment_bound": named.attainment_bound,
        "ttft_s": {"mean": float(first.mean()) if served.any() else 0.0},
        "goodput_tokens_per_s": float(t.case.trace.output_tokens[served].sum()) / t.horizon_s,
    }


def requests_table(t: OrchestrationTables, p: OrchestrationPlan, named: Named) -> dict[str, Any]:
    """One row a request of the trace, in order: model, class, instance, slot, planned times; refused: none, −1."""
    trace, served = t.case.trace, named.served
    assert trace is not None and t.deadline_s is not None and t.class_of is not None
    each = np.array([t.configurations[c].prefill_s_per_token for c in rows_of(t, p)])
    of = np.array([i.configuration for i in p.instances], dtype=np.int64)
    first = np.full(len(trace), np.nan)
    first[served] = named.start_s[served] + each[of[named.instance[served]]] * trace.prompt_tokens[served]
    return {
        "request": np.arange(len(trace)), "arrival_s": trace.arrival_s,
        "model": np.array(t.case.models, dtype=object)[t.case.request_model],
        "class": np.array(t.classes.label, dtype=object)[t.class_of],
        "input_tokens": trace.prompt_tokens, "output_tokens": trace.output_tokens,
        "due_s": trace.arrival_s + t.deadline_s,
        "instance": np.array([*(i.name for i in p.instances), ""], dtype=object)[named.instance],
        "slot": np.where(served, named.slot, -1),
        "start_s": np.where(served, named.start_s, np.nan), "first_token_s": first,
        "finish_s": np.where(served, named.finish_s, np.nan),
    }  # fmt: skip
