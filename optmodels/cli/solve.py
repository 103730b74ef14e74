"""`solve`: one plan of a problem file."""

from __future__ import annotations

import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optmodels
from optmodels.cli.console import at_a_terminal, attempted, progress, show, violation_lines
from optmodels.cli.options import Json, verb

if TYPE_CHECKING:
    from optmodels.plans.outcome import Result

PATIENCE_S = 300.0  # default limit at a terminal
CHEAP_S = 5.0  # CPU seconds of a solve after which further ones may tell more
NEEDS_S, NEEDS_SOLVES, NEEDS_SHOWN = 10.0, 60, 4  # of an infeasible answer's own explanation
NO_GAP = 1e-9  # a relative gap below is rounding


@verb("problem", cancel=None, out="Folder for result files (default: results/, not with --json).")
def solve(given: dict[str, Any], as_json: Json = False) -> int:
    """Find one plan for a problem, with a proof. It prints a summary and writes files below results/."""
    result = solved(optmodels.solve, as_json, **({} if as_json else {"out": Path("results")}) | given)
    if not as_json:
        show(_next(result, str(given["problem"])))
    return int(result.exit_status)


def _next(result: Any, instance: str) -> list[str]:
    """Commands to run after a solve."""
    from optmodels.reporting.text import plain

    file = plain(shlex.quote(instance))
    if result.plan is None:
        why = {"infeasible": f"optmodels explain {file}: the least change that gives a plan"}.get(result.status)
        return [] if why is None else [f"Next: {why}"]
    lines = [f"optmodels explain {file}: what each limit costs, and the next best plans"]
    if "folder" in result.log and result.status != "error":
        folder = plain(shlex.quote(str(result.log["folder"])))
        lines.append(f"optmodels export {folder} --to vllm: the commands that start it")
    return ["[bold]Next[/bold]", *(f"  {line}" for line in lines)]


def solved(verb: Callable[..., Result], as_json: bool, *given: Any, **how: Any) -> Result:
    """The result of a verb that solves, shown as soon as it is found and before its files are written.

    Args:
        verb: `optmodels.solve` or `optmodels.plan`.
        as_json: the document on stdout in place of the screen.
        given, how: its arguments.

    Raises:
        NotWrittenError: the result was shown and could not be written.
    """
    from optmodels import formulation
    from optmodels.reporting.text import plain

    began = time.process_time()
    unlimited = how.get("time_limit") is None and not as_json and at_a_terminal()
    if unlimited:
        how["time_limit"] = PATIENCE_S
    with progress(not as_json) as on_event:

        def on_result(result: Result) -> None:
            if as_json:
                return
            if on_event is not None:
                on_event.stop()
            if result.status == "infeasible" and time.process_time() - began < CHEAP_S:
                result.log["needs"] = needs(result._problem)
            document = result.document()
            summary = formulation.get(result.formulation).summary(document)
            show([*_headline(result, document), *summary, *_certificate(result)])
            sys.stdout.flush()

        result, unwritten = attempted(lambda: verb(*given, on_event=on_event, on_result=on_result, **how))
    if as_json:
        sys.stdout.write(result.to_json() + "\n")
    elif "folder" in result.log and unwritten is None:
        show([f"[dim]Files: {plain(str(result.log['folder']))}[/dim]"])
    if unlimited and result.limit == "time":
        show([f"Stopped after {PATIENCE_S:g} s, the limit at a terminal: --time-limit SECONDS or inf for another."])
    if result.status == "error" and not as_json:
        file = f"{result.log['folder']}/plan.json" if "folder" in result.log else "plan.json (--out writes it)"
        show([f"[red]Nothing is proved.[/red] Please report this with {plain(file)}"])
    if unwritten is not None:
        raise unwritten
    return result


def needs(source: Any) -> list[str]:
    """The value that each limit of an infeasible problem would need, alone, as found in a few seconds."""
    from optmodels.errors import OptmodelsError

    try:
        found = optmodels.explain(source, time_limit=NEEDS_S, max_solves=NEEDS_SOLVES).model_dump(
            mode="json", by_alias=True
        )
    except OptmodelsError:
        return []
    written = [x for x in found["alone"] if x["limit"]["written"]]
    lines = [_needed(x) for x in written]
    if not lines and found["jointly"]:
        lines = [f"Enough together: {found['jointly']['words']}."]
    return [line if i == 0 else f"Or {line}" for i, line in enumerate(lines[:NEEDS_SHOWN])]


