"""Mutated input files given to the verbs that read them: exit status 0, 2, 3 or 4, in bounded time and memory.

    python -m tests.fuzz --count 20000 --jobs 2 --out results/fuzz

File number n is the same for ever. What is done is kept in the folder, so that the same command goes on where it was
stopped; what is wrong is kept there with its command line, one folder for each place in the program that failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

from tests.fuzz import worker

WALL_S = 240  # after which a case counts as hanging, whatever the machine is busy with


def main() -> int:
    """Exit status 0: nothing found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/fuzz"))
    given = parser.parse_args()
    found = run(range(given.first, given.first + given.count), given.jobs, given.out)
    sys.stdout.write(f"{summary(found)}\n")
    return 1 if any(r["wrong"] for r in found.values()) else 0


def run(numbers: range, jobs: int, out: Path) -> dict[int, dict]:
    """What became of each case, by number; cases that the folder knows are not run again."""
    out.mkdir(parents=True, exist_ok=True)
    worker.corpus(out)
    journal = out / "journal.jsonl"
    known: dict[int, dict] = {}
    if journal.exists():
        known = {r["case"]: r for r in map(json.loads, journal.read_text(encoding="utf-8").splitlines())}
    left = iter([n for n in numbers if n not in known])
    lock = threading.Lock()
    with journal.open("a", encoding="utf-8") as stream:

        def keep(row: dict) -> None:
            with lock:
                known[row["case"]] = row
                stream.write(json.dumps(row) + "\n")
                stream.flush()

        def take() -> int | None:
            with lock:
                return next(left, None)

        hands = [threading.Thread(target=_hand, args=(take, keep, out)) for _ in range(jobs)]
        for hand in hands:
            hand.start()
        for hand in hands:
            hand.join()
    return {n: known[n] for n in numbers}


def _hand(take, keep, out: Path) -> None:
    """One worker process after another, until nothing is left: one that hangs or dies costs one case."""
    number = take()
    while number is not None:
        command = [sys.executable, "-m", "tests.fuzz.worker", str(out)]
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=os.environ | one
        ) as process:
            while number is not None:
                clock = threading.Timer(WALL_S, process.kill)
                clock.start()
                try:
                    process.stdin.write(f"{number}\n")
                    process.stdin.flush()
                    line = process.stdout.readline()
                except BrokenPipeError:
                    line = ""
                hung = not clock.is_alive()
                clock.cancel()
                if not line:
                    keep(worker.died(number, out, "hang" if hung else "the process died"))
                    number = take()
                    break
                keep(json.loads(line))
                number = take()
            process.stdin.close()


def summary(found: dict[int, dict]) -> str:
    """Counts of statuses, and every wrong place once with its number of cases and the first of them."""
    status = Counter(str(r["status"]) for r in found.values())
    lines = [f"{len(found):,} mutated files: " + ", ".join(f"{n:,} × {s}" for s, n in sorted(status.items()))]
    wrong: dict[str, list[int]] = {}
    for row in found.values():
        if row["wrong"]:
            wrong.setdefault(row["wrong"], []).append(row["case"])
    lines += [
        f"{len(cases)} × {place} (case {cases[0]})" for place, cases in sorted(wrong.items(), key=lambda w: -len(w[1]))
    ]
    most = max(found.values(), key=lambda r: r["seconds"], default=None)
    if most is not None:
        lines.append(f"longest: {most['seconds']:.1f} s of processor time, case {most['case']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
