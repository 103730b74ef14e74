"""LoRA adapters: the memory that an engine sets aside for them, and how much slower its iterations are as stated.

vLLM reserves `max_loras` slots of `max_lora_rank` next to the weights (vllm/lora/layers). An adapter of rank r adds to
a projection of d_in × d_out a matrix A of d_in·r and a matrix B of r·d_out numbers in 16 bits. Of t GPUs of tensor
parallelism a column-parallel projection (queries with their gate, keys, values, gate, up) has A whole and B/t on each,
of keys and values whole heads. A row-parallel one (output, down) has A/t and B whole.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from optmodels.catalog.types import Architecture, Entry
from optmodels.limits import Limit
from optmodels.units import GIB, Gib

BYTES = 2.0  # of a number


class Lora(Entry):
    """LoRA adapters of an engine; vLLM's names."""

    max_loras: Annotated[
        Annotated[int, Field(strict=True, ge=0, le=10_000)],
        Limit("LoRA adapters loaded at a time", "least", off=0),
    ] = Field(description="adapters that an engine holds in GPU memory at a time, at the expense of its KV cache")
    max_lora_rank: Literal[8, 16, 32, 64, 128, 256, 320, 512] = Field(default=16, description="largest rank of one")
    gib_each: Gib | None = Field(
        default=None,
        description="memory of one adapter on all GPUs of an engine, or of an attention rank, together; default: by "
        "its rank, for all projections of attention and of dense feed-forward layers in 16 bits",
    )
    slower: Annotated[float, Field(ge=1, le=10, allow_inf_nan=False)] = Field(
        default=1.0, description="iteration time with adapters over that without, as you measured it; default: 1"
    )


def is_known(model: Architecture) -> bool:
    """Whether the projections of a model follow from its shape."""
    return model.mla is None and model.linear is None and model.compressed is None


def adapter_bytes(lora: Lora | None, model: Architecture, tp: int) -> float:
    """Memory of the adapters on each of `tp` GPUs, bytes.

    Args:
        lora: adapters of the engine; None: none.
        model: model that they adapt.
        tp: GPUs of a rank.
    """
    if lora is None:
        return 0.0
    if lora.gib_each is not None:
        return lora.max_loras * lora.gib_each * GIB / tp
    attention = model.layers if model.attention_layers is None else model.attention_layers
    routed = 0 if model.moe is None else model.moe.layers or model.layers - model.moe.dense_layers
    dense = model.layers - routed if model.ffn_layers is None else model.ffn_layers
    hidden, queries = model.hidden, model.heads * model.head_dim * (2 if model.attention_gate else 1)
    keys = math.ceil(model.kv_heads / tp) * (model.head_dim + (model.value_head_dim or model.head_dim))
    values = model.heads * (model.value_head_dim or model.head_dim)
    of_attention = 4.0 * hidden + queries / tp + keys + values / tp  # A of three, B of the output projection
    of_ffn = model.ffn_matrices * (hidden + model.ffn / tp)
    return lora.max_loras * BYTES * lora.max_lora_rank * (attention * of_attention + dense * of_ffn)
