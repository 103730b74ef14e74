"""The benchmark library: shipped instances with their best known values and proved bounds, for others to compare with.

``instances/library.yaml`` lists every instance with a digest of what it says, files beside it and shipped latency
models included, so that a value belongs to the problem it was found for; whether prices of a catalogue changed shows
when it is solved again. A value gets in only with a plan that the independent checker accepts; a bound only from a
method that proves one.

    python -m benchmarks.library check [--solve]        consistent? with --solve: found again?
    python -m benchmarks.library update [INSTANCE …]    solve, and keep what is better
    python -m benchmarks.library export FOLDER [INSTANCE …] --to mps|lp
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

import optmodels
from optmodels import formulation
from optmodels.errors import InputError, Mistake, OptmodelsError
from optmodels.io.read import read_document, read_model
from optmodels.io.write import safe_name, write_text
from optmodels.loading import load
from optmodels.plans.outcome import Document
from optmodels.solver.highs import PROVED, relative_gap
from optmodels.study.identity import canonical, digest, written_out

LIBRARY = Path("instances/library.yaml")
TIME_LIMIT_S = 60.0
SAME = 1e-6  # relative; what two runs on two machines may differ by
MOST_NONZEROS = 5_000_000  # of a model that is written to a file


class Known(Document):
    """A value, who found it and when."""

    value: float = Field(allow_inf_nan=False)
    method: str
    date: date
    optmodels: str


class Item(Document):
    """One instance."""

    file: str
    formulation: str
    digest: str
    sense: Literal["min", "max"]
    unit: str
    status: Literal["optimal", "infeasible", "open"]
    best: Known | None = Field(default=None, description="the best plan's objective; the plan passed the checker")
    bound: Known | None = Field(default=None, description="no plan is better than this")
    seconds: float = Field(ge=0, description="of the exact method when it was last run; a hint, not a benchmark")

    @property
    def gap(self) -> float | None:
        """Relative gap between the best plan and the bound."""
        return relative_gap(self.best.value if self.best else None, self.bound.value if self.bound else None)


class Library(Document):
    """The manifest."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    version: int = Field(ge=1, description="one more with every change of an instance or a value")
    updated: date
    instances: list[Item]


def read(path: Path = LIBRARY) -> Library:
    """The library's manifest.

    Raises:
        InputError: not there or not right.
    """
    return read_model(path, Library)


def problems(library: Library, folder: Path) -> list[str]:
    """What is inconsistent, in words; nothing is solved.

    Args:
        library: the manifest.
        folder: that the instances lie below.
    """
    wrong = []
    names = [i.file for i in library.instances]
    wrong += [f"{n}: listed twice" for n in dict.fromkeys(names) if names.count(n) > 1]
    shipped = set(_shipped(folder))
    wrong += [f"{n}: not in the library; update it" for n in sorted(shipped - set(names))]
    wrong += [f"{n}: listed, and not there" for n in sorted(set(names) - shipped)]
    for item in library.instances:
        if item.file in shipped:
            wrong += [f"{item.file}: {w}" for w in _item_problems(item, folder)]
    return wrong


def _shipped(folder: Path) -> list[str]:
    """Instances below the folder; one that is refused on loading, as an unreachable SLO is, has no value to know."""
    found = []
    for row in optmodels.list("instances", folder):
        try:
            load(row["file"])
        except InputError:
            continue
        found.append(Path(row["file"]).relative_to(folder).as_posix())
    return found


def _item_problems(item: Item, folder: Path) -> Iterable[str]:
    problem = load(folder / item.file)
    form = formulation.get(problem.formulation)
    if (item.formulation, item.sense, item.unit) != (form.name, *form.goal_of(problem)):
        yield "another formulation, sense or unit"
    if item.digest != _digest(folder / item.file):
        yield "it, or a latency model it is planned with, changed since its values were found; update it"
    if item.best is not None and item.bound is not None:
        over = item.bound.value - item.best.value if item.sense == "min" else item.best.value - item.bound.value
        if over > SAME * max(abs(item.best.value), abs(item.bound.value)):
            yield f"its best value {item.best.value:.12g} beats its bound {item.bound.value:.12g}"
    if (item.status == "optimal") != (item.gap is not None and item.gap <= SAME):
        yield f"{item.status} with gap {item.gap}"
    if item.status == "infeasible" and (item.best is not None or item.bound is not None):
        yield "infeasible, and with a value"


