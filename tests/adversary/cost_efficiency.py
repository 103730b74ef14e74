"""Cost efficiency: every deployment of an instance tried one by one, and random instances."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from formulations.cost_efficiency.problem import CostEfficiency
from optmodels import catalog
from optmodels.catalog.types import Architecture, Gpu, Machine
from optmodels.latency.calibration import Calibration
from optmodels.latency.resolve import deployment, llm_name, read_source, resolve
from tests.adversary import continuous, lengths, static
from tests.adversary.continuous import Kind, Loops
from tests.adversary.draw import WEIGHTS
from tests.adversary.harness import FILES, Answer, Instance
from tests.adversary.static import Curve, Rng, Setting, Skeleton, between, maybe, pick, some

Array = npt.NDArray[np.float64]
LEFT_OUT = (
    static.SHAPES
    | static.BOUNDS
    | static.itl("RealTime")
    | {
        **{f"LengthsOfTrace.{key}": static.READ for key in static.READERS},
        **{f"PoolChoice.{key}": static.READ for key in ("columns", "prices")},
        "Speculation.model": "an instance has one, so that it says nothing more",
        "Gpu.driver_source": "for people",
        "CostEfficiency.title": "for people",
        "CostEfficiency.name": "for people",
        "PoolChoice.price_source": "for people",
        "Calibration.model": "provenance",
        **{f"{kind}.{key}": "for people" for kind in ("Gpu", "Machine", "Architecture") for key in ("note",)},
        **{
            f"{kind}.{key}": "for people"
            for kind in ("Gpu", "Architecture", "Calibration")
            for key in ("title", "source")
        },
        "Calibration.date": "for people",
        "Calibration.schema_version": "one value",
        "Calibration.schema_version=1": "one value",
        "Architecture.params": "for people",
        "Architecture.checkpoint": "for export",
        "OperatingPoint.source": "for people",
    }
)
RATE = 1e-10  # by which an engine's capacities may be exceeded
METHODS = ("enumerate", "config_tree", "greedy", "greedy_dp", "high_end", "kvo_disk", "infersave", "ao_cluster")


# The reference ------------------------------------------------------------------------------------------------------


def reference(data: Instance) -> Answer:
    """Largest cost efficiency, by trying every deployment in every market."""
    best = _optimum(data, static.PLAN_TOLERANCE)
    worst = _optimum(data, -static.SURE)
    return Answer(best, worst, "max", relative=1e-6, absolute=1e-12)


def _read(data: Instance) -> CostEfficiency:
    """The instance, with the rows of a table beside it."""
    plain = {k: v for k, v in data.items() if k != FILES}
    latency = plain.get("latency", {})
    if isinstance(name := latency.get("operating_points"), str):
        table = csv.DictReader(io.StringIO(data[FILES][name]))
        words = ("name", "family", "main", "ao")
        rows = [{k: v if k in words else json.loads(v) for k, v in r.items() if v} for r in table]
        plain["latency"] = latency | {"operating_points": rows}
    return CostEfficiency.model_validate(plain)


def _setting(p: CostEfficiency, data: Instance) -> Setting:
    calibration: Any = p.latency.calibration
    if isinstance(calibration, str):
        listed = calibration in catalog.calibrations()
        text = catalog.calibration_document(calibration) if listed else yaml.safe_load(data[FILES][calibration])
        calibration = Calibration.model_validate(text)
    architecture = catalog.llms()[p.model] if isinstance(p.model, str) else p.model
    gpus = dict(catalog.gpus()) | dict(p.gpus)
    return Setting(
        architecture, p.precision.weights, p.precision.kv, *_numbers(p), gpus, p.latency.variant,
        p.memory, () if calibration is None else calibration.coefficients, p.latency.safety,
        _costs_of(p, architecture, gpus),
    )  # fmt: skip


def _numbers(p: CostEfficiency) -> tuple[int, int]:
    """A static batch's lengths; of engines nobody reads them."""
    w: Any = p.workload
    return getattr(w, "input_tokens", 1), getattr(w, "output_tokens", 1)


