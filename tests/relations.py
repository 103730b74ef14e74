"""``python -m tests.relations fleet --count 500 --seed 0``: what a looser instance must not lose, on random ones.

Of a random instance of the adversary, within whose limits there may or may not be a plan, one thing is made looser: a
limit (any that the schema marks) is loosened or dropped, every price is multiplied by a number below one, or a machine
that could not be bought can be. What had a plan still has one, and the optimum is no worse. With ``--rewritten``: every
relation of `tests.rewritings` and a lower percentile of a limit. With ``--answers``: of each instance, every method,
bound, time limit and way to hand it over against its optimum.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import optmodels
from optmodels import formulation, load
from optmodels.errors import InputError, UnattainableError
from optmodels.formulation import Formulation
from optmodels.plans.outcome import Result
from optmodels.study.explanation.oracle import DROPPED, Answer, Budget, InstanceOracle, Settings
from optmodels.study.explanation.thresholds import loosened
from tests.adversary import harness
from tests.adversary.harness import FILES, Instance
from tests.rewritings import degenerate, newest_spelling, relaxed, rewritten

FORMULATIONS = harness.FORMULATIONS
SAME = 2e-6  # relative
SECONDS = 20.0  # of a pair
FACTORS = (0.02, 0.1, 0.35, 0.6, 1.0, 3.0)  # by which a limit is loosened


@dataclass(frozen=True)
class Pair:
    """Settings of an instance, of which the second allow all that the first do.

    `problem`: the instance, from whose limits follows what machines serve; for prices, written out. `rewritten`: the
    looser one, where settings do not make it. `same`: neither is looser, and its optimum is `times` that of the first.
    """

    what: str
    tight: Settings
    loose: Settings
    problem: Any
    rewritten: Any = None
    same: bool = False
    times: float = 1.0


def pairs(oracle: InstanceOracle, rng: np.random.Generator, continuous: bool) -> Iterator[Pair]:
    """Of limits, of prices and of machines, in random order."""
    priced, offers = oracle.priced()
    assert isinstance(priced, InstanceOracle)
    plain, written = oracle.problem, priced.problem
    found: list[Pair] = []
    for limit in oracle.limits():
        if limit.marker.rated:  # what is asked for is what is paid for
            continue
        value: Any = DROPPED
        if limit.number and rng.random() < 0.8:
            value = loosened(limit, float(rng.choice(FACTORS)))
            value = DROPPED if limit.gone(value) else value
        if value != limit.value:
            found.append(Pair(f"{limit.words()} → {value}", {}, {limit: value}, plain))
    if offers:
        factor = float(rng.uniform(0.3, 1.0))
        found.append(Pair(f"prices × {factor:.3f}", {}, {o: o.value * factor for o in offers}, written))
        one = offers[rng.integers(len(offers))]
        of = [o for o in offers if o.machine == one.machine]
        if len(of) < len(offers):
            found.append(Pair(f"also {one.machine}", dict.fromkeys(of, DROPPED), {}, written))
    latencies = [p for p in found if any(x in p.what for x in ("TTFT", "TPOT", "ITL", "time of a request"))]
    if continuous and latencies and rng.random() < 0.5:
        found = latencies
    yield from (found[i] for i in rng.permutation(len(found)))


def answered(oracle: InstanceOracle, problem: Any, settings: Settings) -> Answer | None:
    """The exact method's answer; None: not proved in time."""
    oracle.problem, oracle._tables = problem, None
    oracle.budget = Budget(SECONDS, 4)
    answer = oracle.solve(settings, 0.0)
    return None if answer.feasible is None or (answer.feasible and not answer.optimal) else answer


