"""An orchestration problem recomputed for its checks: candidates, groups of requests, deadlines met.

Written from the mathematics (README.md, MaaSO §III-C and §IV), one candidate, one group and one pair after the other.
Shares no code with points.py, which tabulates the same for the methods. Both read the same inputs: problem.py, rates.py
(tokens per second from decay, roofline, fitted or measured latencies) and the bytes of `optmodels.latency.work`.

Whether a request whose deadline is exactly its service time is in time hangs on the last bit, so deadline and service
are multiplied in the order in which README.md writes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from formulations.orchestration.plan import ConfigurationLine, EngineLevelLine, Key, OrchestrationPlan
from formulations.orchestration.prefixes import Prompts
from formulations.orchestration.problem import MOST_BINS, Continuous, Orchestration, OrchestrationCase, RunningInstance
from formulations.orchestration.rates import RateSource
from formulations.orchestration.recomputed_engines import Asked, Derived, Sent, as_planned, planned, step_of_running
from optmodels.arrays import Array, Ints, Mask
from optmodels.engine.continuous import Stage
from optmodels.engine.costs import drafts_of
from optmodels.errors import InputError, Mistake
from optmodels.latency.memory import Drafts
from optmodels.latency.work import LayerWork, layer_work
from optmodels.traces.types import Trace
from optmodels.units import GIB

ROUNDING = 1 + 1e-9  # of the tokens that memory holds
PREFILL_CHUNK_TOKENS = 8192  # of a prompt whose activations are in memory at once
LEAST_BIN_S = 1e-3
DOMINATED = "a candidate whose work no other does on as many GPUs"
MOST_BINS_OF_ARRIVALS, MOST_BINS_ON_ENGINES = 16, 48


@dataclass(frozen=True)
class Candidate:
    """One way to run one model.

    Attributes:
        model, gpu: index into the case's models and GPU types.
        tp, pp, ranks, dp, batch: `dp` replicas of `pp` stages of `ranks` times `tp` GPUs, each rank of a replica with
            `batch` requests at once.
        unit: GPUs that must share a server.
        tokens_per_s: tokens/s of one request when the batch is full.
        prefill_s_per_token: prefill seconds per token of the prompt.
        refused: why no plan may use it; empty if one may.
        stage: stage of its requests that it does.
        level: level of its engines, with continuous serving.
        able: share of the requests in time by its latencies that certification lets count.
    """

    model: int
    gpu: int
    tp: int
    pp: int
    dp: int
    batch: int
    unit: int
    tokens_per_s: float
    prefill_s_per_token: float
    refused: str
    level: Derived | None = None
    able: float = 1.0
    stage: Stage = "both"
    ranks: int = 1

    @property
    def slots(self) -> int:
        """Requests an instance decodes at once."""
        return self.batch * self.ranks * self.dp


Way = tuple[Candidate, Candidate]  # where a request begins and ends: one candidate, or disaggregated stages


@dataclass(frozen=True)
class Group:
    """Requests of one model, similar length and similar seconds allowed per token.

    Attributes:
        arrivals: (T,) requests by time bin.
        output_tokens, prompt_tokens, deadline_s: means.
        weight: weight of a request in S.
        prompt, output, due: tokens, tokens and seconds of its requests one by one; of the group where it is a rate.
        number: number of each, among the requests of its model.
        too_long: no candidate can hold this many tokens.
    """

    model: int
    arrivals: Array
    output_tokens: float
    prompt_tokens: float
    deadline_s: float
    weight: float
    prompt: Array
    output: Array
    due: Array
    number: Ints
    too_long: bool

    @property
    def requests(self) -> float:
        """How many there are."""
        return float(self.arrivals.sum())


@dataclass(frozen=True)
class Recomputed:
    """An instance as a plan is checked against it.

    Attributes:
        candidates: refused ones too; for engines the plan's lines.
        groups: groups in the order of the plan's classes.
        bins: T.
        bin_s: width of each.
        t_slice_s: seconds per token of an idle one-GPU instance, by model.
    """

    case: OrchestrationCase
    candidates: dict[Key, Candidate]
    groups: tuple[Group, ...]
    bins: int
    bin_s: float
    t_slice_s: Array

    def in_time(self, q: Group, way: Way) -> tuple[float, float]:
        """Share of a group in time on idle instances, and the mean wait, seconds, that this share can afford."""
        able, slack, may = self._able(q, way)
        if q.too_long or not able.any():
            return 0.0, -1.0
        return float(able.mean()) * way[1].able, float(slack[able].sum() / may.sum())

    def starting(self, q: Group, way: Way, c: Candidate) -> Group:
        """The group with the part of its requests that may start on one of a way's engines.

        That can be on it and, where it serves them whole, are done by their deadline.
        """
        if c.level is None:
            return q
        who = c.level.fits[q.number]
        if way[0] is way[1] and c.stage == "both":
            may = self._able(q, way)[2]
            who = may if may.any() else who
        return replace(q, prompt=q.prompt[who], output=q.output[who], due=q.due[who], number=q.number[who])

    def _able(self, q: Group, way: Way) -> tuple[Mask, Array, Mask]:
        """Requests in time on idle instances, seconds that they have left, and those that may start.

        Of engines that serve them whole those may start that are done by their deadline, whatever their first token.
        """
        limit = math.inf if self.case.problem.slo.ttft_s is None else self.case.problem.slo.ttft_s
        begin, end = way
        if begin.level is None or end.level is None:
            first = begin.prefill_s_per_token * q.prompt
            slack = np.minimum(q.due - first - q.output / begin.tokens_per_s, limit - first)
            return slack >= 0, slack, slack >= 0
        on, off, n = begin.level, end.level, q.number
        slack = np.minimum(q.due - on.whole_s[n], limit - on.late_s[n])
        if end is begin:
            may = on.fits[n] & (q.due >= on.whole_s[n]) & (begin.stage == "both")
            return may & (slack >= 0), slack, may
        slack = np.minimum(q.due - on.whole_s[n] - off.whole_s[n], limit - on.late_s[n])
        equal = self.case.problem.deployment.link.tensor_parallel == "equal"
        fits = on.fits[n] & (off.fits[n] | (q.output <= 1))
        fits &= (begin.stage, end.stage) == ("prefill", "decode") and not (equal and begin.tp != end.tp)
        able = fits & (slack >= 0)
        return able, slack, able

    def ways(self) -> Iterator[Way]:
        """Every candidate alone, and every one that prefills with every one that decodes."""
        usable = [c for c in self.candidates.values() if not c.refused]
        for c in usable:
            if c.stage == "both":
                yield c, c
            yield from ((c, d) for d in usable if (c.stage, d.stage, c.model) == ("prefill", "decode", d.model))

    def latency_threshold_s(self) -> float:
        """First-token latency that counts as 0 in MS(8): given, or the longest that any pair allows."""
        given = self.case.problem.objective.latency_threshold_s
        if given is not None:
            return given
        if self.case.problem.continuous is not None:  # the longest that a request's own limits allow
            limit = math.inf if self.case.problem.slo.ttft_s is None else self.case.problem.slo.ttft_s
            return max(min(float(q.due.max(initial=0.0)), limit) for q in self.groups) or 1.0
        longest = 0.0
        cut = [(c, c) for c in self.candidates.values() if c.refused == DOMINATED]
        for way in (*self.ways(), *cut):
            for q in self.groups:
                if way[0].model != q.model:
                    continue
                share, wait = self.in_time(q, way)
                if share > 0:
                    longest = max(longest, wait + first_s(q, way))
        return longest or 1.0


def legs(way: Way) -> tuple[Candidate, ...]:
    """The candidates that a request goes to, one after the other."""
    return way if way[0] is not way[1] else way[:1]


def first_s(q: Group, way: Way) -> float:
    """Seconds from a start to the first token: in a slot of the mean request, on an engine in the mean of them.

    Where it is prefilled apart, the user has it when the cache is sent.
    """
    c, end = way
    if c.level is None:
        return c.prefill_s_per_token * q.prompt_tokens
    return float(c.level.first_s[q.number].mean()) if end is c else service_s(q, c)


def service_s(q: Group, c: Candidate) -> float:
    """Seconds in a slot: prefill and decoding at the rate of the full batch; or on an engine at its level."""
    if c.level is None:
        return c.prefill_s_per_token * q.prompt_tokens + q.output_tokens / c.tokens_per_s
    return float((c.level.first_s + c.level.rest_s)[q.number].mean())


def work_s(q: Group, c: Candidate) -> float:
    """Use by a request that `prediction.slot_use` counts: seconds in a slot, or of the engine's time."""
    return service_s(q, c) if c.level is None else float(c.level.work_s[q.number].mean())


