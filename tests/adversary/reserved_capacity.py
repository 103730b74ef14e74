"""Reserved capacity by one plain programme: every flow of every hour, scenario, quarter and loss is a variable.

Written from formulations/reserved_capacity/README.md and the descriptions in its schema. Flows are shares of the demand
they serve, so no coefficient depends on whether requests are counted by the second or by the hour.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from optmodels import catalog
from optmodels.catalog import geography
from optmodels.latency.engines.document import read_engine_model
from optmodels.latency.resolve import Source, deployment, llm_name, resolve
from optmodels.latency.strategies import BatchModel
from optmodels.latency.work import layer_work
from tests.adversary import continuous, lengths, static
from tests.adversary.continuous import Way
from tests.adversary.draw import EXPERTS, HYBRID, OWN_MODEL, WEIGHTS, Draw, bounded
from tests.adversary.harness import FILES, Answer, Instance, UnsettledError
from tests.adversary.programme import MOST_WHOLE, Array, Programme, Solution
from tests.adversary.roofline import group
from tests.adversary.static import READ

LEFT_OUT = (
    static.SPELLED
    | static.SHAPES
    | static.BOUNDS
    | static.itl("ServiceSlo")
    | {
        **{f"LengthsOfTrace.{key}": READ for key in static.READERS},
        "MachineType.price_columns": READ,
        "Architecture.title": "words",
        "Architecture.source": "words",
        "Architecture.note": "words",
        "Architecture.checkpoint": "words",
        "MachineType.price_source": "words",
        "StepLatency.model=EngineModel": "the coefficients themselves: what ``default`` reads",
        "StepLatency.model=LatencyModel": "a model fitted to measurements: tests/latency judges what becomes of it",
    }
)
HOURS = 730.0  # of a month
GIB = float(2**30)
TERMS = {"reserved_1y": 4, "reserved_3y": 12}  # quarters
PER = {"requests_per_second": 1.0, "requests_per_s": 1.0, "requests_per_minute": 60.0, "requests_per_hour": 3600.0}
EARLIER = {"tbt_s": "tpot_s", "requests_per_s": "requests_per_second",
           "total_requests_per_s": "total_requests_per_second"}  # fmt: skip
MARKETS = ("on_demand", "spot", "reserved_1y", "reserved_3y")
STRICT, GENEROUS = 1e-9, 2e-6  # demand is read so much larger or smaller


# The instance, read ---------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """What an instance says. R regions, T hours, K services, I machine types.

    Attributes:
        demand: requests/s, (T, R, K).
        rows: (share of time, quarter, factor by region) of every scenario and quarter.
        reach: (k, r, s, i) → machines for a request/s.
        egress: USD per request, (K, R, R).
        price: (i, s, market) → USD/h.
        offered: (i, s).
        cap: (field, i, s) → machines; infinite: no limit.
    """

    data: Instance
    regions: list[str]
    demand: Array
    quarters: int
    rows: list[tuple[float, int, Array]]
    reach: dict[tuple[int, int, int, int], float]
    egress: Array
    price: dict[tuple[int, int, str], float]
    offered: set[tuple[int, int]]
    cap: dict[tuple[str, int, int], float]

    def terms(self) -> list[str]:
        return list(self.data.get("terms", ("reserved_1y", "reserved_3y")))


def read(data: Instance) -> Case:
    """Everything the instance refers to, looked up."""
    data = static.one_spelling(data)
    names = [r["region"] for r in data["regions"]]
    services, machines = data["services"], data["machines"]
    demand = np.stack([_demand(data, s["demand"], names) for s in services], axis=2)
    growth = data.get("growth") or {"quarters": 1}
    scenarios = data.get("uncertainty", {}).get("scenarios") or [{"probability": 1.0}]
    Q = growth["quarters"]
    rows = [
        (
            s["probability"] / Q,
            q,
            np.array([s.get("factor", 1.0) * s.get("by_region", {}).get(n, 1.0) for n in names])
            * growth.get("factor_per_quarter", 1.0) ** q,
        )
        for s in scenarios
        for q in range(Q)
    ]
    rtt = _round_trips(data, names)
    price, offered = _prices(data, names)
    reach: dict[tuple[int, int, int, int], float] = {}
    for k, s in enumerate(services):
        for i, m in enumerate(machines):
            away = {  # from each region with users to the machines that may serve them, in seconds
                rtt[user, to] / 1000
                for user in np.flatnonzero(demand[:, :, k].any(axis=0)).tolist()
                for j, to in offered if j == i and names[to] in s.get("residency", {}).get(names[user], names)
            }  # fmt: skip
            found = _serving(data, m, s, sorted(away))
            for r, user in enumerate(names):
                for to, server in enumerate(names):
                    allowed = s.get("residency", {}).get(user)
                    if (i, to) not in offered or (allowed is not None and server not in allowed):
                        continue
                    way_s = rtt[r, to] / 1000 - 1e-12
                    fastest = max((rate for rate, *at in found if way_s <= _left_s(s["slo"], *at)), default=0.0)
                    if fastest:
                        kappa = 1.0 if r == to else s.get("kappa", 1.0)
                        reach[k, r, to, i] = kappa / (fastest * data.get("utilisation", 1.0))
    cap = {
        (what, i, s): _cap(m.get(what), name)
        for what in ("reservable", "on_demand_available", "spot_available")
        for i, m in enumerate(machines)
        for s, name in enumerate(names)
    }
    return Case(data, names, demand, Q, rows, reach, _egress(data, names), price, offered, cap)


def _cap(value: Any, region: str) -> float:
    found = value.get(region) if isinstance(value, dict) else value
    return math.inf if found is None else float(found)


def _table(data: Instance, name: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(data[FILES][name])))


def _round_trips(data: Instance, names: list[str]) -> Array:
    """Milliseconds, (R, R): from user to server, else the way back, else, at home, zero."""
    net, R = data["network"], len(names)
    if "estimate" in net:
        places = [_place(r) for r in data["regions"]]
        rtt = geography.geodesic_round_trip_ms(*np.array(places, dtype=float).T)
        table = None
    elif "catalog" in net:
        known, matrix = geography.round_trip_times(net["catalog"])
        table = {a: dict(zip(known, row, strict=True)) for a, row in zip(known, matrix.tolist(), strict=True)}
    elif "file" in net:
        head, *lines = _table(data, net["file"])
        table = {x[0]: {b: float(v) for b, v in zip(head[1:], x[1:], strict=True) if v} for x in lines}
    else:
        table = net["rtt_ms"]
    if table is not None:
        rtt = np.zeros((R, R))
        for a, user in enumerate(names):
            for b, server in enumerate(names):
                value = table.get(user, {}).get(server, table.get(server, {}).get(user))
                rtt[a, b] = 0.0 if value is None else value
    local = net.get("local_rtt_ms")
    if local is not None:
        np.fill_diagonal(rtt, local)
    return rtt


def _place(region: dict[str, Any]) -> tuple[float, float]:
    if "latitude_deg" in region:
        return region["latitude_deg"], region["longitude_deg"]
    known = geography.places()[region["region"]]
    return known.latitude_deg, known.longitude_deg


def _egress(data: Instance, names: list[str]) -> Array:
    """USD per request: out at the origin's price, back at the server's; 10³ bytes are 10⁻⁶ GB."""
    given, R = data["network"].get("egress"), len(names)
    per_gb = np.zeros((R, R))
    if given is not None:
        prices = geography.egress_prices(given["catalog"]) if "catalog" in given else given["usd_per_gb"]
        for a, sender in enumerate(names):
            for b, receiver in enumerate(names):
                value = prices[sender] if isinstance(prices, dict) else prices
                if isinstance(value, dict):
                    value = value.get(receiver, value.get("*"))
                per_gb[a, b] = 0.0 if a == b else value
    return np.stack([
        1e-6 * (s.get("request_kb", 0.0) * per_gb + s.get("answer_kb", 0.0) * per_gb.T) for s in data["services"]
    ])  # fmt: skip


def _prices(data: Instance, names: list[str]) -> tuple[dict[tuple[int, int, str], float], set[tuple[int, int]]]:
    """A region's own prices go before the machine's; the instance's before the file's before the catalogue's."""
    price: dict[tuple[int, int, str], float] = {}
    offered: set[tuple[int, int]] = set()
    for i, m in enumerate(data["machines"]):
        own: dict[str, dict[str, float]] = {}
        if "catalog" in m:
            for x in catalog.machines(m["catalog"]):
                if x.machine == m["machine"]:
                    own[x.region] = {t: p for t in MARKETS if (p := getattr(x.prices, t)) is not None}
        if "prices_file" in m:
            head, *lines = _table(data, m["prices_file"])
            for line in lines:
                row = dict(zip(head, line, strict=True))
                if row["machine"] == m["machine"]:
                    own[row["region"]] = {
                        t: float(v) / f for t in MARKETS for unit, f in (("hour", 1.0), ("month", HOURS))
                        if (v := row.get(f"{t}_usd_per_{unit}"))
                    }  # fmt: skip
        own |= m.get("prices_by_region", {})
        for s, name in enumerate(names):
            mine = m.get("prices", {}) | own.get(name, {})
            if name in m["regions"] if "regions" in m else mine:
                offered.add((i, s))
                price |= {(i, s, t): float(p) for t, p in mine.items()}
    return price, offered


