"""References against figures that were worked out by hand, and against the library's."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.stats import nbinom, norm

from optmodels import catalog
from optmodels.catalog.types import Architecture, MoE
from optmodels.latency.speculation import Speculation
from optmodels.latency.steps import AttentionWindow, Experts, StepCosts
from optmodels.latency.work import layer_work
from tests.adversary import continuous, fleet, harness, lengths, orchestration, prefixes, reserved_capacity, static
from tests.adversary.harness import Answer
from tests.adversary.programme import Programme

INSTANCES = Path(__file__).parents[2] / "instances"


@pytest.mark.parametrize(
    ("judging", "file"),
    [
        (orchestration, "orchestration/textbook-two-servers.yaml"),
        (reserved_capacity, "reserved_capacity/textbook-two-regions.yaml"),
        (reserved_capacity, "reserved_capacity/textbook-growth-and-scenarios.yaml"),
    ],
)
def test_textbook_instances_have_the_library_s_value(judging: Any, file: str) -> None:
    data = json.loads(json.dumps(yaml.safe_load((INSTANCES / file).read_text(encoding="utf-8")), default=str))
    library = yaml.safe_load((INSTANCES / "library.yaml").read_text(encoding="utf-8"))
    known = next(x["best"]["value"] for x in library["instances"] if x["file"] == file)
    found: Answer = judging.reference(data)
    assert found.best == pytest.approx(known, rel=1e-5)


def test_only_a_precision_of_weights_and_kv_is_spelled_otherwise() -> None:
    adjusted = {"precision": {"fp16": 1.0}}  # of an engine model, as orchestration 9019 has it
    data = {"models": [{"model": "m", "precision": {"kv": "fp8"}}], "adjustments": adjusted}
    assert static.one_spelling(data) == {"models": [{"model": "m", "kv": "fp8"}], "adjustments": adjusted}


def two_of_three(**objective: Any) -> dict[str, Any]:
    """Three requests of a second each come in the first of two seconds, may wait one, and find one slot."""
    asked = {"model": "llama-3.2-3b", "output_tokens": 10, "slo_factor": 2.0, "requests_per_s": [3.0, 0.0]}
    return {
        "formulation": "orchestration", "schema": 1,
        "cluster": {"servers": [{"server": "s", "gpu": "l4", "gpus": 1}]},
        "models": [{"model": "llama-3.2-3b"}], "candidates": {"tp": [1], "batch": [1]},
        "latency": {"decay": [{"model": "llama-3.2-3b", "base_tokens_per_s": 10.0, "delta": 0.0}]},
        "requests": {"classes": [asked], "classes_bin_s": 1.0}, "objective": objective,
    }  # fmt: skip


def test_one_slot_serves_two_of_three() -> None:
    # A start keeps half a slot busy in its own bin and half in the next: x0/2 + x1/2 ≤ 1 in the second.
    assert orchestration.reference(two_of_three(alpha=1.0)).worst == pytest.approx(2 / 3)
    # Both start in the first second, so nobody waits at its end.
    assert orchestration.reference(two_of_three(alpha=0.0, beta=0.0)).worst == pytest.approx(2 / 3)


def test_slots_without_a_gpu_serve_nobody() -> None:
    data = two_of_three(alpha=1.0)
    data["cluster"]["failed_gpus"] = {"s": [0]}
    assert orchestration.reference(data).best == pytest.approx(0.0, abs=1e-9)
    data["models"][0]["minimum_instances"] = 1
    assert orchestration.reference(data).best is None


def test_groups_by_quantiles_by_hand() -> None:
    """Of 0, 1, 4, 9 and 20 the quarters are 1, 4 and 9 (on an edge is above it); half a group's width is 2.5."""
    values = [20.0, 0.0, 1.0, 4.0, 9.0]
    assert orchestration.group_of(values, 1) == [0] * 5
    assert orchestration.group_of(values, 2) == [1, 0, 0, 1, 1]
    assert orchestration.group_of(values, 4) == [3, 0, 1, 2, 3]
    assert orchestration.group_of(values, 4, [6.0]) == [3, 0, 1, 1, 3]  # in the place of 4
    assert orchestration.group_of(values, 4, [6.0, 11.6, 3.0]) == [3, 0, 0, 2, 3]  # 1 and 4 both move to 3, 9 stays
    assert orchestration.group_of(values, 4, [-0.5, 20.0]) == [3, 0, 1, 2, 3]  # outside of all
    assert orchestration.group_of([2.0, 2.0], 3) == [2, 2]
    assert orchestration.group_of([], 3) == []


COSTS = StepCosts(
    fixed_s=0.01, prompt_step_s=2e-3, prompt_token_s=1e-5, prompt_pair_s=1e-8, prompt_context_s=1e-7,
    decode_request_s=1e-4, context_s=1e-6, mixed_context_s=1e-6,
)  # fmt: skip


def test_work_of_a_request_is_what_its_steps_take() -> None:
    none = np.zeros(0)
    chunks = [COSTS.step(np.array([n]), np.array([k]), none) for n, k in ((100.0, 0.0), (100.0, 100.0), (50.0, 200.0))]
    assert continuous.prompt_s(COSTS, 250.0, 0.0, 100.0, True) == pytest.approx(sum(chunks) - 3 * COSTS.fixed_s)
    decodes = [COSTS.step(none, none, np.array([250.0 + i])) for i in range(9)]
    assert continuous.decode_s(COSTS, 250.0, 10.0, 0.5) == pytest.approx(sum(decodes) - 9 * COSTS.fixed_s)


@pytest.mark.parametrize("share", [0.25, 0.75, 0.0])
def test_prompts_under_windows_attend_to_a_band(share: float) -> None:
    # 100 tokens after 20: 120²/2 − 20²/2 = 7,000 pairs, of which a window of 40 hides (120 − 40)²/2.
    c = replace(COSTS, window=AttentionWindow(0.25, 40.0, share), prompt_token_s=0.0, prompt_context_s=0.0)
    lacks = (120 - 40) ** 2 / 2
    assert continuous.prompt_s(c, 100.0, 20.0, 100.0, False) == pytest.approx(1e-8 * (7000 - share * lacks))
    one_by_one = sum(float(c.step(np.array([1.0]), np.array([k]), np.zeros(0))) for k in range(20, 120))
    assert continuous.prompt_s(c, 100.0, 20.0, 1.0, True) == pytest.approx(one_by_one - 100 * c.fixed_s)


