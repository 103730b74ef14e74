"""Typed catalogue entries. All are pydantic models, so a user's inline entry is checked like ours."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from optmodels.limits import Price
from optmodels.units import (
    BytesPerSecond,
    FlopsPerSecond,
    Gbps,
    Gib,
    PositiveInt,
    UsdPerHour,
)


def spelled(kind: str, accepts: Any = Any) -> BeforeValidator:
    """Reads a name by the function of `catalog.spelling` called `kind`; `accepts`: allowed values."""

    def read(value: Any) -> Any:
        from optmodels.catalog import spelling  # which needs the catalogue

        return getattr(spelling, kind)(value)

    return BeforeValidator(read) if accepts is Any else BeforeValidator(read, json_schema_input_type=accepts)


Market = Annotated[Literal["on_demand", "spot", "reserved_1y", "reserved_3y"], spelled("market")]
GpuName = Annotated[str, spelled("gpu")]
CloudName = Annotated[str, spelled("cloud")]
RegionName = Annotated[str, spelled("region")]
MARKETS: tuple[Market, ...] = ("on_demand", "spot", "reserved_1y", "reserved_3y")

Name = str


class Entry(BaseModel):
    """Base of catalogue entries and instance-file sections: unknown keys are mistakes, values immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


Precision = Literal["fp16", "fp8", "fp8_block", "fp4", "mxfp4", "int4"]


class Gpu(Entry):
    """One GPU (device peaks; dense, not sparse, FLOP/s)."""

    title: str = Field(default="", description="name for people")
    fp16_flops: FlopsPerSecond | None = Field(
        default=None, description="peak FLOP/s in 16 bits; None: not published, so it cannot be modelled"
    )
    fp8_flops: FlopsPerSecond | None = Field(
        default=None, description="peak FLOP/s in fp8; None: fp8 weights are computed in 16 bits"
    )
    fp4_flops: FlopsPerSecond | None = Field(
        default=None, description="peak FLOP/s in fp4; None: fp4 weights are computed in 16 bits"
    )
    mem_bytes_per_s: BytesPerSecond = Field(description="memory bandwidth")
    vram_gib: Gib = Field(description="memory size")
    driver_gib: Gib | None = Field(
        default=None, description="memory that the driver gives to programs, for KV caches; None: vram_gib"
    )
    driver_source: str = Field(default="", description="source of driver_gib, with its date")
    pcie_bytes_per_s: BytesPerSecond | None = Field(
        default=None,
        description="bandwidth to the host, one direction; None: not published, so no KV offload to RAM is planned",
    )
    link_bytes_per_s: BytesPerSecond = Field(
        description="bandwidth to the other GPUs of the machine, one direction: NVLink or PCIe"
    )
    source: str = Field(default="", description="source of the figures")
    note: str = Field(default="", description="further notes")

    @property
    def usable_gib(self) -> float:
        """Memory that programs get, GiB: `driver_gib`, or the marketed size without it."""
        return float(self.vram_gib if self.driver_gib is None else self.driver_gib)


OwnGpus = Annotated[
    dict[str, Gpu], Field(description="GPUs of your own by name, added to the catalogue's or replacing them")
]


class MoE(Entry):
    """Mixture-of-experts feed-forward: `active` of `experts` routed experts per token, plus shared ones."""

    experts: PositiveInt = Field(description="routed experts of a layer")
    active: PositiveInt = Field(description="routed experts that a token uses")
    expert_ffn: PositiveInt = Field(description="width of an expert's feed-forward")
    shared_experts: int = Field(default=0, ge=0, description="experts that every token uses")
    shared_ffn: int = Field(default=0, ge=0, description="total width of the shared experts")
    dense_layers: int = Field(default=0, ge=0, description="leading layers with the plain feed-forward")
    layers: PositiveInt | None = Field(
        default=None,
        description="layers with experts; None: all but the dense ones. Layers with neither have no feed-forward",
    )
    latent: int = Field(
        default=0, ge=0, description="width of the experts' input (Nemotron 3); 0: the residual stream's"
    )
    expert_precision: Literal["mxfp4"] | None = Field(
        default=None, description="precision of the experts as published, where the other weights have 16 bits"
    )

    @model_validator(mode="after")
    def _active_at_most_experts(self) -> MoE:
        if self.active > self.experts:
            raise ValueError(f"active ({self.active}) at most experts ({self.experts})")
        return self


