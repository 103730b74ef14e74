"""The verbs of the command line as functions; the command line only parses and prints."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from optmodels import formulation as registry
from optmodels import shipped as ours
from optmodels.errors import InputError, Mistake, UnattainableError, one_of
from optmodels.formulation import Formulation, checked_options
from optmodels.io.write import (
    bare_name,
    check_folder,
    keeping,
    new_folder,
    path_text,
    refuse_existing,
    safe_name,
    write_frame,
    write_text,
)
from optmodels.loading import load
from optmodels.plan.claims import digest, plain
from optmodels.plan.outcome import DocumentReport, Outcome, Result, Violation, judged
from optmodels.plan.replayed import missed
from optmodels.problem import Problem
from optmodels.solver.cancel import cancellable, caught_interrupt
from optmodels.solver.deadline import EVERYTHING, OUT_OF_SAMPLE, deadline
from optmodels.solver.highs import Event, relative_gap
from optmodels.solver.otherwise import otherwise
from optmodels.solver.pyomo_solver import named
from optmodels.verification import csv_files, place, verify, version

if TYPE_CHECKING:
    from optmodels.catalog.types import Machine
    from optmodels.study.explanation.document import Explanation
    from optmodels.targets import Export
    from optmodels.traces.types import Trace

PREFIX_SIZES = tuple(2.0**k for k in range(15, 25))  # tokens of a cache, where nobody says
MOMENT_S = 0.05  # that a method has where the tables took all of the time limit
Source = str | PathLike[str] | Mapping[str, Any] | Problem
PlanSource = str | PathLike[str] | Mapping[str, Any] | Result
Document = str | PathLike[str] | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Result


def _problem(source: Source) -> Problem:
    return source if isinstance(source, Problem) else load(source)


def tables(source: Source) -> Any:
    """The operating points of an instance, as its formulation's tables object."""
    problem = _problem(source)
    with problem.blamed():
        return registry.get(problem.formulation).tables(problem)


def solve(
    source: Source,
    method: str = "exact",
    *,
    time_limit: float | None = None,
    gap: float = 0.0,
    seed: int = 0,
    solver: str = "highs",
    certify: bool = False,
    out_of_sample: bool = True,
    out: str | PathLike[str] | None = None,
    on_event: Callable[[Event], None] | None = None,
    on_result: Callable[[Result], None] | None = None,
    cancel: threading.Event | None = None,
) -> Result:
    """Find one plan, check it independently, and (with `out`) write it below that folder.

    Args:
        source: instance file, mapping or loaded problem.
        method: ``exact`` or any other of the formulation's methods.
        time_limit: seconds, once the instance is read; the incumbent and bound at that time are returned. Tables
            count: the method has what they leave, or `MOMENT_S`. Reports that cost solves and have no time left are
            left out and named in ``log.left_out``; checking, short replays and writing are done whatever the time.
        gap: relative gap at which to stop.
        seed: of the solver or heuristic.
        solver: of models that go to a solver whole: ``highs``, or any that Pyomo knows and finds. Its point is
            verified, its bound stands on its word, and ``log.asked.runs`` says how it ended. What methods keep and
            change between runs (cutting planes, columns) stays with HiGHS; no runs where that is all.
        certify: as ``certify: replay`` in the instance: the plan's promises hold on the step simulator.
        out_of_sample: whether a plan made for a trace is replayed on blocks of it drawn anew, too.
        out: folder for results; a new folder per result is made in it, nothing is overwritten.
        on_event: called with solver progress; what it raises ends the solve and is raised.
        on_result: called with the result once it is checked, before files are made of it.
        cancel: set it from another thread to stop the solver; the incumbent and bound so far are returned.

    Raises:
        InputError: the instance or an argument is wrong.
        NotWrittenError: the result, which it carries, could not be written.
    """
    began = time.perf_counter()
    check_folder(None if out is None else Path(out))
    way = named(solver)
    problem = _problem(source)
    form = registry.get(problem.formulation)
    if certify:
        if "certify" not in type(problem).model_fields:
            raise InputError(Mistake(None, "certify", True, f"False: plans of {form.name} are not certified"))
        problem = problem.model_copy(update={"certify": "replay"})
    run = form.method(method)
    options = checked_options(seed, time_limit, gap, on_event)
    clock = time.perf_counter()
    with problem.blamed():
        table = form.tables(problem)
    phases = {"load": clock - began, "tables": time.perf_counter() - clock}
    left = None if options.time_limit is None else max(MOMENT_S, options.time_limit - phases["tables"])
    with contextlib.ExitStack() as until_kept:
        with cancellable(cancel), deadline(left, () if out_of_sample else (OUT_OF_SAMPLE,)) as left_out:
            with otherwise(way), problem.blamed():
                outcome = run(problem, table, replace(options, time_limit=left))
            if on_result is not None or out is not None:  # Ctrl-C does not lose a plan that is found
                until_kept.enter_context(caught_interrupt())
            # Who stops a solve waits for what it has, not for reports that solve on.
            stopped = outcome.limit == "interrupt"
            with deadline(0.0, EVERYTHING) if stopped else contextlib.nullcontext(left_out) as more:
                result = _result(form, problem, table, method, outcome, phases, began, _shown(source, problem))
        left_out += [what for what in more if what not in left_out]
        if left_out:
            result.log["left_out"] = left_out
        result._frames, result._tables = (lambda: form.frames(table, outcome.plan)), table
        result._said = lambda: _html(form, result)
        result.options = {"seed": options.seed, "time_limit": options.time_limit, "gap": options.gap}
        if solver != "highs":
            result.log["asked"] = {"solver": solver, "runs": way.said}
        if on_result is not None:
            on_result(result)
        if out is not None:
            with keeping(result):
                save(result, form, table, outcome.plan, Path(out))
    return result


def _html(form: Formulation, result: Result) -> str:
    from optmodels.reporting.decision import first_lines
    from optmodels.reporting.text import as_html

    document = result.document()
    return as_html([*first_lines(document), "", *form.summary(document)])