def judge(oracle: InstanceOracle, pair: Pair, known: Answer | None = None) -> tuple[str, str]:
    """The outcome, and what the looser instance loses.

    ``kept``: nothing; ``nothing to lose``: the tighter one has no plan; ``unsettled``: one of the two is not proved.
    `known`: the answer of the tighter one.
    """
    tight = known or answered(oracle, pair.problem, pair.tight)
    loose = None if tight is None else answered(oracle, pair.rewritten or pair.problem, pair.loose)
    if tight is None or loose is None:
        return "unsettled", ""
    if not tight.feasible and not (pair.same and loose.feasible):
        return "nothing to lose", ""
    if not tight.feasible or not loose.feasible:
        one, other = (tight, loose) if tight.feasible else (loose, tight)
        return "lost", f"has a plan of {one.objective!r}, and none when changed: {other.reason}"
    assert tight.objective is not None and loose.objective is not None
    expected = tight.objective * pair.times
    worse = -oracle.better(loose.objective, expected)
    if (abs(worse) if pair.same else worse) > SAME * max(abs(expected), 1e-9):
        return "lost", f"{expected!r} becomes {loose.objective!r}"
    return "kept", ""


def lower_percentile(data: Instance, rng: np.random.Generator) -> Instance | None:
    """The instance with a lower percentile of one limit."""
    other = copy.deepcopy(data)
    if not (found := list(percentiles(other, ""))):
        return None
    limit = found[rng.integers(len(found))][1]
    limit["percentile"] *= float(rng.uniform(min(0.5 / limit["percentile"], 0.9), 1.0))
    return other


