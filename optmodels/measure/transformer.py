"""A decoder-only transformer with random weights, cut for one tensor-parallel rank, run one engine step at a time.

What an engine's step does and this one does: tokens of all requests flattened through the projections; grouped KV
heads attended to by scaled_dot_product_attention, the query heads of a group folded into the query axis when decoding
(so keys and values are read once, not copied per head); keys and values written into static buffers; RMS norm,
rotary positions, gated or plain feed-forward, mixtures of experts (grouped GEMMs over the experts with tokens, routing
drawn evenly); all-reduce after attention and feed-forward; the output head on each request's last token.

What it leaves out: sampling, scheduler, tokenizer, network, block tables of a paged cache, quantised weights, and the
fusion of elementwise operations (norms apart). Time does not depend on the weights' values; they are random.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional as fn

from optmodels.catalog.types import Architecture
from optmodels.errors import Mistakes
from optmodels.measure.grid import Point

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
LEFT_OUT = (
    "sampling, scheduler, tokenizer and network; block tables of a paged KV cache; "
    "fusion of elementwise operations; quantised weights"
)


def check(arch: Architecture, tps: tuple[int, ...]) -> None:
    """Refuse what cannot be measured.

    Raises:
        InputError: latent attention, or a tensor-parallel degree that does not divide the heads.
    """
    wrong = Mistakes()
    if arch.mla is not None:
        wrong.add("--model", arch.title, "a model without latent attention (MLA), which this lacks")
    for tp in tps:
        if tp < 1 or arch.heads % tp:
            wrong.add("--tp", tp, f"a divisor of {arch.heads} heads")
    wrong.raise_any()


@dataclass(frozen=True)
class Shard:
    """One rank's part of the architecture."""

    arch: Architecture
    tp: int

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.arch.heads // self.tp

    @property
    def kv_heads(self) -> int:
        """KV heads; replicated where there are fewer than ranks."""
        return max(1, self.arch.kv_heads // self.tp)

    @property
    def kv_width(self) -> int:
        """Elements of K and V per token and layer."""
        return 2 * self.kv_heads * self.arch.head_dim

    def dense(self, layer: int) -> bool:
        """Whether a layer has the plain feed-forward."""
        return self.arch.moe is None or layer < self.arch.moe.dense_layers

    def layer_elements(self, layer: int) -> int:
        """Weights of one layer."""
        a = self.arch
        attention = a.hidden * a.head_dim * (2 * self.heads + 2 * self.kv_heads)
        if self.dense(layer) or a.moe is None:
            return attention + a.ffn_matrices * a.hidden * (a.ffn // self.tp)
        e = a.moe
        width = e.experts * e.expert_ffn + e.shared_ffn
        return attention + a.ffn_matrices * a.hidden * (width // self.tp) + a.hidden * e.experts

    @property
    def head_elements(self) -> int:
        """Embeddings and output head."""
        return self.arch.vocab // self.tp * self.arch.hidden * (1 if self.arch.tied_embeddings else 2)


def activated(y: torch.Tensor, gated: bool) -> torch.Tensor:
    """Between the two projections of a feed-forward."""
    if not gated:
        return fn.relu(y)
    gate, value = y.chunk(2, dim=-1)
    return fn.silu(gate) * value


def grouped(x: torch.Tensor, weights: torch.Tensor, routing: Routing) -> torch.Tensor:
    """(rows, k) times each row's expert's transposed (n, k): one kernel, which PyTorch has for bf16, or one a group."""
    if x.dtype == torch.bfloat16 and hasattr(fn, "grouped_mm"):
        return fn.grouped_mm(x, weights.transpose(-2, -1), offs=routing.ends)
    return torch.cat([fn.linear(x[first:last], weights[expert]) for expert, first, last in routing.groups])


class FeedForward:
    """Gated (SwiGLU) or plain (ReLU) feed-forward, all of it or one rank's columns."""

    def __init__(self, hidden: int, width: int, matrices: int, make: Any) -> None:
        self.gated = matrices == 3
        self.up = make(width * (2 if self.gated else 1), hidden)
        self.down = make(hidden, width)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """(tokens, hidden) to the same."""
        return fn.linear(activated(fn.linear(x, self.up), self.gated), self.down)


class Experts:
    """Routed and shared experts; which token goes to which expert is drawn evenly, once for each point."""

    def __init__(self, shard: Shard, make: Any) -> None:
        e = shard.arch.moe
        assert e is not None
        h, matrices, width = shard.arch.hidden, shard.arch.ffn_matrices, e.expert_ffn // shard.tp
        self.active = e.active
        self.gated = matrices == 3
        self.router = make(e.experts, h)
        self.up = make(e.experts, width * (2 if self.gated else 1), h)
        self.down = make(e.experts, h, width)
        self.shared = FeedForward(h, e.shared_ffn // shard.tp, matrices, make) if e.shared_ffn else None

    def apply(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        """(tokens, hidden) to the same."""
        weight = fn.linear(x, self.router).topk(self.active, dim=-1).values.softmax(dim=-1)
        y = activated(grouped(x[routing.token], self.up, routing), self.gated)
        y = grouped(y, self.down, routing)
        out = torch.zeros_like(x).index_add_(0, routing.token, y * weight.reshape(-1)[routing.slot].unsqueeze(-1))
        return out if self.shared is None else out + self.shared.apply(x)


@dataclass(frozen=True)
class Routing:
    """Tokens sorted by expert: (token·active,) token and slot of each row, each expert's end, and who has rows."""

    token: torch.Tensor
    slot: torch.Tensor
    ends: torch.Tensor
    groups: tuple[tuple[int, int, int], ...]

    @classmethod
    def drawn(cls, arch: Architecture, tokens: int, device: Any, generator: torch.Generator) -> Routing | None:
        """`active` different experts for every token, all sets equally likely."""
        if arch.moe is None:
            return None
        k = arch.moe.active
        expert = torch.rand(tokens, arch.moe.experts, generator=generator).topk(k, dim=-1).indices.reshape(-1)
        order = expert.argsort(stable=True)
        ends = torch.bincount(expert, minlength=arch.moe.experts).cumsum(0).to(torch.int32)
        last = ends.tolist()
        groups = tuple((e, a, b) for e, (a, b) in enumerate(pairwise([0, *last])) if b > a)
        return cls((order // k).to(device), order.to(device), ends.to(device), groups)


class Layer:
    """Weights of one layer on one rank."""

    def __init__(self, shard: Shard, layer: int, make: Any) -> None:
        a = shard.arch
        self.qkv = make((shard.heads + 2 * shard.kv_heads) * a.head_dim, a.hidden)
        self.out = make(a.hidden, shard.heads * a.head_dim)
        self.norms = [make(a.hidden) for _ in range(2)]
        self.dense = FeedForward(a.hidden, a.ffn // shard.tp, a.ffn_matrices, make) if shard.dense(layer) else None
        self.experts = None if shard.dense(layer) else Experts(shard, make)

    def feed_forward(self, x: torch.Tensor, routing: Routing | None) -> torch.Tensor:
        """Dense or routed."""
        if self.dense is not None:
            return self.dense.apply(x)
        assert self.experts is not None and routing is not None
        return self.experts.apply(x, routing)


class Weights:
    """Weights of the layers held (`held` sets, used in turn by however many layers run), embedding and head."""

    def __init__(self, shard: Shard, held: int, dtype: torch.dtype, device: Any, seed: int) -> None:
        generator = torch.Generator(device=device).manual_seed(seed)

        def make(*shape: int) -> torch.Tensor:
            x = torch.empty(*shape, dtype=dtype, device=device)
            return x.fill_(1.0) if len(shape) == 1 else x.normal_(0.0, shape[-1] ** -0.5, generator=generator)

        a = shard.arch
        # Of a MoE, hold dense and routed layers in the proportion that the model has them.
        chosen = [round(i * (a.layers - 1) / max(held - 1, 1)) for i in range(held)] if held > 1 else [a.layers - 1]
        self.layers = [Layer(shard, i, make) for i in chosen]
        self.head = make(a.vocab // shard.tp, a.hidden)
        self.embedding = self.head if a.tied_embeddings else make(a.vocab // shard.tp, a.hidden)
        self.norm = make(a.hidden)


class Attention:
    """KV views of a point in a layer's buffer, and attention over them.

    The buffer is flat, prefill requests first, then decoding ones; K before V in each. What is offloaded is a prefix
    of a part, so one contiguous copy whatever α is.
    """

    def __init__(self, shard: Shard, point: Point, device: Any, kept: int | None = None) -> None:
        d, kv = shard.arch.head_dim, shard.kv_heads
        self.shard, self.point = shard, point
        self.decodes = point.decodes if kept is None else kept  # the rest is attended to elsewhere
        self.prefill_shape = (2, point.prefills, kv, point.earlier + point.chunk, d)
        self.decode_shape = (2, self.decodes, kv, point.context + 1, d)
        self.prefill_elements = 2 * point.prefills * kv * (point.earlier + point.chunk) * d
        self.decode_elements = 2 * self.decodes * kv * (point.context + 1) * d
        self.mask: Any = None
        if point.prefills and point.earlier:
            total = point.earlier + point.chunk
            if torch.device(device).type == "cuda":
                from torch.nn.attention.bias import causal_lower_right

                self.mask = causal_lower_right(point.chunk, total)
            else:
                self.mask = torch.ones(point.chunk, total, dtype=torch.bool, device=device).tril(point.earlier)

    @property
    def elements(self) -> int:
        """Elements of the buffer."""
        return self.prefill_elements + self.decode_elements

    def prefill(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        """Chunks: (r, p, H, d) queries over the earlier tokens and themselves."""
        keys, values = buffer[: self.prefill_elements].view(self.prefill_shape)
        start = self.point.earlier
        keys[:, :, start:] = k.transpose(1, 2)
        values[:, :, start:] = v.transpose(1, 2)
        grouped = self.shard.heads != self.shard.kv_heads
        out = fn.scaled_dot_product_attention(
            q.transpose(1, 2), keys, values, attn_mask=self.mask, is_causal=self.mask is None, enable_gqa=grouped
        )
        return out.transpose(1, 2)

    def decode(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        """One token a request: (n, H, d) queries; the heads of a group are rows of one attention over its KV head."""
        first = self.prefill_elements
        keys, values = buffer[first : first + self.decode_elements].view(self.decode_shape)
        keys[:, :, -1] = k
        values[:, :, -1] = v
        n, d = q.shape[0], q.shape[-1]
        grouped = q.reshape(n, self.shard.kv_heads, self.shard.heads // self.shard.kv_heads, d)
        return fn.scaled_dot_product_attention(grouped, keys, values).reshape(n, self.shard.heads, d)


class Rotary:
    """Rotary positions of a point's tokens, angles precomputed."""

    def __init__(self, point: Point, dim: int, dtype: torch.dtype, device: Any) -> None:
        chunk = torch.arange(point.earlier, point.earlier + point.chunk).repeat(point.prefills)
        where = torch.cat([chunk, torch.full((point.decodes,), point.context)]).float()
        angle = where[:, None] * (10000.0 ** (-torch.arange(0, dim, 2).float() / dim))[None, :]
        self.cos = angle.cos().to(dtype).to(device).unsqueeze(1)
        self.sin = angle.sin().to(dtype).to(device).unsqueeze(1)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """(tokens, heads, d) to the same."""
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], dim=-1)
