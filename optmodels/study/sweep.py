"""Many solves of one instance with some of its fields varied: checked before the first, resumable after any end.

A sweep's folder holds ``journal.jsonl`` (every finished solve, see `journal`), ``sweep.json`` (the question, so that
it can be asked again) and, once all is done, ``sweep.csv`` and ``sweep.parquet`` (one row a solve, no times: the same
sweep gives the same bytes), ``seconds.csv``, ``frontier.csv`` and pictures.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from optmodels import formulation as registry
from optmodels.errors import InputError, Mistake, Mistakes
from optmodels.formulation import Formulation, Options, checked_options
from optmodels.io.paths import Location, Place, find, put, value_at
from optmodels.io.read import read_document, validate
from optmodels.io.write import bare_name, finite, keeping, new_folder, path_text, safe_name, write_frame, write_text
from optmodels.loading import load
from optmodels.problem import Problem
from optmodels.solver.cancel import caught_interrupt
from optmodels.study.design import Point, Vary, axes, points
from optmodels.study.frontier import Aim, aim_texts, aims, on_frontier, refuse_unknown
from optmodels.study.identity import as_document, canonical, named_file, resolved_digest, written_out
from optmodels.study.journal import Journal
from optmodels.study.pool import WorkerPool, pool
from optmodels.study.rows import Row, figures, solved_row

MOST_MISTAKES = 20
MOST_WORKERS = 1024
TABLES_KEPT = 8
PER_PROCESS = 4  # solves below which a process is not worth its start
MOST_RESOLVED = 200  # values looked up in the catalogue before the first solve; the schema checks all
Progress = Callable[[int, int, Row], None]
_OF_A_ROW = {"status": str, "seconds": dict, "size": dict, "headline": str, "proved": bool}


@dataclass(frozen=True)
class Task:
    """Common data of a sweep's solves; small, picklable, no file but the ones next to the instance.

    Attributes:
        document: the instance.
        folder: folder of the files that it names.
        identity: identity of the instance, its files' contents included.
        places: places that the varied keys lead to.
        method: its name.
        options: how it may run.
    """

    document: Mapping[str, Any]
    folder: Path | None
    identity: str
    places: Mapping[str, tuple[Location, ...]]
    method: str
    options: Options

    @property
    def form(self) -> Formulation:
        """The instance's formulation."""
        return registry.get(self.document["formulation"])

    def varied(self, point: Point) -> dict[str, Any]:
        """The instance document at a point."""
        document = dict(self.document)
        for key, value in point.items():
            for location in self.places[key]:
                document = put(document, location, value)
        return document


_kept: deque[tuple[str, Any]] = deque(maxlen=TABLES_KEPT)  # this process' last tables, by identity of the instance


def solve_point(task: Task, point: Point) -> Row:
    """One solve of a sweep, as a row of JSON data."""
    form = task.form
    try:
        problem = load(task.varied(point), folder=task.folder)
        tables = _tables(task, form, problem)
    except InputError as error:  # a limit below any latency, values that are right one by one and wrong together
        reason = "; ".join(f"{m.path}: {m.expected}" for m in error.mistakes)
        return _no_row(f"refused: {reason}") | {"status": "no_solution_found"}
    except Exception as error:
        return _no_row(f"{type(error).__name__}: {error}")
    with caught_interrupt() as stop:
        row, plan = solved_row(form, problem, tables, task.method, task.options)
    if stop.is_set():  # also if the solve ended before: its result then does not show the interrupt
        raise KeyboardInterrupt
    del row["events"]
    return finite(row | {"plan": None if plan is None else figures(plan, "plan")})


def _tables(task: Task, form: Formulation, problem: Problem) -> Any:
    """Tables of the problem; earlier ones where nothing that is costly to compute differs (`Formulation.rebind`)."""
    if form.rebind is None:
        return form.tables(problem)
    for identity, earlier in reversed(_kept):
        if identity == task.identity and (again := form.rebind(earlier, problem)) is not None:
            return again
    _kept.append((task.identity, form.tables(problem)))
    return _kept[-1][1]


