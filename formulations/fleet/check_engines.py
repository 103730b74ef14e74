"""Independent check of deployments that batch continuously: every figure of a line anew, from step and wait stated.

Request by request and chunk by chunk, in plain numbers: what README.md says under "Continuous batching", and
`optmodels.serving.continuous` does in closed form over arrays. The seconds of a step and the tokens that a cache holds
are the toolkit's (`optmodels.latency`): they are data here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

from formulations.fleet.plan import DeploymentLine, ShareLine
from formulations.fleet.problem import Demand, Fleet, FleetCase, LatencyLimit, Percentile
from optmodels.errors import InputError
from optmodels.latency.memory import kv_tokens
from optmodels.latency.resolve import deployment, llm_name, resolve
from optmodels.latency.steps import StepCosts
from optmodels.latency.work import layer_work
from optmodels.plan.findings import Findings

SLACK = 1e-6
TTFT = {0.9: (0.75, 1.2, 1.05), 0.95: (0.82, 1.15, 1.06), 0.99: (0.98, 0.97, 1.09)}


@dataclass(frozen=True)
class _Request:
    """A bucket's request: what it asks for and, at a level, what it takes of an engine."""

    prompt: float
    new: float
    output: float
    weight: float
    chunks: float = 0.0
    prefill: float = 0.0
    work: float = 0.0

    @property
    def steps(self) -> float:
        return self.chunks + self.output - 1.0


@cache
def _contexts(costs: StepCosts, r: _Request) -> float:
    """Earlier tokens that all decodes of a request attend to."""
    return sum(float(costs.seen(r.prompt + i)) for i in range(round(r.output) - 1))


def _prefill(costs: StepCosts, r: _Request, chunk: float, charged: bool) -> tuple[float, float]:
    """Chunks and seconds of a prompt."""
    earlier, chunks = r.prompt - r.new, math.ceil(r.new / chunk)
    pairs = r.new * (earlier + r.new / 2)
    if costs.window is not None:
        w, share = costs.window.tokens, costs.window.share
        inside = max(0.0, min(r.prompt, w) - min(earlier, w))
        capped = inside * (min(earlier, w) + inside / 2) + (r.new - inside) * w
        pairs = share * capped + (1 - share) * pairs
    context = sum(float(costs.seen(earlier + i * chunk)) for i in range(chunks))
    seconds = costs.prompt_token_s * r.new + costs.prompt_pair_s * pairs + costs.prompt_context_s * context
    return chunks, seconds + charged * chunks * costs.prompt_step_s


@cache
def _largest_mean(most: float, load: float) -> float:
    """Largest mean crowd whose probability of at least `most` is 0.5 %."""
    from scipy.stats import beta

    low, high = 0.0, most
    for _ in range(60):
        middle = (low + high) / 2
        if beta.cdf(load, most, middle * (1 - load) / load + 1) <= 0.005:
            low = middle
        else:
            high = middle
    return low


def _form(quantile: float | None) -> tuple[float, float, float]:
    if quantile is None or quantile <= 0.5:
        return 0.5, 1.0, 1.0
    known = sorted(TTFT)
    if quantile <= known[0] or quantile >= known[-1]:
        return TTFT[known[0] if quantile <= known[0] else known[-1]]
    above = next(q for q in known if q >= quantile)
    below = known[known.index(above) - 1]
    at = math.log((1 - below) / (1 - quantile)) / math.log((1 - below) / (1 - above))
    first, own, waits = (a + (b - a) * at for a, b in zip(TTFT[below], TTFT[above], strict=True))
    return first, own, waits


def _waits(quantile: float | None, most: float | None) -> float:
    """Quantile of the wait in mean waits: the largest over the share of requests that wait at all."""
    if quantile is None or quantile <= 0.5:
        return 1.0
    above = 1 - quantile
    turn = 0.0 if most is None else 1 / (1 + most / 2)
    share = max(turn, math.e * above)
    return math.log(share / above) / share if share < 1 else 0.0


@dataclass(frozen=True)
class _Level:
    """An engine at the step and wait of a line."""

    fixed: float
    load: float
    room: float
    mixed: float
    requests: dict[str, _Request]
    typical: float
    kv: float
    prefill_share: float

    def beside(self, r: _Request, step: float) -> float:
        """What a step lasts beside prompts."""
        return self.fixed + self.load * step * max(1 - r.prefill / r.work, 1 - self.prefill_share)


