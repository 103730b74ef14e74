"""The answers of every shipped instance, recorded and compared: a change of structure must not change them.

python benchmarks/answers.py record OUT.csv [--time-limit S] [PATTERN …]
    Solve every instance below ``instances/`` (patterns: parts of its path) by every method, ``exact`` first; a row
    each, seed 0. Rows already in OUT.csv are kept, so that an interrupted record goes on; another commit needs another
    file. It calls only the public API: run it from any commit's root, this file by its path, PYTHONPATH that root.
python benchmarks/answers.py compare OLD.csv NEW.csv
    Row by row: status, objective and bound equal to 1e-9 relative. Where time stopped a run in either file or may have,
    its figures hang on the machine: the row is listed as limited, and only the intervals between objective and bound
    must overlap. Rows in one file only differ. Exit status 1 if anything differs.

``results/reference/answers-0.1.csv`` is what version 0.1 answered; last digits may be others on another processor.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SAME = 1e-9  # relative; the same code on the same machine gives the same digits
TIME_LIMIT_S = 300.0  # far above what every run but those below takes
COLUMNS = (
    "instance", "method", "status", "limit", "sense", "objective", "bound", "gap", "check", "variables", "integers",
    "constraints", "nonzeros", "time_limit_s", "seconds", "cpu_s",
)  # fmt: skip
UNPROVED_S = {("instances/reserved_capacity/gcp-prices-1y-3y.yaml", "full"): 20.0}  # not proved within minutes either
ANSWERED = ("optimal", "feasible", "infeasible", "no_solution_found")

Row = dict[str, str]
Key = tuple[str, str]


def read(path: Path) -> dict[Key, Row]:
    """A record's rows by instance and method.

    Raises:
        ValueError: not a record, or a row twice.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise ValueError(f"{path}: the columns are {reader.fieldnames}, those of a record {list(COLUMNS)}")
        rows: dict[Key, Row] = {}
        for row in reader:
            key = row["instance"], row["method"]
            if key in rows:
                raise ValueError(f"{path}: {' '.join(key)} twice")
            rows[key] = row
    return rows


def runs(patterns: list[str]) -> Iterator[Key]:
    """Instance and method of every run: ``exact`` on all instances first."""
    import optmodels

    found = [
        r for r in optmodels.list("instances", "instances") if not patterns or any(p in r["file"] for p in patterns)
    ]
    yield from ((r["file"], "exact") for r in found)
    methods = optmodels.list("methods")
    for row in found:
        names = [m["name"] for m in methods if m["formulation"] == row["formulation"]]
        yield from ((row["file"], name) for name in names if name != "exact")


def answer(instance: str, method: str, time_limit: float) -> Row:
    """One run as a row; a refusal has status ``refused``, a fault the exception's name."""
    import optmodels
    from optmodels.errors import InputError

    cpu, clock = time.process_time(), time.perf_counter()
    row = dict.fromkeys(COLUMNS, "") | {"instance": instance, "method": method, "time_limit_s": f"{time_limit:g}"}
    try:
        found = optmodels.solve(instance, method, time_limit=time_limit, seed=0)
    except InputError:
        row["status"] = "refused"
    except Exception as error:
        row["status"] = type(error).__name__
    else:
        row |= {"status": found.status, "limit": found.limit or "", "sense": found.sense}
        figures = {"objective": found.objective, "bound": found.bound, "gap": found.gap}
        row |= {name: "" if value is None else repr(float(value)) for name, value in figures.items()}
        row |= {name: str(found.size[name]) for name in ("variables", "integers", "constraints", "nonzeros")}
        row["check"] = "" if found.check is None else str(found.check.ok)
    return row | {"seconds": f"{time.perf_counter() - clock:.2f}", "cpu_s": f"{time.process_time() - cpu:.2f}"}