def percentiles(data: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Limits that a share of the requests meets, and where they are."""
    if isinstance(data, dict) and {"at_most", "percentile"} <= data.keys():
        yield path, data
    elif isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from percentiles(value, f"{path}.{key}")


def with_pauses(data: dict[str, Any], rng: np.random.Generator) -> None:
    """Limit the time between tokens of some requests on engines."""
    if data.get("serving") != "continuous":
        return
    slos = {
        "fleet": lambda: [w.setdefault("slo", {}) for w in data["workloads"]],
        "reserved_capacity": lambda: [s["slo"] for s in data["services"] if s.get("workload")],
        "cost_efficiency": lambda: [data["slo"]] if data["slo"].get("kind") == "real_time" else [],
    }
    for slo in slos.get(data["formulation"], list)():
        if isinstance(slo, dict) and rng.random() < 0.5:
            at_most, percentile = float(10 ** rng.uniform(-2.3, -0.3)), float(rng.choice([0.5, 0.9, 0.95]))
            slo["itl_s"] = {"at_most": at_most, "percentile": percentile}


def instances(name: str, seed: int, engines: bool) -> Iterator[tuple[int, Instance]]:
    """Random ones from a seed on, with limits on ITL here and there; `engines`: with continuous batching alone."""
    for at in itertools.count(seed):
        data = harness.instance(name, at)
        with_pauses(data, np.random.default_rng([at, 8]))
        if not engines or data.get("serving") == "continuous" or "engine" in data:
            yield at, data


def loaded(data: Instance, folder: Path) -> Any:
    """The problem of an instance, written into a folder of its own."""
    folder.mkdir(exist_ok=True)
    return load(harness.written(data, folder), limits_may_fail=True)


def run(name: str, count: int, seed: int, each: int = 2, engines: bool = False) -> tuple[Counter[str], list[str]]:
    """So many pairs with something to lose, `each` an instance: how many of each outcome, and what was lost."""
    form, seen, lost = formulation.get(name), Counter[str](), list[str]()
    for at, data in instances(name, seed, engines):
        if seen["kept"] + seen["lost"] >= count:
            break
        rng = np.random.default_rng([at, 7])
        with tempfile.TemporaryDirectory() as folder:
            try:
                oracle = InstanceOracle(form, loaded(data, Path(folder)), Budget(SECONDS, 4))
                some = list(pairs(oracle, rng, data.get("serving") == "continuous" or "engine" in data))[:each]
            except InputError:
                seen["refused"] += 1
                continue
            for pair in some:
                outcome, found = judge(oracle, pair)
                seen[outcome] += 1
                if found:
                    lost.append(f"{name} seed {at}, {pair.what}: {found}")
    return seen, lost


def with_plan(form: Formulation, data: Instance) -> Instance:
    """The instance, or with wide limits where it has no plan."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            oracle = InstanceOracle(form, loaded(data, Path(folder)), Budget(SECONDS, 4))
            found = answered(oracle, oracle.problem, {})
        except InputError:
            return data
    return relaxed(data) if found is not None and not found.feasible else data


def seldom(name: str, count: int, seed: int, engines: bool) -> Iterator[tuple[int, Instance]]:
    """`instances`, so many, some of them degenerate."""
    for at, drawn in itertools.islice(instances(name, seed, engines), count):
        data = newest_spelling(drawn)
        degenerate(data, np.random.default_rng([at, 11]))
        yield at, with_plan(formulation.get(name), data)


def run_rewritten(
    name: str, count: int, seed: int, engines: bool = False, only: str = "", heard: Callable[[str], object] = len
) -> tuple[dict[str, Counter[str]], list[str]]:
    """Every relation of `tests.rewritings` that applies, on so many instances: outcomes by relation, and lost pairs.

    `only`: relations whose name has this in it. `heard` is told of each lost pair at once.
    """
    form, seen, lost = formulation.get(name), dict[str, Counter[str]](), list[str]()
    for at, data in seldom(name, count, seed, engines):
        rng = np.random.default_rng([at, 9])
        other = [(r.name, x, r.same, times) for r, x, times in rewritten(data, rng) if only in r.name]
        if (lower := lower_percentile(data, rng)) is not None and only in "lower percentile":
            other.append(("lower percentile", lower, False, 1.0))
        with tempfile.TemporaryDirectory() as folder:
            try:
                plain = loaded(data, Path(folder) / "plain")
                oracle = InstanceOracle(form, plain, Budget(SECONDS, 4))
                known = answered(oracle, plain, {}) if other else None
            except InputError:
                continue
            for what, changed, same, times in other if known is not None else ():
                counter = seen.setdefault(what, Counter())
                try:
                    pair = Pair(what, {}, {}, plain, loaded(changed, Path(folder) / what), same, times)
                except InputError as error:
                    counter["refused"] += 1
                    heard(f"{name} seed {at}, {what}: refused: {error}"[:300].replace("\n", " "))
                    continue
                outcome, found = judge(oracle, pair, known)
                counter[outcome] += 1
                if found:
                    lost.append(f"{name} seed {at}, {what}: {found}")
                    heard(lost[-1])
    return seen, lost


def answers(data: Instance, folder: Path) -> Iterator[tuple[str, str]]:
    """Ways to ask for the optimum of an instance, and how each contradicts the exact answer, "" if it does not.

    No plan is better than the optimum, and no bound worse. What is called optimal is the optimum, and infeasible is
    what has no plan, by every method and at any time limit, from a file, a mapping or the problem that a result has.
    """
    file = harness.written(data, folder)
    form, exact = formulation.get(data["formulation"]), asked(file)
    if exact.status not in ("optimal", "infeasible"):
        return
    yield "exact", contradiction(exact, exact)
    yield "another seed", contradiction(exact, asked(file, seed=7), same=True)
    yield "gap 0.2", contradiction(exact, asked(file, gap=0.2), gap=0.2)
    if FILES not in data:
        yield "mapping", contradiction(exact, asked(json.loads(file.read_text(encoding="utf-8"))), same=True)
    if exact.problem:
        yield "problem of the result", contradiction(exact, asked(exact.problem), same=True)
    for seconds in (0.05, 0.3):
        yield f"time limit {seconds} s", contradiction(exact, asked(file, time_limit=seconds))
    for method in (m for m in form.methods if m != "exact"):
        try:
            yield method, contradiction(exact, asked(file, method))
        except InputError:
            continue  # a method may refuse what it does not know


def asked(problem: Any, method: str = "exact", time_limit: float = SECONDS, **more: Any) -> Result:
    """The result; one without a plan where a limit is unattainable."""
    try:
        return optmodels.solve(problem, method, time_limit=time_limit, **more)
    except UnattainableError:
        return Result(instance="", formulation="", method=method, status="infeasible", sense="min", unit="")


def contradiction(exact: Result, other: Result, same: bool = False, gap: float = 0.0) -> str:
    """How an answer contradicts a proved one; `same`: it has to be proved as well; `gap`: as it was asked for."""
    best, worst, found = exact.objective, exact.bound, other.objective
    if other.plan is not None and not (other.check and other.check.ok):
        return f"fails its check: {other.check and other.check.violations[:1]}"
    if other.status == "error" or (same and other.status != exact.status):
        return f"is {other.status}, not {exact.status}: {other.log.get('reason', '')}"
    if exact.status == "infeasible" or best is None or worst is None:
        return "" if found is None else f"has a plan of {found!r}, where there is none"
    if other.status == "infeasible":
        return f"is infeasible, where {best!r} is optimal"
    sign, slack = 1.0 if exact.sense == "min" else -1.0, SAME * max(abs(best), 1e-9)
    if gap and (found is None or abs(found - best) > gap * abs(found) + slack):
        return f"{found!r} is farther than {gap} from the optimum {best!r}"
    if found is not None and sign * (best - found) > slack:
        return f"{found!r} is better than the optimum {best!r}"
    if other.bound is not None and sign * (other.bound - best) > slack:
        return f"has the bound {other.bound!r}, where {best!r} is optimal"
    if other.status == "optimal" and not gap and (found is None or sign * (found - best) > slack):
        return f"calls {found!r} optimal, which {best!r} is"
    return ""


def run_answers(
    name: str, count: int, seed: int, engines: bool = False, heard: Callable[[str], object] = len
) -> tuple[dict[str, Counter[str]], list[str]]:
    """`answers` of so many instances: outcomes by way to ask, and what was lost."""
    seen, lost = dict[str, Counter[str]](), list[str]()
    for at, data in seldom(name, count, seed, engines):
        with tempfile.TemporaryDirectory() as folder:
            try:
                for what, found in answers(data, Path(folder)):
                    seen.setdefault(what, Counter())["lost" if found else "kept"] += 1
                    if found:
                        lost.append(f"{name} seed {at}, {what}: {found}")
                        heard(lost[-1])
            except InputError:
                continue
    return seen, lost


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.relations", description=__doc__)
    parser.add_argument("formulations", nargs="*", metavar="FORMULATION", help=f"default: {', '.join(FORMULATIONS)}")
    parser.add_argument("--count", type=int, default=500, help="pairs a formulation whose tighter instance has a plan")
    parser.add_argument("--seed", type=int, default=0, help="of the first instance")
    parser.add_argument("--each", type=int, default=2, help="pairs an instance")
    parser.add_argument("--rewritten", action="store_true", help="relations of tests.rewritings, on COUNT instances")
    parser.add_argument("--answers", action="store_true", help="methods, bounds and time limits, on COUNT instances")
    parser.add_argument("--only", default="", metavar="WORDS", help="with --rewritten: those named so")
    parser.add_argument("--engines", action="store_true", help="instances with continuous batching alone")
    given, failed = parser.parse_args(), False
    for name in given.formulations or FORMULATIONS:
        if given.rewritten or given.answers:
            if given.rewritten:
                by, lost = run_rewritten(name, given.count, given.seed, given.engines, given.only, said)
            else:
                by, lost = run_answers(name, given.count, given.seed, given.engines, said)
            for what, seen in sorted(by.items()):
                said(f"{name}: {what}: {in_words(seen)}")
        else:
            seen, lost = run(name, given.count, given.seed, given.each, given.engines)
            said("\n".join([f"{name}: {in_words(seen)}", *lost]))
        failed |= bool(lost)
    return 1 if failed else 0


def in_words(seen: Counter[str]) -> str:
    """Outcomes with their numbers."""
    return ", ".join(f"{n} {k}" for k, n in sorted(seen.items()))


def said(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
