"""The same instance said in another way has the same optimum: no reference is needed to tell.

Lists reversed, names changed, every price three times as high, a machine listed twice, requests divided in halves; and
with limits loosened or left out no optimum is worse.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import optmodels
from optmodels.errors import UnattainableError
from tests.adversary.harness import FILES, FORMULATIONS, Instance, instance, written

SEEDS = range(3_400_000, 3_400_006)
LISTS = {
    "workloads", "buckets", "machines", "points", "stock", "quota", "interruptions", "services", "terms", "families",
    "batches", "tensor_parallel", "attention_ranks", "stages", "scenarios", "classes", "hits", "operating_points",
}  # fmt: skip
PRICES = {
    "prices", "prices_by_region", "usd_per_hour", "budget_usd_per_hour", "unserved_usd_per_1000_requests", "usd_per_gb",
    "usd_per_1000_requests", "unserved_usd_per_request", "start_usd", "stop_usd",
}  # fmt: skip
LIMITS = {"ttft_s", "tpot_s"}
DEARER, LOOSER = 3.0, 1.5
Change = Callable[[Any], Any]


def at_keys(data: Any, keys: set[str], change: Change) -> Any:
    """The data with the values of these keys changed."""
    if isinstance(data, dict):
        return {k: change(v) if k in keys else at_keys(v, keys, change) for k, v in data.items()}
    return [at_keys(v, keys, change) for v in data] if isinstance(data, list) else data


def numbers(times: float) -> Change:
    def change(value: Any) -> Any:
        if isinstance(value, dict):  # a latency at a percentile: the limit alone
            return {k: v if k == "percentile" else change(v) for k, v in value.items()}
        return value * times if isinstance(value, int | float) and not isinstance(value, bool) else value

    return change


def says(data: Instance, *keys: str) -> bool:
    text = json.dumps(data)
    return any(f'"{key}"' in text for key in keys)


def reversed_lists(data: Instance) -> Instance:
    def reverse(value: Any) -> Any:
        inside = at_keys(value, LISTS, reverse)
        return inside[::-1] if isinstance(inside, list) else inside

    return at_keys(data, LISTS, reverse)


def renamed(data: Instance) -> Instance | None:
    if FILES in data or says(data, "trace", "melange", "baselines", "include", "exclude"):
        return None  # names in files and patterns

    def rename(value: Any) -> Any:
        if isinstance(value, str):
            return re.sub(r"^([wsm])(\d)(?=$|/)", lambda m: f"z{9 - int(m[2])}{m[1]}", value)
        if isinstance(value, dict):
            return {rename(k): rename(v) for k, v in value.items()}
        return [rename(v) for v in value] if isinstance(value, list) else value

    return None if says(data, "stock", "quota", "interruptions") else rename(data)


def dearer(data: Instance) -> Instance | None:
    if FILES in data or data["formulation"] == "orchestration" or says(data, "catalog", "prices_file"):
        return None
    return at_keys(data, PRICES, numbers(DEARER))


def twin_machine(data: Instance) -> Instance | None:
    if data["formulation"] not in ("fleet", "cost_efficiency") or not isinstance(data.get("pool"), dict):
        return None
    if says(data, "stock", "quota", "interruptions", "reserve", "points", "points_table", "include", "exclude"):
        return None
    again = copy.deepcopy(data)
    machines = again["pool"].get("machines")
    return machines and (machines.insert(0, machines[0] | {"machine": "twin"}) or again)


def halves(data: Instance) -> Instance | None:
    """Every class in two equal ones. Levels of engines are made for three of a fleet's buckets, so not there."""
    again = copy.deepcopy(data)
    if data["formulation"] == "orchestration" and data["requests"].get("classes"):
        classes = at_keys(again["requests"]["classes"], {"requests_per_s"}, halved)
        again["requests"]["classes"] = [*classes, *copy.deepcopy(classes)]
        return again
    if data["formulation"] != "fleet" or FILES in data or says(data, "trace", "melange", "queueing", "engine"):
        return None
    if data.get("serving") == "continuous" or not all("buckets" in w for w in data["workloads"]):
        return None
    for w in again["workloads"]:
        first = [at_keys(b, {"requests_per_s", "share"}, halved) for b in w["buckets"]]
        if not all("name" in b for b in first):
            return None
        w["buckets"] = [*first, *(b | {"name": b["name"] + "-2"} for b in first)]
    for point in again.get("points", []):
        point["requests_per_s"] |= {f"{k}-2": v for k, v in point["requests_per_s"].items()}
    return again


def halved(value: Any) -> Any:
    return [v / 2 for v in value] if isinstance(value, list) else value / 2


def looser(data: Instance) -> Instance | None:
    changed = at_keys(data, LIMITS, numbers(LOOSER))
    if data["formulation"] not in ("fleet", "cost_efficiency") or says(
        data, "points", "points_table", "operating_points"
    ):
        return None
    return {k: v for k, v in changed.items() if k not in ("budget_usd_per_hour", "stock", "quota")}


def answer(data: Instance, folder: Path) -> tuple[str, float | None, float | None, str]:
    try:
        found = optmodels.solve(written(data, folder), time_limit=5.0)
    except UnattainableError:
        return "infeasible", None, None, ""
    assert found.status in ("optimal", "infeasible", "feasible", "no_solution_found"), found.log
    assert found.check is None or found.check.ok
    return found.status, found.objective, found.bound, found.sense


# Loads and waits of engines are some of many: another limit has others, of which the best may be worse by so much.
STEPS = 0.02
SAME = {reversed_lists: 3e-6, renamed: 3e-6, dearer: 3e-6, twin_machine: 3e-6, halves: 3e-6}


def dearer_by(data: Instance) -> float:
    """How many times as large an objective is where prices are `DEARER` times as high."""
    if data["formulation"] == "cost_efficiency" or data.get("objective") == "max_ce":
        return 1 / DEARER
    return 1.0 if data.get("objective") == "max_served" else DEARER


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", FORMULATIONS)
def test_the_same_said_otherwise(name: str, seed: int, tmp_path: Path) -> None:
    data = instance(name, seed)
    status, objective, bound, sense = answer(data, tmp_path)
    for change in (*SAME, looser):
        other = change(data)
        if other is None:
            continue
        is_now, value, at_best, _ = answer(other, tmp_path)
        proved = {"optimal", "infeasible"}
        if change is looser:
            assert status != "optimal" or is_now != "infeasible"
        elif {status, is_now} <= proved:
            assert status == is_now, change.__name__
        if objective is None or value is None or bound is None or at_best is None:
            continue
        times = dearer_by(data) if change is dearer else 1.0
        slack = STEPS if change is looser else SAME[change]

        def beats(plan: float, bound: float, slack: float = slack) -> bool:
            gain = bound - plan if sense == "min" else plan - bound
            return gain > slack * max(abs(plan), abs(bound)) + 1e-9

        assert not beats(times * objective, at_best), (change.__name__, objective, value)
        if change is not looser:
            assert not beats(value, times * bound), (change.__name__, objective, value)
