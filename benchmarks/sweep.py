"""What a sweep costs beside its solves: rows/s, overhead of a solve, journal, resume; against `solve` in a loop.

python benchmarks/sweep.py [SOLVES]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import optmodels
from optmodels.study.journal import Journal

ROOT = Path(__file__).parent.parent
SMALL = ROOT / "instances/reserved_capacity/textbook-two-regions.yaml"
FLEET = ROOT / "instances/fleet/aws-six-workloads.yaml"
KEY = "machines[box].prices.on_demand"


def timed(run):
    """Seconds and result."""
    clock = time.perf_counter()
    found = run()
    return time.perf_counter() - clock, found


def main(solves: int) -> None:
    """Print the figures."""
    optmodels.sweep(SMALL, {KEY: [2.0]})  # imports
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "s"
        vary = {KEY: f"1.5:6:{solves}"}
        one, found = timed(lambda: optmodels.sweep(SMALL, vary, out=out))
        inside = sum(r["seconds"]["total"] for r in found.rows)
        print(f"{solves} solves, one process: {one:.1f} s, {solves / one:.0f} rows/s; inside methods {inside:.1f} s,")
        print(f"  {1e3 * (one - inside) / solves:.2f} ms a solve for loading, tables, check, journal and files")
        size = (out / "journal.jsonl").stat().st_size
        again, resumed = timed(lambda: optmodels.sweep(SMALL, vary, out=out, resume=True))
        assert resumed.reused == solves
        print(f"resumed with nothing left: {again:.1f} s; journal {size / 1e6:.1f} MB")
        two, spread = timed(lambda: optmodels.sweep(SMALL, vary, out=Path(folder) / "t", workers=2))
        assert spread.frame.equals(found.frame)
        print(f"two processes: {two:.1f} s, {one / two:.2f} times as fast, start-up included")
        journal = Journal(Path(folder) / "j.jsonl")
        lines, _ = timed(lambda: [journal.add([(str(i), found.rows[0])]) for i in range(500)])
        journal.close()
        print(f"one line to the disk: {1e3 * lines / 500:.2f} ms")
    loop = min(100, solves)
    problem = optmodels.load(SMALL)
    (machine,) = problem.machines
    priced = [machine.prices.model_copy(update={"on_demand": 1.5 + 4.5 * i / loop}) for i in range(loop)]
    alone, _ = timed(lambda: [
        optmodels.solve(problem.model_copy(update={"machines": (machine.model_copy(update={"prices": p}),)}))
        for p in priced
    ])  # fmt: skip
    share = alone / loop * solves / one
    print(f"optmodels.solve in a loop: {1e3 * alone / loop:.2f} ms a solve, {share:.2f} of the sweep's")
    vary = {"budget_usd_per_hour": "40:80:6"}
    kept, _ = timed(lambda: optmodels.sweep(FLEET, vary))
    other, _ = timed(lambda: optmodels.sweep(FLEET, {"objective": ["min_cost"], "max_load": "0.9:1:6"}))
    print(f"six workloads, 6 solves: {kept:.1f} s with budgets varied, {other:.1f} s with tables made for each")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
