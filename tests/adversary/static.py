"""Serving in static batches, from the mathematics: what cost efficiency and fleet share, and random parts of instances.

Written from LLM-Pilot's equations LP(1)–(18) as docs/static-batches.md states them, with a plain loop over
decode steps. Of the product come the catalogue, the work of a layer (Table V) and the schemas, for defaults and units.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from optmodels import catalog
from optmodels.catalog.types import Architecture, Gpu, Machine
from optmodels.latency.engines.terms import ModelInstance
from optmodels.latency.resolve import Source, llm_name, resolve
from optmodels.latency.steps import Provenance, StepCosts
from optmodels.latency.work import KvPrecision, LayerWork, Precision, layer_work
from tests.adversary import continuous
from tests.adversary.roofline import held_bytes, peak_flops, replicas_of_a_head

Array = npt.NDArray[np.float64]
Rng = np.random.Generator
Json = dict[str, Any]
GIB = 2.0**30
GBIT = 1e9 / 8
MARKETS = ("on_demand", "spot", "reserved_1y", "reserved_3y")
AO = ("ao", "ao_parallel", "ao_shared")
FAMILIES = ("high_end", "multi_pass", "kvo_ram", "kvo_disk", *AO)
PLAN_TOLERANCE = 2e-6  # a plan may miss a limit by the tolerance of the check, 1e-6, and rounding
SURE = 1e-9  # what keeps every limit with this much to spare must be found


# The mathematics ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """What all deployments of a workload share; `p` is a validated static-batch section (memory, strategies, …)."""

    architecture: Architecture
    weights: str
    kv: str
    input_tokens: int
    output_tokens: int
    gpus: dict[str, Gpu]
    variant: str
    memory: Any
    coefficients: tuple[Any, ...] = ()
    safety: float | None = None
    costs: Callable[[str, int], tuple[StepCosts, Provenance]] | None = None  # by GPU and tensor parallelism


@dataclass(frozen=True)
class Skeleton:
    """A deployment but for its offload ratio and its markets."""

    family: str
    main: Machine
    ao: Machine | None
    tp: int
    dp: int
    count: int  # machines, k, K or N
    ranks: int = 1  # of data-parallel attention, each of `tp` GPUs

    @property
    def mains(self) -> int:
        """Main machines."""
        return 1 if self.family == "multi_pass" else self.count

    @property
    def aos(self) -> int:
        """AO machines."""
        return 0 if self.ao is None else self.count if self.family == "ao_parallel" else 1


def machines(pool: Any) -> list[Machine]:
    """A pool's machines: the catalogue's of a region and its own, by name pattern, with assumed prices."""
    found: list[Machine] = []
    if pool.catalog is not None:
        region = pool.region or catalog.pools()[pool.catalog].default_region
        found = [m for m in catalog.machines(pool.catalog) if region is None or m.region == region]
    found += pool.machines
    kept = []
    for m in found:
        if any(fnmatch.fnmatchcase(m.machine, x) for x in pool.exclude):
            continue
        if not any(fnmatch.fnmatchcase(m.machine, x) for x in pool.include):
            continue
        prices = {k: m.prices.get(k) for k in MARKETS}
        for market, off in pool.assumed_discounts.items():
            if prices[market] is None and prices["on_demand"] is not None and off < 1:
                prices[market] = prices["on_demand"] * (1 - off)
        kept.append(m.model_copy(update={"prices": m.prices.model_copy(update=prices)}))
    return kept


def together(a: Machine, b: Machine) -> bool:
    """Whether two machines stand side by side: in one region, and not in two clouds."""
    return a.region == b.region and (a.provider == b.provider or not a.provider or not b.provider)


def skeletons(
    pool: list[Machine], s: Any, batch: int, setting: Setting, ranks: tuple[int, ...] = (1,)
) -> Iterator[Skeleton]:
    """Every deployment of a strategy section `s` that can be modelled and gives no replica an empty part.

    `ranks`: numbers of attention ranks that a replica may have.
    """

    def modelled(m: Machine) -> bool:
        return m.gpu is not None and peak_flops(setting.gpus[m.gpu], setting.weights) is not None

    heads = setting.architecture.heads
    several = range(2, min(batch, 1024) + 1)  # where no list is given, any number
    replicas = range(1, min(batch, 1024) + 1) if s.replicas is None else s.replicas
    counts = {
        "multi_pass": several if s.multi_pass is None else s.multi_pass, "ao": (1,),
        "ao_parallel": several if s.parallel is None else s.parallel,
        "ao_shared": several if s.shared is None else s.shared,
    }  # fmt: skip
    for main in filter(modelled, pool):
        for tp, many in itertools.product(sorted(set(s.tensor_parallel)), ranks):
            if main.gpu_count % (tp * many) or heads % tp:
                continue
            dp = main.gpu_count // (tp * many)
            for family in sorted(set(s.families)):
                host = None if setting.gpus[main.gpu or ""].pcie_bytes_per_s is None else main.ram_gib
                missing = {"kvo_ram": host, "kvo_disk": main.disk_gbps}.get(family, 1.0) is None
                if missing or (family in AO and main.net_gbps is None):
                    continue
                partners: list[Machine | None] = [None]
                if family in AO:
                    partners = [m for m in pool if modelled(m) and m.net_gbps is not None and together(main, m)]
                for ao in partners:
                    for count in sorted(set(counts.get(family, replicas))):
                        if count * dp <= batch:
                            yield Skeleton(family, main, ao, tp, dp, count, many)


class Curve:
    """Latencies of a skeleton at a batch over the offload ratio, and the ratios that memory allows."""

    def __init__(self, setting: Setting, k: Skeleton, batch: int, slack: float = 0.0) -> None:
        self.setting, self.k = setting, k
        work = layer_work(setting.architecture, setting.weights, setting.kv)  # type: ignore[arg-type]
        self.work = work
        self.part = B = math.ceil(batch / (k.count * k.dp))
        total = setting.input_tokens + setting.output_tokens
        memory = setting.memory
        self.copies = copies = replicas_of_a_head(setting.architecture, k.tp)
        once = B * work.seen(total) * work.kv_bytes_per_token_all_layers
        kv, away = copies * once, once if k.ao is not None else copies * once
        resident = held_bytes(work, setting.architecture, k.tp, min(B * setting.input_tokens, memory.chunk_tokens), B)
        resident += k.tp * (memory.runtime_gib or 0.0) * GIB
        vram = k.tp * k.main.vram_gib / k.main.gpu_count * GIB * memory.vram_usable * (1 + slack)
        host = 0.0
        if k.family == "kvo_ram":
            host = (k.main.ram_gib or 0.0) * memory.ram_usable / k.dp
        elif k.family == "kvo_disk":
            host = memory.volume_gib / k.dp
        elif k.ao is not None:
            host = k.ao.vram_gib * memory.vram_usable / k.dp / (k.count if k.family == "ao_shared" else 1)
        self.lo = max(0.0, 1 - (vram - resident) / kv)
        self.hi = min(1.0, host * GIB * (1 + slack) / away)

    def same_as(self) -> tuple[Any, ...]:
        """What its latencies and memory depend on."""
        k = self.k
        sharing = k.count if k.family in ("multi_pass", "ao_shared") else 1
        where = [m and (m.machine, m.region) for m in (k.main, k.ao)]
        return k.family, *where, k.tp, self.part, sharing

    def _flops(self, gpu: Gpu) -> float:
        return peak_flops(gpu, self.setting.weights) or math.nan

    def __call__(self, alpha: Array) -> tuple[Array, Array, Array]:
        """TTFT, TBT, E2E in seconds at every α; infinite where a shared AO machine is saturated."""
        s, k = self.setting, self.k
        ttft, tbt = self._curve(alpha)
        if s.costs is None:
            ttft, tbt = self._real("prefill", ttft), self._real("decode", tbt) if s.output_tokens > 1 else tbt
        else:  # curves of the shape over α, levelled by what an engine's steps take without offloading
            if s.gpus[k.main.gpu or ""].fp16_flops is None:  # engines' steps are known by the peak of 16 bit
                never = np.full_like(alpha, math.inf)
                return never, never, never
            first, step = self._curve(np.zeros(1))
            costs, where = s.costs(k.main.gpu or "", k.tp)[:2]
            more_tpot, more_ttft = where.factors(s.safety)
            prompts, decode = self._engine(costs)
            ttft = more_ttft * (costs.request_s + prompts * ttft / first)
            tbt = more_tpot * decode * tbt / step if s.output_tokens > 1 else tbt
        steps = s.output_tokens - 1
        one = ttft + steps * tbt
        passes = k.count if k.family == "multi_pass" else 1
        return ttft + (passes - 1) * one if passes > 1 else ttft, tbt, passes * one

    def _engine(self, costs: StepCosts) -> tuple[float, float]:
        """Seconds of all steps with prompts, `memory.chunk_tokens` tokens each, and of the mean step that decodes."""
        s = self.setting
        queue = [[float(s.input_tokens), 0.0] for _ in range(self.part)]  # left, done
        prompts, none = 0.0, np.zeros(0)
        while queue:
            room, tokens, earlier = float(s.memory.chunk_tokens), [], []
            while queue and room:
                n = min(room, queue[0][0])
                tokens.append(n)
                earlier.append(queue[0][1])
                room -= n
                queue[0] = [queue[0][0] - n, queue[0][1] + n]
                if not queue[0][0]:
                    queue.pop(0)
            prompts += costs.step(np.array(tokens), np.array(earlier), none)
        decodes = [costs.step(none, none, np.full(self.part, s.input_tokens + t)) for t in range(1, s.output_tokens)]
        return prompts, float(np.mean(decodes)) if decodes else 0.0

    def _curve(self, alpha: Array) -> tuple[Array, Array]:
        """First token and time between tokens of one pass at the peaks of the hardware, seconds."""
        s, k, work, B = self.setting, self.k, self.work, float(self.part)
        roofline = s.variant == "roofline"
        gpu = s.gpus[k.main.gpu or ""]
        flops, bandwidth = k.tp * self._flops(gpu), k.tp * gpu.mem_bytes_per_s
        head = work.head_flops_per_token if roofline else 0.0
        a = np.asarray(alpha, dtype=float)[:, None]
        constant, slope = work.seen_line(s.input_tokens + 1, s.output_tokens - 1)
        seen = constant + slope * (s.input_tokens + np.arange(1, s.output_tokens)[None, :])

        def allreduce(tokens: float) -> float:
            return 4 * (k.tp - 1) / k.tp * tokens * work.allreduce_bytes_per_token / gpu.link_bytes_per_s

        prefill = float(work.prefill_flops(B, s.input_tokens)) / flops
        if roofline:
            read = float(work.weight_bytes_read(B * s.input_tokens)) / bandwidth
            prefill = max(prefill + B * head / flops, read)
        prefill += allreduce(B * s.input_tokens)

        linear = B * (work.linear_flops_per_token + head) / flops
        attention = B * work.attention_flops_per_pair * seen
        once = B * work.kv_bytes_per_token * seen
        kv = self.copies * once
        weights = (float(work.weight_bytes_read(B)) + 2 * B * work.state_bytes) / bandwidth
        sent = B * work.ao_bytes_per_token
        remote = np.zeros((len(a), seen.shape[1]))
        if k.ao is not None:
            other = s.gpus[k.ao.gpu or ""]
            net = min(k.main.net_gbps or 0.0, k.ao.net_gbps or 0.0) * GBIT / k.dp
            ao_flops = k.ao.gpu_count * self._flops(other) / k.dp
            ao_bandwidth = k.ao.gpu_count * other.mem_bytes_per_s / k.dp
            transfer = sent * s.input_tokens / net
            if roofline:
                own = max(linear, weights)
                local = (1 - a) * np.maximum(attention / flops, kv / bandwidth)
                remote = a * (np.maximum(attention / ao_flops, once / ao_bandwidth) + sent / net)
            else:
                own, local = linear, (1 - a) * attention / flops
                remote = a * attention / ao_flops + sent / net
            decode = own + np.maximum(local, remote)
        else:
            io = math.inf
            if k.family == "kvo_ram":
                io = k.tp * (gpu.pcie_bytes_per_s or math.nan)
            elif k.family == "kvo_disk":
                io = (k.main.disk_gbps or math.nan) * GBIT / k.dp
            transfer = self.copies * B * work.kv_bytes_per_token * work.seen(s.input_tokens) / io
            if roofline:
                decode = np.maximum(linear + attention / flops, weights + (1 - a) * kv / bandwidth)
                decode = np.maximum(decode, a * kv / io)
            else:
                decode = linear + attention / flops + np.maximum((1 - a) * kv / bandwidth, a * kv / io)
        ttft = work.layers * np.maximum(prefill, a[:, 0] * transfer)
        steps = s.output_tokens - 1
        tbt = np.zeros(len(a))
        if steps:
            mean = decode.mean(axis=1) + allreduce(B)
            if k.family == "ao_shared":
                service = remote.mean(axis=1)
                load = k.count * service / mean
                with np.errstate(divide="ignore", invalid="ignore"):
                    mean = np.where(load < 1, mean + service * load / (2 * (1 - load)), np.inf)
            tbt = work.layers * mean
        return ttft, tbt

    def _real(self, phase: str, seconds: Array) -> Array:
        """LP(18): the first coefficient that matches, at the safety level the least stored quantile that reaches it."""
        for c in self.setting.coefficients:
            if c.phase == phase and c.gpu in ("*", self.k.main.gpu) and c.family in ("*", self.k.family):
                margin = 1.0
                if self.setting.safety is not None:
                    kept = sorted((float(q), v) for q, v in c.residual_quantiles.items())
                    margin = next(v for q, v in kept if q >= self.setting.safety - 1e-9)
                return (c.slope * seconds + c.intercept_s) * margin
        return seconds


def least(value: Any, lo: float, hi: float, grid: int = 41) -> tuple[float, float]:
    """Least value of a quasi-convex function of arrays on [lo, hi] and where, by grids that close in on it."""
    for _ in range(12):
        at = np.linspace(lo, hi, grid)
        found = value(at)
        i = int(np.argmin(found))
        if hi - lo < 1e-13:
            break
        best = (float(found[i]), float(at[i]))
        lo, hi = float(at[max(i - 1, 0)]), float(at[min(i + 1, grid - 1)])
        if lo == hi:
            return best
    return float(found[i]), float(at[i])


def best_run(
    curve: Curve, alpha: Any, limits: tuple[float, float, float], slack: float
) -> tuple[float, float, float] | None:
    """(TTFT, TBT, E2E) at the offload ratio of least E2E within limits on all three; None: there is none.

    The limits are loosened by the share `slack` (tightened where it is negative).
    """
    ttft_s, tpot_s, e2e_s = (min(x, 1e300) * (1 + slack) for x in limits)
    if curve.k.family in ("high_end", "multi_pass"):
        lo, hi = curve.lo, 0.0
    else:
        lo, hi = max(curve.lo, alpha.min), min(curve.hi, alpha.max)
    if lo > hi:
        return None

    def excess(at: Array) -> Array:
        first, between, whole = curve(at)
        return np.maximum(np.maximum(first / ttft_s, between / tpot_s), whole / e2e_s)

    def inside(at: float) -> bool:
        return bool(excess(np.array([at]))[0] <= 1)

    best = lo
    if lo < hi:
        worst, where = least(excess, lo, hi)
        if not worst <= 1:
            return None
        ends = []
        for end in (lo, hi):  # the ratios within the limits are an interval around `where`
            good, bad = where, end
            if inside(end):
                good = end
            else:
                for _ in range(60):
                    middle = (good + bad) / 2
                    good, bad = (middle, bad) if inside(middle) else (good, middle)
            ends.append(good)
        _, best = least(lambda at: curve(at)[2], *ends)
    if not inside(best):
        return None
    first, between, whole = (float(x[0]) for x in curve(np.array([best])))
    return first, between, whole


def speculating(
    source: Source, d: ModelInstance, costs: StepCosts, s: Any, prompt: float, weights: Any, kv: Any
) -> tuple[StepCosts, Json] | None:  # fmt: skip
    """Costs of an engine's steps with drafts, and what `continuous.kv_tokens` has to know of these.

    None: the draft model cannot run beside the model, as its heads do not divide or its windows are others.
    """
    draft, more = None, drafts_beside(s, weights, kv)
    if s.draft is not None:
        small = more["draft"][1]
        if small.heads % (d.gpus // d.attention_ranks):
            return None
        draft, _ = resolve(source, replace(d, llm=small, llm_name=llm_name(s.draft)), prompt)
        if costs.window is not None and costs.window != draft.window:
            return None
    return continuous.speculating(costs, s, draft), more


def drafts_beside(s: Any, weights: Any, kv: Any) -> Json:
    """What `continuous.kv_tokens` has to know of a `speculation` section."""
    more: Json = {"drafts": s.drafts, "head": s.head or 0.0}
    if s.draft is not None:
        small = catalog.llms()[s.draft] if isinstance(s.draft, str) else s.draft
        more["draft"] = layer_work(small, weights, kv), small
    return more


def caches(shape: Architecture, s: Any, weights: Any, kv: Any) -> list[tuple[LayerWork, Architecture, float]]:
    """Who keeps a cache of a prompt: a model, and what guesses for it by a `speculation` section (None: nothing).

    Each with how many times as large a cache it has.
    """
    more = {} if s is None else drafts_beside(s, weights, kv)
    own = (layer_work(shape, weights, kv), shape, 1.0 + more.get("head", 0.0))
    return [own, *([(*more["draft"], 1.0)] if "draft" in more else [])]


# Random parts of instances ------------------------------------------------------------------------------------------


def pick(rng: Rng, options: Any) -> Any:
    """One of several."""
    options = list(options)
    return options[int(rng.integers(len(options)))]


def some(rng: Rng, options: Any, least_count: int = 1) -> list[Any]:
    """Several of them, in their order."""
    options = list(options)
    n = int(rng.integers(min(least_count, len(options)), len(options) + 1))
    chosen = sorted(rng.choice(len(options), size=n, replace=False))
    return [options[int(i)] for i in chosen]


def between(rng: Rng, low: float, high: float, digits: int = 4) -> float:
    """A number between two of them, even on a logarithmic scale."""
    return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.{digits}g}")


def nearly_one(rng: Rng) -> float:
    """One, but for a hair such as solvers have for tolerance, mostly less."""
    return 1.0 + pick(rng, [-1, -1, -1, 1]) * 10.0 ** float(rng.uniform(-7, -5.7))


def maybe(rng: Rng, chance: float = 0.5) -> bool:
    """True so often."""
    return bool(rng.random() < chance)


def architecture(rng: Rng) -> Json:
    """A small transformer, plain, with experts or with latent attention."""
    kv_heads = int(2 ** rng.integers(0, 4))
    heads = kv_heads * int(2 ** rng.integers(0, 3))
    head_dim = pick(rng, [32, 64, 80, 128])
    found: Json = {
        "layers": int(rng.integers(1, 41)), "hidden": int(rng.integers(4, 65)) * 64, "heads": heads,
        "kv_heads": kv_heads, "head_dim": head_dim, "ffn": int(rng.integers(4, 129)) * 64,
        "ffn_matrices": pick(rng, [2, 3]), "vocab": int(rng.integers(100, 130_000)), "max_positions": 10**6,
    }  # fmt: skip
    if maybe(rng, 0.3):
        found["tied_embeddings"] = maybe(rng)
        found["learned_positions"] = int(rng.integers(0, 4096))
    if maybe(rng, 0.3):
        found["moe"] = experts(rng, found["layers"])
    if maybe(rng, 0.2):
        found["mla"] = {
            "kv_lora_rank": int(rng.integers(1, 9)) * 64, "q_lora_rank": pick(rng, [0, 256, 768]),
            "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
        }  # fmt: skip
        if maybe(rng, 0.5):
            found["mla"] |= {"index_heads": 4, "index_head_dim": 32}
    elif maybe(rng, 0.1):
        found["attention_gate"] = maybe(rng)
    attention = found["layers"]
    if found["layers"] > 1 and maybe(rng, 0.2):
        found["linear"] = {
            "layers": int(rng.integers(1, found["layers"])), "key_heads": 4, "value_heads": pick(rng, [4, 8]),
            "key_head_dim": 64, "value_head_dim": pick(rng, [32, 64]),
        }  # fmt: skip
        attention -= found["linear"]["layers"]
    if maybe(rng, 0.2):
        found["window"] = {"tokens": int(between(rng, 8, 4000)), "layers": int(rng.integers(1, attention + 1))}
    other = rng.spawn(1)[0]  # a stream of its own leaves the instances of other seeds as they are
    if "index_heads" in found.get("mla", {}) and "window" not in found and maybe(other, 0.6):
        found["mla"]["index_topk"] = pick(other, [8, 100, 1024])
    if "moe" in found and maybe(rng, 0.3):
        found["moe"]["expert_precision"] = "mxfp4"
    return found


def experts(rng: Rng, layers: int) -> Json:
    """Routed experts, in some of the layers or none."""
    count = int(rng.integers(2, 17))
    return {
        "experts": count, "active": int(rng.integers(1, count + 1)), "expert_ffn": int(rng.integers(1, 33)) * 64,
        "shared_experts": int(rng.integers(0, 3)), "shared_ffn": int(rng.integers(0, 17)) * 64,
        "dense_layers": int(rng.integers(0, layers + 1)),
    }  # fmt: skip


def gpus(rng: Rng, count: int, scale: float = 1.0) -> Json:
    """Own GPUs; `scale` widens the range of their speeds."""

    def near(value: float) -> float:
        return between(rng, value / 4**scale, value * 4**scale)

    found = {}
    for i in range(count):
        found[f"gpu{i}"] = {
            "mem_bytes_per_s": near(1e12), "vram_gib": near(24), "link_bytes_per_s": near(1e11),
        }  # fmt: skip
        if maybe(rng, 0.95):
            found[f"gpu{i}"]["pcie_bytes_per_s"] = near(2e10)
        if maybe(rng, 0.95):
            found[f"gpu{i}"]["fp16_flops"] = near(1e14)
        if maybe(rng, 0.5):
            found[f"gpu{i}"]["fp8_flops"] = near(2e14)
        if maybe(rng, 0.3):
            found[f"gpu{i}"]["fp4_flops"] = near(4e14)
    return found


def machine(rng: Rng, name: str, gpu_names: list[str], vram_gib: float, usd: tuple[float, float]) -> Json:
    """A machine whose VRAM is near the given one."""
    found: Json = {
        "machine": name, "gpu": pick(rng, gpu_names), "gpu_count": pick(rng, [1, 1, 1, 2, 4]),
        "vram_gib": max(1e-6, vram_gib * between(rng, 0.7, 9.0)),
        "prices": {m: between(rng, *usd) for m in some(rng, MARKETS[:2] if maybe(rng, 0.7) else MARKETS)},
    }  # fmt: skip
    for key, value in (("ram_gib", 64.0), ("disk_gbps", 8.0), ("net_gbps", 50.0)):
        if maybe(rng, 0.85):
            found[key] = between(rng, value / 30, value * 10)
    if maybe(rng, 0.3):
        found["vcpu"] = int(rng.integers(1, 97))
    if maybe(rng, 0.2):
        found["disk_gib"] = between(rng, 100, 1000)
    return found


def calibration(rng: Rng, gpu_names: list[str], safe: bool) -> Json:
    """Coefficients of LP(18); with `safe` every one keeps quantiles and every case has one."""
    rows: list[Json] = [
        {"gpu": pick(rng, ["*", *gpu_names]), "family": pick(rng, ["*", *FAMILIES]),
         "phase": pick(rng, ["prefill", "decode"])}
        for _ in range(int(rng.integers(0, 4)))
    ]  # fmt: skip
    if safe or not rows:
        rows += [{"phase": "prefill"}, {"phase": "decode"}]
    for row in rows:
        row["slope"] = between(rng, 0.3, 3.0)
        if maybe(rng):
            row["intercept_s"] = between(rng, 1e-5, 1e-3)
        if safe or maybe(rng, 0.2):
            row["residual_quantiles"] = {"0.5": 1.02, "0.9": between(rng, 1.05, 1.4), "0.95": 1.5}
    return {"coefficients": rows}


def alpha_range(rng: Rng) -> Json:
    """An allowed range of the offload ratio; now and then a single one."""
    low = pick(rng, [0.0, 0.0, 0.1, 0.5, round(float(rng.random()), 3)])
    high = pick(rng, [1.0, 1.0, low, round(low + (1 - low) * float(rng.random()), 4)])
    return {"min": low, "max": high}


def steps(rng: Rng) -> Json:
    """What says how long engines' steps take."""
    found: Json = {"model": pick(rng, ["default", "default", "roofline"]) if maybe(rng, 0.9) else measured_steps(rng)}
    if maybe(rng):
        found["engine"] = pick(rng, ["vllm", "sglang", "trtllm"])
    if found["model"] != "roofline" and maybe(rng):
        found["safety"] = pick(rng, [0.5, 0.8, 0.9, 0.95])
    return found


