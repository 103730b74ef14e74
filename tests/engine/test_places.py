"""Requests that wait for slots or KV cache, short answers, and max_num_seqs as a decision: judged by the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optmodels
from optmodels.engine.continuous import (
    Classes,
    EngineLimits,
    chance_of_waiting,
    levels_of_loads,
    operating_points,
)
from optmodels.latency.steps import StepCosts
from optmodels.question import Question, as_yaml, instance
from optmodels.simulation.continuous import Arrivals, Engine, simulate

CASES = Path(__file__).resolve().parents[1] / "reported" / "engines"
COSTS = StepCosts(
    fixed_s=0.01, prompt_step_s=0.0, prompt_token_s=4e-5, prompt_pair_s=0.0, decode_request_s=3e-5, context_s=1e-7,
    mixed_context_s=1e-7,
)  # fmt: skip


def _arrivals(rate: float, prompt: int, output: int, count: int, seed: int = 0) -> Arrivals:
    times = np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate, count))
    return Arrivals.of(times, np.full(count, prompt), np.full(count, output))


def _deployments(file: Path) -> list[dict[str, Any]]:
    """Of a plan that passed its check."""
    result = optmodels.solve(file, method="exact")
    assert result.status == "optimal"
    found: list[dict[str, Any]] = result.plan["periods"][0]["deployments"]
    return found


def test_chance_of_waiting_is_erlangs_where_no_step_grows() -> None:
    """Without work in steps the chain is M/M/n: Erlang C of 4 servers at 80 % is 0.5964."""
    found = chance_of_waiting(np.array([4.0]), np.array([1e-9]), np.array([0.8]))
    assert found == pytest.approx(0.5964, abs=2e-4)


@pytest.mark.parametrize(("prompt", "output", "kv", "wait"), [(20_000, 500, 92_000, 15.0), (800, 200, 30_000, 2.0)])
def test_waits_for_places_hold_in_simulation(prompt: int, output: int, kv: int, wait: float) -> None:
    """At the most that the rows allow means and tails of TTFT and TPOT are within what the level bounds."""
    classes, limits = Classes.of([float(prompt)], [float(output)]), EngineLimits()
    steps = levels_of_loads([COSTS], 0.95 * 0.8 ** np.arange(8.0, -1.0, -1.0))
    points = operating_points([COSTS], np.array([float(kv)]), limits, classes, steps, placed=True)
    crowd = operating_points([COSTS], np.array([float(kv)]), limits, classes, steps)
    prefill = points.prefill_waits(1.0)
    omega = np.full((*steps.shape, 1), wait) - prefill[..., None]
    rows = np.concatenate([
        points.with_places(np.maximum(omega, 1e-9), prefill, 4.0)[:, 0, :, 0, 0],
        points.waiting(np.maximum(prefill, 1e-9)[..., None], 4.0)[0, :, 0, 0][None],
    ])  # fmt: skip
    rate = np.where(np.isfinite(rows).all(axis=0) & (omega[0, :, 0] > 0), 1.0 / rows.max(axis=0), 0.0)
    level, best = int(rate.argmax()), float(rate.max())
    before = np.concatenate([crowd.load[:, 0, :, 0], crowd.waiting(np.full(omega.shape, wait), 4.0)[0, :, 0, 0][None]])
    assert best > 1.1 * float((1.0 / before.max(axis=0)).max())
    places = int(points.slots[0, 0, 0])
    assert places * (prompt + output) <= kv
    seen = simulate(_arrivals(best, prompt, output, 20_000), [Engine(COSTS, kv, places, 8192)])
    assert seen.preemptions.sum() == 0
    for q in (None, 0.9, 0.99):
        base, per = points.ttft_s(q, 4.0)
        for values, most in (
            (seen.ttft_s, base[0, level, 0] + per * wait), (seen.tpot_s, points.tpot_s(q)[0, level, 0]),
        ):  # fmt: skip
            assert (values.mean() if q is None else np.quantile(values, q)) <= 1.03 * most


@pytest.mark.parametrize("output", [2, 4, 8])
def test_short_answers_in_simulation(output: int) -> None:
    """Decode steps of a short answer are long or short: the bound holds at p90 and p99, where a crowd's would not."""
    classes, limits = Classes.of([8000.0], [float(output)]), EngineLimits()
    points = operating_points([COSTS], np.array([1e6]), limits, classes, levels_of_loads([COSTS], np.array([0.2, 0.4])))
    for level in np.flatnonzero(points.exists[0]).tolist():
        rate = float(1.0 / points.load[:, 0, level, 0].max())
        seen = simulate(_arrivals(rate, 8000, output, 20_000), [Engine(COSTS, 10**6, 256, 8192)])
        for q, error in ((0.9, 1.03), (0.99, 1.1)):
            assert np.quantile(seen.tpot_s, q) <= error * points.tpot_s(q)[0, level, 0]


def test_choices_of_max_num_seqs() -> None:
    """Doubled from 256 to the cap, or the file's; the least that lets in so many."""
    assert EngineLimits().choices == (256, 512, 1024, 2048)
    assert EngineLimits(most_num_seqs=600).choices == (256, 512)  # among those of any larger one
    assert EngineLimits(max_num_seqs=300).choices == (300,)
    assert EngineLimits(max_num_batched_tokens=1024).choices == (256, 512, 1008)
    assert EngineLimits().choosing(300).slots == 512


def test_few_long_prompts_at_a_time(tmp_path: Path) -> None:
    """A box of 8 H100 takes 0.25 requests/s of 20,000 + 500 tokens within TTFT 20 s, in the cache that drivers leave.

    With the memory of data sheets it held four and took 0.3; the simulator does with three (8.6 s), the bound does not.
    """
    asked = Question(
        model="kimi-k2.5", weights="int4", input_tokens=20_000, output_tokens=500, rate=0.25, gpus=["h100"], ttft=20.0,
        tpot=0.2,
    )  # fmt: skip
    file = tmp_path / "few.yaml"
    file.write_text(as_yaml(instance(asked), "plan"), encoding="utf-8")
    (line,) = _deployments(file)
    assert (line["count"], line["engine"]["max_num_seqs"]) == (1, 3) and line["engine"]["place_wait_s"] > 0


@pytest.mark.parametrize(("name", "gpus"), [("b200_70b_server", 8), ("h100_70b_16gpu", 19)])
def test_slots_are_a_decision(name: str, gpus: int) -> None:
    """Public runs carried these on 8 and 16 GPUs; at 256 slots two machines and 28 GPUs were asked for."""
    lines = _deployments(CASES / f"{name}.yaml")
    assert sum(m["count"] * m["gpus_per_machine"] * d["count"] for d in lines for m in d["machines"]) == gpus
    assert max(d["engine"]["max_num_seqs"] for d in lines) > 256


def test_two_tokens_are_bounded() -> None:
    """With 29 machines a fifth of the requests of two tokens see 136 ms of 100; now at most is above what is seen."""
    (line,) = _deployments(CASES / "fleet-two-token-tpot.yaml")
    assert line["count"] > 50
    assert line["serves"][0]["tpot_s"] <= 0.1
