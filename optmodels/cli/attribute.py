"""`attribute`: a step's latency divided among its requests and tenants."""

from __future__ import annotations

from typing import Any

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, verb


@verb("batch")
def attribute(given: dict[str, Any], as_json: Json = False) -> int:
    """Divide a step's latency among its requests and tenants."""
    from optmodels.reporting.latencies import attribution_lines

    answer(lambda: optmodels.attribute(**given), as_json, attribution_lines)
    return 0
