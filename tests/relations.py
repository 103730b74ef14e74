"""``python -m tests.relations fleet --count 500 --seed 0``: what a looser instance must not lose, on random ones.

Of a random instance of the adversary, within whose limits there may or may not be a plan, one thing is made looser: a
limit (any that the schema marks) is loosened or dropped, every price is multiplied by a number below one, or a machine
that could not be bought can be. What had a plan still has one, and the optimum is no worse. With ``--rewritten`` also:
lists in another order, whose optimum is the same, and a limit that fewer of the requests have to meet.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from optmodels import formulation, load
from optmodels.errors import InputError
from optmodels.study.explanation.oracle import DROPPED, Budget, InstanceOracle, Settings
from optmodels.study.explanation.thresholds import loosened
from tests.adversary import harness

FORMULATIONS = harness.FORMULATIONS
SAME = 2e-6  # relative
SECONDS = 60.0  # of a pair
LISTS = {"machines", "regions", "services", "workloads", "models", "servers"}
FACTORS = (0.02, 0.1, 0.35, 0.6, 1.0, 3.0)  # by which a limit is loosened


@dataclass(frozen=True)
class Pair:
    """Settings of an instance, of which the second allow all that the first do.

    `problem`: the instance, from whose limits follows what machines serve; for prices, written out. `rewritten`: the
    looser one, where settings do not make it. `same`: neither is looser.
    """

    what: str
    tight: Settings
    loose: Settings
    problem: Any
    rewritten: Any = None
    same: bool = False


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


def judge(oracle: InstanceOracle, pair: Pair) -> tuple[str, str]:
    """The outcome, and what the looser instance loses.

    ``kept``: nothing; ``nothing to lose``: the tighter one has no plan; ``unsettled``: one of the two is not proved.
    """
    answers = []
    for settings, problem in ((pair.tight, pair.problem), (pair.loose, pair.rewritten or pair.problem)):
        oracle.problem, oracle._tables = problem, None
        oracle.budget = Budget(SECONDS, 4)
        answer = oracle.solve(settings, 0.0)
        if answer.feasible is None or (answer.feasible and not answer.optimal):
            return "unsettled", ""
        answers.append(answer)
    tight, loose = answers
    if not tight.feasible and not (pair.same and loose.feasible):
        return "nothing to lose", ""
    if not tight.feasible or not loose.feasible:
        one, other = (tight, loose) if tight.feasible else (loose, tight)
        return "lost", f"has a plan of {one.objective!r}, and none when changed: {other.reason}"
    assert tight.objective is not None and loose.objective is not None
    worse = -oracle.better(loose.objective, tight.objective)
    if (abs(worse) if pair.same else worse) > SAME * max(abs(tight.objective), 1e-9):
        return "lost", f"{tight.objective!r} becomes {loose.objective!r}"
    return "kept", ""


def rewritten(data: dict[str, Any], rng: np.random.Generator) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """The instance with its lists in another order (the same), and with a lower percentile of one limit."""
    other = copy.deepcopy(data)
    for of in (other, other.get("pool", {})):
        for key in sorted(LISTS & of.keys()):
            if key == "regions" and "noise" in str(data):  # drawn by region after region
                continue
            if isinstance(of[key], list) and all(isinstance(x, dict) for x in of[key]):
                of[key] = [of[key][i] for i in rng.permutation(len(of[key]))]
    if other != data:
        yield "lists in another order", other, True
    other = copy.deepcopy(data)
    if found := list(percentiles(other, "")):
        path, limit = found[rng.integers(len(found))]
        before = limit["percentile"]
        limit["percentile"] = round(float(rng.uniform(min(0.5, 0.9 * before), before)), 4)
        yield f"{path}: percentile {before} → {limit['percentile']}", other, False


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


def run(
    name: str, count: int, seed: int, each: int = 2, engines: bool = False, also: bool = False
) -> tuple[Counter[str], list[str]]:  # fmt: skip
    """So many pairs with something to lose, `each` an instance: how many of each outcome, and what was lost.

    `also`: those of `rewritten`, besides.
    """
    form, seen, lost = formulation.get(name), Counter[str](), list[str]()
    while seen["kept"] + seen["lost"] < count:
        data = harness.instance(name, seed)
        with_pauses(data, np.random.default_rng([seed, 8]))
        rng, seed = np.random.default_rng([seed, 7]), seed + 1
        continuous = data.get("serving") == "continuous" or "engine" in data
        if engines and not continuous:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                problem = load(harness.written(data, Path(folder)), limits_may_fail=True)
                oracle = InstanceOracle(form, problem, Budget(SECONDS, 4))
                some = list(pairs(oracle, rng, continuous))[:each]
                for k, (what, other, same) in enumerate(rewritten(data, rng) if also else ()):
                    (beside := Path(folder) / str(k)).mkdir()
                    looser = load(harness.written(other, beside), limits_may_fail=True)
                    some.append(Pair(what, {}, {}, problem, looser, same))
            except InputError:
                seen["refused"] += 1
                continue
            for pair in some:
                outcome, found = judge(oracle, pair)
                seen[outcome] += 1
                if found:
                    lost.append(f"{name} seed {seed - 1}, {pair.what}: {found}")
    return seen, lost


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.relations", description=__doc__)
    parser.add_argument("formulations", nargs="*", metavar="FORMULATION", help=f"default: {', '.join(FORMULATIONS)}")
    parser.add_argument("--count", type=int, default=500, help="pairs a formulation whose tighter instance has a plan")
    parser.add_argument("--seed", type=int, default=0, help="of the first instance")
    parser.add_argument("--each", type=int, default=2, help="pairs an instance")
    parser.add_argument("--rewritten", action="store_true", help="also other orders and lower percentiles")
    parser.add_argument("--engines", action="store_true", help="instances with continuous batching alone")
    given, failed = parser.parse_args(), False
    for name in given.formulations or FORMULATIONS:
        seen, lost = run(name, given.count, given.seed, given.each, given.engines, given.rewritten)
        said = ", ".join(f"{n} {k}" for k, n in sorted(seen.items()))
        sys.stdout.write("\n".join([f"{name}: {said}", *lost]) + "\n")
        sys.stdout.flush()
        failed |= bool(lost)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
