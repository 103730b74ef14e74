"""The comparison of methods: tables, tidy CSVs, statistics over seeds, and pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from optmodels.io.write import finite, new_folder, write_frame, write_text
from optmodels.study.rows import best_bound

MEASURES = ("objective", "gap_to_bound", "seconds_total", "seconds_to_first", "seconds_to_proof")
Rows = Sequence[dict[str, Any]]


def by_instance(rows: Rows) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Rows of each instance, in the order they came."""
    for instance in dict.fromkeys(r["instance"] for r in rows):
        yield instance, [r for r in rows if r["instance"] == instance]


def comparison_table(rows: Rows) -> list[Any]:
    """For each instance a table that fits 80 columns, the best bound, and each plan with the methods that found it.

    Where there are several seeds, tables of their mean and spread. The rest is in compare.csv.
    """
    from optmodels.reporting.text import SHORT_STATUS, plain, short, titled

    if len({r["seed"] for r in rows}) > 1:
        return _statistics_table(rows)
    out: list[Any] = []
    for instance, mine in by_instance(rows):
        unit = mine[0]["unit"]
        table = titled(
            plain(instance), "method", "status", f"objective ({unit})", "gap to bound", "seconds", "to first",
            "to proof", caption=_best_bound(mine, unit), caption_justify="left",
        )  # fmt: skip
        plans: dict[str, list[str]] = {}
        for r in mine:
            gap, s = r["gap_to_bound"], r["seconds"]
            failed = r["check"] is not None and not r["check"]["ok"]
            table.add_row(
                plain(r["method"]), "[red]check failed[/red]" if failed else SHORT_STATUS.get(r["status"], r["status"]),
                short(r["objective"]), "" if gap is None else f"{gap:.2%}",
                *(_seconds(s[k]) for k in ("total", "to_first", "to_proof")),
            )  # fmt: skip
            plans.setdefault("; ".join(t for t in (r["headline"], _replay(r)) if t), []).append(r["method"])
        out += [table, *(f"  {plain(', '.join(m))}: {plain(t)}" for t, m in plans.items() if t), ""]
    return out


def _best_bound(rows: Rows, unit: str) -> str | None:
    """The best bound as a sentence with the methods that proved it."""
    from optmodels.reporting.text import plain, short

    best = best_bound(rows, rows[0]["sense"])
    if best is None:
        return None
    by = ", ".join(r["method"] for r in rows if short(r["bound"]) == short(best))
    return plain(f"bound {short(best)} {unit}, proved by {by}")


def _replay(row: dict[str, Any]) -> str:
    """Result of the first policy for the predicted metric, if replayed; all figures are in compare.csv."""
    from optmodels.reporting.text import short

    policy = next((k.split(".")[2] for k in row if k.startswith("replay.policies.")), None)
    if policy is None:
        return str(row.get("replay.none", ""))
    names = [k.removeprefix("replay.predicted.") for k in row if k.startswith("replay.predicted.")]
    seen = {n: row.get(f"replay.policies.{policy}.{n}") for n in names}
    found = [f"{n} {short(v)} (predicted {short(row[f'replay.predicted.{n}'])})" for n, v in seen.items()]
    return f"replay, {policy}: {', '.join(found)}"


def _statistics_table(rows: Rows) -> list[Any]:
    from optmodels.reporting.text import plain, titled

    out: list[Any] = []
    frame = statistics_frame(rows)
    for instance, mine in frame.groupby("instance", sort=False):
        unit = mine["unit"].iloc[0]
        table = titled(
            plain(instance), "method", "seeds", "with plan", f"objective ({unit})", "gap to bound", "seconds",
            "to first", caption="mean ± sd (min … max) over seeds", caption_justify="left",
        )  # fmt: skip
        for r in mine.to_dict("records"):
            table.add_row(
                plain(r["method"]), str(r["seeds"]), str(r["with_plan"]), _spread(r, "objective", "{:,.6g}"),
                _spread(r, "gap_to_bound", "{:.2%}"), _spread(r, "seconds_total", "{:.2f}"),
                _spread(r, "seconds_to_first", "{:.2f}"),
            )  # fmt: skip
        out += [table, ""]
    return out


def _spread(row: dict[str, Any], name: str, form: str) -> str:
    mean, sd, low, high = (row[f"{name}_{k}"] for k in ("mean", "sd", "min", "max"))
    if mean != mean:  # NaN: never
        return ""
    if form.format(low) == form.format(high):
        return form.format(mean)
    return f"{form.format(mean)} ± {form.format(sd)} ({form.format(low)} … {form.format(high)})"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def comparison_frame(rows: Rows) -> Any:
    """Tidy data frame, one row for each (instance, method, seed)."""
    import pandas as pd

    flat = []
    for r in rows:
        row = {k: v for k, v in r.items() if k not in ("seconds", "size", "check", "events")}
        row |= {f"seconds_{k}": v for k, v in r["seconds"].items()} | r["size"]
        row["check_ok"] = None if r["check"] is None else r["check"]["ok"]
        flat.append(row)
    return pd.DataFrame(flat)


def statistics_frame(rows: Rows) -> Any:
    """Mean, sample standard deviation, least and greatest over seeds, one row for each (instance, method)."""
    import pandas as pd

    frame = comparison_frame(rows)
    measures = {m: pd.to_numeric(frame[m], errors="coerce") for m in MEASURES}
    frame = frame.assign(**measures, with_plan=frame["objective"].notna(), proved=frame["proved"].astype(bool))
    groups = frame.groupby(["instance", "formulation", "method", "unit"], sort=False)
    out = groups.agg(seeds=("seed", "count"), with_plan=("with_plan", "sum"), proved=("proved", "sum"))
    for m in MEASURES:
        found = groups[m].agg(mean="mean", sd="std", min="min", max="max").add_prefix(f"{m}_")
        found[f"{m}_sd"] = found[f"{m}_sd"].where(groups[m].count() > 1, other=0.0).where(groups[m].count() > 0)
        out = out.join(found)
    return out.reset_index()


def events_frame(rows: Rows) -> Any:
    """Gap over time: one row for each progress event of each run, seconds from the start of the run's solver."""
    import pandas as pd

    from optmodels.solver.highs import relative_gap

    columns = ["instance", "method", "seed", "seconds", "objective", "bound", "gap", "nodes"]
    flat = [
        {"instance": r["instance"], "method": r["method"], "seed": r["seed"], **e,
         "gap": relative_gap(e["objective"], e["bound"])} for r in rows for e in r["events"]
    ]  # fmt: skip
    return pd.DataFrame(flat, columns=columns)


def save_comparison(rows: Rows, parent: Path) -> Path:
    """Write compare.csv, compare.json, events.csv, with several seeds seeds.csv; returns the new folder.

    Also report.html and its charts.

    Args:
        rows: rows of `optmodels.compare`.
        parent: parent of the folder ``compare`` (or ``compare-2``, …).
    """
    from optmodels.reporting.page import write_page

    folder = new_folder(parent, "compare")
    write_text(folder / "compare.json", json.dumps(finite(list(rows)), indent=1, ensure_ascii=False))
    write_frame(folder / "compare.csv", comparison_frame(rows))
    write_frame(folder / "events.csv", events_frame(rows))
    if len({r["seed"] for r in rows}) > 1:
        write_frame(folder / "seeds.csv", statistics_frame(rows))
    write_page(list(rows), folder, pictures=True)
    return folder
