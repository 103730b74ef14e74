"""The parts of a formulation, and how one is found: the entry-point group ``optmodels.formulations``.

A method for somebody else's formulation registers in the group ``optmodels.methods`` as ``FORMULATION.NAME``; it is
listed, solved, compared and checked like the formulation's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module, resources
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from optmodels.errors import InputError, Mistake, Mistakes, SolverError, one_of

if TYPE_CHECKING:
    from optmodels.model import Model
    from optmodels.plans.outcome import CheckReport, Outcome
    from optmodels.solver.compile import Compiled
    from optmodels.solver.highs import Event

GROUP = "optmodels.formulations"
METHODS = "optmodels.methods"


@dataclass(frozen=True)
class Options:
    """How a method may run."""

    seed: int = 0
    time_limit: float | None = None
    gap: float = 0.0
    on_event: Callable[[Event], None] | None = None
    answer_only: bool = False  # leave out shadow prices, reasons and whatever else costs solves next to the answer


def checked_options(
    seed: int = 0, time_limit: float | None = None, gap: float = 0.0, on_event: Callable[[Event], None] | None = None
) -> Options:
    """Options from a user's values.

    Raises:
        InputError: every value out of range.
    """
    wrong = Mistakes()
    if not isinstance(seed, int) or not 0 <= seed < 2**31:
        wrong.add("seed", seed, "a whole number from 0 to 2147483647")
    if time_limit is not None and not time_limit > 0:
        wrong.add("time_limit", time_limit, "seconds > 0")
    if not 0 <= gap < 1:
        wrong.add("gap", gap, "a relative gap ≥ 0 and < 1 (0.01 is 1 %)")
    wrong.raise_any()
    return Options(seed, None if time_limit == math.inf else time_limit, gap, on_event)


class FormulationPart:
    """Something in a formulation's folder, imported or read when it is first used: importing the folder stays light."""

    def __init__(self, folder: str, where: str) -> None:
        self.folder, self.where = folder, where

    def load(self) -> Any:
        """The object ``module:name``, or the text of a file."""
        module, _, name = self.where.partition(":")
        if not name:
            return resources.files(self.folder).joinpath(module).read_text(encoding="utf-8")
        return getattr(import_module(f"{self.folder}.{module}"), name)


# Where a folder has the parts of its formulation, by field; the second list's if it has the file.
STANDARD = {
    "template": "template.yaml", "tables": "points:build_tables",
    "methods": "methods:METHODS", "method_titles": "methods:TITLES",
    "check": "check:check", "report": "show:report", "summary": "show:summary", "frames": "show:frames",
}  # fmt: skip
OPTIONAL = {
    "decision": "decision:decision", "check_files": "check_requests:check_files", "replay": "replay:replay",
    "charts": "charts:charts",
    "deployments": "deploy:deployments", "current": "current:Current", "evaluate": "current:evaluate",
    "start": "current:start",
    "fewest": "fewest:fewest", "replica": "replica:replica", "max_rate": "carried:max_rate",
    "stress": "stress:stress", "replan": "tick.verb:replan", "tick_state": "tick.state:TickState",
    "ticks": "tick.policy:ticks",
    "migrate": "migrate:migrate", "bounded": "certify:bounded", "labels": "labels:labels",
}  # fmt: skip


class Folder:
    """The package of a formulation: its parts for a `Formulation`, and the names it exports."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, where: str) -> Any:
        """A part by ``module:name`` or file name, as a field of a `Formulation`."""
        return FormulationPart(self.name, where)

    def formulation(self, **own: Any) -> Formulation:
        """The formulation of this folder: its own fields, and the parts whose place every folder shares."""
        here = resources.files(self.name)
        there = {
            k: w for k, w in OPTIONAL.items() if here.joinpath(f"{w.partition(':')[0].replace('.', '/')}.py").is_file()
        }
        return Formulation(**{field: self(where) for field, where in (STANDARD | there).items()} | own)

    def exports(self, *where: str) -> Callable[[str], Any]:
        """The package's module-level ``__getattr__``: these parts under their own names."""
        found = {w.partition(":")[2]: FormulationPart(self.name, w) for w in where}

        def exported(name: str) -> Any:
            if name not in found:
                raise AttributeError(f"module {self.name!r} has no attribute {name!r}")
            return found[name].load()

        return exported


