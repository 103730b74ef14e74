"""Today's deployments of engines that batch continuously: cost, load and latencies.

Deployments that serve the same workloads are a group behind one dispatcher. Its effect on the load of each is
predicted (`optmodels.engine.running`) and simulated step by step; `routing` asks next to it how the same engines, with
the same settings, would best be used: shares of every bucket and a level of each engine, at counts that are given.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from formulations.fleet.engines import EngineKind, classes_of, costs_of, levels, mean_prompt
from formulations.fleet.points import nondominated
from formulations.fleet.problem import Bucket, Fleet, FleetCase
from formulations.fleet.replay import codes_of, drawn, itl_edges
from optmodels import catalog
from optmodels.arrays import Array, Ints
from optmodels.catalog.types import Entry, GpuName, Machine, Market
from optmodels.engine.continuous import Classes, EngineLimits, seconds_and_quantile
from optmodels.engine.running import Running, running, shares
from optmodels.errors import InputError, Mistake, Mistakes
from optmodels.latency.steps import StepCosts
from optmodels.model import Model, Rows, at_most
from optmodels.plans.current import Evaluated
from optmodels.reporting.sources import source_entries
from optmodels.simulation.compiling import time_to_replay
from optmodels.simulation.continuous import (
    EDGES_S,
    Arrivals,
    Engine,
    Gaps,
    ServedRequests,
    at_quantile,
    of_edges,
    simulate,
)
from optmodels.simulation.options import ReplayOptions
from optmodels.solver.deadline import seconds_for
from optmodels.solver.highs import Settings, solve_compiled
from optmodels.traces.buckets import MOST_REQUESTS, BucketRequests
from optmodels.traces.pieces import Pieces, busiest_stretch, busiest_window, cut_in_time
from optmodels.traces.types import Trace
from optmodels.units import PositiveInt, Tokens

Dispatcher = Literal["round_robin", "shortest_queue", "least_kv", "earliest_finish", "prefix_affine"]
LIMITS = (
    ("ttft", "ttft_s", "ttft_s"),
    ("tpot", "tpot_s", "tpot_s"),
    ("itl", "itl_s", "itl_s"),
    ("e2e", "deadline_s", "e2e_s"),
)
ROUTED = 1e-3  # gap of the best routing
ROUTING_S = 10.0  # that it may take for a group
NOTHING = 1e-6  # of a group's requests, at which an engine that gets none is described


class CurrentDeployment(Entry):
    """Machines of one kind whose engines serve some workloads of one model."""

    name: Annotated[str, Field(max_length=100)] = Field(default="", description="default: its machine and workloads")
    workloads: tuple[str, ...] = Field(
        min_length=1, description="workloads of the problem that are sent here; they share one model"
    )
    machine: str | None = Field(default=None, description="machine type of the problem's pool, or of the catalogue")
    gpu: GpuName | None = Field(
        default=None, description="GPU type, in place of machine: the least expensive machine per GPU that has it"
    )
    region: str = Field(default="*", description="a pattern; default: wherever it costs least")
    market: Market = "on_demand"
    usd_per_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        default=None, description="price that you pay for one machine; default: its price in the market"
    )
    tensor_parallel: PositiveInt = Field(default=1, description="GPUs of an engine")
    replicas: PositiveInt | None = Field(default=None, description="engines; default: as many as fit the machines")
    machines: PositiveInt | None = Field(default=None, description="default: as many as the replicas need")
    max_num_seqs: PositiveInt | None = Field(default=None, description="default: the problem's engine")
    max_num_batched_tokens: Tokens | None = None
    chunk_tokens: Tokens | None = None

    @model_validator(mode="after")
    def _consistent(self) -> CurrentDeployment:
        if (self.machine is None) == (self.gpu is None):
            raise ValueError("exactly one of machine and gpu")
        if self.replicas is None and self.machines is None:
            raise ValueError("replicas, machines, or both")
        return self


class Current(Entry):
    """Today's deployments, and the dispatcher between them."""

    schema_version: Literal[1] = Field(alias="schema")
    instance: str | None = Field(
        default=None, description="file with the workloads, their SLOs, prices and limits, beside this one or below"
    )
    dispatcher: Dispatcher = Field(default="least_kv", description="between deployments of the same workloads")
    deployments: tuple[CurrentDeployment, ...] = Field(min_length=1)