def test_crowds_are_negative_binomial() -> None:
    # 0.2 requests/s of 50 steps of 0.1 s at a load of a half: N₀ = 0.5.
    mean, load = continuous.allowed_crowd(64.0, 0.5), 0.5
    assert nbinom.sf(63, mean * (1 - load) / load + 1, 1 - load) == pytest.approx(0.005, rel=1e-6)
    at = continuous.crowd_at(0.99, 20.0, 0.5)
    assert at == pytest.approx(nbinom.ppf(0.99, 41, 0.5), abs=1.0)
    assert continuous.allowed_crowd(1.0, 0.5) == 0.0  # one is there half of the time


LIMITS = continuous.beside(SimpleNamespace(max_num_batched_tokens=2048), 64)
KINDS = [continuous.Kind(300.0, 200.0, 0.0, 1.0), continuous.Kind(900.0, 40.0, 0.0, 1.0)]


def best_levels(kinds: list[continuous.Kind], limits: Any, kv: float, **more: Any) -> list[continuous.Level]:
    """Those that are at no load."""
    at_loads = {*continuous.step_times(COSTS, limits)}
    return [x for x in continuous.levels(COSTS, kinds, limits, kv, **more) if x.step_s not in at_loads]


@pytest.mark.parametrize("quantile", [None, 0.9])
def test_the_best_level_is_the_longest_that_keeps_a_limit_per_token(quantile: float | None) -> None:
    limits = SimpleNamespace(**vars(LIMITS) | {"max_num_seqs": 1024})
    (new,) = best_levels(KINDS[:1], limits, 1e7, beyond=continuous.too_long(KINDS[:1], (0.02, quantile)))
    assert 0.0 <= 0.02 - continuous.tpot_s(new, 0, quantile) < 2e-5


@pytest.mark.parametrize(
    ("stage", "seqs", "kv", "row", "short"),
    [
        ("both", 64, 1e7, 1, False), ("decode", 1024, 2e4, 2, False),  # slots, cache
        ("prefill", 64, 1e7, 3, False),  # prompt tokens: of an engine that only prefills they alone rise with the step
        ("both", 4, 1e7, 1, True), ("both", 64, 2e3, 2, True), ("decode", 4, 1e7, 1, True),  # scarcer at every load
    ],
)  # fmt: skip
def test_a_best_level_is_where_time_is_as_scarce_as_what_is_next(
    stage: str, seqs: int, kv: float, row: int, short: bool
) -> None:
    limits = SimpleNamespace(**vars(LIMITS) | {"max_num_seqs": seqs})
    grid = continuous.step_times(COSTS, limits)

    def scarcer(t: float) -> float:
        x = continuous.level(COSTS, KINDS[:1], limits, kv, t, stage, [0.0])
        assert x is not None
        return max(x.rows[0][1:4]) / x.rows[0][0]

    beyond = lambda x: max(x.rows[0][1:4]) / x.rows[0][0]  # noqa: E731
    (new,) = best_levels(KINDS[:1], limits, kv, stage=stage, moved_s=[0.0], beyond=beyond)
    interval = next(t for t in grid if t > new.step_s) - max(t for t in grid if t < new.step_s)
    assert scarcer(new.step_s) <= 1.0 < scarcer(new.step_s + 1.001 * interval / 2**12)
    assert new.rows[0][row] == pytest.approx(new.rows[0][0], rel=5e-3)
    assert (0.01 < new.step_s < grid[8]) == short


def test_a_class_that_no_level_serves_has_no_best_one() -> None:
    long = continuous.Kind(6000.0, 40.0, 0.0, 1e-6)  # of more tokens than the cache has
    assert best_levels([long], LIMITS, 5000.0, beyond=continuous.too_long([long], (1.0, None))) == []


def test_the_longest_step_is_found_by_halves() -> None:
    for last in range(-1, 7):
        found = continuous.longest_step(list(range(7)), lambda t, last=last: 2.0 if t > last else 0.5)
        assert found == (None if last < 0 else last)


PLAIN = replace(COSTS, prompt_step_s=0.0)  # a₀ is 10 ms, whatever prompts there are
EVEN = replace(PLAIN, prompt_expert_s=1.15e-5)  # all 3.45 ms of a prompt of 300 tokens are the experts'
ONE = [KINDS[0]]  # 300 tokens of prompt: 3.45 ms; 199 decodes at 300, 301, …: 99.301 ms


def at_ranks(ranks: int, t: float = 0.02, kv: float = 1e7, c: StepCosts = EVEN, **more: Any) -> continuous.Level:
    """At a step of twice a₀: ρ = ½."""
    limits = SimpleNamespace(**vars(LIMITS) | {k: more.pop(k) for k in [*more] if hasattr(LIMITS, k)})
    found = continuous.level(c, more.pop("kinds", ONE), limits, kv, t, ranks=ranks, **more)
    assert found is not None
    return found


@pytest.mark.parametrize(("kv", "most_crowd_s"), [(1e4, 0.957301 / 400), (2300.0, 0.160251 / 400)])
def test_a_full_engine_may_be_full_of_the_heaviest_requests_that_fit(kv: float, most_crowd_s: float) -> None:
    # 2000 tokens of prompt are 40 ms, and 399 decodes at 2000, 2001, … 917.301 ms: 400 steps. The light ones, of which
    # there are all but one in a million, would run in more than eight slots at once if they might.
    light, heavy = continuous.Kind(100.0, 400.0, 0.0, 1.0), continuous.Kind(2000.0, 400.0, 0.0, 1e-6)
    x = at_ranks(1, kv=kv, kinds=[light, heavy], max_num_seqs=8)
    longest = 0.01 + 1.15 * 8 * most_crowd_s + x.late_token_s[0]
    assert continuous.tpot_s(x, 0, 0.9999) == pytest.approx(longest, rel=1e-4)
    assert continuous.tpot_s(x, 1, 0.9999) == pytest.approx(0.01 + 1.15 * 8 * 0.957301 / 400 + x.late_token_s[1])


