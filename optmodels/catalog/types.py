"""Typed catalogue entries. All are pydantic models, so a user's inline entry is checked like ours."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from optmodels.limits import Price
from optmodels.units import (
    BytesPerSecond,
    FlopsPerSecond,
    Gbps,
    Gib,
    PositiveInt,
    UsdPerHour,
)

Market = Literal["on_demand", "spot", "reserved_1y", "reserved_3y"]
MARKETS: tuple[Market, ...] = ("on_demand", "spot", "reserved_1y", "reserved_3y")

Name = str


class Entry(BaseModel):
    """Base of catalogue entries and instance-file sections: unknown keys are mistakes, values immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Gpu(Entry):
    """One GPU (device peaks; dense, not sparse, FLOP/s)."""

    title: str = ""
    fp16_flops: FlopsPerSecond | None = Field(default=None, description="None: no published figure, cannot be modelled")
    fp8_flops: FlopsPerSecond | None = None
    fp4_flops: FlopsPerSecond | None = Field(default=None, description="None: fp4 weights are computed in 16 bit")
    mem_bytes_per_s: BytesPerSecond
    vram_gib: Gib
    pcie_bytes_per_s: BytesPerSecond | None = Field(
        default=None, description="to the host, one direction; None: not published, so no KV offload to RAM is planned"
    )
    link_bytes_per_s: BytesPerSecond = Field(
        description="to the other GPUs of the same machine, one direction: NVLink or PCIe"
    )
    source: str = ""
    note: str = ""


class MoE(Entry):
    """Mixture-of-experts feed-forward: `active` of `experts` routed experts per token, plus shared ones."""

    experts: PositiveInt
    active: PositiveInt
    expert_ffn: PositiveInt
    shared_experts: int = Field(default=0, ge=0)
    shared_ffn: int = Field(default=0, ge=0, description="total width of the shared experts")
    dense_layers: int = Field(default=0, ge=0, description="leading layers with the plain feed-forward")
    expert_precision: Literal["mxfp4"] | None = Field(
        default=None, description="of the experts as published, where the other weights have 16 bits"
    )

    @model_validator(mode="after")
    def _active_at_most_experts(self) -> MoE:
        if self.active > self.experts:
            raise ValueError(f"active ({self.active}) at most experts ({self.experts})")
        return self


class Mla(Entry):
    """Multi-head latent attention (DeepSeek-V2/V3): the cache keeps one latent and one rotary key per token."""

    kv_lora_rank: PositiveInt
    q_lora_rank: int = Field(default=0, ge=0, description="0: queries are projected directly")
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt
    index_heads: int = Field(default=0, ge=0, description="of the indexer of sparse attention (DeepSeek-V3.2); 0: none")
    index_head_dim: int = Field(default=0, ge=0)


class Window(Entry):
    """Sliding-window attention: in `layers` of the layers a token attends to the last `tokens` tokens only."""

    tokens: PositiveInt
    layers: PositiveInt


class Linear(Entry):
    """Linear attention in `layers` of the layers (gated DeltaNet): a state of fixed size, not a growing cache."""

    layers: PositiveInt
    key_heads: PositiveInt
    value_heads: PositiveInt
    key_head_dim: PositiveInt
    value_head_dim: PositiveInt


class Architecture(Entry):
    """A decoder-only transformer by its shape."""

    title: str = ""
    layers: PositiveInt
    hidden: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    ffn: PositiveInt
    ffn_matrices: Literal[2, 3] = Field(description="2: plain feed-forward, 3: gated (SwiGLU)")
    vocab: PositiveInt
    tied_embeddings: bool = False
    attention_gate: bool = Field(
        default=False, description="attention's result is gated by a second projection, as wide as the queries"
    )
    max_positions: Annotated[int, Field(strict=True, ge=1, le=10**9)]
    learned_positions: int = Field(default=0, ge=0)
    params: float | None = Field(default=None, gt=0, description="published parameter count")
    moe: MoE | None = None
    mla: Mla | None = None
    window: Window | None = None
    linear: Linear | None = None
    checkpoint: str = Field(
        default="", max_length=200, pattern=r"^([A-Za-z0-9_./][A-Za-z0-9_./-]*)?$",
        description="the weights: Hugging Face repository or path, used by `optmodels export`",
    )  # fmt: skip
    source: str = ""
    note: str = ""

    @model_validator(mode="after")
    def _heads_divide(self) -> Architecture:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads ({self.kv_heads}) dividing heads ({self.heads})")
        if self.moe is not None and self.moe.dense_layers > self.layers:
            raise ValueError(f"moe.dense_layers ({self.moe.dense_layers}) at most layers ({self.layers})")
        linear = 0 if self.linear is None else self.linear.layers
        if linear >= self.layers:
            raise ValueError(f"linear.layers ({linear}) below layers ({self.layers})")
        if self.window is not None and self.window.layers > self.layers - linear:
            raise ValueError(f"window.layers ({self.window.layers}) at most {self.layers - linear} layers of attention")
        return self


class Prices(Entry):
    """Hourly prices by market; a missing market is one the machine is not offered in."""

    on_demand: Annotated[UsdPerHour | None, Price()] = None
    spot: Annotated[UsdPerHour | None, Price()] = None
    reserved_1y: Annotated[UsdPerHour | None, Price()] = None
    reserved_3y: Annotated[UsdPerHour | None, Price()] = None

    def get(self, market: Market) -> float | None:
        """Price in `market`, USD per hour, or None."""
        price: float | None = getattr(self, market)
        return price


class Machine(Entry):
    """A cloud instance type in one region; all capacities are totals of the machine."""

    machine: Name = Field(min_length=1, max_length=200)
    provider: str = ""
    region: str = ""
    gpu: str | None = Field(default=None, description="key of a GPU in the catalogue or the file's gpus:")
    gpu_count: PositiveInt = 1
    vram_gib: Gib
    vcpu: PositiveInt | None = None
    ram_gib: Gib | None = None
    disk_gib: Gib | None = Field(default=None, description="local NVMe; KV offload uses the attached volume")
    disk_gbps: Gbps | None = Field(default=None, description="bandwidth of attached volumes (EBS)")
    net_gbps: Gbps | None = None
    prices: Prices
    note: str = ""