def reproduced(item: Item, folder: Path, time_limit: float = TIME_LIMIT_S) -> str | None:
    """Solve an instance by its methods on record; what does not agree, in words.

    Args:
        item: the instance.
        folder: that it lies below.
        time_limit: seconds of each method; a run stopped there must only not contradict.
    """
    known = [k.method for k in (item.best, item.bound) if k is not None]
    for row in optmodels.compare([folder / item.file], list(dict.fromkeys(known or ["exact"])), time_limit=time_limit):
        if row["status"] == "error" or (row["check"] is not None and not row["check"]["ok"]):
            return f"{row['method']}: {row['headline']}: {row['check']}"
        best, bound = item.best, item.bound
        if row["objective"] is not None and bound is not None and _better(item, row["objective"], bound.value):
            return f"{row['method']} finds {row['objective']:.12g}, which beats the bound {bound.value:.12g}"
        if row["bound"] is not None and best is not None and _better(item, best.value, row["bound"]):
            return f"{row['method']} proves {row['bound']:.12g}, which the best value {best.value:.12g} beats"
        if row["limit"] is not None:
            continue
        if (row["status"] == "infeasible") != (item.status == "infeasible"):
            return f"{row['method']} says {row['status']}, the library {item.status}"
        if best is not None and row["method"] == best.method and _better(item, best.value, row["objective"]):
            return f"{row['method']} finds {row['objective']}, not {best.value:.12g}"
    return None


def _better(item: Item, value: float, than: float | None) -> bool:
    """Whether a value is better by more than rounding."""
    if than is None:
        return True
    gain = than - value if item.sense == "min" else value - than
    return gain > SAME * max(abs(value), abs(than))


def updated(item: Item | None, file: str, folder: Path, methods: Sequence[str] | None, time_limit: float) -> Item:
    """An instance solved again: the better of what was known and what is found.

    Args:
        item: what is known; None or of another digest: nothing.
        file: below the folder.
        folder: of the library.
        methods: to run; None: all.
        time_limit: seconds of each.
    """
    digest = _digest(folder / file)
    known = item if item is not None and item.digest == digest else None
    rows = optmodels.compare([folder / file], methods, time_limit=time_limit)
    sense, unit = rows[0]["sense"], rows[0]["unit"]
    best, bound = (known.best, known.bound) if known is not None else (None, None)
    toward = 1.0 if sense == "min" else -1.0
    today, version = datetime.now(UTC).date(), _version()
    for row in rows:
        value, limit = row["objective"] if row["check"] and row["check"]["ok"] else None, row["bound"]
        if value is not None and (best is None or toward * (best.value - value) > SAME * abs(best.value)):
            best = Known(value=value, method=row["method"], date=today, optmodels=version)
        if bound is not None and value is not None and toward * (bound.value - value) > SAME * abs(value):
            bound = None  # a plan is better: it was of other tables, or false
        if limit is None or not math.isfinite(limit):
            continue
        if bound is None or toward * (limit - bound.value) > SAME * abs(bound.value):
            bound = Known(value=limit, method=row["method"], date=today, optmodels=version)
    gap = relative_gap(best.value if best else None, bound.value if bound else None)
    infeasible = best is None and any(r["status"] == "infeasible" and r["method"] == "exact" for r in rows)
    seconds = next((r["seconds"]["total"] for r in rows if r["method"] == "exact"), rows[0]["seconds"]["total"])
    return Item(
        file=file, formulation=rows[0]["formulation"], digest=digest, sense=sense, unit=unit,
        status="infeasible" if infeasible else "optimal" if gap is not None and gap <= PROVED else "open",
        best=best, bound=None if infeasible else bound, seconds=round(seconds, 2),
    )  # fmt: skip


def _digest(path: Path) -> str:
    """Of an instance file and of the latency models it is planned with: where coefficients are fitted again, what was
    proved with the old ones is of another problem."""
    said = digest(read_document(path)[0], path.parent)
    models = (written_out(load(path)).get("latency") or {}).get("model")
    if models is None or isinstance(models, str):
        return said
    return hashlib.sha256(said.encode() + canonical(models)).hexdigest()


def _version() -> str:
    from importlib.metadata import version

    return version("optmodels")


def update(
    path: Path, only: Sequence[str] = (), methods: Sequence[str] | None = None, time_limit: float = TIME_LIMIT_S
) -> Library:
    """Solve the instances (or `only` some) and rewrite the manifest after each, so that nothing found is lost."""
    folder = path.parent
    old = read(path) if path.exists() else None
    items = {} if old is None else {i.file: i for i in old.instances}
    shipped = _shipped(folder)
    items = {n: items[n] for n in shipped if n in items}
    unknown = [o for o in only if not any(_named(n, o) for n in shipped)]
    if unknown:
        raise InputError([Mistake(None, "instances", o, f"a file or folder below {folder}") for o in unknown])
    library = Library(version=1, updated=datetime.now(UTC).date(), instances=list(items.values()))
    version = 1 if old is None else old.version + 1
    for name in shipped:
        if only and not any(_named(name, o) for o in only):
            continue
        items[name] = updated(items.get(name), name, folder, methods, time_limit)
        kept = [items[n] for n in shipped if n in items]
        library = Library(version=version, updated=datetime.now(UTC).date(), instances=kept)
        write_text(path, _HEAD + yaml.safe_dump(
            library.model_dump(mode="json", by_alias=True, exclude_none=True), sort_keys=False, width=120
        ), overwrite=True)  # fmt: skip
        found = items[name]
        sys.stderr.write(f"{name}: {found.status}{'' if found.gap is None else f', gap {found.gap:.2g}'}\n")
    return library