@pytest.mark.parametrize("kv", [1e7, 800.0])
@pytest.mark.parametrize("seldom", [1e-6, 1.0, 1e6])
def test_prompts_vary_as_those_of_the_worst_mixture_that_a_level_takes(seldom: float, kv: float) -> None:
    # 300 tokens of prompt are 3.45 ms of 102.751, 900 are 13.05 of 52.791, and 100 are all of 1.05. A cache of 800 has
    # no place for those of 900 (for others at a low load alone), and of the others 3.45² / 102.751 is less than 1.05.
    kinds = [KINDS[0], replace(KINDS[1], weight=seldom), continuous.Kind(100.0, 1.0, 0.0, 1e-6)]
    t = 0.02 if kv == 1e7 else 0.01002
    x = at_ranks(1, t=t, kv=kv, kinds=kinds)
    assert (max(x.rows[1]) < math.inf) == (kv == 1e7)
    rho = 1 - 0.01 / t
    variance = rho * (0.01305**2 / 0.052791 if kv == 1e7 else 0.00105) * t / (1 - rho) ** 2
    assert x.prompts_var == pytest.approx([variance / 199, variance / 39, 0.0], rel=1e-6, abs=0.0)
    crowd = continuous.crowd_at(0.95, rho * 0.01 / x.crowd_s[0], rho, variance / 199 / x.crowd_s[0] ** 2)
    running = min(max(crowd, 1.0), 64 * x.most_crowd_s / x.crowd_s[0])
    assert continuous.tpot_s(x, 0, 0.95) == pytest.approx(0.01 + 1.15 * x.crowd_s[0] * running + x.late_token_s[0])


@pytest.mark.parametrize(("decodes", "counts"), [(2, 1.0), (4, 1.0), (12, 0.5), (16, 0.0), (40, 0.0)])
@pytest.mark.parametrize("quantile", [0.9, 0.99])
def test_prompts_in_the_steps_of_a_short_answer(decodes: int, counts: float, quantile: float) -> None:
    # Of one kind of requests: 300 prompt tokens, 3.45 ms, in one step with room for 1984; half of a step is work.
    x = at_ranks(1, kinds=[continuous.Kind(300.0, decodes + 1.0, 0.0, 1.0)])
    p, d, u = 3.45e-3, sum(1e-4 + 1e-6 * (300 + i) for i in range(decodes)), 300 / 1984
    busy, per_s = 0.5 * p / (p + d), 0.5 / (p + d)  # Σλp and λ
    beside = 0.01 + 0.5 * 0.02 * d / (p + d)  # a step in which prompts are prefilled, but for these
    turn = u * beside + p
    waits = per_s * turn**2 / (2 * (1 - per_s * turn))
    came = per_s * (decodes * 0.02 + beside + p + waits)  # from its arrival to its last step, in the mean
    z = norm.ppf(quantile)
    equal = continuous.followed_quantile(quantile, came, busy) * p  # each with those that come in its own time
    spread = (came + z * math.sqrt(came) + (z * z - 1) / 6) * p / (1 - busy)
    longer = min(1.15 * max(equal, spread) / decodes, p / u)
    c = (p + d) / (decodes + 1)
    few = 0.01 + 1.15 * d / decodes * max(continuous.crowd_at(quantile, 0.5 * 0.01 / c, 0.5), 1.0) + longer
    crowd = continuous.tpot_s(replace(x, prompts=(0.0, 0.0, 0.0, 0.0)), 0, quantile)
    assert continuous.tpot_s(x, 0, quantile) == pytest.approx(crowd + counts * max(few - crowd, 0.0), rel=1e-9)


@pytest.mark.parametrize("quantile", [None, 0.9])
def test_waits_fill_what_is_left_of_a_deadline(quantile: float | None) -> None:
    none = (math.inf, None)

    def ways(limit_s: float, ttft: tuple[float, float | None] = none) -> list[continuous.Way]:
        deadline = (limit_s, quantile)
        return [*continuous.ways(PLAIN, 1.5, ONE, LIMITS, lambda seqs: 1e7, ttft, none, deadline=deadline)]

    found = ways(6.0)
    assert found
    assert [x.whole_s for x in found] == pytest.approx([6.0 for _ in found])
    # Where first tokens are sooner late than whole requests, they say how long the wait is.
    sooner, unlimited = ways(1e3, (0.5, 0.9)), (math.inf, quantile)
    assert sooner == [*continuous.ways(PLAIN, 1.5, ONE, LIMITS, lambda seqs: 1e7, (0.5, 0.9), none, deadline=unlimited)]
    assert ways(0.1) == []


def test_a_closed_loop_has_the_shortest_step_that_its_requests_fill() -> None:
    # 300 tokens of prompt are 3.45 ms, 199 decodes 99.301 ms, 200 steps of 10 ms: t = 10 ms + n·102.751 ms / 200.
    loops = continuous.Loops(EVEN, 1.5, ONE, LIMITS, 1e7)
    assert loops.step_s(4) == pytest.approx(0.01 + 4 * 0.102751 / 200)
    found = loops.at_least(4)
    assert found is not None
    x, rate = found
    assert rate == pytest.approx(4 / (200 * 0.01 + 4 * 0.102751))
    assert rate * x.rows[0][0] == pytest.approx(1.0)
    for _, wait_s, of in loops.of(4):
        least_s = rate * x.turn_s[0] ** 2 / (2 * (1 - rate * x.mean_turn_s[0]))
        assert wait_s == pytest.approx(max(least_s, x.turn_s[0] / of.most))


def test_requests_wait_for_one_place_as_in_a_queue() -> None:
    # Of one place, all of whose time is theirs (γ = 1), a share b is taken: p₁/p₀ = b, as in M/M/1.
    x = replace(at_ranks(1, max_num_seqs=1), fixed_s=0.0)
    (s,) = x.in_places_s(0.1)
    assert s == pytest.approx(x.work_s[0])
    for b in (0.1, 0.5, 0.9):
        theta = 0.5 * s / (1 - b)
        assert x.least_place_s(0.1, b) == pytest.approx(max(b * theta, theta / 3))
        assert x.place_load(0.1, x.least_place_s(0.1, b), 0.95) == pytest.approx(b)
    assert x.place_load(0.1, 1e9, 0.95) == 0.95
    assert x.place_load(0.1, 0.16 * s, 0.95) == 0.0  # less than a third of half a turn


@pytest.mark.parametrize(
    ("said", "drafts", "found"),
    [
        ({}, 0, [256, 512, 1024, 2048]), ({"max_num_seqs": 7}, 0, [7]), ({"most_num_seqs": 600}, 0, [256, 512]),
        ({"max_num_batched_tokens": 2016}, 1, [256, 512, 1000]), ({"most_num_seqs": 256}, 0, [256]),
    ],
)  # fmt: skip
def test_choices_of_sequences(said: dict[str, Any], drafts: int, found: list[int]) -> None:
    limits = SimpleNamespace(**continuous.UNSAID | {"max_num_batched_tokens": 8192} | said)
    assert continuous.choices(limits, drafts) == found


