"""solve, compare, check, new, list."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from optmodels.cli.explaining import needs
from optmodels.cli.options import Force, Gap, Instance, Json, Method, PlanFile, Seed, Solver, TimeLimit

VIOLATIONS_SHOWN = 20
PATIENCE_S = 300.0  # of somebody at a terminal who set no limit
CHEAP_S = 5.0  # CPU seconds of a solve after which further ones may tell more
NO_GAP = 1e-9  # a relative gap below is rounding
SERIES = 8  # instances of a folder are listed one by one up to so many


def register(app: typer.Typer) -> None:
    """Add this module's verbs."""
    for verb in (solve, compare, check, new):
        app.command()(verb)
    app.command("list")(list_)
    app.command()(schema)


def check_formulation(arguments: list[str], formulation: str) -> None:
    """Refuse an instance of another formulation than the solve script's own."""
    from optmodels.errors import InputError, Mistake
    from optmodels.io.read import read_document

    for argument in arguments:
        path = Path(argument)
        if path.suffix in (".yaml", ".yml", ".json") and path.is_file():
            data, line = read_document(path)
            if data.get("formulation") != formulation:
                where = line(("formulation",))
                raise InputError(Mistake(argument, "formulation", data.get("formulation"), formulation, where))


def solve(
    instance: Instance,
    method: Method = "exact",
    time_limit: TimeLimit = None,
    gap: Gap = 0.0,
    seed: Seed = 0,
    solver: Solver = "highs",
    certify: Annotated[
        bool, typer.Option("--certify-replay", help="What it promises holds in simulation (fleet, orchestration).")
    ] = False,
    out_of_sample: Annotated[
        bool,
        typer.Option("--out-of-sample/--no-out-of-sample", help="Replay on other requests too, where it has some."),
    ] = True,
    out: Annotated[
        Path | None, typer.Option(help="Folder for result files (default: results/, not with --json).")
    ] = None,
    as_json: Json = False,
) -> int:
    """One plan: a readable summary, and files under results/."""
    target = out if out is not None else (None if as_json else Path("results"))
    result = solved(
        instance, target, as_json, method=method, time_limit=time_limit, gap=gap, seed=seed, solver=solver,
        certify=certify, out_of_sample=out_of_sample,
    )  # fmt: skip
    if not as_json:
        from optmodels.cli.console import show

        show(_next(result, str(instance)))
    return int(result.exit_status)


def _next(result: Any, instance: str) -> list[str]:
    """What to run after a solve."""
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


def solved(
    source: Any, target: Path | None, as_json: bool, before_show: Callable[[Any], object] | None = None, **how: Any
) -> Any:
    """The result of `api.solve`, shown as soon as it is found and before files are made of it.

    Args:
        source: of the instance.
        target: folder for files; None: none.
        as_json: the document on stdout in place of the screen.
        before_show: may add to the result's log.
        how: further arguments of `api.solve`.

    Raises:
        NotWrittenError: the result was shown and could not be written.
    """
    from optmodels import api, formulation
    from optmodels.cli.console import at_a_terminal, attempted, progress, show
    from optmodels.reporting.text import plain

    began = time.process_time()
    unlimited = how.get("time_limit") is None and not as_json and at_a_terminal()
    if unlimited:
        how["time_limit"] = PATIENCE_S
    with progress(not as_json) as on_event:

        def on_result(result: Any) -> None:
            if as_json:
                if before_show is not None:
                    before_show(result)
                return
            if on_event is not None:
                on_event.stop()
            if before_show is not None:
                before_show(result)
            if result.status == "infeasible" and time.process_time() - began < CHEAP_S:
                result.log["needs"] = needs(source)
            document = result.document()
            summary = formulation.get(result.formulation).summary(document)
            show([*_headline(result, document), *summary, *_certificate(result)])
            sys.stdout.flush()

        result, unwritten = attempted(lambda: api.solve(
            source, out=target, on_event=on_event, on_result=on_result, **how
        ))  # fmt: skip
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
    status = f"[{colour}]{words}[/{colour}]{only} by {plain(result.method)}{proof}{checked}"
    status += f": {plain(reason)}" if reason else ""
    decided = first_lines(document)
    needs = [f"  [bold]{plain(printable(line, 400))}[/bold]" for line in result.log.get("needs") or ()]
    return [
        f"{plain(result.instance)}  [dim]{plain(title)}[/dim]", *([""] if decided else []), *decided,
        f"  {status}" if decided else status, *needs, "",
    ]  # fmt: skip


