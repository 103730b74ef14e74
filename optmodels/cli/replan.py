"""`replan`: one tick of a fleet that follows its traffic."""

from __future__ import annotations

from typing import Any

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, verb


@verb("file", file="Fleet problem file, or a plan with its problem file.")
def replan(given: dict[str, Any], as_json: Json = False) -> int:
    """Decide one tick of a fleet that follows its traffic. It states orders, stops and loads, each with its reason."""
    from optmodels.reporting.replan import replan_lines

    found = answer(lambda: optmodels.replan(**given), as_json, replan_lines)
    return 4 if found["tick"]["source"] == "last" else 0
