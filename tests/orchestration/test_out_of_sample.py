"""A plan on requests that it was not made for: what a replay of the same resample says, left out when asked."""

from __future__ import annotations

import pytest
from orchestration_cases import two_models

import optmodels
from formulations.orchestration.replay import OTHER_REQUESTS
from formulations.orchestration.show import summary


@pytest.fixture(scope="module")
def instance():
    return two_models(12)


def test_predicted_replayed_and_out_of_sample_are_those_of_replays(instance):
    result = optmodels.solve(instance)
    found, own = result.report["out_of_sample"], result.report["replay"]
    shares = found["attainment"]
    assert shares["predicted"] == own["predicted"]["attainment"]
    if found["policy"] in own["policies"]:
        assert shares["replayed"] == own["policies"][found["policy"]]["attainment"]
    again = optmodels.replay(result, resample=OTHER_REQUESTS, policy=found["policy"])["report"]
    assert shares["out_of_sample"] == again["policies"][found["policy"]]["attainment"]
    assert found["requests"] == again["requests"]
    assert any("out of sample" in str(line) for line in summary(result.document()))
    assert optmodels.check(result).ok


def test_it_is_left_out_when_asked_and_the_check_knows(instance):
    result = optmodels.solve(instance, out_of_sample=False)
    assert "out_of_sample" not in result.report
    assert result.log["left_out"] == ["the replay out of sample"]
    assert "replay" in result.report
    assert optmodels.check(result).ok
