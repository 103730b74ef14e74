"""Keys that every instance file spells alike: a model's precision, and engine latencies if it names none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from optmodels.catalog.spelling import with_stated_precision
from optmodels.catalog.types import Entry
from optmodels.latency.work import StatedKvPrecision, StatedPrecision

SOURCES = {"model", "calibration", "operating_points", "fitted", "decay", "measured", "measured_rows", "roofline"}


class Stored(Entry):
    """``precision: {weights, kv}``."""

    weights: StatedPrecision = Field(default="fp16", description="precision of the weights; fp4: NVFP4")
    kv: StatedKvPrecision = Field(default="fp16", description="precision of the KV cache")


class NamedModel(Entry):
    """A section with a model: a name such as ``Qwen/Qwen3-32B-FP8`` states the weight precision, too."""

    @model_validator(mode="before")
    @classmethod
    def _stated_precision(cls, data: Any) -> Any:
        named = isinstance(data, Mapping) and data.get("architecture") is not None
        return with_stated_precision(data, "architecture" if named else "model")


class StoredModel(NamedModel):
    """A model with the precisions it is stored in: ``precision: {weights, kv}``, or the two keys next to each other."""

    precision: Stored | None = Field(
        default=None, exclude=True, description="precisions of weights and KV cache, as in every formulation"
    )
    weights: StatedPrecision = Field(default="fp16", description="older spelling of precision.weights")
    kv: StatedKvPrecision = Field(default="fp16", description="older spelling of precision.kv")

    @model_validator(mode="after")
    def _one_spelling(self) -> Self:
        if self.precision is not None:
            if self.model_fields_set & {"weights", "kv"}:
                raise ValueError("either precision: {weights, kv}, or weights and kv, its older spelling")
            self.__dict__.update(self.precision.model_dump(), precision=None)  # as if written so: it is frozen
            self.__pydantic_fields_set__.update(Stored.model_fields)
        return self


def with_engines(data: Any) -> Any:
    """An instance with ``latency: {model: default}`` where it serves continuously and names no latencies."""
    if not isinstance(data, Mapping) or data.get("serving") != "continuous":
        return data
    latency = data.get("latency")
    if latency is not None and (not isinstance(latency, Mapping) or SOURCES & {k for k in latency if latency[k]}):
        return data
    return {**data, "latency": {**(latency or {}), "model": "default"}}
