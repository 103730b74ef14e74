"""``python -m tests.adversary fleet --seeds 0:2000 --jobs 2 --out DIR``: the adversary on many seeds."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.adversary.harness import FORMULATIONS, cover, run


def seeds(text: str) -> range:
    """``0:2000`` or one seed."""
    first, _, end = text.partition(":")
    return range(int(first), int(end) if end else int(first) + 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.adversary", description=__doc__)
    parser.add_argument("formulations", nargs="*", metavar="FORMULATION", help=f"default: {', '.join(FORMULATIONS)}")
    parser.add_argument("--seeds", type=seeds, default="0:2000", help="FIRST:END, or one seed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/adversary"), help="folder of the logs, added to")
    parser.add_argument("--minimise", type=float, default=120.0, metavar="SECONDS", help="for each failing instance")
    parser.add_argument("--others", type=int, default=1, metavar="K", help="judge heuristics on every K-th seed")
    parser.add_argument("--richest", type=int, default=1, metavar="K", help="of K instances of a seed")
    parser.add_argument("--cover", action="store_true", help="solve nothing: few seeds that say all of the schema")
    given = parser.parse_args()
    failed = False
    for name in given.formulations or FORMULATIONS:
        if given.cover:
            missing = cover(name, given.seeds)
            say(f"{name}: missing {', '.join(missing) or 'nothing'}")
            failed |= bool(missing)
            continue
        log = given.out / f"{name}.csv"
        counts = run(name, given.seeds, log, given.jobs, given.minimise, say, given.others, given.richest)
        say(f"{name}: {sum(counts.values())} instances: " + ", ".join(f"{n} {k}" for k, n in sorted(counts.items())))
        failed |= "differs" in counts
    return 1 if failed else 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
