"""Operating points of the orchestration problem: configurations with their rates, request classes, who may use what.

A request of l output tokens may start on configuration c as long as wait + prefill + l/F_c ≤ its deadline θ·l·t_slice,
with F_c the worst-case rate (batch full): MaaSO §IV-F plans with it so that no admission delays others past theirs.
Requests are grouped by model, output length and seconds allowed per token; a class has its requests' *mean* length and
deadline (upper edges in their place would cost 4–15 points of attainment). The groups by allowance end where a
configuration becomes admissible, so that most classes agree on what they may use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt

from formulations.orchestration.busy import busy_shares
from formulations.orchestration.engines import CAPACITIES, Hits, PlannedEngine, Stream, Taken, Transfer, engines_at
from formulations.orchestration.plan import parallelism
from formulations.orchestration.problem import MOST_BINS, Continuous, Orchestration, OrchestrationCase
from formulations.orchestration.rates import RateSource
from optmodels.arrays import Array, Ints, Mask
from optmodels.engine.continuous import Classes, Stage, seconds_and_quantile
from optmodels.engine.costs import EngineCosts, drafts_of
from optmodels.errors import InputError, Mistake, Mistakes
from optmodels.latency.memory import CHUNK_TOKENS, kv_bytes, longest_request, pass_bytes, weight_bytes
from optmodels.latency.steps import Provenance
from optmodels.latency.work import layer_work
from optmodels.traces.types import Trace
from optmodels.units import GIB

HELD = 1 + 1e-9  # rounding of a candidate's capacity
BINS_WANTED, ENGINE_BINS = 16, 48  # until the last arrival; on engines a burst of prompts delays everybody
SERVICE_BINS = 1.0
STAGES: tuple[Stage, Stage] = ("prefill", "decode")


@dataclass(frozen=True)
class Configuration:
    """One way to run one model: a plan counts its instances.

    Attributes:
        model, gpu: index into the case's models and GPU types.
        tp, pp, dp: degrees; `dp` replicas of `pp` stages of `tp` GPUs, for each of their `ranks`.
        batch: requests each replica decodes at once, or each of its attention ranks.
        unit: GPUs that must share a server; an instance has `units` of them.
        tokens_per_s: (slots,) of one request among 1 … slots.
        prefill_s_per_token: prefill seconds per token of the prompt.
        gib_per_gpu: weights, KV cache of a full batch and activations.
        engine: each replica's, with continuous serving: `batch` is then the requests that run in the mean at its level,
            `tokens_per_s` theirs, and the prefill of the mean prompt. None: MaaSO's slots.
        provenance: provenance of the step latencies; None where these do not come from `latency.model`.
        ranks: data-parallel attention ranks of each replica.
    """

    model: int
    gpu: int
    tp: int
    pp: int
    dp: int
    batch: int
    unit: int
    tokens_per_s: Array
    prefill_s_per_token: float
    gib_per_gpu: float
    engine: PlannedEngine | None = None
    provenance: Provenance | None = None
    ranks: int = 1

    @property
    def level(self) -> tuple[int, float, float] | None:
        """Key of a level within its batch: max_num_seqs, and waits for prefill and for a place."""
        e = self.engine
        return None if e is None else (e.limits.slots, e.waits, e.place_wait_s)

    @property
    def stage(self) -> Stage:
        """Of its requests that it does."""
        return "both" if self.engine is None else self.engine.stage

    @property
    def most_running(self) -> float:
        """Requests an instance has at once, in the mean of a time bin."""
        return self.slots if self.engine is None else self.dp * self.engine.most_running

    @property
    def gpus(self) -> int:
        """GPUs of an instance."""
        return math.prod(self.degrees)

    @property
    def units(self) -> int:
        """Parts of an instance that may stand in different servers."""
        return self.gpus // self.unit

    @property
    def slots(self) -> int:
        """Requests an instance decodes at once."""
        return self.batch * self.ranks * self.dp

    @property
    def most_admitted(self) -> int:
        """Requests an instance lets in at once: as many as there are slots, or as its engines' limits state."""
        return self.slots if self.engine is None else self.dp * self.ranks * self.engine.slots

    @property
    def worst_rate(self) -> float:
        """Tokens/s of one request when every slot is taken."""
        return float(self.tokens_per_s[-1])

    @property
    def parallelism(self) -> str:
        """As the paper writes it: tp-2, dp (one GPU), tp-4 pp-2 dp-2; ranks-8, tp-2 ranks-4."""
        return parallelism(*self.degrees)

    @property
    def degrees(self) -> tuple[int, int, int, int]:
        """All that states on which GPUs it runs."""
        return self.tp, self.pp, self.ranks, self.dp


