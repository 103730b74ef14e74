"""`batch-limits`: the largest batch that memory and latency allow."""

from __future__ import annotations

from typing import Any

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, verb


@verb()
def batch_limits(given: dict[str, Any], as_json: Json = False) -> int:
    """Compute the largest batch that memory and latency allow. Memory suffices with a probability that you give."""
    from optmodels.reporting.latencies import batch_limit_lines

    answer(lambda: optmodels.batch_limits(**given), as_json, batch_limit_lines)
    return 0
