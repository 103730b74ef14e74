"""`calibrate`: a latency model fitted to measurements."""

from __future__ import annotations

from typing import Any

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, verb
from optmodels.io.write import json_text


@verb("measurements")
def calibrate(given: dict[str, Any], as_json: Json = False) -> int:
    """Fit a latency model to measurements. It reports the errors on held-back rows."""
    from optmodels.reporting.latencies import calibrated_lines

    notes: list[str] = []
    whole = given.get("form") == "default"
    answer(
        lambda: optmodels.calibrate(**given, on_note=notes.append), as_json,
        lambda found: calibrated_lines(found, notes, given.get("out")),
        lambda found: json_text(found.model_dump(mode="json", by_alias=True, exclude_none=not whole)),
    )  # fmt: skip
    return 0
