"""Shares: hand-worked, additive to machine precision, non-negative; the airport game against its definition."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optmodels.errors import InputError
from optmodels.latency.attribution import Attributor, StepRequest, admit, airport, arrays, attribute
from optmodels.latency.fit.document import LatencyModel
from optmodels.latency.fit.loads import TERMS

ERRORS = {"rows": 1, "r2": 1.0, "mape": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0, "bias": 0.0}


def model(segments, **more):
    return LatencyModel.model_validate(
        {
            "schema": 1,
            "model": "additive",
            "measured": "step",
            "targets": {
                "latency_s": {
                    "segments": [
                        {"when": w, "terms": [{"name": n, "value": v} for n, v in t.items()]}
                        for w, t in segments.items()
                    ],
                    "in_sample": ERRORS,
                    "residual_quantiles": {"0.9": 1.5},
                }
            },
        }
        | more
    )


A = StepRequest(id="a", tenant="x", tokens=100)
B = StepRequest(id="b", tenant="y", tokens=1, context_tokens=300)
C = StepRequest(id="c", tenant="y", tokens=1, context_tokens=100)


def test_by_hand():
    attributor = Attributor(model({"all": {"fixed": 3.0, "tokens": 0.1, "decode_kv": 0.01, "prefill_attention": 1e-4}}))
    shares = attribute(attributor, (A, B, C))
    # fixed 3 → 1 each; tokens 10.2 → 10, 0.1, 0.1; KV 4 → 0, 3, 1; attention 1 → a
    np.testing.assert_allclose(shares.request_s, [12.0, 4.1, 2.1])
    assert shares.latency_s == pytest.approx(18.2)
    assert shares.tenant_s == pytest.approx({"x": 12.0, "y": 6.2})
    np.testing.assert_allclose(shares.vtc_s, 18.2 * np.array([100, 1, 1]) / 102)


def test_fixed_part_by_tokens():
    shares = attribute(Attributor(model({"all": {"fixed": 1.02}}), fixed="tokens"), (A, B, C))
    np.testing.assert_allclose(shares.request_s, [1.0, 0.01, 0.01])


def test_longest_context_is_an_airport_game():
    shares = attribute(Attributor(model({"all": {"longest_context": 1.0}})), (A, B, C))
    # 100 tokens shared by b and c, the next 200 are b's alone.
    np.testing.assert_allclose(shares.request_s, [0.0, 250.0, 50.0])


def test_safety_inflates_every_share():
    plain, safe = (attribute(Attributor(model({"all": {"tokens": 1.0}}), safety=s), (A, B)) for s in (None, 0.9))
    np.testing.assert_allclose(safe.request_s, 1.5 * plain.request_s)


def test_segments_follow_the_kind_of_step():
    attributor = Attributor(model({"decode": {"fixed": 1.0}, "prefill": {"fixed": 2.0}, "mixed": {"fixed": 4.0}}))
    assert [attribute(attributor, r).latency_s for r in ((B, C), (A,), (A, B))] == [1.0, 2.0, 4.0]


def test_admission_is_the_difference_of_two_steps():
    attributor = Attributor(model({"all": {"fixed": 3.0, "decode_kv": 0.01}}))
    found = admit(attributor, (A, B), C)
    assert found.added_s == pytest.approx(1.0)
    assert found.share_s == pytest.approx(3.0 / 3 + 1.0)
    assert found.after.latency_s == pytest.approx(7.0)


def test_only_step_models_attribute():
    with pytest.raises(InputError, match="single steps"):
        Attributor(model({"all": {"fixed": 1.0}}, measured="static"))
    with pytest.raises(InputError, match="≥ 0"):
        Attributor(model({"all": {"fixed": -1.0}}))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=6))
def test_airport_is_the_shapley_value(lengths):
    n = len(lengths)
    expected = np.zeros(n)
    for order in itertools.permutations(range(n)):
        longest = 0
        for i in order:
            expected[i] += max(0, lengths[i] - longest)
            longest = max(longest, lengths[i])
    np.testing.assert_allclose(airport(np.array(lengths, dtype=float)), expected / math.factorial(n), atol=1e-9)


requests = st.lists(
    st.builds(
        StepRequest,
        id=st.just("r"),
        tenant=st.sampled_from("xyz"),
        tokens=st.integers(1, 4096),
        context_tokens=st.integers(0, 20000),
        phase=st.sampled_from([None, "prefill", "decode"]),
    ),
    min_size=1,
    max_size=40,
)
SHAREABLE = list(TERMS)


@settings(max_examples=100, deadline=None)
@given(
    requests,
    st.lists(st.sampled_from(SHAREABLE), min_size=1, max_size=8, unique=True),
    st.sampled_from([1, 2, 8]),
)
def test_shares_are_additive_and_non_negative(batch, names, tp):
    attributor = Attributor(model({"all": {n: 1e-6 * (i + 1) for i, n in enumerate(names)}}))
    shares = attribute(attributor, batch, tp)
    assert (shares.request_s >= 0).all()
    assert shares.request_s.sum() == pytest.approx(shares.latency_s, rel=1e-12, abs=1e-300)
    assert sum(shares.tenant_s.values()) == pytest.approx(shares.latency_s, rel=1e-12, abs=1e-300)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2000), st.integers(0, 5000), st.integers(0, 64), st.integers(0, 9000))
def test_attribution_predicts_what_the_model_predicts(p, k, n, c):
    if p == 0 and n == 0:
        return
    m = model({"all": dict.fromkeys(TERMS, 1e-6)})
    batch = ([StepRequest(id="p", tokens=p, context_tokens=k, phase="prefill")] if p else []) + [
        StepRequest(id="d", tokens=1, context_tokens=c, phase="decode") for _ in range(n)
    ]
    values = {
        "prefill_tokens": p,
        "prefill_context_tokens": k,
        "prefill_requests": float(p > 0),
        "decode_requests": n,
        "decode_context_tokens": c,
        "tp": 2,
    }
    expected = m.predict({key: np.array([float(v)]) for key, v in values.items()})[0]
    assert Attributor(m).latency(*arrays(batch), 2.0) == pytest.approx(expected, rel=1e-12)
