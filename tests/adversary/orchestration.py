"""Orchestration, answered by one plain programme: servers one by one, admissions and starts as cumulative curves.

Written from formulations/orchestration/README.md and the descriptions in its schema; what these leave open (time bins
of a trace, the default latency threshold, which tokens memory holds) from its check, and where edges between groups
move from the groups that it makes. Every candidate is a variable, also those whose work others do; every unit of an
instance has its server; and the schedule is the exact form's, nothing pooled: within a class and a configuration first
come, first served is optimal.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from formulations.orchestration.problem import Continuous
from optmodels import catalog
from optmodels.catalog.types import Architecture, Gpu
from optmodels.latency.engines.document import EngineModel
from optmodels.latency.fit.document import LatencyModel
from optmodels.latency.resolve import Source, deployment, llm_name, resolve, source_of
from optmodels.latency.speculation import Speculation
from optmodels.latency.steps import Provenance, StepCosts
from optmodels.latency.strategies import BatchModel
from optmodels.latency.work import LayerWork, layer_work
from optmodels.traces import generated
from optmodels.traces.spec import Generated
from tests.adversary import continuous, prefixes, static
from tests.adversary.continuous import Engine, Network, under_way
from tests.adversary.draw import EXPERTS, HYBRID, OWN_MODEL, WEIGHTS, WINDOWED, Draw, bounded
from tests.adversary.harness import FILES, Answer, Instance
from tests.adversary.programme import Array, Programme, Solution
from tests.adversary.roofline import group, held_bytes, replicas_of_a_head

_WORDS = "words, which no number depends on"
_FITTED = "a fitted model is a file of its own, whose predictions tests/latency judges"
LEFT_OUT = static.SPELLED | static.SHAPES | {
    **{f"Architecture.{f}": _WORDS for f in ("title", "source", "note", "checkpoint")},
    **{f"Gpu.{f}": _WORDS for f in ("title", "source", "note", "driver_source")},
    **dict.fromkeys(
        ("Orchestration.certify", "Orchestration.certify=none", "Orchestration.certify=replay",
         "Orchestration.certification",
         *(f"AttainmentCertification.{f}" for f in ("confidence", "copies", "quantile", "waits", "rounds", "seed"))),
        "a seeded simulation says which levels are cut; the bound is that of the linear model, which is judged here",
    ),
    "Latency.fitted": _FITTED,
    **{f"TraceSpec.{key}": static.READ for key in static.READERS if key != "columns"},
}  # fmt: skip
# All but `literal`: it bounds whole requests, each with its own deadline, which is another model.
METHODS = (
    "exact", "greedy_dp", "greedy_dp_exchange", "maaso_star", "maaso_printed", "config_tree", "lp_rounding",
    "alpaserve", "selective_replication", "round_robin",
)  # fmt: skip
GIB = float(2**30)
GENEROUS = 2e-6  # slots are read so many times larger
EDGE = 1e-9  # of a deadline: service may be longer, read generously, or must be shorter, read strictly
FEW = 50  # requests of a trace that has no groups unless `bins` says otherwise
LEAST_WAIT = 0.02  # of a bin: who cannot wait so long does not wait


# The instance, read ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """One way to run one model: `dp` replicas of `pp` stages of `tp` GPUs; `unit` of its GPUs must share a server."""

    model: int
    gpu: str
    tp: int
    pp: int
    dp: int
    batch: int
    unit: int
    rate: float
    prefill: float
    engine: Engine | None = None  # each replica's, at the level of `batch`; None: slots
    stage: str = "both"
    ranks: int = 1  # of attention in each replica, of `tp` GPUs each

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp * self.ranks

    @property
    def running(self) -> float:
        """Requests that an instance has at a time."""
        return self.dp * (self.batch if self.engine is None else self.engine.running)


@dataclass(frozen=True)
class Route:
    """A way of a request: by the candidate that begins it and the one that ends it, mostly the same.

    `j`: their indices.
    """

    begins: Candidate
    ends: Candidate
    j: tuple[int, int]

    @property
    def legs(self) -> list[tuple[int, Candidate]]:
        """The candidates, each once, with their indices."""
        return list(dict(zip(self.j, (self.begins, self.ends), strict=True)).items())


@dataclass(frozen=True)
class Group:
    """Requests of one class: means, and prompt, output and deadline of each (of a rate: of all).

    `who`: their places in the trace; of a rate that of its class.
    """

    model: int
    weight: float
    arrivals: Array
    prompt: Array
    output: Array
    due: Array
    who: npt.NDArray[np.int64]

    @property
    def requests(self) -> float:
        return float(self.arrivals.sum())

    def able(self, r: Route, ttft_s: float | None, edge: float) -> tuple[float, float, Group]:
        """(share in time on idle candidates, mean wait in seconds which that share can afford, who counts there).

        Of what a start takes of an engine that serves whole requests, means are over those that can be in time.
        """
        on, off = r.begins.engine, r.ends.engine
        if on is None or off is None:
            first = r.begins.prefill * self.prompt
            slack = self.due - first - self.output / r.ends.rate
            slack = slack if ttft_s is None else np.minimum(slack, ttft_s - first)
            may = can = slack >= edge * self.due
        else:
            i, j = [on.who[n] for n in self.who.tolist()], [off.who[n] for n in self.who.tolist()]
            lasts = np.array(on.wholes)[i] + (np.array(off.wholes)[j] if off is not on else 0.0)
            slack = self.due - lasts
            fits = np.array(on.can)[i] & (np.array(off.can)[j] | ((self.output <= 1) & (off is not on)))
            may = fits & (slack >= edge * self.due)
            if ttft_s is not None:
                slack = np.minimum(slack, ttft_s - np.array(on.lates)[i])
            can = may & (slack >= edge * self.due)
        if not can.any():
            return 0.0, 0.0, self
        # On an engine that serves whole requests those start that are done by their deadline; they share the wait.
        starts = may if off is on else can
        wait = max(0.0, float(slack[can].sum() / starts.sum()))
        mine = self
        if on is not None and off is on:
            mine = replace(self, prompt=self.prompt[may], output=self.output[may], due=self.due[may], who=self.who[may])
        return float(can.mean()), wait, mine

    def on(self, e: Engine) -> list[int]:
        """Numbers of those that can be on an engine, all if none can."""
        return [n for n in self.who.tolist() if e.can[e.who[n]]] or self.who.tolist()

    def first(self, r: Route) -> float:
        """Seconds from a start to the first token; until it is sent, where it is decoded elsewhere."""
        e = r.begins.engine
        if e is None:
            return float((r.begins.prefill * self.prompt).mean())
        mine = [e.who[n] for n in self.on(e)]
        sent = 0.0 if r.begins is r.ends else float(np.array(e.rests)[mine].mean())
        return float(np.array(e.firsts)[mine].mean()) + sent

    def service(self, r: Route) -> float:
        """Seconds in a slot, or running."""
        e = r.ends.engine
        if e is None:
            return self.first(r) + float((self.output / r.ends.rate).mean())
        mine = [e.who[n] for n in self.on(e)]
        joins = 0.0 if r.begins is r.ends else float(np.array(e.firsts)[mine].mean())
        return self.first(r) + joins + float(np.array(e.rests)[mine].mean())

    def taken(self, r: Route, c: Candidate, bin_s: float, bins: int) -> list[Array]:
        """Share of each capacity of an instance of c that a start takes, in its bin and those after it."""
        if c.engine is None:
            return [under_way(self.service(r), bin_s, bins) / c.running]
        since = self.first(r) if c.stage == "decode" else 0.0
        return [row / c.dp for row in c.engine.taken(self.on(c.engine), bin_s, bins, since)]


@dataclass
class Case:
    """What an instance says; `free`: (GPU type, working GPUs) of each server."""

    data: Instance
    names: list[str]
    types: list[str]
    free: list[tuple[str, int]]
    candidates: list[Candidate]
    routes: list[Route]
    groups: list[Group]
    bins: int
    bin_s: float

    def most(self, c: Candidate) -> int:
        """Instances of c that there are GPUs for."""
        return sum(n for of, n in self.free if of == c.gpu) // c.gpus


@dataclass(frozen=True)
class Request:
    """One request of a trace."""

    at: float
    prompt: int
    output: int
    model: int
    factor: float
    blocks: tuple[int, ...] = ()


def read(data: Instance) -> Case:
    """Everything the instance refers to, looked up."""
    data = static.one_spelling(data)
    names = [m["model"] for m in data["models"]]
    types: list[str] = []
    vram: dict[str, float] = {}
    free: list[tuple[str, int]] = []
    failed = data["cluster"].get("failed_gpus", {})
    for s in data["cluster"]["servers"]:
        if s["gpu"] not in vram:
            types.append(s["gpu"])
            own = data.get("gpus", {}).get(s["gpu"])
            vram[s["gpu"]] = s.get("vram_gib") or (
                own.get("driver_gib", own["vram_gib"]) if own else catalog.gpus()[s["gpu"]].usable_gib
            )
        for i in range(s.get("count", 1)):
            server = _first(s) if not i else f"{s['server']}-{i + 1}"
            free.append((s["gpu"], s["gpus"] - len(set(failed.get(server, ())))))
    works = [layer_work(_shape(m), m.get("weights", "fp16"), m.get("kv", "fp16")) for m in data["models"]]
    trace = _trace(data, names)
    source = _source(data)
    shortest = [_shortest(data, m, trace) for m in range(len(names))]
    held = [_held(data, m, works[m], types, vram, free) for m in range(len(names))]
    lengths = [_lengths(data, m, trace, held[m]) for m in range(len(names))]
    rates = [_Rates(data, m, works[m], *lengths[m][:2], source) for m in range(len(names))]
    slices = [_t_slice(data, m, types, rates[m]) for m in range(len(names))]
    candidates: list[Candidate] = []
    if (limits := _limits(data)) is None:
        for m in range(len(names)):
            candidates += _candidates(data, m, works[m], lengths[m], types, vram, free, rates[m])
    else:
        for m in range(len(names)):
            stream = _stream(data, m, trace, limits.bursts)
            shared = _prefixes(data, m, trace, slices[m])
            candidates += _engines(
                data, m, works[m], limits, trace, types, vram, free, rates[m], shortest[m], stream, shared
            )
    if trace is None:
        groups, bins, bin_s = _classes(data, names, slices, held)
    else:
        groups, bins, bin_s = _requests(data, names, trace, slices, held, candidates, lengths)
    return Case(data, names, types, free, candidates, _routes(data, candidates), groups, bins, bin_s)


def _routes(data: Instance, candidates: list[Candidate]) -> list[Route]:
    """Every candidate that does whole requests, and every two of a model that do them together."""
    link = data.get("deployment", {}).get("link", {})
    of: dict[str, list[tuple[int, Candidate]]] = {}
    for j, c in enumerate(candidates):
        of.setdefault(c.stage, []).append((j, c))
    return [Route(c, c, (j, j)) for j, c in of.get("both", ())] + [
        Route(a, b, (i, j)) for i, a in of.get("prefill", ()) for j, b in of.get("decode", ())
        if a.model == b.model and (a.tp == b.tp or link.get("tensor_parallel") != "equal")
    ]  # fmt: skip


def _shape(model: dict[str, Any]) -> Architecture:
    shape = model.get("architecture", model["model"])
    return Architecture.model_validate(shape) if isinstance(shape, dict) else catalog.llms()[shape]


def _trace(data: Instance, names: list[str]) -> list[Request] | None:
    given = data["requests"]
    if "classes" in given:
        return None
    theta = data.get("slo", {}).get("factor")
    if "rows" in given:
        rows = given["rows"]
        n = len(rows["arrival_s"])
        columns = zip(
            rows["arrival_s"], rows.get("prompt_tokens", [1] * n), rows["output_tokens"],
            rows.get("model", [given.get("model", names[0])] * n), rows.get("slo_factor", [theta] * n),
            map(tuple, rows.get("prefix_blocks", [()] * n)), strict=True,
        )  # fmt: skip
        return [Request(a, p, o, names.index(m), f, b) for a, p, o, m, f, b in columns]
    spec = given["trace"]
    if "generated" in spec:
        return _drawn(spec, given.get("model", names[0]), names, theta)
    head, *lines = csv.reader(io.StringIO(data[FILES][spec["file"]]))
    skip, found = spec.get("skip_s", 0.0), []
    each = [dict(zip(head, line, strict=True)) for line in lines]
    if "columns" in spec:  # and counted from the first
        first = min(float(row["at"]) for row in each)
        each = [
            row | {"arrival_s": str((float(row["at"]) - first) / 1e3), "prompt_tokens": row["asked"],
                   "output_tokens": row["made"]}
            for row in each
        ]  # fmt: skip
    for row in each:
        at = float(row["arrival_s"]) - skip
        if 0 <= at < spec.get("first_s", math.inf):
            model = row.get("model", given.get("model", names[0]))
            found.append(Request(
                at / spec.get("rate_factor", 1.0), int(row["prompt_tokens"]), int(row["output_tokens"]),
                names.index(model), float(row["slo_factor"]) if "slo_factor" in row else theta,
            ))  # fmt: skip
    return found


def _drawn(spec: dict[str, Any], model: str, names: list[str], theta: float | None) -> list[Request]:
    """Of a generated trace: the product says what it draws, of which plans are made here."""
    drawn = generated.generate(Generated.model_validate(spec["generated"]))
    label, skip = drawn.labels.get("model"), spec.get("skip_s", 0.0)
    return [
        Request(
            (at - skip) / spec.get("rate_factor", 1.0), int(drawn.prompt_tokens[i]), int(drawn.output_tokens[i]),
            names.index(model if label is None else label.names[label.codes[i]]),
            float(drawn.slo_factor[i]) if drawn.slo_factor is not None else theta or 0.0,
        )
        for i, at in enumerate(drawn.arrival_s.tolist()) if 0 <= at - skip < spec.get("first_s", math.inf)
    ]  # fmt: skip


def _choices(data: Instance, m: int) -> dict[str, list[int]]:
    default = {"tp": [1, 2, 4, 8], "pp": [1], "dp": [1], "batch": [1, 2, 4, 8, 16, 32, 64], "attention_ranks": [1]}
    return default | data["models"][m].get("candidates", data.get("candidates", {}))


def _held(
    data: Instance, m: int, work: LayerWork, types: list[str], vram: dict[str, float], free: list[tuple[str, int]]
) -> float:
    """Tokens of one request beside the weights where there is most memory; ∞ where the weights fit nowhere."""
    choose = _choices(data, m)
    if _limits(data) is not None:  # what engines hold they say themselves: it groups no requests
        return math.inf
    most, shape = 0.0, _shape(data["models"][m])
    for g in types:
        working = sum(n for of, n in free if of == g)
        for tp in choose["tp"]:
            for pp in choose["pp"]:
                if tp * pp <= working:
                    room = tp * pp * _usable(data, vram[g]) * GIB - held_bytes(work, shape, tp, 0, 0)
                    most = max(most, _tokens_in(work, shape, tp, room))
    return most * (1 + EDGE) if most > 0 else math.inf


def _ranks(choose: dict[str, list[int]], work: LayerWork) -> list[int]:
    """Attention ranks of a model's engines: one where there are no experts to spread."""
    return sorted(set(choose["attention_ranks"])) if work.expert_weight_bytes else [1]