def _no_row(reason: str) -> Row:
    return {
        "status": "error", "limit": None, "objective": None, "bound": None, "gap": None, "proved": False,
        "seconds": {}, "size": {}, "check": None, "headline": reason, "plan": None,
    }  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """A sweep's results.

    Attributes:
        instance: name that the user gave.
        task: data that its solves share.
        keys: the varied fields.
        points: their values, one dict a solve.
        rows: results of the solves, in the order of `points`.
        pareto: aims of the frontier, if asked for.
        folder: folder of its files, if any.
        reused: solves taken from an earlier, unfinished run.
        damaged: lines of the journal that held no result.
    """

    instance: str
    task: Task
    keys: tuple[str, ...]
    points: tuple[Point, ...]
    rows: tuple[Row, ...]
    pareto: tuple[Any, ...] = ()
    folder: Path | None = None
    reused: int = 0
    damaged: int = 0

    @cached_property
    def frame(self) -> Any:
        """Tidy data frame: a row a solve; varied fields, outcome, the plan's figures, ``frontier``."""
        import pandas as pd

        flat = []
        for point, row in zip(self.points, self.rows, strict=True):
            check = row["check"]
            line = {k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in point.items()}
            line |= {k: row[k] for k in ("status", "limit", "objective", "bound", "gap", "proved")}
            line["check_ok"] = None if check is None else check["ok"]
            line |= {k: v for k, v in (row["plan"] or {}).items() if k not in ("plan.name", "plan.formulation")}
            flat.append(line | {"headline": row["headline"]})
        frame = pd.DataFrame(flat)
        for key in self.keys:  # a column of one kind, as files of columns need it
            if frame[key].dtype == object and len({isinstance(v, str) for v in frame[key] if v is not None}) > 1:
                frame[key] = [None if v is None else str(v) for v in frame[key]]
        frame.insert(list(frame.columns).index("objective") + 1, "unit", self.goal[1])
        frame = frame[[c for c in frame.columns if c != "headline"] + ["headline"]]
        if self.pareto:
            frame["frontier"] = on_frontier(frame, self.pareto)
        return frame

    @property
    def frontier(self) -> Any:
        """The frontier, best in its first aim first, one row of `frame` a point; None where none was asked for."""
        if not self.pareto:
            return None
        best = self.pareto[0]
        rows = self.frame[self.frame["frontier"]].sort_values("proved", ascending=False, kind="stable")
        rows = rows.drop_duplicates([a.column for a in self.pareto])
        return rows.sort_values(best.column, ascending=best.direction == "min", kind="stable")

    @property
    def goal(self) -> tuple[str, str]:
        """Sense and unit of the objective."""
        row = next((r for r in self.rows if "unit" in r), None)
        return (row["sense"], row["unit"]) if row is not None else (self.task.form.sense, self.task.form.unit)

    @property
    def seconds(self) -> Any:
        """How long each solve took, by phase, as a data frame."""
        import pandas as pd

        return pd.DataFrame([
            point | row["seconds"] for point, row in zip(self.points, self.rows, strict=True)
        ])  # fmt: skip

    @property
    def exit_status(self) -> int:
        """0 a plan was found, 1 a fault or a plan that fails its check, 3 all proved infeasible, 4 no plan found."""
        statuses = {r["status"] for r in self.rows}
        if "error" in statuses or any(r["check"] is not None and not r["check"]["ok"] for r in self.rows):
            return 1
        if any(r["plan"] is not None for r in self.rows):
            return 0
        return 3 if statuses == {"infeasible"} else 4

    def document(self) -> dict[str, Any]:
        """The sweep as JSON data."""
        sense, unit = self.goal
        flagged = self.frame["frontier"].tolist() if self.pareto else [None] * len(self.rows)
        rows = [
            {"varied": p, **{k: v for k, v in r.items() if k not in ("formulation", "method", "sense", "unit")},
             "frontier": f} for p, r, f in zip(self.points, self.rows, flagged, strict=True)
        ]  # fmt: skip
        return {
            "schema": 1, "instance": self.instance, "formulation": self.task.form.name, "method": self.task.method,
            "sense": sense, "unit": unit, "keys": list(self.keys),
            "pareto": [{"column": a.column, "direction": a.direction} for a in self.pareto],
            "folder": None if self.folder is None else path_text(self.folder), "reused": self.reused, "rows": rows,
        }  # fmt: skip


