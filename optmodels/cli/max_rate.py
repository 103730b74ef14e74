"""`max-rate`: the largest request rate within the SLOs."""

from __future__ import annotations

from typing import Any

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, verb
from optmodels.cli.results import result_of


@verb("plan", plan="plan.json, its folder, or a problem file: any fleet within its limits.")
def max_rate(given: dict[str, Any], as_json: Json = False) -> int:
    """Find the largest request rate within the SLOs. Prints predicted rates with a bound, and a simulated one."""
    from optmodels.reporting.max_rate import max_rate_lines

    if given.get("plan") is not None and given["plan"].is_dir():  # a problem file means any fleet, not its result
        given["plan"] = result_of(given["plan"])
    answer(lambda: optmodels.max_rate(**given), as_json, max_rate_lines)
    return 0
