"""`simulate`: one deployment on a request trace, without a plan."""

from __future__ import annotations

from typing import Any

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, verb


@verb()
def simulate(given: dict[str, Any], as_json: Json = False) -> int:
    """Simulate one deployment on a request trace. The simulation goes engine step by engine step, without a plan."""
    from optmodels.reporting.simulate import simulate_lines

    answer(lambda: optmodels.simulate(**given), as_json, simulate_lines)
    return 0