def _named(name: str, wanted: str) -> bool:
    """Whether an instance is that file, or in that folder."""
    return name == wanted or name.startswith(f"{wanted.rstrip('/')}/")


_HEAD = """\
# The benchmark library: best known values and proved bounds of the instances below this folder.
# Written by `python -m benchmarks.library update`; checked by `python -m benchmarks.library check`.
"""


def export(path: Path, folder: Path, kind: str, only: Sequence[str] = ()) -> list[Path]:
    """Write the model of each instance, and ``library.csv`` with the values it compares with; the files written.

    The model is the formulation's own on all of its tables, before any pruning; what it minimises or maximises is its
    first objective, which for cost efficiency is USD per million tokens, 10⁶ over the library's value.
    """
    from optmodels.io.write import write_frame
    from optmodels.solver.write import write_model

    made, rows = [], []
    for item in read(path).instances:
        if only and not any(item.file.startswith(o) for o in only):
            continue
        problem = load(path.parent / item.file)
        form = formulation.get(problem.formulation)
        name, note = "", ""
        try:
            compiled, _ = form.compiled(problem, form.tables(problem))
            if compiled.size["nonzeros"] > MOST_NONZEROS:
                note = f"{compiled.size['nonzeros']:,} nonzeros, more than {MOST_NONZEROS:,}"
            else:
                target = folder / f"{safe_name(item.file.rsplit('.', 1)[0].replace('/', '-'), 150)}.{kind}"
                write_model(compiled, target)
                made.append(target)
                name = target.name
        except OptmodelsError as error:
            if isinstance(error, InputError):
                raise
            note = str(error)
        rows.append({
            "model": name, "instance": item.file, "status": item.status, "sense": item.sense, "unit": item.unit,
            "best": item.best.value if item.best else None, "bound": item.bound.value if item.bound else None,
            "note": note,
        })  # fmt: skip
    import pandas as pd

    made.append(folder / "library.csv")
    write_frame(made[-1], pd.DataFrame(rows))
    return made


def main(arguments: list[str]) -> int:
    """Command line of the library; exit status 0 all is well, 1 something is not, 2 bad usage."""
    from optmodels.cli.console import report_mistakes, show

    parser = argparse.ArgumentParser(prog="python -m benchmarks.library", description=__doc__.split("\n")[0])
    parser.add_argument("--library", type=Path, default=LIBRARY)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("check", "update", "export"):
        sub = verbs.add_parser(verb)
        if verb == "export":
            sub.add_argument("folder", type=Path)
            sub.add_argument("--to", choices=("mps", "lp"), default="mps")
        sub.add_argument("instances", nargs="*", help="files or folders as the library names them")
        if verb == "check":
            sub.add_argument("--solve", action="store_true")
        if verb == "update":
            sub.add_argument("--methods", help="comma-separated; default: all")
        if verb != "export":
            sub.add_argument("--time-limit", type=float, default=TIME_LIMIT_S)
    given = parser.parse_args(arguments)
    try:
        if given.verb == "update":
            methods = None if given.methods is None else given.methods.split(",")
            library = update(given.library, given.instances, methods, given.time_limit)
            show([f"version {library.version}: {len(library.instances)} instances"])
            return 0
        if given.verb == "export":
            show([str(p) for p in export(given.library, given.folder, given.to, given.instances)])
            return 0
        return _check(given, show)
    except InputError as error:
        report_mistakes(error)
        return 2


def _check(given: argparse.Namespace, show: Any) -> int:
    library, folder = read(given.library), given.library.parent
    wrong = problems(library, folder)
    chosen = [i for i in library.instances if not given.instances or i.file.startswith(tuple(given.instances))]
    if given.instances and not chosen:
        raise InputError(Mistake(str(given.library), "instances", given.instances, "files or folders of the library"))
    if given.solve:
        for item in chosen:
            differs = reproduced(item, folder, given.time_limit)
            wrong += [] if differs is None else [f"{item.file}: {differs}"]
            sys.stderr.write(f"{item.file}: {'as known' if differs is None else differs}\n")
    counts = {s: sum(i.status == s for i in chosen) for s in ("optimal", "infeasible", "open")}
    show([*wrong, f"version {library.version}: {', '.join(f'{n} {s}' for s, n in counts.items())}; "
                  f"{len(wrong)} problems{', all solved again' if given.solve else ''}"])  # fmt: skip
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