def recompute(problem: Orchestration, plan: OrchestrationPlan | None = None) -> Recomputed:
    """Candidates, groups of requests and time bins of an instance; of engines the candidates of a plan.

    Raises:
        InputError: latencies are missing, t_slice cannot be told, or there are too many time bins.
    """
    case = problem.resolve()
    works = [layer_work(a, m.weights, m.kv) for a, m in zip(case.architectures, problem.models, strict=True)]
    held = [_most_tokens(case, m, work) * ROUNDING for m, work in enumerate(works)]
    lengths = [_lengths(case, m, held[m]) for m in range(len(works))]
    source = RateSource(case, *(np.array([x[i] for x in lengths]) for i in (0, 1)))
    t_slice = np.array([_t_slice(case, source, m) for m in range(len(works))])
    listed: list[Candidate] = []
    if problem.continuous is None:
        listed = [c for m, work in enumerate(works) for c in _candidates(case, source, m, work, lengths[m])]
    possible = [c for c in listed if not c.refused]
    if case.trace is None:
        groups, bin_s = _rates(case, t_slice, held)
    else:
        groups, bin_s = _requests(case, case.trace, possible, t_slice, held, [x[1] for x in lengths])
    candidates: dict[Key, Candidate] = {
        (case.models[c.model], case.gpu_types[c.gpu], (c.tp, c.pp, c.ranks, c.dp), c.batch, None, c.stage): c
        for c in (*listed, *_superfluous(case, possible))
    }
    if problem.continuous is not None:
        for line in () if plan is None else plan.configurations:
            if (found := _engine(case, source, problem.continuous, line, t_slice)) is not None:
                candidates[line.key] = found
        for r in problem.change.running:
            runs = _running(case, source, problem.continuous, r)
            if runs.key not in candidates and (found := _engine(case, source, problem.continuous, runs, t_slice)):
                candidates[runs.key] = found
    return Recomputed(case, candidates, groups, len(groups[0].arrivals), bin_s, t_slice)


