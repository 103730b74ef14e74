"""Operating points of the orchestration problem: configurations with their rates, request classes, who may use what.

A request of l output tokens may start on configuration c as long as wait + prefill + l/F_c ≤ its deadline θ·l·t_slice,
with F_c the worst-case rate (batch full): MaaSO §IV-F plans with it so that no admission delays others past theirs.
Requests are grouped by model, output length and seconds allowed per token; a class has its requests' *mean* length and
deadline (upper edges in their place would cost 4–15 points of attainment). The groups by allowance end where a
configuration becomes admissible, so that most classes agree on what they may use.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from formulations.orchestration.problem import MOST_BINS, Orchestration, OrchestrationCase
from formulations.orchestration.rates import Rates, RateSource
from optmodels.errors import InputError, Mistake, Mistakes
from optmodels.latency.memory import CHUNK_TOKENS, kv_bytes, longest_request, pass_bytes, weight_bytes
from optmodels.latency.work import layer_work
from optmodels.traces.types import Trace
from optmodels.units import GIB

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
HELD = 1 + 1e-9  # rounding of what a candidate can hold
BINS_WANTED = 16
SERVICE_BINS = 1.0


@dataclass(frozen=True)
class Configuration:
    """One way to run one model: an instance of it is what a plan counts.

    Attributes:
        model, gpu: index into the case's models and GPU types.
        tp, pp, dp: degrees; `dp` replicas of `pp` stages of `tp` GPUs.
        batch: requests each replica decodes at once.
        unit: GPUs that must share a server; an instance has `units` of them.
        tokens_per_s: (slots,) of one request among 1 … slots.
        prefill_s_per_token: of the prompt.
        gib_per_gpu: weights, KV cache of a full batch and activations.
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

    @property
    def gpus(self) -> int:
        """GPUs of an instance."""
        return self.tp * self.pp * self.dp

    @property
    def units(self) -> int:
        """Parts of an instance that may stand in different servers."""
        return self.gpus // self.unit

    @property
    def slots(self) -> int:
        """Requests an instance decodes at once."""
        return self.batch * self.dp

    @property
    def worst_rate(self) -> float:
        """Tokens/s of one request when every slot is taken."""
        return float(self.tokens_per_s[-1])

    @property
    def parallelism(self) -> str:
        """As the paper writes it: tp-2, dp (one GPU), tp-4 pp-2 dp-2."""
        parts = [f"{k}-{v}" for k, v in (("tp", self.tp), ("pp", self.pp), ("dp", self.dp)) if v > 1]
        return " ".join(parts) or "dp"


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