def _kinds(data: Instance) -> list[Kind]:
    return lengths.classes(data["workload"], data.get(FILES, {}))


def _tokens(p: CostEfficiency, data: Instance) -> float:
    """Of the requests that are served at a time."""
    return p.workload.batch * lengths.mean_tokens(_kinds(data))


def _costs_of(p: CostEfficiency, architecture: Architecture, gpus: dict[str, Gpu]) -> Any:
    """Seconds of an engine's steps by GPU and tensor parallelism; None at the peaks of the hardware."""
    if p.latency.model in (None, "roofline"):
        return None
    source = read_source(p, p.latency.model, p.latency.engine)

    @cache
    def costs(gpu: str, tp: int) -> Any:
        weights, kv = p.precision.weights, p.precision.kv
        d = deployment(source, architecture, llm_name(p.model), gpus[gpu], gpu, weights, kv, tp)
        return resolve(source, d, _numbers(p)[0])

    return costs


def _optimum(data: Instance, slack: float) -> float | None:
    """Tokens per USD of the best deployment, limits loosened by the share `slack`; None: none keeps them."""
    p = _read(data)
    found = [
        3600 * (p.slo.tps if p.objective == "capped" else tokens / e2e) / usd
        for usd, e2e, tokens in _plans(p, data, slack)
        if p.budget_usd_per_hour is None or usd <= p.budget_usd_per_hour * (1 + max(slack, 1e-14))
    ]
    return max(found, default=None)


def _plans(p: CostEfficiency, data: Instance, slack: float) -> Iterator[tuple[float, float, float]]:
    """(USD/h, E2E in seconds, tokens of the batch) of every deployment at its best offload ratio within the SLO."""
    w, tokens, pool = p.workload, _tokens(p, data), static.machines(p.pool)
    if p.serving == "continuous":
        yield from _loops(p, data, slack)
        return
    first_s, between_s, whole_s = (_limit(p, key)[0] for key in ("ttft_s", "tpot_s", "deadline_s"))
    limits = (first_s, between_s, min(whole_s, tokens / p.slo.tps))
    if p.latency.operating_points is not None:
        for o in p.latency.operating_points:
            e2e = o.e2e_s if o.e2e_s is not None else tokens / o.tps
            seen = (o.ttft_s or 0.0, o.tpot_s or 0.0, e2e)
            if o.family in p.strategies.families and all(
                s <= x * (1 + slack) for s, x in zip(seen, limits, strict=True)
            ):
                for main, ao in itertools.product(pool, [m for m in pool if m.machine == o.ao] if o.ao else [None]):
                    if main.machine == o.main and (ao is None or slack > 0 or static.together(main, ao)):
                        for usd in _costs(p, Skeleton(o.family, main, ao, 1, 1, o.count)):
                            yield usd, e2e, tokens
        return
    setting = _setting(p, data)
    known: dict[Any, Any] = {}  # equal parts on equal machines run equally
    for k in static.skeletons(pool, p.strategies, w.batch, setting):
        costs = list(_costs(p, k))
        curve = Curve(setting, k, w.batch, slack)
        key = curve.same_as()
        if costs and key not in known:
            known[key] = static.best_run(curve, p.strategies.alpha, limits, slack)
        if costs and known[key] is not None:
            for usd in costs:
                yield usd, known[key][2], tokens


def _limit(p: CostEfficiency, key: str) -> tuple[float, float | None]:
    return continuous.limit(getattr(p.slo, key, None))