def _most_tokens(case: OrchestrationCase, m: int, work: LayerWork) -> float:
    """Tokens of one request next to the weights on the candidate with most memory; ∞ where none holds the weights."""
    choose = case.problem.models[m].candidates or case.problem.candidates
    if case.problem.continuous is not None:
        return math.inf  # engines state what they hold: no memory changes how requests are grouped
    most = 0.0
    for vram_gib, working in zip(case.vram_gib, case.free_gpus.tolist(), strict=True):
        for tp in choose.tp:
            copies, weights = _replicated(work, tp)
            for pp in choose.pp:
                if tp * pp > working:
                    continue
                memory = case.problem.memory
                room = tp * pp * (memory.vram_usable * vram_gib - (memory.runtime_gib or 0.0)) * GIB - weights
                room = (room - work.layers * work.state_bytes) / _token_bytes(work, tp, copies)
                if room > work.window_tokens and work.kept_share:  # beyond a window the other layers alone keep tokens
                    kept = 1 - work.kept_share
                    room = (room - work.kept_share * work.window_tokens) / kept if kept else math.inf
                most = max(most, room)
    return most if most > 0 else math.inf


def _replicated(work: LayerWork, tp: int) -> tuple[float, float]:
    """Copies of each KV head among tp GPUs, whole heads on each, and their weights with each GPU's unsplit parts."""
    copies = tp * math.ceil(work.kv_heads / tp) / work.kv_heads
    again = (copies - 1) * work.kv_weight_bytes + (tp - 1) * work.whole_weight_bytes
    padding = float(work.expert_padding_bytes(tp))
    return copies, work.weight_bytes + work.layers * again + padding


