"""The verb `simulate` as users type it."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import optmodels
from optmodels import catalog
from optmodels.catalog.types import Window
from optmodels.latency.fit.document import read_latency_model
from optmodels.latency.fit.steps import HOST_REQUEST_S, step_costs
from optmodels.latency.steps import StepCosts
from optmodels.reporting.simulate import simulate_lines

ON = ("simulate", "--model", "llama-3.1-8b", "--gpu", "h100")
TRACE = "arrival_s,prompt_tokens,output_tokens\n0,1000,3\n10,200,1\n"
TRUE = StepCosts(
    fixed_s=8e-3, prompt_step_s=1e-3, prompt_token_s=3e-5, prompt_pair_s=1e-9, prompt_context_s=1e-7,
    decode_request_s=2e-5, context_s=9e-8, mixed_context_s=1.6e-7,
)  # fmt: skip


def test_one_deployment_on_a_poisson_trace(cli, folder):
    seen = cli(*ON, "--trace", "poisson:4:200-2000:50-400:60", "--ttft-limit", "0.5", "--out", "out")
    assert seen.status == 0, seen.err
    assert "TTFT, s" in seen.out and "KV use" in seen.out and "engine coefficients" in seen.out
    [written] = (folder / "out").iterdir()
    report = json.loads((written / "simulate.json").read_text())["report"]
    rows = pd.read_csv(written / "requests.csv")
    assert len(rows) == report["requests"] and report["refused"] == 0
    assert report["ttft_s"]["p95"] == pytest.approx(np.quantile(rows["ttft_s"], 0.95))
    assert report["good_share"] == pytest.approx((rows["ttft_s"] <= 0.5).mean())
    over = report["over_time"]
    assert {len(v) for v in over.values()} == {len(over["time_s"])} and max(over["kv_use"]) <= 1
    again = optmodels.simulate("llama-3.1-8b", "h100", "poisson:4:200-2000:50-400:60", ttft_limit=0.5)
    assert again["report"] == report


def test_the_interval_of_latencies_and_what_a_trace_left_out_are_said(cli, folder):
    rows = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"]
    rows += [f"{i},ChatGPT,100,{20 * (i != 3)},{100 + 20 * (i != 3)},Conversation log" for i in range(6)]
    (folder / "burst.csv").write_text("\n".join(rows))
    seen = cli("simulate", "--model", "llama-3.1-8b", "--gpu", "l40s", "--trace", "burst.csv")
    assert "1 of 6 requests left out" in seen.out
    assert "llama-3.1-8b on 1 × l40s" in seen.out and "no measurement of this GPU" in seen.out
    assert "benchmarks TPOT was at most" in " ".join(seen.out.split())


def test_model_is_the_llm_as_in_plan(cli):
    rest = ("--gpu", "h100", "--trace", "poisson:4:500:100:30", "--json")
    ways = [
        ("--model", "llama-3.1-8b"),
        ("--model", "llama-3.1-8b"),
        ("--model", "llama-3.1-8b", "--latencies", "default"),
    ]
    seen = [json.loads(cli("simulate", *way, *rest).out)["report"] for way in ways]
    assert seen[0] == seen[1] == seen[2]
    peak = json.loads(cli("simulate", *ways[0], "--latencies", "roofline", *rest).out)["report"]
    assert peak != seen[0]
    assert "roofline" in cli("simulate", "--model", "roofline", *rest).err


def test_the_cache_of_layers_with_windows_holds_by_the_length_of_the_requests(monkeypatch):
    """gpt-oss-20b: 12 of 24 layers keep 128 tokens, so a request of 200 + 56 takes 18 layers' worth, one of 64 all 24.

    Where all layers have a window, the cache holds so many tokens of such requests, not infinitely many.
    """

    def held(prompt, output):
        return optmodels.simulate("gpt-oss-20b", "h100", f"poisson:2:{prompt}:{output}:5", latencies="roofline",
                                  precision="fp4")["deployment"]["kv_tokens"]  # fmt: skip

    assert held(200, 56) == pytest.approx(24 / 18 * held(32, 32), rel=1e-6)
    llms = dict(catalog.llms())
    llms["gpt-oss-20b"] = llms["gpt-oss-20b"].model_copy(update={"window": Window(tokens=128, layers=24)})
    monkeypatch.setattr(catalog, "llms", lambda: llms)
    assert held(200, 56) == pytest.approx(2 * held(32, 32), rel=1e-6)


def test_a_model_of_measured_steps_by_hand(cli, folder):
    rng = np.random.default_rng(0)
    chunk, context, decodes = rng.choice([0, 64, 512, 2048], 400), rng.choice([0, 512], 400), rng.integers(1, 64, 400)
    each = rng.integers(16, 4096, 400)
    seconds = [
        TRUE.step(np.array([p] if p else []), np.array([k] if p else []), np.full(n, c, dtype=float))
        for p, k, n, c in zip(chunk, context, decodes, each, strict=True)
    ]
    names = ("prefill_tokens", "prefill_context_tokens", "decode_requests", "decode_context_tokens", "latency_s")
    columns = dict(zip(names, (chunk, context, decodes, each, seconds), strict=True))
    pd.DataFrame(columns).to_csv(folder / "steps.csv", index=False)
    fitted = cli("calibrate", "steps.csv", "--form", "steps", "--out", "steps.yaml")
    assert fitted.status == 0, fitted.err
    costs = step_costs(read_latency_model(folder / "steps.yaml"))
    for name, value in vars(TRUE).items():
        if value:
            host = HOST_REQUEST_S if name == "decode_request_s" else 0.0
            assert getattr(costs, name) == pytest.approx(value + host, rel=1e-3)
    (folder / "trace.csv").write_text(TRACE)
    seen = cli(*ON, "--latencies", "steps.yaml", "--trace", "trace.csv", "--json")
    report = json.loads(seen.out)["report"]
    alone = [8e-3 + 1e-3 + 3e-5 * p + 1e-9 * p * p / 2 for p in (1000, 200)]
    assert report["ttft_s"]["mean"] == pytest.approx(np.mean(alone), rel=1e-3)
    assert report["tpot_s"]["mean"] == pytest.approx(8e-3 + 2e-5 + HOST_REQUEST_S + 9e-8 * 1000.5, rel=1e-3)
    assert report["steps"] == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--trace", "poisson:4:200"), "poisson:REQUESTS_PER_S:PROMPT:OUTPUT:SECONDS"),
        (("--trace", "nowhere.csv"), "nowhere.csv"),
        (("--trace", "poisson:4:9:9:9", "--gpu", "h101"), "h100"),
        (("--trace", "poisson:4:9:9:9", "--model", "llama-3-70b"), "GPUs enough for the weights"),
        (("--trace", "poisson:4:9:9:9", "--max-num-seqs", "0"), "--max-num-seqs"),
        (("--trace", "poisson:4:9:9:9", "--dispatcher", "planned_shares"), "earliest_finish"),
        (("--trace", "poisson:4:9:9:9", "--e2e-limit", "0"), "seconds > 0"),
    ],
)
def test_mistakes_are_named(cli, arguments, said):
    seen = cli(*ON, *arguments)
    assert seen.status == 2 and said in seen.err


def test_what_is_good_is_said_where_a_limit_says_what_that_is():
    found = optmodels.simulate("llama-3.1-8b", "h100", "poisson:2:50:20:3", latencies="roofline", ttft_limit=0.5)
    assert any(str(line).startswith("share within the limits: ") for line in simulate_lines(found))
    found["limits"] = dict.fromkeys(found["limits"])
    found["report"]["requests"] = 1
    said = [str(line) for line in simulate_lines(found)]
    assert not any("good" in line for line in said)
    assert any("  [dim]1 request of " in line for line in said)
