"""Tables, dispatch and the closed-form purchases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from reserved import machine, random_instance, service, two_regions

import optmodels
from formulations.reserved_capacity.check import check
from formulations.reserved_capacity.dispatch import RowLp, dispatch, purchases
from formulations.reserved_capacity.points import build_tables
from formulations.reserved_capacity.problem import ReservedCapacity
from optmodels.errors import InputError
from optmodels.loading import load


def tables(document):
    return build_tables(load(document))


def test_weights_are_shares_of_time():
    t = tables(
        two_regions(
            uncertainty={"scenarios": [{"scenario": "a", "probability": 0.25}, {"scenario": "b", "probability": 0.75}]},
            growth={"quarters": 3, "factor_per_quarter": 2.0},
        )
    )
    assert t.weight.sum() == pytest.approx(1)
    assert len(t.demand) == 2 * 3 * 2
    assert t.demand.max() == pytest.approx(40)


def test_locality_makes_work_impure():
    assert tables(two_regions()).pure is not None
    assert tables(two_regions(services=service(kappa=1.3))).pure is None


def test_spot_interruptions_raise_the_price_of_work_done():
    t = tables(
        two_regions(
            machines=machine(prices={"spot": 1.0, "reserved_3y": 1.0}, spot_lost_share=0.2, spot_available=10),
            terms=["reserved_3y", "spot"],
        )
    )
    assert t.option_usd_per_hour == pytest.approx([1.25, 1.25])
    assert t.option_most == pytest.approx([8, 8])


@given(st.integers(0, 10_000))
def test_dispatch_serves_at_the_cost_of_the_row_lps(seed):
    document = random_instance(seed) | {"terms": ["reserved_3y", "on_demand"]}
    for m in document["machines"]:
        m.pop("on_demand_available", None)
    try:
        t = tables(document)
    except InputError:
        assume(False)
    assume(len(t.source_region) > 0 and len(t.sink_region) > 0)
    held = np.random.default_rng(seed).integers(0, 6, (len(t.sink_region), t.quarters)).astype(float)
    found = dispatch(t, held)
    lp, total = RowLp(t, tie_break=False), 0.0
    for h in range(len(t.demand)):
        lp.solve(t.demand[h], held[:, t.quarter[h]])
        total += t.weight[h] * lp.objective * 730
    assert found.total_usd_per_month(t) == pytest.approx(total, rel=1e-5, abs=1e-3)
    served = t.weight @ (t.demand - found.unserved)
    assert found.flow.sum(axis=1) == pytest.approx(served, rel=1e-5, abs=1e-5)
    assert (found.used <= held.T[t.quarter] + _bought(t, found) + 1e-5).all()


def _bought(t, found):
    have = np.zeros((len(t.demand), len(t.sink_region)))
    np.add.at(have.T, t.option_sink, found.bought.T)
    return have


def test_closed_form_prefers_the_cheap_region():
    document = two_regions(
        machines=machine(
            prices_by_region={
                "west": {"on_demand": 5.0, "reserved_3y": 1.0},
                "east": {"on_demand": 2.0, "reserved_3y": 1.0},
            }
        ),
        terms=["reserved_3y", "on_demand"],
    )
    t = tables(document)
    bought = purchases(t, np.zeros((2, 2)), t.demand)
    assert bought.sum(axis=0) == pytest.approx([0, 24])


@pytest.mark.parametrize("method", ["exact", "full"])
def test_of_several_points_each_pair_uses_the_fastest_within_reach(method: str) -> None:
    """Brute force over machines in west and east: 2 requests/s of one at home, 1 from the other region."""
    points = [{"requests_per_s": 2.0, "prefill_s": 0.45}, {"requests_per_s": 1.0, "prefill_s": 0.1}]
    problem = ReservedCapacity.model_validate(two_regions(machines=machine(serves={"chat": points})))
    case = problem.resolve()
    assert case.pair_rps[0, :, :, 0].tolist() == [[2.0, 1.0], [1.0, 2.0]]

    def served(n: tuple[int, int]) -> bool:
        hours = itertools.product(((10.0, 2.0), (2.0, 10.0)), (0, 1))
        return all(max(0.0, d[r] - 2 * n[r]) <= max(0.0, n[1 - r] - d[1 - r] / 2) for d, r in hours)

    fewest = min(sum(n) for n in itertools.product(range(11), repeat=2) if served(n))
    found = optmodels.solve(problem, method=method)
    assert found.objective == pytest.approx(730.0 * fewest) and fewest == 8
    assert found.check is not None and found.check.ok and found.plan["forwarded_share"] > 0
    again = ReservedCapacity.model_validate(problem.inline().model_dump(mode="json", by_alias=True))
    assert check(again, found.plan).ok
    fewer = problem.model_dump(mode="json", by_alias=True, exclude_unset=True)
    fewer["machines"][0]["serves"]["chat"] = points[1]
    assert not check(ReservedCapacity.model_validate(fewer), found.plan).ok
