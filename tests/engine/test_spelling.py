"""One spelling of precisions and of the latencies of engines in every formulation; the older one is read."""

import pytest
from conftest import tiny_problem
from orchestration_cases import two_models

from formulations.reserved_capacity.throughput import ServiceWorkload
from optmodels.errors import InputError
from optmodels.io.read import validate
from optmodels.loading import load

ENTRY = {"model": "llama-3.1-8b", "input_tokens": 10, "output_tokens": 10}


def test_both_spellings_are_one_workload():
    old, new = (ServiceWorkload(**ENTRY, **p) for p in ({"weights": "fp8"}, {"precision": {"weights": "fp8"}}))
    assert new == old and new.model_dump() == old.model_dump()
    assert (new.weights, new.kv, ServiceWorkload(**ENTRY).weights) == ("fp8", "fp16", "fp16")


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        ({"precision": {"weights": "fp9"}}, "precision.weights"),
        ({"precision": {"wieghts": "fp8"}}, "precision.wieghts"),
        ({"weights": "fp9"}, "weights"), ({"precision": {"kv": "fp8"}, "weights": "fp8"}, ""),
    ],
)  # fmt: skip
def test_a_mistake_is_where_the_file_has_it(entry, path):
    with pytest.raises(InputError) as error:
        validate(ServiceWorkload, ENTRY | entry)
    assert [m.path for m in error.value.mistakes] == [path]


@pytest.mark.parametrize("problem", [tiny_problem, two_models])
def test_continuous_serving_takes_the_engines_where_no_latency_is_named(problem):
    data = {k: v for k, v in problem().items() if k not in ("latency", "strategies")}
    continuous = data | {"serving": "continuous"}
    for said in ({}, {"latency": {}}, {"latency": {"model": "default"}}):
        assert load(continuous | said).latency.model == "default"
    assert load(continuous | {"latency": {"safety": 0.9}}).latency.safety == 0.9
    assert load(continuous | {"latency": {"model": "roofline"}}).latency.model == "roofline"


def test_batches_in_slots_name_their_latency():
    with pytest.raises(InputError) as error:
        load({k: v for k, v in two_models().items() if k != "latency"})
    assert [m.path for m in error.value.mistakes] == ["latency"]