class SweepInterrupted(KeyboardInterrupt):
    """Ctrl-C during a sweep; finished solves are in its folder.

    Attributes:
        folder: folder of the sweep, None if it has none.
        done: solves finished.
        total: solves asked for.
    """

    def __init__(self, folder: Path | None, done: int, total: int) -> None:
        self.folder, self.done, self.total = folder, done, total
        super().__init__(f"{done} of {total} solves done")


@dataclass
class _Base:
    """The instance a sweep starts from."""

    document: Mapping[str, Any]
    problem: Problem
    shown: str
    folder: Path | None
    file: str | None = None

    @classmethod
    def of(cls, source: Any) -> _Base:
        problem = source if isinstance(source, Problem) else load(source)
        if isinstance(source, str | PathLike):
            document, _ = read_document(Path(source))
            document.setdefault("name", problem.name)
            return cls(document, problem, path_text(source), Path(source).resolve().parent, str(source))
        document = dict(source) if isinstance(source, Mapping) else as_document(problem)
        return cls(document, problem, problem.name, problem._folder)

    def places(self, keys: Sequence[str]) -> dict[str, tuple[Place, ...]]:
        """Where the keys lead, with sections that the instance only refers to (machines of a catalogue) written out.

        Only the smallest such section is: writing out all of an instance computes some values (the rates of buckets)
        from others (the value of their workload), which would be varied without effect.

        Raises:
            InputError: a key leads nowhere even so.
        """
        wrong = Mistakes()
        as_given, schema = self.document, type(self.problem)
        direct: list[tuple[str, Place]] = []
        for key in keys:
            try:
                direct += [(key, place) for place in _places(as_given, schema, key, self.file)]
            except InputError as error:
                if not self._write_out(key):
                    wrong.extend(self._in_written(key) or error.mistakes)
        for key, place in direct:
            if value_at(as_given, place.location) != value_at(self.document, place.location):
                wrong.add(key, key, "a field outside of the sections that the other keys need written out")
        wrong.raise_any()
        return {key: _places(self.document, schema, key, self.file) for key in keys}

    def _in_written(self, key: str) -> Sequence[Mistake]:
        """Why a key leads nowhere even in the problem written out, where it ends as some key there does (a list of
        pools is one pool with its machines): its near paths help more than the file's."""
        try:
            _places(self.written, type(self.problem), key, self.file)
        except InputError as error:
            ending = re.split(r"[.\[]", key)[-1]
            return [m for m in error.mistakes if m.hint and m.hint.count(f".{ending}")]
        return []

    def _write_out(self, key: str) -> bool:
        """Write out the smallest sections that a key leads into and that leave the instance's values unchanged."""
        schema = type(self.problem)
        with contextlib.suppress(InputError):
            for place in _places(self.written, schema, key, self.file):
                for depth in range(len(place.location) - 1, -1, -1):
                    section = place.location[:depth]
                    entries = (section[: i + 1] for i, part in enumerate(section) if isinstance(part, int))
                    if any(value_at(self.document, entry) is None for entry in entries):
                        continue  # a list that the document does not have
                    changed = put(self.document, section, value_at(self.written, section))
                    if self._says_the_same(changed):
                        self.document = changed
                        break
            return bool(_places(self.document, schema, key, self.file))
        return False

    def _says_the_same(self, document: Mapping[str, Any]) -> bool:
        try:
            return written_out(load(document, folder=self.folder)) == self.written
        except InputError:
            return False

    @cached_property
    def written(self) -> Mapping[str, Any]:
        """The document with everything it refers to."""
        return written_out(self.problem)


def _places(document: Mapping[str, Any], schema: type[Problem], key: str, file: str | None) -> tuple[Place, ...]:
    found = tuple(find(document, schema, key, file))
    if any(p.location[0] in ("formulation", "schema") for p in found):
        raise InputError(Mistake(file, key, key, "a field of the problem itself"))
    return found