def _stopped(limit: str | None, at: str) -> str:
    return "" if limit is None else ", interrupted" if limit == "interrupt" else f"{at} {limit} limit"


def _violations(found: Any) -> list[str]:
    """What a check found, for the terminal: the first of many, each of a readable length."""
    from optmodels.errors import printable
    from optmodels.reporting.text import plain

    lines = [plain(printable(f"  {v.requirement}: {v.value} against {v.limit} {v.unit}", 400))
             for v in found[:VIOLATIONS_SHOWN]]  # fmt: skip
    more = len(found) - len(lines)
    return [*lines, f"  and {more:,} more, in the document"] if more else lines


def gap_words(gap: float) -> str:
    """A relative gap for people: rounding of floating-point numbers is 0."""
    return "0" if gap < NO_GAP else f"{gap:.2g}"


def _certificate(result: Any) -> list[Any]:
    from optmodels.reporting.text import plain, short

    lines: list[Any] = [""]
    of = f" for {plain(result.certifies)}"
    if result.objective is not None:
        bound = "no bound" if result.bound is None else f"bound {short(result.bound)}"
        gap = "" if result.gap is None else f", gap {gap_words(result.gap)},{of}"
        lines.append(f"[bold]Certificate:[/bold] objective {short(result.objective)} {result.unit}, {bound}{gap}")
    elif result.status == "infeasible":
        lines.append(f"[bold]Certificate:[/bold] infeasible{of}")
    if asked := result.log.get("asked"):
        name = plain(asked["solver"])
        if not asked["runs"]:
            lines.append(f"{name} was not asked: this method's models stay with HiGHS.")
        elif result.objective is not None:
            lines.append(f"The bound stands on the word of {name}; the plan was verified.")
    if result.check is not None:
        verdict = "[green]passed[/green]" if result.check.ok else "[red]FAILED[/red]"
        lines.append(f"Independent check: {verdict}")
        lines += _violations(result.check.violations)
    s = result.seconds
    counts = result.log.get("pruning")
    cut = f"; {counts['candidates']:,} candidates, {counts['kept']:,} after pruning" if counts else ""
    lines.append(f"[dim]{s['total']:.2f} s: build {s['build']:.2f}, solve {s['solve']:.2f}{cut}[/dim]")
    if left_out := result.log.get("left_out"):
        limited = result.options.get("time_limit") is not None and result.limit != "interrupt"
        lines.append(plain(f"Left out{' at the time limit' if limited else ''}: {', '.join(left_out)}"))
    return lines


def compare(
    instances: Annotated[list[Path], typer.Argument(help="Instance files or folders of them.")],
    methods: Annotated[str | None, typer.Option(help="Comma-separated; default: all.")] = None,
    time_limit: TimeLimit = None,
    seed: Seed = 0,
    seeds: Annotated[str | None, typer.Option(help="Several, comma-separated: statistics over them.")] = None,
    replay: Annotated[bool, typer.Option("--replay", help="Simulate every plan on its instance's trace.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for tables and pictures.")] = None,
    as_json: Json = False,
) -> int:
    """Every method on every instance, side by side. Objective, bound, certified gap, seconds to plan and proof."""
    from optmodels import api
    from optmodels.cli.console import counted, show
    from optmodels.io.write import check_folder
    from optmodels.study.compare import comparison_table, save_comparison

    check_folder(out)
    files = _expand(instances)
    names = None if methods is None else [m.strip() for m in methods.split(",") if m.strip()]
    several = None if seeds is None else whole_numbers(seeds, "--seeds")
    with counted() as on_row:
        rows = api.compare(
            files, names, time_limit=time_limit, seed=seed, seeds=several, replay=replay, on_row=on_row,
            on_skip=lambda text: sys.stderr.write(f"{text}\n"),
        )  # fmt: skip
    if as_json:
        sys.stdout.write(api.to_json(rows) + "\n")
    else:
        show(comparison_table(rows))
    if out is not None:
        folder = save_comparison(rows, out)
        if not as_json:
            show([f"[dim]Files: {folder}[/dim]"])
    statuses = {r["status"] for r in rows}
    failed = any(r["check"] is not None and not r["check"]["ok"] for r in rows) or "error" in statuses
    return 1 if failed else 0