@dataclass(frozen=True)
class _Line:
    """A deployment that was looked up: `count` engines alike."""

    name: str
    workloads: tuple[str, ...]
    machine: Machine
    market: Market
    machines: int
    usd_per_hour: float  # all machines
    count: int
    kind: EngineKind
    limits: EngineLimits


@dataclass(frozen=True)
class _Group:
    """Lines that serve the same workloads, and the buckets of these."""

    lines: list[int]
    demands: list[int]
    classes: Classes
    rates: Array  # (D,)
    costs: list[StepCosts]  # by line
    slower: list[float]
    kv_tokens: list[float]


def evaluate(problem: Fleet, current: Current, trace: Trace | None, options: ReplayOptions) -> Evaluated:
    """Cost, predicted and replayed latencies of today's fleet, and its best use.

    Args:
        problem: the instance.
        current: the deployments that run.
        trace: requests, labelled as for `replay`: rates and lengths of the buckets are then the trace's. None: the
            busiest period of the instance: the requests that it was cut from, else 100,000 Poisson arrivals.
        options: seed of the draws.

    Raises:
        InputError: names that the instance does not have, engines that do not fit, or an instance of static batches.
    """
    _refuse_static(problem)
    if trace is not None:
        problem = of_trace(problem, trace)
    case = problem.resolve()
    case = replace(case, demands=tuple(d for d in case.demands if d.has_requests))
    lines = _lines(case, current)
    period = max(range(len(case.periods)), key=lambda t: sum(d.requests_per_s[t] for d in case.demands))
    gpus = catalog.gpus() | dict(case.gpus)
    known = replace(case, gpus={**case.gpus, **{g: gpus[g] for line in lines if (g := line.kind.gpu)}})
    groups = _groups(known, lines, period)
    share, states = _predicted(lines, groups, current.dispatcher)
    weight = share * [line.count for line in lines]
    if trace is None and case.trace is not None:
        requests, code = case.trace, case.trace.labels["class"].codes
    elif trace is None:
        requests, code = drawn(case, case.periods[period].name, np.random.default_rng(options.seed))
    else:
        requests, code = trace, codes_of(case, trace)
    serve = _CurrentSimulation(case, lines, groups, requests, code)
    runs: dict[str, ServedRequests] = {}
    if time_to_replay("the replay"):
        runs["replayed"] = serve(current.dispatcher)
    best = routing(known, lines, groups)
    if best is not None and time_to_replay("the replay of the planned routing"):
        runs["planned_routing"] = serve("planned_shares", best.sent(groups, weight))
    for name, seen in runs.items():
        if options.keep is not None:
            options.keep(name, serve.columns(seen))
    demands = _demands(case, groups, weight, states, code, runs, best)
    usd = sum(line.usd_per_hour for line in lines)
    rate = np.array([d["requests_per_s"] for d in demands])
    hows = ("predicted", *runs)
    report = {
        "usd_per_hour": usd, "gpus": sum(line.machines * line.machine.gpu_count for line in lines),
        **({"predicted_at": "the mean rate of the trace"} if len(case.pieces[0]) > 1 else {}),
        "requests_per_s": float(rate.sum()), "dispatcher": current.dispatcher, "period": case.periods[period].name,
        "keeps_every_slo": {how: all(d[f"{how}_keeps"] for d in demands) for how in hows},
        "attainment": {how: float(rate @ [d[f"{how}_within"] for d in demands] / rate.sum()) for how in hows},
        "deployments": _deployments(case, lines, groups, share, states, serve, runs.get("replayed"), best),
        "demands": demands,
        "planned_routing": None if best is None else {
            "served_share": best.served / float(rate.sum()), "engines_needed": int(best.used.sum()),
            "engines": sum(line.count for line in lines), "proved": best.proved,
        },
        "latency": source_entries(
            ((f"{line.kind.gpus} × {line.kind.gpu} for {', '.join(line.workloads)}",
              costs_of(known, known.workload(line.workloads[0]), line.kind).provenance) for line in lines),
            problem.latency.safety,
        ),
    }  # fmt: skip
    judged = hows if trace is not None or case.trace is not None else hows[:1]  # draws decide nothing
    keeps = all(d[f"{how}_keeps"] for how in judged if how != "planned_routing" for d in demands)
    return Evaluated(problem, report, _value(case, usd, demands), keeps)


