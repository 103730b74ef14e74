"""The adversary: random small instances, each answered by the product and by an independent reference.

A module ``tests/adversary/<formulation>.py`` (named as its formulation is) offers

* ``generate(rng) -> dict``: an instance as JSON data. Texts of files that lie beside it stand under the key ``FILES``
  (name → text), what kind of instance it is under ``notes``.
* ``reference(data) -> Answer``: the right answer to it, from the mathematics alone: it imports nothing of a
  formulation, and raises `UnsettledError` where it cannot tell.
* ``LEFT_OUT``: entries of the schema (see `coverage`) that no instance has, each with the reason.
* ``METHODS`` (optional): the methods that are judged beside ``exact``; default: all.

`judge` compares the two, `minimise` makes a failing instance small, `run` does both for many seeds in child processes,
so that a crash or a hang is a finding and not the end.
"""

from __future__ import annotations

import csv
import json
import math
import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
import yaml
from pydantic import BaseModel

import optmodels
from optmodels import formulation
from optmodels.errors import InputError, UnattainableError
from optmodels.limits import SECONDS_USUAL
from optmodels.plans.outcome import Result

FORMULATIONS = ("cost_efficiency", "fleet", "orchestration", "reserved_capacity")
FILES = "_files"
TIME_LIMIT_S = 20.0  # of every method; an instance is small enough to be proved in a fraction of it
KILL_S = 180.0  # of an instance with all its methods, after which its process is ended
DOCUMENTS = ("EngineModel", "LatencyModel")  # files of their own, whose predictions tests/latency judges

