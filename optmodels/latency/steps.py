"""Cost of one engine step on one deployment: the one form in which latencies reach plans and simulators.

A step processes prompt chunks (p tokens over k earlier ones) and decoding requests (one token over c earlier ones):

    t = fixed + experts·touched + [carries a prompt]·prompt_step
        + Σ over chunks   (prompt_token·p + prompt_pair·p·(k + p/2) + prompt_context·k)   windows: `StepCosts.pairs`
        + Σ over decodes  (decode_request + context·c),   context: mixed_context in a step that carries a prompt

Everything but the experts touched is a sum over the requests of the step, so that the work of a request over its life
does not depend on the others (`engine.continuous`). Where an engine speculates (`speculation`), a decode costs what
its draft tokens do, too, and makes `tokens` of them in the mean. Whatever predicts (peaks of a roofline, the engines'
global coefficients, a model fitted to one's own measurements) is put into this form; its accuracy is stated next to
it by `Provenance`.

An engine of D data-parallel attention ranks takes one step with every rank. Its costs assume work that is even
over the ranks: a rank that has the whole work takes D times its seconds, and the others wait for it at every layer, but
for the experts, which are spread over all GPUs and compute all ranks' tokens (`StepCosts.step_of_ranks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from optmodels.arrays import Array
from optmodels.errors import InputError
from optmodels.latency.calibration import quantile_factor


@dataclass(frozen=True)
class Experts:
    """Routed experts of a step, all layers together.

    Attributes:
        all_s: seconds to read all of them.
        experts, active: E and k of each layer.
    """

    all_s: float
    experts: int
    active: int

    def seconds(self, tokens: Array | float) -> Array:
        """Seconds for the experts that n tokens touch: all·(1 − (1 − k/E)ⁿ)."""
        return np.asarray(self.all_s * (1.0 - (1.0 - self.active / self.experts) ** np.asarray(tokens, dtype=float)))


@dataclass(frozen=True)
class AttentionWindow:
    """Parts that attend to this many tokens only: layers with a window, or attention with an indexer.

    Attributes:
        share: share of the layers, or of the bytes of context read.
        tokens: tokens that these attend to at most.
        pair_share: pair share of the seconds of a prompt's pairs.
    """

    share: float
    tokens: int
    pair_share: float


def attended_pairs(tokens: Array, earlier: Array, window_tokens: Array | float, pair_share: Array | float) -> Array:
    """Mean over the layers of the pairs of p tokens after k earlier ones with those they attend to.

    ∫ `StepCosts.seen` from k to k + p.

    Args:
        tokens, earlier: p and k.
        window_tokens: window tokens that layers with a window attend to at most; infinite without any.
        pair_share: pair share of these layers.
    """
    hidden, before = (np.maximum(x - window_tokens, 0.0) for x in (earlier + tokens, earlier))
    return tokens * (earlier + tokens / 2.0) - pair_share * (hidden - before) * (hidden + before) / 2.0


@dataclass(frozen=True)
class StepCosts:
    """Seconds of an engine's steps on one deployment; every coefficient ≥ 0.

    Attributes:
        fixed_s: a step, whatever it does: weights read, launches, collectives' latency, the scheduler.
        prompt_step_s: further seconds of a step that carries a prompt.
        prompt_token_s: a prompt token.
        prompt_pair_s: a prompt token and an earlier one that it attends to.
        prompt_context_s: an earlier token of a chunk's own prompt (its KV is read once a step).
        decode_request_s: a decoding request.
        context_s: a token of a decoding request's context, in a step without prompts.
        mixed_context_s: the same in a step that carries a prompt.
        request_s: a request, once, outside the engine's steps (tokeniser, HTTP): in its TTFT only.
        experts: None for dense models.
        window: None where every layer attends to everything.
        drafts: k, tokens that a decoding request has verified in a step next to its own.
        tokens: tokens that it gets of a step, in the mean: 1 without draft tokens.
        prompt_expert_s, decode_expert_s: of `prompt_token_s` and `decode_request_s`, products with routed experts.
    """

    fixed_s: float
    prompt_step_s: float = 0.0
    prompt_token_s: float = 0.0
    prompt_pair_s: float = 0.0
    prompt_context_s: float = 0.0
    decode_request_s: float = 0.0
    context_s: float = 0.0
    mixed_context_s: float = 0.0
    request_s: float = 0.0
    experts: Experts | None = None
    window: AttentionWindow | None = None
    drafts: int = 0
    tokens: float = 1.0
    prompt_expert_s: float = 0.0
    decode_expert_s: float = 0.0

    def scaled(self, factor: float) -> StepCosts:
        """Every second times a factor."""
        seconds = {name: value * factor for name, value in vars(self).items() if name.endswith("_s")}
        experts = None if self.experts is None else replace(self.experts, all_s=self.experts.all_s * factor)
        return replace(self, **seconds, experts=experts)

    def seen(self, context: Array | float) -> Array:
        """Mean over the layers of the earlier tokens that a token with this context attends to."""
        c = np.asarray(context, dtype=float)
        if self.window is None:
            return c
        return self.window.share * np.minimum(c, self.window.tokens) + (1.0 - self.window.share) * c

    def pairs(self, tokens: Array | float, earlier: Array | float) -> Array:
        """Mean over the layers of the pairs of a chunk's tokens with those they attend to."""
        window, share = (np.inf, 0.0) if self.window is None else (self.window.tokens, self.window.pair_share)
        return attended_pairs(np.asarray(tokens, dtype=float), np.asarray(earlier, dtype=float), window, share)

    def step(self, tokens: Array, earlier: Array, contexts: Array) -> float:
        """Seconds of one step.

        Args:
            tokens: prompt tokens of each chunk, (m,).
            earlier: tokens of the same prompts that earlier steps processed, (m,).
            contexts: context of each decoding request, (n,).
        """
        carries = float(len(tokens) > 0)
        context = self.mixed_context_s if carries else self.context_s
        pairs = self.pairs(tokens, earlier)
        experts = (
            0.0
            if self.experts is None
            else float(self.experts.seconds(tokens.sum() + (1 + self.drafts) * len(contexts)))
        )
        return float(
            self.fixed_s + experts + carries * self.prompt_step_s
            + self.prompt_token_s * tokens.sum() + self.prompt_pair_s * pairs.sum()
            + self.prompt_context_s * self.seen(earlier).sum()
            + self.decode_request_s * len(contexts) + context * self.seen(contexts).sum()
        )  # fmt: skip

    def step_of_ranks(self, ranks: Sequence[tuple[Array, Array, Array]]) -> float:
        """Seconds of one step of an engine of several attention ranks.

        Args:
            ranks: tokens, earlier ones and contexts of each, as of `step`.
        """
        tokens, earlier, contexts = (np.concatenate(x) for x in zip(*ranks, strict=True))
        context = self.mixed_context_s if len(tokens) else self.context_s
        own = [
            (self.prompt_token_s - self.prompt_expert_s) * p.sum()
            + self.prompt_pair_s * self.pairs(p, k).sum() + self.prompt_context_s * self.seen(k).sum()
            + (self.decode_request_s - self.decode_expert_s) * len(c) + context * self.seen(c).sum()
            for p, k, c in ranks
        ]  # fmt: skip
        return self.step(tokens, earlier, contexts) + float(len(own) * max(own) - sum(own))


