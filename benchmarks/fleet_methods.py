"""What each decomposition of fleet's exact method is worth: ``python benchmarks/fleet_methods.py [FILE.jsonl]``.

Every instance is solved as shipped, then without each decomposition that the first run called: tight relaxation, cuts
and tree (benders), the cuts alone (cuts), column generation (columns). CPU seconds are those of a process of its own
and its children, building tables and the check included; at most 60 s of wall clock and a gap of 0.01 % a solve.
Appends a JSON line a run, and reads those that are there.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
LIMIT_S, GAP = 60.0, 1e-4
SHIPPED = sorted(p.name for p in (ROOT / "instances" / "fleet").glob("*.yaml"))


def problems() -> dict[str, Callable[[], Any]]:
    """Instances by name: those shipped, and the families of `benchmarks/fleet.py`."""
    from benchmarks.fleet import grid_problem, measured_points, scaling, stages_problem
    from optmodels import load

    found: dict[str, Callable[[], Any]] = {
        name: (lambda n=name: load(ROOT / "instances" / "fleet" / n)) for name in SHIPPED
    }
    for rate in (20.0, 200.0):
        found[f"grid 10x10x8 {rate:g}/s"] = lambda r=rate: grid_problem(10, 10, 8, r, 0)
    for types, rate in ((4, 120.0), (8, 120.0), (8, 1200.0)):
        found[f"stages 10x10x{types} {rate:g}/s"] = lambda t=types, r=rate: stages_problem(t, r)
    for rate in (20.0, 1200.0):
        found[f"measured 10x10x8x3 {rate:g}/s"] = lambda r=rate: stages_problem(
            8, r, 0, 3, deadline_s=None,
            points=measured_points([d.bucket for d in stages_problem(1, 1.0).resolve().demands], True),
        )  # fmt: skip
    for demands, points in ((100, 1_000), (300, 3_000)):
        found[f"scaling {demands}x{points}"] = lambda d=demands, p=points: scaling(d, p)
    return found


def solved(name: str, without: str, send: Any) -> None:
    """One run in a process of its own."""
    from formulations.fleet.check import check
    from formulations.fleet.methods import benders, columns, exact
    from formulations.fleet.points import build_tables
    from optmodels.formulation import Options

    called = set()

    def counted(what: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **how: Any) -> Any:
            called.add(what)
            return run(*given, **how)

        return call

    by_tree = benders.solve
    benders.solve, columns.solve = counted("benders", benders.solve), counted("columns", columns.solve)
    benders._Search.search = counted("cuts", benders._Search.search)
    match without:
        case "cuts":
            benders.solve = lambda m, compiled, settings, first, _=True: by_tree(m, compiled, settings, first, False)
        case "benders":
            benders.solve = lambda *_: None
        case "columns":
            columns.applies = lambda _: False
    problem = problems()[name]()
    before = _cpu_s()
    if problem.certify != "none":
        problem = problem.model_copy(update={"certify": "none"})
    outcome = exact.exact(problem, build_tables(problem), Options(gap=GAP, time_limit=LIMIT_S, answer_only=True))
    cost = None if outcome.plan is None else outcome.plan.total_usd_per_hour
    ok = None if outcome.plan is None else check(problem, outcome.plan.model_dump(mode="json")).ok
    send.send({
        "name": name, "without": without, "called": sorted(called), "status": outcome.status, "cost": cost,
        "bound": outcome.bound, "check": ok, "cpu_s": round(_cpu_s() - before, 2),
    })  # fmt: skip


def _cpu_s() -> float:
    """Of this process and its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def run(name: str, without: str) -> dict[str, Any]:
    """What one run gives, and its CPU seconds."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=solved, args=(name, without, there))
    process.start()
    there.close()
    try:
        found: dict[str, Any] = here.recv()
    except EOFError:
        found = {"name": name, "without": without, "called": [], "status": "error", "cost": None, "cpu_s": None}
    process.join()
    return found


def main(file: Path) -> None:
    """Runs what the file lacks."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    known = {(r["name"], r["without"]): r for r in lines}

    def asked(name: str, without: str) -> dict[str, Any]:
        if (name, without) not in known:
            known[name, without] = run(name, without)
            with file.open("a") as stream:
                stream.write(json.dumps(known[name, without]) + "\n")
            print(known[name, without], flush=True)
        return known[name, without]

    for name in problems():
        called = asked(name, "nothing")["called"]
        for without in called:
            asked(name, without)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "fleet-methods.jsonl"))