class Mla(Entry):
    """Multi-head latent attention (DeepSeek-V2/V3): the cache keeps one latent and one rotary key per token."""

    kv_lora_rank: PositiveInt = Field(description="values of the latent that the cache keeps per token")
    q_lora_rank: int = Field(
        default=0, ge=0, description="width of the queries' latent; 0: queries are projected directly"
    )
    qk_nope_head_dim: PositiveInt = Field(description="width of queries and keys without positions, per head")
    qk_rope_head_dim: PositiveInt = Field(description="width of the rotary part of queries and keys")
    v_head_dim: PositiveInt = Field(description="width of values, per head")
    index_heads: int = Field(
        default=0, ge=0, description="heads of the indexer of sparse attention (DeepSeek-V3.2); 0: none"
    )
    index_head_dim: int = Field(default=0, ge=0, description="width of the indexer, per head")
    index_topk: int = Field(
        default=0, ge=0, description="earlier tokens that the indexer picks; 0: attention reads all"
    )
    index_layers: int = Field(
        default=0, ge=0, description="layers with an indexer of their own, which others share (GLM-5.2); 0: all"
    )

    @model_validator(mode="after")
    def _an_indexer_that_picks(self) -> Mla:
        if self.index_topk and not (self.index_heads and self.index_head_dim):
            raise ValueError(f"index_heads and index_head_dim beside index_topk ({self.index_topk})")
        return self


class Window(Entry):
    """Sliding-window attention: in `layers` of the layers a token attends to the last `tokens` tokens only."""

    tokens: PositiveInt = Field(description="tokens of the window")
    layers: PositiveInt = Field(description="layers with the window")
    heads: PositiveInt | None = Field(default=None, description="query heads of these layers; None: as in the others")
    kv_heads: PositiveInt | None = Field(default=None, description="key and value heads; None: as in the others")
    head_dim: PositiveInt | None = Field(default=None, description="width of one head; None: as in the others")
    value_head_dim: PositiveInt | None = Field(default=None, description="width of a value head; None: head_dim")
    chunked: bool = Field(
        default=False,
        description="attention within chunks of this length (Llama 4): the KV cache keeps every token, as vLLM does",
    )


class Linear(Entry):
    """Linear attention in `layers` of the layers: a state of fixed size, not a growing cache."""

    kind: Literal["delta", "kda", "mamba1", "mamba2", "lightning", "conv"] = Field(
        default="delta",
        description="gated DeltaNet (Qwen), Kimi Delta Attention, Mamba (Jamba), Mamba-2 (Nemotron), lightning "
        "attention (MiniMax-01), or short convolutions (LFM2)",
    )
    layers: PositiveInt = Field(description="layers with linear attention")
    key_heads: int = Field(ge=0, description="key heads; 0: no state but a convolution's inputs")
    value_heads: PositiveInt = Field(description="value heads")
    key_head_dim: int = Field(ge=0, description="width of a key head")
    value_head_dim: PositiveInt = Field(description="width of a value head")
    conv_kernel: int = Field(
        default=0, ge=0, description="tokens of the convolution, whose last inputs are kept; 0: none"
    )
    rank: int = Field(default=0, ge=0, description="rank of the time steps' projection (Mamba)")
    parallel: bool = Field(default=False, description="softmax attention stands next to it in a layer (Falcon-H1)")


class Indexer(Entry):
    """Sparse grouped-query attention: an indexer with one key a token picks the heads' tokens (MiniMax-M3)."""

    layers: PositiveInt = Field(description="layers with the indexer; the others with attention read every token")
    heads: PositiveInt = Field(description="query heads of the indexer")
    head_dim: PositiveInt = Field(description="width of the indexer, per head")
    topk: PositiveInt = Field(description="earlier tokens that the indexer picks")


