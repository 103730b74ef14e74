"""`compare`: methods on problems, side by side."""

from __future__ import annotations

import sys
from typing import Any

import optmodels
from optmodels.cli.console import answer, counted, show
from optmodels.cli.options import Json, verb


@verb("problems", problems="Problem files or folders of them.")
def compare(given: dict[str, Any], as_json: Json = False) -> int:
    """Compare methods on problems side by side. Prints objective, certified gap, and seconds to plan and proof."""
    from optmodels.study.compare import comparison_table

    def on_skip(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    with counted() as on_row:
        rows = answer(lambda: optmodels.compare(**given, on_row=on_row, on_skip=on_skip), as_json, comparison_table)
    if "out" in given and not as_json:
        show([f"[dim]Files: {given['out']}[/dim]"])
    statuses = {r["status"] for r in rows}
    failed = any(r["check"] is not None and not r["check"]["ok"] for r in rows) or "error" in statuses
    return 1 if failed else 0