@dataclass(frozen=True)
class Discarded:
    """A candidate that cannot be used, and why."""

    model: str
    gpu: str
    tp: int
    pp: int
    dp: int
    batch: int
    reason: str
    stage: Stage = "both"
    ranks: int = 1


@dataclass(frozen=True)
class RequestClasses:
    """Groups of like requests, K of them, with T bins of arrivals.

    Attributes:
        label: name for people.
        model: index of the model.
        arrivals: (K, T) requests arriving in each bin.
        output_tokens, prompt_tokens: means.
        deadline_s: mean, from arrival to last token.
        slo_factor: mean θ.
        weight: weight in S.
    """

    label: tuple[str, ...]
    model: Ints
    arrivals: Array
    output_tokens: Array
    prompt_tokens: Array
    deadline_s: Array
    slo_factor: Array
    weight: Array

    def __len__(self) -> int:
        return len(self.label)

    @cached_property
    def count(self) -> Array:
        """Requests of each class."""
        return self.arrivals.sum(axis=1)


@dataclass(frozen=True, repr=False)
class OrchestrationTables:
    """Tables that formulations and heuristics choose from.

    A request is served along a *route*, R of them: by a configuration alone (the first C of them, in their order), or
    prefilled on one and decoded on another. Of configurations that do one stage nothing is served alone.

    Attributes:
        case: the resolved problem.
        configurations: usable candidates, C of them.
        discarded: the others.
        classes: groups of requests, K of them.
        bin_s: width of a time bin.
        t_slice_s: seconds per token of an idle one-GPU instance, by model.
        service_s: (K, R) prefill and decoding at the worst-case rate; inf where the model differs.
        first_s: (K, R) from the start until the first token; 0 where the model differs.
        taken: capacity that requests take of the engine of each configuration; None: MaaSO's slots.
        share: (K, R) of the class's requests that meet their deadline on an unloaded instance.
        wait_s: (K, R) longest wait that still meets the deadline, mean of those requests; negative: there is none.
        class_of: (n,) class of every request of the trace; None where requests are given as classes.
        deadline_s: (n,) seconds from arrival to the last token, of every request of the trace.
        most_tokens: (M,) of prompt and output together that any candidate can hold; longer requests are never served.
        cut_s: longest first-token latency that a candidate cut as dominated allows: cutting changes no objective.
        apart: (R − C, 2) configuration that prefills and that which decodes, of the other routes.
    """

    case: OrchestrationCase
    configurations: tuple[Configuration, ...]
    discarded: tuple[Discarded, ...]
    classes: RequestClasses
    bin_s: float
    t_slice_s: Array
    service_s: Array
    first_s: Array
    share: Array
    wait_s: Array
    class_of: Ints | None
    deadline_s: Array | None
    most_tokens: Array
    taken: tuple[Taken, ...] | None = None
    cut_s: float = 0.0
    apart: Ints = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))

    def servable(self, model: Ints, tokens: npt.ArrayLike) -> Ints:
        """Codes of the models asked for, −1 where no candidate can hold this many tokens."""
        return np.where(np.asarray(tokens) > self.most_tokens[model] * HELD, -1, model)

    def __repr__(self) -> str:
        size = f"{len(self.configurations)} configurations, {len(self.classes)} classes"
        return f"<OrchestrationTables {self.case.problem.name}: {size}>"

    @cached_property
    def admissible(self) -> Mask:
        """(K, R): an unloaded instance meets the deadline of some."""
        return (self.wait_s >= 0) & (self.share > 0)

    @property
    def bins(self) -> int:
        """Time bins T."""
        return self.classes.arrivals.shape[1]

    @property
    def horizon_s(self) -> float:
        """Length of the time bins together."""
        return self.bins * self.bin_s

    @cached_property
    def model_of(self) -> Ints:
        """(C,) model of each configuration."""
        return np.array([c.model for c in self.configurations], dtype=np.int64)

    @cached_property
    def gpu_of(self) -> Ints:
        """(C,) GPU type of each configuration."""
        return np.array([c.gpu for c in self.configurations], dtype=np.int64)

    @cached_property
    def gpus_of(self) -> Ints:
        """(C,) GPUs of one instance."""
        return np.array([c.gpus for c in self.configurations], dtype=np.int64)

    @cached_property
    def capacity(self) -> Array:
        """(R, C) an instance's amount of each resource: slots; or with continuous serving 1 of each of `CAPACITIES`."""
        shape = (1 if self.taken is None else len(CAPACITIES), len(self.configurations))
        return np.ones(shape) if self.taken is not None else self.slots_of[None, :].astype(float)

    @cached_property
    def legs(self) -> Ints:
        """(R, 2) configurations that a route begins and ends on: the same one of routes that are not apart."""
        alone = np.arange(len(self.configurations))
        return np.vstack((np.column_stack((alone, alone)), self.apart)).astype(np.int64)

    def open(self, counts: Ints) -> Mask:
        """(R,) routes whose configurations have instances."""
        return np.logical_and(*(counts[self.legs].T > 0))

    def uses(self, k: int, r: int) -> list[tuple[int, Array]]:
        """Use of each configuration of a route by a start of class k, in the bin of its start and after it."""
        first, last = self.legs[r].tolist()
        if first == last:
            return [(first, self.busy(k, first))]
        assert self.taken is not None
        since = float(self.taken[first].service_s[k])
        return [(first, self.busy(k, first)), (last, self.busy(k, last, since))]

    @cached_property
    def work_s(self) -> Array:
        """(K, R) what `slot_use` counts of a request: seconds in a slot, or of the time of engines."""
        if self.taken is None:
            return self.service_s
        shape = (len(self.taken), len(self.classes))
        each = np.array([x.work_s for x in self.taken]).reshape(shape).T
        return np.hstack((each, each[:, self.apart[:, 0]] + each[:, self.apart[:, 1]]))

    def busy(self, k: int, c: int, since_s: float = 0.0) -> Array:
        """(R, L) share of c's capacities that a start of class k takes, in the bin of its start and the bins after.

        With engines: a start that comes to c `since_s` later.
        """
        if self.taken is None:
            return busy_shares(float(self.service_s[k, c]), self.bin_s)[None, :]
        x = self.configurations[c]
        assert x.engine is not None
        return self.taken[c].shares(x.engine, k, self.bin_s, since_s) / x.dp

    @cached_property
    def slots_of(self) -> Ints:
        """(C,) slots of one instance."""
        return np.array([c.slots for c in self.configurations], dtype=np.int64)

    def name(self, c: int) -> str:
        """A configuration for people: mistral-7b tp-2 B16, with the GPU type where there are several."""
        x = self.configurations[c]
        gpu = f" {self.case.gpu_types[x.gpu]}" if len(self.case.gpu_types) > 1 else ""
        waits = level_name(x.level, self.case.problem)
        gpu += "" if x.stage == "both" else f" {x.stage}"
        return f"{self.case.models[x.model]} {x.parallelism} B{x.batch}{waits}{gpu}"