def _needed(x: Mapping[str, Any]) -> str:
    """``quota of h100: 48 GPUs needed, the limit is 24 GPUs``, of an explanation's relaxation."""
    changed = re.fullmatch(r"(.*): (.+?) → (.+?)(?: \(.*\))?", x["words"])
    if changed is None:
        return f"{x['words']}."
    name, limit, needed = changed.groups()
    return f"{name}: {needed} {'needed' if x['limit']['side'] == 'most' else 'possible'}, the limit is {limit}."


def _headline(result: Any, document: Any) -> list[Any]:
    """The decision first, then whether it is proved; with no plan, why not."""
    from optmodels.errors import printable
    from optmodels.reporting.decision import first_lines, is_refuted
    from optmodels.reporting.text import plain

    title = result.problem.get("title") or result.problem.get("name") or ""
    refuted = is_refuted(document)
    colour = {"optimal": "yellow" if refuted else "green", "feasible": "yellow"}.get(result.status, "red")
    words = {
        "optimal": "optimal, proved",
        "infeasible": "infeasible, proved",
        "no_solution_found": f"no plan found{_stopped(result.limit, ' within the')}",
        "error": "error, a fault of optmodels",
    }.get(result.status, result.status)
    usual = "no candidate meets every limit" if result.status == "infeasible" else ""
    reason = printable(str(result.log.get("reason") or usual), 2000)
    proof = ""
    if result.status == "feasible":
        proved = result.gap is not None and math.isfinite(result.gap)
        proof = f", proved within {result.gap:.2%} of the best" if proved else ", nothing proved"
        proof += _stopped(result.limit, "; stopped at the")
    checked = "" if result.check is None or result.check.ok else "; independent check FAILED"
    only = " for the planned rates" if refuted else ""
    status = f"[{colour}]{words}[/{colour}]{only} (method {plain(result.method)}){proof}{checked}"
    status += f": {plain(reason)}" if reason else ""
    decided = first_lines(document)
    needs = [f"  [bold]{plain(printable(line, 400))}[/bold]" for line in result.log.get("needs") or ()]
    return [
        f"{plain(result.instance)}  [dim]{plain(title)}[/dim]", *([""] if decided else []), *decided,
        f"  {status}" if decided else status, *needs, "",
    ]  # fmt: skip


def _stopped(limit: str | None, at: str) -> str:
    return "" if limit is None else ", interrupted" if limit == "interrupt" else f"{at} {limit} limit"


def gap_words(gap: float) -> str:
    """A relative gap for people: rounding of floating-point numbers is 0."""
    return "0" if gap < NO_GAP else f"{gap:.2g}"


def _certificate(result: Any) -> list[Any]:
    from optmodels.reporting.text import plain, short

    lines: list[Any] = [""]
    of = f" for {plain(result.certifies)}"
    if result.objective is not None:
        bound = "no bound" if result.bound is None else f"bound {short(result.bound)}"
        gap = "" if result.gap is None else f", gap {gap_words(result.gap)}"
        claim = "Proved optimal" if result.status == "optimal" else "Best plan found"
        scope = "" if result.gap is None else of
        lines.append(f"[bold]{claim}:[/bold] {short(result.objective)} {result.unit} ({bound}{gap}){scope}")
    elif result.status == "infeasible":
        lines.append(f"[bold]Proved infeasible[/bold]{of}")
    if asked := result.log.get("asked"):
        name = plain(asked["solver"])
        if not asked["runs"]:
            lines.append(f"{name} was not asked: this method's models stay with HiGHS.")
        elif result.objective is not None:
            lines.append(f"The bound stands on the word of {name}; the plan was verified.")
    if result.check is not None:
        verdict = "[green]passed[/green]" if result.check.ok else "[red]FAILED[/red]"
        lines.append(f"Independent check: {verdict}")
        lines += violation_lines(result.check.violations)
    s = result.seconds
    counts = result.log.get("pruning")
    cut = f"; {counts['candidates']:,} candidates, {counts['kept']:,} after pruning" if counts else ""
    lines.append(f"[dim]{s['total']:.2f} s: build {s['build']:.2f}, solve {s['solve']:.2f}{cut}[/dim]")
    if left_out := result.log.get("left_out"):
        limited = result.options.get("time_limit") is not None and result.limit != "interrupt"
        lines.append(plain(f"Left out{' at the time limit' if limited else ''}: {', '.join(left_out)}"))
    return lines


def check_formulation(arguments: list[str], formulation: str) -> None:
    """Refuse a problem file of another formulation than the solve script's own."""
    from optmodels.errors import InputError, Mistake
    from optmodels.io.read import read_document

    for argument in arguments:
        path = Path(argument)
        if path.suffix in (".yaml", ".yml", ".json") and path.is_file():
            data, line = read_document(path)
            if data.get("formulation") != formulation:
                where = line(("formulation",))
                raise InputError(Mistake(argument, "formulation", data.get("formulation"), formulation, where))
