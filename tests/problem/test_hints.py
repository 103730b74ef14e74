"""What a message adds to what was expected: the nearest thing that would have been right."""

from __future__ import annotations

import pytest
import yaml

from formulations.fleet.problem import SoftSlo
from optmodels import formulation
from optmodels.errors import InputError, shorten
from optmodels.loading import load


@pytest.mark.parametrize(
    ("name", "key", "value", "hint"),
    [
        ("cost_efficiency", "precision", "fp8", "did you mean {weights: fp8}?"),
        ("fleet", "reserve", 1, "did you mean {lost: 1}?"),
        ("fleet", "latency", "roofline", "did you mean {variant: roofline}?"),
        ("fleet", "reserve", "two", None),
        ("orchestration", "memory", {"vram_usable": 90}, "a share, not per cent: did you mean 0.9?"),
        ("cost_efficiency", "memory", {"vram_usable": 100}, "a share, not per cent: did you mean 1?"),
        ("cost_efficiency", "memory", {"vram_usable": 900}, None),
    ],
)
def test_a_value_in_place_of_its_section_and_per_cent_in_place_of_a_share(name, key, value, hint):
    data = yaml.safe_load(formulation.get(name).template) | {key: value}
    with pytest.raises(InputError) as refused:
        load(data)
    (mistake,) = refused.value.mistakes
    assert mistake.path.startswith(key) and mistake.hint == hint
    if not isinstance(value, dict):
        assert "a section (key: value lines) with some of " in mistake.expected


def test_a_percentile_below_one_has_no_hundred():
    data = yaml.safe_load(formulation.get("fleet").template)
    for percentile, hint in ((95, "a share, not per cent: did you mean 0.95?"), (100, None)):
        data["workloads"][0]["slo"] = {"ttft_s": {"at_most": 1, "percentile": percentile}}
        with pytest.raises(InputError) as refused:
            load(data)
        assert refused.value.mistakes[0].hint == hint


@pytest.mark.parametrize(("file", "command"), [
    ("day-and-night", "optmodels new fleet --from day-and-night, then solve day-and-night.yaml"),
    ("elsewhere/deadline.yaml", "optmodels new fleet --from infeasible/deadline, then solve deadline.yaml"),
    ("nobody-has-this", None), ("day-and-night.json", None),
])  # fmt: skip
def test_an_instance_that_comes_with_optmodels_is_known_by_its_name(file, command):
    with pytest.raises(InputError) as refused:
        load(file)
    hint = refused.value.mistakes[0].hint
    assert hint is None if command is None else hint == f"one comes with optmodels: {command}"


def test_a_long_section_is_shown_by_its_keys():
    assert shorten({"h100": 16}) == "{'h100': 16}"
    assert shorten({"name": "chat" * 9, "buckets": [1, 2, 3], "slo": {"ttft_s": 1.0}, "model": "llama"}) == (
        "a section with name, buckets, slo, model"
    )


def test_a_section_that_was_read_is_shown_as_it_was_written():
    assert shorten(SoftSlo(usd_per_1000_requests=2.0)) == "{'usd_per_1000_requests': 2.0}"


def test_a_file_without_serving_is_asked_which_and_told_what_for(tiny):
    with pytest.raises(InputError) as error:
        load(tiny(serving=None))
    (mistake,) = error.value.mistakes
    assert (mistake.path, mistake.value) == ("serving", None)
    assert mistake.expected.startswith("static or continuous (continuous: engines such as vLLM")


def test_a_file_without_markets_is_on_demand_as_plan_is(tiny):
    assert load(tiny(markets=None)).markets.main == load(tiny(markets=None)).markets.ao == ("on_demand",)