def _token_bytes(work: LayerWork, tp: int, copies: float) -> float:
    """Cache of a token on tp GPUs: whole heads on each, and on each the keys of an indexer."""
    index = work.layers * work.index_bytes_per_token
    return copies * (work.kv_bytes_per_token_all_layers - index) + tp * index


def _lengths(case: OrchestrationCase, m: int, held: float) -> tuple[float, float, float]:
    """Mean prompt, mean output and longest sum of both of a model's requests that can be held; 1 where it has none."""
    prompt, output, rate = case.lengths(m)
    fits = prompt + output <= held
    longest, rate = float((prompt + output)[fits].max(initial=1.0)), rate * fits
    count = float(rate.sum())
    return (float(rate @ prompt) / count, float(rate @ output) / count, longest) if count > 0 else (1.0, 1.0, longest)


def _t_slice(case: OrchestrationCase, source: RateSource, m: int) -> float:
    """Seconds per token of an idle one-GPU instance on the first GPU type that has one (MaaSO §III-C)."""
    given = case.problem.models[m].t_slice_s
    if given is not None:
        return given
    for g in range(len(case.gpu_types)):
        seconds = source.idle_s(m, g)
        if np.isfinite(seconds):
            return seconds
    raise InputError(Mistake(None, f"models[{m}].t_slice_s", None, "seconds per token of an idle one-GPU instance"))


def _candidates(
    case: OrchestrationCase, source: RateSource, m: int, work: LayerWork, lengths: tuple[float, float, float]
) -> Iterator[Candidate]:  # fmt: skip
    """Every combination listed for a model, by GPU type, tp, pp, dp and batch."""
    p, (prompt, output, longest) = case.problem, lengths
    choose = p.models[m].candidates or p.candidates
    rule = p.memory.tokens_per_slot
    tokens = prompt + output if rule == "mean" else longest if rule == "max" else float(rule)
    for g, vram_gib in enumerate(case.vram_gib):
        usable = p.memory.vram_usable * vram_gib - (p.memory.runtime_gib or 0.0)
        largest = max((len(s.free) for s in case.servers if s.gpu == g), default=0)
        for tp, pp in sorted({(tp, pp) for tp in choose.tp for pp in choose.pp}):
            rates = source.rates(m, g, tp, pp, max(choose.batch))
            if p.cluster.tensor_groups_cross_servers:
                unit = 1
            elif p.cluster.pipelines_cross_servers:
                unit = tp
            else:
                unit = tp * pp
            for dp, batch in sorted({(dp, batch) for dp in choose.dp for batch in choose.batch}):
                # MS(d): weights and KV cache are divided among a replica's GPUs, activations among a stage's.
                copies, weights = _replicated(work, tp)
                one = work.kept(tokens) * _token_bytes(work, tp, copies) + work.layers * work.state_bytes
                hidden = work.whole_activation_bytes_per_token
                passing = hidden + (work.activation_bytes_per_token - hidden) / tp
                passing = min(prompt, PREFILL_CHUNK_TOKENS) * passing + work.logit_bytes_per_sequence / tp
                gib = ((weights + batch * one) / (tp * pp) + passing) / GIB
                refused = ""
                if not np.isfinite(rates.tokens_per_s[:batch]).all():
                    refused = f"a rate at every load to {batch}: {rates.reason}"
                elif unit > largest:
                    refused = f"units of at most {largest} GPUs"
                elif tp * pp * dp > case.free_gpus[g]:
                    refused = f"at most {case.free_gpus[g]} GPUs"
                elif gib > usable:
                    refused = f"at most {usable:.3f} GiB on each GPU (it needs {gib:.3f})"
                yield Candidate(
                    m, g, tp, pp, dp, batch, unit, float(rates.tokens_per_s[batch - 1]), rates.prefill_s_per_token,
                    refused,
                )  # fmt: skip


