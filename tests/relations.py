"""``python -m tests.relations fleet --count 500 --seed 0``: what a looser instance must not lose, on random ones.

Of a random instance of the adversary, within whose limits there may or may not be a plan, one thing is made looser: a
limit (any that the schema marks) is loosened or dropped, every price is multiplied by a number below one, or a machine
that could not be bought can be. What had a plan still has one, and the optimum is no worse.
"""

from __future__ import annotations

import argparse
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
FACTORS = (0.02, 0.1, 0.35, 0.6, 1.0, 3.0)  # by which a limit is loosened


@dataclass(frozen=True)
class Pair:
    """Settings of an instance, of which the second allow all that the first do.

    `problem`: the instance, from whose limits follows what machines serve; for prices, written out.
    """

    what: str
    tight: Settings
    loose: Settings
    problem: Any


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
    answers, oracle.problem = [], pair.problem
    for settings in (pair.tight, pair.loose):
        oracle.budget = Budget(SECONDS, 4)
        answer = oracle.solve(settings, 0.0)
        if answer.feasible is None or (answer.feasible and not answer.optimal):
            return "unsettled", ""
        answers.append(answer)
    tight, loose = answers
    if not tight.feasible:
        return "nothing to lose", ""
    if not loose.feasible:
        return "lost", f"has a plan of {tight.objective!r}, and none when looser: {loose.reason}"
    assert tight.objective is not None and loose.objective is not None
    if oracle.better(loose.objective, tight.objective) < -SAME * max(abs(tight.objective), 1e-9):
        return "lost", f"{tight.objective!r} becomes {loose.objective!r}"
    return "kept", ""


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


def run(name: str, count: int, seed: int, each: int = 2, engines: bool = False) -> tuple[Counter[str], list[str]]:
    """So many pairs with something to lose, `each` an instance: how many of each outcome, and what was lost."""
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
            except InputError:
                seen["refused"] += 1
                continue
            for pair in some:
                oracle._tables = None
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
    parser.add_argument("--engines", action="store_true", help="instances with continuous batching alone")
    given, failed = parser.parse_args(), False
    for name in given.formulations or FORMULATIONS:
        seen, lost = run(name, given.count, given.seed, given.each, given.engines)
        said = ", ".join(f"{n} {k}" for k, n in sorted(seen.items()))
        sys.stdout.write("\n".join([f"{name}: {said}", *lost]) + "\n")
        sys.stdout.flush()
        failed |= bool(lost)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