def of_trace(problem: Fleet, trace: Trace) -> Fleet:
    """The instance with the requests, rates and pieces that its buckets have in a trace; empty buckets left out.

    Raises:
        InputError: requests of an unknown workload, or no time between the first and last one.
    """
    if not trace.duration_s > 0:
        raise InputError(Mistake(None, "trace", f"{trace.duration_s:g} s", "requests over a time > 0"))
    case = problem.resolve()
    code = codes_of(case, trace)
    prompt, output = trace.prompt_tokens, trace.output_tokens
    of = [d.workload for d in case.demands]
    workloads = []
    for w in case.workloads:
        mine = np.flatnonzero(np.array([name == w.name for name in of])[code])
        if not len(mine):
            continue
        there, bucket = np.unique(code[mine], return_inverse=True)
        bucket = bucket.ravel().astype(np.int64)
        in_time = cut_in_time(trace.arrival_s[mine], bucket, len(there), trace.duration_s)
        buckets = []
        for i, k in enumerate(there.tolist()):
            rows, d = mine[bucket == i], case.demands[k]
            buckets.append(Bucket(
                name=d.bucket, input_tokens=math.ceil(prompt[rows].mean()),
                output_tokens=math.ceil(output[rows].mean()), requests_per_s=len(rows) / trace.duration_s,
                longest_tokens=int((prompt + output)[rows].max()), input_bounds=d.input_bounds,
                output_bounds=d.output_bounds, rates=tuple(in_time.rates[:, i].tolist()),
            ))  # fmt: skip
        kept = busiest_stretch(trace.arrival_s[mine], (prompt + output)[mine].astype(float), MOST_REQUESTS)
        long = len(mine) if len(mine) > MOST_REQUESTS else None
        at = mine[kept]
        requests = BucketRequests(
            arrival_s=tuple((trace.arrival_s[at] - (trace.arrival_s[at[0]] if long else 0.0)).tolist()),
            input_tokens=tuple(prompt[at].tolist()), output_tokens=tuple(output[at].tolist()),
            bucket=tuple(bucket[kept].tolist()), of=long,
        )  # fmt: skip
        pieces = Pieces(
            seconds=tuple(np.diff(in_time.edges_s).tolist()),
            busiest=busiest_window(trace.arrival_s[mine], trace.duration_s),
        )
        workloads.append(w.model_copy(update={
            "buckets": tuple(buckets), "trace": None, "requests": requests, "pieces": pieces, "requests_per_s": None,
        }))  # fmt: skip
    made = problem.model_copy(update={"workloads": tuple(workloads), "periods": ()})
    made._resolved, made._folder = None, problem._folder
    return made


# --------------------------------------------------------------------------------------------------- what there is


def start(problem: Fleet) -> list[dict[str, Any]]:
    """For every model one machine that holds it: the least expensive of the pool, in as few GPUs an engine as hold it.

    Raises:
        InputError: an instance of static batches, or a model that no machine of the pool holds.
    """
    _refuse_static(problem)
    case = problem.resolve()
    models: dict[Any, list[str]] = {}
    for w in case.workloads:
        if w.models is None:
            models.setdefault((case.architectures[w.name], w.precision), []).append(w.name)
    wrong, found = Mistakes(), []
    for names in models.values():
        possible = _possible(case, names)
        if (first := next(possible, None)) is None:
            wrong.add("pool", names, "a machine that holds their model")
        else:
            found.append(first)
    wrong.raise_any()
    return found


def _possible(case: FleetCase, names: list[str]) -> Iterator[dict[str, Any]]:
    """Machines of the pool with engines that serve these workloads, of the least expensive machine first."""
    offers = [(price, m, market) for m in case.machines for market in case.problem.markets.main
              if (price := m.prices.get(market)) is not None and m.gpu]  # fmt: skip
    for _, m, market in sorted(offers, key=lambda x: x[0]):
        for gpus in (n for n in range(1, m.gpu_count + 1) if m.gpu_count % n == 0):
            entry = {"workloads": names, "machine": m.machine, "region": m.region, "market": market,
                     "tensor_parallel": gpus, "machines": 1}  # fmt: skip
            current = Current.model_validate({"schema": 1, "deployments": [entry]})
            try:
                _groups(case, _lines(case, current), 0)
            except InputError:
                continue
            yield entry


def _refuse_static(problem: Fleet) -> None:
    if not problem.continuous:
        raise InputError(
            Mistake(None, "serving", problem.serving, "continuous: of static batches only plans are evaluated")
        )


