"""`prefix-hits`: shares of prompts that prefix caches have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optmodels.api.sources import File, read_requests
from optmodels.io.write import json_text, keeping, write_text
from optmodels.verification import version

if TYPE_CHECKING:
    from optmodels.traces.types import Trace

PREFIX_SIZES = tuple(2.0**k for k in range(15, 25))  # default cache sizes, tokens


def prefix_hits(
    trace: File | Trace, kv_tokens: Sequence[float] = PREFIX_SIZES, engines: Sequence[int] = (1, 2, 4, 8), *,
    column: Mapping[str, str] | None = None, where: Mapping[str, str | Sequence[str]] | None = None,
    skip_bad: bool = False, routing: str = "first_block", by: str | None = None, seed: int = 0, out: File | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Shares of prompt tokens found in prefix caches, from the shared blocks of a trace's requests.

    Args:
        trace: requests with hash_ids, or a file of them (Mooncake JSONL, or any trace with this column).
        kv_tokens: sizes of an engine's cache, without the part that running requests hold.
        engines: how many engines the requests are split over.
        column: columns of a trace file: our name → the file's (`traces.readers.read_trace`).
        where: keep the rows of the file whose columns have these values.
        skip_bad: skip rows that cannot be read, and count them.
        routing: ``random``, ``first_block`` (equal beginnings meet on one engine) or ``session``.
        by: label that separates requests, such as ``class``; in a problem file its values are workloads.
        seed: random seed.
        out: a file for the document, which a problem file of fleet takes as ``prefix_cache.hits``.

    Raises:
        InputError: a file or an argument is wrong, or the trace does not state shared prompts.
    """
    from optmodels.simulation.prefix_hits import prefix_hits as measured

    requests = read_requests(trace, column, where, skip_bad)
    found = measured(requests, kv_tokens, engines, routing, by, seed)  # type: ignore[arg-type]
    found["optmodels_version"] = version()
    if out is not None:
        with keeping(found):
            write_text(Path(out), json_text(found))
    return found
