"""Deployments and purchases of a plan, in terms that every serving stack and provisioning tool knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from optmodels import catalog
from optmodels.catalog.types import Machine, Market
from optmodels.engine.continuous import Stage
from optmodels.latency.adapters import Lora
from optmodels.latency.speculation import Speculation
from optmodels.latency.strategies import AO_FAMILIES, FAMILY_TITLES
from optmodels.plans.lines import MachineLine
from optmodels.plans.outcome import Document

Pool = Mapping[tuple[str, str], Machine]  # (machine, region) → machine
Count = Annotated[int, Field(ge=1)]


class DraftModel(Document):
    """How servers speculate."""

    drafts: Count = Field(description="draft tokens of a request in a step")
    by: Literal["model", "head", "ngram"]
    checkpoint: str = Field(default="", description="weights of the draft model; empty: not known")
    tokens: float = Field(ge=1, description="mean tokens that a request gets in a step of the plan")


def drafts(s: Speculation | None) -> DraftModel | None:
    """The same of an instance."""
    if s is None:
        return None
    shape = catalog.llms()[s.draft] if isinstance(s.draft, str) else s.draft
    by: Literal["model", "head", "ngram"] = "model" if shape is not None else "head" if s.head else "ngram"
    return DraftModel(drafts=s.drafts, by=by, checkpoint="" if shape is None else shape.checkpoint, tokens=s.tokens)


def loras(lora: Lora | None) -> dict[str, Any]:
    """Fields of a deployment for adapters of an instance."""
    if lora is None or not lora.max_loras:
        return {}
    return {"max_loras": lora.max_loras, "max_lora_rank": lora.max_lora_rank}


class Deployment(Document):
    """Equal servers of one model on equal machines."""

    name: str
    model: str = Field(description="name for people")
    checkpoint: str = Field(default="", description="the weights, by Hugging Face repository or path; empty: not known")
    provider: str = ""
    region: str = ""
    machine: str
    market: Market | None = Field(description="none: machines of one's own")
    machines: Count
    fewest_machines: int | None = Field(
        default=None, ge=0, description="fewest machines of any period; none: `machines` in all"
    )
    most_machines: int | None = Field(
        default=None, ge=1, description="most machines of any period; none: `machines` in all"
    )
    nodes: Count = Field(default=1, description="machines that one replica spans, with as many of its GPUs on each")
    hosts: list[str] = Field(default=[], description="names of the machines, where the plan has them")
    devices: list[list[int]] = Field(default=[], description="GPUs of every replica on a machine; empty: from 0 on")
    gpu: str | None = None
    gpus_per_machine: Count
    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    attention_ranks: Count = Field(default=1, description="data-parallel ones of a replica, experts spread over all")
    replicas_per_machine: Count = 1
    max_num_seqs: int | None = Field(default=None, ge=1, description="requests in an attention rank at a time")
    max_num_batched_tokens: int | None = Field(default=None, ge=1, description="tokens of a step of an attention rank")
    chunk_tokens: int | None = Field(default=None, ge=1, description="tokens of one prompt in a step")
    max_model_len: int | None = Field(
        default=None, ge=1,
        description="input and output tokens of the longest request; none: not known, what memory and model admit",
    )  # fmt: skip
    weights: str = Field(default="fp16", description="precision: fp16, fp8, fp8_block, fp4 (NVFP4), mxfp4 or int4")
    kv: str = Field(default="fp16", description="precision of the KV cache: fp16 or fp8")
    vram_usable: float = Field(default=0.9, gt=0, le=1)
    stage: Stage = Field(default="both", description="stage of its requests that it serves")
    drafts: DraftModel | None = Field(default=None, description="draft model of speculative decoding")
    max_loras: int = Field(default=0, ge=0, description="LoRA adapters loaded at a time; 0: none")
    max_lora_rank: int | None = Field(default=None, ge=1, description="their largest rank")
    prefix_hits: float = Field(
        default=0.0, ge=0, lt=1, description="share of its prompts that its prefix cache has if those alike come to it"
    )
    kv_offload_gib: float | None = Field(default=None, gt=0, description="host memory for a replica's KV cache")
    notes: list[str] = Field(default=[], description="statements of the plan that serving engines have no setting for")

    @property
    def gpus_per_replica(self) -> int:
        """Over the machines that it spans."""
        return self.tensor_parallel * self.pipeline_parallel * self.attention_ranks

    @property
    def groups(self) -> list[list[int]]:
        """GPUs of every replica on a machine."""
        size = self.gpus_per_replica // self.nodes
        return self.devices or [list(range(i * size, (i + 1) * size)) for i in range(self.replicas_per_machine)]

    @property
    def replicas(self) -> int:
        """Servers in all."""
        return self.machines * self.replicas_per_machine // self.nodes

    @property
    def replica_bounds(self) -> tuple[int, int]:
        """Servers in the period that has fewest, and in the one that has most."""
        fewest = self.machines if self.fewest_machines is None else self.fewest_machines
        each, nodes = self.replicas_per_machine, self.nodes
        return fewest * each // nodes, (self.most_machines or self.machines) * each // nodes


class Purchase(Document):
    """Equal machines bought on equal terms."""

    machine: str
    provider: str = ""
    region: str = ""
    market: Market
    count: Count
    usd_per_hour_each: float | None = None
    purpose: str = ""
    note: str = Field(default="", description="note on the machine in its price list")


class Deployments(Document):
    """Everything a plan asks for; `notes` states what of the plan is in neither list."""

    name: str
    deployments: list[Deployment] = []
    purchases: list[Purchase] = []
    notes: list[str] = []


def note_on(note: str, market: str) -> str:
    """A machine's note without what concerns the spot market alone, for one bought on another."""
    return "; ".join(part for part in note.split("; ") if market == "spot" or not part.startswith("spot price"))