def _loops(p: CostEfficiency, data: Instance, slack: float) -> Iterator[tuple[float, float, float]]:
    """The same of engines that always have the batch's requests in flight, spread evenly, on every number of machines.

    What counts are tried depends on no limit; of those with as many requests in the fullest engine the first is enough.
    """
    w, setting, kinds, tokens = p.workload, _setting(p, data), _kinds(data), _tokens(p, data)
    counts = sorted(set(p.strategies.replicas or range(1, 1025)))
    (first_s, first_at), (each_s, each_at), (whole_s, whole_at) = (
        _limit(p, key) for key in ("ttft_s", "tpot_s", "deadline_s")
    )
    for main, tp, ranks, loops in _every_loop(p, setting, kinds):
        dp, tried = main.gpu_count // (tp * ranks), set()
        for count in counts:
            n = math.ceil(w.batch / (count * dp))
            if count * dp > w.batch or n in tried or n > ranks * loops.limits.max_num_seqs:
                continue
            tried.add(n)
            for taken, wait_s, of in loops.of(n):
                evenly = loops.evenly(n)
                e2e_s, late_s = of.e2e(None, wait_s), of.e2e(whole_at, wait_s)
                if evenly[2] > e2e_s:
                    e2e_s, late_s = evenly[2], max(late_s, evenly[2])
                sides = (
                    (taken, 1 + RATE), (max(of.ttft(first_at, wait_s), evenly[0]), first_s),
                    (max(of.tpot(each_at), evenly[1]), each_s), (late_s, whole_s), (e2e_s, tokens / p.slo.tps),
                )  # fmt: skip
                if all(side <= most * (1 + slack) for side, most in sides):
                    for usd in _costs(p, Skeleton("high_end", main, None, tp, dp, count)):
                        yield usd, e2e_s, tokens


def _parallel(p: CostEfficiency, setting: Setting) -> list[tuple[int, int]]:
    """GPUs of an attention rank and ranks of an engine: one where there are no experts to spread."""
    work = static.layer_work(setting.architecture, setting.weights, setting.kv)  # type: ignore[arg-type]
    ranks = set(p.strategies.attention_ranks) if work.expert_weight_bytes else {1}
    return list(itertools.product(sorted(set(p.strategies.tensor_parallel)), sorted(ranks)))


def _every_loop(p: CostEfficiency, setting: Setting, kinds: list[Kind]) -> Iterator[tuple[Machine, int, int, Loops]]:
    """(machine, GPUs of an attention rank, ranks, engine) of all that there may be."""
    for main in static.machines(p.pool) if "high_end" in p.strategies.families else ():
        for tp, ranks in _parallel(p, setting):
            for loops in _engine(p, setting, kinds, main, tp, ranks):
                yield main, tp, ranks, loops


def _engine(
    p: CostEfficiency, setting: Setting, kinds: list[Kind], main: Machine, tp: int, ranks: int
) -> Iterator[Loops]:
    """An engine of so many ranks on `tp` GPUs each of a machine, at each max_num_seqs; none: it cannot be there."""
    shape, prompt = setting.architecture, lengths.mean_prompt(kinds)
    if (
        main.gpu is None
        or main.gpu_count % (tp * ranks)
        or shape.heads % tp
        or setting.gpus[main.gpu].fp16_flops is None
    ):
        return
    source = read_source(p, p.latency.model or "roofline", p.latency.engine)
    d = deployment(source, shape, llm_name(p.model), setting.gpus[main.gpu], main.gpu, p.precision.weights,
                   p.precision.kv, tp, ranks)  # fmt: skip
    costs, where = resolve(source, d, prompt)
    costs = continuous.adapting(costs, p.engine.lora)
    s = next(iter(p.engine.speculation), None)
    more: dict[str, Any] = {}
    if s is not None:
        drafted = static.speculating(source, d, costs, s, prompt, p.precision.weights, p.precision.kv)
        if drafted is None:
            return
        costs, more = drafted
    tpot, ttft = where.factors(p.latency.safety)
    runtime = continuous.runtime_gib(p.memory.runtime_gib, p.latency.safety, shape)
    runtime += continuous.adapters_gib(p.engine.lora, shape, tp)
    usable = (p.memory.vram_usable * main.vram_gib / main.gpu_count - runtime) * static.GIB
    work = static.layer_work(shape, p.precision.weights, p.precision.kv)
    for seqs in continuous.choices(p.engine, costs.drafts):
        limits = continuous.beside(p.engine, seqs)
        kv = continuous.kv_tokens(
            work, shape, usable, tp, limits.max_num_batched_tokens, seqs, lengths.shortest(kinds), ranks=ranks, **more
        )
        if kv > 0:
            yield Loops(costs.scaled(tpot), max(ttft / tpot, 1.0), kinds, limits, kv, ranks)