def _engine(
    case: OrchestrationCase, source: RateSource, limits: Continuous, line: ConfigurationLine, t_slice: Array
) -> Candidate | None:
    """The candidate of a plan's line with an engine that batches continuously; None: it is none of the instance's."""
    p = case.problem
    if line.model not in case.models or line.gpu not in case.gpu_types or (e := line.engine) is None:
        return None
    m, g = case.models.index(line.model), case.gpu_types.index(line.gpu)
    choose = p.models[m].candidates or p.candidates
    listed = ((line.tp, choose.tp), (line.pp, choose.pp), (line.dp, choose.dp), (line.batch, choose.batch),
              (line.ranks, _ranks(case, m)), (line.stage, p.deployment.stages),
              (e.level_num_seqs, limits.choices))  # fmt: skip
    if any(stated not in allowed for stated, allowed in listed):
        return None
    work = layer_work(case.architectures[m], p.models[m].weights, p.models[m].kv)
    largest = max((len(s.free) for s in case.servers if s.gpu == g), default=0)
    across, stages = p.cluster.tensor_groups_cross_servers, p.cluster.pipelines_cross_servers
    unit = 1 if across else line.ranks * line.tp * (1 if stages else line.pp)
    costs, refused, of = source.engine(m, g, line.tp, line.pp, line.ranks), "", None
    if isinstance(costs, str):
        refused = costs
    elif unit > largest:
        refused = f"units of at most {largest} GPUs"
    elif math.prod(line.degrees) > case.free_gpus[g]:
        refused = f"at most {case.free_gpus[g]} GPUs"
    else:
        sent = None
        if line.stage != "both":
            drafts = drafts_of(limits, case.architectures[m], p.models[m].weights, p.models[m].kv)
            bytes_of = partial(_cache_bytes, work, drafts)
            sent = Sent(bytes_of, case.net_bytes_per_s(g, line.tp * line.pp), p.deployment.link)
        asked, prompts = _asked(case, m), case.prompts(m)
        cached = np.zeros(len(asked.prompt))
        if prompts is not None and line.stage != "decode":

            def as_it_is(cached: Array, other: Array | None = None) -> Derived | None:
                own = as_planned(e, costs, limits, asked, line.batch, line.stage, cached)
                return planned(own, costs, limits, asked, line.batch, line.stage, sent, cached, other)

            cached = _cached(case, m, prompts, as_it_is, float(t_slice[m]))
        of = planned(e, costs, limits, asked, line.batch, line.stage, sent, cached)
        refused = "" if of is not None and of.fits.any() else "a level that some request can be on"
    rate = 1.0 / e.token_s
    return Candidate(m, g, line.tp, line.pp, line.dp, line.batch, unit, rate, 0.0, refused, of, stage=line.stage,
                     ranks=line.ranks)  # fmt: skip