@dataclass(frozen=True)
class RequestClasses:
    """Groups of like requests, K of them, with T bins of arrivals.

    Attributes:
        label: for people.
        model: index of the model.
        arrivals: (K, T) requests arriving in each bin.
        output_tokens, prompt_tokens: means.
        deadline_s: mean, from arrival to last token.
        slo_factor: mean θ.
        weight: in S.
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
        counts: Array = self.arrivals.sum(axis=1)
        return counts


@dataclass(frozen=True)
class OrchestrationTables:
    """What formulations and heuristics choose from.

    Attributes:
        case: the resolved problem.
        configurations: usable candidates, C of them.
        discarded: the others.
        classes: groups of requests, K of them.
        bin_s: width of a time bin.
        t_slice_s: seconds per token of an idle one-GPU instance, by model.
        service_s: (K, C) prefill and decoding at the worst-case rate; inf where the model differs.
        share: (K, C) of the class's requests that meet their deadline on an unloaded instance.
        wait_s: (K, C) longest wait that still meets the deadline, mean of those requests; negative: there is none.
        class_of: (n,) class of every request of the trace; None where requests are given as classes.
        deadline_s: (n,) seconds from arrival to the last token, of every request of the trace.
        most_tokens: (M,) of prompt and output together that any candidate can hold; longer requests are never served.
    """

    case: OrchestrationCase
    configurations: tuple[Configuration, ...]
    discarded: tuple[Discarded, ...]
    classes: RequestClasses
    bin_s: float
    t_slice_s: Array
    service_s: Array
    share: Array
    wait_s: Array
    class_of: Ints | None
    deadline_s: Array | None
    most_tokens: Array

    def servable(self, model: Ints, tokens: npt.ArrayLike) -> Ints:
        """Codes of the models asked for, −1 where no candidate can hold so many tokens."""
        return np.where(np.asarray(tokens) > self.most_tokens[model] * HELD, -1, model)

    @cached_property
    def admissible(self) -> Mask:
        """(K, C): an unloaded instance meets the deadline of some."""
        mask: Mask = (self.wait_s >= 0) & (self.share > 0)
        return mask

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
    def slots_of(self) -> Ints:
        """(C,) slots of one instance."""
        return np.array([c.slots for c in self.configurations], dtype=np.int64)

    def name(self, c: int) -> str:
        """A configuration for people: mistral-7b tp-2 B16, with the GPU type where there are several."""
        x = self.configurations[c]
        gpu = f" {self.case.gpu_types[x.gpu]}" if len(self.case.gpu_types) > 1 else ""
        return f"{self.case.models[x.model]} {x.parallelism} B{x.batch}{gpu}"


def build_tables(problem: Orchestration) -> OrchestrationTables:
    """Configurations, request classes, and which class may use which configuration for how long a wait.

    Raises:
        InputError: latencies are missing, or t_slice cannot be told.
    """
    case = problem.resolve()
    most = most_tokens(case)
    prompt, output = _mean_lengths(case, most)
    source = RateSource(case, prompt, output)
    found: list[Configuration] = []
    discarded: list[Discarded] = []
    for made in _candidates(case, source, prompt, output, most):
        if isinstance(made, Discarded):
            discarded.append(made)
        else:
            found.append(made)
    cut = dominated(case, found)
    for i, j in cut.items():
        x, y = found[i], found[j]
        discarded.append(Discarded(case.models[x.model], case.gpu_types[x.gpu], x.tp, x.pp, x.dp, x.batch,
                                   f"{y.parallelism} B{y.batch} does its work on as many GPUs"))  # fmt: skip
    configurations = tuple(x for i, x in enumerate(found) if i not in cut)
    t_slice = _t_slice(case, source)
    # Grouped by all that is usable, so that what is cut as dominated changes no group.
    classes, bin_s, class_of, deadline = _classes(case, tuple(found), t_slice, most)
    service, share, wait = _service(case, configurations, classes, class_of, deadline, most)
    return OrchestrationTables(
        case, configurations, tuple(discarded), classes, bin_s, t_slice,
        service, share, wait, class_of, deadline, most,
    )  # fmt: skip


def most_tokens(case: OrchestrationCase) -> Array:
    """(M,) tokens of one request that the roomiest candidate holds beside the weights; ∞ where none holds even those.

    (A model too big for all servers has no candidates, whose reasons name its own lengths.)
    """
    p, most = case.problem, np.zeros(len(case.models))
    for m, served in enumerate(p.models):
        work = layer_work(case.architectures[m], served.weights, served.kv)
        choose = served.candidates or p.candidates
        for g, gib in enumerate(case.vram_gib):
            for tp, pp in ((tp, pp) for tp in choose.tp for pp in choose.pp if tp * pp <= case.free_gpus[g]):
                room = tp * pp * p.memory.vram_usable * gib * GIB - float(weight_bytes(work, tp))
                most[m] = max(most[m], longest_request(work, tp, room))
    return np.where(most > 0, most, np.inf)


def _held(case: OrchestrationCase, trace: Trace, most: Array) -> Mask:
    """(n,) requests that some candidate can hold."""
    held: Mask = trace.prompt_tokens + trace.output_tokens <= most[case.request_model] * HELD
    return held


def _mean_lengths(case: OrchestrationCase, most: Array) -> tuple[Array, Array]:
    """Mean prompt and output tokens of each model's requests that can be held (1 where it has none)."""
    n = len(case.models)
    prompt, output, count = np.zeros(n), np.zeros(n), np.zeros(n)
    if case.trace is not None:
        held = _held(case, case.trace, most).astype(float)
        count += np.bincount(case.request_model, held, n)
        prompt += np.bincount(case.request_model, case.trace.prompt_tokens * held, n)
        output += np.bincount(case.request_model, case.trace.output_tokens * held, n)
    for c in case.problem.requests.classes or ():
        m = case.models.index(c.model)
        if c.prompt_tokens + c.output_tokens > most[m] * HELD:
            continue
        weight = float(np.mean(c.requests_per_s))
        count[m] += weight
        prompt[m] += weight * c.prompt_tokens
        output[m] += weight * c.output_tokens
    safe = np.where(count > 0, count, 1.0)
    return np.where(count > 0, prompt / safe, 1.0), np.where(count > 0, output / safe, 1.0)