def test_a_mixture_is_below_what_enough_of_each_class_is_below() -> None:
    def of(i: int, g: float | None) -> float:
        return [1.0, 10.0][i] * (1.0 if g is None else g)

    # At x = 9 all of the first class that is asked about, 0.999, and 0.9 of the second: 0.9495 of both.
    assert continuous.bound([1.0, 1.0], of, 0.9) == pytest.approx(9.0)
    assert continuous.bound([3.0, 1.0], of, 0.9) == pytest.approx(7.5)  # 0.75·0.999 + 0.25·0.75 = 0.937
    assert continuous.bound([9.0, 1.0], of, 0.9) == pytest.approx(5.0)  # 0.9·0.999 + 0.1·0.5
    assert continuous.bound([9.0, 1.0], of, 0.63) == pytest.approx(0.75)  # 0.9·0.75 without any of the second
    assert continuous.bound([1.0, 3.0], of, None) == pytest.approx(7.75)
    assert continuous.bound([2.0], of, 0.63) == pytest.approx(0.63)
    assert continuous.bound([0.0, 0.0], of, None) == 0.0
    # A rounding of shares keeps nobody out.
    assert continuous.bound([0.1, 0.2], lambda i, g: 1.0 if g == 0.7 else 2.0 * (g or 0.0), 0.7) == pytest.approx(1.0)


@pytest.mark.parametrize("quantile", [None, 0.5, 0.63, 0.9, 0.999])
@pytest.mark.parametrize("weights", [[1.0], [0.5, 0.5], [0.7, 0.2, 0.1]])
def test_the_longest_wait_is_where_the_bound_meets_its_limit(weights: list[float], quantile: float | None) -> None:
    def of(i: int, g: float | None) -> tuple[float, float]:
        return (1.0 + i, 1.0) if g is None else (1.0 + i - 0.3 * g, -math.log(1.0 - g))  # less at higher ones

    def late_s(wait: float) -> float:
        return continuous.bound(weights, lambda i, g: of(i, g)[0] + of(i, g)[1] * wait, quantile)

    wait = continuous.longest(weights, of, quantile, 20.0)
    assert late_s(wait * (1 - 1e-9)) <= 20.0 * (1 + 1e-9)
    assert late_s(wait * (1 + 1e-6)) > 20.0


def test_twins_are_one_class() -> None:
    # At a percentile from which on bounds grow: below it a class of its own may be bound at a higher one.
    limits, one = LIMITS, ONE[0]
    asked = ((5.0, 0.95), (0.2, 0.9))
    alone, twins = (
        list(continuous.ways(PLAIN, 1.5, kinds, limits, lambda seqs: 1e7, *asked))
        for kinds in ([one], [replace(one, weight=0.5), replace(one, weight=0.5)])
    )
    assert alone
    assert [x.requests_per_s for x in twins] == pytest.approx([x.requests_per_s for x in alone], rel=0.05)
    assert all(b.requests_per_s >= a.requests_per_s * (1 - 1e-9) for a, b in zip(alone, twins, strict=True))


def test_classes_are_those_of_a_list_or_a_trace() -> None:
    listed = [{"input_tokens": 8, "output_tokens": 2, "share": 3}, {"input_tokens": 4, "output_tokens": 1}]
    found = lengths.classes({"lengths": listed}, {})
    assert [(k.prompt, k.output, k.weight) for k in found] == [(8, 2, 0.75), (4, 1, 0.25)]
    assert (lengths.mean_prompt(found), lengths.mean_tokens(found), lengths.shortest(found)) == (7.0, 8.75, 5)
    trace = "TIMESTAMP,ContextTokens,GeneratedTokens\n0,10,5\n1,11,6\n2,10,64\n3,257,65\n"
    found = lengths.classes({"lengths": {"trace": "t.csv"}}, {"t.csv": trace})
    assert [(k.prompt, k.output, k.weight) for k in found] == [(11, 25, 0.75), (257, 65, 0.25)]


@pytest.mark.parametrize("ranks", [2, 8])
def test_an_engine_of_ranks_without_shares_of_its_own_is_as_many_engines(ranks: int) -> None:
    # Nothing of a chunk is another rank's to wait for, and steps cost each of them what one alone would.
    plain = replace(COSTS, experts=None, prompt_step_s=0.0, prompt_token_s=COSTS.prompt_token_s, window=None)
    none = replace(plain, prompt_pair_s=0.0, prompt_context_s=0.0, prompt_expert_s=plain.prompt_token_s)
    each = replace(none, prompt_token_s=none.prompt_token_s / ranks, decode_request_s=none.decode_request_s / ranks,
                   context_s=none.context_s / ranks, mixed_context_s=none.mixed_context_s / ranks,
                   prompt_expert_s=none.prompt_token_s / ranks)  # fmt: skip
    limits = SimpleNamespace(**vars(LIMITS) | {"quantile": 0.8})
    mixture = [(1.0, 300.0, 20.0, 0.0), (2.0, 900.0, 5.0, 0.0)]
    (one,) = continuous.engines(none, 1.0, limits, lambda _: 1e5, mixture, 4, (1.0,), (1.0, 1.0))
    (many,) = continuous.engines(each, 1.0, limits, lambda _: ranks * 1e5, mixture, 4, (1.0,), (1.0, 1.0), ranks=ranks)
    assert (many.x.step_s, many.rate) == pytest.approx((one.x.step_s, ranks * one.rate))
    assert (many.wait_s, many.running) == pytest.approx((one.wait_s, ranks * one.running))
    for row, alone in zip(many.rows, one.rows, strict=True):
        assert row == pytest.approx([x / ranks for x in alone])


@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_have_slots_cache_and_room_each(ranks: int) -> None:
    # Of time they have one; of each of their own slots, tokens and cache a rank sees so small a share of the requests.
    one, several = at_ranks(1, kv=2e4), at_ranks(ranks, kv=ranks * 2e4)
    assert one.fixed_s == several.fixed_s == 0.01
    assert one.rows[0][0] == pytest.approx(0.102751 / 0.5)
    assert one.rows[0][1] == pytest.approx(200 * 0.02 / continuous.allowed_crowd(64.0, 0.5))
    assert one.rows[0][3] == pytest.approx(300 * 0.02 / (0.9 * (2048 - 64)))
    assert several.rows[0][:4] == pytest.approx([one.rows[0][0], *(x / ranks for x in one.rows[0][1:4])])


def test_a_request_fits_the_cache_of_one_rank() -> None:
    long = [continuous.Kind(2400.0, 100.0, 0.0, 1.0)]
    assert at_ranks(1, 0.01002, 4000.0, kinds=long).rows[0][2] < math.inf
    assert at_ranks(2, 0.01002, 5002.0, kinds=long).rows[0][2] < math.inf
    assert at_ranks(2, 0.01002, 4998.0, kinds=long).rows[0][2] == math.inf