def _running(case: OrchestrationCase, source: RateSource, limits: Continuous, r: RunningInstance) -> ConfigurationLine:
    """An engine that runs as a plan's line, at the step that its batch has; a step of 0 where it cannot be."""
    gpu, step = r.gpu or case.gpu_types[0], 0.0
    if r.model in case.models and gpu in case.gpu_types:
        m = case.models.index(r.model)
        costs = source.engine(m, case.gpu_types.index(gpu), r.tp, r.pp, r.attention_ranks)
        if not isinstance(costs, str):
            asked = _asked(case, m)
            nothing = np.zeros(len(asked.prompt))
            step = step_of_running(costs, limits, asked, r.batch, r.stage, limits.choices[0], nothing)
    stated: dict[str, Any] = {
        "step_s": step, "wait_s": 1.0, "place_wait_s": 0.0, "most_of_wait": None, "level_num_seqs": limits.choices[0],
        "waits": limits.wait_levels[0], "token_s": 1.0,
    }  # fmt: skip
    engine = EngineLevelLine.model_construct(**stated)  # the rest of a line is recomputed
    ranks = r.attention_ranks if r.attention_ranks > 1 else None
    return ConfigurationLine(
        model=r.model, gpu=gpu, tp=r.tp, pp=r.pp, dp=r.dp, attention_ranks=ranks,
        batch=r.batch, instances=0, gpus=0, requests=0.0, stage=r.stage,
    ).model_copy(update={"engine": engine})  # fmt: skip


def _ranks(case: OrchestrationCase, m: int) -> list[int]:
    """Attention ranks that engines of a model may have: without routed experts several would be replicas."""
    choose = case.problem.models[m].candidates or case.problem.candidates
    return sorted(choose.attention_ranks) if case.architectures[m].routed else [1]


def _cached(
    case: OrchestrationCase, m: int, prompts: Prompts, at: Callable[..., Derived | None], t_slice_s: float
) -> Array:  # fmt: skip
    """Tokens of prompts in a prefix cache, found by those in time at the level with all that anybody could find.

    Args:
        at: the level by the tokens that its cache has of each prompt, and what requests see there with others.
    """
    trace, limit = prompts.trace, case.problem.slo.ttft_s
    due = case.slo_factor[case.request_model == m] * t_slice_s * trace.output_tokens
    if (plain := at(np.zeros(len(due)))) is None:
        return np.zeros(len(due))
    part = plain.part / plain.ranks
    everything = prompts.found(part, plain.idle_kv_tokens)
    low, high = np.zeros(len(due), dtype=np.int64), prompts.blocks + 1  # the fewest blocks that are enough
    while (low < high).any():
        middle = (low + high) // 2
        seen = at(everything, np.minimum(middle, prompts.blocks) * float(prompts.block_tokens))
        assert seen is not None
        enough = seen.fits & (seen.whole_s <= due) & (seen.late_s <= (math.inf if limit is None else limit))
        high = np.where((low < high) & enough, middle, high)
        low = np.where((low < high) & ~enough, middle + 1, low)
    return prompts.found(part, plain.idle_kv_tokens, low)


def _cache_bytes(work: LayerWork, drafts: Drafts | None, prompt: Array) -> Array:
    """Of the KV caches of prompts, the draft model's included, whatever the number of GPUs that hold them."""
    if drafts is not None:
        guessed = 0.0 if drafts.work is None else _cache_bytes(drafts.work, None, prompt)
        return (1.0 + drafts.head) * _cache_bytes(work, None, prompt) + guessed
    kept = work.kept_share * np.maximum(prompt - work.window_tokens, 0.0) if work.kept_share else 0.0
    return (prompt - kept) * work.kv_bytes_per_token_all_layers + work.layers * work.state_bytes


def _asked(case: OrchestrationCase, m: int) -> Asked:
    """A model's requests, each of a token of prompt and of output at least; one of none."""
    prompt, output, weight = (x if len(x) else np.ones(1) for x in case.lengths(m))
    weight = weight if weight.sum() > 0 else np.ones(len(weight))
    prompt, output = np.maximum(prompt, 1.0), np.maximum(output, 1.0)
    return Asked(prompt, output, weight / weight.sum(), *case.stream(m), case.problem.slo.itl_s)


