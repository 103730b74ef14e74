"""`solve`: one plan of a problem file, checked and written."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from optmodels import formulation as registry
from optmodels.api.next_measurement import OTHER_END_S, consider
from optmodels.api.sources import File, Source, inlined, problem_of, renamed, shown_name
from optmodels.errors import InputError, Mistake
from optmodels.formulation import Formulation, checked_options
from optmodels.io.write import bare_name, check_folder, keeping, new_folder, path_text, safe_name, write_text
from optmodels.plans.claims import digest, plain
from optmodels.plans.outcome import Outcome, Result, judged
from optmodels.plans.replayed import missed
from optmodels.problem import Problem
from optmodels.solver.cancel import cancellable, caught_interrupt
from optmodels.solver.deadline import EVERYTHING, OTHER_END, OUT_OF_SAMPLE, deadline, wanted
from optmodels.solver.highs import Event, relative_gap
from optmodels.solver.otherwise import otherwise
from optmodels.solver.pyomo_solver import named
from optmodels.verification import csv_files, version

MOMENT_S = 0.05  # that a method has where the tables took all of the time limit


@renamed({"instance": "problem"})
def solve(
    problem: Source, method: str = "exact", *, time_limit: float | None = None, gap: float = 0.0, seed: int = 0,
    solver: str = "highs", certify_replay: bool = False, out_of_sample: bool = True, out: File | None = None,
    on_event: Callable[[Event], None] | None = None, on_result: Callable[[Result], None] | None = None,
    cancel: threading.Event | None = None,
) -> Result:  # fmt: skip
    """Find one plan, check it independently, and (with `out`) write it below that folder.

    Args:
        problem: file, mapping or loaded problem.
        method: ``exact``, or a heuristic: optmodels list methods.
        time_limit: seconds (or ``5min``, ``inf``), tables included; at the limit the best plan so far counts. The clock
            starts when the problem is read. The method has at least `MOMENT_S`. Reports that cost solves and have no
            time left are left out and named in ``log.left_out``; checking, short replays and writing are done whatever
            the time. Within the limit the plan at the other end of the latencies' interval is solved, too, and where
            its machines differ ``log.next_measurement`` names the runs that tell which is right.
        gap: stop at this relative MIP gap.
        seed: random seed of the solver or heuristic.
        solver: ``highs``, or any solver that Pyomo finds: cbc, glpk, scip, gurobi, cplex, xpress …. Its point is
            verified, its bound is unverified, and ``log.asked.runs`` states how it ended. Models that a method
            changes between runs (cutting planes, columns) stay with HiGHS; no runs if there are no others.
        certify_replay: simulate until every SLO holds, like ``certify: replay`` in the problem file.
        out_of_sample: replay a plan made for a trace on resampled requests too.
        out: folder for results; a new folder per result is made in it, nothing is overwritten.
        on_event: called with solver progress; an exception in it ends the solve and is raised.
        on_result: called with the checked result, before its files are written.
        cancel: set it from another thread to stop the solver; the incumbent and bound so far are returned.

    Raises:
        InputError: the problem or an argument is wrong.
        NotWrittenError: the result, which it carries, could not be written.
    """
    began = time.perf_counter()
    beside = time_limit is not None and wanted(OTHER_END)
    check_folder(None if out is None else Path(out))
    way = named(solver)
    posed = problem_of(problem)
    form = registry.get(posed.formulation)
    if certify_replay:
        if "certify" not in type(posed).model_fields:
            raise InputError(Mistake(None, "certify_replay", True, f"False: plans of {form.name} are not certified"))
        posed = posed.model_copy(update={"certify": "replay"})
    run = form.method(method)
    options = checked_options(seed, time_limit, gap, on_event)
    clock = time.perf_counter()
    with posed.blamed():
        table = form.tables(posed)
    phases = {"load": clock - began, "tables": time.perf_counter() - clock}
    left = None if options.time_limit is None else max(MOMENT_S, options.time_limit - phases["tables"])
    with contextlib.ExitStack() as until_kept:
        with cancellable(cancel), deadline(left, () if out_of_sample else (OUT_OF_SAMPLE,)) as left_out:
            with otherwise(way), posed.blamed():
                outcome = run(posed, table, replace(options, time_limit=left))
            if beside or on_result is not None or out is not None:  # Ctrl-C does not lose a plan that is found
                until_kept.enter_context(caught_interrupt())
            # A stopped solve returns its plan at once, without reports that need more solves.
            stopped = outcome.limit == "interrupt"
            with deadline(0.0, EVERYTHING) if stopped else contextlib.nullcontext(left_out) as more:
                result = _result(form, posed, table, method, outcome, phases, began, shown_name(problem, posed))
        left_out += [what for what in more if what not in left_out]
        if left_out:
            result.log["left_out"] = left_out
        result._frames, result._tables, result._problem = (lambda: form.frames(table, outcome.plan)), table, posed
        result._said = lambda: _html(form, result)
        result.options = {"seed": options.seed, "time_limit": options.time_limit, "gap": options.gap}
        if solver != "highs":
            result.log["asked"] = {"solver": solver, "runs": way.said}
        if beside:
            _consider_other_end(result, time_limit)
        if on_result is not None:
            on_result(result)
        if out is not None:
            with keeping(result):
                save(result, form, table, outcome.plan, Path(out))
    return result


def _consider_other_end(found: Result, time_limit: float | None) -> None:
    """Keep the plan at the other end of the latencies' interval, as far as the time limit has time left."""
    left = min(OTHER_END_S, (time_limit or 0.0) - found.seconds["total"])
    if left > 0 and getattr(found._problem, "certify", "none") == "none":  # the other plan would not be certified
        at_the_other_end(found, found._problem, left)