def _tokens_in(work: LayerWork, shape: Architecture, tp: int, room: float) -> float:
    """Tokens of a sequence that takes this room; layers with a window keep no more than that."""
    token = replicas_of_a_head(shape, tp) * work.kv_bytes_per_token_all_layers
    room -= shape.layers * work.state_bytes
    if room <= token * work.window_tokens:
        return room / token
    full = 1 - work.window_share
    return math.inf if not full else (room / token - work.window_share * work.window_tokens) / full


def _cache(
    data: Instance, m: int, work: LayerWork, vram_gib: float, tp: int, limits: Continuous, shortest: float,
    ranks: int, seqs: int,
) -> float:  # fmt: skip
    """Tokens of requests that the caches of all ranks of an engine hold."""
    shape = _shape(data["models"][m])
    served, s = data["models"][m], _speculation(data, m)
    beside = {} if s is None else static.drafts_beside(s, served.get("weights", "fp16"), served.get("kv", "fp16"))
    usable = _usable(data, vram_gib, continuous.runtime_gib(None, data["latency"].get("safety"), shape))
    usable = (usable - continuous.adapters_gib(limits.lora, shape, tp)) * GIB
    return continuous.kv_tokens(
        work, shape, usable, tp, limits.max_num_batched_tokens, seqs, shortest, ranks=ranks, **beside
    )


def _speculation(data: Instance, m: int) -> Speculation | None:
    """How engines of a model speculate."""
    given = data["models"][m].get("architecture", data["models"][m]["model"])
    limits, name = _limits(data), given if isinstance(given, str) else llm_name(_shape(data["models"][m]))
    return None if limits is None else next((s for s in limits.speculation if s.model in (None, name)), None)


def _usable(data: Instance, vram_gib: float, runtime_gib: float = 0.0) -> float:
    """GiB of a GPU that weights, cache and a pass may take, beside the runtime that the file or else we state."""
    memory = data.get("memory", {})
    return float(memory.get("vram_usable", 0.9) * vram_gib - memory.get("runtime_gib", runtime_gib))


def _shortest(data: Instance, m: int, trace: list[Request] | None) -> float:
    """Tokens of a model's shortest request, of a prompt and an output of one each at least."""
    every = _mixture(data, m, trace, math.inf)
    return min((max(1.0, p) + max(1.0, n) for _, p, n in every), default=2.0)


def _limits(data: Instance) -> Continuous | None:
    """Of engines that batch continuously."""
    if data.get("serving") != "continuous":
        return None
    stated = Continuous.model_validate(data.get("engine", {}))
    if stated.waits is not None:
        return stated
    # What runs does not say which wait it is planned for.
    return stated.model_copy(update={"waits": 1.0 if data.get("change", {}).get("running") else (1.0, 4.0)})


def _mixture(data: Instance, m: int, trace: list[Request] | None, held: float) -> list[tuple[float, float, float]]:
    """(weight, prompt, output) of a model's requests that can be held."""
    if trace is not None:
        every = [(1.0, float(r.prompt), float(r.output)) for r in trace if r.model == m]
    else:
        every = [
            (float(np.mean(c["requests_per_s"])), c.get("prompt_tokens", 0.0), c["output_tokens"])
            for c in data["requests"]["classes"] if c["model"] == data["models"][m]["model"]
        ]  # fmt: skip
    return [x for x in every if x[1] + x[2] <= held]


def _stream(data: Instance, m: int, trace: list[Request] | None, bursts: float | str) -> tuple[float, float]:
    """A model's requests per second, and variance over mean of how many come in half a second (1: Poisson)."""
    given = 1.0 if isinstance(bursts, str) else bursts
    if trace is None:
        return sum(x[0] for x in _mixture(data, m, None, math.inf)), given
    at = [r.at for r in trace if r.model == m]
    if not at or not max(at) > 0:
        return 0.0, given
    if bursts == "trace":
        counts = [0] * int(max(at) / 0.5)  # of whole windows
        for x in at:
            if int(x / 0.5) < len(counts):
                counts[int(x / 0.5)] += 1
        pairs = list(itertools.pairwise(counts))
        met = sum(a + b for a, b in pairs)
        given = max(1.0, sum((a - b) ** 2 for a, b in pairs) / met) if met else 1.0
    return len(at) / max(at), given


