"""Where requests of an instance come from (stand-in until the readers land): arrays in the file."""

from __future__ import annotations

from typing import Any

import numpy as np

from optmodels.catalog.types import Entry
from optmodels.traces.types import Label, Trace


class TraceSpec(Entry):
    """Requests written out in the instance."""

    arrival_s: tuple[float, ...]
    output_tokens: tuple[int, ...]
    prompt_tokens: tuple[int, ...] | None = None
    model: tuple[str, ...] | None = None
    slo_factor: tuple[float, ...] | None = None

    def inline(self, trace: Trace) -> TraceSpec:
        """The same, standing alone."""
        return self


def load_trace(spec: TraceSpec, problem: Any = None, path: str = "") -> Trace:
    """The requests as arrays."""
    n = len(spec.arrival_s)
    labels = {}
    if spec.model is not None:
        names, codes = np.unique(np.array(spec.model), return_inverse=True)
        labels["model"] = Label(tuple(names.tolist()), codes.astype(np.int64))
    return Trace(
        "inline", np.array(spec.arrival_s), np.array(spec.prompt_tokens or [1] * n), np.array(spec.output_tokens),
        labels,
        None if spec.slo_factor is None else np.array(spec.slo_factor),
    )  # fmt: skip