def measured_steps(rng: Rng) -> Any:
    """A fitted model of the catalogue by name or as a document, and coefficients of engines that nobody ships."""
    own = dict(catalog.engine_model_document("default"))
    own["targets"] = {
        name: {**of, "coefficients": {k: v * between(rng, 0.3, 3.0) for k, v in of["coefficients"].items()}}
        for name, of in own["targets"].items()
    }
    name = pick(rng, [n for n in catalog.latency_models() if catalog.latency_model_document(n).get("gpu")])
    fitted = catalog.latency_model_document(name)
    return pick(rng, [name, [fitted], [own], [fitted, own]])


def engine_limits(rng: Rng) -> Json:
    """What engines that batch continuously may do in a step."""
    seqs = pick(rng, [1, 8, 16, 32, 64, 256])
    found: Json = {"max_num_seqs": seqs, "max_num_batched_tokens": seqs + int(between(rng, 16, 8192))}
    if maybe(rng):
        found["chunk_tokens"] = int(between(rng, 8, 4096))
    other = rng.spawn(1)[0]  # a stream of its own leaves the instances of other seeds as they are
    for key, values in WAITS.items():
        if maybe(other, 0.2):
            found[key] = pick(other, values)
    if maybe(other, 0.2):  # the plan decides
        del found["max_num_seqs"]
        found["max_num_batched_tokens"] += LEAST_CHOICE
        if maybe(other, 0.6):
            found["most_num_seqs"] = pick(other, [256, 300, 512, 600, 700])
    return found


RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # of LoRA adapters


def newer(rng: Rng, data: Json, models: list[Any], engines: bool) -> None:
    """LoRA adapters of engines, and what drivers leave of own GPUs."""
    for gpu in data.get("gpus", {}).values():
        if maybe(rng, 0.15):
            gpu |= {"driver_gib": gpu["vram_gib"] * between(rng, 0.85, 1.0)}
    if not engines or maybe(rng, 0.7):
        return
    shapes = [catalog.llms()[m].model_dump(exclude_none=True) if isinstance(m, str) else m for m in models]
    found: Json = {"max_loras": pick(rng, [0, 1, 2, 8])}
    if maybe(rng, 0.9):
        found["max_lora_rank"] = pick(rng, RANKS)
    if maybe(rng, 0.2) or any({"mla", "linear", "compressed"} & {*s} for s in shapes):
        found["gib_each"] = between(rng, 1e-3, 0.3)
    if maybe(rng):
        found["slower"] = pick(rng, [1.0, 1.15, 2.0])
    data["engine"] = data.get("engine", {}) | {"lora": found}


WAITS = {"longest_wait_s": [0.001, 0.03, 0.5, 100.0], "most_used": [0.3, 0.8, 0.99]}  # keys of the `engine` section
LEAST_CHOICE = 256  # of max_num_seqs, where the plan decides and may choose so many