class Method(Protocol):
    """One way to find a plan; every heuristic, baseline and exact method has this shape."""

    def __call__(self, problem: Any, tables: Any, options: Options) -> Outcome[Any]:
        """Find a plan."""


@dataclass(frozen=True)
class Bounded:
    """A model that a bound is of.

    Attributes:
        words: name of the model, in words that follow "the linear model"; "": the problem's own.
        problem: whose plans are the model's: its methods and its check judge them.
        tables: its tables.
    """

    words: str
    problem: Any
    tables: Any


@dataclass(frozen=True)
class Formulation:
    """A planning problem as the toolkit sees it; third-party ones are full citizens.

    A field may be a `FormulationPart` of the formulation's folder; reading it imports the part.

    Attributes:
        name: the ``formulation:`` of instance files.
        problem: pydantic schema of the instance file (a `optmodels.problem.Problem`).
        tables: problem → tables.
        model: (problem, tables) → `optmodels.model.Model`, its families stated once; None: `build` and `attach` are
            given in Pyomo.
        build: (problem, tables) → Pyomo ConcreteModel; None: the one of `model`.
        attach: (block, problem, tables): the same on a block of somebody else's model; None: the one of `model`.
        methods: methods by stable name; ``exact`` first.
        leaves_out: problem → methods that have no answer to it, which a comparison runs only where they are
            named;
            None: every method is for every problem.
        objective: plan → value in `unit`.
        certifies: scope of a bound, in words that follow "for": every certificate states it. A plan is no more
            than its model; what happens outside of that (a replay, a bill) the bound does not bound.
        check: (problem, plan as JSON data) → verdict, sharing no code with build.
        report: (tables, plan or None) → JSON data shown next to the plan.
        summary: result document → lines for the terminal (rich markup).
        frames: (tables, plan) → data frames, or mappings of columns of equal length, by file name; written as CSV.
        template: a commented instance file.
        goal: problem → (sense, unit), where they depend on the problem; None: `sense` and `unit`.
        plan: pydantic schema of its plans, by which `check` and the published JSON Schema read them; a field ``name``
            of it is the instance's.
        trusted: parts of a document that its check does not verify: path → reason, as in `plan.outcome.Trusted`.
        cut_short: words by which `log.left_out` names work that the clock cut short (`solver.deadline`) → the parts,
            tables by file name, that its check then does not verify, with the reason.
        solves: words by which `log.left_out` names a solve next to the plan's → the part of the report that it makes,
            and the relative difference between two right ones: of its figures, or, negative, of the plan's objective.
        is_open: (path of such a part, its data) → whether its figures show that the clock stopped its solve.
        labels: (tables, plan) → path, label stated and label that its facts give, of every label in the plan.
        simulated_again: (problem, tables, plan) → the results of the plan's certification, from the same simulation run
            again: its keys, or entries such as ``rounds[0]``, with their values; None: nothing was simulated.
        replay: (problem, plan as JSON data, trace, options) → results of a simulation of the plan on the trace, as a
            JSON-ready report; None: plans of this formulation cannot be replayed.
        deployments: (problem, plan as JSON data) → what to run and buy (`plan.deployment.Deployments`); None: nothing.
        current: pydantic schema of a user's fleet of today, with a field ``instance``; None: it cannot be evaluated.
        evaluate: (problem, current, trace or None, options) → `plan.current.Evaluated`.
        start: problem → possible deployments, as entries of `current`, for a user to change.
        fewest: (problem, attainment, solve) → `plan.fewest.Fewest`; None: GPUs are not counted.
        replica: (problem, workload or None) → the deployment that autoscaling adds and removes
            (`plan.replica.ReplicaOffer`); None: there is none.
        max_rate: (problem, plan as JSON data or None, trace or None, simulate, seed, time_limit) → the largest rate
            within the SLOs, by the model and by simulation, as JSON data; None: engines have no rates.
        stress: (problem, plan as JSON data, demand factors, latency factors, losses, draws, seed, time_limit) → the
            share that the plan serves in each scenario and the cost of a plan for it, as JSON data; None: unknown.
        replan: (problem, state, forecast, ticks, time_limit, method, last) → one tick's orders, stops and loads with
            their reasons, as JSON data; None: nothing follows traffic.
        tick_state: pydantic schema of its state.
        ticks: (problem, workload, replica, history, train_min) → replica types and policies by name that decide as
            `replan` does, for a backtest; None: there are none.
        migrate: (problem, plan that runs, plan to reach) → ordered steps, as JSON data; None: there are none.
        rebind: (tables, changed problem) → the tables of that problem where they differ in nothing that was costly to
            compute, else None; None: tables are always built again.
        curves: (tables, largest relative error) → data frame of the linearised latency curves and their certified
            error, for the verb ``tables``; None: the tables hold points only.
        bounded: (problem, tables, document) → the models that the document's bound is of, as `Bounded`: none has a plan
            that is better; None: the problem's own.
        other: a method that proves by another form of the problem than ``exact``, on tables that nothing was pruned
            from; ``check --prove`` derives bounds again by it. None: there is no other form.
        check_files: (problem, plan as JSON data, folder) → verdict on the tables written next to a plan; None: `check`
            sees all there is.
        charts: result document → charts of the HTML page (`reporting.charts.Chart`); None: it has none.
        decision: (problem, plan, report as JSON data) → the document's `summary` (`reporting.decision.summary`), which
            screen and page show first; None: they begin with `summary`.
    """

    name: str
    title: str
    problem: type[Any]
    sense: Literal["min", "max"]
    unit: str
    tables: Callable[[Any], Any]
    methods: Mapping[str, Method]
    objective: Callable[[Any], float]
    check: Callable[[Any, Mapping[str, Any]], CheckReport]
    report: Callable[[Any, Any], dict[str, Any]]
    summary: Callable[[Mapping[str, Any]], list[Any]]
    frames: Callable[[Any, Any], dict[str, Any]]
    template: str
    certifies: str = "every plan of the stated model"
    model: Callable[[Any, Any], Model] | None = None
    build: Callable[..., Any] | None = None
    attach: Callable[..., None] | None = None
    method_titles: Mapping[str, str] = field(default_factory=dict)
    goal: Callable[[Any], tuple[Literal["min", "max"], str]] | None = None
    plan: type[Any] | None = None
    trusted: Mapping[str, str] = field(default_factory=dict)
    cut_short: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    solves: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    is_open: Callable[[str, Any], bool] | None = None
    labels: Callable[[Any, Any], Iterable[tuple[str, str, str]]] | None = None
    simulated_again: Callable[[Any, Any, Any], Mapping[str, Any] | None] | None = None
    replay: Callable[..., Any] | None = None
    deployments: Callable[[Any, Mapping[str, Any]], Any] | None = None
    current: type[Any] | None = None
    evaluate: Callable[..., Any] | None = None
    start: Callable[[Any], list[dict[str, Any]]] | None = None
    fewest: Callable[..., Any] | None = None
    replica: Callable[..., Any] | None = None
    max_rate: Callable[..., Any] | None = None
    stress: Callable[..., Any] | None = None
    replan: Callable[..., Any] | None = None
    tick_state: type[Any] | None = None
    ticks: Callable[..., Any] | None = None
    migrate: Callable[..., Any] | None = None
    charts: Callable[[Mapping[str, Any]], list[Any]] | None = None
    decision: Callable[[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]], dict[str, Any]] | None = None
    rebind: Callable[[Any, Any], Any] | None = None
    check_files: Callable[[Any, Mapping[str, Any], Path], CheckReport] | None = None
    curves: Callable[[Any, float], tuple[Any, float]] | None = None
    bounded: Callable[[Any, Any, Mapping[str, Any]], Sequence[Bounded]] | None = None
    other: Method | None = None
    leaves_out: Callable[[Any], Collection[str]] | None = None

    def __getattribute__(self, name: str) -> Any:
        """The field; a part is imported now and kept."""
        value = object.__getattribute__(self, name)
        if isinstance(value, FormulationPart):
            value = value.load()
            object.__setattr__(self, name, value)
        return value

    def __post_init__(self) -> None:
        """The Pyomo forms of a model that is stated once."""
        if self.__dict__["model"] is not None:
            if self.__dict__["build"] is None:
                object.__setattr__(self, "build", self._pyomo)
            if self.__dict__["attach"] is None:
                object.__setattr__(self, "attach", self._attach)

    def _pyomo(self, problem: Any, tables: Any) -> Any:
        assert self.model is not None
        return self.model(problem, tables).pyomo()

    def _attach(self, block: Any, problem: Any, tables: Any) -> None:
        assert self.model is not None
        self.model(problem, tables).attach(block)

    def compiled(self, problem: Any, tables: Any) -> tuple[Compiled, dict[str, str]]:
        """The model as arrays, and the inequality of each family, by name.

        Raises:
            SolverError: there is no model to compile.
        """
        from optmodels.solver.compile import compile_model, said

        if self.model is not None:
            stated = self.model(problem, tables)
            return stated.compiled(), {name: (f.__doc__ or "").strip() for name, f in stated.families.items()}
        if self.build is None:
            raise SolverError(f"the formulation {self.name} states no model")
        made = self.build(problem, tables)
        return compile_model(made), said(made)

    def goal_of(self, problem: Any) -> tuple[Literal["min", "max"], str]:
        """Sense and unit of the objective of one problem."""
        return (self.sense, self.unit) if self.goal is None else self.goal(problem)

    def methods_for(self, problem: Any) -> list[str]:
        """The methods that a comparison on this problem runs, by name."""
        without = () if self.leaves_out is None else self.leaves_out(problem)
        return [name for name in self.methods if name not in without]

    def method(self, name: str) -> Method:
        """A method by name.

        Raises:
            InputError: unknown name.
        """
        one_of("method", name, self.methods)
        return self.methods[name]


