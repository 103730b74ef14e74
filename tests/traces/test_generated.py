"""Generated traces: what was asked for is what is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from optmodels.errors import InputError
from optmodels.io.read import validate
from optmodels.traces.generated import TABLE_I, generate
from optmodels.traces.load import load_trace
from optmodels.traces.shape import part, sped_up
from optmodels.traces.spec import Generated, TraceSpec


@pytest.mark.parametrize("cv", [0, 0.5, 1, 4])
def test_rate_and_burstiness(cv):
    trace = generate(Generated(requests_per_s=20, cv=cv, requests=50_000, maaso=1))
    gaps = np.diff(trace.arrival_s)
    error = max(cv, 0.01) / np.sqrt(len(gaps))
    assert gaps.mean() * 20 == pytest.approx(1, abs=4 * error)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1, abs=1e-9)


@pytest.mark.parametrize("number", TABLE_I)
def test_table_one(number):
    trace = generate(Generated(requests_per_s=10, requests=20_000, maaso=number, seed=3))
    kinds = TABLE_I[number]
    of = trace.labels["class"]
    assert len(of.names) == len(kinds)
    weights = np.array([m.share for m in kinds]) / sum(m.share for m in kinds)
    for k, m in enumerate(kinds):
        mine = of.codes == k
        assert mine.mean() == pytest.approx(weights[k], abs=0.015)
        assert (trace.output_tokens[mine].min(), trace.output_tokens[mine].max()) == m.output_tokens
        low, high = m.slo_factor
        assert low <= trace.slo_factor[mine].min() < low + 0.01 and high - 0.01 < trace.slo_factor[mine].max() <= high


def test_same_seed_same_trace():
    spec = Generated(requests_per_s=5, duration_s=100, maaso=4, cv=4, models={"a": 1, "b": 3}, seed=7)
    one, same, other = generate(spec), generate(spec), generate(spec.model_copy(update={"seed": 8}))
    assert (one.arrival_s == same.arrival_s).all() and (one.output_tokens == same.output_tokens).all()
    assert len(one) != len(other) or (one.arrival_s != other.arrival_s).any()
    assert one.arrival_s[-1] < 100 and (np.diff(one.arrival_s) >= 0).all()
    share = generate(spec.model_copy(update={"duration_s": 4000.0})).labels["model"].codes.mean()
    assert share == pytest.approx(0.75, abs=0.02)


@given(
    skip=st.floats(0, 5, allow_subnormal=False),
    first=st.floats(0.5, 10),
    factor=st.sampled_from([0.25, 1.0, 3.0]),
    seed=st.integers(0, 9),
)
def test_part_and_speed(skip, first, factor, seed):
    trace = generate(Generated(requests_per_s=20, requests=400, maaso=2, seed=seed))
    inside = (trace.arrival_s >= skip) & (trace.arrival_s < skip + first)
    cut = sped_up(part(trace, skip, first), factor)
    assert len(cut) == inside.sum()
    np.testing.assert_allclose(cut.arrival_s * factor + skip, trace.arrival_s[inside])
    assert (cut.output_tokens == trace.output_tokens[inside]).all()
    assert (cut.slo_factor == trace.slo_factor[inside]).all()


def test_nothing_in_a_part():
    trace = generate(Generated(requests_per_s=20, requests=10, maaso=2))
    with pytest.raises(InputError, match="a request arrives"):
        part(trace, 1000.0)


def beside(folder: Path):
    return lambda file, _: folder / file


def test_spec_with_a_file(folder):
    (folder / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n2,1,2\n4,1,3\n")
    spec = TraceSpec(file="t.csv", skip_s=1, rate_factor=2)
    trace = load_trace(spec, beside(folder))
    assert trace.arrival_s.tolist() == [0.5, 1.5] and trace.output_tokens.tolist() == [2, 3]


@pytest.mark.parametrize(
    "text, words",
    [
        ("{}", "exactly one of file and generated"),
        ("{file: a, generated: {requests_per_s: 1, requests: 1, maaso: 1}}", "exactly one of file"),
        ("{generated: {requests_per_s: 1, maaso: 1}}", "exactly one of requests"),
        ("{generated: {requests_per_s: 1, requests: 1, maaso: 7}}", "≤ 6"),
        ("{generated: {requests_per_s: 1, requests: 1}}", "exactly one of maaso and mix"),
        ("{generated: {requests_per_s: 0, requests: 1, maaso: 1}}", "> 0"),
        ("{generated: {requests_per_s: 1.e+9, duration_s: 1000, maaso: 1}}", "at most"),
        ("{generated: {requests_per_s: 1, requests: 1, mix: [{output_tokens: [9, 3]}]}}", "least, most"),
        ("{file: a, rate_factor: 0}", "> 0"),
        ("{file: a, speed: 2}", "known keys"),
    ],
)
def test_mistakes_in_the_section(text, words):
    with pytest.raises(InputError, match=words):
        validate(TraceSpec, yaml.safe_load(text))


def test_kinds_must_agree_on_factors_and_models():
    mix = [{"output_tokens": (1, 2), "slo_factor": (1, 2)}, {"output_tokens": (1, 2)}]
    with pytest.raises(InputError, match="slo_factor of every kind"):
        generate(Generated(requests_per_s=1, requests=5, mix=mix))
    mix = [{"name": "own", "output_tokens": (1, 2), "model": "a"}, {"name": "drawn", "output_tokens": (1, 2)}]
    with pytest.raises(InputError, match="model of every kind"):
        generate(Generated(requests_per_s=1, requests=5, mix=mix))
    trace = generate(Generated(requests_per_s=1, requests=50, mix=mix, models={"b": 1}))
    kind, model = (np.array(trace.labels[k].names)[trace.labels[k].codes] for k in ("class", "model"))
    assert set(model[kind == "own"]) == {"a"} and set(model[kind == "drawn"]) == {"b"}