def _limit(of: Any) -> tuple[float, float | None]:
    """A limit's seconds, and its percentile; None: the mean."""
    if of is None:
        return math.inf, None
    return (of["at_most"], of["percentile"]) if isinstance(of, dict) else (of, None)


def _serving(
    data: Instance, machine: dict[str, Any], service: dict[str, Any], away: list[float]
) -> list[tuple[float, float, float]]:
    """Operating points: (requests/s, prefill seconds, E2E seconds at the deadline's percentile) as stated, or from
    roofline or an engine's steps.

    Engines that batch continuously: all their levels; and for round trips `away`, in seconds, that the one that carries
    most does not reach, the longest steps that do. Batches: the sizes tried are 61 from 1 to 1,024, in geometric steps,
    rounded; those that hold TBT and memory, on any tensor parallelism that divides GPUs and heads.
    """
    slo = service["slo"]
    stated = machine.get("serves", {}).get(service["service"])
    if stated is not None:
        return [
            (x["requests_per_second"], x.get("prefill_s", 0.0), x.get("e2e_s", 0.0))
            for x in (stated if isinstance(stated, list) else [stated])
        ]
    w = service.get("workload")
    if w is None:
        return []
    listed = [x for x in catalog.machines(machine["catalog"]) if x.machine == machine["machine"]] \
        if "catalog" in machine else []  # fmt: skip
    name = machine.get("gpu") or (listed[0].gpu if listed else None)
    if name is None:
        return []
    gpus = machine.get("gpu_count", listed[0].gpu_count if listed else 1)
    gpu = catalog.gpus()[name]
    vram = machine.get("vram_gib") or (listed[0].vram_gib if listed and "gpu" not in machine else None)
    vram = (vram or gpu.usable_gib * gpus) / gpus
    architecture = catalog.llms()[w["model"]] if isinstance(w["model"], str) else _architecture(w["model"])
    weights = w.get("weights", "fp16")
    work = layer_work(architecture, weights, w.get("kv", "fp16"))
    latency = data.get("latency")
    if data.get("serving") == "continuous":
        listed_ranks = w.get("attention_ranks", [1]) if work.expert_weight_bytes else [1]

        def levels(reach: list[tuple[float, float]]) -> list[tuple[float, float, float]]:
            return [
                (way.requests_per_s * (gpus // (tp * ranks)), way.first_s, way.whole_s)
                for tp in range(1, gpus + 1) if architecture.heads % tp == 0
                for ranks in listed_ranks if gpus % (tp * ranks) == 0
                for way in _ways(data, service, architecture, gpu, name, tp, ranks, vram, reach)
            ]  # fmt: skip

        found = levels([])
        near_s = max((rate, _left_s(slo, *at)) for rate, *at in found)[1] if found else -math.inf
        far = [x for x in away if x > near_s + 1e-12]
        return found + levels([(_left_s(slo, x, -math.inf), _left_s(slo, -math.inf, x)) for x in far]) if far else found
    uncached = max(1, round(w["input_tokens"] * (1 - w.get("cached_input_share", 0.0))))
    like = (w["output_tokens"], w.get("variant", "roofline"), w.get("vram_usable", 0.9))
    whole, short = BatchModel(work, w["input_tokens"], *like), BatchModel(work, uncached, *like)
    found = []
    for tp in (d for d in range(1, gpus + 1) if gpus % d == 0 and architecture.heads % d == 0):
        for batch in sorted({float(round(x)) for x in np.geomspace(1, 1024, 61)}):
            hardware = group(gpu, tp, weights, tp * vram * GIB)
            if hardware is None:
                return []
            full = whole.resident(hardware, np.array([batch]), np.ones(1))
            tbt = float(full.tbt(np.zeros(1))[0])
            own = tp * w.get("runtime_gib", 0.0) * GIB
            prefill = float(short.resident(hardware, np.ones(1), np.ones(1)).ttft(np.zeros(1))[0])
            busy = prefill
            if latency is not None and latency.get("model") != "roofline":
                tbt, prefill, busy = _engine(latency, w, architecture, name, tp, int(batch), uncached)
            if tbt > service["slo"]["tpot_s"] or float((full.vram_fixed + full.kv - full.vram)[0]) + own > 0:
                continue
            rate = gpus / tp * batch / (batch * busy + (w["output_tokens"] - 1) * tbt)
            e2e = service["slo"].get("queue_s", 0.0) + prefill + (w["output_tokens"] - 1) * tbt
            found.append((rate, prefill, e2e))
    return found


def _left_s(slo: dict[str, Any], first_s: float, whole_s: float) -> float:
    """Seconds of a round trip within TTFT and deadline."""
    first = _limit(slo["ttft_s"])[0] - slo.get("queue_s", 0.0) - first_s
    return min(first, _limit(slo.get("deadline_s"))[0] - whole_s)


def _ways(
    data: Instance, service: dict[str, Any], architecture: Any, gpu: Any, name: str, tp: int, ranks: int,
    vram_gib: float, reach: list[tuple[float, float]],
) -> Iterator[Way]:  # fmt: skip
    """What an engine of so many ranks on `tp` GPUs of `vram_gib` each may do, wherever its users are."""
    w, slo, latency = service["workload"], service["slo"], data.get("latency", {})
    unsaid = continuous.UNSAID | {"max_num_batched_tokens": 8192, "speculation": []}
    limits = SimpleNamespace(**unsaid | data.get("engine", {}))
    lora = data.get("engine", {}).get("lora")
    if lora is not None:
        lora = SimpleNamespace(**{"max_lora_rank": 16, "gib_each": None, "slower": 1.0} | lora)
    weights, kv = w.get("weights", "fp16"), w.get("kv", "fp16")
    kinds = lengths.classes(w, data.get(FILES, {}), w.get("cached_input_share", 0.0))
    prompt = lengths.mean_prompt(kinds)
    costs, where = _costs(latency.get("engine", "vllm"), json.dumps(w["model"]), weights, kv, name, tp,
                          prompt, latency.get("model") == "roofline", ranks)  # fmt: skip
    costs = continuous.adapting(costs, lora)
    more: dict[str, Any] = {}
    for s in limits.speculation:
        if s.get("model", w["model"]) != w["model"]:
            continue
        draft, of = None, s.get("draft")
        if of is not None:
            small = catalog.llms()[of] if isinstance(of, str) else _architecture(of)
            draft, _ = _costs(latency.get("engine", "vllm"), json.dumps(of), weights, kv, name, tp, prompt,
                              latency.get("model") == "roofline", ranks)  # fmt: skip
            more["draft"] = layer_work(small, weights, kv), small
        costs = continuous.speculating(
            costs, SimpleNamespace(**dict.fromkeys(("acceptance", "accepted", "head")) | s), draft
        )
        more |= {"drafts": s["drafts"], "head": s.get("head", 0.0)}
    tpot, ttft = where.factors(latency.get("safety"))

    runtime = continuous.runtime_gib(w.get("runtime_gib"), latency.get("safety"), architecture)
    runtime += continuous.adapters_gib(lora, architecture, tp)

    def kv_tokens(seqs: int) -> float:
        return continuous.kv_tokens(
            layer_work(architecture, weights, kv), architecture,
            (w.get("vram_usable", 0.9) * vram_gib - runtime) * GIB, tp,
            limits.max_num_batched_tokens, seqs, lengths.shortest(kinds), ranks=ranks, **more,
        )  # fmt: skip

    yield from continuous.ways(
        costs.scaled(tpot), max(ttft / tpot, 1.0), kinds, limits, kv_tokens, (math.inf, _limit(slo["ttft_s"])[1]),
        _limit(slo["tpot_s"]), waiting_s=slo["queue_s"], deadline=(math.inf, _limit(slo.get("deadline_s"))[1]),
        ranks=ranks, reach=reach,
    )  # fmt: skip


def _engine(
    latency: dict[str, Any], w: dict[str, Any], architecture: Any, gpu: str, tp: int, batch: int, prompt: int
) -> tuple[float, float, float]:
    """Mean decode step, time to first token of one prompt, and what of it keeps the machine busy, in seconds."""
    costs, where = _costs(latency.get("engine", "vllm"), json.dumps(w["model"]), w.get("weights", "fp16"),
                          w.get("kv", "fp16"), gpu, tp, prompt)  # fmt: skip
    tpot, ttft = where.factors(latency.get("safety"))
    none, left, prefill = np.zeros(0), prompt, 0.0
    while left:
        tokens = min(left, 8192)
        prefill += costs.step(np.array([float(tokens)]), np.array([float(prompt - left)]), none)
        left -= tokens
    steps = range(1, w["output_tokens"])
    decode = np.mean([costs.step(none, none, np.full(batch, float(w["input_tokens"] + t))) for t in steps] or [0.0])
    return tpot * float(decode), ttft * (prefill + costs.request_s), ttft * prefill


@cache
def _costs(
    engine: Any,
    model: str,
    weights: Any,
    kv: Any,
    gpu: str,
    tp: int,
    prompt: float,
    roofline: bool = False,
    ranks: int = 1,
) -> Any:
    name = json.loads(model)
    architecture = catalog.llms()[name] if isinstance(name, str) else _architecture(name)
    source = Source(engine, None if roofline else read_engine_model())
    llm = llm_name(name if isinstance(name, str) else architecture)
    return resolve(
        source, deployment(source, architecture, llm, catalog.gpus()[gpu], gpu, weights, kv, tp, ranks), prompt
    )


def _architecture(shape: dict[str, Any]) -> Any:
    from optmodels.catalog.types import Architecture

    return Architecture.model_validate(shape)


def _demand(data: Instance, d: dict[str, Any], names: list[str]) -> Array:
    """Requests/s, (T, R)."""
    if d["kind"] == "inline":
        return np.array([d["by_region"][n] for n in names]).T / PER[d["unit"]]
    if d["kind"] == "diurnal":
        return _diurnal(data, d)
    head, *lines = _table(data, d["file"])
    table = [dict(zip(head, line, strict=True)) for line in lines]
    if d["kind"] == "trace":
        mine = [x for x in table if "model" not in d or x["model"] == d["model"]]
        hour = {id(x): int(float(x["time_s"]) // 3600) for x in table}
        rps = np.zeros((max(hour.values()) + 1, len(names)))
        for x in mine:
            rps[hour[id(x)], names.index(x["region"])] += d.get("scale", 1.0) / 3600
        return rps
    if "region" in head:
        table = [x for x in table if "service" not in d or x["service"] == d["service"]]
        hours = sorted({x["hour_start_utc"] for x in table})
        unit = next(u for u in PER if u in head)
        rps = np.zeros((len(hours), len(names)))
        for x in table:
            rps[hours.index(x["hour_start_utc"]), names.index(x["region"])] = float(x[unit]) / PER[unit]
    else:
        rps = np.array([[float(x[n]) for n in names] for x in table]) / PER[d["unit"]]
    return rps * d.get("scale", 1.0)


def _diurnal(data: Instance, d: dict[str, Any]) -> Array:
    """A curve on every region's own clock, weighted, with noise, of the stated mean over hours and all regions."""
    start = dt.datetime.fromisoformat(d.get("start_utc", "2026-01-05T00:00:00+00:00"))
    begin = start.weekday() * 24 + start.hour + start.minute / 60
    shape = np.zeros((d["hours"], len(data["regions"])))
    for r, region in enumerate(data["regions"]):
        for t in range(d["hours"]):
            zone = region.get("time_zone")
            if zone is None and "utc_offset_h" not in region:
                zone = geography.places()[region["region"]].time_zone
            ahead = region.get("utc_offset_h")
            if ahead is None:
                offset = ZoneInfo(zone).utcoffset(start.replace(tzinfo=None) + dt.timedelta(hours=t))
                assert offset is not None
                ahead = offset.total_seconds() / 3600
            local = t + begin + ahead
            if d.get("curve", "cosine") == "cosine":
                rise = (d.get("peak_to_mean", 1.6) - 1) * math.cos(
                    2 * math.pi * (local - d.get("peak_local_hour", 14)) / 24
                )
                shape[t, r] = (1 + rise) * (d.get("weekend_factor", 1.0) if local % 168 >= 120 else 1.0)
            else:
                curve = geography.weekly_curves()[d["curve"]]
                at = (local - d.get("curve_shift_h", 0.0)) % 168
                shape[t, r] = np.interp(at, np.arange(169), [*curve, curve[0]])
            shape[t, r] *= region.get("weight", 1.0)
    noise = d.get("noise", 0.0)
    if noise:
        shape *= np.random.default_rng(d.get("seed", 0)).lognormal(-(noise**2) / 2, noise, shape.shape)
    mean = shape.sum(axis=1).mean()
    return shape * (d["total_requests_per_second"] / mean if mean else 0.0)


# The programme --------------------------------------------------------------------------------------------------------


def older(data: Any, inside: str = "") -> Any:
    """The data by earlier names of keys, which the reference reads."""
    if isinstance(data, list):
        return [older(x, inside) for x in data]
    if not isinstance(data, dict):
        return data
    names = EARLIER | ({"name": "service"} if inside == "services" else {})
    return {names.get(k, k): older(v, k) for k, v in data.items()}


def reference(data: Instance) -> Answer:
    """The least USD per month."""
    case = read(older(data))
    worst, best = _optimum(case, 1 + STRICT), _optimum(case, 1 - GENEROUS)
    return Answer(
        None if best is None else best.bound, None if worst is None else worst.value, "min", relative=2e-6,
        absolute=1e-9 * max(1e-6, abs(worst.value) if worst is not None else 1.0),
    )  # fmt: skip


def _optimum(case: Case, factor: float) -> Solution | None:
    """The programme at `factor` times the demand."""
    p = Programme()
    purchases = _purchases(case, p, factor)
    share = 1.0 / len(case.demand)
    for weight, q, by_region in case.rows:
        for hourly in case.demand:
            _hour(case, p, purchases, weight * share, q, hourly * by_region[:, None] * factor)
            for kept, extra in _losses(case):
                _survive(case, p, purchases, q, hourly * by_region[:, None] * factor * kept[:, None], extra)
    found = p.solve()
    if found is None or all(b.whole for b in purchases):
        return found
    # So many that a fraction of a machine is nobody's tolerance: the next whole number upwards is a plan.
    for b in purchases:
        if not b.whole:
            p.low[b.index] = p.high[b.index] = math.ceil(found.x[b.index] * b.unit - 1e-6) / b.unit
    above = p.solve()
    if above is None:
        raise UnsettledError("rounding up is no plan")
    return Solution(found.bound, above.value, above.x)


@dataclass
class Purchase:
    """A reservation of `unit`·x·step machines of type i in region s that run from quarter `first` to before `last`."""

    i: int
    s: int
    first: int
    last: int
    index: int
    step: int
    unit: float
    whole: bool


def _purchases(case: Case, p: Programme, factor: float) -> list[Purchase]:
    """Every reservation on offer, its cost within the horizon, its minimum, and stocks."""
    peak = max(float((case.demand * f[:, None]).sum()) for _, _, f in case.rows) * factor
    worst = case.data.get("uncertainty", {}).get("worst_case") or {"deviation": 0.0}
    peak *= 1 + worst["deviation"]
    each: dict[tuple[int, int], float] = {}
    for (_, _, s, i), load in case.reach.items():
        each[i, s] = max(each.get((i, s), 0.0), load)
    found: list[Purchase] = []
    for (i, s), load in each.items():
        m = case.data["machines"][i]
        step, minimum = m.get("step", 1), m.get("minimum", 0)
        useful = max(math.ceil(peak * load / step), math.ceil(minimum / step), 1)  # more helps nobody
        whole = useful <= MOST_WHOLE
        unit = 1.0 if whole else useful / 1e3
        mine: list[Purchase] = []
        for term in (t for t in case.terms() if t in TERMS):
            if (i, s, term) not in case.price:
                continue
            for first in range(case.quarters):
                last = min(case.quarters, first + TERMS[term])
                within, after = last - first, TERMS[term] - (last - first)
                # Without growth the one quarter stands for all, and nothing comes after the last.
                charged = case.data.get("growth", {"beyond_horizon_charged": 0.0}).get("beyond_horizon_charged", 1.0)
                cost = case.price[i, s, term] * HOURS * step * (within + charged * after) / case.quarters
                x = p.variable(cost * unit, 0.0, useful / unit, whole)
                if minimum:
                    any_at_all = p.variable(high=1.0, whole=True)
                    p.row({x: unit, any_at_all: -math.ceil(minimum / step)}, low=0.0)
                    p.row({x: unit, any_at_all: -useful}, high=0.0)
                mine.append(Purchase(i, s, first, last, x, step, unit, whole))
        limit = case.cap["reservable", i, s]
        if limit < math.inf:
            for q in range(case.quarters):
                running = {b.index: b.unit * step for b in mine if b.first <= q < b.last}
                if running:
                    p.row(running, high=limit)
        found += mine
    return found


def _capacity(
    case: Case, p: Programme, purchases: list[Purchase], q: int, flows: dict[tuple[int, int], dict[int, float]],
    hourly: dict[tuple[int, int], list[tuple[int, float]]], extra: dict[tuple[int, int], float],
) -> None:  # fmt: skip
    """Work in every sink ≤ machines that run in quarter q, bought by the hour, or there anyway.

    Where one step does all the work that there can be, its coefficient is that work: the same whole solutions.
    """
    for sink, work in flows.items():
        there = extra.get(sink, 0.0)
        most = sum(work.values()) - there
        if most <= 0 or there == math.inf:
            continue
        terms = list(work.items())
        here = (b for b in purchases if (b.i, b.s) == sink and b.first <= q < b.last)
        terms += [(b.index, -min(b.step * b.unit, most) if b.whole else -b.step * b.unit) for b in here]
        terms += [(x, -works) for x, works in hourly.get(sink, [])]
        p.row(terms, high=there)


def _served(case: Case, p: Programme, wanted: Array, cost: Any, gone: int | None = None) -> tuple[
    dict[tuple[int, int], list[tuple[int, float]]], dict[tuple[int, int], dict[int, float]]
]:  # fmt: skip
    """Flow variables, shares of `wanted` (R, K): (region, service) → variables; sink → work by variable, machines."""
    by_source: dict[tuple[int, int], list[tuple[int, float]]] = {}
    work: dict[tuple[int, int], dict[int, float]] = {}
    away: dict[tuple[int, int], dict[int, float]] = {}
    for (k, r, s, i), load in case.reach.items():
        if wanted[r, k] <= 0 or s == gone:
            continue
        y = p.variable(cost(k, r, s), 0.0, 1.0)
        by_source.setdefault((r, k), []).append((y, 1.0))
        work.setdefault((i, s), {})[y] = load * wanted[r, k]
        if r != s:
            away.setdefault((r, k), {})[y] = 1.0
    for (r, k), variables in away.items():
        ceiling = case.data["services"][k].get("forwarding_ceiling", 1.0)
        if ceiling < 1 and r != gone:  # users of a lost region may all leave it
            p.row(variables, high=ceiling)
    return by_source, work


def _hour(case: Case, p: Programme, purchases: list[Purchase], weight: float, q: int, wanted: Array) -> None:
    """One hour of one scenario and quarter, `weight` of all time."""
    month = HOURS * weight
    by_source, work = _served(case, p, wanted, lambda k, r, s: month * 3600 * case.egress[k, r, s] * wanted[r, k])
    for r, k in zip(*np.nonzero(wanted > 0), strict=True):
        terms = by_source.get((r, k), [])
        price = case.data["services"][k].get("unserved_usd_per_request")
        if price is not None:
            terms = [*terms, (p.variable(month * 3600 * price * wanted[r, k], 0.0, 1.0), 1.0)]
        p.row(terms, low=1.0, high=1.0)
    hourly: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for (i, s), flows in work.items():
        most = sum(flows.values())
        for market in ("on_demand", "spot"):
            if market not in case.terms() or (i, s, market) not in case.price:
                continue
            lost = case.data["machines"][i].get("spot_lost_share", 0.0) if market == "spot" else 0.0
            cap = case.cap[f"{market}_available", i, s]
            x = p.variable(month * case.price[i, s, market] * most / (1 - lost), 0.0, cap * (1 - lost) / most)
            hourly.setdefault((i, s), []).append((x, most))
    _capacity(case, p, purchases, q, work, hourly, {})


def _losses(case: Case) -> list[tuple[Array, tuple[int | None, dict[tuple[int, int], float]]]]:
    """Everything that must be survived: (share of demand kept by region, (region lost, machines counted on))."""
    rules = case.data.get("resilience", {})
    R = len(case.regions)
    on_demand, spot = (
        {
            (i, s): case.cap[f"{market}_available", i, s]
            * (1 - (case.data["machines"][i].get("spot_lost_share", 0.0) if market == "spot" else 0.0))
            for i, s in case.offered
            if market in case.terms() and (i, s, market) in case.price
        }
        for market in ("on_demand", "spot")
    )
    found: list[tuple[Array, tuple[int | None, dict[tuple[int, int], float]]]] = []
    keep = rules.get("lose_any_region_keep")
    if keep is not None:
        counted = on_demand if rules.get("count_on_demand") else {}
        found += [(np.full(R, keep), (r, counted)) for r in sorted({s for _, s in case.offered})]
    keep = rules.get("lose_spot_keep")
    if keep is not None:
        found.append((np.full(R, keep), (None, on_demand)))
    worst = case.data.get("uncertainty", {}).get("worst_case")
    if worst is not None:
        both = {x: on_demand.get(x, 0.0) + spot.get(x, 0.0) for x in on_demand | spot}
        for who in combinations(range(R), min(R, worst["regions"])):
            factor = np.ones(R)
            factor[list(who)] += worst["deviation"]
            found.append((factor, (None, both)))
    return found


def _survive(
    case: Case, p: Programme, purchases: list[Purchase], q: int, wanted: Array,
    loss: tuple[int | None, dict[tuple[int, int], float]],
) -> None:  # fmt: skip
    """`wanted` is served by what is left: nothing in the region lost, no purchases but those counted on."""
    gone, extra = loss
    by_source, work = _served(case, p, wanted, lambda k, r, s: 0.0, gone)
    for r, k in zip(*np.nonzero(wanted > 0), strict=True):
        p.row(by_source.get((r, k), []), low=1.0, high=1.0)
    _capacity(case, p, purchases, q, work, {}, extra)


# Instances ------------------------------------------------------------------------------------------------------------

KINDS = (
    "plain", "hourly", "losses", "scenarios", "growth", "steps", "egress", "latency", "latency", "catalogue", "files",
    "degenerate", "tight", "few-per-hour", "many-per-second", "slow-machines", "prices-apart", "everything",
)  # fmt: skip
MONDAY = "2026-03-02T00:00:00+00:00"
CLOUD = ("us-east-1", "us-west-2", "eu-central-1", "ap-northeast-1", "sa-east-1")


def generate(rng: np.random.Generator) -> Instance:
    """An instance of one of `KINDS`, as JSON data."""
    d = Draw(rng)
    kind = d.one(KINDS)
    few = kind in ("losses", "scenarios", "growth")
    known = kind == "catalogue" or d.chance(0.1)
    R = d.whole(1, 3 if few else 4)
    names = d.some(CLOUD)[:R] if known else [f"r{r}" for r in range(R)]
    hours, dated = d.whole(1, 2 if few else 5), kind == "catalogue" or d.chance(0.5)
    other = rng.spawn(1)[0]  # a stream of its own leaves the instances of other seeds as they are
    data = _Making(d, kind, names, hours, known, dated, d.chance(0.5)).instance()
    third = rng.spawn(1)[0]
    for s in data["services"]:
        if "workload" in s and data.get("serving") == "continuous" and static.maybe(third, 0.7):
            lengths.spread(third, data, s["workload"], s["service"])
            lengths.odd_percentiles(third, s["slo"], ("tpot_s", "ttft_s"))
    _deadlines(other, data)
    if static.maybe(other, 0.2):
        _by_a_hair(other, data)
    spelled = rng.spawn(1)[0]
    _operating_points(rng.spawn(1)[0], data)
    last = rng.spawn(1)[0]
    for s in data["services"]:
        if s.get("demand", {}).get("kind") == "inline" and "start_utc" in s["demand"] and static.maybe(last, 0.2):
            s["demand"] = _in_a_file(last, data, s["demand"], f"{s['service']}-wide.csv")
    shapes = [s["workload"]["model"] for s in data["services"] if "workload" in s]
    static.newer(last, data, shapes, data.get("serving") == "continuous")
    return static.either_spelling(spelled, data)


def _in_a_file(rng: np.random.Generator, data: Instance, demand: dict[str, Any], file: str) -> dict[str, Any]:
    """The same demand in a wide table, in another unit."""
    unit, of = static.pick(rng, tuple(PER)), demand["by_region"]
    rows = [(f"2026-03-02T{t:02d}:00:00+00:00", *(repr(v / PER[demand["unit"]] * PER[unit]) for v in values))
            for t, values in enumerate(zip(*of.values(), strict=True))]  # fmt: skip
    data.setdefault(FILES, {})[file] = _csv([("hour_start_utc", *of), *rows])
    return {"kind": "file", "file": file, "unit": unit}


def _operating_points(rng: np.random.Generator, data: Instance) -> None:
    """Stated rates with slower operating points beside, most of which reach farther."""
    for m in data["machines"]:
        for name, x in m.get("serves", {}).items():
            if not static.maybe(rng, 0.2):
                continue
            m["serves"][name] = [x] + [
                x | {"requests_per_second": x["requests_per_second"] * static.between(rng, 0.3, 1.0)}
                | {key: x[key] * static.between(rng, 0.05, 1.1) for key in ("prefill_s", "e2e_s") if key in x}
                for _ in range(static.pick(rng, [1, 1, 2]))
            ]  # fmt: skip


def _deadlines(rng: np.random.Generator, data: Instance) -> None:
    """Limits of whole requests near what some machine needs, round trip included."""
    trips_s = _round_trips(data, [r["region"] for r in data["regions"]]) / 1000
    for m in data["machines"]:
        for x in m.get("serves", {}).values():
            if static.maybe(rng, 0.1):
                x["e2e_s"] = static.between(rng, 0.1, 10)
    for s in data["services"]:
        if not static.maybe(rng, 0.4):
            continue
        for m in data["machines"]:
            if s["service"] in m.get("serves", {}):
                m["serves"][s["service"]]["e2e_s"] = static.between(rng, 0.05, 2)
        s["slo"]["deadline_s"] = math.inf
        if "workload" in s and data.get("serving") == "continuous" and static.maybe(rng, 0.6):
            s["slo"]["deadline_s"] = {"at_most": math.inf, "percentile": static.pick(rng, [0.5, 0.9, 0.97, 0.99])}
        found = _serving(data, static.pick(rng, data["machines"]), s, [0.0])
        limit_s = (max(found)[2] if found else 1.0) * static.pick(rng, [0.5, 0.9, 1.0, 1.0, 1.001, 1.1, 2.0])
        limit_s += float(static.pick(rng, trips_s.ravel())) * static.pick(rng, [0.0, 0.9, 1.0, 1.001])
        limit_s = max(limit_s, 1e-6)
        if isinstance(s["slo"]["deadline_s"], dict):
            s["slo"]["deadline_s"]["at_most"] = limit_s
        else:
            s["slo"]["deadline_s"] = limit_s


def _by_a_hair(rng: np.random.Generator, data: Instance) -> None:
    """Rates of a service times what makes a region's or all regions' peak nearly the work of whole machines."""
    case, names = read(data), [r["region"] for r in data["regions"]]
    k = int(rng.integers(len(data["services"])))
    demand = data["services"][k]["demand"]
    loads = [load for (j, _, _, _), load in case.reach.items() if j == k]
    if demand["kind"] != "inline" or not loads:
        return
    rates = case.demand[:, :, k]
    peak = float(static.pick(rng, [rates.sum(axis=1).max(), rates[:, int(rng.integers(len(names)))].max()]))
    peak *= float(static.pick(rng, loads)) * static.pick(rng, [1.0, data.get("resilience", {}).get(
        "lose_any_region_keep", 1.0)])  # fmt: skip
    if not 1e-6 < peak < 1e4:
        return
    times = max(round(peak), int(rng.integers(1, 4))) * static.nearly_one(rng) / peak
    demand["by_region"] = {n: [v * times for v in x] for n, x in demand["by_region"].items()}


@dataclass
class _Making:
    """One instance in the making.

    Attributes:
        hours: of demand.
        known: regions are the catalogue's.
        dated: demand has a calendar, in every service or in none.
        batches_continuously: engines, where what machines serve comes of a workload.
        files: what lies beside the instance.
    """

    d: Draw
    kind: str
    names: list[str]
    hours: int
    known: bool
    dated: bool
    batches_continuously: bool
    files: dict[str, str] = field(default_factory=dict)

    def on(self, *kinds: str) -> bool:
        """Whether it is of one of these kinds, or of everything."""
        return self.kind in (*kinds, "everything")

    def instance(self) -> Instance:
        d = self.d
        data: Instance = {"formulation": "reserved_capacity", "schema": 1, "notes": self.kind}
        if d.chance(0.1):
            data |= {"name": "adversary", "title": "a random instance"}
        data["regions"] = [self.region(n) for n in self.names]
        data["network"] = self.network()
        rate = {"slow-machines": 1e-9, "few-per-hour": 1e-3, "many-per-second": 1e9}.get(self.kind, 1.0)
        size = rate
        if self.kind == "many-per-second":
            size *= d.one((1.0, 1e6))
        if self.kind == "few-per-hour":
            size *= d.one((1.0, 1e-3))
        services = 2 if d.chance(0.2) else 1
        data["services"] = [self.service(f"s{k}", size * d.number(0.3, 3.0), rate) for k in range(services)]
        data["machines"] = [self.machine(f"m{i}", data["services"], rate) for i in range(d.whole(1, 2))]
        for s in data["services"]:  # somebody has to serve it
            if "workload" not in s and not any(s["service"] in m.get("serves", {}) for m in data["machines"]):
                d.one(data["machines"]).setdefault("serves", {})[s["service"]] = {"requests_per_second": rate}
        if self.on("latency") and d.chance(0.5):
            data["latency"] = {"model": d.one(("default", "default", "roofline")),
                               "engine": d.one(("vllm", "sglang", "trtllm"))}  # fmt: skip
            if data["latency"]["model"] == "default" and d.chance(0.4):
                data["latency"]["safety"] = d.one((0.5, 0.9))
        if self.batches_continuously:
            data["serving"] = "continuous"
            if d.chance(0.6):
                seqs = d.one((1, 16, 64, 256))
                data["engine"] = {"max_num_seqs": seqs, "max_num_batched_tokens": seqs + d.whole(16, 8192)}
                if d.chance(0.4):
                    data["engine"]["chunk_tokens"] = d.whole(8, 4096)
                for key, values in static.WAITS.items():
                    if d.chance(0.2):
                        data["engine"][key] = d.one(values)
                if d.chance(0.2):  # the plan decides
                    data["engine"]["max_num_batched_tokens"] += static.LEAST_CHOICE
                    data["engine"]["most_num_seqs"] = d.one((256, 300, 512, 600))
                    del data["engine"]["max_num_seqs"]
                models = [s["workload"]["model"] for s in data["services"] if "workload" in s]
                if models and d.chance(0.4):
                    windows = any(map(bounded, models))
                    static.speculates(d.rng, data["engine"], [] if windows else [d.one((OWN_MODEL, "qwen3-0.6b"))])
                    name = d.one(models)
                    if isinstance(name, str) and (len(set(map(str, models))) > 1 or d.chance(0.5)):
                        data["engine"]["speculation"][0]["model"] = name
        elif d.chance(0.1):
            data["serving"] = "static"
        if self.files:
            data[FILES] = self.files
        data["terms"] = self.terms(data)
        if d.chance(0.3):
            data["utilisation"] = d.number(0.3, 1.0)
        if self.on("losses") or d.chance(0.1):
            data["resilience"] = self.resilience()
        uncertain: dict[str, Any] = {}
        if self.on("scenarios") or d.chance(0.1):
            uncertain["scenarios"] = self.scenarios()
        if self.on("scenarios", "losses") and d.chance(0.5):
            uncertain["worst_case"] = {"deviation": d.one((0.3, d.magnitude(0.01, 5.0))), "regions": d.whole(1, 3)}
        if uncertain:
            data["uncertainty"] = uncertain
        if self.on("growth") or d.chance(0.1):
            data["growth"] = {"quarters": d.one((1, 2, 3, 5)) if self.kind == "growth" else d.whole(1, 2)}
            if d.chance(0.8):
                data["growth"]["factor_per_quarter"] = d.one((1.0, d.number(0.5, 1.8)))
            if d.chance(0.5):
                data["growth"]["beyond_horizon_charged"] = d.one((0.0, 1.0, d.number(0.0, 1.0)))
        return data

    def region(self, name: str) -> dict[str, Any]:
        d = self.d
        region: dict[str, Any] = {"region": name}
        if d.chance(0.6):
            region["weight"] = d.one((1.0, 3.0, d.number(0.1, 5.0)))
        if not self.known:
            region |= {"latitude_deg": d.number(-60, 60), "longitude_deg": d.number(-180, 180)}
            if d.chance(0.5):
                region["utc_offset_h"] = d.one((0.0, 5.5, -8.0))
            else:
                region["time_zone"] = d.one(("Europe/Oslo", "Asia/Kolkata", "America/Los_Angeles"))
        return region

    def network(self) -> dict[str, Any]:
        d, names = self.d, self.names
        rtt = {a: {b: d.number(5, 300) for b in names if b != a} for a in names}
        if self.known and d.chance(0.7):
            net: dict[str, Any] = {"catalog": "aws"}
        elif self.on("files") and d.chance(0.6):
            lines = [["region", *names], *([a, *(str(rtt[a].get(b, "")) for b in names)] for a in names)]
            self.files["rtt.csv"] = _csv(lines)
            net = {"file": "rtt.csv"}
        elif not self.known and d.chance(0.15):
            net = {"estimate": "geodesic"}
        else:
            if d.chance(0.3):  # one direction is enough
                rtt = {a: {b: v for b, v in row.items() if b > a} for a, row in rtt.items()}
            net = {"rtt_ms": rtt}
        if self.on("egress"):
            net["egress"] = self.egress()
        if d.chance(0.4):
            net["local_rtt_ms"] = d.one((0.0, 2.0, d.number(0.0, 50.0)))
        return net

    def egress(self) -> dict[str, Any]:
        d, names = self.d, self.names

        def price() -> float:
            return float(d.one((0.0, 0.09, d.magnitude(1e-3, 1.0))))

        if self.known and d.chance(0.4):
            return {"catalog": "aws"}
        by_pair = {a: {**{b: price() for b in d.some(names)}, "*": price()} for a in names}
        return {"usd_per_gb": d.one((price(), {a: price() for a in names}, by_pair))}

    def service(self, name: str, size: float, rate: float) -> dict[str, Any]:
        d, names = self.d, self.names
        slo: dict[str, Any] = {"ttft_s": d.one((0.1, 0.2, 0.4, 1.0, d.number(0.05, 0.5)))}
        if d.chance(0.3):
            slo["queue_s"] = d.one((0.0, 0.05))
        service: dict[str, Any] = {"service": name, "slo": slo, "demand": self.demand(name, size)}
        if self.on("latency"):
            slo["tpot_s"], slo["ttft_s"] = d.one((0.03, 0.06, 0.1)), d.number(0.3, 1.5)
            service["workload"] = self.workload()
            if self.batches_continuously:
                slo["queue_s"] = d.one((0.001, 0.05, 0.2, d.number(0.01, 0.6)))
                for key in ("tpot_s", "ttft_s"):
                    if d.chance(0.5):
                        slo[key] = {"at_most": slo[key], "percentile": d.one((0.5, 0.9, 0.97, 0.99))}
        if self.on("egress") or d.chance(0.15):
            service["kappa"] = d.one((1.0, 1.2, d.magnitude(1.0, 50.0)))
            service |= {"request_kb": d.magnitude(0.1, 1e4), "answer_kb": d.one((0.0, d.magnitude(0.1, 1e4)))}
        if d.chance(0.25):
            service["forwarding_ceiling"] = d.one((0.0, 0.5, d.number(0.0, 1.0)))
        if d.chance(0.2):
            service["residency"] = {d.one(names): d.some(names)}
        if d.chance(0.8 if self.kind == "tight" else 0.35):
            price = d.one((1e-3, d.magnitude(1e-8, 1e2), d.magnitude(1e-5, 1e-2)))
            service["unserved_usd_per_request"] = price / rate
        return service

    def workload(self) -> dict[str, Any]:
        d = self.d
        w: dict[str, Any] = {
            "model": d.one(("llama-3.1-8b", "mistral-7b", OWN_MODEL, EXPERTS, HYBRID)),
            "input_tokens": d.whole(16, 800), "output_tokens": d.whole(1, 400),
        }  # fmt: skip
        if d.chance(0.5):
            w |= {"weights": d.one(WEIGHTS), "kv": d.one(("fp16", "fp8", "int4"))}
        if d.chance(0.4):
            w["cached_input_share"] = d.number(0.0, 1.0)
        if self.batches_continuously and d.chance(0.4):
            w["attention_ranks"] = d.one(([2], [4, 2], [2, 1], [1, 4]))
            w["model"] = d.one((w["model"], EXPERTS))
        if d.chance(0.4):
            w |= {
                "variant": d.one(("roofline", "paper")),
                "vram_usable": d.number(0.5, 1.0),
                "runtime_gib": d.number(0.0, 2.0),
            }
        return w

    def demand(self, name: str, size: float) -> dict[str, Any]:
        d, names, T = self.d, self.names, self.hours
        if self.dated and (self.on("catalogue") or d.chance(0.3)):
            return self.diurnal(size * len(names))
        if self.kind == "degenerate":
            level = d.one((size, size, 0.0))
            hours = {n: [level] * T for n in names}
        else:
            hours = {n: [d.one((0.0, 1.0, 1.0, 1.0)) * d.number(0.0, 4.0) * size for _ in range(T)] for n in names}
        if self.on("files") and d.chance(0.7):
            return self.table(name, hours) if self.dated else self.trace(name)
        unit = d.one(tuple(PER))
        demand = {
            "kind": "inline",
            "unit": unit,
            "by_region": {n: [v * PER[unit] for v in x] for n, x in hours.items()},
        }
        return demand | ({"start_utc": MONDAY} if self.dated else {})

    def diurnal(self, total: float) -> dict[str, Any]:
        d = self.d
        demand: dict[str, Any] = {
            "kind": "diurnal", "start_utc": MONDAY, "hours": self.hours, "total_requests_per_second": total,
        }  # fmt: skip
        if d.chance(0.7):
            demand["curve"] = d.one(("cosine", "azure-2024-conv", "servegen-m-small"))
        if d.chance(0.5):
            demand |= {"curve_shift_h": d.number(-20, 20), "peak_local_hour": d.number(0, 23.9)}
        if d.chance(0.5):
            demand |= {"peak_to_mean": d.number(1, 2), "weekend_factor": d.one((0.0, d.number(0, 2)))}
        if d.chance(0.5):
            demand |= {"noise": d.number(0, 0.5), "seed": d.whole(0, 9)}
        return demand

    def table(self, name: str, hours: dict[str, list[float]]) -> dict[str, Any]:
        """A file of demand, long or wide."""
        d, file = self.d, f"{name}.csv"
        stamps = [f"2026-03-02T{t:02d}:00:00+00:00" for t in range(self.hours)]
        unit = d.one(tuple(PER))
        demand: dict[str, Any] = {"kind": "file", "file": file}
        if d.chance(0.5):
            rows = [(s, n, "chat", repr(x[t] * PER[unit])) for t, s in enumerate(stamps) for n, x in hours.items()]
            rows += [(s, n, "other", "9.5") for s in stamps for n in hours]
            self.files[file] = _csv([("hour_start_utc", "region", "service", unit), *rows])
            demand["service"] = "chat"
        else:
            wide = [(s, *(repr(x[t] * PER[unit]) for x in hours.values())) for t, s in enumerate(stamps)]
            self.files[file] = _csv([("hour_start_utc", *hours), *wide])
            demand["unit"] = unit
        if d.chance(0.5):
            demand["scale"] = d.number(0.5, 2.0)
        return demand

    def trace(self, name: str) -> dict[str, Any]:
        """Requests one by one; one of another model in the last hour."""
        d, file, first = self.d, f"{name}.csv", self.names[0]
        rows = [(1.0, first, "b"), (3600.0 * self.hours - 1, first, "a")]
        for t in range(self.hours):
            for n in self.names:
                rows += [(d.number(3600 * t, 3600 * t + 3599), n, d.one(("a", "b"))) for _ in range(d.whole(0, 3))]
        self.files[file] = _csv([("time_s", "region", "model"), *sorted(rows)])
        demand = {"kind": "trace", "file": file, "scale": d.number(1000, 9000)}
        return demand | ({"model": "a"} if d.chance(0.5) else {})

    def machine(self, name: str, services: list[dict[str, Any]], rate: float) -> dict[str, Any]:
        d, names = self.d, self.names
        level = d.magnitude(1e-5, 1e6) if self.kind == "prices-apart" else 1.0
        m: dict[str, Any] = {"machine": name}
        listed = self.known and d.chance(0.3)
        if listed:
            m = {"machine": f"{d.one(('g5', 'g6', 'g6e'))}.{'x' if name == 'm0' else '4x'}large", "catalog": "aws"}
        if not listed or d.chance(0.5):
            m["prices"] = self.prices(level)
        if d.chance(0.3):
            m["prices_by_region"] = {n: self.prices(level) for n in d.some(names)}
        if self.on("files") and d.chance(0.6):
            head = ("machine", "region", "on_demand_usd_per_hour", "reserved_3y_usd_per_month")
            priced = [(m["machine"], n, level * d.number(0.8, 3), level * d.number(300, 900)) for n in d.some(names)]
            m["prices_file"] = f"{name}-prices.csv"
            self.files[m["prices_file"]] = _csv([head, *priced])
        if d.chance(0.2):
            m["regions"] = d.some(names)
        scarce = self.kind == "tight"
        for what in ("reservable", "on_demand_available", "spot_available"):
            if d.chance(0.7 if scarce else 0.3):
                caps = {n: d.whole(0, 4 if scarce else 9) for n in d.some(names)}
                m[what] = caps if d.chance(0.5) else next(iter(caps.values()))
        if d.chance(0.3):
            m["spot_lost_share"] = d.one((0.0, 0.1, d.number(0.0, 0.99)))
        if self.on("steps") or d.chance(0.15):
            m |= {"step": d.one((1, 2, 3, 8)), "minimum": d.one((0, 1, 4, 5, 9))}
        if self.on("latency") and not listed:
            m["gpu"] = d.one(("l4", "a10g", "l40s", "h100"))
            if d.chance(0.5):
                m["gpu_count"] = d.one((1, 2, 4))
            if d.chance(0.3):
                m["vram_gib"] = d.number(20, 400)
        if not self.on("latency") or d.chance(0.3):
            m["serves"] = {
                s["service"]: {"requests_per_second": d.number(0.5, 4.0) * rate}
                | ({"prefill_s": d.number(0.0, 0.1)} if d.chance(0.4) else {})
                for s in d.some(services)
            }  # fmt: skip
        return m

    def prices(self, level: float) -> dict[str, float]:
        """Within a factor that the product does not take for a mix-up of months and hours."""
        d = self.d
        prices = {
            "on_demand": d.number(0.8, 5.0), "spot": d.number(0.2, 1.5), "reserved_1y": d.number(0.5, 1.2),
            "reserved_3y": d.number(0.3, 1.0),
        }  # fmt: skip
        return {t: level * (1.0 if self.kind == "degenerate" else prices[t]) for t in d.some(MARKETS, 2)}

    def terms(self, data: Instance) -> list[str]:
        """Such as some machine has a price for; machines keep `regions` only where each has a price in one of them."""
        priced = {t for _, _, t in _prices(data, self.names)[0]}
        if not priced:
            data["machines"][0]["prices"] = {"on_demand": 2.0, "reserved_3y": 0.5}
            priced = {"on_demand", "reserved_3y"}
        terms = self.d.some([t for t in MARKETS if t in priced])
        if self.kind == "hourly":
            terms = sorted({*terms, *(t for t in ("on_demand", "spot") if t in priced)})
        price, offered = _prices(data, self.names)
        for i, m in enumerate(data["machines"]):
            if not all(any((i, s, t) in price for t in terms) for j, s in offered if j == i):
                m.pop("regions", None)
        return terms

    def resilience(self) -> dict[str, Any]:
        d = self.d
        rules: dict[str, Any] = {}
        if d.chance(0.6):
            rules["lose_any_region_keep"] = d.one((1.0, 0.8, d.number(0.1, 1.0)))
        if d.chance(0.4):
            rules["lose_spot_keep"] = d.one((1.0, d.number(0.1, 1.0)))
        if d.chance(0.5):
            rules["count_on_demand"] = d.chance(0.7)
        return rules

    def scenarios(self) -> list[dict[str, Any]]:
        d = self.d
        found = []
        for n, p in enumerate(d.one(([1.0], [0.5, 0.5], [0.7, 0.3], [0.25, 0.25, 0.5]))):
            s: dict[str, Any] = {"scenario": f"w{n}", "probability": p}
            if d.chance(0.7):
                s["factor"] = d.one((0.0, 1.0, d.number(0.5, 2.0), d.number(0.5, 2.0)))
            if d.chance(0.5):
                s["by_region"] = {n: d.number(0.0, 2.0) for n in d.some(self.names)}
            found.append(s)
        return found


def _csv(rows: list[Any]) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in rows)
