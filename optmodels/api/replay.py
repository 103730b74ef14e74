"""`replay`: a plan simulated on a request trace."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from optmodels import formulation as registry
from optmodels.api.sources import File, PlanSource, Source, planned, read_requests, renamed
from optmodels.errors import InputError, Mistake, one_of
from optmodels.formulation import Formulation, checked_options
from optmodels.io.write import bare_name, check_folder, write_document
from optmodels.problem import Problem
from optmodels.verification import version

if TYPE_CHECKING:
    from optmodels.traces.types import Trace


@renamed({"instance": "problem"})
def replay(
    plan: PlanSource, trace: File | Trace | None = None, *, problem: Source | None = None, policy: str | None = None,
    speed: Literal["load", "worst_case"] = "load", overflow_protection: bool | None = None,
    queue: Literal["fifo", "deadline"] | None = None, controller: str | None = None, rate_factor: float = 1.0,
    first: float | None = None, column: Mapping[str, str] | None = None,
    where: Mapping[str, str | Sequence[str]] | None = None, skip_bad: bool = False,
    part: Literal["first", "rest"] | None = None, share: float = 0.5, resample: int | None = None,
    block_s: float | None = None, predicted_error: float | None = None, seed: int = 0, out: File | None = None,
    parquet: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Simulate a plan on a request trace: predicted next to simulated latencies.

    Args:
        plan: plan file, result document or result.
        trace: file of requests; None: the problem's. In Python also requests.
        problem: replay the plan for this problem, not the one in the file.
        policy: dispatching policy; None: the formulation's.
        speed: decoding speed: ``load``, as the batch is, or ``worst_case``, always as in a full batch.
        overflow_protection: refuse requests that are predicted to be late; None: as the policy is by default.
        queue: ``fifo`` serves in order of arrival, ``deadline`` the most urgent first; None: the policy's default.
        controller: batch limits of every instance while it serves, event by event and slowly: ``static:BATCH``,
            ``sla:SECONDS_PER_TOKEN``, ``memory:KV_TOKENS``, or several joined by commas.
        rate_factor: multiply the trace's arrival rate by this factor.
        first: seconds of the trace to replay; None: all.
        column: columns of a trace file: our name → the file's (`traces.readers.read_trace`).
        where: keep the rows of the file whose columns have these values.
        skip_bad: skip rows that cannot be read, and count them.
        part: only the ``first`` `share` of the trace's time, or the ``rest``: a plan made for one is tested on the
            other.
        share: share of the trace's time in its first part.
        resample: seed of another trace drawn from this one (the problem's own, if none is given) in blocks.
        block_s: length of these blocks, seconds (`traces.shape.resampled`); None: a 24th of the trace.
        predicted_error: standard deviation of ln(predicted/true) of the output lengths that dispatchers know
            (`traces.shape.predicted`).
        seed: random seed.
        out: folder for results; a new folder is made in it with replay.json and one table of requests a policy.
        parquet: write these tables as Parquet, not CSV.

    Returns:
        The replay document: ``report`` is the formulation's (see `simulation.options.ReplayOptions`).

    Raises:
        InputError: the plan, the trace or an argument is wrong, or the formulation's plans cannot be replayed.
    """
    from optmodels.simulation.cluster import QUEUES, SPEEDS
    from optmodels.simulation.options import ReplayOptions
    from optmodels.traces import shape

    check_folder(None if out is None else Path(out))
    one_of("speed", speed, SPEEDS)
    if queue is not None:
        one_of("queue", queue, QUEUES)
    if block_s is not None and resample is None:
        raise InputError(Mistake(None, "block_s", block_s, "resample, whose blocks are so long"))
    if trace is None and rate_factor != 1:
        raise InputError(Mistake(None, "trace", None, "a trace: rate_factor is about one"))
    mine, found_plan, document = planned(plan, problem)
    form = registry.get(mine.formulation)
    if form.replay is None:
        able = [n for n in registry.names() if registry.get(n).replay is not None]
        raise InputError(Mistake(None, "formulation", form.name, f"a plan of {', '.join(able)}: others have no replay"))
    checked = checked_options(seed)
    began = time.perf_counter()
    requests = read_requests(trace, column, where, skip_bad, first)
    if requests is None and (part is not None or resample is not None or predicted_error is not None):
        requests = mine.own_trace()
        if requests is None:
            raise InputError(Mistake(None, "trace", None, "a trace: the problem has no requests one by one"))
    if requests is not None:
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
        "first_s": first, "part": part, "share": share if part is not None else None, "resample": resample,
        "predicted_error": predicted_error, "trace_notes": [] if requests is None else list(requests.notes),
        "seed": seed, "report": _replayed(form, mine, found_plan, requests, options),
        "seconds": {"read": read - began, "replay": time.perf_counter() - read}, "optmodels_version": version(),
    }  # fmt: skip
    if requests is None and found["report"].get("sent") is None:
        own = mine.own_trace() is not None
        found["report"]["sent"] = (
            "its own requests" if own else "requests drawn at random as the problem describes them"
        )
    if out is not None:
        name = f"{bare_name(found['instance'] or form.name)}-{found['method'] or 'plan'}-replay"
        requests_of = {f"requests-{run}": columns for run, columns in kept.items()}
        write_document(found, Path(out), name, "replay.json", requests_of, "parquet" if parquet else "csv")
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
        expected = "a plan made for this problem; `optmodels check` says what differs"
        raise InputError(Mistake(None, "plan", verdict.violations[0].requirement, expected)) from None
    return found