def _checked(task: Task, base: _Base, design: Sequence[Point]) -> None:
    """Every point against the schema, and every value by itself against its references.

    A name that does not exist is a mistake; a number that the instance cannot be resolved with (a limit below any
    latency there is) becomes a row with that reason, unless none is better.

    Raises:
        InputError: at most `MOST_MISTAKES` mistakes.
    """
    wrong: dict[str, Mistake] = {}
    refused: dict[str, Mistake] = {}
    hope = False
    seen: set[tuple[str, str]] = set()
    for point in design:
        document = task.varied(point)
        fresh = {(k, repr(v)): v for k, v in point.items() if (k, repr(v)) not in seen}
        seen |= set(fresh)
        into = wrong
        try:
            validate(type(base.problem), document)
            if fresh and len(seen) <= MOST_RESOLVED:
                into = refused if all(isinstance(v, int | float) for v in fresh.values()) else wrong
                load(document, folder=task.folder)
            hope = True
        except InputError as error:
            for m in error.mistakes:
                into.setdefault(str(m), replace(m, file=base.file))
        if len(wrong) >= MOST_MISTAKES:
            break
    if not wrong and not hope:
        wrong = refused
    if wrong:
        raise InputError(list(wrong.values())[:MOST_MISTAKES])


def run_sweep(
    source: Any, vary: Vary, *, method: str, samples: int | None, seed: int, time_limit: float | None, gap: float,
    workers: int | None, scheduler: str | None, folder: Callable[[], Path] | None, resume: bool, pareto: str | None,
    on_row: Progress | None,
) -> Sweep:  # fmt: skip
    """`optmodels.sweep`; `folder` makes the folder once all that is asked for is known to be right."""
    options = checked_options(seed, time_limit, gap)
    base = _Base.of(source)
    given = axes(vary)
    form = registry.get(base.problem.formulation)
    form.method(method)
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise InputError(Mistake(None, "workers", workers, f"a number of processes from 1 to {MOST_WORKERS}"))
    places = base.places([a.key for a in given])
    whole = {k: all(p.whole for p in found) for k, found in places.items()}
    design = points(given, whole, samples, seed)
    locations = {k: tuple(p.location for p in found) for k, found in places.items()}
    identity = resolved_digest(base.document, base.problem, base.folder)
    task = Task(base.document, base.folder, identity, locations, method, options)
    _checked(task, base, design)
    keys = tuple(a.key for a in given)
    if pareto is not None and form.plan is not None:
        refuse_unknown(pareto, keys, form.plan.model_json_schema())
    wish = None if pareto is None else _Wish(pareto, keys)
    where = None if folder is None else folder()
    journal = None if where is None else _opened(where, resume)
    if workers is None:
        workers = max(1, min(os.cpu_count() or 1, len(design) // PER_PROCESS))
    try:
        found = _SweepRun(task, base, design, journal, where, wish).solve(workers, scheduler, on_row)
    finally:
        _kept.clear()
        if journal is not None:
            journal.close()
    done = replace(found, keys=keys, pareto=() if wish is None else wish.aims)
    if where is not None:
        with keeping(done):
            _save(done, where, _vary_texts(vary), options)
    return done


def _vary_texts(vary: Vary) -> list[str]:
    if isinstance(vary, Mapping):
        return [f"{k}{v if isinstance(v, str) and v.startswith('~') else f'={v}'}" for k, v in vary.items()]
    return list(vary)


class _Wish:
    """A frontier asked for; its columns are looked up as soon as the first plan shows what there is."""

    def __init__(self, text: str, keys: Sequence[str]) -> None:
        self.text, self.keys, self.aims = text, keys, tuple[Aim, ...]()
        aim_texts(text)

    def see(self, row: Row) -> None:
        """Look the columns up in a row with a plan.

        Raises:
            InputError: no such column.
        """
        if not self.aims and row["plan"] is not None:
            self.aims = aims(self.text, [*self.keys, "objective", "bound", *row["plan"]])


def _opened(folder: Path, resume: bool) -> Journal:
    path = folder / "journal.jsonl"
    if path.exists() and not resume:
        raise InputError(Mistake(str(folder), "", "a sweep", "a new folder, or --resume to go on with this one"))
    return Journal(path, _is_row)


def _is_row(row: Any) -> bool:
    """Whether an entry of a journal is the result of a solve."""
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(k), kind) for k, kind in _OF_A_ROW.items())
        and all(isinstance(row.get(k, 0), dict | None) for k in ("plan", "check"))
        and all(row.get(k, "") is None or isinstance(row.get(k), int | float) for k in ("objective", "bound", "gap"))
    )