def speculates(rng: Rng, limits: Json, draft_models: list[Any]) -> None:
    """Add speculation to an engine's limits, with room for its drafts."""
    k = pick(rng, [1, 2, 3, 5, 8])
    found: Json = {"drafts": k}
    if maybe(rng):
        found["acceptance"] = pick(rng, [0.0, 1.0, round(float(rng.random()), 3)])
    else:
        found["accepted"] = round(k * float(rng.random()), 3)
    how = pick(rng, ["draft", "head", "neither"])
    if how == "draft" and draft_models:
        found["draft"] = pick(rng, draft_models)
    elif how == "head":
        found["head"] = pick(rng, [0.02, 0.1, 1.0])
    limits["speculation"] = [found]
    limits["max_num_batched_tokens"] += k * limits.get("max_num_seqs", LEAST_CHOICE)


def stages(rng: Rng) -> list[str]:
    """What deployments may do of a request."""
    return list(
        pick(rng, [["both"], ["prefill", "decode"], ["both", "prefill", "decode"], ["decode", "both", "prefill"]])
    )


def linked(rng: Rng, stages: list[str], machines: list[Json]) -> Json:
    """A `deployment` section: such stages, and how caches go between machines of which some may say their network."""
    link: Json = {}
    known = any("net_gbps" in m for m in machines)
    if maybe(rng, 0.3) or not known:
        link["net_gbps"] = between(rng, 0.5, 400)
    if maybe(rng, 0.3):
        link["latency_s"] = pick(rng, [0.0, between(rng, 1e-4, 0.5)])
    if maybe(rng, 0.3):
        link["most_used"] = between(rng, 0.01, 0.99)
    if maybe(rng, 0.5):
        link["tensor_parallel"] = pick(rng, ["any", "equal"])
    found: Json = {"stages": stages} | ({"link": link} if link else {})
    if stages == ["both"] and maybe(rng):
        del found["stages"]
    return found