def level_name(level: tuple[int, float, float] | None, p: Orchestration) -> str:
    """What tells a level from others of its batch: `` waits 4``; empty where an instance has one wait."""
    if level is None or p.continuous is None:
        return ""
    slots, waits, place_s = level
    said = f" waits {waits:g}" if len(p.continuous.wait_levels) > 1 else ""
    said += f" of at most {slots}" if slots != p.continuous.slots else ""
    return said + (f" queue {place_s:g} s" if place_s else "")


def build_tables(problem: Orchestration) -> OrchestrationTables:
    """Configurations, request classes, and which class may use which configuration for how long a wait.

    Raises:
        InputError: latencies are missing, or t_slice cannot be told.
    """
    case = problem.resolve()
    most = most_tokens(case)
    prompt, output, longest = _lengths(case, most)
    source = RateSource(case, prompt, output)
    found: list[Configuration] = []
    discarded: list[Discarded] = []
    t_slice = _t_slice(case, source)
    for made in _candidates(case, source, prompt, output, longest, t_slice):
        if isinstance(made, Discarded):
            discarded.append(made)
        else:
            found.append(made)
    cut = dominated(case, found)
    for i, j in cut.items():
        x, y = found[i], found[j]
        discarded.append(Discarded(case.models[x.model], case.gpu_types[x.gpu], x.tp, x.pp, x.dp, x.batch,
                                   f"{y.parallelism} B{y.batch} does its work on as many GPUs"))  # fmt: skip
    kept = np.array([i for i in range(len(found)) if i not in cut], dtype=np.int64)
    # Grouped by every usable configuration, so that a dominated one changes no group.
    paced = tuple(x for x in found if x.stage != "prefill")
    classes, bin_s, class_of, deadline = _classes(case, paced, t_slice, most)
    service, first, share, wait, taken = served(case, tuple(found), classes, class_of, deadline, most)
    t = OrchestrationTables(
        case, tuple(found[i] for i in kept), tuple(discarded), classes, bin_s, t_slice,
        service[:, kept], first[:, kept], share[:, kept], wait[:, kept], class_of, deadline, most, taken,
        cut_s=float(np.where(share > 0, wait + first, 0.0)[:, [*cut]].max(initial=0.0)),
    )  # fmt: skip
    return with_routes(t) if case.problem.deployment.apart else t