def test_a_prompt_of_one_rank_shares_its_step_with_those_of_others() -> None:
    one, two = at_ranks(1), at_ranks(2)
    beside = 0.01 + 0.01 * 99.301 / 102.751
    assert one.turn_s == pytest.approx([300 / 1984 * beside + 0.00345])
    assert two.turn_s == pytest.approx([150 / 1984 * beside + 0.00345])
    prefill = 0.5 * 3.45 / 102.751  # ρ_p
    assert one.beside_s == pytest.approx([beside])
    assert two.beside_s == pytest.approx([beside + prefill * 0.02 / 2])
    first, more = (continuous.ttft_s(x, 0, 0.95, math.inf, 0.0)[0] for x in (one, two))
    assert more - first == pytest.approx(1.15 * prefill * 0.02 / 2)
    assert continuous.ttft_s(two, 0, None, 4.0, 0.0) == continuous.ttft_s(one, 0, None, 4.0, 0.0)


def test_a_rank_is_a_queue_of_its_share_of_prompts() -> None:
    slo = SimpleNamespace(ttft_s=1.0, tpot_s=None, deadline_s=None)
    asked = SimpleNamespace(name="w/b", output_tokens=200, workload=SimpleNamespace(slo=slo, soft=None))
    for ranks in (1, 2):
        x = at_ranks(ranks)
        s, omega = x.turn_s[0], 1.0 - (0.5 + 1) * 0.02 - 0.00345 - x.late_s[0] / 2
        seen: fleet.Seen = (LIMITS, [asked], 4.0, 0.0, 1.0, False, None)  # type: ignore[list-item]
        (wait,) = fleet._waits(seen, x)
        row = fleet._at_wait(seen, math.inf, x, wait)
        assert row is not None
        assert row[0] is not None
        # Half of the prompts, each twice as long.
        assert row[0].takes[-1] == pytest.approx((ranks * s) ** 2 / (2 * omega) / ranks + x.mean_turn_s[0])
    for kept in (True, False):  # a prompt of 2 s keeps others waiting four times as long as it may wait, or longer
        slo.ttft_s = 0.5 * 1.01 ** (1 if kept else -1) + (0.5 + 1) * 0.02 + 0.00345 + x.late_s[0] / 2
        slow = replace(x, turn_s=[1.0])
        (wait,) = fleet._waits(seen, slow)
        row = fleet._at_wait(seen, math.inf, slow, wait)
        assert row is not None and (row[0] is not None) == kept


def test_a_step_waits_for_the_rank_with_a_prompt() -> None:
    # 1.5 ms of 3.45 are the experts'. Of two ranks the busy one has 1.95 ms more than its share, of three 3.9.
    c = replace(PLAIN, prompt_expert_s=5e-6)
    for ranks in (2, 3):
        x, n = (ranks - 1) * 0.00195, 0.0
        for _ in range(50):  # requests a step that fill it
            n = (0.01 - x * (1 - math.exp(-n))) / 0.102751
        base, each = x * (1 - (1 + n) * math.exp(-n)), x * math.exp(-n)
        found, even = at_ranks(ranks, c=c), at_ranks(ranks)
        assert found.fixed_s == pytest.approx(0.01 + base)
        rho = 1 - (0.01 + base) / 0.02
        assert found.rows[0][0] == pytest.approx((0.102751 + each) / rho)
        assert found.rows[0][3] == even.rows[0][3]
        prefill = rho * (0.00345 + each) / (0.102751 + each)  # ρ_p
        beside = 0.01 + base + rho * 0.02 * 0.099301 / (0.102751 + each)
        assert found.turn_s == pytest.approx([300 / ranks / 1984 * beside + 0.00345])
        assert found.beside_s == pytest.approx([beside + (1 - 1 / ranks) * prefill * 0.02])
        assert found.late_s == pytest.approx([prefill * (0.00345 + each)])
        variance = found.late_s[0] * 0.02 / 199 / (1 - prefill) ** 2
        assert found.prompts_var == pytest.approx([variance], rel=1e-6, abs=0.0)
        first = 1.5 * 0.02 + 0.00345 + x - base + found.late_s[0] / 2
        assert continuous.ttft_s(found, 0, None, 4.0, 0.0)[0] == pytest.approx(first)
        quick = at_ranks(ranks, c=c, stage="decode")
        assert quick.rows == at_ranks(ranks, stage="decode").rows


def test_the_longest_of_the_chunks_of_a_step() -> None:
    many, x, rng = [0.5, 2.0, 0.3], [0.004, 0.001, 0.002], np.random.default_rng(1)
    base, each = continuous.longest_chunks(many, x, 0.03, 0.02, 0.001, (0.2, 2.6))
    pays = sum(m * g for m, g in zip(many, each, strict=True))

    def longest(n: float) -> float:
        drawn = rng.poisson([n * m for m in many], (200_000, 3)) > 0
        return float((drawn * np.array(x)).max(axis=1).mean())

    # At n requests a step: 20 ms each, a fifth of a step filled, 2.6 chunks beside, and the longest.
    n = next(n for n in np.linspace(0, 2, 4001).tolist()
             if 0.02 * n + 0.001 * (0.2 * n + 1 - math.exp(-2.6 * n)) + base + n * pays > 0.03)  # fmt: skip
    assert base + n * pays == pytest.approx(longest(n), abs=1e-5)
    for other in (0.3 * n, 3 * n):
        assert base + other * pays > longest(other) + 1e-4
    assert continuous.longest_chunks(many, x, 0.0005, 0.02, 0.001, None) == (0.0, pytest.approx(x))  # no room at all


def test_ranks_run_so_many_times_as_many() -> None:
    one, two = (at_ranks(n, max_num_seqs=8) for n in (1, 2))  # 20 run in the mean, if they may
    fewer, more = (continuous.tpot_s(x, 0, 0.95) for x in (one, two))
    assert more - fewer == pytest.approx(1.15 * 8 * 0.102751 / 200)


def test_ranks_touch_experts_together() -> None:
    experts = replace(PLAIN, experts=Experts(6.4e-3, 8, 1))
    more: dict[str, Any] = {"c": experts, "stage": "decode", "max_num_seqs": 1}
    assert at_ranks(1, **more).fixed_s == pytest.approx(0.01 + 0.8e-3)  # one of eight
    assert at_ranks(2, **more).fixed_s == pytest.approx(0.01 + 1.5e-3)  # 15 of 64