def _longest(case: OrchestrationCase, most: Array) -> Array:
    """Longest prompt + output of each model's requests that can be held."""
    longest = np.ones(len(case.models))
    if case.trace is not None:
        held = _held(case, case.trace, most)
        tokens = case.trace.prompt_tokens + case.trace.output_tokens
        np.maximum.at(longest, case.request_model[held], tokens[held])
    for c in case.problem.requests.classes or ():
        m = case.models.index(c.model)
        if c.prompt_tokens + c.output_tokens <= most[m] * HELD:
            longest[m] = max(longest[m], c.prompt_tokens + c.output_tokens)
    return longest


def _candidates(
    case: OrchestrationCase, source: RateSource, prompt: Array, output: Array, most: Array
) -> Iterator[Configuration | Discarded]:
    p = case.problem
    rule = p.memory.tokens_per_slot
    tokens = (
        prompt + output
        if rule == "mean"
        else _longest(case, most)
        if rule == "max"
        else np.full(len(prompt), float(rule))
    )
    largest = [max((len(s.free) for s in case.servers if s.gpu == g), default=0) for g in range(len(case.gpu_types))]
    for m, served in enumerate(p.models):
        choose = served.candidates or p.candidates
        work = layer_work(case.architectures[m], served.weights, served.kv)
        for g, kind in enumerate(case.gpu_types):
            for tp, pp in sorted({(tp, pp) for tp in choose.tp for pp in choose.pp}):
                rates = source.rates(m, g, tp, pp, max(choose.batch))
                unit = (
                    1 if p.cluster.tensor_groups_cross_servers else tp if p.cluster.pipelines_cross_servers else tp * pp
                )
                for dp, batch in sorted({(d, b) for d in choose.dp for b in choose.batch}):
                    # MS(d): weights and KV cache over the GPUs of a replica, a pass over those of each stage.
                    share = float(weight_bytes(work, tp) + kv_bytes(work, tp, batch, tokens[m])) / (tp * pp)
                    gib = (share + float(pass_bytes(work, tp, min(prompt[m], CHUNK_TOKENS), 1)) / tp) / GIB
                    reason = _unusable(case, rates, batch, unit, largest[g], tp * pp * dp, g, gib)
                    if reason:
                        yield Discarded(served.model, kind, tp, pp, dp, batch, reason)
                        continue
                    load = np.ceil(np.arange(1, batch * dp + 1) / dp).astype(np.int64)
                    yield Configuration(
                        m, g, tp, pp, dp, batch, unit, rates.tokens_per_s[load - 1], rates.prefill_s_per_token, gib
                    )


def _unusable(
    case: OrchestrationCase, rates: Rates, batch: int, unit: int, largest: int, gpus: int, g: int, gib: float
) -> str:
    """Why a candidate cannot be used; empty if it can."""
    usable = case.problem.memory.vram_usable * case.vram_gib[g]
    if not np.isfinite(rates.tokens_per_s[:batch]).all():
        return rates.reason
    if unit > largest:
        return f"{unit} GPUs must share a server and the largest has {largest} that work"
    if gpus > case.free_gpus[g]:
        return f"{gpus} GPUs and {case.free_gpus[g]} work"
    if gib > usable:
        return f"{gib:.1f} GiB per GPU and {usable:.1f} GiB usable"
    return ""


def _t_slice(case: OrchestrationCase, source: RateSource) -> Array:
    """Seconds per token of an idle one-GPU instance on the first GPU type that has one (MaaSO §III-C)."""
    found, wrong = np.ones(len(case.models)), Mistakes()
    for m, served in enumerate(case.problem.models):
        if served.t_slice_s is not None:
            found[m] = served.t_slice_s
            continue
        rates = [source.rates(m, g, 1, 1, 1).tokens_per_s[0] for g in range(len(case.gpu_types))]
        known = [r for r in rates if np.isfinite(r)]
        if known:
            found[m] = 1.0 / known[0]
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
    bins = case.problem.bins
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
        length = np.digitize(trace.output_tokens[mine], _quantile_edges(trace.output_tokens[mine], bins.lengths))
        knees = np.array([1.0 / c.worst_rate for c in configurations if c.model == m])
        allowed = np.digitize(per_token[mine], _snapped(per_token[mine], bins.slo, knees))
        _, local = np.unique(length * (bins.slo + 1) + allowed, return_inverse=True)
        code[mine] = used + local
        used += int(local.max()) + 1
    n = np.bincount(code, minlength=used).astype(float)

    def mean(values: Array) -> Array:
        total: Array = np.bincount(code, values, used) / n
        return total

    model = np.zeros(used, dtype=np.int64)
    model[code] = case.request_model
    last = float(trace.arrival_s[-1])
    asked, (_, output) = np.bincount(case.request_model, minlength=len(case.models)), _mean_lengths(case, most)
    service = [output[c.model] / c.worst_rate for c in configurations if asked[c.model]]
    typical = float(np.median(service)) if service else 1.0
    bin_s = bins.seconds or max(typical / SERVICE_BINS, last / BINS_WANTED, 1e-3)
    T = (
        max(1, math.ceil((last + float(deadline[held].max(initial=0.0))) / bin_s))
        if last == 0
        else math.floor(last / bin_s) + 1
    )
    # Requests may start after the last arrival, as late as the longest wait.
    T += math.ceil(_longest_wait(case, trace, configurations, deadline, held) / bin_s)
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
    limit = case.problem.slo.ttft_s
    return float(np.clip(wait, 0.0, np.inf if limit is None else limit).max(initial=0.0))