def _superfluous(case: OrchestrationCase, possible: list[Candidate]) -> Iterator[Candidate]:
    """Those whose work others do on the same GPUs, which no plan uses while changes have no price.

    "Does the work of" is transitive, so a candidate stays if all that do its work have their work done by it, too; of
    such equals the last one stays.
    """
    if case.problem.change.running:
        return
    alike: dict[tuple[int, int], list[Candidate]] = {}
    for c in possible:
        alike.setdefault((c.model, c.gpu), []).append(c)
    for (m, _), of in alike.items():
        once = case.problem.models[m].maximum_instances is not None
        for i, c in enumerate(of):
            if any(_does_work_of(d, c, once) and (j > i or not _does_work_of(c, d, once))
                   for j, d in enumerate(of) if j != i):  # fmt: skip
                yield replace(c, refused=DOMINATED)


def _does_work_of(d: Candidate, c: Candidate, once: bool) -> bool:
    """As many copies of d as fit in place of one c (`once`: at most one) serve every request no later."""
    units = c.tp * c.pp * c.dp // c.unit
    copies = c.unit // d.unit * units // (d.tp * d.pp * d.dp // d.unit)
    slots = min(copies, 1) * d.slots if once else copies * d.slots
    quick = d.tokens_per_s >= c.tokens_per_s and d.prefill_s_per_token <= c.prefill_s_per_token
    return copies >= 1 and slots >= c.slots and quick


def _rates(case: OrchestrationCase, t_slice: Array, held: list[float]) -> tuple[tuple[Group, ...], float]:
    """Requests given as classes: a group each; the bins of their rates, else 24 of the duration or `bins.seconds`."""
    r = case.problem.requests
    rows = r.classes or ()
    T = max((len(c.requests_per_s) for c in rows if isinstance(c.requests_per_s, tuple)), default=0)
    if T:
        assert r.classes_bin_s is not None
        bin_s = r.classes_bin_s
    else:
        assert r.duration_s is not None
        T = max(1, math.ceil(r.duration_s / (case.problem.bins.seconds or r.duration_s / 24) - 1e-9))
        bin_s = r.duration_s / T
    _bounded(T)
    groups, numbers = [], [0] * len(case.models)
    for c in rows:
        m = case.models.index(c.model)
        numbers[m] += 1
        due = c.slo_factor * c.output_tokens * float(t_slice[m])
        groups.append(Group(
            model=m, arrivals=np.broadcast_to(np.asarray(c.requests_per_s, dtype=float), T) * bin_s,
            output_tokens=c.output_tokens, prompt_tokens=c.prompt_tokens, deadline_s=due,
            weight=case.problem.models[m].weight * c.weight, prompt=np.array([_whole(case, c.prompt_tokens)]),
            output=np.array([_whole(case, c.output_tokens)]), due=np.array([due]),
            number=np.array([numbers[m] - 1]), too_long=c.prompt_tokens + c.output_tokens > held[m],
        ))  # fmt: skip
    return tuple(groups), bin_s


def _whole(case: OrchestrationCase, tokens: float) -> float:
    """A token at least on engines, which compute one in every step."""
    return tokens if case.problem.continuous is None else max(1.0, tokens)