def with_routes(t: OrchestrationTables) -> OrchestrationTables:
    """The tables with every route from a prefill to a decode configuration that some class is in time on."""
    assert t.taken is not None
    of, K, equal = t.configurations, len(t.classes), t.case.problem.deployment.link.tensor_parallel == "equal"
    limit = t.case.ttft_limit_s
    apart: list[tuple[int, int]] = []
    columns: list[tuple[Array, Array, Array, Array]] = []
    for m in range(len(t.case.models)):
        _, output, due, k = _requests_of(t.case, t.classes, t.class_of, t.deadline_s, m)
        prefills, decodes = ([c for c, x in enumerate(of) if x.model == m and x.stage == s] for s in STAGES)
        for a, b in product(prefills, decodes):
            begins, ends = _engine_of(of[a]), _engine_of(of[b])
            if not equal or of[a].tp == of[b].tp:
                slack = np.minimum(due - begins.sees.e2e_s - ends.sees.e2e_s, limit - begins.sees.ttft_s)
                can = (slack >= 0) & begins.fits & (ends.fits | (output <= 1.0))
                if not can.any():
                    continue
                mine = t.classes.model == m
                able, count = np.bincount(k, can, K), np.maximum(np.bincount(k, minlength=K), 1)
                waits = np.bincount(k, np.where(can, slack, 0.0), K) / np.maximum(able, 1)
                apart.append((a, b))
                columns.append((
                    np.where(mine, t.taken[a].service_s + t.taken[b].service_s, np.inf),
                    np.where(mine, t.taken[a].service_s, 0.0), np.where(mine, able / count, 0.0),
                    np.where(mine & (able > 0), waits, -np.inf),
                ))  # fmt: skip
    if not apart:
        return t
    service, first, share, wait = (np.array(column).T for column in zip(*columns, strict=True))
    return replace(
        t, apart=np.array(apart, dtype=np.int64), service_s=np.hstack((t.service_s, service)),
        first_s=np.hstack((t.first_s, first)), share=np.hstack((t.share, share)), wait_s=np.hstack((t.wait_s, wait)),
    )  # fmt: skip


def _engine_of(x: Configuration) -> PlannedEngine:
    assert x.engine is not None
    return x.engine


def most_tokens(case: OrchestrationCase) -> Array:
    """(M,) tokens of one request that the roomiest candidate holds next to the weights; ∞ where none holds even those.

    (A model too big for all servers has no candidates, whose reasons name its own lengths.) Engines state by themselves
    their capacity, so that no limit on memory changes how requests are grouped: ∞.
    """
    p, most = case.problem, np.zeros(len(case.models))
    if p.continuous is not None:
        return np.full(len(case.models), np.inf)
    for m, served in enumerate(p.models):
        work = layer_work(case.architectures[m], served.weights, served.kv)
        choose = served.candidates or p.candidates
        for g, gib in enumerate(case.vram_gib):
            for tp, pp in ((tp, pp) for tp in choose.tp for pp in choose.pp if tp * pp <= case.free_gpus[g]):
                usable = p.memory.vram_usable * gib - (p.memory.runtime_gib or 0.0)
                room = tp * pp * usable * GIB - float(weight_bytes(work, tp))
                most[m] = max(most[m], longest_request(work, tp, room))
    return np.where(most > 0, most, np.inf)


def _held(case: OrchestrationCase, trace: Trace, most: Array) -> Mask:
    """(n,) requests that some candidate can hold."""
    return trace.prompt_tokens + trace.output_tokens <= most[case.request_model] * HELD


def _lengths(case: OrchestrationCase, most: Array) -> tuple[Array, Array, Array]:
    """Mean prompt, mean output and longest sum of both of each model's requests that can be held (1 of none)."""
    found = np.ones((3, len(case.models)))
    for m, limit in enumerate(most * HELD):
        prompt, output, weight = case.lengths(m)
        held = prompt + output <= limit
        found[2, m] = (prompt + output)[held].max(initial=1.0)
        if (weight * held).any():
            found[:2, m] = np.average((prompt, output), axis=1, weights=weight * held)
    return found[0], found[1], found[2]


