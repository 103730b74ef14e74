"""The trace that an instance states: read, drawn, cut and sped up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from optmodels.traces.generated import generate
from optmodels.traces.readers import read_trace
from optmodels.traces.shape import part, predicted, sped_up
from optmodels.traces.spec import TraceSpec
from optmodels.traces.types import Trace


def load_trace(spec: TraceSpec, beside: Callable[[str, str], Path], path: str = "trace") -> Trace:
    """The trace of an instance.

    Args:
        spec: its section.
        beside: resolves a file named in the instance: `Problem.beside`, which keeps to the instance's folder.
        path: path of the section, for messages.

    Raises:
        InputError: every mistake in the file, or no rows left.
    """
    if spec.file is not None:
        trace = read_trace(beside(spec.file, f"{path}.file"), spec.columns, spec.where, spec.skip_bad)
    else:
        assert spec.generated is not None
        trace = generate(spec.generated)
    if spec.skip_s > 0 or spec.first_s is not None:
        trace = part(trace, spec.skip_s, spec.first_s)
    if spec.predicted_output is not None:
        trace = predicted(trace, spec.predicted_output.error, spec.predicted_output.seed)
    return sped_up(trace, spec.rate_factor)
