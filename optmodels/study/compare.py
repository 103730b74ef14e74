"""The comparison of methods as a table, a CSV and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optmodels.plan.files import new_folder, write_frame, write_text


def comparison_table(rows: list[dict[str, Any]]) -> list[Any]:
    """Rich tables, one for each instance."""
    from rich.table import Table

    from optmodels.reporting.text import plain

    out: list[Any] = []
    for instance in dict.fromkeys(r["instance"] for r in rows):
        mine = [r for r in rows if r["instance"] == instance]
        unit = mine[0]["unit"]
        table = Table(
            "method", "status", f"objective ({unit})", "bound", "gap to bound", "seconds", "plan",
            title=plain(instance), title_justify="left", title_style="bold",
        )  # fmt: skip
        for r in mine:
            gap = r["gap_to_bound"]
            failed = r["check"] is not None and not r["check"]["ok"]
            table.add_row(
                plain(r["method"]), ("[red]check failed[/red]" if failed else r["status"]),
                "" if r["objective"] is None else f"{r['objective']:,.6g}",
                "" if r["bound"] is None else f"{r['bound']:,.6g}",
                "" if gap is None else f"{gap:.2%}", f"{r['seconds']['total']:.2f}", plain(r["headline"]),
            )  # fmt: skip
        out.append(table)
    return out


def comparison_frame(rows: list[dict[str, Any]]) -> Any:
    """Tidy data frame, one row for each (instance, method)."""
    import pandas as pd

    flat = []
    for r in rows:
        row = {k: v for k, v in r.items() if k not in ("seconds", "size", "check")}
        row |= {f"seconds_{k}": v for k, v in r["seconds"].items()} | r["size"]
        row["check_ok"] = None if r["check"] is None else r["check"]["ok"]
        flat.append(row)
    return pd.DataFrame(flat)


def save_comparison(rows: list[dict[str, Any]], parent: Path) -> Path:
    """Write compare.csv and compare.json into a new folder; returns the folder.

    Also compare.png where matplotlib is installed, and report.html where the ``report`` extra is.
    """
    from optmodels import api
    from optmodels.reporting import page

    folder = new_folder(parent, "compare")
    write_frame(folder / "compare.csv", comparison_frame(rows))
    write_text(folder / "compare.json", api.to_json(rows))
    if page.available():
        api.report([rows], out=folder / "report.html")
    try:
        from optmodels.reporting.plots import gap_plot
    except ImportError:
        return folder
    gap_plot(rows, folder / "compare.png")
    return folder
