"""Fleet plans on traces: the plan's own assumptions give the plan's own figures, others show what they cost."""

from __future__ import annotations

import numpy as np
import pytest
from fleet_cases import fleet

import optmodels
from formulations.fleet.replay import in_turn, replay
from optmodels.batch.queueing import erlang_c, variability
from optmodels.errors import InputError
from optmodels.simulation.options import ReplayOptions
from optmodels.traces.types import Label, Trace


def solved(*arguments, **changes):
    problem = fleet(*arguments, **changes)
    return problem, optmodels.solve(problem).plan


def poisson(rate, n, labels=None, seed=0):
    rng = np.random.default_rng(seed)
    ones = np.ones(n, np.int64)
    return Trace("poisson", np.cumsum(rng.exponential(1 / rate, n)), ones, ones, labels or {})


def test_waiting_is_that_of_m_d_c():
    """One demand on four deployments of eight slots each; random splitting keeps the arrivals Poisson."""
    problem, plan = solved([13.0], [[4.0]], [1.0], p0={"slots": 8}, queueing={"model": "mdc", "load_levels": [0.9]})
    [line] = plan["periods"][0]["deployments"]
    assert line["count"] == 4
    found = replay(problem, plan, poisson(13.0, 200_000), ReplayOptions("random"))
    load = 13.0 / 4 / 4.0
    service = 8 / 4.0
    expected = erlang_c(8, load) / (8 * (1 - load)) * variability("mdc", 1, 0, 8, load) * service
    seen = found["policies"]["random"]
    assert seen["waiting_s"]["mean"] == pytest.approx(expected, rel=0.1)
    assert seen["utilisation"] == pytest.approx(found["predicted"]["utilisation"], rel=0.02)
    in_order = replay(problem, plan, poisson(13.0, 200_000), ReplayOptions("planned_shares"))
    assert in_order["policies"]["planned_shares"]["waiting_s"]["mean"] < expected  # taking turns evens out arrivals


def test_shares_of_the_plan_are_followed():
    problem, plan = solved([3.0, 2.0], [[1.0, 0.0], [0.5, 2.0]], [1.0, 3.0])
    planned = {(s["demand"], d["name"]): s["share"] for d in plan["periods"][0]["deployments"] for s in d["serves"]}
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2, 4000)
    kept = {}
    trace = poisson(5.0, 4000, {"model": Label(("w1", "w0"), codes)})
    replay(problem, plan, trace, ReplayOptions("planned_shares", keep=kept.__setitem__))
    rows = kept["planned_shares"]
    for name, code in (("w1", 0), ("w0", 1)):
        assert (rows["demand"][codes == code] == f"{name}/b").all()
    for (demand, line), share in planned.items():
        mine = rows["demand"] == demand
        assert abs((rows["deployment"][mine] == line).sum() - share * mine.sum()) <= len(planned)


def test_deficit_round_robin_by_hand():
    assert in_turn(np.array([0.5, 0.25, 0.25]), 8).tolist() == [0, 1, 2, 0, 0, 1, 2, 0]
    turns = in_turn(np.array([0.7, 0.3, 0.0]), 1000)
    behind = np.cumsum(turns == 1) - 0.3 * np.arange(1, 1001)
    assert np.abs(behind).max() <= 1 and 2 not in turns


def test_lengths_of_requests_scale_their_service():
    """A modelled deployment: twice the output tokens decode twice as long."""
    result = optmodels.solve("tests/fleet/static/day-and-night.yaml")
    kept = {}
    problem = optmodels.load(result.problem)
    bucket = next(d for d in problem.resolve().demands)
    n = 50
    trace = Trace("one", np.arange(n) * 1000.0, np.full(n, bucket.input_tokens),
                  np.where(np.arange(n) % 2, bucket.output_tokens, 2 * bucket.output_tokens),
                  {"class": Label((bucket.name,), np.zeros(n, np.int64))})  # fmt: skip
    replay(problem, result.plan, trace, ReplayOptions("planned_shares", keep=kept.__setitem__))
    rows = kept["planned_shares"]
    decode = rows["e2e_s"] - rows["ttft_s"]
    line = next(d for q in result.plan["periods"] for d in q["deployments"]
                if d["name"] == rows["deployment"][0] for s in d["serves"] if s["demand"] == bucket.name)  # fmt: skip
    served = next(s for s in line["serves"] if s["demand"] == bucket.name)
    one = rows["deployment"] == line["name"]
    expected = np.where(np.arange(n) % 2, 1, 2) * (served["e2e_s"] - served["ttft_s"])
    np.testing.assert_allclose(decode[one], expected[one])
    assert (rows["wait_s"] == 0).all()


def test_mistakes():
    problem, plan = solved([3.0, 2.0], [[1.0, 0.0], [0.5, 2.0]], [1.0, 3.0])
    with pytest.raises(InputError, match="planned_shares"):
        replay(problem, plan, None, ReplayOptions("shortest_queue"))
    with pytest.raises(InputError, match="w0, w1"):
        replay(problem, plan, poisson(1.0, 5))
    with pytest.raises(InputError, match="overflow_protection"):
        replay(problem, plan, None, ReplayOptions(overflow_protection=True))
    buckets = [{"name": "b", "requests_per_s": 1.0}, {"name": "c", "requests_per_s": 1.0}]
    problem, plan = solved([1.0], [[1.0]], [1.0], w0={"buckets": buckets},
                           p0={"requests_per_s": {"w0/b": 1.0, "w0/c": 2.0}})  # fmt: skip
    with pytest.raises(InputError, match="lengths are unknown"):
        replay(problem, plan, poisson(1.0, 5))
