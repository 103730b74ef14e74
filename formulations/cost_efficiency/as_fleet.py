"""``python -m formulations.cost_efficiency.as_fleet FILE`` prints the fleet instance that asks the same of engines.

A closed-loop run of N users who ask for this many tokens a second is, in a fleet, requests at the rate at which
these tokens come, each within N over that rate in the mean (Little's law) and within the same limits. Fleets plan
prefill and decode apart; cost efficiency does not.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.errors import InputError, Mistake
from optmodels.io.read import read_document
from optmodels.limits import SPELLED
from optmodels.loading import load

ALIKE = ("schema", "title", "notes", "gpus", "pool", "engine", "deployment", "latency", "memory", "budget_usd_per_hour")


def as_fleet(data: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """The fleet problem of a cost-efficiency problem with `serving: continuous`, as its file would have it.

    Args:
        data: file.
        folder: where its traces lie.

    Raises:
        InputError: no such problem, or one with static batches.
    """
    problem = load({k: v for k, v in data.items() if k != "deployment"}, folder=folder)
    if not isinstance(problem, CostEfficiency) or problem.serving != "continuous":
        found = data.get("serving") if isinstance(problem, CostEfficiency) else data.get("formulation")
        raise InputError(Mistake(None, "serving", found, "a cost-efficiency problem with serving: continuous"))
    slo, strategies, w = data["slo"], data.get("strategies", {}), problem.workload
    lengths = [{"input_tokens": x.input_tokens, "output_tokens": x.output_tokens, "share": x.share}
               for x in problem.lengths()]  # fmt: skip
    shares = sum(x["share"] for x in lengths)
    tokens = sum(x["share"] * (x["input_tokens"] + x["output_tokens"]) for x in lengths) / shares
    rate = problem.slo.tps / tokens
    slo = {SPELLED.get(k, k): v for k, v in slo.items()}
    limits = {k: slo[k] for k in ("ttft_s", "tpot_s", "itl_s", "deadline_s") if slo.get(k) is not None}
    workload = {
        "name": "requests", "model": data["model"],
        **({"precision": data["precision"]} if "precision" in data else {}),
        "buckets": [
            {"input_tokens": x["input_tokens"], "output_tokens": x["output_tokens"],
             "requests_per_s": rate * x["share"] / shares}
            for x in lengths
        ],
        "slo": {"deadline_s": w.batch / rate} | limits,
    }  # fmt: skip
    return {
        "formulation": "fleet", **{k: data[k] for k in ALIKE if k in data},
        "name": f"{data.get('name') or 'requests'}-fleet", "workloads": [workload], "serving": "continuous",
        "markets": {"main": data.get("markets", {}).get("main", ["on_demand", "spot"])},
        "strategies": {"families": ["high_end"]}
        | {k: strategies[k] for k in ("tensor_parallel", "attention_ranks") if k in strategies},
    }  # fmt: skip


def main() -> int:
    """Print it."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m formulations.cost_efficiency.as_fleet FILE\n")
        return 2
    file = Path(sys.argv[1])
    try:
        data, _ = read_document(file)
        found = as_fleet(data, file.parent)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(yaml.safe_dump(found, sort_keys=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