def _shown(source: Source, problem: Problem) -> str:
    return path_text(source) if isinstance(source, str | PathLike) else problem.name


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
    inlined = _inlined(problem)
    outcome = judged(outcome, objective, sense, verdict, missed(report))
    summary = {}
    if data is not None and form.decision is not None and verdict is not None and verdict.ok:
        summary = form.decision(inlined, data, plain(report))
    return Result(
        instance=instance, formulation=form.name, method=method, status=outcome.status, limit=outcome.limit,
        objective=objective, sense=sense, unit=unit, bound=outcome.bound,
        gap=relative_gap(objective, outcome.bound), certifies=form.certifies, seconds=seconds,
        size={"variables": 0, "integers": 0, "constraints": 0, "nonzeros": 0} | outcome.size,
        plan=data, check=verdict, report=report,
        summary=summary, log=outcome.log,
        events=[{"seconds": e.seconds, "objective": e.objective, "bound": e.bound, "nodes": e.nodes}
                for e in outcome.events],
        problem=inlined, problem_sha256=digest(inlined), optmodels_version=version(),
    )  # fmt: skip


def save(result: Result, form: Formulation, table: Any, plan: Any, parent: Path) -> Path:
    """Write plan.json, the tables as CSV and report.html into a new folder below `parent`; returns it."""
    from optmodels.reporting import page

    folder = new_folder(parent, safe_name(f"{bare_name(result.instance)}-{result.method}"))
    result.log["folder"] = path_text(folder)
    write_text(folder / "plan.json", result.to_json())  # first: it says all that the others do
    for name, text in csv_files(form, table, plan).items():
        write_text(folder / name, text)
    page.write_page(result, folder)
    return folder


def report(
    results: Document | Iterable[Document], *, out: str | PathLike[str] | None = None,
    figures: str | PathLike[str] | None = None, kind: str = "png", title: str | None = None, overwrite: bool = False,
) -> str:  # fmt: skip
    """One self-contained HTML page of one or several results or comparisons.

    Args:
        results: result files, documents or `Result` objects; a comparison is a list of rows, its file a JSON list.
        out: the HTML file to write.
        figures: a folder to write every chart to, too.
        kind: of those pictures: ``png``, ``svg`` or ``pdf``.
        title: of the page.
        overwrite: replace existing files.

    Returns:
        The page.

    Raises:
        InputError: a document that is none, a file that exists.
    """
    from optmodels.reporting import page
    from optmodels.reporting.charts import FORMATS, save_chart
    from optmodels.schemas import refuse_damaged

    given = [results] if isinstance(results, str | PathLike | Mapping | Result) else list(results)
    found = page.articles(given, refuse_damaged)
    one_of("kind", kind, FORMATS)
    files = [str(g) for g in given if isinstance(g, str | PathLike)]
    with page.as_written(files[0], refuse_damaged) if files else contextlib.nullcontext():
        text = page.render(found, title)
        if figures is not None:
            for number, (article, picture) in enumerate(((a, c) for a in found for c in a.charts()), 1):
                of = "" if len(found) == 1 else f"{article.title}: "
                name = safe_name(f"{of}{picture.title}".lower(), 60)
                target = Path(figures) / f"{number:02d}-{name}.{kind}"
                save_chart(picture, target, article.title, overwrite=overwrite)
    if out is not None:
        write_text(Path(out), text, overwrite=overwrite)
    return text