def _lines(case: FleetCase, current: Current) -> list[_Line]:
    """Every deployment with its machine, price and engines."""
    wrong, found = Mistakes(), []
    served: dict[str, tuple[int, frozenset[str]]] = {}
    for i, d in enumerate(current.deployments):
        at = f"deployments[{i}]"
        names = [w.name for w in case.workloads]
        unknown = [w for w in d.workloads if w not in names]
        for name in unknown:
            wrong.unknown(f"{at}.workloads", name, "a workload of the problem", names)
        for name in d.workloads:
            if name in names and case.workload(name).models is not None:
                expected = "workloads with one model: what runs today does not say which of several it loads"
                wrong.add(f"{at}.workloads", name, expected)
                unknown.append(name)
        machine = _machine(case, d, at, wrong)
        if unknown or machine is None:
            continue
        if len({(case.architectures[w], case.workload(w).precision) for w in d.workloads}) > 1:
            wrong.add(f"{at}.workloads", list(d.workloads), "workloads of one model and precision: an engine has one")
        for w in d.workloads:
            j, together = served.setdefault(w, (i, frozenset(d.workloads)))
            if together != frozenset(d.workloads):
                expected = f"the workloads of deployments[{j}], {', '.join(sorted(together))}, or none of them"
                wrong.add(f"{at}.workloads", list(d.workloads), expected)
                break
        each = machine.gpu_count // d.tensor_parallel
        machines = d.machines or math.ceil((d.replicas or 0) / each)
        if d.replicas is not None and d.replicas > machines * each:
            wrong.add(f"{at}.replicas", d.replicas, f"at most {machines * each}: {each} on each machine")
        limits = wrong.collect(_limits, case, d)
        price = machine.prices.get(d.market) if d.usd_per_hour is None else d.usd_per_hour
        if limits is None or price is None:
            continue
        kind = EngineKind(machine.gpu or "", d.tensor_parallel, machine.vram_gib / machine.gpu_count)
        found.append(_Line(
            d.name or f"{machines}× {machine.machine}, TP={d.tensor_parallel}, for {', '.join(d.workloads)}",
            d.workloads, machine, d.market, machines, machines * price, d.replicas or machines * each, kind, limits,
        ))  # fmt: skip
    wrong.raise_any()
    return found


def _limits(case: FleetCase, d: CurrentDeployment) -> EngineLimits:
    from optmodels.io.read import validate

    stated = d.model_dump(include=set(EngineLimits.model_fields), exclude_none=True)
    limits = validate(EngineLimits, case.problem.engine.model_dump() | stated)
    return limits.choosing(limits.slots)


def _machine(case: FleetCase, d: CurrentDeployment, at: str, wrong: Mistakes) -> Machine | None:
    """The machine of the instance's pool, else of the catalogue, that costs least for each GPU."""

    def fitting(machines: Any) -> list[Machine]:
        return [
            m for m in machines
            if (d.machine is None or m.machine == d.machine) and (d.gpu is None or m.gpu == d.gpu)
            and fnmatch.fnmatchcase(m.region, d.region) and m.gpu in catalog.gpus() | dict(case.gpus)
        ]  # fmt: skip

    listed = [m for pool in catalog.pools() for m in catalog.machines(pool)]
    named = fitting(case.machines) or fitting(listed)
    if not named:
        field, value = ("machine", d.machine) if d.machine is not None else ("gpu", d.gpu)
        known = {getattr(m, field) for m in (*case.machines, *listed)} - {None}
        where = "" if d.region == "*" else f" in {d.region}"
        wrong.unknown(f"{at}.{field}", str(value), f"a {field} of the pool or the catalogue{where}", known)
        return None
    large = [m for m in named if m.gpu_count >= d.tensor_parallel]
    if not large:
        most = max(m.gpu_count for m in named)
        wrong.add(f"{at}.tensor_parallel", d.tensor_parallel, f"at most {most}, the GPUs of a machine")
        return None
    priced = [m for m in large if d.usd_per_hour is not None or m.prices.get(d.market) is not None]
    if not priced:
        wrong.add(f"{at}.market", d.market, f"a market in which {large[0].machine} has a price, or usd_per_hour")
        return None
    return min(priced, key=lambda m: ((m.prices.get(d.market) or 0.0) / m.gpu_count, m.gpu_count, m.machine, m.region))


