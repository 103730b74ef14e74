"""Levels of engines for one kind of requests, against plain numbers recomputed and a step-by-step simulation."""

from __future__ import annotations

import numpy as np
import pytest

from optmodels.engine.continuous import Classes, EngineLimits, Percentile
from optmodels.engine.costs import EngineCosts
from optmodels.engine.levels import levels
from optmodels.latency.steps import Provenance, StepCosts
from optmodels.plans.engines import Kind, check_engine
from optmodels.plans.findings import Findings
from optmodels.plans.lines import EngineLine, engine_line

ENGINE = EngineCosts(
    StepCosts(fixed_s=0.01, prompt_token_s=5e-5, prompt_pair_s=1e-9, decode_request_s=1e-4, context_s=1e-7,
              mixed_context_s=1e-7, request_s=0.01),
    1.0, 60_000.0, Provenance("test", "made up"),
)  # fmt: skip
LIMITS = EngineLimits(max_num_seqs=128, max_num_batched_tokens=2048)
TTFT, TPOT = Percentile(at_most=0.5, percentile=0.9), Percentile(at_most=0.05, percentile=0.9)


@pytest.mark.parametrize("ttft", [TTFT, 0.5])
def test_levels_are_what_the_check_recomputes(ttft: Percentile | float) -> None:
    at = levels([ENGINE], LIMITS, Classes.of([400.0], [100.0], cached=0.25), ttft, TPOT)
    assert len(at) > 10
    kind = Kind(((400, 100, 1.0),), 0.25, ttft.percentile if isinstance(ttft, Percentile) else None, 0.9)
    for row in range(len(at)):
        found = Findings()
        line = engine_line(at, row, ENGINE, LIMITS)
        seen = check_engine(found, "it", line, ENGINE, LIMITS, kind, float(at.requests_per_s[row]))
        assert found.violations == []
        assert seen is not None
        stated = (at.first_s, at.waiting_s, at.tpot_s, at.e2e_s, at.running)
        said = (seen.first_s, seen.waiting_s, seen.tpot_s, seen.e2e_s, seen.running)
        assert np.allclose([x[row] for x in stated], said, rtol=1e-6)
        assert max(line.capacities.values()) == pytest.approx(1.0)
        assert seen.first_s + seen.waiting_s <= 0.5 * (1 + 1e-9)
        assert seen.tpot_s <= 0.05


def test_a_rate_beyond_the_level_is_noticed() -> None:
    at = levels([ENGINE], LIMITS, Classes.of([400.0], [100.0]), TTFT, TPOT)
    found = Findings()
    rate = 1.001 * float(at.requests_per_s[0])
    check_engine(
        found, "it", engine_line(at, 0, ENGINE, LIMITS), ENGINE, LIMITS, Kind(((400, 100, 1.0),), 0, 0.9, 0.9), rate
    )
    assert any("what there is" in v.requirement for v in found.violations)


def test_a_closed_loop_at_its_most_is_the_level_at_its_rate() -> None:
    at = levels([ENGINE], LIMITS, Classes.of([400.0], [100.0]), TTFT, TPOT)
    for row, running in enumerate(at.running):
        assert at.rate_of(row, running) == pytest.approx(at.requests_per_s[row])
        assert at.rate_of(row, 0.5 * running) > 0.5 * at.requests_per_s[row]  # fewer beside one another are faster
        found = Findings()
        line = engine_line(at, row, ENGINE, LIMITS)
        check_engine(found, "it", line, ENGINE, LIMITS, Kind(((400, 100, 1.0),), 0, 0.9, 0.9), in_flight=float(running))
        assert found.violations == []


def test_waiting_is_within_its_budget() -> None:
    kind = Classes.of([400.0], [100.0])
    free, bound = (levels([ENGINE], LIMITS, kind, TTFT, TPOT, most) for most in (np.inf, 0.02))
    assert bound.waiting_s.max() <= 0.02 * (1 + 1e-9)
    assert bound.requests_per_s.max() < free.requests_per_s.max()