def _quantile_edges(values: npt.NDArray[np.int64], groups: int) -> Array:
    """Inner edges of `groups` groups of about equal size."""
    edges: Array = np.unique(np.quantile(values, np.arange(1, groups) / groups))
    return edges


def _snapped(values: Array, groups: int, knees: Array) -> Array:
    """Inner edges of groups of about equal size, moved to the nearest knee inside the range where there is one."""
    edges = np.quantile(values, np.arange(1, groups) / groups)
    knees = knees[(knees > values.min()) & (knees <= values.max())]
    if len(knees):
        nearest = knees[np.abs(knees[None, :] - edges[:, None]).argmin(axis=1)] if len(edges) else edges
        reach = (values.max() - values.min()) / (2 * groups)
        edges = np.where(np.abs(nearest - edges) <= reach, nearest, edges)
    unique: Array = np.unique(edges)
    return unique


def _service(
    case: OrchestrationCase, configurations: tuple[Configuration, ...], classes: RequestClasses,
    class_of: Ints | None, deadline: Array | None, most: Array,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Seconds of prefill and decoding, the share that can be in time, and its longest wait; class by configuration."""
    K, C = len(classes), len(configurations)
    service, share, wait = np.full((K, C), np.inf), np.zeros((K, C)), np.full((K, C), -np.inf)
    limit = np.inf if case.problem.slo.ttft_s is None else case.problem.slo.ttft_s
    for m in range(len(case.models)):
        mine, of = np.flatnonzero(classes.model == m), [c for c, x in enumerate(configurations) if x.model == m]
        if class_of is not None and deadline is not None and case.trace is not None and of:
            r = np.flatnonzero(case.request_model == m)
            prompt, output, due, k = (
                v[r] for v in (case.trace.prompt_tokens, case.trace.output_tokens, deadline, class_of)
            )
        else:
            prompt, output, due, k = (v[mine] for v in (classes.prompt_tokens, classes.output_tokens,
                                                        classes.deadline_s, np.arange(K)))  # fmt: skip
        count = np.bincount(k, minlength=K)[mine]
        for c in of:
            x = configurations[c]
            service[mine, c] = (
                x.prefill_s_per_token * classes.prompt_tokens[mine] + classes.output_tokens[mine] / x.worst_rate
            )
            first = x.prefill_s_per_token * prompt
            slack = np.minimum(due - first - output / x.worst_rate, limit - first)
            can = slack >= 0
            able = np.bincount(k, can, K)[mine]
            share[mine, c] = able / np.maximum(count, 1)
            longest = np.bincount(k, np.where(can, slack, 0.0), K)[mine] / np.maximum(able, 1)
            wait[mine, c] = np.where(able > 0, longest, -np.inf)
    beyond = classes.prompt_tokens + classes.output_tokens > most[classes.model] * HELD
    share[beyond], wait[beyond] = 0.0, -np.inf
    return service, share, wait


def dominated(case: OrchestrationCase, configurations: Sequence[Configuration]) -> dict[int, int]:
    """Configurations that no optimal plan needs, each with one that does its work; nothing optimal is cut.

    r copies of c' do the work of c if they fit where c stands (unit by unit), have as many slots together, decode at
    least as fast and prefill at least as fast: every request may then wait as long, is done no later, and keeps a slot
    busy no longer. With a limit on a model's instances only r = 1 counts; nothing is cut while changes have a price.
    """
    change = case.problem.change
    if change.running:
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