def _candidates(
    case: OrchestrationCase, source: RateSource, prompt: Array, output: Array, longest: Array, t_slice_s: Array
) -> Iterator[Configuration | Discarded]:
    p = case.problem
    rule = p.memory.tokens_per_slot
    tokens = prompt + output if rule == "mean" else longest if rule == "max" else np.full(len(prompt), float(rule))
    largest = [max((len(s.free) for s in case.servers if s.gpu == g), default=0) for g in range(len(case.gpu_types))]
    limits = p.continuous
    for m, served in enumerate(p.models):
        choose = served.candidates or p.candidates
        work = layer_work(case.architectures[m], served.weights, served.kv)
        stream = None if limits is None else stream_of(case, m)
        hits = None if limits is None else hits_of(case, m, float(t_slice_s[m]))
        for g, kind in enumerate(case.gpu_types):
            for tp, pp in sorted({(tp, pp) for tp in choose.tp for pp in choose.pp}):
                if stream is not None and limits is not None:
                    for ranks, stage in product(case.ranks(m), p.deployment.stages):
                        key = m, g, tp, pp, ranks
                        yield from _engines(case, source, stream, limits, key, largest[g], stage, hits)
                    continue
                levels = sorted({(d, b) for d in choose.dp for b in choose.batch})
                rates = source.rates(m, g, tp, pp, max(choose.batch))
                unit = p.cluster.unit(tp, pp)
                for dp, batch in levels:
                    # MS(d): weights and KV cache over the GPUs of a replica, a pass over the GPUs of each stage.
                    share = float(weight_bytes(work, tp) + kv_bytes(work, tp, batch, tokens[m])) / (tp * pp)
                    gib = (share + float(pass_bytes(work, tp, min(prompt[m], CHUNK_TOKENS), 1)) / tp) / GIB
                    reason = _misfit(case, unit, largest[g], tp * pp * dp, g)
                    if not np.isfinite(rates.tokens_per_s[:batch]).all():
                        reason = rates.reason
                    elif not reason and gib > (
                        usable := p.memory.vram_usable * case.vram_gib[g] - (p.memory.runtime_gib or 0.0)
                    ):
                        reason = f"{gib:.1f} GiB per GPU and {usable:.1f} GiB usable"
                    if reason:
                        yield Discarded(served.model, kind, tp, pp, dp, batch, reason)
                        continue
                    load = np.ceil(np.arange(1, batch * dp + 1) / dp).astype(np.int64)
                    yield Configuration(
                        m, g, tp, pp, dp, batch, unit, rates.tokens_per_s[load - 1], rates.prefill_s_per_token, gib,
                        provenance=rates.provenance,
                    )  # fmt: skip


def _engines(
    case: OrchestrationCase, source: RateSource, stream: Stream, limits: Continuous, key: tuple[int, ...],
    largest: int, stage: Stage, hits: Hits | None,
) -> Iterator[Configuration | Discarded]:  # fmt: skip
    """Candidates of continuous serving: engines at every level of each batch, or why there is none."""
    m, g, tp, pp, ranks = key
    choose = case.problem.models[m].candidates or case.problem.candidates
    name, kind, batches = case.models[m], case.gpu_types[g], sorted(set(choose.batch))
    unit = case.problem.cluster.unit(tp, pp, ranks)
    costs = source.engine(m, g, tp, pp, ranks)
    reason, made = costs if isinstance(costs, str) else "", list[PlannedEngine]()
    every = stream.kind.input_tokens + stream.kind.output_tokens[:, 0]
    if isinstance(costs, EngineCosts):
        kv = costs.kv_tokens / ranks
        if kv < (least := float(every.min())):
            reason = f"{max(kv, 0):,.0f} tokens of KV cache and requests of at least {least:,.0f}"
        elif stage == "decode" and (stream.kind.output_tokens <= 1).all():
            reason = "of one output token, nothing is left to decode"
        elif all(_misfit(case, unit, largest, tp * pp * ranks * dp, g) for dp in choose.dp):
            reason = _misfit(case, unit, largest, tp * pp * ranks * min(choose.dp), g)
        else:
            found = transfer_of(case, m, g, tp * pp, stage)
            made = list(engines_at(costs, limits, stream, batches, stage, found, hits))
            reason = f"max_num_seqs {limits.choices[-1]} or {kv:,.0f} tokens of KV cache allow for fewer requests"
            if stream.itl is not None:
                reason += f", or times between tokens exceed {1e3 * seconds_and_quantile(stream.itl)[0]:g} ms"
    mean = float(stream.kind.weight @ stream.kind.input_tokens)
    for dp, batch in product(sorted(set(choose.dp)), batches):
        misfit = _misfit(case, unit, largest, tp * pp * ranks * dp, g)
        mine = [] if misfit else [e for e in made if e.batch == batch]
        mine = mine[:1] if case.problem.change.running else mine  # running instances do not state their level
        for e in mine:
            yield Configuration(
                m, g, tp, pp, dp, batch, unit, np.full(batch * ranks * dp, 1.0 / e.token_s),
                float(stream.kind.weight @ e.sees.first_s) / mean, case.problem.memory.vram_usable * case.vram_gib[g],
                e, e.of.provenance, ranks,
            )  # fmt: skip
        if not mine:
            yield Discarded(name, kind, tp, pp, dp, batch, misfit or reason, stage, ranks)


def transfer_of(case: OrchestrationCase, m: int, g: int, gpus: int, stage: Stage) -> Transfer | None:
    """How an engine of one stage sends or receives caches; None: it does both."""
    if stage == "both":
        return None
    served, limits = case.problem.models[m], case.problem.continuous
    assert limits is not None
    work = layer_work(case.architectures[m], served.weights, served.kv)
    drafts = drafts_of(limits, case.architectures[m], served.weights, served.kv)
    return Transfer(work, case.net_bytes_per_s(g, gpus), case.problem.deployment.link, drafts)