def _groups(case: FleetCase, lines: list[_Line], period: int) -> list[_Group]:
    """Lines that serve the same workloads, with what their engines can do.

    Raises:
        InputError: an engine that its model does not fit, or whose steps cannot be predicted.
    """
    wrong, groups = Mistakes(), []
    by_set: dict[frozenset[str], list[int]] = {}
    for j, line in enumerate(lines):
        by_set.setdefault(frozenset(line.workloads), []).append(j)
    for names, members in by_set.items():
        demands = [k for k, d in enumerate(case.demands) if d.workload in names]
        if not demands:
            continue
        classes = classes_of(case, demands)
        rates = np.array([case.demands[k].requests_per_s[period] for k in demands])
        shortest = float((classes.input_tokens + classes.output_tokens.mean(axis=1)).min())
        group = _Group(members, demands, classes, rates, [], [], [])
        for j in members:
            own = _with_limits(case, lines[j].limits)
            w = case.workload(lines[j].workloads[0])
            with wrong.collecting():
                of = costs_of(own, w, lines[j].kind, mean_prompt(classes), shortest)
                if of.kv_tokens < 16:
                    at, value = f"deployments[{j}].tensor_parallel", lines[j].kind.gpus
                    raise InputError(
                        Mistake(None, at, value, f"GPUs enough for the weights and KV cache of {w.name}'s model")
                    )
                group.costs.append(of.costs)
                group.slower.append(of.slower)
                group.kv_tokens.append(of.kv_tokens)
        smallest = min(group.kv_tokens, default=0.0)
        groups.append(replace(group, classes=classes_of(case, demands, smallest)))
    wrong.raise_any()
    return groups


def _with_limits(case: FleetCase, limits: EngineLimits) -> FleetCase:
    return replace(case, problem=case.problem.model_copy(update={"engine": limits}))


# ------------------------------------------------------------------------------------------------------- predicted


def _predicted(lines: list[_Line], groups: list[_Group], dispatcher: str) -> tuple[Array, list[Running | None]]:
    """Share of its group's requests that an engine of each line gets, and its predicted latencies."""
    share = np.zeros(len(lines))
    states: list[Running | None] = [None] * len(lines)
    for g in groups:
        engines = [
            lambda part, g=g, i=i, j=j: running(
                g.costs[i], g.slower[i], g.classes, part * g.rates, g.kv_tokens[i], lines[j].limits)
            for i, j in enumerate(g.lines)
        ]  # fmt: skip
        found = shares(dispatcher, engines, [lines[j].count for j in g.lines])
        for i, j in enumerate(g.lines):
            share[j] = found[i]
            states[j] = engines[i](max(float(found[i]), NOTHING))
    return share, states


# -------------------------------------------------------------------------------------------------------- replayed


class _CurrentSimulation:
    """The engines of all lines, and requests that are sent to them in several ways."""

    def __init__(self, case: FleetCase, lines: list[_Line], groups: list[_Group], trace: Trace, code: Ints) -> None:
        self.names = np.array([d.name for d in case.demands], dtype=object)
        self.code, self.trace = code, trace
        self.edges = itl_edges(case)
        slos = [case.workload(d.workload).slo for d in case.demands]
        self.itl_s = np.array([seconds_and_quantile(slo.itl_s)[0] for slo in slos])[code] * (1 + 1e-9)
        self.lines = [line.name for line in lines]
        self.engines: list[Engine] = []
        self.line, slower = [], []
        for pool, g in enumerate(groups):
            for i, j in enumerate(g.lines):
                limits = lines[j].limits
                one = Engine(
                    g.costs[i], int(g.kv_tokens[i]), limits.slots, limits.max_num_batched_tokens,
                    limits.chunk_tokens, overlap=True, pool=pool, kind=j,
                )  # fmt: skip
                self.engines += [one] * lines[j].count
                self.line += [j] * lines[j].count
                slower += [g.slower[i]] * lines[j].count
        self.slower = np.array([*slower, 1.0])
        # Requests that no deployment serves go to a pool without engines and are refused.
        pool_of = np.full(len(case.demands), len(groups))
        for pool, g in enumerate(groups):
            pool_of[g.demands] = pool
        smallest = min((kv for g in groups for kv in g.kv_tokens), default=0.0)
        hit = np.array([case.hit_share(d.workload, smallest) for d in case.demands])[code]
        prompts = trace.prompt_tokens
        received = np.zeros(len(trace), np.int64) if trace.prefixes is not None else (hit * prompts).astype(np.int64)
        self.arrivals = Arrivals.of(
            trace.arrival_s, prompts, trace.output_tokens, expected_output_tokens=trace.expected_output_tokens,
            received_tokens=np.minimum(received, prompts - 1), prefixes=trace.prefixes, pool=pool_of[code], klass=code,
        )  # fmt: skip

    def __call__(self, dispatcher: Any, planned: Any = None) -> ServedRequests:
        """Serve the requests; first tokens as late as the measured engines' are beyond their steps."""
        gaps = Gaps(self.edges, self.code, limit_s=self.itl_s) if len(self.edges) > len(EDGES_S) else None
        seen = simulate(self.arrivals, self.engines, dispatcher, planned=planned, within="least_kv", gaps=gaps)
        extra = (self.slower[seen.instance] - 1.0) * seen.ttft_s
        return replace(seen, first_s=seen.first_s + extra, finish_s=seen.finish_s + extra)

    def columns(self, seen: ServedRequests) -> dict[str, Any]:
        """A row a request."""
        lines = np.array([*(self.lines[j] for j in self.line), ""], dtype=object)
        return {
            "arrival_s": self.trace.arrival_s, "input_tokens": self.trace.prompt_tokens,
            "output_tokens": self.trace.output_tokens, "demand": self.names[self.code],
            "deployment": lines[seen.instance], "queue_s": seen.queue_s, "ttft_s": seen.ttft_s,
            "tpot_s": seen.tpot_s, "e2e_s": seen.e2e_s,
        }  # fmt: skip