def whole_numbers(text: str, option: str) -> list[int]:
    """``0,1,2`` as numbers, each once."""
    from optmodels.errors import InputError, Mistake

    parts = [p.strip() for p in text.split(",")]
    if not all(p.isascii() and p.isdigit() for p in parts) or len(set(map(int, parts))) < len(parts):
        raise InputError(Mistake(None, option, text, "whole numbers, each once, as in 0,1,2"))
    return [int(p) for p in parts]


def _expand(paths: list[Path]) -> list[Path]:
    """Files as given; folders as the instance files in them and below."""
    from optmodels import api
    from optmodels.errors import InputError, Mistake

    files: list[Path] = []
    for path in paths:
        files += [Path(r["file"]) for r in api.listing("instances", path)] if path.is_dir() else [path]
    if not files:
        raise InputError(Mistake(None, "instances", [str(p) for p in paths], "at least one instance file"))
    return files


def check(
    plan: PlanFile,
    instance: Annotated[Path | None, typer.Option(help="Check against this instance, not the one in the file.")] = None,
    prove: Annotated[
        bool, typer.Option("--prove", help="Derive the bound anew, by another form and another solver.")
    ] = False,
    time_limit: Annotated[float | None, typer.Option(help="Seconds for --prove; default 60.")] = None,
    as_json: Json = False,
) -> int:
    """Verify a result against its instance, independently. Exit status 1 if that fails."""
    from optmodels import api
    from optmodels.cli.console import show
    from optmodels.cli.results import result_of
    from optmodels.reporting.text import plain

    report = api.check(result_of(plan), instance, prove=prove, time_limit=time_limit)
    if as_json:
        sys.stdout.write(report.model_dump_json(indent=2) + "\n")
    elif report.ok and not report.rebuilt and not report.trusted and report.proof is not None:
        show(["no plan to verify"])
    elif report.ok:
        trusted = {line.path: line.why for line in report.trusted}
        claimed = "; bound claimed (optmodels check --prove)" if "bound" in trusted and not prove else ""
        rebuilt = plain(", ".join(report.rebuilt))
        show([
            f"[green]ok[/green]: plan verified{claimed}",
            *([f"made again by the same program, found equal: {rebuilt}"] if rebuilt else []),
            *(["[dim]on trust:[/dim]"] if trusted else []),
            *(f"[dim]  {plain(path)}: {plain(why)}[/dim]" for path, why in trusted.items()),
        ])  # fmt: skip
    else:
        show(["[red]violated[/red]:"])
        show(_violations(report.violations))
    if report.proof is not None and not as_json:
        show(_proof(report.proof))
    return 0 if report.ok else 1


def _proof(proof: Any) -> list[Any]:
    """The bound derived anew, for the terminal."""
    from optmodels.reporting.text import plain

    def number(value: float | None) -> str:
        return "none" if value is None else f"{value:,.6g}"

    words = {
        "confirmed": "[green]confirmed[/green]", "refuted": "[red]REFUTED[/red]",
        "not refuted": "[yellow]not refuted within the limit[/yellow]",
        "nothing claimed": "[yellow]nothing was claimed[/yellow]",
    }[proof.verdict]  # fmt: skip
    gap = "" if proof.gap is None else f", gap {proof.gap:.2g} to the plan"
    lines = [f"Bound: {words}; claimed {number(proof.claimed)}, derived anew {number(proof.bound)}{gap}"]
    if proof.of:
        lines.append(plain(f"  of the linear model {', and of that '.join(proof.of)}"))
    for a in proof.attempts:
        found = f", a plan of {number(a.objective)}" if a.objective is not None else ""
        said = f"; {a.said}" if a.said else ""
        lines.append(
            plain(f"  {a.form} by {a.solver}: {a.status}, bound {number(a.bound)}{found}, {a.seconds:.1f} s{said}")
        )
    return lines