def _at_level(
    case: FleetCase, costs: StepCosts, kv: float, requests: dict[str, _Request], step: float
) -> _Level | None:
    """Constants of the level; None where there is none."""
    limits = case.problem.engine
    every = list(requests.values())
    total = sum(r.weight for r in every)

    def mean(value: Mapping[str, float]) -> float:
        return sum(requests[k].weight * v for k, v in value.items()) / total

    slots, batched = limits.max_num_seqs, limits.max_num_batched_tokens
    contexts = {k: _contexts(costs, r) for k, r in requests.items()}
    alone = {k: _prefill(costs, r, r.new, True)[1] + costs.decode_request_s * (r.output - 1)
             + costs.context_s * contexts[k] for k, r in requests.items()}  # fmt: skip
    few = {k: float(math.ceil(r.new / min(batched, limits.chunk_tokens or batched))) for k, r in requests.items()}
    prompts = max(step - costs.fixed_s, 0.0) * mean(few) / mean(alone)
    varies = costs.mixed_context_s != costs.context_s or costs.experts is not None
    mixed = min(3 * prompts, 1.0) if varies else float(prompts >= 1)
    lightest = costs.decode_request_s + costs.context_s * min(r.prompt for r in every)
    crowd = min(slots, max(step - costs.fixed_s, 0.0) / lightest) if lightest > 0 else slots
    fixed = costs.fixed_s + (costs.prompt_step_s if mixed == 1 else 0.0)
    if costs.experts is not None:
        fixed += mixed * costs.experts.all_s + (1 - mixed) * float(costs.experts.seconds(crowd))
    load = 1 - fixed / step
    a_token = mean({k: _prefill(costs, r, r.new, False)[1] for k, r in requests.items()}) / mean(
        {k: r.new for k, r in requests.items()}
    )
    room = min(0.9 * (step - fixed) / a_token if a_token > 0 else math.inf, batched - slots)
    if load <= 0 or room < 16:
        return None
    chunk = min(room, limits.chunk_tokens or math.inf)
    made = {}
    for k, r in requests.items():
        chunks, prefill = _prefill(costs, r, chunk, mixed < 1)
        slope = costs.context_s + (costs.mixed_context_s - costs.context_s) * mixed
        work = prefill + costs.decode_request_s * (r.output - 1) + slope * contexts[k]
        made[k] = _Request(r.prompt, r.new, r.output, r.weight, chunks, prefill, work)
    typical = mean({k: r.work for k, r in made.items()}) / mean({k: r.steps for k, r in made.items()})
    prefill_share = mean({k: r.prefill for k, r in made.items()}) / mean({k: r.work for k, r in made.items()})
    return _Level(fixed, load, room, mixed if varies else 1.0, made, typical, kv, prefill_share)


@cache
def _held(r: _Request) -> tuple[float, float]:
    """Σ over a request's steps of the tokens it holds, and of their squares."""
    decodes = [r.prompt + i for i in range(1, round(r.output))]
    return r.chunks * r.prompt + sum(decodes), r.chunks * r.prompt**2 + sum(x * x for x in decodes)


def _capacities(level: _Level, step: float, wait: float, most: float | None, slots: int) -> dict[str, dict[str, float]]:
    """Share of an engine's capacities that one request/s of each bucket takes."""
    held = {k: _held(r) for k, r in level.requests.items()}
    first, second = (sum(level.requests[k].weight * h[i] for k, h in held.items()) for i in (0, 1))
    size = second / first
    running = _largest_mean(slots, level.load)
    crowd = _largest_mean(level.kv / size, level.load)
    spread = math.sqrt(crowd / (1 - level.load))
    z, sigma = (level.kv / size - crowd) / max(spread, 1e-300), size * spread
    found: dict[str, dict[str, float]] = {}
    v, steps_full = level.prefill_share, {k: r.new * step / level.room for k, r in level.requests.items()}
    gamma = min(r.prefill / steps_full[k] for k, r in level.requests.items())
    for k, r in level.requests.items():
        s = r.new / level.room * level.beside(r, step) + r.prefill
        turn = steps_full[k] * (level.fixed / step + level.load * (1 - v) ** 2) + r.prefill
        turn += (r.work - r.prefill) * level.load * v * v / gamma
        one, two = held[k]
        fits = crowd > 0 and r.prompt + r.output <= level.kv
        memory = (
            step * (one + z * two / (2 * sigma * (1 - level.load))) / (level.kv - z * sigma / 2) if fits else math.inf
        )
        found[k] = {
            "time": r.work / level.load,
            "running": r.steps * step / running if running > 0 else math.inf,
            "memory": memory,
            "tokens": r.new * step / (0.9 * level.room),
            "chunks": r.chunks * step / level.mixed if level.mixed < 1 else 0.0,
            "waiting": math.inf if most is not None and s > most * wait * (1 + SLACK) else s * s / (2 * wait) + turn,
        }
    return found