def _costs(p: CostEfficiency, k: Skeleton) -> Iterator[float]:
    """What a deployment costs in every pair of markets, USD/h."""
    for market in p.markets.main:
        main = k.main.prices.get(market)
        if main is not None and k.ao is None:
            yield k.mains * main
        elif main is not None and k.ao is not None:
            for other in p.markets.ao:
                ao = k.ao.prices.get(other)
                if ao is not None:
                    yield k.mains * main + k.aos * ao


# Random instances ---------------------------------------------------------------------------------------------------


def generate(rng: Rng) -> Instance:
    """A random small instance, its limits near what some deployment of it reaches."""
    kind = pick(rng, ["plain"] * 6 + ["engines"] * 3 + ["measured", "catalogue", "scales", "edge"])
    batch = pick(rng, [1, 2, 3, 5, 7, 12, 16, 20, 33, 64]) if maybe(rng, 0.8) else int(rng.integers(1, 200))
    data: Instance = {
        "formulation": "cost_efficiency", "schema": 1, "serving": "static", "notes": kind,
        "workload": {
            "batch": batch, "input_tokens": int(between(rng, 1, 3000)), "output_tokens": int(between(rng, 1, 120)),
        },
        "slo": {"kind": "batch", "tps": 1e-6},
    }  # fmt: skip
    wide = 6.0 if kind == "scales" else 1.0
    usd = (1e-9, 1e9) if kind == "scales" else (0.1, 5.0)
    if maybe(rng, 0.3):
        data["precision"] = {"weights": pick(rng, WEIGHTS), "kv": pick(rng, ["fp16", "fp8"])}
    several = kind == "engines" and maybe(rng, 0.4)  # attention ranks
    if kind == "catalogue":
        data["workload"]["input_tokens"] = int(between(rng, 1, 1900))
        data["model"] = pick(rng, ["opt-6.7b", "llama-3.1-8b"])
        data["pool"] = {"catalog": pick(rng, ["llm-pilot-table-ii", "llm-pilot-table-vi", "llm-pilot-table-vii"])}
        listed = catalog.machines(data["pool"]["catalog"])
        data["pool"]["include"] = [m.machine for m in some(rng, listed)[:4]]
        if maybe(rng):
            data["pool"]["exclude"] = [pick(rng, ["*.48xlarge", "*8xlarge", "nothing"])]
        if maybe(rng):
            data["pool"]["region"] = listed[0].region
    else:
        data["model"] = static.architecture(rng)
        if several:
            data["model"]["moe"] = static.experts(rng, data["model"]["layers"])
            data["model"] |= {k: 2 * data["model"][k] for k in ("heads", "kv_heads")}
        data["gpus"] = static.gpus(rng, int(rng.integers(1, 4)), wide)
        names = [*data["gpus"], *(["l4"] if maybe(rng, 0.2) else [])]
        vram = _weights_gib(data)
        own = [static.machine(rng, f"m{i}", names, vram * wide, usd) for i in range(int(rng.integers(1, 4)))]
        if maybe(rng, 0.3):
            for m in own:
                m["region"], m["provider"] = pick(rng, ["here", "there"]), pick(rng, ["one", "one", "two"])
        data["pool"] = {"machines": own}
    if maybe(rng, 0.2):
        data["pool"]["assumed_discounts"] = {m: round(float(rng.random()), 3) for m in some(rng, static.MARKETS)}
    if maybe(rng):
        data["markets"] = {"main": some(rng, static.MARKETS), "ao": some(rng, static.MARKETS)}
    if several:
        for m in own:
            m["gpu_count"] = pick(rng, [2, 4, 8])
            if maybe(rng, 0.9):  # room for weights of every rank, and for caches
                m["vram_gib"] *= m["gpu_count"] * pick(rng, [1.0, 2.0, 8.0])
        if maybe(rng, 0.9):
            data["workload"]["output_tokens"] = max(data["workload"]["output_tokens"], 2)
    data["strategies"] = _strategies(rng, batch)
    if several:
        data["strategies"]["attention_ranks"] = list(pick(rng, [[2], [4, 2], [2, 1], [1, 4], [1, 2, 8]]))
        data["strategies"]["tensor_parallel"] = list(pick(rng, [[1], [1], [1, 2], [2], [2, 3]]))
    if kind == "measured":
        rows = _measured(rng, data, batch)
        data["latency"] = {"operating_points": rows}
        if maybe(rng, 0.3):
            head = list(dict.fromkeys(k for r in rows for k in r))
            lines = [head, *([str(r.get(k, "")) for k in head] for r in rows)]
            data[FILES] = {"points.csv": "".join(",".join(line) + "\n" for line in lines)}
            data["latency"] = {"operating_points": "points.csv"}
    elif maybe(rng) and kind != "engines":
        data["latency"] = _latency(rng, data)
    if maybe(rng):
        data["memory"] = static.memory(rng)
    if maybe(rng):
        data["objective"] = pick(rng, ["capped", "uncapped"])
    if maybe(rng, 0.2):
        data["alternatives"] = int(rng.integers(0, 5))
    if maybe(rng, 0.2) and kind != "catalogue":
        names = [m["machine"] for m in data["pool"]["machines"][:2]]
        data["baselines"] = {
            "high_end": pick(rng, names), "kvo_disk": pick(rng, names),
            "ao_cluster": {"main": pick(rng, names), "ao": pick(rng, names)},
            "infersave": {"base": pick(rng, names), "plus": pick(rng, names)},
        }  # fmt: skip
    other = rng.spawn(1)[0]  # a stream of its own leaves the instances of other seeds as they are
    if kind == "engines":
        _batching(rng, data)
        if maybe(other, 0.5):
            lengths.spread(other, data, data["workload"], "own")
    elif maybe(rng, 0.1):
        data["serving"] = "static"
    static.newer(rng.spawn(1)[0], data, [data["model"]], data["serving"] == "continuous")
    _limits(rng, data, kind)
    if "lengths" in data["workload"]:
        lengths.odd_percentiles(other, data["slo"], ("ttft_s", "tpot_s", "deadline_s"))
    return data


