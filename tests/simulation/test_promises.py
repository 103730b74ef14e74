"""Promises of one engine: against the mean wait of M/D/1, known in closed form, and on both sides of a limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optmodels.latency.steps import StepCosts
from optmodels.simulation.continuous import Engine
from optmodels.simulation.promises import RARE, Onward, Promise, RequestStream, Station, judge

# One request at a time, one step each: a queue with constant service.
ALONE = Engine(
    StepCosts(fixed_s=0.01, prompt_token_s=1e-4, prompt_pair_s=0.0, decode_request_s=0.0, context_s=0.0,
              mixed_context_s=0.0),
    kv_tokens=10_000, max_num_seqs=1, max_num_batched_tokens=1000,
)  # fmt: skip
SERVICE_S = 0.01 + 100 * 1e-4


def stream(requests_per_s, tokens=100, output=1, load=SERVICE_S):
    return RequestStream(requests_per_s, tokens, output, 0, load, 0.5)


def mean_s(load):
    """Of an M/D/1 queue and its service: Pollaczek–Khinchine."""
    return SERVICE_S * (1 + load / (2 * (1 - load)))


@pytest.mark.parametrize("load", [0.5, 0.8])
@pytest.mark.parametrize(("factor", "found"), [(1.1, "kept"), (0.9, "broken")])
def test_means_of_a_queue_known_in_closed_form(load, factor, found):
    [verdict] = judge(
        [Station(ALONE)], [stream(load / SERVICE_S)], [Promise((0,), "ttft_s", factor * mean_s(load), None)], 1e-4, [1]
    )
    assert verdict.found == found
    assert verdict.seen_s == pytest.approx(mean_s(load), rel=0.05)
    assert verdict.excess == pytest.approx(verdict.seen_s / (factor * mean_s(load)))


def test_lengths_are_those_recorded():
    """M/G/1: by Pollaczek and Khinchine prompts of 40 and 160 tokens wait for their mean square, not that of 100."""

    def mean_of_s(short, long):
        return (short + long) / 2 + 35.0 * (short**2 + long**2) / 2 / (2 * (1 - 35.0 * (short + long) / 2))

    recorded = replace(stream(35.0), lengths=((40, 1), (160, 1)))
    expected = mean_of_s(0.014, 0.026)
    [mean, none] = judge(
        [Station(ALONE)], [recorded],
        [Promise((0,), "ttft_s", 2 * expected, None), Promise((0,), "tpot_s", 1.0, 0.5)], 1e-4, [3],
    )  # fmt: skip
    assert mean.found == "kept" and mean.seen_s == pytest.approx(expected, rel=0.05)
    assert mean_s(0.7) < 0.97 * expected and none.requests == 0
    # With 90 of 100 tokens in the cache 4 and 16 are left to compute.
    [cached] = judge([Station(ALONE)], [replace(recorded, received_tokens=90)], [mean.promise], 1e-4, [3])
    assert cached.seen_s == pytest.approx(mean_of_s(0.0104, 0.0116), rel=0.05)


def test_a_promise_at_the_truth_is_seldom_decided_and_a_share_is_told_from_another():
    """P(no wait) of M/D/1 is 1 − ρ: a first token within the service time is what 30 % of requests see at ρ = 0.7."""
    promises = [Promise((0,), "ttft_s", SERVICE_S * 1.001, q) for q in (0.25, 0.30, 0.35)]
    found = [v.found for v in judge([Station(ALONE)], [stream(0.7 / SERVICE_S)], promises, 1e-4, [2])]
    assert found == ["kept", "undecided", "broken"]


def test_what_seems_broken_is_not_looked_at_for_long():
    """A share hardly above the true one stays undecided: with hope only after two looks, without after all."""
    promise = Promise((0,), "ttft_s", SERVICE_S * 1.001, 0.315)
    [short], [long] = (
        judge([Station(ALONE)], [stream(0.7 / SERVICE_S)], [promise], 1e-14, [2], hopeful=hopeful)
        for hopeful in (True, False)
    )
    assert short.found == long.found == "undecided"
    assert short.requests < long.requests / 3


def test_the_same_seed_sees_the_same_and_another_one_does_not():
    def seen(seed):
        [verdict] = judge([Station(ALONE)], [stream(25.0)], [Promise((0,), "ttft_s", 0.02, 0.9)], 1e-3, [seed])
        return verdict.seen_s, verdict.requests

    assert seen(3) == seen(3) != seen(4)


def test_a_rare_stream_is_seen_and_takes_little():
    streams = [stream(25.0), stream(1e-9)]
    promises = [Promise((k,), "ttft_s", 0.2, 0.95) for k in (0, 1)]
    common, rare = judge([Station(ALONE)], streams, promises, 1e-3, [5])
    assert common.found == rare.found == "kept"
    assert rare.requests / common.requests == pytest.approx(RARE / 2 / SERVICE_S / 25.0, rel=0.2)


def test_nothing_is_decided_of_latencies_that_no_request_has():
    """Answers of one token have no time per output token; without time for a second look one is undecided."""
    [verdict] = judge(
        [Station(ALONE)], [stream(5.0)], [Promise((0,), "tpot_s", 1.0, None)], 1e-3, [0], over=lambda: True
    )
    assert (verdict.found, verdict.requests) == ("undecided", 0)


def test_what_is_decoded_elsewhere_comes_as_it_was_prefilled():
    """Requests leave a queue with constant service at least that far apart: behind it nobody waits for less service.

    Of Poisson arrivals at the same rate (0.8/0.02 s, a step of 0.01 s) more than a third would.
    """
    sends, receives, step = 0.05, 0.03, ALONE.costs.fixed_s
    two = replace(stream(0.8 / SERVICE_S, output=2), station=1, onward=Onward(0, sends, receives))
    rest = receives + step
    promises = [Promise((0,), "tpot_s", rest * f, 0.999) for f in (1.001, 0.999)]
    promises += [Promise((0,), m, f * (mean_s(0.8) + s), None) for m, s in (("ttft_s", sends), ("deadline_s",
                 sends + rest)) for f in (1.02, 0.98)]  # fmt: skip
    found = judge([Station(ALONE), Station(ALONE)], [two], promises, 1e-3, [6])
    assert [v.found for v in found] == ["kept", "broken"] * 3
    assert found[0].seen_s == pytest.approx(rest)


def test_streams_of_one_promise_count_as_often_as_they_come():
    """Long prompts are a sixth of what is drawn, for both streams are rare, and one of 10,000 of what comes."""
    streams = [stream(0.01), stream(1e-6, tokens=900, load=0.1)]
    both = Promise((0, 1), "ttft_s", 0.09, 0.95)
    [verdict] = judge([Station(ALONE)], streams, [both], 1e-3, [7])
    assert verdict.found == "kept"
    [alone] = judge([Station(ALONE)], streams, [replace(both, streams=(1,))], 1e-3, [7])
    assert alone.found == "broken"


def test_a_station_s_engines_share_its_requests_at_random():
    four = Station(ALONE, 4)
    [verdict] = judge(
        [four], [stream(4 * 0.8 / SERVICE_S)], [Promise((0,), "ttft_s", 1.1 * mean_s(0.8), None)], 1e-4, [8]
    )
    assert verdict.found == "kept"
    assert verdict.seen_s == pytest.approx(mean_s(0.8), rel=0.05)