def hits_of(case: OrchestrationCase, m: int, t_slice_s: float) -> Hits | None:
    """Tokens of a model's prompts in the prefix caches of its engines; None where no hits are counted."""
    prompts = case.prompts(m)
    if prompts is None:
        return None
    mine = case.request_model == m
    due = case.slo_factor[mine] * t_slice_s * prompts.trace.output_tokens

    def cached(plain: PlannedEngine, at: Callable[[Array], PlannedEngine]) -> Array:
        """Found by those in time on an idle engine at the level with all that anybody could find."""
        part = plain.part / plain.ranks
        quick = at(prompts.found(part, plain.idle_kv_tokens))

        def in_time(tokens: Array) -> Mask:
            sees = quick.seen_with(tokens)
            return (sees.e2e_s <= due) & (sees.ttft_s <= case.ttft_limit_s) & quick.fits

        return prompts.found(part, plain.idle_kv_tokens, prompts.needed(in_time))

    return cached


def stream_of(case: OrchestrationCase, m: int) -> Stream:
    """A model's requests, or its classes; one of a token where it has none."""
    prompt, output, weight = (x if len(x) else np.ones(1) for x in case.lengths(m))
    weight = weight if weight.sum() > 0 else np.ones(len(weight))
    kind = Classes.of(np.maximum(prompt, 1.0), np.maximum(output, 1.0), weight=weight / weight.sum())
    return Stream(kind, *case.stream(m), case.problem.slo.itl_s)


def _misfit(case: OrchestrationCase, unit: int, largest: int, gpus: int, g: int) -> str:
    """Why a candidate does not fit the servers; empty if it does."""
    if unit > largest:
        return f"{unit} GPUs must share a server and the largest has {largest} that work"
    if gpus > case.free_gpus[g]:
        return f"{gpus} GPUs and {case.free_gpus[g]} work"
    return ""


def _t_slice(case: OrchestrationCase, source: RateSource) -> Array:
    """Seconds per token of an idle one-GPU instance on the first GPU type that has one (MaaSO §III-C)."""
    found, wrong = np.ones(len(case.models)), Mistakes()
    for m, served in enumerate(case.problem.models):
        if served.t_slice_s is not None:
            found[m] = served.t_slice_s
            continue
        idle = [source.idle_s(m, g) for g in range(len(case.gpu_types))]
        known = [s for s in idle if np.isfinite(s)]
        if known:
            found[m] = known[0]
        else:
            expected = "seconds per token of an idle one-GPU instance: the latencies say nothing about tp 1, pp 1"
            wrong.add(f"models[{m}].t_slice_s", None, expected)
    wrong.raise_any()
    return found


def _classes(
    case: OrchestrationCase, configurations: tuple[Configuration, ...], t_slice: Array, most: Array
) -> tuple[RequestClasses, float, Ints | None, Array | None]:
    if case.trace is not None:
        return _from_trace(case, case.trace, configurations, t_slice, most)
    return *_from_rates(case, t_slice), None, None


def _from_rates(case: OrchestrationCase, t_slice: Array) -> tuple[RequestClasses, float]:
    r = case.problem.requests
    rows = r.classes or ()
    lengths = {len(c.requests_per_s) for c in rows if isinstance(c.requests_per_s, tuple)}
    if lengths:
        assert r.classes_bin_s is not None
        T, bin_s = lengths.pop(), r.classes_bin_s
    else:
        assert r.duration_s is not None
        bin_s = case.problem.bins.seconds or r.duration_s / 24
        T = max(1, math.ceil(r.duration_s / bin_s - 1e-9))
        bin_s = r.duration_s / T
    _few_bins(T)
    model = np.array([case.models.index(c.model) for c in rows], dtype=np.int64)
    tokens, factor = np.array([c.output_tokens for c in rows]), np.array([c.slo_factor for c in rows])
    weight = np.array([case.problem.models[m].weight * c.weight for m, c in zip(model, rows, strict=True)])
    return RequestClasses(
        label=tuple(f"{c.model} {c.output_tokens:g} tokens θ {c.slo_factor:g}" for c in rows),
        model=model,
        arrivals=np.array([np.broadcast_to(np.asarray(c.requests_per_s, dtype=float), T) * bin_s for c in rows]),
        output_tokens=tokens,
        prompt_tokens=np.array([c.prompt_tokens for c in rows]),
        deadline_s=factor * tokens * t_slice[model],
        slo_factor=factor,
        weight=weight,
    ), bin_s


def _few_bins(T: int) -> None:
    if T > MOST_BINS:
        raise InputError(Mistake(None, "bins.seconds", f"{T:,} time bins", f"at most {MOST_BINS:,}: wider bins"))


