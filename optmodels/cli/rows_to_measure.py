"""`rows-to-measure`: the few closed-loop benchmark runs to measure for `calibrate`."""

from __future__ import annotations

from typing import Any

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, verb


@verb("problem", problem="Problem file with the machines and lengths to choose rows for; default: every possible row.")
def rows_to_measure(given: dict[str, Any], as_json: Json = False) -> int:
    """Choose the few benchmark runs to measure. The priors come from `calibrate --form default`."""
    from optmodels.reporting.latencies import chosen_lines

    answer(lambda: optmodels.rows_to_measure(**given), as_json, lambda found: chosen_lines(found, given.get("out")))
    return 0
