"""Prefill and decode apart: what a fleet's plan predicts of TTFT, TPOT and E2E beside its replay.

    python benchmarks/apart_predicted.py [--count 60] [--seed 7000]

Random fleets on AWS (those of `certify.py`, not certified) whose requests are all prefilled and decoded apart, at the
percentile of each limit (none: the mean). Replayed are 100,000 Poisson requests, sent by chance, as predicted, and in
turn. Demands that go one way only; errors are predicted over replayed less 1.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from certify import drawn

import optmodels
from formulations.fleet.plan import FleetPlan
from formulations.fleet.predicted import LATENCIES, predicted
from formulations.fleet.replay import POLICIES, paired, replay
from optmodels.engine.continuous import seconds_and_quantile
from optmodels.simulation.options import ReplayOptions

RARE = 1000  # requests below which a demand is left out


def compared(problem, data, errors):
    """Add the errors of one plan, by policy, latency and percentile."""
    case, plan = problem.resolve(), FleetPlan.model_validate(data)
    period = plan.periods[0]
    rows = {x["demand"]: x for x in predicted(case, plan)}
    for policy in POLICIES:
        seen = {}
        replay(problem, data, None, ReplayOptions(policy=policy, keep=lambda _, found: seen.update(found)))  # noqa: B023
        for demand in case.demands:
            mine = seen["demand"] == demand.name
            if mine.sum() < RARE or len(paired(case, period, demand.name, plan.stretch)) != 1:
                continue
            ttft, e2e, output = (seen[k][mine] for k in ("ttft_s", "e2e_s", "output_tokens"))
            values = {"ttft_s": ttft, "tpot_s": (e2e - ttft) / np.maximum(output - 1, 1), "deadline_s": e2e}
            for name, x in values.items():
                at = seconds_and_quantile(getattr(case.workload(demand.workload).slo, name))[1]
                true = x.mean() if at is None else np.quantile(x, at)
                errors.setdefault((policy, name, at), []).append(rows[demand.name][name] / true - 1)


def main(arguments):
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=7000)
    a = parser.parse_args(arguments)
    errors: dict[tuple, list[float]] = {}
    made, seed = 0, a.seed
    while made < a.count:
        data, seed = drawn(seed) | {"deployment": {"stages": ["prefill", "decode"]}, "certify": "none"}, seed + 1
        problem = optmodels.load(data)
        plan = optmodels.solve(problem, time_limit=10).plan
        if plan is None:
            continue
        made += 1
        compared(problem, plan, errors)
    titles = "sent", "latency", "at", "demands", "mean absolute error", "nine in ten within", "bias"
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    order = sorted(errors, key=lambda k: (POLICIES[::-1].index(k[0]), [*LATENCIES].index(k[1]), k[2] or 0.0))
    for policy, name, at in order:
        x = 100 * np.array(errors[policy, name, at])
        sent = {"random": "by chance", "planned_shares": "in turn"}[policy]
        latency = {"ttft_s": "TTFT", "tpot_s": "TPOT", "deadline_s": "E2E"}[name]
        cells = sent, latency, "mean" if at is None else f"p{100 * at:g}", f"{len(x)}", f"{abs(x).mean():.1f} %"
        print(f"| {' | '.join(cells)} | {np.quantile(abs(x), 0.9):.1f} % | {x.mean():+.1f} % |")


if __name__ == "__main__":
    main(sys.argv[1:])
