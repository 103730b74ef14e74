"""What there is to choose from: GPUs, LLMs, machines with prices. Data files with their sources, typed loaders."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from pydantic import TypeAdapter

from optmodels.catalog.types import MARKETS, Architecture, Entry, Gpu, Machine, Market, Prices

__all__ = [
    "MARKETS",
    "Architecture",
    "Gpu",
    "Machine",
    "Market",
    "Pool",
    "Prices",
    "calibration_document",
    "calibrations",
    "engine_model_document",
    "gpus",
    "kv_memory_document",
    "latency_model_document",
    "latency_models",
    "llms",
    "machines",
    "pools",
    "published_precision",
    "same_shape",
    "with_own",
]

_DATA = files("optmodels.catalog") / "data"


class MachineList(Entry):
    """Where a list of machines comes from.

    Attributes:
        price_dates: price dates of the markets whose prices are of another day than `retrieved`.
        memory_as_printed: whether machines keep the memory that the list prints; else they have the GPUs' `usable_gib`.
    """

    file: str
    title: str
    source: str
    retrieved: datetime.date
    licence: str
    price_sources: dict[str, str] = {}
    price_dates: dict[Market, datetime.date] = {}
    memory_as_printed: bool = False
    regions: tuple[str, ...] = ()
    default_region: str | None = None
    dropped: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()

    def prices_of(self, markets: Iterable[Market]) -> str:
        """Source and date of the prices in these markets."""
        others = [f"{m} prices of {self.price_dates[m]}" for m in dict.fromkeys(markets) if m in self.price_dates]
        return ", ".join((f"{self.title}, retrieved {self.retrieved}", *others))


def _yaml(name: str) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((_DATA / name).read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - it is a safe loader


@cache
def _shipped_gpus() -> dict[str, Gpu]:
    return TypeAdapter(dict[str, Gpu]).validate_python(_yaml("gpus.yaml"))


@cache
def _shipped_llms() -> dict[str, Architecture]:
    return TypeAdapter(dict[str, Architecture]).validate_python(_yaml("llms.yaml"))


_OWN: ContextVar[tuple[Mapping[str, Gpu], Mapping[str, Architecture]]] = ContextVar("own entries", default=({}, {}))


@contextmanager
def with_own(gpus: Mapping[str, Gpu] | None = None, llms: Mapping[str, Architecture] | None = None) -> Iterator[None]:
    """Within the block the catalogue has these entries, too; they take precedence over shipped ones."""
    old = _OWN.get()
    token = _OWN.set(({**old[0], **(gpus or {})}, {**old[1], **(llms or {})}))
    try:
        yield
    finally:
        _OWN.reset(token)


def gpus() -> dict[str, Gpu]:
    """Every GPU of the catalogue by key."""
    own = _OWN.get()[0]
    return _shipped_gpus() | dict(own) if own else _shipped_gpus()


def llms() -> dict[str, Architecture]:
    """Every LLM architecture of the catalogue by key."""
    own = _OWN.get()[1]
    return _shipped_llms() | dict(own) if own else _shipped_llms()


def same_shape() -> dict[str, list[str]]:
    """Later checkpoints of the shape of an LLM, by its key."""
    return TypeAdapter(dict[str, list[str]]).validate_python(_yaml("same_shape.yaml"))


@cache
def _published_precisions() -> dict[str, str]:
    return TypeAdapter(dict[str, str]).validate_python(_yaml("published_precisions.yaml"))


def published_precision(llm: str) -> str:
    """Precision of the weights of an LLM's checkpoint; of an unknown one 16 bits."""
    return _published_precisions().get(llm, "fp16")


@cache
def pools() -> dict[str, MachineList]:
    """Every machine list of the catalogue by key, with sources and dates."""
    return TypeAdapter(dict[str, MachineList]).validate_python(_yaml("pools.yaml"))


@cache
def machines(pool: str) -> tuple[Machine, ...]:
    """The machines of one pool, in file order, all regions; memory as programs get it (`Gpu.usable_gib`).

    Raises:
        KeyError: no such pool.
    """
    about, known = pools()[pool], _shipped_gpus()
    text = (_DATA / about.file).read_text(encoding="utf-8")
    rows = []
    for row in csv.DictReader(text.splitlines()):
        fields: dict[str, Any] = {k: v for k, v in row.items() if v != ""}
        prices = {m: fields.pop(f"{m}_usd_per_hour", None) for m in MARKETS}
        fields |= {k: int(fields[k]) for k in ("gpu_count", "vcpu") if k in fields}
        gpu = known.get(fields.get("gpu", ""))
        if gpu is not None and gpu.driver_gib is not None and not about.memory_as_printed:
            fields["vram_gib"] = fields.get("gpu_count", 1) * gpu.usable_gib
        rows.append(Machine(**fields, prices=Prices(**prices)))
    return tuple(rows)


@cache
def calibrations() -> tuple[str, ...]:
    """Names of the shipped LP(18) coefficient files."""
    folder = _DATA / "calibrations"
    if not folder.is_dir():
        return ()
    return tuple(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")))


def calibration_document(name: str) -> dict[str, Any]:
    """One shipped coefficient file, as read (`latency.calibration.Calibration` gives it a type)."""
    document: dict[str, Any] = _yaml(f"calibrations/{name}.yaml")
    return document


@cache
def latency_models() -> tuple[str, ...]:
    """Names of the shipped latency models, fitted to public measurements."""
    folder = _DATA / "latency_models"
    return tuple(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")))


def latency_model_document(name: str) -> dict[str, Any]:
    """One shipped latency model, as read (`latency.fit.document.LatencyModel` gives it a type)."""
    document: dict[str, Any] = _yaml(f"latency_models/{name}.yaml")
    return document


@cache
def kv_memory_document() -> dict[str, Any]:
    """Interval of the memory that engines take beyond the formula, as read (`latency.memory.runtime_interval`)."""
    document: dict[str, Any] = _yaml("kv_memory.yaml")
    return document


def engine_model_document(name: str) -> dict[str, Any]:
    """Shipped global coefficients of engines, as read (`latency.engines.document.EngineModel` gives them a type)."""
    document: dict[str, Any] = _yaml(f"engine_models/{name}.yaml")
    return document