@dataclass
class _SweepRun:
    """The solving itself."""

    task: Task
    base: _Base
    design: list[Point]
    journal: Journal | None
    folder: Path | None
    wish: _Wish | None = None

    def identities(self) -> list[str]:
        """Of every solve: instance, varied values (and the files they name), method, options, version."""
        from importlib.metadata import version

        o = self.task.options
        shared = (self.task.identity, self.task.method, o.seed, o.time_limit, o.gap, version("optmodels"))

        def identity(point: Point) -> str:
            files = [
                hashlib.sha256(p.read_bytes()).hexdigest()
                for v in point.values() if isinstance(v, str) and (p := named_file(v, self.base.folder)) is not None
            ]  # fmt: skip
            return hashlib.sha256(canonical([shared, point, files])).hexdigest()[:32]

        return [identity(p) for p in self.design]

    def solve(self, workers: int, scheduler: str | None, on_row: Progress | None) -> Sweep:
        """Solve the points that the journal lacks."""
        names = self.identities()
        known = {} if self.journal is None else self.journal.rows
        rows = {n: known[n] for n in names if n in known and known[n]["status"] != "error"}
        reused, total = len(rows), len(set(names))
        first = dict(zip(names, self.design, strict=True))
        left = [n for n in first if n not in rows]
        for row in rows.values():
            self._look(row)
        try:
            with pool(min(workers, max(len(left), 1)), scheduler) as started:
                for batch in self._finished(started, {n: first[n] for n in left}):
                    if self.journal is not None:
                        self.journal.add(batch)
                    for name, row in batch:
                        rows[name] = row
                        self._look(row)
                        if on_row is not None:
                            on_row(len(rows), total, row)
        except KeyboardInterrupt:
            raise SweepInterrupted(self.folder, len(rows), total) from None
        return Sweep(
            self.base.shown, self.task, (), tuple(self.design), tuple(rows[n] for n in names),
            folder=self.folder, reused=reused, damaged=0 if self.journal is None else self.journal.damaged,
        )  # fmt: skip

    def _look(self, row: Row) -> None:
        if self.wish is not None:
            self.wish.see(row)

    def _finished(self, started: WorkerPool, left: Mapping[str, Point]) -> Iterator[list[tuple[str, Row]]]:
        for batch in started.run(solve_point, self.task, left, _no_row):
            if any(row.get("limit") == "interrupt" for _, row in batch):  # HiGHS keeps the first Ctrl-C to itself
                raise KeyboardInterrupt
            yield batch


def _save(found: Sweep, folder: Path, vary: list[str], options: Options) -> None:
    """Write the tables, pictures and report.html; each appears whole or not at all."""
    from optmodels.reporting.page import write_page

    write_frame(folder / "sweep.csv", found.frame, overwrite=True)
    write_frame(folder / "sweep.parquet", found.frame, overwrite=True)
    write_frame(folder / "seconds.csv", found.seconds, overwrite=True)
    if found.pareto:
        write_frame(folder / "frontier.csv", found.frontier, overwrite=True)
    document = found.document() | {
        "vary": vary, "seed": options.seed, "time_limit": options.time_limit, "problem": dict(found.task.document),
    }  # fmt: skip
    write_text(
        folder / "sweep.json", json.dumps(finite(document), indent=1, ensure_ascii=False, default=str), overwrite=True
    )
    write_page(finite(document), folder, pictures=True, overwrite=True)


def default_folder(instance: str | PathLike[str], resume: bool, parent: Path = Path("results")) -> Path:
    """The folder of a sweep that was given none: a new ``results/NAME-sweep``, or the latest to go on with.

    Raises:
        InputError: nothing to resume.
    """
    name = safe_name(f"{bare_name(instance)}-sweep")
    if not resume:
        return new_folder(parent, name)
    earlier = [p for p in parent.glob(f"{name}*") if (p / "journal.jsonl").is_file()]
    if not earlier:
        raise InputError(Mistake(str(parent), name, None, "a sweep to go on with: name its folder by --out"))
    return max(earlier, key=lambda p: (p / "journal.jsonl").stat().st_mtime)