def _lengths(data: Instance, m: int, trace: list[Request] | None, held: float) -> tuple[float, float, float]:
    """Mean prompt, mean output, longest of both together, of the requests that can be held."""
    mine = _mixture(data, m, trace, held)
    count = sum(x[0] for x in mine)
    longest = max([1.0, *(x[1] + x[2] for x in mine)])
    if count <= 0:
        return 1.0, 1.0, longest
    return sum(x[0] * x[1] for x in mine) / count, sum(x[0] * x[2] for x in mine) / count, longest


def _source(data: Instance) -> Source | None:
    """What knows the seconds of engines' steps."""
    latency = data["latency"]
    if "model" not in latency:
        return None
    model = latency["model"]
    if not isinstance(model, str):
        model = tuple((EngineModel if "together" in m else LatencyModel).model_validate(m) for m in model)
    return source_of(model, latency.get("engine", "vllm"), Path, "latency.model")


@dataclass(frozen=True)
class _Rates:
    """Of one model: (tokens/s of one request among `load`, seconds of prefill for a token of the prompt), or None."""

    data: Instance
    m: int
    work: LayerWork
    prompt: float
    output: float
    source: Source | None

    def steps(
        self, name: str, tp: int, pp: int, drafts: bool = True, ranks: int = 1
    ) -> tuple[StepCosts, Provenance] | None:
        """Seconds of an engine's steps, central, where they are known; `drafts`: as it speculates."""
        served, shape = self.data["models"][self.m], _shape(self.data["models"][self.m])
        own = self.data.get("gpus", {}).get(name)
        gpu = Gpu.model_validate(own) if own else catalog.gpus()[name]
        if pp != 1 or shape.heads % tp or gpu.fp16_flops is None:
            return None
        given = served.get("architecture", served["model"])
        assert self.source is not None
        of = served.get("weights", "fp16"), served.get("kv", "fp16")
        d = deployment(self.source, shape, llm_name(given if isinstance(given, str) else shape), gpu, name, *of,
                       tp, ranks)  # fmt: skip
        costs, where = resolve(self.source, d, max(1.0, self.prompt))
        if (limits := _limits(self.data)) is not None:
            costs = continuous.adapting(costs, limits.lora)
        s = _speculation(self.data, self.m)
        if drafts and s is not None:
            drafted = static.speculating(self.source, d, costs, s, max(1.0, self.prompt), *of)
            if drafted is None:
                return None
            costs = drafted[0]
        return costs, where

    def safe(self, name: str, tp: int, pp: int, ranks: int = 1) -> tuple[StepCosts, float] | None:
        """The same as long as `latency.safety` says, and how many times longer yet first tokens take."""
        found = self.steps(name, tp, pp, ranks=ranks)
        if found is None:
            return None
        slower, later = found[1].factors(self.data["latency"].get("safety"))
        return found[0].scaled(slower), later / slower

    def step(self, costs: StepCosts, load: int) -> float:
        """A step of so many decoding requests, all half-way through their output."""
        experts = 0.0 if costs.experts is None else float(costs.experts.seconds(load))
        context = continuous.seen(costs, max(1.0, self.prompt) + self.output / 2)
        return costs.fixed_s + experts + load * (costs.decode_request_s + costs.context_s * context)

    def __call__(self, gpu: str, tp: int, pp: int, load: int) -> tuple[float, float] | None:
        name, latency = self.data["models"][self.m]["model"], self.data["latency"]
        if self.source is not None:
            safe = self.safe(gpu, tp, pp)
            if safe is None:
                return None
            prompt = max(1.0, self.prompt)
            first = safe[0].step(np.array([prompt]), np.zeros(1), np.zeros(0)) + safe[0].request_s
            return 1.0 / self.step(safe[0], load), safe[1] * first / prompt
        if "roofline" in latency:
            return self._roofline(gpu, tp, pp, load)
        for row in latency.get("decay", ()):
            if (row["model"], row.get("tp", 1), row.get("pp", 1)) == (name, tp, pp) and row.get("gpu", gpu) == gpu:
                crowd = row.get("epsilon", 0.0) + load
                return row["base_tokens_per_s"] * max(1 - row["delta"] * math.log(crowd), 0.01), _per_token(row)
        for row in _measured(self.data):
            here = (row["model"], row["gpu"], int(row.get("tp", 1)), int(row.get("pp", 1)), int(row["load"]))
            if here == (name, gpu, tp, pp, load):
                return float(row["tokens_per_s"]), _per_token(row)
        return None

    def _roofline(self, name: str, tp: int, pp: int, load: int) -> tuple[float, float] | None:
        """Stages take turns on pp micro-batches: a token takes what it takes at load/pp on the GPUs of one stage."""
        served, shape = self.data["models"][self.m], _shape(self.data["models"][self.m])
        own = self.data.get("gpus", {}).get(name)
        gpu = Gpu.model_validate(own) if own else catalog.gpus()[name]
        hardware = group(gpu, tp, served.get("weights", "fp16"), math.inf)
        if hardware is None or shape.heads % tp:
            return None
        prompt = max(1, round(self.prompt))
        model = BatchModel(self.work, prompt, max(2, round(self.output)), self.data["latency"]["roofline"])
        at = model.resident(hardware, np.array([float(math.ceil(load / pp))]), np.ones(1))
        alone = model.resident(hardware, np.ones(1), np.ones(1))
        return 1.0 / float(at.tbt(np.zeros(1))[0]), float(alone.ttft(np.zeros(1))[0]) / prompt


def _per_token(row: dict[str, Any]) -> float:
    given = row.get("prefill_tokens_per_s")
    return 0.0 if given in (None, "") else 1.0 / float(given)


def _measured(data: Instance) -> list[dict[str, Any]]:
    latency = data["latency"]
    if "measured" in latency:
        return list(csv.DictReader(io.StringIO(data[FILES][latency["measured"]])))
    return list(latency.get("measured_rows", ()))


def _t_slice(data: Instance, m: int, types: list[str], rate: _Rates) -> float:
    """Seconds per token of an idle one-GPU instance, on the first type that has a rate for it."""
    given = data["models"][m].get("t_slice_s")
    if given is not None:
        return float(given)
    if rate.source is not None:  # what was promised, whatever the safety and the drafts
        return rate.step(next(s for g in types if (s := rate.steps(g, 1, 1, False)) is not None)[0], 1)
    found = next(r for g in types if (r := rate(g, 1, 1, 1)) is not None)
    return 1.0 / found[0]


def _candidates(
    data: Instance, m: int, work: LayerWork, lengths: tuple[float, float, float], types: list[str],
    vram: dict[str, float], free: list[tuple[str, int]], rate: _Rates,
) -> list[Candidate]:  # fmt: skip
    """Every combination that has a rate at every load, fits the servers, and fits memory (MS d)."""
    choose, memory, cluster = _choices(data, m), data.get("memory", {}), data["cluster"]
    prompt, output, longest = lengths
    rule = memory.get("tokens_per_slot", "mean")
    tokens = prompt + output if rule == "mean" else longest if rule == "max" else rule
    found = []
    for g in types:
        of_type = [n for of, n in free if of == g]
        for tp in sorted(set(choose["tp"])):
            for pp in sorted(set(choose["pp"])):
                unit = tp * pp
                if cluster.get("pipelines_cross_servers"):
                    unit = tp
                if cluster.get("tensor_groups_cross_servers"):
                    unit = 1
                for batch in sorted(set(choose["batch"])):
                    rates = [rate(g, tp, pp, load) for load in range(1, batch + 1)]
                    shape = _shape(data["models"][m])
                    kept = held_bytes(work, shape, tp, 0, 0) + batch * shape.layers * work.state_bytes
                    kept += (
                        batch * replicas_of_a_head(shape, tp) * work.seen(tokens) * (work.kv_bytes_per_token_all_layers)
                    )
                    passing = held_bytes(work, shape, tp, min(prompt, 8192), 1) - held_bytes(work, shape, tp, 0, 0)
                    passing -= shape.layers * work.state_bytes
                    need = (kept / (tp * pp) + passing / tp) / GIB
                    full = rates[-1]
                    if full is None or None in rates or need > _usable(data, vram[g]):
                        continue
                    found += [
                        Candidate(m, g, tp, pp, dp, batch, unit, *full) for dp in sorted(set(choose["dp"]))
                        if unit <= max(of_type) and tp * pp * dp <= sum(of_type)
                    ]  # fmt: skip
    return found