def _requests(
    case: OrchestrationCase, trace: Trace, possible: list[Candidate], t_slice: Array, held: list[float],
    output: list[float],
) -> tuple[tuple[Group, ...], float]:  # fmt: skip
    """A trace: groups of each model by quantiles of length and of seconds allowed per token; bins of a mean service."""
    per_token = case.slo_factor * t_slice[case.request_model]
    due = per_token * trace.output_tokens
    long = trace.prompt_tokens + trace.output_tokens > np.array(held)[case.request_model]
    last = float(trace.arrival_s[-1])
    asked = set(case.request_model.tolist())
    services = [output[c.model] / c.tokens_per_s for c in possible if c.model in asked]
    engines = case.problem.continuous is not None
    if engines:  # whatever candidates there are
        services = [output[m] * float(t_slice[m]) for m in asked]
    typical = float(np.median(services)) if services else 1.0
    most = MOST_BINS_ON_ENGINES if engines else MOST_BINS_OF_ARRIVALS
    bin_s = case.problem.bins.seconds or max(typical, last / most, LEAST_BIN_S)
    T = max(1, math.ceil(float(due[~long].max(initial=0.0)) / bin_s)) if last == 0 else math.floor(last / bin_s) + 1
    T += math.ceil((float(due.max()) if engines else _longest_wait(case, trace, possible, due, long)) / bin_s)
    _bounded(T)
    of_bin = np.minimum((trace.arrival_s / bin_s).astype(np.int64), T - 1)
    groups = []
    for m, served in enumerate(case.problem.models):
        numbers = np.cumsum(case.request_model == m) - 1
        for r, too_long in _members(case, trace, possible, per_token, long, m):
            groups.append(Group(
                model=m, arrivals=np.bincount(of_bin[r], minlength=T).astype(float),
                output_tokens=float(trace.output_tokens[r].mean()), prompt_tokens=float(trace.prompt_tokens[r].mean()),
                deadline_s=float(due[r].mean()), weight=served.weight, prompt=trace.prompt_tokens[r].astype(float),
                output=trace.output_tokens[r].astype(float), due=due[r], number=numbers[r], too_long=too_long,
            ))  # fmt: skip
    return tuple(groups), bin_s


def _members(
    case: OrchestrationCase, trace: Trace, possible: list[Candidate], per_token: Array, long: Mask,
    m: int,
) -> Iterator[tuple[Ints, bool]]:  # fmt: skip
    """Requests of each group of a model: those too long for any candidate, then by length, then by allowance."""
    mine = case.request_model == m
    if (mine & long).any():
        yield np.flatnonzero(mine & long), True
    r = np.flatnonzero(mine & ~long)
    if not len(r):
        return
    groups, tokens, allowed = case.problem.bins.groups(len(trace)), trace.output_tokens[r], per_token[r]
    if groups is None:
        for one in r:
            yield np.array([one]), False
        return
    by_tokens, by_slo = groups
    lengths = np.quantile(tokens, np.arange(1, by_tokens) / by_tokens)
    # Groups by allowance end where a candidate becomes able to serve them, if such a knee is near the quantile.
    low, high = allowed.min(), allowed.max()
    knees = [x for x in (1.0 / c.tokens_per_s for c in possible if c.model == m) if low < x <= high]
    edges = []
    for edge in np.quantile(allowed, np.arange(1, by_slo) / by_slo):
        nearest = min(knees, key=lambda x: abs(x - edge), default=edge)
        edges.append(nearest if abs(nearest - edge) <= (high - low) / (2 * by_slo) else edge)
    by_length = np.searchsorted(np.unique(lengths), tokens, side="right")
    by_allowance = np.searchsorted(np.unique(np.array(edges, dtype=float)), allowed, side="right")
    order = np.lexsort((by_allowance, by_length))
    new = (np.diff(by_length[order]) != 0) | (np.diff(by_allowance[order]) != 0)
    for part in np.split(order, np.flatnonzero(new) + 1):
        yield r[np.sort(part)], False


def _longest_wait(case: OrchestrationCase, trace: Trace, possible: list[Candidate], due: Array, long: Mask) -> float:
    """Seconds that some request can wait before decoding at its model's highest rate, within any TTFT limit."""
    best = 0.0
    for m in range(len(case.models)):
        rate = max((c.tokens_per_s for c in possible if c.model == m), default=0.0)
        mine = (case.request_model == m) & ~long
        if rate > 0 and mine.any():
            best = max(best, float((due[mine] - trace.output_tokens[mine] / rate).max()))
    limit = case.problem.slo.ttft_s
    return best if limit is None else min(best, limit)


def _bounded(T: int) -> None:
    if T > MOST_BINS:
        raise InputError(Mistake(None, "bins.seconds", f"{T:,} time bins", f"at most {MOST_BINS:,}: wider bins"))