@cache
def _registered() -> dict[str, Any]:
    return {e.name: e for e in entry_points(group=GROUP)}


@cache
def _added_methods() -> tuple[Any, ...]:
    return tuple(sorted(entry_points(group=METHODS), key=lambda e: e.name))


def register(formulation: Formulation) -> None:
    """Make a formulation known to this process, as installing its package makes it known to every one."""
    _registered()[formulation.name] = _Given(formulation)
    get.cache_clear()


@dataclass(frozen=True)
class _Given:
    """What `register` was given, in place of an entry point."""

    formulation: Formulation

    def load(self) -> Formulation:
        return self.formulation


def _not_installed(name: str) -> str | None:
    """The folder in or around here whose package would bring a formulation, had it been installed."""
    import tomllib

    for folder in (name, ".") if name.isidentifier() else ():
        try:
            project = tomllib.loads((Path(folder) / "pyproject.toml").read_text(encoding="utf-8"))
            if name in project["project"]["entry-points"][GROUP]:
                return folder
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def names() -> list[str]:
    """Registered formulations."""
    return sorted(_registered())


@cache
def get(name: str) -> Formulation:
    """A formulation by name.

    Raises:
        InputError: unknown name.
    """
    found = _registered()
    if name not in found and (folder := _not_installed(str(name))) is not None:
        expected = f"the name of an installed formulation: pip install -e {folder}"
        raise InputError(Mistake(None, "formulation", name, expected))
    one_of("formulation", name, sorted(found))
    loaded: Formulation = found[name].load()
    added = {e.name.removeprefix(f"{name}."): e.load() for e in _added_methods() if e.name.startswith(f"{name}.")}
    titles = {k: (method.__doc__ or "").partition("\n")[0] for k, method in added.items()}
    if not added:
        return loaded
    methods = {**loaded.methods, **{k: v for k, v in added.items() if k not in loaded.methods}}  # nobody's is replaced
    return replace(loaded, methods=methods, method_titles={**titles, **loaded.method_titles})