def _latencies(
    level: _Level, r: _Request, step: float, wait: float, most: float | None, slots: int, factor: float,
    request_s: float, quantiles: tuple[float | None, float | None, float | None],
) -> tuple[float, float, float]:  # fmt: skip
    """TTFT, time per output token and E2E of a bucket, each at its quantile."""

    def ttft(q: float | None) -> float:
        first, own, waits = _form(q)
        each = step if q is None or q <= 0.5 else level.beside(r, step)
        base = first * step + own * (r.chunks * each + r.prefill) + request_s
        return factor * (base + waits * _waits(q, most) * wait)

    def tpot(q: float | None) -> float:
        each = max(r.work / r.steps, level.typical)
        if q is None:
            return (level.fixed + each) / (1 - level.load)
        fixed_crowd = level.load * level.fixed / each
        mean = (fixed_crowd + level.load) / (1 - level.load)
        z, skew = NormalDist().inv_cdf(q), (1 + level.load) / math.sqrt(fixed_crowd + level.load)
        crowd = mean + math.sqrt(mean / (1 - level.load)) * (z + skew * (z * z - 1) / 6)
        return level.fixed + 1.15 * each * min(max(crowd, 1.0), slots)

    # The deadline's time to first token has the factor, its decodes have it in the costs already.
    at_ttft, at_tpot, at_e2e = quantiles
    return ttft(at_ttft), tpot(at_tpot), ttft(at_e2e) + (r.output - 1) * tpot(at_e2e)


def _limit(limit: LatencyLimit | None) -> tuple[float, float | None]:
    if limit is None:
        return math.inf, None
    return (limit.at_most, limit.percentile) if isinstance(limit, Percentile) else (limit, None)