def _engines(
    data: Instance, m: int, work: LayerWork, limits: Continuous, trace: list[Request] | None, types: list[str],
    vram: dict[str, float], free: list[tuple[str, int]], rate: _Rates, shortest: float, stream: tuple[float, float],
    shared: _Prefixes | None,
) -> list[Candidate]:  # fmt: skip
    """Every combination at every level of every batch: a number of sequences, and waits for prefill and a place."""
    choose, cluster, found = _choices(data, m), data["cluster"], []
    stages = data.get("deployment", {}).get("stages", ["both"])
    largest = {g: max(s["gpus"] for s in cluster["servers"] if s["gpu"] == g) for g in types}
    # Engines compute a token at least of whatever is asked.
    mixture = [(w, max(1.0, p), max(1.0, n), 0.0) for w, p, n in _mixture(data, m, trace, math.inf)]
    who = [i for i, r in enumerate(trace) if r.model == m] if trace is not None else [
        i for i, c in enumerate(data["requests"]["classes"]) if c["model"] == data["models"][m]["model"]
    ]  # fmt: skip
    if not mixture:
        mixture, who, shared = [(1.0, 1.0, 1.0, 0.0)], [-1], None
    elif not sum(w for w, *_ in mixture) > 0:
        mixture = [(1.0, *rest) for _, *rest in mixture]
    waits = limits.waits if isinstance(limits.waits, tuple) else (limits.waits,)
    most = data.get("slo", {}).get("itl_s", math.inf)
    itl = (most["at_most"], most["percentile"]) if isinstance(most, dict) else (most, None)
    for g in types:
        of_type = [n for of, n in free if of == g]
        for tp, ranks in itertools.product(sorted(set(choose["tp"])), _ranks(choose, work)):
            unit = 1 if cluster.get("tensor_groups_cross_servers") else tp * ranks
            steps = rate.safe(g, tp, 1, ranks)
            if 1 not in choose["pp"] or steps is None:
                continue
            kv_of = partial(_cache, data, m, work, vram[g], tp, limits, shortest, ranks)
            for stage, batch in itertools.product(stages, sorted(set(choose["batch"]))):
                if stage == "decode" and all(n <= 1 for _, _, n, _ in mixture):
                    continue
                network = None if stage == "both" else _network(data, m, largest[g], tp)
                hits = None if shared is None else partial(shared.hits, stream=stream[0], ranks=ranks, stage=stage)
                levels = continuous.engines(
                    steps[0], max(steps[1], 1.0), limits, kv_of, mixture, batch, waits, stream, stage, network, ranks,
                    who, hits, itl,
                )  # fmt: skip
                if data.get("change", {}).get("running"):  # what runs does not say its level
                    levels = levels[:1]
                found += [
                    Candidate(m, g, tp, 1, dp, batch, unit, at.x.step_s, 0.0, at, stage, ranks)
                    for dp in sorted(set(choose["dp"])) for at in levels
                    if unit <= max(of_type) and tp * ranks * dp <= sum(of_type)
                ]  # fmt: skip
    return found


@dataclass(frozen=True)
class _Prefixes:
    """What the prompts of one model share.

    Attributes:
        requests: of the model, in the order of their arrival.
        size: tokens of a block.
        ttft_s: that first tokens may take.
    """

    requests: list[prefixes.Request]
    size: int
    ttft_s: float

    def hits(self, at: Callable[..., Engine | None], stream: float, ranks: int, stage: str) -> list[float]:
        """Tokens of each request that the caches of engines at a level have.

        Args:
            at: the level with so many tokens cached, and what requests see there with others.
            stream: requests/s of the model.
            ranks: of attention.
            stage: what the engine does of a request.
        """
        plain = at([0.0] * len(self.requests))
        if plain is None:
            return [0.0] * len(self.requests)
        part = (min(1.0, plain.rate / stream) if stream > 0 else 1.0) / ranks
        of = prefixes.engine_of(self.requests, prefixes.engines(part))
        room = math.floor(plain.idle / self.size)
        quick = self._tokens(prefixes.found(self.requests, of, self.size, room))
        least = [r.able(self.size) + 1 for r in self.requests]
        for n in range(max(least) - 1, -1, -1):
            seen = at(quick, seen=[float(self.size * min(n, r.able(self.size))) for r in self.requests])
            assert seen is not None
            for i, r in enumerate(self.requests):
                in_time = seen.wholes[i] <= r.due_s and seen.lates[i] <= self.ttft_s and seen.can[i]
                if n <= r.able(self.size) and in_time:
                    least[i] = n
        return self._tokens(prefixes.found(self.requests, of, self.size, room, least))

    def _tokens(self, blocks: list[int]) -> list[float]:
        return [float(self.size * n) for n in blocks]


def _prefixes(data: Instance, m: int, trace: list[Request] | None, slice_s: float) -> _Prefixes | None:
    """What prompts share, where a plan counts with it and in blocks that engines have."""
    size = data["requests"].get("rows", {}).get("prefix_block_tokens")
    if trace is None or data.get("prefix_cache", {}).get("hits") == "none" or size is None or size % 16:
        return None
    mine = [r for r in trace if r.model == m]
    return _Prefixes(
        [prefixes.Request(max(1, r.prompt), max(1, r.output), r.factor * slice_s * r.output, r.blocks) for r in mine],
        size, data.get("slo", {}).get("ttft_s", math.inf),
    )  # fmt: skip


def _network(data: Instance, m: int, largest: int, tp: int) -> Network:
    """What an engine has of its server's network, of so many GPUs of which the largest server of its type has most."""
    served, link = data["models"][m], data["deployment"]["link"]
    cached = static.caches(
        _shape(served), _speculation(data, m), served.get("weights", "fp16"), served.get("kv", "fp16")
    )  # fmt: skip
    net = link["net_gbps"] * static.GBIT * min(1.0, tp / largest)
    return Network(net, link.get("most_used", 0.5), link.get("latency_s", 0.005), cached)


def _classes(
    data: Instance, names: list[str], slices: list[float], held: list[float]
) -> tuple[list[Group], int, float]:
    """Rates: a group each; bins of their lists, else `bins.seconds` or 24 of the duration."""
    given = data["requests"]
    T = max((len(c["requests_per_s"]) for c in given["classes"] if isinstance(c["requests_per_s"], list)), default=0)
    if T:
        bin_s = given["classes_bin_s"]
    else:
        duration = given["duration_s"]
        T = max(1, math.ceil(duration / data.get("bins", {}).get("seconds", duration / 24) - 1e-9))
        bin_s = duration / T
    groups = []
    for number, c in enumerate(given["classes"]):
        m, prompt, output = names.index(c["model"]), c.get("prompt_tokens", 0.0), c["output_tokens"]
        # Tokens that no candidate holds are served by none.
        due = c["slo_factor"] * output * slices[m] if prompt + output <= held[m] else -1.0
        groups.append(Group(
            m, data["models"][m].get("weight", 1.0) * c.get("weight", 1.0),
            np.broadcast_to(np.array(c["requests_per_s"], dtype=float) * bin_s, T), np.array([prompt], dtype=float),
            np.array([output], dtype=float), np.array([due]), np.array([number]),
        ))  # fmt: skip
    return groups, T, bin_s


def _requests(
    data: Instance, names: list[str], trace: list[Request], slices: list[float], held: list[float],
    candidates: list[Candidate], lengths: list[tuple[float, float, float]],
) -> tuple[list[Group], int, float]:  # fmt: skip
    """A trace, in groups of like requests; bins to the last arrival and longest wait."""
    dues = [r.factor * slices[r.model] * r.output for r in trace]
    long = [r.prompt + r.output > held[r.model] for r in trace]
    last = trace[-1].at
    asked = {r.model for r in trace}
    decoding = [c for c in candidates if c.stage != "prefill"]
    services = [lengths[c.model][1] / c.rate for c in decoding if c.model in asked]
    engines = _limits(data) is not None
    if engines:  # whatever candidates there are
        services = [lengths[m][1] * slices[m] for m in asked]
    typical = float(np.median(services)) if services else 1.0
    few = 48 if engines else 16
    bin_s = data.get("bins", {}).get("seconds") or max(typical, last / few, 1e-3)
    short = [due for due, x in zip(dues, long, strict=True) if not x]
    T = math.floor(last / bin_s) + 1 if last > 0 else max(1, math.ceil(max(short, default=0.0) / bin_s))
    wait = 0.0
    for r, due, x in zip(trace, dues, long, strict=True):
        best = max((c.rate for c in decoding if c.model == r.model), default=0.0)
        if best > 0 and not x:
            wait = max(wait, due - r.output / best)
    ttft = data.get("slo", {}).get("ttft_s")
    T += math.ceil((max(dues) if engines else wait if ttft is None else min(wait, ttft)) / bin_s)
    bins = data.get("bins", {})
    alone = len(trace) <= FEW and not {"lengths", "slo"} & bins.keys()
    groups = []
    for m in range(len(names)):
        mine = [i for i, r in enumerate(trace) if r.model == m]
        can = [i for i in mine if not long[i]]
        lengths_of = group_of([float(trace[i].output) for i in can], bins.get("lengths", 3))
        knees = [] if engines else [1.0 / c.rate for c in decoding if c.model == m]
        allowed_of = group_of([trace[i].factor * slices[m] for i in can], bins.get("slo", 4), knees)
        keys = {i: (1, 0, 0) for i in mine if long[i]}
        for i, of_length, of_allowed in zip(can, lengths_of, allowed_of, strict=True):
            keys[i] = (0, i, 0) if alone else (0, of_length, of_allowed)
        for key in sorted(set(keys.values())):
            mine = [i for i, own in keys.items() if own == key]
            arrivals = np.zeros(T)
            for i in mine:
                arrivals[min(int(trace[i].at / bin_s), T - 1)] += 1
            groups.append(Group(
                m, data["models"][m].get("weight", 1.0), arrivals,
                np.array([trace[i].prompt for i in mine], dtype=float),
                np.array([trace[i].output for i in mine], dtype=float),
                np.array([-1.0 if key[0] else dues[i] for i in mine]), np.array(mine),
            ))  # fmt: skip
    return groups, T, bin_s


def group_of(values: list[float], groups: int, knees: Sequence[float] = ()) -> list[int]:
    """The group of each value: how many of the edges between groups it reaches.

    Edges are the quantiles 1/g, 2/g, …, or the knee between the least value and the largest that is next to one,
    where that is within half of (largest − least)/g.
    """
    if not values:
        return []
    least, largest = min(values), max(values)
    inside = [x for x in knees if least < x < largest]
    edges = []
    for i in range(1, groups):
        edge = float(np.quantile(values, i / groups))
        far = [abs(x - edge) for x in inside]
        edges.append(inside[int(np.argmin(far))] if far and min(far) <= (largest - least) / groups / 2 else edge)
    return [sum(edge <= x for edge in edges) for x in values]


