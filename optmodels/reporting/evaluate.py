"""Today's fleet in the terminal: deployments, latencies, and the distance to the best plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from optmodels.reporting.decision import usd
from optmodels.reporting.replay import requests_of, shown, words
from optmodels.reporting.sources import source_lines
from optmodels.reporting.text import plain, titled

HOURS_A_YEAR = 8760
MOST_ROWS = 8
# Columns of the tables, where a record has them; everything else is in the JSON document.
DEPLOYMENT = (
    "name", "usd_per_hour", "gpus", "engines", "engines_needed", "requests_per_s", "load", "slots_in_use", "kv_in_use",
    "step_s", "replayed_step_s", "replayed_busy", "attainment",
)  # fmt: skip
DEMAND = (
    "demand", "requests_per_s", "predicted_within", "replayed_within", "best_dispatcher_within",
    "planned_routing_within", "attainment_at_least",
)  # fmt: skip
CALLED = {
    "usd_per_hour": "USD/h", "requests_per_s": "requests/s", "slots_in_use": "slots", "kv_in_use": "KV",
    "step_s": "iteration, ms", "replayed_step_s": "replayed, ms", "predicted_within": "predicted",
    "replayed_within": "replayed", "planned_routing_within": "planned routing", "engines_needed": "needed",
    "name": "deployment", "gpus": "GPUs", "replayed_busy": "busy", "best_dispatcher_within": "best dispatcher",
    "attainment_at_least": "asked for",
}  # fmt: skip
SHARES = {"load", "slots_in_use", "kv_in_use", "attainment", "replayed_busy", *DEMAND[2:]}
HOW = {
    "predicted": "predicted",
    "replayed": "replayed",
    "planned_routing": "your machines, planned routing",
    "best_dispatcher": "your machines, best dispatcher replayed",
}


def evaluate_lines(found: Mapping[str, Any]) -> list[Any]:
    """Rich renderables of an evaluate document."""
    report = found["report"]
    asked = "its own requests" if found["trace"] is None else requests_of(found["requests"], found["trace"])
    lines: list[Any] = [f"{plain(found['instance'])}  [dim]{plain(asked)}[/dim]"]
    lines += [f"[dim]{plain(note)}[/dim]" for note in found["trace_notes"]]
    price = f"{usd(report['usd_per_hour'])} USD/h, " if "usd_per_hour" in report else ""
    of = f" of {report['gpus_of_cluster']:,}" if "gpus_of_cluster" in report else ""
    if found["saving"] is not None and found["best"]["objective"] is not None:
        first, *more = _saving_lines(found, found["saving"])
        lines += [f"[bold]{plain(first)}[/bold]", *(f"  {plain(line)}" for line in more)]
    lines += [f"[bold]Today: {price}{_gpus(report['gpus'], of)}[/bold]"]
    for how, share in report["attainment"].items():
        at = report.get("predicted_at") if how == "predicted" else None  # its mean decides nothing: the replay does
        kept = report["keeps_every_slo"].get(how) if at is None else None
        verdict = {True: ", [green]every SLO met[/green]", False: ", [red]SLOs missed[/red]", None: ""}[kept]
        name = HOW.get(how, plain(words(how))) + ("" if at is None else f" at {plain(at)}")
        lines.append(f"  {name}: {share:.1%} of requests within their SLO{verdict}")
    lines += _distance(found)
    for title, key, columns in (
        ("Deployments", "deployments", DEPLOYMENT), ("Requests within their SLO", "demands", DEMAND)
    ):  # fmt: skip
        if report.get(key):
            lines += ["", _table(title, report[key], columns)]
    routing = report.get("planned_routing")
    if routing is not None:
        lines += ["", f"  Planned routing on the same engines: {routing['served_share']:.1%} served within the SLO by "
                  f"{routing['engines_needed']} of {routing['engines']} engines"]  # fmt: skip
    if found["left_out"]:
        lines += ["", f"Left out at the time limit: {plain(', '.join(found['left_out']))}"]
    lines += ["", *source_lines(report.get("latency", ()))]
    if "folder" in found:
        lines.append(f"[dim]Files: {plain(found['folder'])}[/dim]")
    return lines


def _table(title: str, rows: list[Mapping[str, Any]], columns: tuple[str, ...]) -> Any:
    there = [c for c in columns if any(c in r for r in rows)]
    table = titled(title, *(CALLED.get(c, words(c)) for c in there), box=None)
    if len(rows) > MOST_ROWS:  # the worst first
        rows = sorted(rows, key=lambda row: min((row[c] for c in DEMAND[2:6] if row.get(c) is not None), default=1.0))
    for row in rows[:MOST_ROWS]:
        table.add_row(*(plain(_cell(c, row.get(c))) for c in there))
    if len(rows) > MOST_ROWS:
        table.add_row(f"… {len(rows) - MOST_ROWS} more, see --json")
    return table


def _cell(column: str, value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "overloaded"
    if column in ("step_s", "replayed_step_s") and value is not None:
        return f"{1e3 * value:.3g}"
    return f"{value:.1%}" if column in SHARES and value is not None else shown(value)


def _distance(found: Mapping[str, Any]) -> list[str]:
    """The best plan and its certificate."""
    best, unit = found["best"], found["best"]["unit"]
    if best["objective"] is None:
        why = best["reason"] or "none was found in the time given"
        state = "No plan keeps every SLO" if best["status"] == "infeasible" else "No plan"
        return [f"[bold]{state}[/bold]: {plain(why)}"]
    shown_by = usd if unit == "USD/h" else "{:,.4f}".format
    bound = "" if best["bound"] is None else f", bound {shown_by(best['bound'])}"
    proof = "proved optimal" if best["status"] == "optimal" else f"{best['status']}{bound}"
    lines = [f"[bold]Best plan: {shown_by(best['objective'])} {plain(unit)}[/bold] ({proof})"]
    if best["headline"]:
        lines.append(f"  {plain(best['headline'])}")
    if best.get("replayed_attainment") is not None:
        lines.append(f"  replayed {best['replayed_attainment']:.1%} of requests within their SLO")
    return lines


def _saving_lines(found: Mapping[str, Any], saving: Mapping[str, Any]) -> list[str]:
    """Distance of the best plan from today's fleet, in its unit and as a share of today's."""
    best, today = found["best"], found["today"]
    unit, share, least_or_most = best["unit"], saving["share"], saving["at_most"]
    by = f"{abs(today['objective'] - best['objective']):,.4g} {unit} ({abs(share):.1%})"
    if unit == "USD/h" and best["sense"] == "min":
        by += f", {abs(today['objective'] - best['objective']) * HOURS_A_YEAR:,.0f} USD a year"
    proved, limits = best["status"] == "optimal", "your limits" if today["keeps_every_slo"] else "the limits"
    if best["sense"] == "max":
        if share >= 0:
            lines = [f"The plan attains {by} more than today's fleet, {today['objective']:,.4f} {unit}."]
        else:
            lines = [f"Today's fleet attains {by} more than the plan that was found."]
        end = "No plan attains more than this one." if proved else _at_most("attains", "more", least_or_most)
    elif share >= 0:
        lines = [f"You could save {by}."]
        if not today["keeps_every_slo"]:
            lines = [f"Today's fleet {_misses(found['report'])}. The plan meets them and costs {by} less."]
        end = (
            f"No plan that meets {limits} costs less."
            if proved
            else _at_most("meets the limits and saves", "", least_or_most)
        )
    else:
        name = "the cheapest plan" if proved else "the plan found"
        lines = [f"Today's fleet costs {by} less than {name} that meets the limits."]
        if not today["keeps_every_slo"]:
            lines.append(f"It {_misses(found['report'])}.")
        end = "" if proved else _at_most("meets the limits and saves", "", least_or_most)
    return [*lines, *([end] if end else [])]


def _at_most(verb: str, word: str, share: float | None) -> str:
    if share is None or share <= 0:
        return ""
    return " ".join(f"No plan {verb} more than {share:.1%} {word}".split()) + "."


def _misses(report: Mapping[str, Any]) -> str:
    """Which SLOs are missed, the first three by name, by prediction or only in the replay of the trace."""
    for how, words_of in (("predicted", "is predicted to miss {}"), ("replayed", "misses {} in the replay")):
        missed = [str(d["demand"]) for d in report.get("demands") or () if d.get(f"{how}_keeps") is False]
        if missed:
            more = f" and {len(missed) - 3} more" if len(missed) > 3 else ""
            return words_of.format(f"the SLO of {', '.join(missed[:3])}{more}")
    return "is predicted to miss SLOs"


def _gpus(count: int, of: str = "") -> str:
    return f"{count:,}{of} GPU{'' if count == 1 and not of else 's'}"


def fewest_lines(found: Mapping[str, Any]) -> list[str]:
    """A search for the fewest GPUs, in the terminal."""
    asked = f"{100 * found['attainment']:.6g}% of the requests within their SLO"
    if found["bound"] is None:
        return [f"[bold]No number of GPUs attains {asked}[/bold]"]
    if found["gpus"] is None:
        return [
            f"[bold]No plan that attains {asked} was found in the time given[/bold]; {_gpus(found['bound'])} or more"
        ]
    if found.get("missed"):
        lines = [
            f"[red]No fleet was found that attains {asked} on the trace itself[/red]",
            f"  {_gpus(found['gpus'])} attain it by the model; on the trace {plain(found['missed'])}",
        ]
        return lines + _over_time(found)
    exact = found["gpus"] == found["bound"]
    attain = "attains" if found["gpus"] == 1 else "attain"
    proof = "proved: no plan has fewer" if exact else f"no plan has fewer than {found['bound']:,}"
    lines = [f"[bold]{_gpus(found['gpus'])}[/bold] {attain} {asked} ({proof})", f"  for {plain(found['certifies'])}"]
    if found.get("headline"):
        lines.append(f"  {plain(found['headline'])}")
    lines += _over_time(found)
    return lines + ([f"[dim]Files: {plain(found['folder'])}[/dim]"] if "folder" in found else [])


def _over_time(found: Mapping[str, Any]) -> list[str]:
    """Of a fleet cut from a trace: peak, mean and GPU-hours."""
    over = found.get("over_time")
    if not over:
        return []
    busiest = "" if over["busiest"] is None else f" ({plain(over['busiest'])})"
    if "peak_gpus" not in over:
        return []
    return [
        f"  A fleet that followed the trace{busiest}: peak {over['peak_gpus']:,} GPUs, mean {over['mean_gpus']:.1f},"
        f" {over['gpu_hours']:,.4g} GPU-hours (by the model, not simulated)"
    ]