Instance = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What the mathematics says of an instance.

    Limits are met or not by a hair's breadth here and there; then `best` and `worst` differ.

    Attributes:
        best: the optimum where every limit is read generously; None: infeasible even so.
        worst: the optimum where every limit is read strictly; None: infeasible.
        sense: of the objective.
        relative: an objective may differ by this share of its value …
        absolute: … or by this amount, in the objective's unit.
        figures: further figures of the exact plan by path in it (``periods.0.usd_per_hour``), where they are unique.
    """

    best: float | None
    worst: float | None
    sense: Literal["min", "max"] = "min"
    relative: float = 1e-6
    absolute: float = 1e-9
    figures: dict[str, float] = field(default_factory=dict)

    @classmethod
    def optimal(cls, objective: float, sense: Literal["min", "max"] = "min", **more: Any) -> Answer:
        """An optimum without doubt."""
        return cls(objective, objective, sense, **more)

    @classmethod
    def infeasible(cls, sense: Literal["min", "max"] = "min") -> Answer:
        """No plan, without doubt."""
        return cls(None, None, sense)

    def slack(self, value: float) -> float:
        """How much an objective near `value` may differ."""
        return self.absolute + self.relative * abs(value)

    def better(self, a: float, b: float) -> bool:
        """Whether objective `a` is better than `b` by more than the tolerance."""
        return (b - a if self.sense == "min" else a - b) > self.slack(b)


class UnsettledError(Exception):
    """A reference cannot tell within its own limits."""


@dataclass(frozen=True)
class Verdict:
    """What came of one instance; a line of the log.

    Attributes:
        outcome: ``same``, ``differs``, ``unsettled`` (a limit stopped the product or the reference: no pass) or
            ``refused`` (the product called the instance wrong).
        kind: one word for the way it differs; an instance is made smaller as long as that stays.
        status: of the product's exact method.
        objective: of the product.
        reference: of the reference, its generous reading.
        about: the instance's notes.
    """

    outcome: Literal["same", "differs", "unsettled", "refused"]
    kind: str = ""
    detail: str = ""
    status: str = ""
    objective: float | None = None
    reference: float | None = None
    about: str = ""


def module(name: str) -> ModuleType:
    """The adversary of a formulation."""
    return import_module(f"{__package__}.{name}")


def instance(name: str, seed: int, of: int = 1) -> Instance:
    """The instance of a seed, as it is after a round trip through JSON; of several, the one that says most.

    What a generator draws seldom it hardly ever draws together: the richest of thirty has it.
    """
    seeds: list[Any] = [seed] if of == 1 else [[seed, k] for k in range(of)]
    made: list[Instance] = [json.loads(json.dumps(module(name).generate(np.random.default_rng(s)))) for s in seeds]
    return made[0] if of == 1 else max(made, key=lambda data: len(_given(name, data)))


def _given(name: str, data: Instance) -> set[str]:
    """The entries of the schema that an instance states."""
    return given_entries(formulation.get(name).problem.model_validate({k: v for k, v in data.items() if k != FILES}))


def judge(
    name: str, data: Instance, every_method: bool = True, turn: Callable[[str], object] = lambda whose: None
) -> Verdict:
    """The product's answer to an instance, by ``exact`` and by every method, against the reference's.

    `turn` is told "product" or "reference", whenever the other one begins.
    """
    judging = module(name)
    methods = getattr(judging, "METHODS", formulation.get(name).methods) if every_method else ()
    about = str(data.get("notes", ""))
    with tempfile.TemporaryDirectory() as folder:
        file = written(data, Path(folder))
        try:
            exact = optmodels.solve(file, time_limit=TIME_LIMIT_S)
        except UnattainableError:
            exact = None
        except InputError as error:
            return Verdict("refused", detail=str(error).replace(str(file), "instance")[:300], about=about)
        except Exception as error:
            return Verdict("differs", f"raises-{type(error).__name__}", str(error)[:300], about=about)
        turn("reference")
        try:
            answer: Answer = judging.reference(data)
        except UnsettledError as error:
            return Verdict("unsettled", "reference", str(error), about=about)
        turn("product")
        status = "infeasible" if exact is None else exact.status
        objective = None if exact is None else exact.objective
        seen = {"status": status, "objective": objective, "reference": answer.best, "about": about}
        if (wrong := _wrong(exact, answer)) is not None:
            return Verdict("differs", *wrong, **seen)
        settled = status in ("optimal", "infeasible")
        for method in () if exact is None else methods:
            if method == "exact":
                continue
            try:
                other = optmodels.solve(file, method, time_limit=TIME_LIMIT_S)
            except InputError:
                continue  # a method may refuse what it does not know
            except Exception as error:
                return Verdict("differs", f"{method}-raises-{type(error).__name__}", str(error)[:300], **seen)
            if (wrong := _wrong(other, answer)) is not None:
                return Verdict("differs", f"{method}-{wrong[0]}", wrong[1], **seen)
            theirs = other.objective
            if theirs is not None and not settled and (objective is None or answer.better(theirs, objective)):
                return Verdict("differs", f"{method}-beats-exact", f"{theirs!r} {objective!r}", **seen)
    if not settled:
        return Verdict("unsettled", status, "", **seen)
    return Verdict("same", **seen)


def _in_seconds(data: Any, limit: bool = False) -> Any:
    """The same with the unit of long latency limits, which bare numbers would be asked about."""
    if isinstance(data, dict):
        return {k: _in_seconds(v, k in LATENCIES or (limit and k == "at_most")) for k, v in data.items()}
    if isinstance(data, list):
        return [_in_seconds(v) for v in data]
    return f"{data!r} s" if limit and isinstance(data, int | float) and data > min(SECONDS_USUAL.values()) else data


LATENCIES = ("ttft_s", "tpot_s", "tbt_s", "deadline_s")


def written(data: Instance, folder: Path) -> Path:
    """The instance as a JSON file in a folder, with the files that lie beside it."""
    for name, text in data.get(FILES, {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    file = folder / "instance.json"
    file.write_text(json.dumps(_in_seconds({k: v for k, v in data.items() if k != FILES})), encoding="utf-8")
    return file


def _wrong(result: Result | None, answer: Answer) -> tuple[str, str] | None:
    """What contradicts the reference in one method's answer (None: proved infeasible before any method ran)."""
    if result is None or result.status == "infeasible":
        return None if answer.worst is None else ("false-infeasible", f"reference {answer.worst!r}")
    found, bound = result.objective, result.bound
    if result.status in ("error", "unbounded"):
        return result.status, json.dumps(result.log)[:300]
    if result.plan is not None and (result.check is None or not result.check.ok):
        return "check-fails", "" if result.check is None else str(result.check.violations[:1])
    if found is not None:
        if answer.best is None:
            return "feasible-where-nothing-is", f"{found!r}"
        if answer.better(found, answer.best):
            return "better-than-reference", f"{found!r} reference {answer.best!r}"
    if result.status == "optimal":
        assert found is not None
        if answer.worst is not None and answer.better(answer.worst, found):
            return "false-optimal", f"{found!r} reference {answer.worst!r}"
        if result.method == "exact":
            for path, expected in answer.figures.items():
                if abs(_at(result.plan, path) - expected) > answer.slack(expected):
                    return f"figure-{path}", f"{_at(result.plan, path)!r} reference {expected!r}"
    if bound is not None and answer.worst is not None and not math.isinf(bound) and answer.better(answer.worst, bound):
        return "false-bound", f"{bound!r} reference {answer.worst!r}"
    return None