def static_batch(
    costs: StepCosts, batch: Array, input_tokens: int, output_tokens: int, chunk_tokens: int
) -> tuple[Array, Array]:
    """Seconds until the last first token, and of the mean decode step after it, of batches that start at once; (n,).

    Prompts fill steps of `chunk_tokens` one after another; then every request decodes in S_out − 1 steps.

    Args:
        costs: costs of a step.
        batch: requests of each batch, integers ≥ 1, (n,).
        input_tokens: S_in of every request.
        output_tokens: S_out.
        chunk_tokens: prompt tokens that a step takes.
    """
    S, largest = input_tokens, int(batch.max(initial=1.0))
    ends = np.union1d(np.arange(1, largest + 1) * S, np.arange(chunk_tokens, largest * S, chunk_tokens))
    start = np.concatenate([np.zeros(1), ends[:-1]])
    tokens, prompt, earlier = ends - start, (start // S).astype(np.intp), start % S
    each = (
        costs.prompt_token_s * tokens + costs.prompt_pair_s * costs.pairs(tokens, earlier)
        + costs.prompt_context_s * costs.seen(earlier)
    )  # fmt: skip
    of_prompts = np.cumsum(np.bincount(prompt, each))[batch.astype(np.intp) - 1]
    steps = np.ceil(batch * S / chunk_tokens)
    first = costs.request_s + steps * (costs.fixed_s + costs.prompt_step_s) + of_prompts
    contexts = S + np.arange(1.0, output_tokens)
    seen = float(costs.seen(contexts).mean()) if len(contexts) else 0.0
    decode = costs.fixed_s + batch * (costs.decode_request_s + costs.context_s * seen)
    if costs.experts is not None:
        full, last = (
            costs.experts.seconds(chunk_tokens),
            costs.experts.seconds(batch * S - (steps - 1.0) * chunk_tokens),
        )
        first, decode = first + (steps - 1.0) * full + last, decode + costs.experts.seconds(batch)
    return first, decode if len(contexts) else np.zeros_like(batch)


_PARTS = {"llm": "LLM", "gpu": "GPU"}


def never_measured(parts: Sequence[str]) -> str:
    """The parts of a deployment without a measurement, or never measured with one another, in words.

    Args:
        parts: names of parts, or several joined by "|".
    """
    single = [_PARTS.get(p, p) for p in parts if "|" not in p]
    if single:
        return f"no measurement of this {' and '.join(single)}"
    joint = [_PARTS.get(p, p) for p in dict.fromkeys(x for each in parts for x in each.split("|"))]
    return f"{', '.join(joint[:-1])} and {joint[-1]} never measured together" if joint else ""


@dataclass(frozen=True)
class ToMeasure:
    """A deployment without measurement whose interval a few rows of one's own narrow.

    Attributes:
        engine, gpu, llm, precision: its names, as the built-in coefficients have them.
        tp, attention_ranks: its parallelism.
        rows: number of rows, over three workloads.
        tpot, ttft: 0.9 quantile of measured/predicted with these rows.
    """

    engine: str
    gpu: str
    llm: str
    precision: str
    tp: int
    attention_ranks: int
    rows: int
    tpot: float
    ttft: float


@dataclass(frozen=True)
class Provenance:
    """Where a deployment's latencies come from and how far they may be off.

    Attributes:
        model: its name or file: ``default``, ``roofline``, a path.
        source: one sentence: measurements, publisher, date.
        transfer: parts of the deployment without a measurement (LLM, GPU, precision, engine, parallelism), such as
            ``("llm",)``, or never measured together, such as ``("llm|gpu",)``; empty where it was measured.
        tpot, ttft: level → quantile of measured/predicted that applies; empty without a measurement.
        notes: further sentences for the user.
        runtime_gib: level → lower and upper end of the memory that engines take beyond the prediction, GiB a GPU.
        to_measure: rows that would narrow the interval; None: measured, or not a prediction of the coefficients.
    """

    model: str
    source: str
    transfer: tuple[str, ...] = ()
    tpot: tuple[tuple[float, float], ...] = ()
    ttft: tuple[tuple[float, float], ...] = ()
    notes: tuple[str, ...] = ()
    runtime_gib: tuple[tuple[float, tuple[float, float]], ...] = ()
    to_measure: ToMeasure | None = None

    def factors(self, safety: float | None, path: str = "latency.safety") -> tuple[float, float]:
        """What times per output token and to first token are multiplied by to stay above fresh measurements.

        Args:
            safety: the probability that they do, or None for the central prediction.
            path: path of the level in the instance.

        Raises:
            InputError: a level that the measurements do not support, or no measurement.
        """
        tpot, ttft = ({f"{level:g}": q for level, q in found} for found in (self.tpot, self.ttft))
        try:
            return quantile_factor(tpot, safety), quantile_factor(ttft, safety)
        except InputError as error:
            raise InputError([replace(m, path=path) for m in error.mistakes]) from None