# ------------------------------------------------------------------------------------- the best use of the fleet


@dataclass(frozen=True)
class PlannedRouting:
    """The best use of today's fleet.

    Attributes:
        shares: shares of each demand on each line, (W, L).
        used: engines of each line that it takes, (L,).
        served: requests/s that keep their SLO.
        proved: whether no use serves more, but for a share of `ROUTED`.
    """

    shares: Array
    used: Ints
    served: float
    proved: bool

    def sent(self, groups: list[_Group], weight: Array) -> Array:
        """Shares with a last column for refused requests; groups that nothing serves in time go as `weight` (L,)
        states.
        """
        shares = self.shares.copy()
        for g in groups:
            if shares[g.demands].sum() <= 0:
                shares[np.ix_(g.demands, g.lines)] = weight[g.lines]
        rest = np.maximum(0.0, 1.0 - shares.sum(axis=1, keepdims=True))
        return np.concatenate([shares, np.where(rest < 1e-9, 0.0, rest)], axis=1)


class RoutingModel(Model):
    """Given engines: how many at which level, and what share of every bucket goes there.

    Args:
        rates: (W,), requests/s.
        capacities: one request/s as a share of each capacity of an engine at a level, (Q, W, N); infinite: no share.
        line: whose level it is, (N,).
        counts: engines of each line, (L,).
        usd: price of an engine of each line, (L,).
    """

    def __init__(self, rates: Array, capacities: Array, line: Ints, counts: Ints, usd: Array) -> None:
        super().__init__("routing")
        self.rates, self.capacities, self.line, self.counts = rates, capacities, line, counts
        possible = np.isfinite(capacities).all(axis=0) & (rates[:, None] > 0)
        self.n = self.variable("n", ("p",), (len(line),), upper=counts[line].astype(float), integer=True)
        self.x = self.variable("x", ("w", "p"), np.nonzero(possible), upper=1.0)
        self.state((once, levels_carry, only_where_engines_are, engines_there_are))
        w, _ = self.x.labels
        self.maximise("served", self.x * rates[w])
        self.minimise("usd", self.n * (usd[line] + 1e-3))


def once(m: RoutingModel) -> Rows:
    """Σ_p x_wp ≤ 1."""
    return at_most(1.0, m.x.by("w"))


def levels_carry(m: RoutingModel) -> Rows:
    """Σ_w λ_w·l_qwp·x_wp ≤ n_p of each capacity q of the engines at a level p."""
    w, p = m.x.labels
    q, i = np.nonzero(load := m.rates[w] * m.capacities[:, w, p])
    used = m.x.at(i, (p[i], q), load[q, i], sets=("p", "q"))
    return at_most(0.0, used - m.n.across(q=len(m.capacities)).among(used))


def only_where_engines_are(m: RoutingModel) -> Rows:
    """x_wp ≤ n_p: a load so small that it is within a tolerance needs an engine, too."""
    _, p = m.x.labels
    return at_most(0.0, m.x - m.n.at(m.n.find(p), m.x.labels, sets=("w", "p")))


