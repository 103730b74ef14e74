"""Operating points from fitted models, against the models' own arithmetic, and an instance that reads them."""

import json
import subprocess
import sys

import numpy as np
import pytest

from optmodels.errors import InputError
from optmodels.latency.fit.calibrate import calibrate_measurements
from optmodels.latency.fit.measurements import measurements
from optmodels.latency.fit.operating import Workload, operating_points

FIXED, TOKEN, KV, SQUARE = 5e-3, 2e-5, 1e-7, 1e-9


@pytest.fixture(scope="module")
def steps():
    """LV(1) fitted to its own law: a step takes FIXED + TOKEN·Σp + KV·Σc + SQUARE·Σp²."""
    rng = np.random.default_rng(0)
    r, p = rng.integers(1, 9, 60), rng.integers(16, 2048, 60)
    n, c = rng.integers(1, 65, 60), rng.integers(16, 4096, 60)
    zero = np.zeros(60)
    return calibrate_measurements(
        measurements("step", {
            "prefill_tokens": np.concatenate([r * p, zero]), "prefill_requests": np.concatenate([r, zero]),
            "prefill_context_tokens": np.concatenate([zero, zero]),
            "decode_requests": np.concatenate([zero, n]), "decode_context_tokens": np.concatenate([zero, c]),
            "latency_s": np.concatenate([
                FIXED + TOKEN * r * p + SQUARE * r * p * p, FIXED + TOKEN * n + KV * n * c + SQUARE * n,
            ]),
        }),
        "two_segment",
    ).model  # fmt: skip


def test_steps_add_up(steps):
    w = Workload(batch=6, input_tokens=500, output_tokens=4, chunk_tokens=2048)
    frame, _ = operating_points(steps, "box", w, replicas=(1, 3), passes=(2,))
    prompts = (4, 2)  # four prompts fit a step
    ttft = sum(FIXED + TOKEN * m * 500 + SQUARE * m * 500**2 for m in prompts)
    decode = [FIXED + TOKEN * 6 + KV * 6 * (500 + t) + SQUARE * 6 for t in (1, 2, 3)]
    row = frame.iloc[0]
    assert row["ttft_s"] == pytest.approx(ttft, rel=1e-3)
    assert row["tbt_s"] == pytest.approx(np.mean(decode), rel=1e-3)
    assert row["e2e_s"] == pytest.approx(ttft + sum(decode), rel=1e-3)
    third = operating_points(steps, "box", Workload(2, 500, 4, chunk_tokens=2048))[0].iloc[0]
    assert frame.iloc[1]["e2e_s"] == pytest.approx(third["e2e_s"])
    half = operating_points(steps, "box", Workload(3, 500, 4, chunk_tokens=2048))[0].iloc[0]
    assert frame.iloc[2]["e2e_s"] == pytest.approx(2 * half["e2e_s"])  # LP(17)
    assert frame.iloc[2]["ttft_s"] == pytest.approx(half["e2e_s"] + half["ttft_s"])


def test_memory_and_batch_limit_what_is_offered(steps):
    w = Workload(8, 500, 100, capacity_tokens=2500)
    frame, _ = operating_points(steps, "box", w, replicas=(1, 2, 9), passes=(2, 4))
    assert frame["name"].tolist() == ["box high_end 2", "box multi_pass 2", "box multi_pass 4"]
    with pytest.raises(InputError, match="replicas, passes"):
        operating_points(steps, "box", w, replicas=(1,))


def test_long_prompts_go_in_chunks_and_leave_the_range(steps):
    frame, said = operating_points(steps, "box", Workload(2, 5000, 1, chunk_tokens=2048))
    chunks = [(2048, 0), (2048, 2048), (904, 4096)] * 2
    assert frame["ttft_s"][0] >= sum(FIXED + TOKEN * p for p, _ in chunks)
    assert frame["e2e_s"][0] == frame["ttft_s"][0] and any("extrapolation" in s for s in said)


def test_an_instance_is_solved_on_a_served_model(tmp_path):
    rows = [(c, s, 64) for c in (1, 2, 4, 8, 16, 32) for s in (64, 256, 1024)]
    C, S, out = np.array(rows, dtype=float).T
    m = measurements("served", {
        "concurrency": C, "input_tokens": S, "output_tokens": out,
        "ttft_s": 0.02 + 1e-4 * S + 1e-3 * C, "tpot_s": 0.008 + 1e-4 * C + 1e-7 * C * (S + 32),
    })  # fmt: skip
    model = calibrate_measurements(m, "additive").model
    text = json.dumps(model.model_dump(mode="json", by_alias=True, exclude_none=True))
    (tmp_path / "model.json").write_text(text)

    def run(*words):
        done = subprocess.run([sys.executable, "-m", "optmodels", *words], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("operating-points", "model.json", "--machine", "box", "--batch", "32", "--input-tokens", "256",
        "--output-tokens", "64", "--replicas", "1,2,4", "--out", "points.csv")  # fmt: skip
    instance = {
        "formulation": "cost_efficiency", "schema": 1, "name": "box", "model": "llama-3.1-8b",
        "workload": {"batch": 32, "input_tokens": 256, "output_tokens": 64},
        "slo": {"kind": "real_time", "tps": 1, "ttft_s": 1.0, "tbt_s": 0.0105},
        "pool": {"machines": [{"machine": "box", "vram_gib": 48, "prices": {"on_demand": 1}}]},
        "latency": {"operating_points": "points.csv"},
    }  # fmt: skip
    (tmp_path / "box.yaml").write_text(json.dumps(instance))
    solved = json.loads(run("solve", "box.yaml", "--json"))
    # 32 users on one machine have 11.2 ms + 0.9 ms between tokens, 16 on each of two 9.6 + 0.5.
    assert solved["status"] == "optimal" and solved["check"]["ok"]
    assert solved["plan"]["machines"][0]["count"] == 2
    assert solved["plan"]["prediction"]["tbt_s"] == pytest.approx(0.008 + 16e-4 + 16e-7 * 288, rel=0.02)