# The programme --------------------------------------------------------------------------------------------------------


def reference(data: Instance) -> Answer:
    """The best MS(6), or the first metric of a lexicographic order, less penalties."""
    case, programme = read(data), Programme()
    worst, best = _optimum(case, Programme(), True), _optimum(case, programme, False)
    # An objective is a difference of gains and losses, and no more exact than these are.
    size = 0.0 if best is None else float(np.abs(best.x * np.array(programme.cost)).sum())
    return Answer(
        None if best is None else -best.bound, None if worst is None else -worst.value, "max", relative=2e-6,
        absolute=2e-6 * size + 1e-12,
    )  # fmt: skip


def _optimum(case: Case, p: Programme, strict: bool) -> Solution | None:
    instances = _instances(case, p)
    score = _Score(case, p)
    work: list[dict[tuple[int, int], dict[int, float]]] = [{} for _ in case.candidates]  # by capacity and bin
    for q in case.groups:
        _schedule(case, p, q, work, score, strict)
    for j, c in enumerate(case.candidates):
        for row in work[j].values():
            # Capacities are counted in slots, or in requests that run.
            have = c.running * (1.0 if strict else 1 + GENEROUS)
            p.row({**row, instances[j]: -min(have, sum(a * p.high[x] for x, a in row.items()))}, high=0.0)
    score.finish(instances)
    return p.solve()


