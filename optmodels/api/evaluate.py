"""`evaluate`: today's deployments next to the best plan."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optmodels import formulation as registry
from optmodels.api.solve import MOMENT_S, save, solve
from optmodels.api.sources import File, Source, problem_of, read_requests, renamed
from optmodels.errors import InputError, Mistake
from optmodels.formulation import checked_options
from optmodels.io.write import bare_name, check_folder, keeping, path_text, write_document
from optmodels.loading import load
from optmodels.plans.outcome import Result
from optmodels.solver.deadline import deadline
from optmodels.verification import version

if TYPE_CHECKING:
    from optmodels.traces.types import Trace


@renamed({"instance": "problem"})
def evaluate(
    current: File | Mapping[str, Any], trace: File | Trace | None = None, *, problem: Source | None = None,
    column: Mapping[str, str] | None = None, where: Mapping[str, str | Sequence[str]] | None = None,
    skip_bad: bool = False, rate_factor: float = 1.0, first: float | None = None, time_limit: float | None = None,
    seed: int = 0, out: File | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Today's deployments: cost, latencies of requests, and distance to the best plan.

    Args:
        current: file of today's deployments, which names its problem file. In Python also a mapping.
        trace: file of requests, whose rates and lengths count; None: the problem's. In Python also requests.
        problem: problem in place of the one that `current` names.
        column: columns of a trace file: our name → the file's (`traces.readers.read_trace`).
        where: keep the rows of the file whose columns have these values.
        skip_bad: skip rows that cannot be read, and count them.
        rate_factor: multiply the trace's arrival rate by this factor.
        first: seconds of the trace to keep; None: all.
        time_limit: seconds for everything, once the files are read: at most half for today's fleet, the rest
            for the best plan. Replays and the planned routing are left out where no time is left for them, and named in
            ``left_out``; a replay that has begun is finished.
        seed: random seed.
        out: folder for results; a new folder is made in it with evaluate.json, a table of requests for each run, and
            the best plan with its page.

    Returns:
        The evaluate document: ``report`` is the formulation's, ``best`` the certified optimum of the same problem,
        ``saving`` the distance to it.

    Raises:
        InputError: the file, the problem, the trace or an argument is wrong, or the formulation evaluates nothing.
    """
    from optmodels.io.read import read_document, validate
    from optmodels.simulation.options import ReplayOptions

    check_folder(None if out is None else Path(out))
    options = checked_options(seed, time_limit)
    file = None if isinstance(current, Mapping) else str(current)
    data, line = (dict(current), lambda _: None) if isinstance(current, Mapping) else read_document(Path(current))
    mine = load(_instance_of(data, file)) if problem is None else problem_of(problem)
    form = registry.get(mine.formulation)
    if form.current is None or form.evaluate is None:
        able = [n for n in registry.names() if registry.get(n).evaluate is not None]
        expected = f"a problem file of {', '.join(able)}: of others nothing that runs can be evaluated"
        raise InputError(Mistake(file, "instance", form.name, expected))
    runs = validate(form.current, data, file, line)
    requests = read_requests(trace, column, where, skip_bad, first, rate_factor)
    began = time.perf_counter()
    kept: dict[str, Mapping[str, Any]] = {}
    limit = options.time_limit
    how = ReplayOptions(seed=options.seed, keep=kept.__setitem__ if out is not None else None)
    try:
        with deadline(None if limit is None else limit / 2) as left_out:
            found = form.evaluate(mine, runs, requests, how)
    except InputError as error:
        raise InputError(
            replace(m, file=file) if m.file is None and m.path.startswith("deployments[") else m for m in error.mistakes
        ) from None
    evaluated = time.perf_counter()
    left = None if limit is None else max(MOMENT_S, limit - (evaluated - began))
    best = solve(found.problem, time_limit=left, seed=options.seed)
    plan = None if best.plan is None or form.plan is None else form.plan.model_validate(best.plan)
    document: dict[str, Any] = {
        "current": None if file is None else path_text(file), "instance": mine.name, "formulation": form.name,
        "trace": None if requests is None else requests.name, "requests": None if requests is None else len(requests),
        "trace_notes": [] if requests is None else list(requests.notes), "rate_factor": rate_factor,
        "first_s": first, "seed": seed, "report": found.report, "left_out": left_out,
        **_distance(found, best, plan),
        "seconds": {"evaluate": evaluated - began, "solve": time.perf_counter() - evaluated},
        "optmodels_version": version(),
    }  # fmt: skip
    if out is not None:
        name = f"{bare_name(document['current'] or mine.name)}-evaluate"
        requests_of = {f"requests-{run}": columns for run, columns in kept.items()}
        folder = write_document(document, Path(out), name, "evaluate.json", requests_of)
        if plan is not None:
            with keeping(document):
                save(best, registry.get(best.formulation), best._tables, plan, folder)
    return document


def _instance_of(data: Mapping[str, Any], file: str | None) -> Path:
    """The problem file that a document names, which must lie in its folder or below.

    Raises:
        InputError: none, outside, or not there.
    """
    named = data.get("instance")
    if not isinstance(named, str) or file is None:
        raise InputError(Mistake(file, "instance", named, "a problem file beside this one or below"))
    folder = Path(file).parent
    try:
        target = (folder / named).resolve()
        there = target.is_file() and target.is_relative_to(folder.resolve())
    except (OSError, ValueError):
        there = False
    if not there:
        expected = f"an existing file in {folder} or below (elsewhere: --problem)"
        raise InputError(Mistake(file, "instance", named, expected))
    return folder / named


def _distance(found: Any, best: Result, plan: Any) -> dict[str, Any]:
    """The best plan's certificate, and today's fleet next to it.

    ``share`` is the best plan's saving (of a maximum: gain) relative to today's objective. No plan exceeds ``at_most``.
    Where today's fleet misses an SLO the best plan may cost more, and the share is negative.
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