def _batching(rng: Rng, data: Instance) -> None:
    """Continuous batching."""
    data["serving"] = "continuous"
    if "high_end" not in data["strategies"].get("families", ["high_end"]):
        data["strategies"]["families"].append("high_end")
    data["latency"] = static.steps(rng)
    if maybe(rng, 0.7):
        data["engine"] = static.engine_limits(rng)
        if maybe(rng, 0.4):
            static.speculates(rng, data["engine"], [pick(rng, [static.architecture(rng), "qwen3-0.6b"])])


def _weights_gib(data: Instance) -> float:
    """About what the weights take."""
    p = CostEfficiency.model_validate({**data, "pool": {"machines": []}})
    work = static.layer_work(p.model, p.precision.weights, p.precision.kv)  # type: ignore[arg-type]
    return work.weight_bytes / static.GIB


def _counts(rng: Rng, least_count: int, batch: int) -> list[int]:
    """A list of counts, not always in order, some beyond the batch."""
    top = max(least_count + 1, min(2 * batch, 40))
    found = [int(x) for x in rng.integers(least_count, top + 1, size=int(rng.integers(1, 6)))]
    return found if maybe(rng, 0.3) else sorted(set(found))


def _strategies(rng: Rng, batch: int) -> Instance:
    found: Instance = {}
    if maybe(rng, 0.8):
        found["families"] = some(rng, static.FAMILIES)
    for key, low in (("replicas", 1), ("multi_pass", 2), ("parallel", 2), ("shared", 2)):
        if maybe(rng, 0.7):
            found[key] = _counts(rng, low, batch)
    if maybe(rng):
        found["tensor_parallel"] = some(rng, [1, 2, 3, 4])
    if maybe(rng, 0.3):
        found["alpha"] = static.alpha_range(rng)
    return found


