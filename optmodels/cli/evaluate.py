"""`evaluate`: today's deployments next to the best plan."""

from __future__ import annotations

from typing import Any

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, verb


@verb("current")
def evaluate(given: dict[str, Any], as_json: Json = False) -> int:
    """Compare today's deployments with the best plan. Prints cost, SLO attainment and the gap to the optimum."""
    from optmodels.reporting.evaluate import evaluate_lines

    answer(lambda: optmodels.evaluate(**given), as_json, evaluate_lines)
    return 0
