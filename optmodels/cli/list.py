"""`list`: what there is."""

from __future__ import annotations

import builtins
import sys
from itertools import groupby
from typing import Any

import optmodels
from optmodels.cli.console import show
from optmodels.cli.options import Json, verb
from optmodels.io.write import json_text

SERIES = 8  # most instances of a folder that are listed one by one
Rows = builtins.list[dict[str, Any]]


@verb("what")
def list(given: dict[str, Any], as_json: Json = False) -> int:
    """List formulations, methods, problems and prices. It also lists the catalogue of models and GPUs."""
    found = optmodels.list(**given)
    if as_json:
        sys.stdout.write(json_text(found) + "\n")
        return 0
    what, shipped = given["what"], given["what"] in ("problems", "instances") and "folder" not in given
    from rich.table import Table

    from optmodels.reporting.text import plain

    if shipped:
        found = _by_folder(found)
    if found:
        sources = {row["pool"]: row for row in found} if what == "machines" else {}
        columns = [k for k in dict.fromkeys(k for row in found for k in row) if not sources or "source" not in k]
        table = Table(*columns, box=None)
        for row in found:
            table.add_row(*(plain("" if row.get(c) is None else str(row[c])) for c in columns))
        show([table])
        for name, row in sources.items():
            show([plain(f"{name}, USD per hour of {row['date']}: {row['source']} ({row['price_sources']})")])
        if shipped:
            show(["", "optmodels new FORMULATION --from NAME: a copy of one to change; --json lists every one"])
    return 0


def _by_folder(rows: Rows) -> Rows:
    """Problem files by name, a series (more than `SERIES` in a folder) as one row."""
    shown: Rows = []
    for (_, folder), group in groupby(rows, lambda r: (r["formulation"], str(r["name"]).rpartition("/")[0])):
        several = [*group]
        if folder and len(several) > SERIES:
            first, last = several[0], several[-1]
            ends = f"{first['title']} … {last['title']}"
            name = f"{first['name']} … {last['name']}"
            several = [first | {"name": f"{name} ({len(several)})", "title": ends}]
        shown += several
    return shown