def _at(plan: Any, path: str) -> float:
    for part in path.split("."):
        plan = plan[int(part) if part.isdigit() else part]
    return float(plan)


def minimise(data: Instance, fails: Callable[[Instance], bool], seconds: float = 120.0) -> Instance:
    """A smaller instance that still fails: entries dropped, keys left to their defaults, numbers rounded."""
    ends = time.monotonic() + seconds
    smaller = True
    while smaller and time.monotonic() < ends:
        smaller = False
        for candidate in _smaller(data):
            if time.monotonic() > ends:
                break
            if fails(candidate):
                data, smaller = candidate, True
                break
    return data


def _smaller(data: Any) -> Iterator[Any]:
    """Every instance one step smaller, the largest steps first."""
    if isinstance(data, dict):
        for key in data:
            if key not in ("formulation", "schema"):
                yield {k: v for k, v in data.items() if k != key}
        for key, value in data.items():
            if key not in ("formulation", "schema", "notes"):
                for part in _smaller(value):
                    yield {**data, key: part}
    elif isinstance(data, list):
        half = len(data) // 2
        if half > 1:
            yield data[:half]
            yield data[half:]
        for i in range(len(data)):
            yield data[:i] + data[i + 1 :]
        for i, value in enumerate(data):
            for part in _smaller(value):
                yield [*data[:i], part, *data[i + 1 :]]
    elif isinstance(data, float):
        for digits in (1, 2, 3):
            rounded = float(f"{data:.{digits}g}")
            if rounded != data:
                yield rounded
    elif isinstance(data, int) and not isinstance(data, bool) and data > 2:
        yield data // 2
        yield data - 1


# Many seeds, in child processes -------------------------------------------------------------------------------------


@dataclass
class _Child:
    """A process that judges one instance at a time."""

    process: Any = None
    pipe: Connection | None = None
    seed: int = -1
    since: float = 0.0
    turn: str = "product"  # whose answer is awaited

    def start(self, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, name), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, name: str, seed: int, data: Instance, every_method: bool = True) -> None:
        if self.process is None or not self.process.is_alive():
            self.start(name)
        assert self.pipe is not None
        self.seed, self.since, self.turn = seed, time.monotonic(), "product"
        self.pipe.send((data, every_method))

    def answer(self) -> Verdict | None:
        """What it found, or that it died or took too long; None: not yet."""
        assert self.pipe is not None
        try:
            while self.pipe.poll():
                found: Verdict | str = self.pipe.recv()
                if isinstance(found, Verdict):
                    return found
                self.turn = found
        except EOFError:
            self.end()
            return Verdict("differs", "process-dies")
        if time.monotonic() - self.since > KILL_S:
            self.end()
            late = f"no answer after {KILL_S:g} s"
            return (
                Verdict("differs", "hangs", late) if self.turn == "product" else Verdict("unsettled", self.turn, late)
            )
        return None

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