def test_ranks_share_experts_and_nothing_else() -> None:
    shape = Architecture(
        layers=2, hidden=64, heads=2, kv_heads=2, head_dim=32, ffn=128, ffn_matrices=2, vocab=100, max_positions=4096,
        moe=MoE(experts=4, active=1, expert_ffn=64),
    )  # fmt: skip
    # Bytes: experts 2·4·2·64·64·2, all else (2·4·64² + 2·64·4 + 2·100·64)·2; a pass of ten tokens and three logits.
    experts, rest, one_pass, token = 131_072, 92_160, 10 * (768 + 128) + 3 * 400, 512
    for ranks in (1, 2, 4):
        found = continuous.kv_tokens(layer_work(shape), shape, 1e6, 1, 10, 3, 100.0, ranks=ranks)
        assert found == pytest.approx((ranks * (1e6 - rest - one_pass) - experts) / token)


def test_ranks_hold_experts_that_one_gpu_cannot() -> None:
    shape = {
        "layers": 2, "hidden": 64, "heads": 2, "kv_heads": 2, "head_dim": 32, "ffn": 128, "ffn_matrices": 2,
        "vocab": 100, "max_positions": 4096, "moe": {"experts": 64, "active": 1, "expert_ffn": 64},
    }  # fmt: skip
    machine = {"machine": "m", "gpu": "h100", "gpu_count": 2, "vram_gib": 4 / 1024, "prices": {"on_demand": 3.0}}
    data: dict[str, Any] = {
        "formulation": "fleet", "schema": 1, "serving": "continuous", "pool": {"machines": [machine]},
        "workloads": [{"name": "w", "model": shape, "buckets": [
            {"input_tokens": 100, "output_tokens": 10, "requests_per_s": 1.0},
        ]}],
        "engine": {"max_num_seqs": 8, "max_num_batched_tokens": 120},
        "memory": {"vram_usable": 1.0, "runtime_gib": 0.0}, "strategies": {"tensor_parallel": [1]},
    }  # fmt: skip
    assert fleet.reference(data).best is None  # 2 MiB of experts, on GPUs of 2 MiB
    data["strategies"]["attention_ranks"] = [1, 2]
    assert fleet.reference(data).worst == pytest.approx(3.0)


STAGES: dict[str, Any] = {  # 2 × 1 USD/h to prefill and 3 × 2 to decode, or 2 × 5 for both
    "formulation": "fleet", "schema": 1, "deployment": {"stages": ["both", "prefill", "decode"]},
    "workloads": [{"name": "w", "buckets": [{"name": "b", "requests_per_s": 3.0}]}],
    "points": [
        {"name": "first", "stage": "prefill", "usd_per_hour": 1.0, "tp": 1, "requests_per_s": {"w/b": 2.0}},
        {"name": "then", "stage": "decode", "usd_per_hour": 2.0, "tp": 1, "requests_per_s": {"w/b": 1.0}},
        {"name": "whole", "usd_per_hour": 5.0, "requests_per_s": {"w/b": 1.5}},
    ],
}  # fmt: skip
FAR = STAGES["points"][1] | {"name": "far", "usd_per_hour": 0.1, "region": "far"}


@pytest.mark.parametrize(
    ("more", "workload", "then", "usd"),
    [
        ({}, {}, {}, 8.0),
        ({}, {}, {"region": "far"}, 10.0),
        ({"deployment": STAGES["deployment"] | {"link": {"tensor_parallel": "equal"}}}, {}, {}, 8.0),
        ({"deployment": STAGES["deployment"] | {"link": {"tensor_parallel": "equal"}}}, {}, {"tp": 2}, 10.0),
        ({}, {"spot_share_max": 0.0}, {"market": "spot"}, 10.0),
        ({"reserve": {"lost": 1}}, {}, {}, 3 * 1.0 + 4 * 2.0),
        ({}, {"min_replicas": 4}, {}, 4 * 1.0 + 4 * 2.0),
        ({"points": [*STAGES["points"], FAR]}, {"min_replicas": 4}, {}, 4 * 1.0 + 4 * 2.0),  # FAR completes nothing
        ({"budget_usd_per_hour": 7.9}, {}, {}, None),
    ],
)  # fmt: skip
def test_measured_stages(more: Any, workload: Any, then: Any, usd: float | None) -> None:
    data = STAGES | more
    data["workloads"] = [data["workloads"][0] | workload]
    data["points"] = [q | then if q["name"] == "then" else q for q in data["points"]]
    found = harness.judge("fleet", data, False)
    assert (found.outcome, found.reference) == ("same", usd if usd is None else pytest.approx(usd))


def test_measured_models_keep_a_floor() -> None:
    # 18 of 25 requests/s on large ones: one in the mean of 0.7 and 0.9 is half of them.
    models = [{"name": "8B", "model": "llama-3.1-8b", "quality": 0.7}, {"name": "70B", "model": "llama-3.3-70b"}]
    models[1]["quality"] = 0.9
    buckets = [{"name": "short", "requests_per_s": 20.0}, {"name": "long", "requests_per_s": 5.0}]

    def point(name: str, usd: float, model: str, short: float, long: float, **more: str) -> dict[str, Any]:
        rates = {"chat/short": short, "chat/long": long}
        return {"name": name, "usd_per_hour": usd, "model": model, "requests_per_s": rates, **more}

    data = STAGES | {
        "workloads": [{"name": "chat", "models": models, "quality_at_least": 0.8, "buckets": buckets}],
        "points": [
            point("small", 3, "8B", 6, 2), point("large", 9, "70B", 4, 1),
            point("first", 4, "70B", 10, 2, stage="prefill"), point("then", 4, "70B", 7, 4, stage="decode"),
        ],
    }  # fmt: skip
    assert fleet.reference(data).best == pytest.approx(28.0)  # 4 small ones, 2 of either stage: formulations/fleet
    del data["workloads"][0]["quality_at_least"]
    assert fleet.reference(data).best == pytest.approx(18.0)  # 20/6 + 5/2 small ones


def test_what_guesses_sends_its_cache_too() -> None:
    # Keys and values of two heads of 32 in 16 bits: 256 bytes a token and layer.
    shape = Architecture(layers=2, hidden=64, heads=2, kv_heads=2, head_dim=32, ffn=128, ffn_matrices=2, vocab=100,
                         max_positions=4096)  # fmt: skip
    half = {"layers": 1, **shape.model_dump(exclude={"layers"})}
    some = {"drafts": 2, "accepted": 1.0}
    guesses = [None, *(Speculation.model_validate(some | s) for s in ({"head": 0.5}, {"draft": half}))]
    found = [continuous.sent_bytes(static.caches(shape, s, "fp16", "fp16"), 100.0) for s in guesses]
    assert found == pytest.approx([51_200, 76_800, 76_800])