def record(path: Path, time_limit: float, patterns: list[str]) -> None:
    """Write the rows that the file lacks, each as soon as it is found."""
    import optmodels

    print(f"{Path(optmodels.__file__).parent.parent}: instances below {Path.cwd() / 'instances'}")
    begun = path.exists() and path.stat().st_size > 0
    done = read(path) if begun else {}
    total = 0.0
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not begun:
            writer.writeheader()
        for instance, method in runs(patterns):
            if (instance, method) in done:
                continue
            row = answer(instance, method, min(time_limit, UNPROVED_S.get((instance, method), math.inf)))
            writer.writerow(row)
            file.flush()
            total += float(row["cpu_s"])
            print(f"{instance:60s} {method:22s} {row['status']:18s} {row['limit']:5s} {row['cpu_s']:>7s} s", flush=True)
    print(f"{total:.0f} CPU seconds")


def same(old: str, new: str) -> bool:
    """Whether two figures as written are equal, or both missing."""
    return old == new or (bool(old and new) and math.isclose(float(old), float(new), rel_tol=SAME))


def interval(row: Row) -> tuple[float, float]:
    """Where the best value lies as far as the row tells; that of an infeasible instance is worse than any figure."""
    worst = -math.inf if row["sense"] == "max" else math.inf
    objective = float(row["objective"] or worst)
    bound = worst if row["status"] == "infeasible" else float(row["bound"] or -worst)
    return min(objective, bound), max(objective, bound)


def differences(old: Row, new: Row) -> list[str]:
    """What two rows of one run disagree on, in words; nothing: they agree."""
    if limited(old, new):
        (low, high), (new_low, new_high) = interval(old), interval(new)
        ends = max(low, new_low), min(high, new_high)
        if ends[0] <= ends[1] or math.isclose(*ends, rel_tol=SAME):
            return []
        return [f"[{low:.12g}, {high:.12g}], now [{new_low:.12g}, {new_high:.12g}]: no value is in both"]
    names = [name for name in ("status", "limit", "check") if old[name] != new[name]]
    names += [name for name in ("objective", "bound") if not same(old[name], new[name])]
    return [f"{name} {old[name] or 'none'}, now {new[name] or 'none'}" for name in names]


def limited(*rows: Row) -> bool:
    """Whether time stopped one of them or may have: it took over half its limit, and some methods only stop searching.

    Rows refused, failed or with a plan that breaks a limit are compared as they are. No seconds: not measured.
    """
    sound = all(r["status"] in ANSWERED and r["check"] != "False" for r in rows)
    return sound and any(r["limit"] == "time" or float(r["seconds"] or 0) > float(r["time_limit_s"]) / 2 for r in rows)


def compare(old: dict[Key, Row], new: dict[Key, Row]) -> int:
    """Print how two records differ.

    Returns:
        Number of rows that differ.
    """
    both = [k for k in old if k in new]
    table = [(k, d) for k in both for d in differences(old[k], new[k])]
    table += [(k, "in the old record only") for k in old if k not in new]
    table += [(k, "in the new record only") for k in new if k not in old]
    stopped = [k for k in both if limited(old[k], new[k])]
    for instance, method in stopped:
        print(f"limited    {instance:60s} {method:22s}")
    for (instance, method), text in table:
        print(f"differs    {instance:60s} {method:22s} {text}")
    count = len({k for k, _ in table})
    print(f"{len(both)} runs in both, {len(stopped)} of them limited by time; {count} rows differ")
    return count


def main(arguments: list[str]) -> int:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("record")
    one.add_argument("out", type=Path)
    one.add_argument("patterns", nargs="*")
    one.add_argument("--time-limit", type=float, default=TIME_LIMIT_S)
    two = commands.add_parser("compare")
    two.add_argument("old", type=Path)
    two.add_argument("new", type=Path)
    given = parser.parse_args(arguments)
    if given.command == "compare":
        return int(compare(read(given.old), read(given.new)) > 0)
    record(given.out, given.time_limit, given.patterns)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