class Compressed(Entry):
    """Compressed attention (DeepSeek-V4): one shared head of keys that are values, too, over groups of tokens.

    Every layer attends to the last `window` tokens as they are, and to one entry for `ratio` earlier ones: every entry,
    or where the model has an indexer those it picks.
    """

    window: PositiveInt = Field(description="last tokens that every layer keeps uncompressed")
    indexed_ratio: PositiveInt = Field(description="tokens of an entry in layers with an indexer")
    indexed_layers: int = Field(ge=0, description="layers with an indexer")
    ratio: PositiveInt = Field(description="tokens of an entry in layers without one")
    layers: int = Field(ge=0, description="layers without an indexer; the remaining layers have the window alone")
    q_lora_rank: PositiveInt = Field(description="width of the queries' latent")
    output_groups: PositiveInt = Field(description="groups of heads in the output projection")
    output_rank: PositiveInt = Field(description="width of a group in the output projection")
    index_heads: int = Field(default=0, ge=0, description="query heads of the indexer")
    index_head_dim: int = Field(default=0, ge=0, description="width of the indexer, per head")
    index_topk: int = Field(default=0, ge=0, description="entries that the indexer picks")


class Kept(Entry):
    """A part of the weights that a quantised checkpoint stores in a precision of its own."""

    part: Literal["attention", "linear", "dense", "shared", "experts"] = Field(
        description="softmax attention, linear attention, plain feed-forward, shared experts or routed experts"
    )
    precision: Precision = Field(default="fp16", description="precision of that part")
    layers: PositiveInt | None = Field(default=None, description="layers of that precision; None: all")
    weights: Precision | None = Field(
        default=None, description="weight precision of the checkpoint that keeps the part; None: every quantised one"
    )


class Architecture(Entry):
    """A decoder-only transformer by its shape."""

    title: str = Field(default="", description="name for people")
    layers: PositiveInt = Field(description="transformer layers, all kinds together")
    hidden: PositiveInt = Field(description="width of the residual stream")
    heads: PositiveInt = Field(description="query heads of a layer")
    kv_heads: PositiveInt = Field(description="key and value heads of a layer; as many as heads without grouping")
    head_dim: PositiveInt = Field(description="width of one head")
    value_head_dim: PositiveInt | None = Field(default=None, description="width of a value head; None: head_dim")
    value_projection: bool = Field(
        default=True, description="False: layers without a window make values from the key projection (Gemma 4)"
    )
    attention_layers: PositiveInt | None = Field(
        default=None, description="layers with softmax attention; None: all that have no linear attention"
    )
    ffn_layers: int | None = Field(
        default=None, ge=0, description="layers with the plain feed-forward; None: all without experts"
    )
    ffn: PositiveInt = Field(description="width of the plain feed-forward")
    ffn_matrices: Literal[2, 3] = Field(description="2: plain feed-forward, 3: gated (SwiGLU)")
    vocab: PositiveInt = Field(description="entries of the vocabulary")
    tied_embeddings: bool = Field(default=False, description="the output head is the embedding")
    attention_gate: bool = Field(
        default=False, description="attention's result is gated by a second projection, as wide as the queries"
    )
    max_positions: Annotated[int, Field(strict=True, ge=1, le=10**9)] = Field(
        description="tokens of the longest sequence"
    )
    learned_positions: int = Field(
        default=0, ge=0, description="entries of a table of learned positions; 0: rotary or none"
    )
    params: float | None = Field(default=None, gt=0, description="published parameter count")
    moe: MoE | None = None
    mla: Mla | None = None
    window: Window | None = None
    linear: Linear | None = None
    sparse: Indexer | None = None
    compressed: Compressed | None = None
    residual_streams: PositiveInt = Field(default=1, description="copies of the residual stream (hyper-connections)")
    mtp_layers: int = Field(
        default=0, ge=0, description="layers of multi-token prediction, loaded by engines that speculate with them"
    )
    vision_params: int = Field(default=0, ge=0, description="parameters of vision and audio towers, loaded in 16 bits")
    kept: tuple[Kept, ...] = Field(
        default=(), description="parts in a precision of their own where weights are quantised"
    )
    checkpoint: str = Field(
        default="", max_length=200, pattern=r"^([A-Za-z0-9_./][A-Za-z0-9_./-]*)?$",
        description="weights: Hugging Face repository or path, used by `optmodels export`",
    )  # fmt: skip
    source: str = Field(default="", description="source of the figures")
    note: str = Field(default="", description="further notes")

    def same_shape(self, other: Architecture) -> bool:
        """Whether another model differs in what people are told and in its checkpoint alone."""
        told = ("title", "checkpoint", "params", "source", "note", "mtp_layers", "vision_params", "kept")
        return other.model_copy(update={k: getattr(self, k) for k in told}) == self

    @property
    def routed(self) -> bool:
        """Whether any layer has routed experts."""
        return self.moe is not None and self.moe.dense_layers < self.layers

    @model_validator(mode="after")
    def _layers_fit(self) -> Architecture:
        linear = 0 if self.linear is None or self.linear.parallel else self.linear.layers
        attention = self.layers - linear if self.attention_layers is None else self.attention_layers
        if attention + linear > self.layers:
            raise ValueError(f"attention_layers ({attention}) at most {self.layers - linear}")
        if self.moe is not None and (self.moe.layers or 0) + self.moe.dense_layers > self.layers:
            raise ValueError(
                f"moe.layers ({self.moe.layers or 0}) and dense_layers ({self.moe.dense_layers}): at most {self.layers}"
            )
        if self.sparse is not None and (self.mla or self.window or self.sparse.layers > attention):
            raise ValueError("sparse without mla or window, in layers with attention")
        c = self.compressed
        if c is not None and (self.mla or self.window or self.sparse or c.layers + c.indexed_layers > attention):
            raise ValueError("compressed without mla, window or sparse, in layers with attention")
        if self.window is not None:
            heads, kv = self.window.heads or self.heads, self.window.kv_heads or self.kv_heads
            if heads % kv:
                raise ValueError(f"window.kv_heads ({kv}) dividing its heads ({heads})")
        return self

    @model_validator(mode="after")
    def _heads_divide(self) -> Architecture:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads ({self.kv_heads}) dividing heads ({self.heads})")
        if self.moe is not None and self.moe.dense_layers > self.layers:
            raise ValueError(f"moe.dense_layers ({self.moe.dense_layers}) at most layers ({self.layers})")
        if self.window is not None and self.mla is not None and self.mla.index_topk:
            raise ValueError("a window or mla.index_topk, not both")
        linear = 0 if self.linear is None or self.linear.parallel else self.linear.layers
        if linear >= self.layers:
            raise ValueError(f"linear.layers ({linear}) below layers ({self.layers})")
        if self.window is not None and self.window.layers > self.layers - linear:
            raise ValueError(f"window.layers ({self.window.layers}) at most {self.layers - linear} layers of attention")
        return self