def test_a_wait_as_long_as_the_limit_allows_keeps_it() -> None:
    """To the last digit: rounding made more of some, which cost a plan half as dear (cost efficiency, steered 135)."""
    kind, rounded_up = Classes.of([400.0], [100.0]), 0
    for at_most in np.linspace(0.1, 2.0, 50):
        at = levels([ENGINE], LIMITS, kind, Percentile(at_most=at_most, percentile=0.93), TPOT)
        assert (at.ttft_s <= at_most).all()
        assert np.allclose(at.ttft_s, at.first_s + at.waiting_s, rtol=1e-12)
        rounded_up += int((at.first_s + at.waiting_s > at_most).sum())
    assert rounded_up > 0


def test_limits_that_no_level_keeps_leave_none() -> None:
    assert len(levels([ENGINE], LIMITS, Classes.of([400.0], [100.0]), 0.01, None)) == 0
    assert len(levels([], LIMITS, Classes.of([400.0], [100.0]), None, None)) == 0


def closed_loop(line: EngineLine, in_flight: int, prompt: int, output: int, ends: int) -> dict[str, np.ndarray]:
    """An engine, step by step, whose users ask again as soon as they are answered: TTFT, TPOT and E2E of each request.

    Outputs are drawn around their mean, so that requests do not go in step with one another.
    """
    rng, costs, now = np.random.default_rng(1), ENGINE.costs, 0.0
    seen: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2e": []}

    def asked() -> dict[str, float]:
        return {"came": now, "left": prompt, "made": 0, "wants": int(rng.integers(output // 2, output * 3 // 2 + 1))}

    users = [asked() for _ in range(in_flight)]
    while len(seen["e2e"]) < ends:
        room = line.max_num_batched_tokens - sum(u["left"] == 0 for u in users)
        tokens, earlier, contexts = [], [], []
        chunks = {}
        for i, u in enumerate(sorted(users, key=lambda u: u["came"])):
            if u["left"] == 0:
                contexts.append(prompt + u["made"])
            elif room > 0:
                chunks[i] = (u, min(u["left"], room))
                room -= chunks[i][1]
                tokens.append(chunks[i][1])
                earlier.append(prompt - u["left"])
        decoding = [u for u in users if u["left"] == 0]
        now += costs.step(np.array(tokens, float), np.array(earlier, float), np.array(contexts, float))
        for u, count in chunks.values():
            u["left"] -= count
            if u["left"] == 0:
                u["made"], u["first"] = 1, now
                seen["ttft"].append(now - u["came"] + costs.request_s)
        for u in decoding:
            u["made"] += 1
            if u["made"] >= u["wants"]:
                seen["tpot"].append((now - u["first"]) / (u["made"] - 1))
                seen["e2e"].append(now - u["came"] + costs.request_s)
                users.remove(u)
                users.append(asked())
    return {k: np.array(v)[in_flight:] for k, v in seen.items()}


def test_a_closed_loop_keeps_what_its_level_promises() -> None:
    at = levels([ENGINE], LIMITS, Classes.of([400.0], [100.0]), TTFT, TPOT)
    some = np.flatnonzero(at.running >= 1.0)
    for row in (int(some[at.running[some].argmin()]), int(at.running.argmax())):
        in_flight = int(at.running[row])
        seen = closed_loop(engine_line(at, row, ENGINE, LIMITS), in_flight, 400, 100, 1500)
        assert np.quantile(seen["ttft"], 0.9) <= at.first_s[row] + at.waiting_s[row]
        assert np.quantile(seen["tpot"], 0.9) <= at.tpot_s[row]
        assert seen["e2e"].mean() <= at.e2e_s[row]
        assert seen["e2e"].mean() >= 0.7 * at.e2e_s[row]  # a bound that says something