def _from_trace(
    case: OrchestrationCase, trace: Trace, configurations: tuple[Configuration, ...], t_slice: Array, most: Array
) -> tuple[RequestClasses, float, Ints, Array]:
    bins, groups = case.problem.bins, case.problem.bins.groups(len(trace))
    per_token = case.slo_factor * t_slice[case.request_model]
    deadline = per_token * trace.output_tokens
    code = np.zeros(len(trace), dtype=np.int64)
    held = _held(case, trace, most)
    used = 0
    for m in range(len(case.models)):
        mine = np.flatnonzero((case.request_model == m) & ~held)
        if len(mine):  # a class of their own, which is never served
            code[mine] = used
            used += 1
        mine = np.flatnonzero((case.request_model == m) & held)
        if not len(mine):
            continue
        if groups is None:
            local = np.arange(len(mine))
        else:
            lengths, slo = groups
            tokens = trace.output_tokens[mine]
            length = np.digitize(tokens, np.unique(np.quantile(tokens, np.arange(1, lengths) / lengths)))
            knees = np.array([1.0 / c.worst_rate for c in configurations if c.model == m and c.engine is None])
            allowed = np.digitize(per_token[mine], _snapped(per_token[mine], slo, knees))
            _, local = np.unique(length * (slo + 1) + allowed, return_inverse=True)
        code[mine] = used + local
        used += int(local.max()) + 1
    n = np.bincount(code, minlength=used).astype(float)

    def mean(values: Array) -> Array:
        return np.bincount(code, values, used) / n

    model = np.zeros(used, dtype=np.int64)
    model[code] = case.request_model
    last = float(trace.arrival_s[-1])
    asked, output = np.bincount(case.request_model, minlength=len(case.models)), _lengths(case, most)[1]
    service = [output[c.model] / c.worst_rate for c in configurations if asked[c.model]]
    engines = case.problem.continuous is not None
    if engines:  # whatever candidates there are: no limit on them changes bins or groups
        service = [output[m] * t_slice[m] for m in np.flatnonzero(asked)]
    typical = float(np.median(service)) if service else 1.0
    wanted = ENGINE_BINS if engines else BINS_WANTED
    bin_s = bins.seconds or max(typical / SERVICE_BINS, last / wanted, 1e-3)
    T = (
        max(1, math.ceil((last + float(deadline[held].max(initial=0.0))) / bin_s))
        if last == 0
        else math.floor(last / bin_s) + 1
    )
    # Requests may start after the last arrival, as late as the longest wait.
    longest = float(deadline.max()) if engines else _longest_wait(case, trace, configurations, deadline, held)
    T += math.ceil(longest / bin_s)
    _few_bins(T)
    of_bin = np.minimum((trace.arrival_s / bin_s).astype(np.int64), T - 1)
    arrivals = np.bincount(code * T + of_bin, minlength=used * T).reshape(used, T).astype(float)
    label = []
    for k in range(used):
        mine = np.flatnonzero(code == k)
        l, θ = trace.output_tokens[mine], case.slo_factor[mine]  # noqa: E741
        label.append(f"{case.models[model[k]]} {_range(l.min(), l.max(), '{:.0f}')} tokens"
                     f" θ {_range(θ.min(), θ.max(), '{:.2f}')}{'' if held[mine[0]] else ', too long'}")  # fmt: skip
    weight = np.array([case.problem.models[m].weight for m in model], dtype=float)
    classes = RequestClasses(
        tuple(label), model, arrivals, mean(trace.output_tokens.astype(float)), mean(trace.prompt_tokens.astype(float)),
        mean(deadline), mean(case.slo_factor), weight,
    )  # fmt: skip
    return classes, bin_s, code, deadline


def _range(low: float, high: float, form: str) -> str:
    a, b = form.format(low), form.format(high)
    return a if a == b else f"{a}–{b}"


def _longest_wait(
    case: OrchestrationCase, trace: Trace, configurations: tuple[Configuration, ...], deadline: Array, held: Mask
) -> float:
    """The longest that any request can wait on its fastest configuration, seconds."""
    best = np.zeros(len(case.models))
    for c in configurations:
        best[c.model] = max(best[c.model], c.worst_rate)
    rate = best[case.request_model]
    wait = np.where((rate > 0) & held, deadline - trace.output_tokens / np.where(rate > 0, rate, 1.0), 0.0)
    return float(np.clip(wait, 0.0, case.ttft_limit_s).max(initial=0.0))