def compare(
    sources: Iterable[Source], methods: Iterable[str] | None = None, *, time_limit: float | None = None,
    seed: int = 0, seeds: Iterable[int] | None = None, replay: bool = False,
    on_row: Callable[[dict[str, Any]], None] | None = None, on_skip: Callable[[str], object] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Every method on every instance, one row each, with the certified gap to the best proved bound.

    Args:
        sources: instances, possibly of different formulations.
        methods: names; default: all of each instance's formulation that say something of it. One that only some of
            the formulations have runs where it is.
        time_limit: seconds of each method on each instance.
        seed: of the solver or heuristic.
        seeds: several, in place of `seed`: a row for each.
        replay: simulate every plan on its instance's trace; what was seen is in columns ``replay.…``.
        on_row: called with every row as it is found.
        on_skip: called with what is not run because a formulation lacks the method; default: a warning.

    Raises:
        InputError: an instance that is wrong, or a method that none of the formulations has.

    Returns:
        Rows of the compare document: a solve document without plan, plus ``seed``, ``gap_to_bound``, ``proved`` and
        the seconds ``to_first`` solution and ``to_proof``. A method that refuses an instance has a row with its reason.
    """
    from optmodels.study.rows import best_bound, replayed, solved_row

    wanted = None if methods is None else list(methods)
    if wanted is not None and not 0 < len(wanted) == len(set(wanted)):
        raise InputError(Mistake(None, "methods", wanted, "one name or more, each once"))
    runs = [checked_options(s, time_limit) for s in ([seed] if seeds is None else seeds)]
    rows: list[dict[str, Any]] = []
    problems = [(s, _problem(s)) for s in sources]
    # Every name is checked before the first solve.
    _say_skipped([p.formulation for _, p in problems], wanted or [], on_skip)
    for source, problem in problems:
        form = registry.get(problem.formulation)
        clock = time.perf_counter()
        with problem.blamed():
            table = form.tables(problem)
        table_seconds = time.perf_counter() - clock
        mine: list[dict[str, Any]] = []
        names = [n for n in wanted if n in form.methods] if wanted else form.methods_for(problem)
        for name, options in itertools.product(names, runs):
            row, plan = solved_row(form, problem, table, name, options)
            seconds = row["seconds"]
            for phase in ("build", "total", "to_first", "to_proof"):
                seconds[phase] = None if seconds[phase] is None else seconds[phase] + table_seconds
            seconds |= {"tables": table_seconds}
            extra = replayed(form, problem, plan, options.seed) if replay else {}
            mine.append({"instance": _shown(source, problem), "seed": options.seed} | row | extra)
        best = best_bound(mine, form.goal_of(problem)[0])
        for row in mine:
            row["gap_to_bound"] = relative_gap(row["objective"], best)
            rows.append(row)
            if on_row is not None:
                on_row(row)
    return rows


def _say_skipped(formulations: list[str], methods: list[str], say: Callable[[str], object] | None) -> None:
    """Which methods do not run where; an input mistake if they run nowhere.

    Raises:
        InputError: a method that none of the formulations has.
    """
    for name in methods:
        lacking = [f for f in formulations if name not in registry.get(f).methods]
        if lacking and len(lacking) == len(formulations):
            registry.get(lacking[0]).method(name)
        for form in dict.fromkeys(lacking):
            count = lacking.count(form)
            text = f"skipped: {name} on {count} instance{'s' * (count != 1)} of {form}, which has no such method"
            if say is None:
                warnings.warn(text, stacklevel=3)
            else:
                say(text)


def _inlined(problem: Problem) -> dict[str, Any]:
    """The instance with everything that lies beside it, as JSON data; as written where nothing can meet its limits."""
    with contextlib.suppress(UnattainableError):
        problem = problem.inline()
    found: dict[str, Any] = problem.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


def explain(
    source: Source, *, time_limit: float | None = None, max_solves: int | None = None, next_plans: int = 3,
    everything: bool = False, on_step: Callable[[str], None] | None = None, out: str | PathLike[str] | None = None,
) -> Explanation:  # fmt: skip
    """Why an instance has no plan and what would give it one; or what its plan hangs on.

    Args:
        source: instance file, mapping or problem; nothing may meet its limits.
        time_limit: seconds for all solves together (default 60, of which a plan is examined for 10); what it cut off is
            listed as skipped.
        everything: no time limit where none is given.
        max_solves: number of solves (default 1,000).
        next_plans: how many of the best plans beside the first.
        on_step: called before every solve with what it is for.
        out: folder for ``explanation.json`` and its page; a new folder is made in it, nothing is overwritten.

    Raises:
        InputError: the instance or an argument is wrong.
    """
    from optmodels.reporting.page import write_page
    from optmodels.study.explanation import run

    check_folder(None if out is None else Path(out))
    problem = source if isinstance(source, Problem) else load(source, limits_may_fail=True)
    form = registry.get(problem.formulation)
    seconds = checked_options(time_limit=time_limit).time_limit
    for name, value, least in (("max_solves", max_solves, 1), ("next_plans", next_plans, 0)):
        if value is not None and value < least:
            raise InputError(Mistake(None, name, value, f"a whole number ≥ {least}"))
    document = run.explain(
        form, problem, instance=_shown(source, problem), time_limit=seconds, max_solves=max_solves or run.MAX_SOLVES,
        next_plans=next_plans, everything=everything, on_step=on_step,
    )  # fmt: skip
    document.optmodels_version, document.problem = version(), _inlined(problem)
    if out is not None:
        with keeping(document):
            folder = new_folder(Path(out), safe_name(f"{bare_name(document.instance)}-explanation"))
            write_text(folder / "explanation.json", document.to_json())
            write_page(document.model_dump(mode="json", by_alias=True), folder)
    return document


def export(
    source: PlanSource, to: str, *, out: str | PathLike[str] | None = None,
    overwrite: bool = False,
) -> Export:  # fmt: skip
    """What people run next, out of a plan: vLLM commands, manifests, a purchase list, or the model itself.

    Args:
        source: plan file or document.
        to: ``vllm``, ``kubernetes``, ``lws``, ``kserve``, ``keda``, ``llm-d``, ``dynamo``, ``skypilot``,
            ``terraform``, ``mps`` or ``lp``.
        out: folder to write the files to.
        overwrite: replace existing files.

    Returns:
        The files by name, and notes: what the plan says and the target cannot express.

    Raises:
        InputError: no plan document, one that fails its `check`, an unknown target, nothing in the plan for the
            target, a file that exists.
    """
    from optmodels import targets

    one_of("to", to, targets.NAMES)
    document, name = _document(source)
    problem = _embedded(document, name)
    form = registry.get(problem.formulation)
    if to in targets.MODELS:
        made = targets.of_model(form.compiled(problem, form.tables(problem))[0], to, problem.name or form.name)
    else:
        plan = document.get("plan")
        if not isinstance(plan, Mapping):
            raise InputError(Mistake(name, "plan", plan, "a plan: this document has none"))
        if form.deployments is None:
            raise InputError(Mistake(name, "formulation", form.name, f"one whose plans can be exported to {to}"))
        verdict = check(source)
        if not verdict.ok:
            raise InputError(_as_mistake(name, document, v) for v in verdict.violations)
        made = targets.of_plan(form.deployments(problem, plan), to)
    if out is not None:
        paths = {Path(out) / safe_name(file): text for file, text in made.files.items()}
        if not overwrite:  # all or none
            refuse_existing(*paths)
        for path, text in paths.items():
            write_text(path, text, overwrite=overwrite)
    return made


def check(
    source: PlanSource, instance: Source | None = None, *, prove: bool = False, time_limit: float | None = None
) -> DocumentReport:
    """Verify a result file (or document) and the tables beside it against the instance it carries, or another one.

    Args:
        source: plan.json, the folder it is in, a document or a result; a mapping of ``plan`` alone, or with
            ``problem``, claims nothing else. With `prove` also a document that says there is no plan.
        instance: judge the plan by this instance, not by the one in the file.
        prove: derive the bound anew, by another form and another solver, if everything else is right.
        time_limit: seconds for that (default 60).

    Raises:
        InputError: no plan document, or it holds no plan.
    """
    from optmodels.study.prove import TIME_LIMIT, proved

    seconds = checked_options(time_limit=time_limit).time_limit or TIME_LIMIT
    document, name = _document(source)
    if prove and document.get("plan") is None and document.get("status") == "infeasible":
        problem = _embedded(document, name) if instance is None else _problem(instance)
        return proved(DocumentReport(ok=True), registry.get(problem.formulation), problem, document, seconds)
    problem, _, document = _planned(source, instance)
    path = Path(source) if isinstance(source, str | PathLike) else None
    folder = path if path is None or path.is_dir() else path.parent
    form = registry.get(problem.formulation)
    report = verify(form, problem, document, folder, own=instance is None)
    return proved(report, form, problem, document, seconds) if prove and report.ok else report


def _as_mistake(name: str | None, document: Mapping[str, Any], broken: Violation) -> Mistake:
    """What a check found wrong as a mistake in its document."""
    expected = f"{broken.limit} {broken.unit}".strip()
    path = place(document, broken.requirement)
    return Mistake(name, path, broken.value, expected, hint=f"optmodels check: {broken.requirement}")


def _planned(source: PlanSource, instance: Source | None) -> tuple[Problem, Mapping[str, Any], Mapping[str, Any]]:
    """The problem, the plan and the document of a plan file.

    Raises:
        InputError: no plan document, or it holds no plan.
    """
    document, name = _document(source)
    plan = document.get("plan")
    if not isinstance(plan, Mapping):
        raise InputError(Mistake(name, "plan", plan, "a plan: this document has none"))
    return _embedded(document, name) if instance is None else _problem(instance), plan, document


def _document(source: PlanSource) -> tuple[Mapping[str, Any], str | None]:
    """A result document and the file it comes from."""
    if isinstance(source, Result):
        return source.model_dump(mode="json", by_alias=True), None
    if isinstance(source, Mapping):
        return source, None
    path = Path(source) / "plan.json" if Path(source).is_dir() else Path(source)
    if not path.is_file():
        wrong = f"no plan.json in {path.parent.name}" if Path(source).is_dir() else "no such file"
        raise InputError(Mistake(str(source), "", wrong, "plan.json of a result, or the folder it is in"))
    return _read_result(path), str(path)


def _embedded(document: Mapping[str, Any], name: str | None) -> Problem:
    """The instance that a result document carries."""
    embedded = document.get("problem")
    if not isinstance(embedded, Mapping):
        raise InputError(Mistake(name, "problem", embedded, "the instance the plan was made for"))
    try:
        return _problem(dict(embedded))
    except InputError as error:
        raise InputError(
            replace(m, file=name, path=f"problem.{m.path}") if m.file is None else m for m in error.mistakes
        ) from None


def replay(
    source: PlanSource,
    trace: str | PathLike[str] | Trace | None = None,
    *,
    instance: Source | None = None,
    policy: str | None = None,
    speed: Literal["load", "worst_case"] = "load",
    overflow_protection: bool | None = None,
    queue: Literal["fifo", "deadline"] | None = None,
    controller: str | None = None,
    rate_factor: float = 1.0,
    first_s: float | None = None,
    columns: Mapping[str, str] | None = None,
    where: Mapping[str, str | Sequence[str]] | None = None,
    skip_bad: bool = False,
    part: Literal["first", "rest"] | None = None,
    share: float = 0.5,
    resample: int | None = None,
    block_s: float | None = None,
    predicted_error: float | None = None,
    seed: int = 0,
    out: str | PathLike[str] | None = None,
    requests_as: Literal["csv", "parquet"] = "csv",
) -> dict[str, Any]:
    """Simulate a plan on a request trace: what was predicted beside what a simulation sees.

    Args:
        source: plan file, result document or result.
        trace: requests or a file of them; None: those of the instance, where its formulation knows them.
        instance: replay the plan for this instance, not the one in the file.
        policy: who gets a request; None: what the formulation replays by default.
        speed: decoding as the batch is, or always as in a full batch.
        overflow_protection: refuse requests that are predicted to be late; None: as the policy is by default.
        queue: instances serve in order of arrival, or whoever must start first; None: as the policy is by default.
        controller: sets the batch limit of every instance while it serves, event by event and slowly:
            ``static:BATCH``, ``sla:SECONDS_PER_TOKEN``, ``memory:KV_TOKENS``, or several joined by commas.
        rate_factor: the trace arrives so many times as fast.
        first_s: only so many seconds of the trace.
        columns: of a trace file: ours → theirs (`traces.readers.read_trace`).
        where: only rows of the file whose columns have these values.
        skip_bad: leave out rows that cannot be read, and count them.
        part: only the ``first`` `share` of the trace's time, or the ``rest``: a plan made for one is judged on the
            other.
        share: of the trace's time in its first part.
        resample: seed of another trace drawn from this one (the instance's own, if none is given) in blocks.
        block_s: length of these blocks (`traces.shape.resampled`).
        predicted_error: dispatchers know output lengths with this error (`traces.shape.predicted`).
        seed: of everything drawn.
        out: folder for results; a new folder is made in it with replay.json and one table of requests a policy.
        requests_as: file format of those tables.

    Returns:
        The replay document: ``report`` is the formulation's (see `simulation.options.ReplayOptions`).

    Raises:
        InputError: the plan, the trace or an argument is wrong, or the formulation's plans cannot be replayed.
    """
    from optmodels.simulation.cluster import QUEUES, SPEEDS
    from optmodels.simulation.options import ReplayOptions
    from optmodels.traces import shape
    from optmodels.traces.readers import read_trace

    check_folder(None if out is None else Path(out))
    one_of("speed", speed, SPEEDS)
    if queue is not None:
        one_of("queue", queue, QUEUES)
    if requests_as not in ("csv", "parquet"):
        raise InputError(Mistake(None, "requests_as", requests_as, "csv or parquet"))
    if block_s is not None and resample is None:
        raise InputError(Mistake(None, "block_s", block_s, "resample, whose blocks are so long"))
    if trace is None and (rate_factor != 1 or first_s is not None):
        raise InputError(Mistake(None, "trace", None, "a trace, of which first_s is taken and rate_factor changes"))
    problem, plan, document = _planned(source, instance)
    form = registry.get(problem.formulation)
    if form.replay is None:
        able = [n for n in registry.names() if registry.get(n).replay is not None]
        raise InputError(Mistake(None, "formulation", form.name, f"a plan of {', '.join(able)}: others have no replay"))
    if first_s is not None and not first_s > 0:
        raise InputError(Mistake(None, "first_s", first_s, "seconds > 0"))
    checked = checked_options(seed)
    began = time.perf_counter()
    if (columns or where or skip_bad) and not isinstance(trace, str | PathLike):
        named = "columns" if columns else "where" if where else "skip_bad"
        raise InputError(Mistake(None, named, columns or where or skip_bad, "a trace file, whose rows these are about"))
    requests = read_trace(Path(trace), columns, where, skip_bad) if isinstance(trace, str | PathLike) else trace
    if requests is None and (part is not None or resample is not None or predicted_error is not None):
        requests = problem.own_trace()
        if requests is None:
            raise InputError(Mistake(None, "trace", None, "a trace: the instance has no requests one by one"))
    if requests is not None:
        requests = shape.part(requests, 0.0, first_s) if first_s is not None else requests
        if part is not None:
            one_of("part", part, shape.PARTS)
            requests = shape.halves(requests, share)[shape.PARTS.index(part)]
        requests = shape.resampled(requests, resample, block_s) if resample is not None else requests
        requests = shape.sped_up(requests, rate_factor)
        requests = shape.predicted(requests, predicted_error, seed) if predicted_error is not None else requests
    read = time.perf_counter()
    kept: dict[str, Mapping[str, Any]] = {}
    options = ReplayOptions(
        policy=policy, speed=speed, overflow_protection=overflow_protection, queue=queue, seed=checked.seed,
        controller=controller, keep=kept.__setitem__ if out is not None else None,
    )  # fmt: skip
    found: dict[str, Any] = {
        "instance": document.get("instance"), "formulation": form.name, "method": document.get("method"),
        "trace": None if requests is None else requests.name, "requests": None if requests is None else len(requests),
        "policy": policy, "speed": speed, "overflow_protection": overflow_protection, "queue": queue,
        "controller": controller, "rate_factor": rate_factor,
        "first_s": first_s, "part": part, "share": share if part is not None else None, "resample": resample,
        "predicted_error": predicted_error, "trace_notes": [] if requests is None else list(requests.notes),
        "seed": seed, "report": _replayed(form, problem, plan, requests, options),
        "seconds": {"read": read - began, "replay": time.perf_counter() - read}, "optmodels_version": version(),
    }  # fmt: skip
    if requests is None and found["report"].get("sent") is None:
        own = problem.own_trace() is not None
        found["report"]["sent"] = (
            "its own requests" if own else "requests drawn at random as the instance describes them"
        )
    if out is not None:
        with keeping(found):
            found["folder"] = path_text(_save_replay(found, kept, Path(out), requests_as))
    return found


def _replayed(form: Formulation, problem: Problem, plan: Mapping[str, Any], trace: Any, options: Any) -> dict[str, Any]:
    """The formulation's replay; where that fails on a plan its checker refutes, the plan is at fault, not the program.

    A plan need not pass its check to be replayed (one that misses an SLO is worth seeing): it has to fit the instance.
    """
    assert form.replay is not None
    try:
        found: dict[str, Any] = form.replay(problem, plan, trace, options)
    except (ArithmeticError, AssertionError, LookupError, StopIteration, TypeError, ValueError):
        verdict = form.check(problem, plan)
        if verdict.ok:
            raise
        expected = "a plan made for this instance; `optmodels check` says what differs"
        raise InputError(Mistake(None, "plan", verdict.violations[0].requirement, expected)) from None
    return found


def _save_replay(found: dict[str, Any], kept: Mapping[str, Mapping[str, Any]], parent: Path, ending: str) -> Path:
    """Write replay.json and every run's requests into a new folder below `parent`."""
    import pandas as pd

    name = bare_name(found["instance"] or found["formulation"])
    folder = new_folder(parent, safe_name(f"{name}-{found['method'] or 'plan'}-replay"))
    write_text(folder / "replay.json", to_json(found | {"folder": path_text(folder)}))
    for run, columns in kept.items():
        write_frame(folder / f"requests-{safe_name(run)}.{ending}", pd.DataFrame(columns))
    return folder


def evaluate(
    current: str | PathLike[str] | Mapping[str, Any],
    trace: str | PathLike[str] | Trace | None = None,
    *,
    instance: Source | None = None,
    columns: Mapping[str, str] | None = None,
    where: Mapping[str, str | Sequence[str]] | None = None,
    skip_bad: bool = False,
    rate_factor: float = 1.0,
    first_s: float | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    out: str | PathLike[str] | None = None,
) -> dict[str, Any]:
    """What a user runs today: its cost, what requests see, and how far it is from the best plan.

    Args:
        current: file or mapping of what runs; it names its instance.
        trace: requests or a file of them, whose rates and lengths replace the instance's; None: those of the instance.
        instance: in place of the one that `current` names.
        columns: of a trace file: ours → theirs (`traces.readers.read_trace`).
        where: only rows of the file whose columns have these values.
        skip_bad: leave out rows that cannot be read, and count them.
        rate_factor: the trace arrives so many times as fast.
        first_s: only so many seconds of the trace.
        time_limit: seconds for everything, once the files are read: half of them at most for what runs, the rest for
            the best plan. Replays and the planned routing are left out where no time is left for them, and named in
            ``left_out``; a replay that has begun is finished.
        seed: of everything drawn.
        out: folder for results; a new folder is made in it with evaluate.json, a table of requests for each run, and
            the best plan with its page.

    Returns:
        The evaluate document: ``report`` is the formulation's, ``best`` the certified optimum of the same instance,
        ``saving`` the distance to it.

    Raises:
        InputError: the file, the instance, the trace or an argument is wrong, or the formulation evaluates nothing.
    """
    from optmodels.io.read import read_document, validate
    from optmodels.simulation.options import ReplayOptions
    from optmodels.traces import shape
    from optmodels.traces.readers import read_trace

    check_folder(None if out is None else Path(out))
    options = checked_options(seed, time_limit)
    if trace is None and (rate_factor != 1 or first_s is not None or columns or where or skip_bad):
        raise InputError(Mistake(None, "trace", None, "a trace, of which first_s is taken and rate_factor changes"))
    if first_s is not None and not first_s > 0:
        raise InputError(Mistake(None, "first_s", first_s, "seconds > 0"))
    file = None if isinstance(current, Mapping) else str(current)
    data, line = (dict(current), lambda _: None) if isinstance(current, Mapping) else read_document(Path(current))
    problem = _problem(instance) if instance is not None else load(_instance_of(data, file))
    form = registry.get(problem.formulation)
    if form.current is None or form.evaluate is None:
        able = [n for n in registry.names() if registry.get(n).evaluate is not None]
        expected = f"an instance of {', '.join(able)}: of others nothing that runs can be evaluated"
        raise InputError(Mistake(file, "instance", form.name, expected))
    runs = validate(form.current, data, file, line)
    requests = read_trace(Path(trace), columns, where, skip_bad) if isinstance(trace, str | PathLike) else trace
    if requests is not None:
        requests = shape.sped_up(shape.part(requests, 0.0, first_s) if first_s is not None else requests, rate_factor)
    began = time.perf_counter()
    kept: dict[str, Mapping[str, Any]] = {}
    limit = options.time_limit
    how = ReplayOptions(seed=options.seed, keep=kept.__setitem__ if out is not None else None)
    try:
        with deadline(None if limit is None else limit / 2) as left_out:
            found = form.evaluate(problem, runs, requests, how)
    except InputError as error:
        raise InputError(
            replace(m, file=file) if m.file is None and m.path.startswith("deployments[") else m for m in error.mistakes
        ) from None
    evaluated = time.perf_counter()
    left = None if limit is None else max(MOMENT_S, limit - (evaluated - began))
    best = solve(found.problem, time_limit=left, seed=options.seed)
    plan = None if best.plan is None or form.plan is None else form.plan.model_validate(best.plan)
    document: dict[str, Any] = {
        "current": None if file is None else path_text(file), "instance": problem.name, "formulation": form.name,
        "trace": None if requests is None else requests.name, "requests": None if requests is None else len(requests),
        "trace_notes": [] if requests is None else list(requests.notes), "rate_factor": rate_factor,
        "first_s": first_s, "seed": seed, "report": found.report, "left_out": left_out,
        **_distance(found, best, plan),
        "seconds": {"evaluate": evaluated - began, "solve": time.perf_counter() - evaluated},
        "optmodels_version": version(),
    }  # fmt: skip
    if out is not None:
        with keeping(document):
            document["folder"] = path_text(_save_evaluation(document, kept, best, plan, Path(out)))
    return document


def fewest_gpus(
    source: Source, attainment: float = 1.0, *, time_limit: float | None = None, seed: int = 0,
    out: str | PathLike[str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The fewest GPUs that attain a share of the requests within their SLOs, with a bound.

    Args:
        source: instance file, mapping or problem; its own objective does not count, its limits do.
        attainment: share asked for: of all requests (orchestration), of every bucket (fleet).
        time_limit: seconds of each solve.
        seed: of the solver.
        out: folder for the plan's files.

    Returns:
        ``gpus`` of the plan found, ``bound`` below which none attains it (None: none does with any number),
        ``attained`` at least, ``tried``, and the ``plan``. Of fleets cut from traces also ``over_time`` (peak, mean and
        GPU-hours) and ``missed``, the promise that the trace's own requests see missed (None: none).

    Raises:
        InputError: the instance or an argument is wrong, or the formulation does not count GPUs.
    """
    check_folder(None if out is None else Path(out))
    options = checked_options(seed, time_limit)
    if not 0 <= attainment <= 1:
        raise InputError(Mistake(None, "attainment", attainment, "a share from 0 to 1"))
    problem = _problem(source)
    form = registry.get(problem.formulation)
    if form.fewest is None:
        able = [n for n in registry.names() if registry.get(n).fewest is not None]
        raise InputError(Mistake(None, "formulation", form.name, f"an instance of {', '.join(able)}: GPUs are counted"))
    began = time.perf_counter()
    found = form.fewest(problem, attainment, lambda p: solve(p, time_limit=options.time_limit, seed=options.seed))
    plan = None
    if found.result is not None and form.plan is not None:
        plan = form.plan.model_validate(found.result.plan)
    document: dict[str, Any] = {
        "instance": _shown(source, problem), "formulation": form.name, "attainment": attainment, "gpus": found.gpus,
        "bound": found.bound, "attained": found.attained, "certifies": form.certifies, "tried": found.tried,
        "plan": None if found.result is None else found.result.plan,
        "headline": plan.headline() if plan is not None else None,
        "missed": None if found.result is None else missed(found.result.report),
        "over_time": None if found.result is None else found.result.report.get("over_time"),
        "seconds": time.perf_counter() - began, "optmodels_version": version(),
    }  # fmt: skip
    if out is not None and found.result is not None:
        with keeping(document):
            document["folder"] = path_text(save(found.result, form, found.result._tables, plan, Path(out)))
    return document


def _instance_of(data: Mapping[str, Any], file: str | None) -> Path:
    """The instance file that a document names, which must lie in its folder or below.

    Raises:
        InputError: none, outside, or not there.
    """
    named = data.get("instance")
    if not isinstance(named, str) or file is None:
        raise InputError(Mistake(file, "instance", named, "the file of an instance, beside this one or below"))
    folder = Path(file).parent
    try:
        target = (folder / named).resolve()
        there = target.is_file() and target.is_relative_to(folder.resolve())
    except (OSError, ValueError):
        there = False
    if not there:
        expected = f"an existing file in {folder} or below (elsewhere: --instance)"
        raise InputError(Mistake(file, "instance", named, expected))
    return folder / named


def _distance(found: Any, best: Result, plan: Any) -> dict[str, Any]:
    """The best plan's certificate, and what runs today beside it.

    ``share`` is what the best plan saves (of a maximum: gains) of today's objective, ``at_most`` what no plan can
    exceed; where today misses an SLO the best plan may cost more, and the share is negative.
    """
    sign = 1.0 if best.sense == "min" else -1.0
    saving, replay = None, best.report.get("replay")
    if best.objective is not None and found.objective > 0:
        saving = {
            "share": sign * (found.objective - best.objective) / found.objective,
            "at_most": None if best.bound is None else sign * (found.objective - best.bound) / found.objective,
        }
    return {
        "today": {"objective": found.objective, "keeps_every_slo": found.keeps},
        "best": {
            "method": best.method, "status": best.status, "limit": best.limit, "objective": best.objective,
            "sense": best.sense, "unit": best.unit, "bound": best.bound, "gap": best.gap, "certifies": best.certifies,
            "headline": None if plan is None else plan.headline(), "reason": best.log.get("reason"), "plan": best.plan,
            "replayed_attainment": None if not replay else replay["policies"][replay["policy"]].get("attainment"),
        },
        "saving": saving,
    }  # fmt: skip


def _save_evaluation(
    found: dict[str, Any], kept: Mapping[str, Mapping[str, Any]], best: Result, plan: Any, parent: Path
) -> Path:
    """Write evaluate.json, every run's requests, and the best plan's files into a new folder below `parent`."""
    import pandas as pd

    folder = new_folder(parent, safe_name(f"{bare_name(found['current'] or found['instance'])}-evaluate"))
    write_text(folder / "evaluate.json", to_json(found | {"folder": path_text(folder)}))
    for run, columns in kept.items():
        write_frame(folder / f"requests-{safe_name(run)}.csv", pd.DataFrame(columns))
    if plan is not None:
        save(best, registry.get(best.formulation), best._tables, plan, folder)
    return folder


def simulate(
    llm: str,
    gpu: str,
    trace: str | PathLike[str] | Trace,
    *,
    columns: Mapping[str, str] | None = None,
    where: Mapping[str, str | Sequence[str]] | None = None,
    skip_bad: bool = False,
    tp: int = 1,
    precision: str | None = None,
    kv_precision: str = "fp16",
    engine: str = "vllm",
    model: str = "default",
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 8192,
    chunk_tokens: int | None = None,
    kv_tokens: float | None = None,
    instances: int = 1,
    dispatcher: str = "earliest_finish",
    refuse: bool = False,
    ttft_limit_s: float | None = None,
    tpot_limit_s: float | None = None,
    e2e_limit_s: float | None = None,
    rate_factor: float = 1.0,
    first_s: float | None = None,
    seed: int = 0,
    out: str | PathLike[str] | None = None,
) -> dict[str, Any]:
    """Simulate one deployment on a trace, step by step, without a plan.

    Args:
        llm, gpu: of the catalogue, or files that describe them (`catalog.files`).
        trace: requests, a file of them, or ``poisson:REQUESTS_PER_S:PROMPT:OUTPUT:SECONDS`` with lengths as N or
            LOW-HIGH, drawn evenly.
        columns: of the file, ours → theirs, as `traces.readers.read_trace` has them.
        where: only rows of the file whose columns have these values.
        skip_bad: leave out rows that cannot be read, and count them.
        tp: GPUs of an instance.
        precision, kv_precision: of weights and cache; None: the weights as the name says, or as they are published.
        engine: vllm, sglang or trtllm.
        model: ``default``, ``roofline``, or a model file that ``calibrate --model steps`` wrote.
        max_num_seqs, max_num_batched_tokens, chunk_tokens: `simulation.continuous.Engine`'s.
        kv_tokens: that the cache holds; None: what the GPUs' memory leaves.
        instances: alike, behind one dispatcher.
        dispatcher: one of `simulation.continuous.DISPATCHERS`, but for planned shares.
        refuse: refuse what is predicted to exceed the limits.
        ttft_limit_s, tpot_limit_s, e2e_limit_s: what goodput counts.
        rate_factor, first_s: of the trace, as in `replay`.
        seed: of a trace that is drawn.
        out: folder for results; a new folder is made in it with simulate.json and a table of requests.

    Raises:
        InputError: a name, a file or an argument is wrong, or the weights do not fit.
    """
    given = dict(locals())
    from optmodels import catalog
    from optmodels.catalog import spelling
    from optmodels.catalog.files import described
    from optmodels.reporting.sources import source_entries
    from optmodels.simulation.continuous import DISPATCHERS, Engine
    from optmodels.simulation.deployment import Deployment, Limits, serve
    from optmodels.simulation.sessions import beside_measured, in_sessions
    from optmodels.traces.generated import poisson
    from optmodels.traces.readers import read_trace
    from optmodels.traces.shape import part, sped_up

    with described(llm, gpu) as (own, device, weights):
        if (own, device) != (llm, gpu):
            return simulate(**given | {"llm": own, "gpu": device, "precision": precision or weights})
    check_folder(None if out is None else Path(out))
    able = [d for d in DISPATCHERS if d != "planned_shares"]
    one_of("dispatcher", dispatcher, able)
    if instances < 1:
        raise InputError(Mistake(None, "instances", instances, "at least 1"))
    for name, seconds in (("ttft_limit", ttft_limit_s), ("tpot_limit", tpot_limit_s), ("e2e_limit", e2e_limit_s)):
        if seconds is not None and not seconds > 0:
            raise InputError(Mistake(None, name, seconds, "seconds > 0"))
    if first_s is not None and not first_s > 0:
        raise InputError(Mistake(None, "first_s", first_s, "seconds > 0"))
    seed = checked_options(seed).seed
    if isinstance(trace, str) and trace.startswith("poisson:"):
        requests = poisson(trace, seed)
    else:
        requests = read_trace(Path(trace), columns, where, skip_bad) if isinstance(trace, str | PathLike) else trace
    requests = sped_up(part(requests, 0.0, first_s) if first_s is not None else requests, rate_factor)
    began = time.perf_counter()
    stated = spelling.precision_of(llm)
    llm, gpu, engine = spelling.llm_of(llm) or llm, spelling.gpu(gpu), spelling.engine(engine)
    precision = spelling.precision(precision) or stated or catalog.published_precision(llm)
    kv_precision = spelling.kv_precision(kv_precision)
    one = Deployment(llm, gpu, tp, precision, kv_precision, engine)
    costs, provenance = one.costs(model, float(requests.prompt_tokens.mean()))
    room = kv_tokens
    if room is None:
        mean = float((requests.prompt_tokens + requests.output_tokens).mean())
        room = one.kv_tokens(max_num_seqs, max_num_batched_tokens, mean)
    limits = Engine(costs, int(room), max_num_seqs, max_num_batched_tokens, chunk_tokens, overlap=True)
    good = Limits(ttft_limit_s, tpot_limit_s, e2e_limit_s)
    report, kept, requests, how = in_sessions(
        requests,
        lambda trace: serve(trace, limits, instances, dispatcher, refuse, good),  # type: ignore[arg-type]
    )
    found: dict[str, Any] = {
        "deployment": {
            "llm": llm, "gpu": gpu, "tp": tp, "precision": precision, "kv_precision": kv_precision, "engine": engine,
            "instances": instances, "dispatcher": dispatcher, "refuse": refuse, "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens, "chunk_tokens": chunk_tokens,
            "kv_tokens": limits.kv_tokens,
        },
        "latency": source_entries([(f"{llm} on {tp} × {gpu}", provenance)])[0],
        "limits": {"ttft_s": ttft_limit_s, "tpot_s": tpot_limit_s, "e2e_s": e2e_limit_s},
        "trace": requests.name, "trace_notes": [*requests.notes, *filter(None, [how])], "rate_factor": rate_factor,
        "first_s": first_s, "seed": seed, "report": report, "measured": beside_measured(requests, kept),
        "seconds": time.perf_counter() - began, "optmodels_version": version(),
    }  # fmt: skip
    if out is not None:
        with keeping(found):
            folder = new_folder(Path(out), safe_name(f"{llm}-{gpu}-simulate"))
            found["folder"] = path_text(folder)
            import pandas as pd

            write_text(folder / "simulate.json", to_json(found))
            write_frame(folder / "requests.csv", pd.DataFrame(kept))
    return found


def prefix_hits(
    trace: str | PathLike[str] | Trace,
    kv_tokens: Sequence[float] = PREFIX_SIZES,
    engines: Sequence[int] = (1, 2, 4, 8),
    *,
    columns: Mapping[str, str] | None = None,
    where: Mapping[str, str | Sequence[str]] | None = None,
    skip_bad: bool = False,
    routing: str = "first_block",
    by: str | None = None,
    seed: int = 0,
    out: str | PathLike[str] | None = None,
) -> dict[str, Any]:
    """Shares of the prompts' tokens that prefix caches have, from what the requests of a trace share.

    Args:
        trace: requests with ``hash_ids``, or a file of them.
        kv_tokens: sizes of an engine's cache, beside what running requests hold.
        engines: how many engines the requests are split over.
        columns: of the file, ours → theirs.
        where: only rows of the file whose columns have these values.
        skip_bad: leave out rows that cannot be read, and count them.
        routing: ``random``, ``first_block`` (equal beginnings meet on one engine) or ``session``.
        by: label whose requests are told apart, such as ``class``; in an instance their names are workloads.
        seed: of what is random.
        out: a file for the document, which an instance of fleet takes as ``prefix_cache.hits``.

    Raises:
        InputError: a file or an argument is wrong, or the trace says nothing of what prompts share.
    """
    from optmodels.simulation.prefix_hits import prefix_hits as measured
    from optmodels.traces.readers import read_trace

    requests = read_trace(Path(trace), columns, where, skip_bad) if isinstance(trace, str | PathLike) else trace
    found = measured(requests, kv_tokens, engines, routing, by, seed)  # type: ignore[arg-type]
    found["optmodels_version"] = version()
    if out is not None:
        with keeping(found):
            write_text(Path(out), to_json(found))
    return found


def _read_result(path: Path) -> Mapping[str, Any]:
    from optmodels.io.read import read_document

    data, _ = read_document(path)
    return data


def new(
    formulation: str, file: str | PathLike[str] | None = None, *, shipped: str | None = None, overwrite: bool = False
) -> str:
    """A commented instance template, or a copy of an instance that comes with optmodels.

    Args:
        formulation: ``optmodels list formulations``; or ``current``: what runs today, as `evaluate` reads it.
        file: the file to write; files that a shipped instance refers to are written beside it.
        shipped: name of a shipped instance, as ``listing("instances")`` has it; None: the template. For ``current``
            the instance file that it is of.
        overwrite: replace existing files.

    Returns:
        The instance's text.

    Raises:
        InputError: an unknown name, or a file that exists.
    """
    target = None if file is None else Path(file)
    if formulation == "current":
        return _new_current(shipped, target, overwrite)
    form = registry.get(formulation)
    if shipped is not None:
        return ours.copy(form.name, shipped, target, overwrite=overwrite)
    if target is not None:
        write_text(target, form.template, overwrite=overwrite)
    return form.template


def _new_current(instance: str | None, target: Path | None, overwrite: bool) -> str:
    """A file of what runs today for an instance file, which lies beside it or below."""
    from optmodels.plan.current import start_text

    if instance is None:
        raise InputError(Mistake(None, "--from", None, "the instance file whose workloads run today"))
    problem = load(Path(instance))
    form = registry.get(problem.formulation)
    if form.start is None:
        able = [n for n in registry.names() if registry.get(n).start is not None]
        raise InputError(Mistake(instance, "formulation", form.name, f"an instance of {', '.join(able)}"))
    folder = (Path() if target is None else target.parent).resolve()
    there = Path(instance).resolve()
    if not there.is_relative_to(folder):
        raise InputError(Mistake(None, "--from", instance, f"an instance file in {folder} or below"))
    text = start_text(there.relative_to(folder).as_posix(), form.start(problem))
    if target is not None:
        write_text(target, text, overwrite=overwrite)
    return text


def new_formulation(name: str, folder: str | PathLike[str] = ".") -> Path:
    """A package of a formulation of one's own, ready to run, test and install: the folder `name` in `folder`.

    Raises:
        InputError: a name that is none or taken, a folder that exists or cannot be written.
    """
    from optmodels.scaffold import write_formulation

    return write_formulation(name, Path(folder))


def listing(what: str, folder: str | PathLike[str] | None = None) -> list[dict[str, Any]]:
    """What there is: ``formulations``, ``methods``, ``instances`` (shipped, or files below `folder`), ``catalog`` or
    ``machines``, every one with its prices in USD per hour, their date and source.
    """
    from optmodels import catalog

    match what:
        case "formulations":
            return [{"name": n, "title": registry.get(n).title} for n in registry.names()]
        case "methods":
            return [
                {"formulation": n, "name": m, "title": registry.get(n).method_titles.get(m, "")}
                for n in registry.names() for m in registry.get(n).methods
            ]  # fmt: skip
        case "instances":
            return _shipped() if folder is None else _instances(Path(folder))
        case "catalog":
            rows: list[dict[str, Any]] = [
                {"kind": "pool", "name": k, "title": p.title, "date": p.retrieved.isoformat(),
                 "entries": len(catalog.machines(k))} for k, p in catalog.pools().items()
            ]  # fmt: skip
            rows += [{"kind": "model", "name": k, "title": m.title} for k, m in catalog.llms().items()]
            rows += [{"kind": "latency model", "name": k, "title": catalog.latency_model_document(k).get("title", "")}
                     for k in catalog.latency_models()]  # fmt: skip
            rows += [{"kind": "gpu", "name": k, "title": g.title} for k, g in catalog.gpus().items()]
            return rows + [{"kind": "calibration", "name": k, "title": catalog.calibration_document(k).get("title", "")}
                           for k in catalog.calibrations()]  # fmt: skip
        case "machines":
            return [_priced(pool, m) for pool in catalog.pools() for m in catalog.machines(pool)]
        case _:
            raise InputError(Mistake(None, "what", what, "one of formulations, methods, instances, catalog, machines"))


def _priced(pool: str, m: Machine) -> dict[str, Any]:
    from optmodels import catalog
    from optmodels.catalog.types import MARKETS

    about = catalog.pools()[pool]
    sources = "; ".join(f"{k}: {v}" for k, v in about.price_sources.items() if k in (*MARKETS, "date"))
    return {
        "pool": pool, "machine": m.machine, "region": m.region, "gpu": m.gpu, "gpus": m.gpu_count,
        "vram_gib": m.vram_gib, **{k: m.prices.get(k) for k in MARKETS}, "date": about.retrieved.isoformat(),
        "source": about.source, "price_sources": sources,
    }  # fmt: skip


def _shipped() -> list[dict[str, Any]]:
    """The instances that come with optmodels, by the name that `new` takes."""
    return [{"formulation": form, "name": name, "title": data.get("title", "")}
            for form in registry.names() for name, _, data in ours.named(form)]  # fmt: skip


def _instances(folder: Path) -> list[dict[str, Any]]:
    """Instance files below a folder."""
    if not folder.is_dir():
        raise InputError(Mistake(None, "folder", str(folder), "a folder with instance files"))
    return [{"file": path_text(path), "formulation": data["formulation"], "title": data.get("title", "")}
            for path, data in ours.instances(folder)]  # fmt: skip


def to_json(data: Any) -> str:
    """JSON text of rows or documents; infinities and NaN become null."""
    from optmodels.study.rows import finite

    return json.dumps(finite(data), indent=2, ensure_ascii=False)