def engines_there_are(m: RoutingModel) -> Rows:
    """Σ_{p of line e} n_p ≤ N_e."""
    return at_most(m.counts.astype(float), m.n.by(e=m.line))


def routing(case: FleetCase, lines: list[_Line], groups: list[_Group]) -> PlannedRouting | None:
    """Most requests/s within their SLOs that the engines can serve, and then with the cheapest of them.

    None where the time limit leaves no time for that.
    """
    W, L = len(case.demands), len(lines)
    found = PlannedRouting(np.zeros((W, L)), np.zeros(L, np.int64), 0.0, True)
    for number, g in enumerate(groups):
        parts_left = len(groups) - number + 1  # of the time: one for each group, and one for the replay
        seconds = seconds_for("the planned routing", ROUTING_S * parts_left) / parts_left
        if seconds <= 0:
            return None
        parts, of = [], []
        for i, j in enumerate(g.lines):
            made, _, _ = levels(_with_limits(case, lines[j].limits), g.demands, [lines[j].kind])
            in_time = np.where(made.late[None] > 0, np.inf, made.capacities)
            kept = nondominated(np.concatenate(in_time).T)
            parts.append(in_time[:, :, kept])
            of.append(np.full(len(kept), i))
        line = np.concatenate(of).astype(np.int64)
        counts = np.array([lines[j].count for j in g.lines])
        if not len(line):
            continue
        usd = np.array([lines[j].usd_per_hour / lines[j].count for j in g.lines])
        m = RoutingModel(g.rates, np.concatenate(parts, axis=2), line, counts, usd)
        if not len(m.x):
            continue
        report = solve_compiled(m.compiled(), Settings(seconds, ROUTED))
        if report.x is None:
            continue
        w, p = m.x.labels
        x = m.x.of(report.x)
        np.add.at(found.shares, (np.array(g.demands)[w], np.array(g.lines)[line[p]]), np.where(x > 1e-9, x, 0.0))
        np.add.at(found.used, np.array(g.lines)[line], np.round(m.n.of(report.x)).astype(np.int64))
        served = found.served + float(g.rates[w] @ x)
        found = replace(
            found, served=served, proved=found.proved and (report.status == "optimal" or report.limit == "gap")
        )
    return found


# ---------------------------------------------------------------------------------------------------------- figures