def new(
    formulation: Annotated[
        str,
        typer.Argument(
            help="optmodels list formulations; or current, what runs today; or formulation, for one of your own."
        ),
    ],
    file: Annotated[
        Path | None,
        typer.Argument(
            help="File to write (default: stdout; with --from the instance's own name); or the new formulation's name."
        ),
    ] = None,
    folder: Annotated[Path | None, typer.Argument(help="Where a new formulation goes (default: here).")] = None,
    shipped: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="A shipped instance, with its files: optmodels list instances. For current: an instance file.",
        ),
    ] = None,
    interactive: Annotated[
        bool,
        typer.Option(
            "--interactive", help="Ask the questions of `plan` one by one (fleet only); answers may come from a file."
        ),
    ] = False,
    force: Force = False,
) -> int:
    """An instance to start from: a template, or a shipped one. As new formulation NAME, a package of your own."""
    from optmodels import api
    from optmodels.errors import InputError, Mistake

    if formulation == "formulation":
        if file is None:
            raise InputError(Mistake(None, "name", None, "a name for the new formulation"))
        if shipped is not None or force:
            option = "--force" if force else "--from"
            raise InputError(Mistake(None, option, shipped or force, "neither --from nor --force for a formulation"))
        sys.stdout.write(f"{api.new_formulation(str(file), folder or Path())}\n")
        return 0
    if folder is not None:
        raise InputError(Mistake(None, "folder", str(folder), "nothing after the instance file"))
    if interactive:
        from optmodels.cli import interview
        from optmodels.io.write import refuse_existing, write_text

        if shipped is not None:
            raise InputError(Mistake(None, "--interactive", "--from", "one of the two"))
        if formulation != "fleet":
            raise InputError(Mistake(None, "--interactive", formulation, "`optmodels new fleet --interactive`"))
        if file is not None and not force:
            refuse_existing(file)
        text = interview.instance()
        if file is not None:
            write_text(file, text, overwrite=force)
        sys.stdout.write(text if file is None else f"{file}\n")
        return 0
    if shipped is not None and file is None and formulation != "current":
        file = Path(f"{shipped.rpartition('/')[2]}.yaml")
    text = api.new(formulation, file, shipped=shipped, overwrite=force)
    sys.stdout.write(text if file is None else f"{file}\n")
    return 0


def schema(
    name: Annotated[
        str,
        typer.Argument(help="A formulation (instance files), or current, plan, explanation, compare, sweep, replay."),
    ],
    keys: Annotated[
        bool, typer.Option("--keys", help="Every key of a formulation's instance files in words (Markdown).")
    ] = False,
) -> int:
    """JSON Schema of what is read and written. Of instance files, of what evaluate reads (current), or of documents."""
    import json

    if keys:
        from optmodels.keys import reference

        sys.stdout.write(reference(name))
        return 0
    from optmodels.schemas import schema as found

    sys.stdout.write(json.dumps(found(name), indent=2, ensure_ascii=False) + "\n")
    return 0


def list_(
    what: Annotated[
        str, typer.Argument(help="formulations, methods, instances, catalog or machines (with prices)")
    ] = "formulations",
    folder: Annotated[
        Path | None, typer.Option(help="Instance files in it and below, in place of the instances shipped.")
    ] = None,
    pool: Annotated[str | None, typer.Option(help="Of machines: those of one list of the catalogue.")] = None,
    region: Annotated[str | None, typer.Option(help="Of machines: those of one region.")] = None,
    as_json: Json = False,
) -> int:
    """Methods, shipped instances, catalogue, machine prices. Or formulations."""
    from optmodels import api
    from optmodels.errors import InputError, Mistake

    found = api.listing(what, folder)
    for column, wanted in (("pool", pool), ("region", region)):
        if wanted is None:
            continue
        if what != "machines":
            raise InputError(Mistake(None, f"--{column}", wanted, "machines to list: optmodels list machines"))
        known = list(dict.fromkeys(row[column] for row in found))
        found = [row for row in found if row[column] == wanted]
        if not found:
            raise InputError(Mistake(None, f"--{column}", wanted, f"one of {', '.join(known)}"))
    if as_json:
        sys.stdout.write(api.to_json(found) + "\n")
        return 0
    from rich.table import Table

    from optmodels.cli.console import show
    from optmodels.reporting.text import plain

    if what == "instances" and folder is None:
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
        if what == "instances" and folder is None:
            show(["", "optmodels new FORMULATION --from NAME: a copy of one to change; --json lists every one"])
    return 0


def _by_folder(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Instances by name, a series (more than `SERIES` in a folder) as one row."""
    shown: list[dict[str, Any]] = []
    for (_, folder), group in groupby(rows, lambda r: (r["formulation"], str(r["name"]).rpartition("/")[0])):
        several = [*group]
        if folder and len(several) > SERIES:
            first, last = several[0], several[-1]
            ends = f"{first['title']} … {last['title']}"
            name = f"{first['name']} … {last['name']}"
            several = [first | {"name": f"{name} ({len(several)})", "title": ends}]
        shown += several
    return shown