def check_engines(
    found: Findings, problem: Fleet, case: FleetCase, demands: Mapping[str, Demand], models: Mapping[str, str],
    t: int, d: DeploymentLine, where: str, stretch: float = 1.0,
) -> None:  # fmt: skip
    """Every figure of a line of engines but its price; limits are `stretch` times as long, where simulation vouches."""
    e, loads = d.engine, d.loads or ""
    assert e is not None
    assert case.source is not None
    limits = problem.engine
    for what, stated, true in (
        ("max_num_seqs", e.max_num_seqs, limits.max_num_seqs), ("chunk_tokens", e.chunk_tokens, limits.chunk_tokens),
    ):  # fmt: skip
        found.require(f"{where}: {what}", stated == true, stated, true)
    names = {case.workload(demands[s.demand].workload).name for s in d.serves}
    found.require(
        f"{where}: one model per deployment", {models[n] for n in names} <= {models[loads]}, sorted(names), loads
    )
    mine = [x for x in demands.values() if models[x.workload] == models[loads]]
    requests = {}
    for x in mine:
        prompt = float(x.input_tokens or 1)
        new = max(prompt * (1 - case.workload(x.workload).prefix_hit_share), 1.0)
        requests[x.name] = _Request(prompt, new, float(x.output_tokens or 1), max(x.requests_per_s))
    machine = next(m for m in d.machines if m.role == "main")
    listed = next(m for m in case.machines if (m.machine, m.region) == (machine.machine, machine.region))
    w, gpus, gpu = case.workload(loads), d.tensor_parallel or 1, listed.gpu or ""
    weight = sum(r.weight for r in requests.values())
    prompts = sum(r.weight * r.prompt for r in requests.values()) / weight
    try:
        model = deployment(
            case.source, case.architectures[loads], llm_name(w.model or case.architectures[loads]), case.gpus[gpu], gpu,
            w.precision.weights, w.precision.kv, gpus,
        )  # fmt: skip
        costs, provenance = resolve(case.source, model, prompts)
        tpot, ttft = provenance.factors(problem.latency.safety)
    except InputError as error:
        found.add(f"{where}: engines", str(error), "steps of known latency")
        return
    source = provenance.source
    if provenance.transfer:
        source += f"; carried over to an unmeasured {', '.join(provenance.transfer)}"
    source = "; ".join((source, *provenance.notes))
    found.require(f"{where}: source of latencies", e.latency == source, e.latency, source)
    costs = costs.scaled(tpot)
    kv = kv_tokens(
        layer_work(case.architectures[loads], w.precision.weights, w.precision.kv),
        listed.vram_gib / listed.gpu_count * 2**30, gpus, utilization=problem.memory.vram_usable,
        runtime_bytes=problem.memory.runtime_gib * 2**30,
        chunk_tokens=limits.max_num_batched_tokens, max_requests=limits.max_num_seqs,
        request_tokens=min(r.prompt + r.output for r in requests.values()),
    )  # fmt: skip
    found.close(f"{where}: KV tokens", e.kv_tokens, kv, "tokens")
    level = _at_level(case, costs, kv, requests, e.step_s) if kv > 0 and e.wait_s > 0 else None
    if level is None:
        found.add(
            f"{where}: step and wait that an engine can be planned for", e.step_s, "a step above its fixed part", "s"
        )
        return
    batched = math.ceil(level.room - 1e-9) + limits.max_num_seqs
    near = abs(level.room - round(level.room)) < SLACK
    right = e.max_num_batched_tokens == batched or (near and abs(e.max_num_batched_tokens - batched) <= 1)
    found.require(f"{where}: max_num_batched_tokens", right, e.max_num_batched_tokens, batched)
    each = _capacities(level, e.step_s, e.wait_s, e.most_of_wait, limits.max_num_seqs)
    engines = (d.replicas_per_machine or 1) * d.load_level
    used = dict.fromkeys(each[mine[0].name], 0.0)
    for s in d.serves:
        demand = demands[s.demand]
        found.require(f"{where}: share of {s.demand}", 0 <= s.share <= 1 + SLACK, s.share, "0 … 1")
        rate = s.share * demand.requests_per_s[t]
        found.close(f"{where}: requests/s of {s.demand}", s.requests_per_s, rate, "1/s")
        takes = {k: v * rate / engines for k, v in each[s.demand].items()}
        found.close(f"{where}: load by {s.demand}", s.load, max(takes.values()), "deployments", scale=1.0)
        used = {k: used[k] + takes[k] for k in used}
        _share(found, case, level, s, demand, d, max(ttft / tpot, 1.0), costs.request_s, stretch, where)
    names_match = set(e.capacities) == set(used)
    found.require(f"{where}: capacities by name", names_match, sorted(e.capacities), sorted(used))
    for k, v in used.items():
        found.close(f"{where}: {k} in use", e.capacities.get(k, math.nan), v / d.count, scale=1.0)
        found.at_most(f"{where}: {k} ≤ what there is", v, d.count, "deployments")
    most = max(used.values())
    found.close(f"{where}: utilisation", d.utilisation, most * d.load_level / d.count, scale=1.0)
    found.close(f"{where}: headroom", d.headroom, 1 - most / d.count, scale=1.0)


def _share(
    found: Findings, case: FleetCase, level: _Level, s: ShareLine, demand: Demand, d: DeploymentLine, factor: float,
    request_s: float, stretch: float, where: str,
) -> None:  # fmt: skip
    """Latencies of one bucket on the line, and its limits."""
    e, w = d.engine, case.workload(demand.workload)
    assert e is not None
    named = (("TTFT", w.slo.ttft_s), ("TBT", w.slo.tbt_s), ("deadline", w.slo.deadline_s))
    limits = [(what, seconds * stretch, q) for what, (seconds, q) in ((what, _limit(x)) for what, x in named)]
    true = _latencies(
        level, level.requests[s.demand], e.step_s, e.wait_s, e.most_of_wait, e.max_num_seqs, factor, request_s,
        (limits[0][2], limits[1][2], limits[2][2]),
    )  # fmt: skip
    found.require(f"{where}: no other wait of {s.demand}", s.wait_s == 0, s.wait_s, 0)
    up_to, worst = 1.0 if w.soft is None else w.soft.up_to, 0.0
    for (what, seconds, _), stated, value in zip(limits, (s.ttft_s, s.tbt_s, s.e2e_s), true, strict=True):
        found.close(f"{where}: {what} of {s.demand}", math.nan if stated is None else stated, value, "s")
        if math.isfinite(seconds):
            found.at_most(f"{where}: {what} of {s.demand}", value, seconds * up_to, "s")
            worst = max(worst, value / seconds)
    missed = w.soft is not None and worst > 1
    if w.soft is None or not 0 < worst - 1 < SLACK:
        said = f"{where}: {s.demand} is said to miss its SLO exactly if it does"
        found.require(said, s.misses_slo == missed, s.misses_slo, missed)