def _instances(case: Case, p: Programme) -> list[int]:
    """Numbers of instances; every unit of them in a server (MS a, b), within stock and limits (MS c)."""
    cluster = case.data["cluster"]
    units: list[dict[int, float]] = [{} for _ in case.free]  # of each server: variable → GPUs
    stock: dict[str, dict[int, float]] = {}
    found = []
    for c in case.candidates:
        n = p.variable(high=case.most(c), whole=True)
        placed: dict[int, float] = {n: -c.gpus / c.unit}
        for s, (of, free) in enumerate(case.free):
            if of == c.gpu and free >= c.unit:
                u = p.variable(high=free // c.unit, whole=True)
                placed[u] = 1.0
                units[s][u] = c.unit
        p.row(placed, 0.0, 0.0)
        stock.setdefault(c.gpu, {})[n] = c.gpus
        found.append(n)
    for s, (_, free) in enumerate(case.free):
        if units[s]:
            p.row(units[s], high=free)
    for g, most in cluster.get("stock", {}).items():
        if g in stock:
            p.row(stock[g], high=most)
    for m, model in enumerate(case.data["models"]):
        mine = {n: 1.0 for n, c in zip(found, case.candidates, strict=True) if c.model == m}
        p.row(mine, model.get("minimum_instances", 0), model.get("maximum_instances", math.inf))
    return found


def _schedule(
    case: Case,
    p: Programme,
    q: Group,
    work: list[dict[tuple[int, int], dict[int, float]]],
    score: _Score,
    strict: bool,
) -> None:
    """Admissions m and starts x of one class, and what they take of instances.

    They are counted in the requests of the class, or in as many as its candidates could ever serve, if that is less.
    """
    N, T = q.requests, case.bins
    if N <= 0:
        return
    ttft = case.data.get("slo", {}).get("ttft_s")
    able = []
    for route in (r for r in case.routes if r.begins.model == q.model):
        share, wait, who = q.able(route, ttft, EDGE if strict else -EDGE)
        if share > 0:
            able.append((route, share, 0.0 if strict and wait < LEAST_WAIT * case.bin_s else wait, who))
    if not able:
        return
    most = max(
        c.running * case.most(c) * (T + 2) * case.bin_s / who.service(r) for r, _, _, who in able for _, c in r.legs
    )
    unit = min(N, most)
    admitted: list[tuple[float, list[int]]] = []
    for route, share, wait, who in able:
        starts = [p.variable(high=N / unit) for _ in range(T)]
        if wait > 0:
            comes = [p.variable(high=N / unit) for _ in range(T)]
            whole, part = math.floor(wait / case.bin_s), wait / case.bin_s % 1.0
            for t in range(T):
                # Nobody starts before arriving, nobody later than `wait` after; arrivals are spread over their bin.
                p.row([*((x, 1.0) for x in starts[: t + 1]), *((m, -1.0) for m in comes[: t + 1])], high=0.0)
                due = [(m, -1.0) for m in comes[: max(0, t - whole)]]
                if t - whole >= 0 and part < 1 - 1e-9:
                    due.append((comes[t - whole], part - 1.0))
                p.row([*((x, 1.0) for x in starts[: t + 1]), *due], low=0.0)
            p.row([*((x, 1.0) for x in starts), *((m, -1.0) for m in comes)], 0.0, 0.0)
        else:
            comes = starts
        admitted.append((share, comes))
        lasts = T + math.ceil(who.service(route) / case.bin_s) + 2
        for j, c in route.legs:
            for r, taken in enumerate(who.taken(route, c, case.bin_s, lasts)):
                for t in range(T + 1):
                    for tau in range(min(t + 1, T)):
                        # Nothing starts after the last bin: the one behind it has the most of what each start takes.
                        share = taken[t - tau] if t < T or c.engine is None else taken[t - tau :].max()
                        if share > 1e-9 * taken.max():
                            work[j].setdefault((r, t), {})[starts[tau]] = share * unit * c.running
        score.add(q, who.first(route), unit, starts, comes, wait > 0)
    for t in range(T):
        for level in sorted({share for share, _ in admitted}):  # shares are nested
            mine = [(comes[t], 1.0) for share, comes in admitted if share <= level]
            p.row(mine, high=level * q.arrivals[t] / unit)
        p.row([(comes[t], 1.0) for _, comes in admitted], high=q.arrivals[t] / unit)


class _Score:
    """MS(6-8) less penalties, as costs of the programme (which minimises)."""

    def __init__(self, case: Case, p: Programme) -> None:
        self.case, self.p = case, p
        o = case.data.get("objective", {})
        alpha, beta = o.get("alpha", 0.8), o.get("beta", 0.2)
        if o.get("kind", "score") == "score":
            self.weights = {"attainment": alpha, "throughput": (1 - alpha) * beta, "latency": (1 - alpha) * (1 - beta)}
        else:
            first = o.get("order", ("attainment", "latency", "throughput"))[0]
            self.weights = {"attainment": 0.0, "throughput": 0.0, "latency": 0.0} | {first: 1.0}
        self.N = sum(q.requests for q in case.groups) or 1.0
        self.weighed = sum(q.requests * q.weight for q in case.groups) or 1.0
        asked = sum(q.requests * float(q.output.mean()) for q in case.groups)
        given = o.get("throughput_threshold_tokens_per_s")
        self.full = (asked if given is None else given * case.bins * case.bin_s) or 1.0
        self.limit = o.get("latency_threshold_s") or self._longest()
        most = min(1.0, asked / self.full) or 1.0  # T is counted in what it can be
        self.tokens: dict[int, float] = {p.variable(-self.weights["throughput"] * most, 0.0, 1.0 / most): -most}
        self.served: dict[int, dict[int, float]] = {}

    def _longest(self) -> float:
        """The longest first-token latency that any pair allows."""
        ttft = self.case.data.get("slo", {}).get("ttft_s")
        if _limits(self.case.data) is not None:  # that any request's own limits allow
            most = max(float(q.due.max()) for q in self.case.groups)
            return (most if ttft is None else min(most, ttft)) or 1.0
        found = [0.0]
        for q in self.case.groups:
            for r in (r for r in self.case.routes if r.begins.model == q.model):
                share, wait, who = q.able(r, ttft, 0.0)
                if share > 0:
                    found.append(wait + who.first(r))
        longest = max(found)
        return longest if longest > EDGE else 1.0  # what is left of a wait of 0 is rounding

    def add(self, q: Group, first_s: float, unit: float, starts: list[int], comes: list[int], waits: bool) -> None:
        """What requests of class q are worth that have their first token so long after they start.

        Variables count `unit` of them.
        """
        p, w = self.p, self.weights
        each = w["attainment"] * q.weight / self.weighed + w["latency"] * (1 - first_s / self.limit) / self.N
        held = w["latency"] * self.case.bin_s / (self.limit * self.N)
        for t, x in enumerate(starts):
            p.cost[x] -= each * unit
            self.tokens[x] = unit * float(q.output.mean()) / self.full
            self.served.setdefault(q.model, {})[x] = unit
            if waits:  # those waiting at the ends of bins t, t + 1, …: admitted until then less started until then
                p.cost[x] -= held * unit * (len(starts) - t)
                p.cost[comes[t]] += held * unit * (len(starts) - t)

    def finish(self, instances: list[int]) -> None:
        """Rows over all classes; changes."""
        p, data = self.p, self.case.data
        (total, most), *terms = self.tokens.items()  # T, counted in what one unit of a variable can make of it
        unit = max((a for _, a in terms), default=-most)
        p.cost[total], p.high[total] = -self.weights["throughput"] * unit, 1.0 / unit
        p.row({x: a / unit for x, a in terms} | {total: -1.0}, low=0.0)
        penalty = data.get("slo", {}).get("shortfall_penalty")
        for m, model in enumerate(data["models"]):
            least, count = model.get("attainment_at_least"), sum(q.requests for q in self.case.groups if q.model == m)
            if least is None or count <= 0:
                continue
            terms = {x: n / count for x, n in self.served.get(m, {}).items()}
            if penalty is not None:
                terms[p.variable(penalty)] = 1.0
            p.row(terms, low=least)
        change = data.get("change", {})
        running: dict[tuple[Any, ...], int] = {}
        for r in change.get("running", ()):
            key = (self.case.names.index(r["model"]), r.get("gpu", self.case.types[0]), r.get("tp", 1), r.get("pp", 1),
                   r.get("dp", 1), r["batch"], r.get("stage", "both"), r.get("attention_ranks", 1))  # fmt: skip
            running[key] = running.get(key, 0) + r.get("count", 1)
        if not running:
            return
        for n, c in zip(instances, self.case.candidates, strict=True):
            count = running.get((c.model, c.gpu, c.tp, c.pp, c.dp, c.batch, c.stage, c.ranks), 0)
            up, down = p.variable(change.get("score_per_start", 0.0)), p.variable(change.get("score_per_stop", 0.0))
            p.row({n: 1.0, up: -1.0}, high=count)
            p.row({n: 1.0, down: 1.0}, low=count)


# Instances ------------------------------------------------------------------------------------------------------------

KINDS = (
    "classes", "constant", "rows", "lengths", "quantiles", "files", "crowd", "unlike-servers", "odd-sizes", "memory",
    "change", "limits", "lexicographic", "roofline", "degenerate", "few-requests", "many-requests", "weights-apart",
    "edge", "everything", "engines", "engines", "engines", "steps", "stages", "stages", "prefixes", "prefixes",
)  # fmt: skip


def generate(rng: np.random.Generator) -> Instance:
    """An instance of one of `KINDS`, as JSON data."""
    d = Draw(rng)
    kind = d.one(KINDS)
    names = [f"m{m}" for m in range(d.whole(1, 3 if kind == "limits" else 2))]
    types = ["a", "b"] if kind in ("unlike-servers", "everything") or d.chance(0.25) else ["a"]
    own = kind in ("memory", "everything") or d.chance(0.9)
    data = _Making(d, kind, names, types if own else ["l4", "a10g"][: len(types)], own).instance()
    other = Draw(rng.spawn(1)[0])  # a stream of its own leaves the instances of other seeds as they are
    stages = data.get("deployment", {}).get("stages", ["both"])
    if data.get("serving") == "continuous" and stages == ["both"] and other.chance(0.5):
        _ranked(other, data)
    spelled = rng.spawn(1)[0]
    shapes = [m.get("architecture", m["model"]) for m in data["models"]]
    static.newer(rng.spawn(1)[0], data, shapes, data.get("serving") == "continuous")
    return static.either_spelling(spelled, data)


def _ranked(d: Draw, data: Instance) -> None:
    """Attention ranks among the choices, mostly of models with experts and on servers that have room for them."""
    lists = ([1, 2], [2], [1, 2, 4], [4, 1], [2, 3], [1, 8])
    data.setdefault("candidates", {"tp": d.some((1, 2)), "batch": d.some((1, 4, 12, 32))[:2]})
    drafted = "speculation" in data.get("engine", {})
    for model in data["models"]:
        if "candidates" in model:
            model["candidates"]["attention_ranks"] = list(d.one(lists))
        if d.chance(0.7) and not (drafted and isinstance(model["architecture"], str)):
            plain = {k: v for k, v in EXPERTS.items() if k != "mla"}
            model["architecture"] = plain if drafted else d.one((EXPERTS, HYBRID, plain))
    data["candidates"]["attention_ranks"] = list(d.one(lists))
    if "prefix_blocks" in data["requests"].get("rows", {}):
        data["prefix_cache"] = {"hits": "none"}
    for servers in data["cluster"]["servers"]:
        if d.chance(0.6):
            servers["gpus"] = max(servers["gpus"], d.one((4, 8)))
    for of in data.get("change", {}).get("running", ()):
        if d.chance(0.5) and "placement" not in of:
            of["attention_ranks"] = d.one((1, 2, 4))
    if "change" not in data and d.chance(0.2):
        of = {"model": data["models"][0]["model"], "batch": 4, "attention_ranks": d.one((1, 2, 4)), "tp": d.one((1, 2))}
        data["change"] = {"running": [of], "score_per_start": d.one((0.0, 0.01, 0.3)), "score_per_stop": 0.1}
        if isinstance(data.get("engine", {}).get("waits"), list):  # what runs does not say which it is planned for
            data["engine"]["waits"] = 0.5


@dataclass
class _Making:
    """One instance in the making.

    Attributes:
        names: of its models.
        types: of its GPUs; `own`: described in the file.
        files: what lies beside the instance.
    """

    d: Draw
    kind: str
    names: list[str]
    types: list[str]
    own: bool
    files: dict[str, str] = field(default_factory=dict)

    def on(self, *kinds: str) -> bool:
        """Whether it is of one of these kinds, or of everything."""
        return self.kind in (*kinds, "everything")

    @property
    def engines(self) -> bool:
        return self.kind in ("engines", "stages", "prefixes")

    @property
    def longest_prompt(self) -> int:
        return 3000 if self.kind == "stages" else 1000

    def instance(self) -> Instance:
        d = self.d
        data: Instance = {"formulation": "orchestration", "schema": 1, "notes": self.kind}
        if d.chance(0.1):
            data |= {"name": "adversary", "title": "a random instance"}
        if self.own:
            data["gpus"] = {g: self.gpu() for g in self.types}
        data["cluster"] = self.cluster()
        data["models"] = [self.model(n) for n in self.names]
        if d.chance(0.85) or self.kind == "stages":
            data["candidates"] = self.sizes()
        data["latency"] = self.latency(data)
        if self.engines:
            data["serving"] = "continuous"
            if d.chance(0.8):
                data["engine"] = self.engine(data["models"])
        elif d.chance(0.1):
            data["serving"] = "slots"
        if self.kind == "stages" or (self.kind == "prefixes" and d.chance(0.25)):
            data["deployment"] = static.linked(d.rng, static.stages(d.rng), [])
        elif d.chance(0.05):
            data["deployment"] = static.linked(d.rng, ["both"], [])
        listed = self.kind in ("rows", "lengths", "quantiles", "files", "crowd", "prefixes")
        listed |= self.kind in ("everything", "engines", "stages") and d.chance(0.5)
        data["requests"], data["slo"], data["bins"] = self.rows() if listed else self.rates()
        if self.on("limits") or d.chance(0.2):
            if d.chance(0.5):
                data["slo"]["ttft_s"] = d.number(0.5, 20)
            if d.chance(0.5) and data.get("serving") == "continuous":
                at = d.number(0.01, 0.3)
                data["slo"]["itl_s"] = d.one((at, {"at_most": at, "percentile": d.one((0.9, 0.95, 0.99))}))
            if d.chance(0.6):
                data["slo"]["shortfall_penalty"] = d.one((0.0, 1.0, d.magnitude(1e-3, 1e3)))
        if "prefix_blocks" in data["requests"].get("rows", {}):
            if d.chance(0.3):
                data["prefix_cache"] = {"hits": d.one(("trace", "none"))}
            if self.engines and self.own and d.chance(0.7):
                self.crowds(data)
        elif self.engines and d.chance(0.1):
            data["prefix_cache"] = {"hits": d.one(("trace", "none"))}
        data["objective"] = self.objective()
        if self.on("memory") or d.chance(0.15):
            data["memory"] = {
                "vram_usable": d.number(0.5, 1.0),
                "runtime_gib": d.number(0.0, 2.0),
                "tokens_per_slot": d.one(("mean", "max", 300)),
            }
        if self.on("change") or d.chance(0.2 if self.kind == "stages" else 0.1):
            data["change"] = self.change(data)
            if isinstance(data.get("engine", {}).get("waits"), list):  # what runs does not say which it is planned for
                data["engine"]["waits"] = 0.5
        if self.files:
            data[FILES] = self.files
        return {k: v for k, v in data.items() if v != {}}

    def gpu(self) -> dict[str, float]:
        gpu = {
            "fp16_flops": 1e14, "mem_bytes_per_s": 1e12, "vram_gib": self.d.one((16.0, 24.0, 80.0)),
            "pcie_bytes_per_s": 3e10, "link_bytes_per_s": 3e10,
        }  # fmt: skip
        gpu |= {"fp4_flops": 4e14} if self.d.chance(0.3) else {}
        return gpu | ({"fp8_flops": 2e14} if self.d.chance(0.3) else {})

    def cluster(self) -> dict[str, Any]:
        d = self.d
        servers: list[dict[str, Any]] = []
        for i, g in enumerate(self.types if d.chance(0.7) else [*self.types, self.types[0]]):
            size = d.one((3, 5, 6, 7)) if self.on("odd-sizes") else d.one((1, 2, 4, 4, 8))
            servers.append({"server": f"s{i}", "gpu": g, "gpus": size})
            if d.chance(0.4):
                servers[-1]["count"] = d.whole(1, 3)
        if d.chance(0.15):
            for s in servers:
                s["vram_gib"] = 24.0
        cluster: dict[str, Any] = {"servers": servers}
        if self.on("odd-sizes") or d.chance(0.15):
            s = d.one(servers)
            cluster["failed_gpus"] = {_first(s): sorted({d.whole(0, s["gpus"] - 1) for _ in range(2)})}
        if d.chance(0.2):
            cluster["stock"] = {d.one(self.types): d.whole(0, 8)}
        for across in ("tensor_groups_cross_servers", "pipelines_cross_servers"):
            if d.chance(0.2):
                cluster[across] = d.chance(0.7)
        return cluster

    def sizes(self) -> dict[str, list[int]]:
        d = self.d
        sizes = {"tp": d.some((1, 2, 3) if self.on("odd-sizes") else (1, 2, 4)), "batch": d.some((1, 2, 3, 4))}
        if self.engines:
            sizes = {"tp": d.some((1, 2)), "batch": d.some((1, 4, 12, 32))[:2]}
        if (
            self.kind in ("stages", "prefixes") and len(sizes["tp"]) == 2
        ):  # ways are as many as prefill times decode candidates
            sizes["batch"] = sizes["batch"][:1]
        if d.chance(0.1 if self.engines else 0.3):
            sizes["pp"] = d.some((1, 2))
        if d.chance(0.1 if self.kind == "stages" else 0.3):
            sizes["dp"] = d.some((1, 2, 3))
        return sizes

    def engine(self, models: list[dict[str, Any]]) -> dict[str, Any]:
        """What engines may do in a step, and what their levels keep free."""
        d = self.d
        seqs = d.one((16, 32, 64, 256))
        found: dict[str, Any] = {"max_num_seqs": seqs, "max_num_batched_tokens": seqs + d.whole(32, 4096)}
        if d.chance(0.4):
            found["chunk_tokens"] = d.whole(16, 2048)
        if d.chance(0.5):
            found["quantile"] = d.one((0.5, 0.8, 0.99))
        if d.chance(0.5):
            found["waits"] = d.magnitude(0.05, 20) if d.chance(0.6) else [0.5, d.magnitude(0.6, 20)]
        if d.chance(0.4):
            found["bursts"] = d.one(("trace", "none")) if d.chance(0.6) else d.magnitude(1, 50)
        if d.chance(0.2):
            found["longest_wait_s"] = d.magnitude(0.2, 30)
        if d.chance(0.2):
            found["most_used"] = d.number(0.3, 0.97)
        if d.chance(0.1):
            found["most_load"] = d.number(0.4, 0.97)
        if d.chance(0.1):
            found["most_filled"] = d.number(0.4, 0.97)
        if d.chance(0.1):
            found["most_full"] = d.magnitude(5e-4, 0.05)
        other = d.rng.spawn(1)[0]  # a stream of its own leaves the instances of other seeds as they are
        if other.random() < 0.1:
            found["least_load"] = float(other.uniform(1e-3, 0.1))
        if other.random() < 0.1:
            found["more_prompts"] = float(other.uniform(1.0, 8.0))
        if d.chance(0.3):  # a decision of the plan's
            del found["max_num_seqs"]
            found["most_num_seqs"] = d.one((256, 512, 700))
            found["max_num_batched_tokens"] += found["most_num_seqs"]
        if d.chance(0.35):
            windowed = any(bounded(m["architecture"]) for m in models)
            static.speculates(d.rng, found, [] if windowed else [OWN_MODEL, "qwen3-0.6b"])
            named = [m["architecture"] for m in models if isinstance(m["architecture"], str)]
            if named and d.chance(0.5):
                found["speculation"][0]["model"] = d.one(named)
        return found

    def model(self, name: str) -> dict[str, Any]:
        d = self.d
        model: dict[str, Any] = {
            "model": name,
            "architecture": d.one((OWN_MODEL, OWN_MODEL, EXPERTS, HYBRID, WINDOWED, "llama-3.2-3b")),
        }
        if self.on("memory") or d.chance(0.2):
            model |= {"weights": d.one(WEIGHTS), "kv": d.one(("fp16", "fp8", "int4"))}
            model["architecture"] = d.one((OWN_MODEL, "llama-3.1-8b", "qwen2.5-14b"))
        if d.chance(0.4):
            model["t_slice_s"] = d.number(0.02, 0.08)
        if d.chance(0.2):
            model["candidates"] = self.sizes()
        if self.on("limits") or d.chance(0.1):
            limits = {
                "minimum_instances": d.whole(0, 2), "maximum_instances": d.whole(0, 3),
                "attainment_at_least": d.one((0.0, 0.5, 0.9, 1.0)),
            }  # fmt: skip
            model |= {k: limits[k] for k in d.some(tuple(limits))}
        if self.on("weights-apart") or d.chance(0.15):
            model["weight"] = d.one((0.0, 1.0, 1e9, d.magnitude(1e-9, 1e9)))
        return model

    def latency(self, data: Instance) -> dict[str, Any]:
        """A rate for every parallelism, with a gap here and there; tp and pp 1 always, for the time per token."""
        d = self.d
        if self.engines or self.kind == "steps":
            steps: dict[str, Any] = {"model": d.one(("default", "default", "roofline"))}
            if d.chance(0.1):
                steps["model"] = static.measured_steps(d.rng)
            if d.chance(0.5):
                steps["engine"] = d.one(("vllm", "sglang", "trtllm"))
            if steps["model"] != "roofline" and d.chance(0.5):
                steps["safety"] = d.one((0.5, 0.8, 0.9, 0.95))
            return steps
        if self.on("roofline") or d.chance(0.05):
            return {"roofline": d.one(("roofline", "roofline", "paper"))}
        rows = []
        measured = self.kind == "files" or d.chance(0.25)
        even = self.kind == "degenerate"
        for n, name in enumerate(self.names):
            choose = _choices(data, n)
            prefill = {"prefill_tokens_per_s": d.number(500, 5000)} if d.chance(0.5) else {}
            for where in [{"gpu": g} for g in self.types] if measured or d.chance(0.5) else [{}]:
                base = 40.0 if even else d.number(20, 60)
                for tp in sorted({1, *choose["tp"]}):
                    for pp in sorted({1, *choose["pp"]}):
                        if (tp, pp) != (1, 1) and d.chance(0.1):
                            continue
                        speed = base if even else float(f"{base * tp ** d.number(0.3, 0.9):.4g}")
                        delta = d.one((0.0, d.number(0.0, 0.4)))
                        row: dict[str, Any] = {"model": name, **where, "tp": tp, "pp": pp, **prefill}
                        if measured:
                            rows += [
                                row | {"load": b, "tokens_per_s": float(f"{speed / (1 + delta * (b - 1)):.4g}")}
                                for b in range(1, max(choose["batch"]) + 1)
                            ]  # fmt: skip
                        else:
                            rows.append(row | {"base_tokens_per_s": speed, "delta": delta})
                            if d.chance(0.3):
                                rows[-1]["epsilon"] = d.number(0.0, 0.5)
        if not measured:
            return {"decay": rows}
        if self.kind != "files" and d.chance(0.6):
            return {"measured_rows": rows}
        head = ("model", "gpu", "tp", "pp", "load", "tokens_per_s", "prefill_tokens_per_s")
        self.files["rates.csv"] = _csv([head, *([r.get(h, "") for h in head] for r in rows)])
        return {"measured": "rates.csv"}

    def rates(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """(requests, slo, bins) of classes."""
        d, T = self.d, self.d.whole(1, 5)
        scale = {"few-requests": 1e-9, "many-requests": 1e9, "engines": 30.0, "stages": 30.0}.get(self.kind, 1.0)
        even, listed = self.kind == "degenerate", self.kind != "constant"

        def rate() -> Any:
            some = [0.2 * scale if even else d.one((0.0, 1.0, 1.0, 1.0)) * d.number(0.0, 2.0) * scale for _ in range(T)]
            return some if listed and not d.chance(0.1) else some[0]

        classes = []
        for _ in range(d.whole(1, 3)):
            c: dict[str, Any] = {
                "model": d.one(self.names), "output_tokens": 100 if even else d.number(10, 400),
                "slo_factor": d.one((1.0, 2.0)) if even else d.number(0.2, 3.0), "requests_per_s": rate(),
            }  # fmt: skip
            if self.kind == "edge":
                c["slo_factor"] = d.one((0.5, 1.0, 1.0, 2.0))  # as fast as one GPU is, and no faster
            elif self.engines:
                c["slo_factor"] = d.number(0.8, 8.0)
            if d.chance(0.5):
                c["prompt_tokens"] = d.number(0, self.longest_prompt)
            if self.on("weights-apart") or d.chance(0.3):
                c["weight"] = d.one((0.0, 2.0, 1e9, d.magnitude(1e-9, 1e9)) if self.on("weights-apart") else (2.0, 0.5))
            classes.append(c)
        requests: dict[str, Any] = {"classes": classes}
        if any(isinstance(c["requests_per_s"], list) for c in classes):
            bin_s = d.number(0.2, 5) if self.engines else d.one((4.0, d.number(1, 30)))
            return requests | {"classes_bin_s": bin_s}, {}, {}
        requests["duration_s"] = d.number(5, 60)
        return requests, {}, {"seconds": requests["duration_s"] / d.number(1, 6)} if d.chance(0.8) else {}

    def rows(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """(requests, slo, bins) of requests one by one.

        Classes are one a model (with factors of their own), one a length (with one factor), one a request, or
        groups by quantiles.
        """
        d = self.d
        n = 70 if self.kind == "crowd" else d.whole(1, 12)
        span = d.number(1, 40)
        engines = self.engines
        if engines:
            n, span = d.whole(1, d.one((5, 60))), d.number(0.2, 4)
        if self.kind == "prefixes":
            n, span = d.whole(4, 25), d.magnitude(0.05, 4)
        if quantiles := self.kind == "quantiles" or (self.kind != "crowd" and d.chance(0.15)):
            n = d.whole(2, 25) if engines else d.one((d.whole(2, 12), d.whole(13, 50), d.whole(51, 70)))
        by_length = self.kind in ("lengths", "everything") or d.chance(0.3)
        rows: dict[str, Any] = {"arrival_s": sorted(d.number(0, span) for _ in range(n))}
        rows["output_tokens"] = [d.one((50, 120, 300)) if by_length else d.whole(10, 400) for _ in range(n)]
        if d.chance(0.6) or self.kind == "files":
            rows["prompt_tokens"] = [d.whole(1, self.longest_prompt) for _ in range(n)]
        requests: dict[str, Any] = {}
        if d.chance(0.5):
            rows["model"] = [d.one(self.names) for _ in range(n)]
        elif len(self.names) > 1 or d.chance(0.5):
            requests["model"] = d.one(self.names)
        # Many bins of a default width only where nobody waits for long.
        narrow = engines and n <= 5 and d.chance(0.15)
        low, high = (0.3, 3.0) if not engines else (0.8, 1.3) if narrow else (0.8, 8.0)
        slo: dict[str, Any] = {"factor": d.number(low, high)}
        # So many groups that every length has its own; of one allowance, whose groups make no difference then.
        bins: dict[str, Any] = {"lengths": 200, "slo": d.whole(1, 4)} if by_length else {"lengths": 1, "slo": 1}
        alone = not quantiles and n <= 12 and d.chance(0.2)
        if alone:
            bins = {}
        if quantiles:
            few = self.kind in ("stages", "prefixes")  # as ways are many
            bins = {key: d.whole(1, 2 if few else 5) for key in ("lengths", "slo") if few or d.chance(0.8)}
        if (alone or quantiles or not by_length) and d.chance(0.7):
            crowd = [3.0] + [0.01] * (n - 1)  # one of them can be in time
            most = 2.5 if engines and d.chance(0.6) else high  # here and there some of a class cannot be in time
            rows["slo_factor"] = crowd if self.kind == "crowd" else [d.number(low, most) for _ in range(n)]
            if d.chance(0.5):
                slo = {}
        if self.kind in ("stages", "prefixes"):  # few bins, too
            bins["seconds"] = d.number(1, 8)
        elif not narrow if engines else d.chance(0.8):
            bins["seconds"] = d.number(span / 6, span)
        if "prompt_tokens" in rows and self.kind != "prefixes" and (self.kind == "files" or d.chance(0.1)):
            if self.kind != "crowd" and d.chance(0.4):
                factors = (low, most) if "slo_factor" in rows else None
                return requests | {"trace": self.drawn(rows, span, factors, by_length, alone)}, slo, bins
            self.files["trace.csv"] = _csv([list(rows), *zip(*rows.values(), strict=True)])
            spec: dict[str, Any] = {"file": "trace.csv"}
            if d.chance(0.3):  # with names of its own, the arrivals in milliseconds
                names = {"arrival_s": "at", "prompt_tokens": "asked", "output_tokens": "made"}
                of = {names.get(k, k): v for k, v in rows.items()} | {"at": [1e3 * t for t in rows["arrival_s"]]}
                self.files["trace.csv"] = _csv([list(of), *zip(*of.values(), strict=True)])
                spec["columns"] = {"arrival_s": "at:ms", "input_tokens": "asked", "output_tokens": "made"}
            elif d.chance(0.5):
                spec["skip_s"] = d.number(0, rows["arrival_s"][0] * 0.99)
            if d.chance(0.5):
                spec["first_s"] = d.number(rows["arrival_s"][0] + 0.01, 2 * span)
            if d.chance(0.5):
                spec["rate_factor"] = d.number(0.3, 3.0)
            if d.chance(0.3):  # for dispatchers in a replay, which plans do not see
                spec["predicted_output"] = {"error": d.number(0, 2), "seed": d.whole(0, 9)}
            return requests | {"trace": spec}, slo, bins
        if d.chance(0.1):  # for replays, too
            rows["predicted_output_tokens"] = [d.whole(1, 500) for _ in range(n)]
        if self.kind == "prefixes" or d.chance(0.1):
            rows |= self.prefixes(rows.setdefault("prompt_tokens", [d.whole(1, self.longest_prompt) for _ in range(n)]))
        return requests | {"rows": rows}, slo, bins

    def crowds(self, data: Instance) -> None:
        """Little memory beside the first model, so that caches forget."""
        model, tokens = data["models"][0], self.d.magnitude(1500, 15000)
        work, shape = layer_work(_shape(model), model.get("weights", "fp16"), model.get("kv", "fp16")), _shape(model)
        limits = data.get("engine", {})
        passing = limits.get("max_num_batched_tokens", 8192) * 1.0
        need = held_bytes(work, shape, 1, passing, limits.get("max_num_seqs", 256))
        for gpu in data["gpus"].values():
            held = (need + tokens * work.kv_bytes_per_token_all_layers) / GIB + 1.0  # and the engine's runtime
            gpu["vram_gib"] = float(f"{held / 0.9:.4g}")

    def prefixes(self, prompts: list[int]) -> dict[str, Any]:
        """Blocks of prompts that go on as others did: up to a block of each, or of some, or beyond."""
        d = self.d
        size = d.one((1, 8, 16, 16, 16, 32, 32, 512))
        begin = [[1000 * k + i for i in range(1 + max(prompts) // size)] for k in range(d.whole(1, 8))]
        blocks: list[list[int]] = []
        for i, prompt in enumerate(prompts):
            if d.chance(0.1):
                blocks.append([])
                continue
            like = d.one(blocks) if blocks and d.chance(0.4) else d.one(begin)  # a conversation that goes on
            shared = like[: d.whole(0, len(like))] if d.chance(0.4) else like
            own = [10**6 * (i + 1) + k for k in range(1 + prompt // size)]
            blocks.append([*shared, *own[len(shared) :]][: prompt // size + d.one((0, 0, 0, 1))])
        return {"prefix_blocks": blocks, "prefix_block_tokens": size}

    def drawn(
        self, rows: dict[str, Any], span: float, factors: tuple[float, float] | None, by_length: bool, alone: bool
    ) -> dict[str, Any]:
        """A trace that is generated, much as `rows` are."""
        d, n = self.d, len(rows["arrival_s"])
        made: dict[str, Any] = {"requests_per_s": max(n, 2) / span, "seed": d.whole(0, 10**6)}
        if alone or n < 5 or d.chance(0.7):
            made["requests"] = n
        else:
            made["duration_s"] = span
        if d.chance(0.7):
            made["cv"] = d.one((0.0, 0.5, 1.0, 3.0))
        prompts = [1, self.longest_prompt]
        if factors is not None and not by_length and d.chance(0.3):
            made |= {"maaso": d.whole(1, 6), "prompt_tokens": prompts}
        else:
            lengths = [[x, x] for x in (50, 120, 300)] if by_length else [[10, 100], [50, 400]]
            made["mix"] = [{"prompt_tokens": prompts, "output_tokens": x} for x in d.some(lengths)]
            for i, kind in enumerate(made["mix"]):
                kind |= {"slo_factor": list(factors)} if factors is not None else {}
                kind |= {"share": d.number(0.2, 3)} if d.chance(0.5) else {}
                kind |= {"name": f"k{i}"} if d.chance(0.5) else {}
        if "model" in rows:
            if "mix" in made and d.chance(0.5):
                for kind in made["mix"]:
                    kind["model"] = d.one(self.names)
            else:
                made["models"] = {name: d.number(0.2, 3) for name in self.names}
        spec: dict[str, Any] = {"generated": made}
        first = float(generated.generate(Generated.model_validate(made)).arrival_s[0])
        if d.chance(0.3):
            spec["skip_s"] = first * d.number(0, 0.99)
        if d.chance(0.3):
            spec["first_s"] = first + d.number(0.01, 2 * span)
        if d.chance(0.3):
            spec["rate_factor"] = d.number(0.3, 3.0)
        if d.chance(0.3):
            spec["predicted_output"] = {"error": d.number(0, 2), "seed": d.whole(0, 9)}
        return spec

    def objective(self) -> dict[str, Any]:
        d = self.d
        o: dict[str, Any] = {}
        if self.on("lexicographic"):
            o = {"kind": "lexicographic"}
            if d.chance(0.8):
                o["order"] = d.one((["attainment"], ["latency", "attainment"], ["throughput", "latency", "attainment"]))
        elif d.chance(0.6):
            o = {"alpha": d.one((0.0, 1.0, 0.5, d.number(0, 1))), "beta": d.one((0.0, 1.0, 0.5, d.number(0, 1)))}
            if d.chance(0.3):
                o["kind"] = "score"
        if d.chance(0.3):
            o["throughput_threshold_tokens_per_s"] = d.magnitude(1.0, 1e4)
        if d.chance(0.3):
            o["latency_threshold_s"] = d.magnitude(0.01, 1e3)
        return o

    def change(self, data: Instance) -> dict[str, Any]:
        """Some of the candidates run already, and here and there something that is no candidate."""
        d = self.d
        running: list[dict[str, Any]] = []
        for _ in range(d.whole(1, 3)):
            m = d.whole(0, len(self.names) - 1)
            choose = _choices(data, m)
            r: dict[str, Any] = {"model": self.names[m], "batch": d.one(choose["batch"]) if d.chance(0.9) else 77}
            if d.chance(0.5):
                r["gpu"] = d.one(self.types)
            r |= {x: d.one(choose[x]) for x in ("tp", "pp", "dp") if d.chance(0.7)}
            stages = data.get("deployment", {}).get("stages", ["both"])
            if stages != ["both"] or d.chance(0.1):
                r["stage"] = d.one(stages)
            gpus = r.get("tp", 1) * r.get("pp", 1) * r.get("dp", 1)
            taken = [server for x in running for server in x.get("placement", ())]
            roomy = [
                s for s in data["cluster"]["servers"]
                if s["gpu"] == r.get("gpu", self.types[0]) and s["gpus"] >= gpus and _first(s) not in taken
            ]  # fmt: skip
            if roomy and d.chance(0.3):
                r["placement"] = {_first(d.one(roomy)): list(range(gpus))}
            elif d.chance(0.5):
                r["count"] = d.whole(1, 3)
            running.append(r)
        change: dict[str, Any] = {"running": running}
        for key in ("score_per_start", "score_per_stop"):
            if d.chance(0.7):
                change[key] = d.one((0.0, 0.002, d.magnitude(1e-4, 1.0)))
        return change


def _first(servers: dict[str, Any]) -> str:
    """The first of equal servers."""
    return str(servers["server"]) if servers.get("count", 1) == 1 else f"{servers['server']}-1"


def _csv(rows: list[Any]) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in rows)
