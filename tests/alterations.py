"""Alterations of result documents: the share that `optmodels check` sees, by section of the document.

    python tests/alterations.py --each 40 --out results/alterations

Plans of every formulation are solved once and kept in the folder. Each is altered in one place a time, drawn evenly
over the sections of its document and the kinds of place in them: a number times 1.1, plus one, its sign; another text;
true for false; an entry of a list left out, two entries swapped. The seed decides every alteration.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tampering import changed_at, containers, leaves, pattern, replaced, value_at

from optmodels.plans.claims import HISTORY

UNORDERED = ("plan.flows",)  # lists in any order


def section(path: tuple) -> str:
    """The part of a document that a place is in: ``plan.certification``, ``report.replay``, ``objective``."""
    return ".".join(str(part) for part in path[: 2 if path[0] in ("plan", "report", "log", "summary") else 1])


def altered(path: tuple, value: Any, rng: random.Random) -> Any:
    """Another value of a leaf."""
    if value is None or isinstance(value, bool):
        return {None: 1.0, True: False, False: True}[value]
    if isinstance(value, str):
        return rng.choice([value + "x", value[::-1] if value != value[::-1] else value + "y", ""] if value else ["x"])
    wrong = [value * 1.1 if isinstance(value, float) else round(value * 1.1), value + 1, -value]
    return rng.choice([w for w in wrong if abs(w - value) > 1e-5 * max(abs(value), 1e-6)])


def _shorter(path: tuple, i: int):
    return lambda inner, key: inner.__setitem__(key, [*inner[key][:i], *inner[key][i + 1 :]])


def _swapped(i: int, j: int):
    def swap(inner, key):
        entries = list(inner[key])
        entries[i], entries[j] = entries[j], entries[i]
        inner[key] = entries

    return swap


def alterations(document: dict, rng: random.Random, count: int):
    """(words, path, document with one place altered), `count` of them, evenly over sections and kinds of place."""
    places: dict[str, dict[str, list]] = {}
    for path in leaves(document):
        places.setdefault(section(path), {}).setdefault(pattern(path), []).append(("leaf", path))
    for path in containers(document):
        entries = value_at(document, path)
        if isinstance(entries, list) and entries:
            of = places.setdefault(section(path), {})
            of.setdefault(f"{pattern(path)} dropped", []).append(("drop", path))
            if any(e != entries[0] for e in entries) and pattern(path) not in UNORDERED:
                of.setdefault(f"{pattern(path)} swapped", []).append(("swap", path))
    order = sorted(places)
    for k in range(count):
        if k % len(order) == 0:
            rng.shuffle(order)
        kinds = places[order[k % len(order)]]
        what, path = rng.choice(kinds[rng.choice(sorted(kinds))])
        old = value_at(document, path)
        if what == "leaf":
            new = altered(path, old, rng)
            yield f"{pattern(path)}: {old!r:.60} → {new!r:.60}", path, replaced(document, path, new)
        elif what == "drop":
            i = rng.randrange(len(old))
            yield f"{pattern(path)}[{i}] dropped", path, changed_at(document, path, _shorter(path, i))
        else:
            i = rng.randrange(len(old))
            j = rng.choice([j for j in range(len(old)) if old[j] != old[i]])
            yield f"{pattern(path)}[{i}] and [{j}] swapped", path, changed_at(document, path, _swapped(i, j))


def main() -> int:
    """Exit status 0: every alteration outside a document's history is seen or listed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--each", type=int, default=40, help="alterations of each plan")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="plans whose name has one of these texts, by commas")
    parser.add_argument("--solve", action="store_true", help="solve only")
    parser.add_argument("--out", type=Path, default=Path("results/alterations"))
    given = parser.parse_args()
    from altered_plans import PLANS, solved

    rows = []
    for name in PLANS:
        if not any(text in name for text in given.only.split(",")):
            continue
        document, seconds = solved(name, given.out)
        if document is None or given.solve:
            continue
        rows += judge(name, document, seconds, random.Random(f"{given.seed} {name}"), given.each)
    sys.stdout.write(table(rows) + "\n")
    return 1 if any(r["missed"] for r in rows) else 0


def judge(name: str, document: dict, seconds: float, rng: random.Random, count: int) -> list[dict]:
    """What check makes of alterations of one document, one row each."""
    from test_documents import remembering

    import optmodels
    from optmodels import formulation
    from optmodels.loading import load
    from optmodels.verification import verify

    form, problem = formulation.get(document["formulation"]), load(document["problem"])
    clock = time.process_time()
    good = verify(form, problem, document)
    took = time.process_time() - clock
    sys.stdout.write(f"{name}: check {took:.2f} CPU s, solve {seconds:.2f} CPU s; {'ok' if good.ok else 'FAILS'}\n")
    for v in () if good.ok else good.violations[:5]:
        sys.stdout.write(f"    {v.requirement}: {v.value} against {v.limit}\n")
    cached, rows = remembering(form), []
    trusted = [t.path for t in good.trusted]
    for what, path, mutant in alterations(document, rng, count):
        where = pattern(path)
        try:
            mine = problem if path[0] != "problem" else None
            report = None if mine is None else verify(cached, mine, mutant)
            if path[:2] in (("log", "safer"), ("log", "next_measurement")):
                report = optmodels.check(mutant)
        except Exception as error:
            sys.stdout.write(f"    CRASH {what}: {error!r}\n")
            report = good
        seen = report is None or not report.ok  # the digest of the problem
        listed = any(where == t or where.startswith((f"{t}.", f"{t}[")) for t in trusted)
        if not seen:
            sys.stdout.write(f"    {'listed' if listed else 'MISSED'} {what}\n")
        rows.append({"plan": name, "section": section(path), "seen": seen, "listed": listed and not seen,
                     "missed": not seen and not listed, "history": path[0] in HISTORY})  # fmt: skip
    sys.stdout.flush()
    return rows


def table(rows: list[dict]) -> str:
    """Shares seen by section, and of all."""
    tried, seen, listed = (Counter(), Counter(), Counter())
    for r in rows:
        top = r["section"].partition(".")[0]
        for key in (top, "all", "all but history" if not r["history"] else "all of history"):
            tried[key] += 1
            seen[key] += r["seen"]
            listed[key] += r["listed"]
    lines = [f"{'section':<32} {'tried':>6} {'seen':>6} {'listed':>6}  share seen"]
    lines += [f"{k:<32} {n:>6} {seen[k]:>6} {listed[k]:>6}  {seen[k] / n:.0%}" for k, n in sorted(tried.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
