"""Speculative decoding by hand: tokens of a step, what it costs, what it takes of memory, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from optmodels import catalog
from optmodels.engine.continuous import EngineLimits
from optmodels.errors import InputError
from optmodels.io.read import validate
from optmodels.latency.memory import Drafts, kv_bytes, kv_tokens, pass_bytes, weight_bytes
from optmodels.latency.speculation import Speculation, with_drafts
from optmodels.latency.steps import AttentionWindow, Experts, StepCosts
from optmodels.latency.work import layer_work
from optmodels.plans.engines import drafted
from optmodels.units import GIB

TARGET = StepCosts(
    fixed_s=0.02, prompt_step_s=0.001, prompt_token_s=2e-5, prompt_pair_s=1e-8, prompt_context_s=1e-7,
    decode_request_s=5e-5, context_s=1e-7, mixed_context_s=2e-7, request_s=0.01,
)  # fmt: skip
SMALL = StepCosts(
    fixed_s=0.001, prompt_step_s=1e-4, prompt_token_s=1e-6, prompt_pair_s=1e-9, prompt_context_s=1e-8,
    decode_request_s=4e-6, context_s=1e-8, mixed_context_s=3e-8, request_s=0.5,
)  # fmt: skip


def test_tokens_of_a_step():
    """Leviathan et al., equation (1): (1 − pᵏ⁺¹)/(1 − p)."""
    assert Speculation(drafts=3, acceptance=0.7).tokens == pytest.approx((1 - 0.7**4) / 0.3)
    assert Speculation(drafts=5, acceptance=1.0).tokens == 6
    assert Speculation(drafts=5, acceptance=0.0).tokens == 1
    assert Speculation(drafts=4, accepted=1.9).tokens == pytest.approx(2.9)
    rng = np.random.default_rng(0)
    accepted = np.cumprod(rng.random((100_000, 4)) < 0.6, axis=1).sum(axis=1)
    assert Speculation(drafts=4, acceptance=0.6).tokens == pytest.approx(1 + accepted.mean(), rel=5e-3)


def test_a_step_with_a_draft_model_by_hand():
    """Two passes of the draft for 10 requests over 1,000 tokens, and three tokens of each verified."""
    both = with_drafts(TARGET, Speculation(drafts=2, acceptance=0.5, draft="llama-3.2-3b"), SMALL)
    none, contexts = np.zeros(0), np.full(10, 1000.0)
    verify = 0.02 + 10 * (5e-5 + 1000 * 1e-7) + 10 * 2 * 2e-5 + 10 * 1e-8 * (1001 + 1002)
    guess = 2 * (0.001 + 10 * (4e-6 + 1000 * 1e-8))
    assert both.step(none, none, contexts) == pytest.approx(verify + guess, rel=1e-12)
    # Prompt tokens go through both models once; what a request costs outside of steps, it costs once.
    prompt = 0.02 + 0.001 + 2e-5 * 400 + 1e-8 * 400 * (100 + 200) + 1e-7 * 100
    prompt += 2 * 0.001 + 1e-4 + 1e-6 * 400 + 1e-9 * 400 * (100 + 200) + 1e-8 * 100
    assert both.step(np.array([400.0]), np.array([100.0]), none) == pytest.approx(prompt, rel=1e-12)
    assert (both.drafts, both.tokens, both.request_s) == (2, 1.75, 0.01)


def test_heads_and_guesses_that_cost_nothing_by_hand():
    experts = Experts(0.008, 64, 4)
    moe = StepCosts(**vars(TARGET) | {"experts": experts})
    none, contexts = np.zeros(0), np.full(5, 300.0)
    free = with_drafts(moe, Speculation(drafts=3, accepted=0.4), None)
    verify = 0.02 + 5 * (5e-5 + 300e-7) + 5 * (3 * 2e-5 + 1e-8 * (301 + 302 + 303))
    verify += 0.008 * (1 - (60 / 64) ** 20)  # 5 requests of 4 tokens
    assert free.step(none, none, contexts) == pytest.approx(verify, rel=1e-12)
    head = with_drafts(moe, Speculation(drafts=3, accepted=0.4, head=0.02), None)
    each = 0.02 * (0.02 + 0.008 + 5 * (5e-5 + 300e-7))  # every expert of the head's layer
    assert head.step(none, none, contexts) == pytest.approx(verify + 3 * each, rel=1e-12)


@pytest.mark.parametrize("s", [
    Speculation(drafts=1, acceptance=1.0, draft="x"), Speculation(drafts=4, acceptance=0.8, head=0.05),
    Speculation(drafts=6, accepted=2.25),
])  # fmt: skip
def test_the_check_has_the_same_costs_in_its_own_way(s):
    moe = StepCosts(**vars(TARGET) | {"experts": Experts(0.004, 8, 2), "window": AttentionWindow(0.5, 40, 0.5)})
    small = StepCosts(**vars(SMALL) | {"window": AttentionWindow(0.5, 40, 0.5)}) if s.draft else None
    made, again = with_drafts(moe, s, small), drafted(moe, small, s)
    assert {k: v for k, v in vars(made).items() if k.endswith("_s") or k == "tokens"} == pytest.approx(
        {k: v for k, v in vars(again).items() if k.endswith("_s") or k == "tokens"}, rel=1e-12
    )
    assert (made.drafts, made.experts, made.window) == (again.drafts, again.experts, again.window)
    assert drafted(moe, None, None) is moe


def test_memory_of_drafts_by_hand():
    """Weights and cache of the draft model beside; a head's as a share; k more logits of each request."""
    work, small = (layer_work(catalog.llms()[m], "fp16", "fp16") for m in ("llama-3.1-70b", "llama-3.2-3b"))
    given = {"vram_bytes": 80 * GIB, "tp": 4, "runtime_bytes": 0.0, "chunk_tokens": 8192.0, "max_requests": 128.0}
    alone = kv_tokens(work, **given)
    room = 4 * 0.9 * 80 * GIB - float(weight_bytes(work, 4)) - float(pass_bytes(work, 4, 8192.0, 128.0))
    assert alone == pytest.approx(room / float(kv_bytes(work, 4, 1.0, 1.0)))
    logits = float(pass_bytes(work, 4, 8192.0, 128.0 * 5) - pass_bytes(work, 4, 8192.0, 128.0))
    beside = kv_tokens(work, **given, drafts=Drafts(4, small))
    both = float(kv_bytes(work, 4, 1.0, 1.0) + kv_bytes(small, 4, 1.0, 1.0))
    assert beside == pytest.approx((room - logits - float(weight_bytes(small, 4))) / both)
    head = kv_tokens(work, **given, drafts=Drafts(4, None, 0.02))
    left = room - logits - 0.02 * float(weight_bytes(work, 4))
    assert head == pytest.approx(left / (1.02 * float(kv_bytes(work, 4, 1.0, 1.0))))


