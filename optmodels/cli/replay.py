"""`replay`: a plan simulated on a request trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, verb
from optmodels.cli.results import result_of


@verb("plan", out="Folder for replay.json and the requests (default: results/, not with --json).")
def replay(given: dict[str, Any], as_json: Json = False) -> int:
    """Simulate a plan on a request trace. The output has predicted next to replayed latencies."""
    from optmodels.reporting.replay import replay_lines

    given = ({} if as_json else {"out": Path("results")}) | given | {"plan": result_of(given["plan"])}
    answer(lambda: optmodels.replay(**given), as_json, replay_lines)
    return 0
