"""`migrate`: the ordered steps from the running fleet to a plan."""

from __future__ import annotations

from typing import Any

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, verb


@verb("now", "plan")
def migrate(given: dict[str, Any], as_json: Json = False) -> int:
    """Order the steps from the running fleet to a plan. Every step keeps capacity as far as stock allows."""
    from optmodels.cli.results import result_of
    from optmodels.reporting.migrate import migrate_lines

    both = {name: result_of(given[name]) for name in ("now", "plan")}
    answer(lambda: optmodels.migrate(**given | both), as_json, migrate_lines)
    return 0
