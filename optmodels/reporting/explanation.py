"""An explanation for people: words first, then tables; on the terminal and as data frames for pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from optmodels.limits import figure, quantity
from optmodels.reporting.text import plain


def summary(document: Mapping[str, Any]) -> list[Any]:
    """Rich renderables of an explanation document."""
    colour = {"feasible": "green", "infeasible": "red"}.get(document["status"], "yellow")
    out: list[Any] = [
        f"{plain(document['instance'])}  [dim]{plain(document['title'])}[/dim]",
        f"[{colour}]{plain(document['words'])}[/{colour}]",
        "",
    ]
    out += _infeasible(document) if document["status"] == "infeasible" else _feasible(document)
    if document["skipped"]:
        out += ["", "[yellow]Not examined:[/yellow]", *(f"  {plain(s)}" for s in document["skipped"])]
    known = f"; {document['reused']:,} answers reused" if document["reused"] else ""
    return [*out, "", f"[dim]{document['seconds']:.1f} s, {document['solves']:,} solves{known}[/dim]"]


def _infeasible(document: Mapping[str, Any]) -> list[Any]:
    out: list[Any] = []
    for conflict in document["conflicts"]:
        proof = "none can be left out, proved" if conflict["irreducible"] else "not proved to be the fewest"
        many = len(conflict["members"]) > 1
        out.append(f"[bold]{'Cannot hold together' if many else 'Nothing meets'}[/bold] [dim]({proof})[/dim]")
        out += [f"  • {plain(m['words'])}" for m in conflict["members"]]
    if document["restored_words"]:
        out.append(f"{plain(document['restored_words'])}{' [dim](checked)[/dim]' if document['restored'] else ''}")
    if document["alone"]:
        out += ["", "[bold]Enough, each alone[/bold]", *(f"  • {plain(a['words'])}" for a in document["alone"])]
    elif document["restored"]:
        out += ["", "No limit alone is enough."]
    if document["jointly"]:
        joint = document["jointly"]
        out += ["", f"[bold]Cheapest together[/bold]: {plain(joint['words'])}"]
    return out


def _feasible(document: Mapping[str, Any]) -> list[Any]:
    out: list[Any] = []
    unit = document["unit"]
    binding = [line for line in document["limits"] if line["binds"] is not False]
    if binding:
        out += ["[bold]Binding limits[/bold]", *(f"  • {plain(line['words'])}" for line in binding), ""]
    if document["limits"]:
        table = Table("limit", "value", "binds", "stays best from … to", f"gain without it ({plain(unit)})", box=None)
        for row in limit_rows(document):
            table.add_row(*(plain(row[k]) for k in ("limit", "value", "binds", "range", "gain")))
        out += [table, ""]
    if document["next_plans"]:
        out += ["[bold]Next best plans[/bold]"]
        out += [f"  {i}. {plain(n['words'])}" for i, n in enumerate(document["next_plans"], 2)] + [""]
    if document["prices"]:
        out += ["[bold]Prices[/bold]", *(f"  • {plain(p['words'])}" for p in document["prices"])]
    return out


def limit_rows(document: Mapping[str, Any]) -> list[dict[str, str]]:
    """The limits of a feasible instance as rows of text: limit, value, binds, range, gain without it."""
    rows = []
    for line in document["limits"]:
        limit = line["limit"]
        unit = limit["unit"]
        ends = sorted(
            [(v, v is not None) for v in (line["tightest"], line["loosest"])], key=lambda e: (e[1], e[0] or 0)
        )
        known = [quantity(v, unit) for v, there in ends if there and not isinstance(v, bool | str | list)]
        if limit["side"] in ("most", "least"):
            low = high = "…"
            if line["tightest"] is not None:
                low, high = (known[0], high) if limit["side"] == "most" else (low, known[-1])
            if line["loosest"] is not None:
                low, high = (low, known[-1]) if limit["side"] == "most" else (known[0], high)
            span = f"{low} … {high}" if known else ""
        else:
            span = ""
        value = limit["value"]
        rows.append({
            "limit": limit["name"],
            "value": quantity(value, unit) if isinstance(value, int | float) and not isinstance(value, bool)
            else ", ".join(value) if isinstance(value, list) else "",
            "binds": {True: "yes", False: "no", None: "?"}[line["binds"]],
            "range": span,
            "gain": figure(line["gain_without"]) if line["gain_without"] else "",
        })  # fmt: skip
    return rows


def frames(document: Mapping[str, Any]) -> dict[str, Any]:
    """Data frames of an explanation document by name; only those that have rows."""
    import pandas as pd

    together = (document["jointly"] or {}).get("relaxations", [])
    tables: dict[str, list[dict[str, Any]]] = {
        "conflicts": [
            {"conflict": i, "limit": m["limit"]["name"], "path": m["limit"]["path"], "value": m["limit"]["value"],
             "unit": m["limit"]["unit"], "needed": m["needed"], "words": m["words"]}
            for i, c in enumerate(document["conflicts"], 1) for m in c["members"]
        ],
        "relaxations": [
            {"how": how, "limit": r["limit"]["name"], "path": r["limit"]["path"], "value": r["limit"]["value"],
             "unit": r["limit"]["unit"], "needed": r["needed"], "change": r["change"], "words": r["words"]}
            for how, lines in (("alone", document["alone"]), ("jointly", together)) for r in lines
        ],
        "limits": [
            {"limit": x["limit"]["name"], "path": x["limit"]["path"], "value": x["limit"]["value"],
             "unit": x["limit"]["unit"], **{k: v for k, v in x.items() if k != "limit"}} for x in document["limits"]
        ],
        "prices": list(document["prices"]),
        "next_plans": [{**n, "buys": ", ".join(f"{v:g}× {k}" for k, v in n["buys"].items()),
                        "without": ", ".join(n["without"])} for n in document["next_plans"]],
    }  # fmt: skip
    return {name: pd.DataFrame(rows) for name, rows in tables.items() if rows}