def _serve(pipe: Connection, name: str) -> None:
    while True:
        try:
            data, every_method = pipe.recv()
        except EOFError:
            return
        try:
            found = judge(name, data, every_method, pipe.send)
        except Exception as error:  # of the reference: a finding too
            found = Verdict("differs", f"judging-raises-{type(error).__name__}", traceback.format_exc()[-600:])
        pipe.send(found)


LOG = ("seed", *(f.name for f in fields(Verdict)), "seconds")


def run(
    name: str, seeds: Iterable[int], log: Path, jobs: int = 1, minimise_s: float = 120.0,
    say: Callable[[str], object] = print, others: int = 1, richest: int = 1,
) -> dict[str, int]:  # fmt: skip
    """Judge every seed that the log does not have yet; failing instances are written beside it, as found and small.

    Args:
        name: of the formulation.
        seeds: of the instances.
        log: a CSV file of `LOG`, added to.
        jobs: processes.
        minimise_s: seconds to spend on making one failing instance small; 0: leave it.
        say: called with a line for everything that is not the same.
        others: the methods beside ``exact`` are judged on every seed that this number divides.
        richest: of so many instances of a seed the one that says most.

    Returns:
        How many instances the log has by outcome, for these seeds.
    """
    wanted = list(seeds)
    known = set() if not log.exists() else {int(row["seed"]) for row in _rows(log)}
    todo = iter([s for s in wanted if s not in known])
    log.parent.mkdir(parents=True, exist_ok=True)
    children = [_Child() for _ in range(jobs)]
    try:
        with log.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, LOG)
            if not known:
                writer.writeheader()
            busy: list[_Child] = []
            free = list(children)
            while True:
                while free and (seed := next(todo, None)) is not None:
                    child = free.pop()
                    child.give(name, seed, instance(name, seed, richest), seed % others == 0)
                    busy.append(child)
                if not busy:
                    break
                wait([c.pipe for c in busy if c.pipe is not None], timeout=1.0)
                for child in list(busy):
                    verdict = child.answer()
                    if verdict is None:
                        continue
                    busy.remove(child)
                    free.append(child)
                    row = {"seed": child.seed, **asdict(verdict), "seconds": f"{time.monotonic() - child.since:.2f}"}
                    writer.writerow(row)
                    stream.flush()
                    if verdict.outcome != "same":
                        say(f"{name} {child.seed}: {verdict.outcome} {verdict.kind} {verdict.detail}")
                    if verdict.outcome == "differs":
                        _keep(name, child, instance(name, child.seed, richest), verdict, log, minimise_s)
    finally:
        for child in children:
            child.end()
    counts: dict[str, int] = {}
    for row in _rows(log):
        if int(row["seed"]) in set(wanted):
            counts[row["outcome"]] = counts.get(row["outcome"], 0) + 1
    return counts


def _rows(log: Path) -> list[dict[str, str]]:
    with log.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def _keep(name: str, child: _Child, data: Instance, verdict: Verdict, log: Path, minimise_s: float) -> None:
    """Write a failing instance beside the log, and a smaller one that fails in the same way."""
    stem = log.with_suffix("")
    save(data, Path(f"{stem}-{child.seed}.yaml"))

    def fails(candidate: Instance) -> bool:
        child.give(name, child.seed, candidate)
        while (found := child.answer()) is None:
            wait([child.pipe] if child.pipe is not None else [], timeout=1.0)
        return found.outcome == "differs" and found.kind == verdict.kind

    if minimise_s:
        save(minimise(data, fails, minimise_s), Path(f"{stem}-{child.seed}-small.yaml"))


def save(data: Instance, file: Path) -> None:
    """An instance as YAML; the files that lie beside it as files."""
    for beside, text in data.get(FILES, {}).items():
        file.with_name(beside).write_text(text, encoding="utf-8")
    text = yaml.safe_dump({k: v for k, v in data.items() if k != FILES}, sort_keys=False, allow_unicode=True)
    file.write_text(text, encoding="utf-8")


# What of the schema the instances have ------------------------------------------------------------------------------