class ConfigFile(Entry):
    """A model by its configuration of Hugging Face; loading an instance puts the shape in its place."""

    config: str = Field(
        description="path of a config.json, or of a folder with one, from the folder of the problem file"
    )


AnyLlm = Annotated[str | Architecture, spelled("llm", str | Architecture | ConfigFile)]


class Prices(Entry):
    """Hourly prices by market; a missing market is one the machine is not offered in."""

    on_demand: Annotated[UsdPerHour | None, Price()] = Field(
        default=None, description="price by the hour, for any time"
    )
    spot: Annotated[UsdPerHour | None, Price()] = Field(
        default=None, description="price by the hour of machines that may be interrupted"
    )
    reserved_1y: Annotated[UsdPerHour | None, Price()] = Field(
        default=None, description="price of an hour, committed for one year"
    )
    reserved_3y: Annotated[UsdPerHour | None, Price()] = Field(
        default=None, description="price of an hour, committed for three years"
    )

    def get(self, market: Market) -> float | None:
        """Price in `market`, USD per hour, or None."""
        price: float | None = getattr(self, market)
        return price


class Machine(Entry):
    """A cloud instance type in one region; all capacities are totals of the machine."""

    machine: Name = Field(min_length=1, max_length=200, description="name of the instance type")
    provider: str = Field(default="", description="cloud")
    region: str = Field(default="", description="region")
    gpu: GpuName | None = Field(default=None, description="key of a GPU in the catalogue or the file's gpus:")
    gpu_count: PositiveInt = Field(default=1, description="number of GPUs")
    vram_gib: Gib = Field(description="VRAM of all its GPUs together")
    vcpu: PositiveInt | None = Field(default=None, description="vCPUs of the machine, which quotas may count")
    ram_gib: Gib | None = Field(default=None, description="memory of the host")
    disk_gib: Gib | None = Field(default=None, description="local NVMe; KV offload uses the attached volume")
    disk_gbps: Gbps | None = Field(default=None, description="bandwidth of attached volumes (EBS)")
    net_gbps: Gbps | None = Field(default=None, description="bandwidth of the network")
    prices: Prices
    note: str = Field(default="", description="further notes")