def memory(rng: Rng) -> Json:
    """Memory rules, some of them said."""
    found: Json = {}
    for key, low, high in (("vram_usable", 0.4, 1.0), ("ram_usable", 0.2, 1.0), ("volume_gib", 0.01, 1000.0)):
        if maybe(rng, 0.4):
            found[key] = min(between(rng, low, high), high)
    if maybe(rng, 0.4):
        found["chunk_tokens"] = int(between(rng, 16, 16384))
    if maybe(rng, 0.2):
        found["runtime_gib"] = pick(rng, [0.0, between(rng, 0.01, 2.0)])
    return found


READERS = ("columns", "where", "skip_bad", "skip_bad=False", "skip_bad=True")
READ = "how rows of other people's files are read, which tests of readers judge"
SPELLED = {  # given, and read as `weights` and `kv` of the model they are said of, whose choices these are
    f"Stored.{key}{value}": "read as the older spelling"
    for key, kind in (("weights", Precision), ("kv", KvPrecision)) for value in ("", *(f"={v}" for v in get_args(kind)))
}  # fmt: skip


def either_spelling(rng: Rng, data: Any) -> Any:
    """The instance with some of its precisions said as ``precision: {weights, kv}``."""
    if isinstance(data, list):
        return [either_spelling(rng, x) for x in data]
    if not isinstance(data, dict):
        return data
    made = {key: either_spelling(rng, x) for key, x in data.items()}
    if "model" not in made or not {"weights", "kv"} & set(made) or maybe(rng):
        return made
    said = {key: made.pop(key) for key in ("weights", "kv") if key in made}
    return made | {"precision": said}