def _latency(rng: Rng, data: Instance) -> Instance:
    found: Instance = {}
    if maybe(rng, 0.3):
        found["model"] = pick(rng, ["default", "default", "roofline"])
        if maybe(rng):
            found["engine"] = pick(rng, ["vllm", "sglang", "trtllm"])
        if found["model"] == "default":
            if maybe(rng):
                found["safety"] = pick(rng, [0.5, 0.8, 0.9, 0.95])
            return found
    if maybe(rng, 0.7):
        found["variant"] = pick(rng, ["paper", "roofline"])
    if maybe(rng):
        safe = maybe(rng)
        if safe:
            found["safety"] = pick(rng, [0.3, 0.5, 0.8, 0.9, 0.95])
        calibration = static.calibration(rng, list(data.get("gpus", {})), safe)
        how = int(rng.integers(3))
        if how == 0 and not safe:
            found["calibration"] = "llm-pilot-table-viii"
        elif how == 1:
            found["calibration"] = "own.yaml"
            data[FILES] = {"own.yaml": yaml.safe_dump(calibration)}
        else:
            found["calibration"] = calibration
    return found


def _measured(rng: Rng, data: Instance, batch: int) -> list[Instance]:
    rows = []
    names = [m["machine"] for m in data["pool"]["machines"]]
    for i in range(int(rng.integers(1, 6))):
        family = pick(rng, static.FAMILIES)
        row: Instance = {"name": f"p{i}", "family": family, "main": pick(rng, names)}
        if family in static.AO:
            row["ao"] = pick(rng, names)
        gpus = next(m.get("gpu_count", 1) for m in data["pool"]["machines"] if m["machine"] == row["main"])
        if maybe(rng):
            row["tp"] = pick(rng, [t for t in (1, 2, 4, 8) if t <= gpus])
        if maybe(rng, 0.3):
            row["replicas_per_machine"] = int(rng.integers(1, min(batch, gpus // row.get("tp", 1)) + 1))
        if family != "ao" and maybe(rng):
            row["count"] = int(rng.integers(1, batch // row.get("replicas_per_machine", 1) + 1))
        if family not in ("high_end", "multi_pass"):
            row["alpha"] = round(float(rng.random()), 3)
        row[pick(rng, ["tps", "e2e_s"])] = between(rng, 1, 100)
        row["ttft_s"], row["tpot_s"] = between(rng, 0.01, 1), between(rng, 0.01, 1)
        rows.append(row)
    return rows


def _limits(rng: Rng, data: Instance, kind: str) -> None:
    """SLO and budget near what deployments of the instance reach; exactly there on the edge."""
    p = _read(data)
    w, kinds, tokens = p.workload, _kinds(data), _tokens(p, data)
    seen: list[tuple[float, float, float, float]] = []
    quickest = math.inf  # of E2E
    if p.latency.operating_points is not None:
        seen = [(o.ttft_s or 1.0, o.tpot_s or 1.0, o.e2e_s or tokens / (o.tps or 1.0), between(rng, 0.1, 20))
                for o in p.latency.operating_points]  # type: ignore[union-attr]  # fmt: skip
    elif p.serving == "continuous":
        engines = [(main, tp, ranks, x) for main, tp, ranks, x in _every_loop(p, _setting(p, data), kinds)]
        listed = sorted(set(p.strategies.replicas or range(1, w.batch + 1)))
        for i in rng.permutation(len(engines)):
            main, tp, ranks, loops = engines[i]
            dp = main.gpu_count // (tp * ranks)
            counts = [c for c in listed if c * dp <= w.batch <= c * dp * ranks * loops.limits.max_num_seqs]
            counts = [int(c) for c in rng.permutation(counts)[:4]]
            able = [(c, *x) for c in counts for x in loops.of(math.ceil(w.batch / (c * dp))) if x[0] <= 1]
            if able:
                count, _, wait_s, of = pick(rng, able)
                usd = count * min(v for v in main.prices.model_dump().values() if v is not None)
                quickest = e2e_s = of.e2e(None, wait_s)
                ttft_s, each_s = of.ttft(None, wait_s), of.tpot(None)
                longer = [float(x) for x in rng.choice([1.0, 1.1, 2.0, 5.0], 2)]
                seen = [(ttft_s * longer[0], max(each_s, 1e-9) * longer[1], e2e_s * pick(rng, [1.0, 1.0, 2.0]), usd)]
                break
    else:
        setting = _setting(p, data)
        every = list(itertools.islice(static.skeletons(static.machines(p.pool), p.strategies, w.batch, setting), 2000))
        for i in rng.permutation(len(every))[:30]:
            curve, costs = Curve(setting, every[i], w.batch), list(_costs(p, every[i]))
            offloads = every[i].family not in ("high_end", "multi_pass")
            a = p.strategies.alpha
            lo, hi = (max(curve.lo, a.min), min(curve.hi, a.max)) if offloads else (curve.lo, 0.0)
            if lo <= hi and costs:
                at = lo if kind == "edge" else lo + (hi - lo) * float(rng.random()) ** 2
                ttft, tbt, e2e = (float(x[0]) for x in curve(np.array([at])))
                if math.isfinite(e2e):
                    seen.append((ttft, max(tbt, 1e-9), e2e, pick(rng, costs)))
    if not seen:
        seen = [(0.5, 0.05, 5.0, 2.0)]
    ttft, tbt, e2e, usd = seen[0]

    def near(value: float) -> float:
        exact = value if kind == "edge" else value * pick(rng, [0.8, 1.0, 1.001, 1.2, 2.0, 5.0, 100.0])
        return exact if kind == "edge" else float(f"{exact:.5g}")

    data["slo"] = {"kind": "batch", "tps": tokens / near(e2e)}
    if maybe(rng, 0.6):
        data["slo"] = {"kind": "real_time", "tps": tokens / near(e2e), "ttft_s": near(ttft), "tpot_s": near(tbt)}
        if maybe(rng, 0.1):
            data["slo"]["ttft_s"] = f"{data['slo']['ttft_s'] * 1000!r} ms"
        elif kind == "engines":
            for key in static.some(rng, ["ttft_s", "tpot_s"], 0):
                data["slo"][key] = {"at_most": data["slo"][key], "percentile": pick(rng, [0.5, 0.9, 0.93, 0.99])}
    if maybe(rng):
        data["budget_usd_per_hour"] = pick(rng, [usd, near(usd), near(usd), 0.0 if maybe(rng, 0.1) else usd])
    if data["slo"]["kind"] == "real_time" and maybe(rng, 0.4):
        data["slo"]["deadline_s"] = near(min(e2e, quickest * pick(rng, [1.0, 1.2, 2.0, math.inf])))
        if maybe(rng, 0.1):
            data["slo"]["deadline_s"] = f"{data['slo']['deadline_s'] * 1000!r} ms"
        elif kind == "engines" and maybe(rng, 0.6):
            late = pick(rng, [1.0, 1.5, 3.0])
            data["slo"]["deadline_s"] = {
                "at_most": late * data["slo"]["deadline_s"],
                "percentile": pick(rng, [0.5, 0.9, 0.93, 0.99]),
            }
        if maybe(rng, 0.7):  # the tighter one
            data["slo"]["tps"] /= 1000.0
            for key in static.some(rng, ["ttft_s", "tpot_s"], 0):
                data["slo"][key] = 100.0