def _demands(
    case: FleetCase, groups: list[_Group], weight: Array, states: list[Running | None], code: Ints,
    runs: Mapping[str, ServedRequests], best: PlannedRouting | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """By demand: every limit with its predicted and its replayed value; `within` counts all limits together.

    `weight` (L,) is the share of its group's requests that all engines of a line get.
    """
    rows: list[dict[str, Any]] = []
    of = {k: (g, i) for g in groups for i, k in enumerate(g.demands)}
    for k, d in enumerate(case.demands):
        mine = np.flatnonzero(code == k)
        slo = case.workload(d.workload).slo
        limits = [
            (name, what, *seconds_and_quantile(getattr(slo, field)))
            for name, field, what in LIMITS if getattr(slo, field) is not None
        ]  # fmt: skip
        g, i = of.get(k, (None, -1))
        row: dict[str, Any] = {
            "demand": d.name, "requests_per_s": max(d.requests_per_s) if g is None else float(g.rates[i]),
            "predicted_within": float(g is not None), "predicted_keeps": g is not None,
        }  # fmt: skip
        used = [(float(weight[j]), state) for j in (g.lines if g else ()) if (state := states[j]) and weight[j] > 0]
        for name, what, seconds, percentile in limits if g is not None else ():
            inside = sum(part * state.within(what, i, seconds) for part, state in used)
            at = max(state.at(what, i, percentile) for _, state in used)
            row |= {f"{name}_limit_s": seconds, f"{name}_percentile": percentile, f"{name}_predicted_s": at}
            row["predicted_within"] = min(row["predicted_within"], inside)
            kept = inside >= percentile - 1e-9 if percentile is not None else at <= seconds * (1 + 1e-9)
            row["predicted_keeps"] = bool(row["predicted_keeps"] and kept)
        for run, seen in runs.items():
            counts = np.zeros(0, np.int64) if seen.gaps is None or k >= len(seen.gaps) else seen.gaps[k]
            pauses = of_edges(itl_edges(case), counts) if len(counts) else (np.zeros(0), np.zeros(0))
            row |= _replayed(run, seen, mine, limits, pauses)
        if best is not None:
            row["planned_routing_served_share"] = float(best.shares[k].sum())
        rows.append(row)
    return rows


def _replayed(
    run: str, seen: ServedRequests, mine: Ints, limits: list[tuple[str, str, float, float | None]],
    pauses: tuple[Array, Array],
) -> dict[str, Any]:  # fmt: skip
    """Simulated latencies of the requests of a demand; refused ones are within no limit.

    `pauses`: times between their tokens and how many there are of each. A request keeps its limit on them where its own
    do: their mean, or the share of them that the limit is for.
    """
    row: dict[str, Any] = {}
    good = seen.served[mine]
    keeps = bool(good.all())
    for name, what, seconds, percentile in limits:
        if what == "itl_s":
            times = np.broadcast_to(seen.pauses, seen.served.shape)[mine]
            if percentile is None:
                good = good & ~((seen.finish_s - seen.first_s)[mine] > times * seconds * (1 + 1e-9))
            else:
                late = np.broadcast_to(seen.late_pauses, seen.served.shape)[mine]
                good = good & (late <= (1.0 - percentile) * times + 1e-9)
            if len(pauses[0]):
                row[f"{name}_{run}_s"] = at_quantile(*pauses, percentile)
                keeps = keeps and row[f"{name}_{run}_s"] <= seconds * (1 + 1e-9)
            continue
        values = getattr(seen, what)[mine]
        good = good & ~(values > seconds * (1 + 1e-9))
        known = values[~np.isnan(values)]
        if len(known):
            at = float(known.mean() if percentile is None else np.quantile(known, percentile))
            row[f"{name}_{run}_s"] = at
            keeps = keeps and at <= seconds * (1 + 1e-9)
    return row | {f"{run}_within": float(good.mean()) if len(mine) else 1.0, f"{run}_keeps": keeps}


def _deployments(
    case: FleetCase, lines: list[_Line], groups: list[_Group], share: Array, states: list[Running | None],
    serve: _CurrentSimulation, seen: ServedRequests | None, best: PlannedRouting | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """By line: its machines and cost, its load as predicted and as replayed."""
    rows = []
    engine_line = np.array([*serve.line, -1])
    rate = {j: float(g.rates.sum()) for g in groups for j in g.lines}
    for j, line in enumerate(lines):
        m, state = line.machine, states[j]
        row: dict[str, Any] = {
            "name": line.name, "workloads": list(line.workloads), "machine": m.machine, "region": m.region,
            "market": line.market, "gpu": m.gpu, "machines": line.machines, "usd_per_hour": line.usd_per_hour,
            "tensor_parallel": line.kind.gpus, "engines": line.count, **line.limits.model_dump(),
            **({} if best is None else {"engines_needed": int(best.used[j])}),
        }  # fmt: skip
        rows.append(row)
        if state is not None:
            row |= {
                "requests_per_s": float(share[j]) * line.count * rate[j], "load": state.load, "step_s": state.step_s,
                "running": state.running, "slots_in_use": state.slots, "kv_in_use": state.kv, "full": state.full,
                "waiting_s": state.waiting_s,
            }  # fmt: skip
        if seen is None:
            continue
        mine = engine_line == j
        steps = int(seen.steps[mine[:-1]].sum())
        sent = mine[seen.instance] & seen.served
        span = max(float(seen.finish_s[sent].max(initial=0.0)), serve.trace.duration_s, 1e-9)
        row |= {
            "replayed_requests_per_s": float(sent.sum()) / span,
            "replayed_busy_share": float(seen.busy_s[mine[:-1]].sum()) / (line.count * span),
            "replayed_step_s": float(seen.busy_s[mine[:-1]].sum()) / steps if steps else 0.0,
            "replayed_most_running": int(seen.most_running[mine[:-1]].max(initial=0)),
        }  # fmt: skip
    return rows


def _value(case: FleetCase, usd: float, demands: list[dict[str, Any]]) -> float:
    """Predicted objective of today's deployments; requests outside of their SLO count as not served."""
    good = np.array([d["requests_per_s"] * d["predicted_within"] for d in demands])
    work = [case.workload(d.workload) for d in case.demands]
    weight = np.array([w.weight for w in work])
    match case.problem.objective:
        case "min_cost":
            return usd
        case "max_ce":
            return float(3600.0 * good @ (weight * [d.tokens for d in case.demands])) / usd if usd > 0 else 0.0
        case _:
            first = min(w.priority for w in work)
            return float(good @ (weight * [w.priority == first for w in work]))
