"""`operating-points`: a fitted model or measurements as rows of a problem file."""

from __future__ import annotations

from typing import Any

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, verb


@verb("latencies")
def operating_points(given: dict[str, Any], as_json: Json = False) -> int:
    """Compute rows of a problem file from a latency model. It can also read measurements. You give the workload."""
    from optmodels.reporting.latencies import point_lines

    answer(
        lambda: optmodels.operating_points(**given), as_json,
        lambda found: point_lines(found, given["machine"], given.get("out")),
    )  # fmt: skip
    return 0