def at_the_other_end(found: Result, problem: Problem, seconds: float, written: Mapping[str, str] | None = None) -> None:
    """Keep in the log of a result the plan at the other end of the latencies' interval (`consider`).

    Args:
        found: a checked result.
        problem: its problem.
        seconds: time limit of that plan.
        written: as of `consider`.
    """
    latency: Any = getattr(problem, "latency", None)

    def at_safety(level: float | None) -> Result:
        changed = {"latency": latency.model_copy(update={"safety": level}), "certify": "none"}
        with deadline(None, (OTHER_END,)):
            return solve(problem.model_copy(update=changed), out_of_sample=False, time_limit=seconds)

    consider(found, getattr(latency, "safety", None), at_safety, written)


def _html(form: Formulation, result: Result) -> str:
    from optmodels.reporting.decision import first_lines
    from optmodels.reporting.text import as_html

    document = result.document()
    return as_html([*first_lines(document), "", *form.summary(document)])


def _result(
    form: Formulation, problem: Problem, table: Any, method: str, outcome: Outcome[Any], phases: dict[str, float],
    began: float, instance: str,
) -> Result:  # fmt: skip
    plan = outcome.plan
    data = None if plan is None else plan.model_dump(mode="json")
    clock = time.perf_counter()
    verdict = None if data is None else form.check(problem, data)
    phases["check"] = time.perf_counter() - clock
    clock = time.perf_counter()
    report = form.report(table, plan)
    phases["report"] = time.perf_counter() - clock
    objective = None if plan is None else form.objective(plan)
    seconds = phases | outcome.seconds
    seconds["build"] = outcome.seconds.get("build", 0.0) + outcome.seconds.get("prune", 0.0) + phases["tables"]
    seconds.setdefault("solve", 0.0)
    seconds["total"] = time.perf_counter() - began
    sense, unit = form.goal_of(problem)
    embedded = inlined(problem)
    outcome = judged(outcome, objective, sense, verdict, missed(report))
    summary = {}
    if data is not None and form.decision is not None and verdict is not None and verdict.ok:
        summary = form.decision(embedded, data, plain(report))
    return Result(
        instance=instance, formulation=form.name, method=method, status=outcome.status, limit=outcome.limit,
        objective=objective, sense=sense, unit=unit, bound=outcome.bound,
        gap=relative_gap(objective, outcome.bound), certifies=form.certifies, seconds=seconds,
        size={"variables": 0, "integers": 0, "constraints": 0, "nonzeros": 0} | outcome.size,
        plan=data, check=verdict, report=report,
        summary=summary, log=outcome.log,
        events=[{"seconds": e.seconds, "objective": e.objective, "bound": e.bound, "nodes": e.nodes}
                for e in outcome.events],
        problem=embedded, problem_sha256=digest(embedded), optmodels_version=version(),
    )  # fmt: skip


def save(result: Result, form: Formulation, table: Any, plan: Any, parent: Path) -> Path:
    """Write plan.json, the tables as CSV and report.html into a new folder below `parent`; returns it."""
    from optmodels.reporting import page

    folder = new_folder(parent, safe_name(f"{bare_name(result.instance)}-{result.method}"))
    result.log["folder"] = path_text(folder)
    write_text(folder / "plan.json", result.to_json())  # first: it has everything that the others state
    with deadline(None, result.log.get("left_out", ())):  # no time for them in the solve, and none here
        tables = csv_files(form, table, plan)
    for name, text in tables.items():
        write_text(folder / name, text)
    page.write_page(result, folder)
    return folder