def test_a_cache_grows_after_the_first_token() -> None:
    # Starts at 0 … 1 s; grows from the 2nd to the 4th second after.
    found = continuous._growing(2.0, 4.0, 1.0, 6)
    assert found.sum() == pytest.approx(1.0)  # two seconds of a half
    assert found[:2].tolist() == [0.0, 0.0]
    assert found[2] == pytest.approx(1 / 12)  # ∫∫ (v − u)/2 over 0 ≤ u ≤ v ≤ 1
    assert found[5] == pytest.approx(0.0)


def apart(stage: str) -> continuous.Engine:
    """Of prompts of 1,000 tokens and answers of 100; caches of 131 MB have a quarter of a GB/s to themselves."""
    shape = catalog.llms()["llama-3.1-8b"]
    network = continuous.Network(1e9, 0.75, 0.01, [(layer_work(shape, "fp16", "fp16"), shape, 1.0)])
    limits = SimpleNamespace(**vars(LIMITS) | {"max_num_seqs": 64, "max_num_batched_tokens": 2064, "quantile": 0.8})
    mixture = [(1.0, 1000.0, 100.0, 0.0)]
    (found,) = continuous.engines(
        COSTS, 1.0, limits, lambda _: 1e6, mixture, 4, (1.0,), (1.0, 1.0), stage, None if stage == "both" else network
    )
    return found


SENT_S = 0.131072 / 0.25 + 0.01
FACTOR = math.e * 0.2  # of a mean wait over that at the quantile 0.8


def test_prompts_alone() -> None:
    e = apart("prefill")
    # 1.8 prompts of 15 ms fill a step to 90 %, beside 10 ms and 2 for carrying prompts.
    assert e.x.step_s == pytest.approx(0.012 + 1.8 * 0.015)
    busy, t = 0.027 / 0.039, 0.039
    turn_s = 0.015 + 0.012 / 2  # half a step is its tokens', which has nothing else in it
    assert e.wait_s == pytest.approx(4 * turn_s * FACTOR)
    assert e.firsts[0] == pytest.approx(1.5 * t + 0.015 + busy * 0.015 / 2 + e.wait_s)
    assert e.rests[0] == pytest.approx(SENT_S)
    assert e.lates[0] == e.wholes[0] > e.firsts[0] + SENT_S
    assert e.rate == pytest.approx(1.8 / t)
    work, running, cache, tokens, chunks, waits, link = (row.sum() for row in e.taken([0], 1.0, 9))
    assert (work, tokens, chunks) == pytest.approx((0.015 / busy, 1000 * t / 1800, 0.0))
    assert waits == pytest.approx(turn_s**2 / (2 * e.wait_s) + turn_s)
    assert running == pytest.approx(t / continuous.allowed_crowd(64.0, busy))
    assert cache == pytest.approx(e.rows[0][2])
    assert link == pytest.approx(0.131072 / 0.75)


def test_decodes_alone() -> None:
    e = apart("decode")
    decode_s = 99 * 1e-4 + 1e-6 * (99 * 1000 + 99 * 98 / 2)
    t = 0.01 + 4 * decode_s / 99
    rho = 1 - 0.01 / t
    assert e.x.step_s == pytest.approx(t)
    joins_s = 0.131072 / 0.25 + t
    assert e.firsts[0] == pytest.approx(joins_s)
    assert e.rests[0] == pytest.approx(99 * (0.01 + decode_s / 99) / (1 - rho))
    assert e.wholes[0] - joins_s == pytest.approx(99 * continuous.beside_s(e.x, 0.8))
    work, running, _, *of_prompts, link = (row.sum() * 0.1 for row in e.taken([0], 0.1, 90, since=2.0))
    assert not any(of_prompts)
    assert not any(row[:19].any() for row in e.taken([0], 0.1, 90, since=2.0))
    assert (work, link) == pytest.approx((decode_s / rho, 0.131072 / 0.75))
    assert running == pytest.approx(99 * t / continuous.allowed_crowd(64.0, rho))


def test_who_cannot_be_in_time_takes_nothing_of_an_engine() -> None:
    limits = SimpleNamespace(**vars(LIMITS) | {"max_num_seqs": 64, "max_num_batched_tokens": 2064, "quantile": 0.8})
    mixture = [(1.0, 1000.0, 100.0, 0.0), (1.0, 1000.0, 50.0, 0.0), (1.0, 200.0, 20.0, 0.0)]
    (e,) = continuous.engines(COSTS, 1.0, limits, lambda _: 1e6, mixture, 4, (1.0,), (1.0, 1.0))
    c = orchestration.Candidate(0, "h100", 1, 1, 1, 4, 1, 0.0, 0.0, e)
    prompt, output = np.array([1000.0, 1000.0, 200.0]), np.array([100.0, 50.0, 20.0])
    due = np.array(e.wholes) + np.array([0.3, -0.1, 0.1])
    q = orchestration.Group(0, 1.0, np.array([3.0]), prompt, output, due, np.arange(3))
    route = orchestration.Route(c, c, (0, 0))
    share, wait_s, who = q.able(route, None, 0.0)
    assert (share, wait_s) == pytest.approx((2 / 3, 0.2))
    assert who.service(route) == pytest.approx(sum(e.firsts[i] + e.rests[i] for i in (0, 2)) / 2)
    # A limit on first tokens leaves who may start as it is, so that a looser one loses nothing.
    tight, wait_s, same = q.able(route, e.lates[2] + 0.01, 0.0)
    assert e.lates[2] + 0.01 < e.lates[0]
    assert tight == pytest.approx(1 / 3)
    assert wait_s == pytest.approx(0.01 / 2)
    assert same.service(route) == pytest.approx(who.service(route))
    slots = orchestration.Candidate(0, "h100", 1, 1, 1, 4, 1, 50.0, 0.0)
    two_s = replace(q, due=np.array([2.5, 1.5, 0.1]))  # of 50 tokens a second
    share, wait_s, who = two_s.able(orchestration.Route(slots, slots, (0, 0)), None, 0.0)
    assert (share, wait_s) == pytest.approx((2 / 3, 0.5))
    assert who.service(orchestration.Route(slots, slots, (0, 0))) == pytest.approx(170 / 150)