def one_spelling(data: Any) -> Any:
    """The instance with `weights` and `kv` beside each other, as `either_spelling` found them."""
    if isinstance(data, list):
        return [one_spelling(x) for x in data]
    if not isinstance(data, dict):
        return data
    made = {key: one_spelling(x) for key, x in data.items()}
    stated = made.get("precision")  # engine models have adjustments by precision, too
    return made | made.pop("precision") if isinstance(stated, dict) and {*stated} <= {"weights", "kv"} else made


_OF_PUBLISHED = (
    "Architecture.attention_layers", "Architecture.compressed", "Architecture.ffn_layers", "Architecture.kept",
    "Architecture.mtp_layers", "Architecture.residual_streams", "Architecture.sparse",
    "Architecture.value_head_dim", "Architecture.value_projection", "Architecture.value_projection=False",
    "Architecture.value_projection=True", "Architecture.vision_params", "Compressed.index_head_dim",
    "Compressed.index_heads", "Compressed.index_topk", "Compressed.indexed_layers", "Compressed.indexed_ratio",
    "Compressed.layers", "Compressed.output_groups", "Compressed.output_rank", "Compressed.q_lora_rank",
    "Compressed.ratio", "Compressed.window", "Indexer.head_dim", "Indexer.heads", "Indexer.layers", "Indexer.topk",
    "Kept.layers", "Kept.weights", *(f"Kept.weights={v}" for v in get_args(Precision)),
    "Kept.part", "Kept.part=attention", "Kept.part=dense", "Kept.part=experts", "Kept.part=linear",
    "Kept.part=shared", "Kept.precision", "Kept.precision=fp16", "Kept.precision=fp4", "Kept.precision=fp8",
    "Kept.precision=fp8_block", "Kept.precision=int4", "Kept.precision=mxfp4", "Linear.conv_kernel", "Linear.kind",
    "Linear.kind=delta", "Linear.kind=kda", "Linear.kind=mamba2", "Linear.kind=mamba1", "Linear.kind=lightning",
    "Linear.kind=conv", "Linear.rank", "Linear.parallel", "Linear.parallel=False", "Linear.parallel=True",
    "Mla.index_layers", "MoE.latent", "MoE.layers",
    "Window.chunked", "Window.chunked=False", "Window.chunked=True", "Window.head_dim", "Window.heads",
    "Window.kv_heads", "Window.value_head_dim",
)  # fmt: skip
SHAPES = dict.fromkeys(
    _OF_PUBLISHED, "shapes of published configurations, which tests of the catalogue work out by hand"
)
_ELSEWHERE = "drawn for orchestration, whose theory of an engine is the same"
BOUNDS = {
    f"EngineLimits.{key}": _ELSEWHERE for key in ("least_load", "more_prompts", "most_load", "most_filled", "most_full")
}


def itl(section: str) -> dict[str, str]:
    """Limits on ITL of a formulation's SLO."""
    return {f"{section}.itl_s{form}": _ELSEWHERE for form in ("", "=Percentile", "=float")}
