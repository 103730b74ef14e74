"""Promised percentiles of solved plans hold for simulated Poisson arrivals."""

from __future__ import annotations

import numpy as np
import pytest
from fleet_cases import BASE, fleet
from references.fleet_queues import confirm

import optmodels
from formulations.fleet.replay import waits
from optmodels.batch.queueing import waiting


def test_waits_by_hand():
    """Two slots; the third request starts when the first one ends, the fourth when the second does."""
    found = waits(np.array([0.0, 1.0, 2.0, 3.0]), np.array([5.0, 6.0, 1.0, 1.0]), 2)
    assert found.tolist() == [0.0, 0.0, 3.0, 3.0]


def test_the_simulation_agrees_with_erlang():
    """M/M/4 at load 0.8, 400,000 requests: mean waiting within 5 %."""
    rng = np.random.default_rng(1)
    arrivals = np.cumsum(rng.exponential(1 / 3.2, 400_000))
    simulated = waits(arrivals, rng.exponential(1.0, 400_000), 4).mean()
    assert simulated == pytest.approx(waiting(4, 0.8, 1.0, None), rel=0.05)


def tight(model):
    """A measured mixture of lengths whose deadlines leave little room for waiting, so that it limits the load."""
    return fleet(
        [4.0, 1.0, 2.0], [[2.0, 3.0], [1.0, 1.6], [1.5, 0.0]], [1.0, 1.5], p0={"slots": 4}, p1={"slots": 8},
        w0={"slo": {"deadline_s": {"at_most": 4.5, "percentile": 0.9}}},
        w1={"slo": {"deadline_s": {"at_most": 8.0, "percentile": 0.95}}},
        w2={"slo": {"deadline_s": {"at_most": 5.0, "percentile": 0.99}}}, queueing={"model": model},
    ).model_dump(mode="json", by_alias=True, exclude_unset=True)  # fmt: skip


CASES = {
    "template": BASE,
    "spot-heavy": "instances/fleet/spot-heavy.yaml",
    "tight mmc": tight("mmc"),
    "tight mdc": tight("mdc"),
    "tight ggc": tight("ggc"),
}


@pytest.mark.parametrize("full", [False, True], ids=["planned rates", "filled to the load level"])
@pytest.mark.parametrize("name", CASES)
def test_promises_hold(name, full):
    """Within 3 standard errors (batch means), at the plan's rates and at the load that waiting is planned for."""
    result = optmodels.solve(CASES[name])
    found = list(confirm(optmodels.load(CASES[name]), result.plan, requests=60_000, full=full))
    assert any(c.percentile is not None for c in found)
    assert all(c.error < 0.02 for c in found)
    assert not [c for c in found if not c.holds()]


def test_an_overloaded_deployment_is_noticed():
    """Rates raised until the slots are 98 % busy: the promise fails."""
    data = tight("mmc")
    plan = optmodels.solve(data).plan
    for d in plan["periods"][0]["deployments"]:
        for s in d["serves"]:
            s["requests_per_s"] *= 0.98 / d["utilisation"]
    assert not all(c.holds() for c in confirm(optmodels.load(data), plan, requests=60_000))