def schema_entries(model: type[BaseModel]) -> set[str]:
    """Everything an instance can say: ``Model.field``, and ``Model.field=choice`` for choices and kinds of value."""
    found: set[str] = set()
    seen: set[type[BaseModel]] = set()

    def walk(part: type[BaseModel]) -> None:
        if part in seen or part.__name__ in DOCUMENTS:
            return
        seen.add(part)
        for name, info in part.model_fields.items():
            found.add(f"{part.__name__}.{name}")
            for choice in _choices(info.annotation):
                found.add(f"{part.__name__}.{name}={choice}")
            for nested in _models(info.annotation):
                walk(nested)

    walk(model)
    return found


def given_entries(value: Any) -> set[str]:
    """The entries that a validated instance has, stated and not by default."""
    found: set[str] = set()
    if isinstance(value, BaseModel):
        kind = type(value)
        for name in value.model_fields_set:
            given, annotation = getattr(value, name), kind.model_fields[name].annotation
            found.add(f"{kind.__name__}.{name}")
            found |= {f"{kind.__name__}.{name}={c}" for c in _choices(annotation) if _is(given, c)}
            found |= given_entries(given)
    elif isinstance(value, Mapping):
        for nested in value.values():
            found |= given_entries(nested)
    elif isinstance(value, tuple | list):
        for nested in value:
            found |= given_entries(nested)
    return found


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The annotation's alternatives; of a container, those of its items too."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _parts(get_args(annotation)[0])
    if origin in (Union, UnionType, tuple, list, dict, Mapping):
        return tuple(p for a in get_args(annotation) if a not in (..., type(None)) for p in _parts(a))
    return (annotation,)


def _choices(annotation: Any) -> set[str]:
    """Values of a Literal or bool, and the kinds of a union of several."""
    found: set[str] = set()
    for part in _parts(annotation):
        if get_origin(part) is Literal:
            found |= {str(v) for v in get_args(part)}
        elif part is bool:
            found |= {"True", "False"}
    kinds = {_kind(p) for p in _parts(annotation) if get_origin(p) is not Literal}
    return found | (kinds if len(kinds) > 1 else set())


def _kind(part: Any) -> str:
    return str(getattr(part, "__name__", part))


def _is(given: Any, choice: str) -> bool:
    """Whether a value, or an item of it, is the choice or of that kind."""
    if isinstance(given, Mapping):
        return any(_is(k, choice) or _is(v, choice) for k, v in given.items())
    if isinstance(given, tuple | list):
        return any(_is(g, choice) for g in given)
    return str(given) == choice or type(given).__name__ == choice


def _models(annotation: Any) -> list[type[BaseModel]]:
    return [p for p in _parts(annotation) if isinstance(p, type) and issubclass(p, BaseModel)]


COVERING = Path(__file__).with_name("covering.json")  # by formulation seeds whose instances say everything


def coverage(name: str) -> tuple[set[str], set[str]]:
    """Everything that the schema lets one say, and what the instances of `COVERING` say of it."""
    given = set[str]()
    for seed in json.loads(COVERING.read_text(encoding="utf-8"))[name]:
        given |= _given(name, instance(name, seed))
    return schema_entries(formulation.get(name).problem), given


def cover(name: str, seeds: Iterable[int]) -> list[str]:
    """Write into `COVERING` few seeds that say all that these say, the quickest first; return what they leave out."""
    wanted = schema_entries(formulation.get(name).problem) - set(module(name).LEFT_OUT)
    given, seconds = dict[int, set[str]](), dict[int, float]()
    for seed in seeds:
        since = time.process_time()
        given[seed] = _given(name, instance(name, seed)) & wanted
        seconds[seed] = time.process_time() - since
    all_of = set[str]().union(*given.values())
    left, few = set(all_of), list[int]()
    while left:
        few.append(max(given, key=lambda seed: len(given[seed] & left) / (0.02 + seconds[seed])))
        left -= given[few[-1]]
    known = json.loads(COVERING.read_text(encoding="utf-8")) if COVERING.exists() else {}
    lines = [f'  "{of}": {few_of}' for of, few_of in sorted({**known, name: sorted(few)}.items())]
    COVERING.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return sorted(wanted - all_of)