def purchase(line: MachineLine, pool: Pool, times: int = 1) -> Purchase:
    """A plan's line of machines, bought `times`."""
    known = pool.get((line.machine, line.region))
    return Purchase(
        machine=line.machine, provider=known.provider if known else "", region=line.region, market=line.market,
        count=line.count * times, usd_per_hour_each=line.usd_per_hour_each,
        purpose="attention offload" if line.role == "ao" else "serving",
        note=note_on(known.note, line.market) if known else "",
    )  # fmt: skip


def stage_note(stage: Stage) -> str:
    """Needs of engines of one stage next to their settings."""
    other = "decode" if stage == "prefill" else "prefill"
    return (
        f"It does the {stage} of its requests alone; its counterparts are the {other} deployments of the same model and"
        " region. Each request goes to a prefill engine, then to the decode engine that gets its KV cache: llm-d's and"
        " Dynamo's routers see to it, elsewhere a proxy has to. With vLLM the decode engine sends the first token,"
        " after the planned TTFT, the cache's arrival and one step of its own."
    )


def strategy_notes(family: str | None, alpha: float, machines: list[MachineLine], passes: int) -> list[str]:
    """Parts of a strategy without a setting in serving engines."""
    if family == "multi_pass":
        return [f"The plan serves the batch in {passes} passes, one after another: admit the next only when one ends."]
    if family in AO_FAMILIES:
        other = machines[-1]
        return [
            f"{FAMILY_TITLES[family]}: the plan computes the share α = {alpha:.4f} of attention on {other.count} ×"
            f" {other.machine} ({other.market.replace('_', '-')}). No serving engine has this as a setting; it needs a"
            " system built for it. Without it this deployment may run out of memory or miss its SLO."
        ]
    if family == "kvo_disk" and alpha > 0:
        return [
            f"KV offload to disk: the plan keeps the share α = {alpha:.4f} of the KV cache on an attached volume. No"
            " setting of the engine does this while requests run; expect fewer requests at a time."
        ]
    if family == "kvo_ram" and alpha > 0:
        return [
            f"KV offload to host memory: the plan streams the share α = {alpha:.4f} of the running requests' KV cache"
            " from host memory. An engine's KV offloading keeps evicted blocks there instead: measure before you rely"
            " on the planned batch."
        ]
    return []