@pytest.mark.parametrize(("given", "said"), [
    ({"speculation": [{"drafts": 2}]}, "either acceptance or accepted"),
    ({"speculation": [{"drafts": 2, "acceptance": 0.5, "accepted": 1}]}, "either acceptance or accepted"),
    ({"speculation": [{"drafts": 2, "accepted": 2.5}]}, "accepted at most drafts, 2"),
    ({"speculation": [{"drafts": 2, "accepted": 1, "draft": "x", "head": 0.1}]}, "either draft or head"),
    ({"speculation": [{"drafts": 0, "accepted": 0}]}, "drafts"),
    ({"speculation": [{"drafts": 1, "accepted": 1}, {"model": "x", "drafts": 1, "accepted": 1}]}, "alone where it is"),
    ({"speculation": [{"drafts": 7, "accepted": 1}], "max_num_seqs": 64, "max_num_batched_tokens": 512},
     "at least max_num_seqs × 8"),
])  # fmt: skip
def test_what_cannot_be_is_refused(given, said):
    with pytest.raises(InputError, match=said):
        validate(EngineLimits, given)


def test_a_draft_model_with_other_windows_is_refused():
    windowed = StepCosts(**vars(TARGET) | {"window": AttentionWindow(0.5, 128, 0.5)})
    with pytest.raises(InputError, match=r"speculation\[0\]\.draft.*attention window"):
        with_drafts(windowed, Speculation(drafts=1, accepted=0.5, draft="x"), SMALL)