def _snapped(values: Array, groups: int, knees: Array) -> Array:
    """Inner edges of groups of about equal size, moved to the nearest knee inside the range where there is one."""
    edges = np.quantile(values, np.arange(1, groups) / groups)
    knees = knees[(knees > values.min()) & (knees <= values.max())]
    if len(knees):
        nearest = knees[np.abs(knees[None, :] - edges[:, None]).argmin(axis=1)] if len(edges) else edges
        reach = (values.max() - values.min()) / (2 * groups)
        edges = np.where(np.abs(nearest - edges) <= reach, nearest, edges)
    return np.unique(edges)


def served(
    case: OrchestrationCase, configurations: tuple[Configuration, ...], classes: RequestClasses,
    class_of: Ints | None, deadline: Array | None, most: Array,
) -> tuple[Array, Array, Array, Array, tuple[Taken, ...] | None]:  # fmt: skip
    """Seconds in service, of them to the first token, the share that can be in time, and its longest wait; (K, C).

    And what requests take of every configuration's engine.
    """
    K, C = len(classes), len(configurations)
    service, first = np.full((K, C), np.inf), np.zeros((K, C))
    share, wait = np.zeros((K, C)), np.full((K, C), -np.inf)
    limit = case.ttft_limit_s
    taken: list[Taken] = []
    for c, x in enumerate(configurations):
        mine = np.flatnonzero(classes.model == x.model)
        prompt, output, due, k = _requests_of(case, classes, class_of, deadline, x.model)
        count = np.bincount(k, minlength=K)[mine]
        if x.engine is None:
            begun = x.prefill_s_per_token * prompt
            slack = np.minimum(due - begun - output / x.worst_rate, limit - begun)
            can = slack >= 0
            first[mine, c] = x.prefill_s_per_token * classes.prompt_tokens[mine]
            service[mine, c] = first[mine, c] + classes.output_tokens[mine] / x.worst_rate
            starts = np.maximum(np.bincount(k, can, K), 1)[mine]
        else:
            e = x.engine
            # Of a class those start that their deadline allows, whatever limit there is on first tokens.
            may = e.fits & ((due >= e.sees.e2e_s) | (e.stage != "both"))
            rows = np.flatnonzero(may | (e.fits & (np.bincount(k, may, K) == 0)[k]))
            taken.append(Taken.by(e, rows, k[rows], K))
            if x.stage != "both":
                continue
            slack = np.minimum(due - e.sees.e2e_s, limit - e.sees.ttft_s)
            can = may & (slack >= 0)
            first[mine, c], service[mine, c] = taken[-1].first_s[mine], taken[-1].service_s[mine]
            starts = np.maximum(np.bincount(k, may, K), 1)[mine]
        able = np.bincount(k, can, K)[mine]
        share[mine, c] = able / np.maximum(count, 1)
        longest = np.bincount(k, np.where(can, slack, 0.0), K)[mine] / starts
        wait[mine, c] = np.where(able > 0, longest, -np.inf)
    beyond = classes.prompt_tokens + classes.output_tokens > most[classes.model] * HELD
    share[beyond], wait[beyond] = 0.0, -np.inf
    return service, first, share, wait, tuple(taken) if case.problem.continuous is not None else None


def _requests_of(
    case: OrchestrationCase, classes: RequestClasses, class_of: Ints | None, deadline: Array | None, m: int
) -> tuple[Array, Array, Array, Ints]:
    """Prompt and output tokens, seconds they are due after and class of a model's requests, or of its classes."""
    if class_of is not None and deadline is not None:
        mine = case.request_model == m
        return *case.lengths(m)[:2], deadline[mine], class_of[mine]
    k = np.flatnonzero(classes.model == m)
    prompt, output, due = (v[k] for v in (classes.prompt_tokens, classes.output_tokens, classes.deadline_s))
    return prompt, output, due, k


def dominated(case: OrchestrationCase, configurations: Sequence[Configuration]) -> dict[int, int]:
    """Configurations that no optimal plan needs, each with one that does its work; nothing optimal is cut.

    r copies of c' do the work of c if they fit where c stands (unit by unit), have as many slots together, decode at
    least as fast and prefill at least as fast: every request may then wait as long, is done no later, and keeps a slot
    busy no longer. With a limit on a model's instances only r = 1 counts; nothing is cut while changes have a price,
    nor of engines' levels, each with other promises.
    """
    if case.problem.change.running or case.problem.continuous is not None:
        return {}
    cut: dict[int, int] = {}
    for i, c in enumerate(configurations):
        limited = case.problem.models[c.model].maximum_instances is not None
        for j, d in enumerate(configurations):
            if i == j or j in cut or (c.model, c.gpu) != (d.model, d.gpu):
                continue
            copies = (c.unit // d.unit) * c.units // d.units
            copies = min(copies, 1) if limited else copies
            if (
                copies * d.slots >= c.slots
                and d.worst_rate >= c.worst_rate
                and d.prefill_s_per_token <= c.prefill_s_per_token
                and copies >= 1
            ):
                cut[i] = j
                break
    return cut