@pytest.mark.parametrize(("part", "count"), [(1.0, 1), (0.5, 2), (0.3, 4), (0.2, 6), (0.08, 16), (1e-9, 1024)])
def test_engines_that_share_requests_alike(part: float, count: int) -> None:
    assert prefixes.engines(part) == count


def test_what_caches_have_of_prompts() -> None:
    # Blocks of 16 tokens. The first: three whole blocks and one of its own, of the prompt's last token and the answer.
    first, again = (prefixes.Request(49, 15, 1.0, (1, 2, 3, 4)) for _ in range(2))
    ends, other = prefixes.Request(48, 16, 1.0, (1, 2, 3)), prefixes.Request(16, 16, 1.0, (5,))
    mine = [0, 0, 0, 0]
    assert prefixes.found([first, again, ends, other], mine, 16, 100) == [0, 3, 2, 0]  # a token is left to compute
    assert prefixes.found([first, other, again], [0, 1, 0], 16, 4) == [0, 0, 3]
    assert prefixes.found([first, other, again], mine, 16, 4) == [0, 0, 2]  # two blocks push out its own and the last
    assert prefixes.found([first, again], mine, 16, 0) == [0, 0]
    assert prefixes.found([first, again, again], mine, 16, 100, [1, 0, 0]) == [0, 0, 3]  # the first is too late


def one_region(**more: Any) -> dict[str, Any]:
    """Two and a half requests a second; a machine serves one, for 2 USD/h, or 1 where reserved."""
    return {
        "formulation": "reserved_capacity", "schema": 1, "regions": [{"region": "a"}], "network": {"rtt_ms": {}},
        "services": [{
            "service": "s", "slo": {"ttft_s": 1.0},
            "demand": {"kind": "inline", "unit": "requests_per_second", "by_region": {"a": [2.5]}},
        }],
        "machines": [{
            "machine": "m", "prices": {"on_demand": 2.0, "reserved_1y": 1.0},
            "serves": {"s": {"requests_per_second": 1.0}},
        }],
        "terms": ["reserved_1y", "on_demand"],
    } | more  # fmt: skip


@pytest.mark.parametrize(
    ("more", "usd_per_hour"),
    [
        ({}, 3.0),  # two reserved and half a machine by the hour, or three reserved
        ({"terms": ["on_demand"]}, 5.0),
        ({"utilisation": 0.5}, 5.0),
        ({"uncertainty": {"worst_case": {"deviation": 0.9, "regions": 1}}, "terms": ["reserved_1y"]}, 5.0),
        ({"resilience": {"lose_any_region_keep": 0.1}}, None),
        ({"growth": {"quarters": 2, "beyond_horizon_charged": 0.0}}, 3.0),
        # Charged to the end of its term a machine costs (1 + 3)/1 of its price within one quarter.
        ({"growth": {"quarters": 1}}, 5.0),
    ],
)
def test_one_machine_serves_one_request_a_second(more: dict[str, Any], usd_per_hour: float | None) -> None:
    found = reserved_capacity.reference(one_region(**more))
    if usd_per_hour is None:
        assert found.best is None
    else:
        assert found.best == pytest.approx(730 * usd_per_hour, rel=1e-5)
        assert found.worst == pytest.approx(730 * usd_per_hour, rel=1e-5)


@pytest.mark.parametrize(("deadline_s", "usd_per_hour"), [(0.55, 3.0), (0.5, 3.0), (0.49, None)])
def test_whole_requests_are_in_time_or_the_machine_is_out_of_reach(
    deadline_s: float, usd_per_hour: float | None
) -> None:
    data = one_region(network={"rtt_ms": {}, "local_rtt_ms": 100.0})
    data["services"][0]["slo"]["deadline_s"] = deadline_s
    data["machines"][0]["serves"]["s"]["e2e_s"] = 0.4
    found = reserved_capacity.reference(data)
    assert found.worst == (None if usd_per_hour is None else pytest.approx(730 * usd_per_hour, rel=1e-5))


@pytest.mark.parametrize(("away_s", "batch"), [(0.0, 14), (0.3, 7), (5.0, None)])
def test_of_batches_that_reach_a_region_in_time_the_largest_carries_most(
    monkeypatch: pytest.MonkeyPatch, away_s: float, batch: int | None
) -> None:
    # A prompt takes 10 ms, and each of nine steps 40 ms and 5 for each request: 0.37 s and 45 ms for each, of 1.01 s.
    monkeypatch.setattr(reserved_capacity, "_engine", lambda *given: (0.04 + 0.005 * given[5], 0.01, 0.01))
    w = {"model": "llama-3.1-8b", "input_tokens": 100, "output_tokens": 10}
    service = {"service": "s", "slo": {"ttft_s": 1.0, "tpot_s": 1.0, "deadline_s": 1.01}, "workload": w}
    found = reserved_capacity._serving({"latency": {"model": "default"}}, {"gpu": "h100"}, service, [away_s])
    within = [x for x in found if x[2] + away_s <= 1.01]
    if batch is None:
        assert not within
    else:
        decoding_s = 9 * (0.04 + 0.005 * batch)
        assert max(within) == pytest.approx((batch / (batch * 0.01 + decoding_s), 0.01, 0.01 + decoding_s))


def test_a_row_of_nothing_that_does_not_hold_is_infeasible() -> None:
    p = Programme()
    p.row({}, low=1.0)
    assert p.solve() is None


def test_dear_things_do_not_hide_cheap_ones() -> None:
    p = Programme()
    dear, cheap, cheaper = p.variable(1e9), p.variable(2e-6), p.variable(1e-6, high=0.5)
    p.row({dear: 1.0, cheap: 1.0, cheaper: 1.0}, low=1.0)
    found = p.solve()
    assert found is not None
    assert found.value == pytest.approx(1.5e-6)


@pytest.mark.parametrize(("came", "busy"), [(0.5, 0.27), (3.0, 0.5), (0.2, 0.8)])
def test_prompts_that_follow_prompts_are_those_of_a_queue(came: float, busy: float) -> None:
    """Customer by customer: each brings a Poisson number of others."""
    rng = np.random.default_rng(5)
    here = rng.poisson(came, 200_000)
    total = here.copy()
    while here.any():
        here = rng.poisson(busy * here)
        total += here
    for quantile in (0.9, 0.95, 0.99):
        at = continuous.followed_quantile(quantile, came, busy)
        assert float((total <= at - 1).mean()) <= quantile + 0.002 and float((total <= at).mean()) >= quantile - 0.002
