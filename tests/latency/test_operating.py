"""Operating points from fitted models, against the models' own arithmetic, and an instance that reads them."""

import json

import numpy as np
import pytest
import yaml
from commands import python

from optmodels.errors import InputError
from optmodels.latency.fit.calibrate import calibrate_measurements
from optmodels.latency.fit.document import read_latency_model
from optmodels.latency.fit.measurements import measurements, read_measurements
from optmodels.latency.fit.operating import (
    MeasuredLoops,
    PointWorkload,
    SloBounds,
    load_rates,
    operating_points,
    served,
    throughputs,
)  # fmt: skip

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
    w = PointWorkload(batch=6, input_tokens=500, output_tokens=4, chunk_tokens=2048)
    frame, _ = operating_points(steps, "box", w, replicas=(1, 3), passes=(2,))
    prompts = (4, 2)  # four prompts fit a step
    ttft = sum(FIXED + TOKEN * m * 500 + SQUARE * m * 500**2 for m in prompts)
    decode = [FIXED + TOKEN * 6 + KV * 6 * (500 + t) + SQUARE * 6 for t in (1, 2, 3)]
    row = frame.iloc[0]
    assert row["ttft_s"] == pytest.approx(ttft, rel=1e-3)
    assert row["tpot_s"] == pytest.approx(np.mean(decode), rel=1e-3)
    assert row["e2e_s"] == pytest.approx(ttft + sum(decode), rel=1e-3)
    third = operating_points(steps, "box", PointWorkload(2, 500, 4, chunk_tokens=2048))[0].iloc[0]
    assert frame.iloc[1]["e2e_s"] == pytest.approx(third["e2e_s"])
    half = operating_points(steps, "box", PointWorkload(3, 500, 4, chunk_tokens=2048))[0].iloc[0]
    assert frame.iloc[2]["e2e_s"] == pytest.approx(2 * half["e2e_s"])  # LP(17)
    assert frame.iloc[2]["ttft_s"] == pytest.approx(half["e2e_s"] + half["ttft_s"])


def test_memory_and_batch_limit_what_is_offered(steps):
    w = PointWorkload(8, 500, 100, capacity_tokens=2500)
    frame, _ = operating_points(steps, "box", w, replicas=(1, 2, 9), passes=(2, 4))
    assert frame["name"].tolist() == ["box high_end 2", "box multi_pass 2", "box multi_pass 4"]
    with pytest.raises(InputError, match="replicas, passes"):
        operating_points(steps, "box", w, replicas=(1,))


def test_long_prompts_go_in_chunks_and_leave_the_range(steps):
    frame, said = operating_points(steps, "box", PointWorkload(2, 5000, 1, chunk_tokens=2048))
    chunks = [(2048, 0), (2048, 2048), (904, 4096)] * 2
    assert frame["ttft_s"][0] >= sum(FIXED + TOKEN * p for p, _ in chunks)
    assert frame["e2e_s"][0] == frame["ttft_s"][0] and any("extrapolation" in s for s in said)


ROWS = """concurrency,input_tokens,output_tokens,tp,ttft_s,tpot_s
1,1000,101,1,0.1,0.020
1,1000,101,2,0.06,0.010
8,1000,101,2,0.2,0.012
8,1008,101,2,0.4,0.014
16,1000,101,2,0.5,0.018
8,200,51,2,0.1,0.011
"""


@pytest.fixture
def table(folder):
    (folder / "measured.csv").write_text(ROWS)
    return MeasuredLoops(read_measurements(folder / "measured.csv"), "measured.csv")


def test_measurements_as_they_are_between_two_loads(table):
    frame, _ = operating_points(table, "box", PointWorkload(24, 1000, 101, tp=2), replicas=(2, 3))
    # 12 requests each: half-way from 8 (mean of the two rows, lengths within 2 %) to 16; 8 each: the mean itself.
    assert frame["ttft_s"].tolist() == pytest.approx([0.4, 0.3])
    assert frame["tpot_s"].tolist() == pytest.approx([0.0155, 0.013])
    assert frame["e2e_s"].tolist() == pytest.approx([0.4 + 100 * 0.0155, 0.3 + 100 * 0.013])
    assert frame["tp"].tolist() == [2, 2] and frame["name"].tolist() == ["box high_end 2 TP2", "box high_end 3 TP2"]


@pytest.mark.parametrize(("w", "expected"), [
    (PointWorkload(8, 1000, 101, tp=4), "measured tp.*: 1, 2"),
    (PointWorkload(8, 500, 101, tp=2), "measured input_tokens.*: 200, 1000, 1008"),
    (PointWorkload(8, 200, 101, tp=2), "measured output_tokens.*: 51"),
    (PointWorkload(32, 1000, 101, tp=2), "from 1 to 16, as measured"),
])  # fmt: skip
def test_what_was_not_measured_is_refused(table, w, expected):
    with pytest.raises(InputError, match=expected):
        operating_points(table, "box", w)
    with pytest.raises(InputError, match="no residuals"):
        operating_points(table, "box", PointWorkload(8, 1000, 101, tp=2), safety=0.9)


def test_replicas_share_a_machine_and_its_memory(table):
    w = PointWorkload(32, 1000, 101, tp=2, replicas_per_machine=2, capacity_tokens=16 * 1101)
    frame, _ = operating_points(table, "box", w, replicas=(1, 2))
    assert frame["count"].tolist() == [2] and frame["replicas_per_machine"].tolist() == [2]
    assert frame["e2e_s"].tolist() == pytest.approx([0.3 + 100 * 0.013])  # 8 on each of 2 × 2


def test_throughputs_by_little_s_law(table):
    w = PointWorkload(16, 1000, 101, tp=2, replicas_per_machine=2)
    demands = {"a/long": w, "a/short": PointWorkload(8, 200, 51, tp=2, replicas_per_machine=2)}
    frame, _ = throughputs(table, "box", {"a/long": w}, (8, 16), SloBounds())
    assert frame["a/long"].tolist() == pytest.approx([2 * 8 / 1.6, 2 * 16 / 2.3])
    assert frame["slots"].tolist() == [16, 32]
    frame, _ = throughputs(table, "box", demands, (8,), SloBounds(ttft_s=0.25))  # the long one waits 0.3 s
    assert frame["a/short"].tolist() == pytest.approx([2 * 8 / (0.1 + 50 * 0.011)]) and "a/long" not in frame
    with pytest.raises(InputError, match="loads"):
        throughputs(table, "box", {"a/long": w}, (8, 16), SloBounds(tpot_s=0.010))
    assert served(table, w, (1, 8, 16), SloBounds(tpot_s=0.015))[0] == {
        "requests_per_s": pytest.approx(2 * 8 / 1.6), "prefill_s": pytest.approx(0.3)}  # fmt: skip


def test_rates_by_load(table):
    frame, _ = load_rates(table, "m", "h100", PointWorkload(16, 1000, 101, tp=2), (16, 1, 8))
    assert frame["load"].tolist() == [1, 8, 16] and set(frame["tp"]) == {2}
    assert frame["tokens_per_s"].tolist() == pytest.approx([100, 1 / 0.013, 1 / 0.018])
    assert frame["prefill_tokens_per_s"].tolist() == pytest.approx([1000 / 0.06] * 3)


def test_every_served_model_file_gives_operating_points(folder, cli):
    rows = [(c, s, o) for c in (1, 2, 4, 8, 16) for s, o in ((64, 32), (256, 64), (1024, 32), (512, 128))]
    text = "".join(f"{c},{s},{o},{0.02 + 1e-4 * s + 1e-3 * c},{0.008 + 1e-4 * c}\n" for c, s, o in rows)
    (folder / "m.csv").write_text("concurrency,input_tokens,output_tokens,ttft_s,tpot_s\n" + text)
    for model in ("linear_batch", "decay", "scaled", "two_segment", "additive", "auto"):
        known = ("--gpu", "h100", "--model", "llama-3.1-8b") if model == "scaled" else ()
        assert cli("calibrate", "m.csv", "--model", model, *known, "--out", f"{model}.yaml").status == 0
        done = cli("operating-points", f"{model}.yaml", "--machine", "box", "--batch", "8", "--input-tokens", "256",
                   "--output-tokens", "64", "--json")  # fmt: skip
        assert done.status == 0, done.err
        assert json.loads(done.out)["operating_points"][0]["ttft_s"] == pytest.approx(0.02 + 256e-4 + 8e-3, rel=0.3)


def test_coefficients_of_pairs_are_no_model(folder, cli):
    (folder / "pairs.csv").write_text("predicted_s,latency_s\n" + "".join(f"{i},{1.1 * i}\n" for i in range(1, 9)))
    coefficients = {"schema": 1, "coefficients": [{"phase": "decode", "slope": 1.1}]}
    (folder / "c.yaml").write_text(yaml.safe_dump(coefficients))
    done = cli("operating-points", "c.yaml", "--machine", "m", "--batch", 1, "--input-tokens", 1, "--output-tokens", 1)
    assert done.status == 2 and "latency.calibration" in done.err
    assert cli("calibrate", "pairs.csv", "--form", "scaled", "--out", "p.yaml").status == 0
    assert read_latency_model(folder / "p.yaml").measured == "pairs"


MACHINE = {"machine": "box", "gpu": "h100", "gpu_count": 4, "vram_gib": 320, "prices": {"on_demand": 1}}


def test_tensor_parallelism_of_a_measured_point_reaches_plans_and_exports(folder, cli, write):
    (folder / "measured.csv").write_text(ROWS)
    ask = ("operating-points", "measured.csv", "--machine", "box", "--batch", "8", "--input-tokens", "1000",
           "--output-tokens", "101", "--tp", "2")  # fmt: skip
    assert cli(*ask, "--replicas-per-machine", "1", "--out", "points.csv").status == 0
    instance = {
        "formulation": "cost_efficiency", "schema": 1, "serving": "static", "name": "mine", "model": "llama-3.1-8b",
        "workload": {"batch": 8, "input_tokens": 1000, "output_tokens": 101},
        "slo": {"kind": "real_time", "tps": 1, "ttft_s": 1.0, "tpot_s": 0.02},
        "pool": {"machines": [MACHINE]}, "latency": {"operating_points": "points.csv"},
    }  # fmt: skip
    done = cli("solve", write(instance), "--out", "mine")
    assert done.status == 0 and "TP=2" in done.out, done.out + done.err
    plan = json.loads((folder / "mine/instance-exact/plan.json").read_text())["plan"]
    assert (plan["tensor_parallel"], plan["replicas_per_machine"]) == (2, 1)
    assert "tensor-parallel-size: 2" in cli("export", "mine/instance-exact/plan.json", "--to", "vllm").out
    assert cli("check", "mine/instance-exact/plan.json").status == 0
    text = (folder / "mine/instance-exact/plan.json").read_text()
    (folder / "other.json").write_text(text.replace('"tensor_parallel": 2', '"tensor_parallel": 1'))
    assert cli("check", "other.json").status == 1
    instance["pool"]["machines"][0] = MACHINE | {"gpu_count": 1}
    refused = cli("solve", write(instance))
    assert refused.status == 2 and "operating_points[0].tp" in refused.err and "at most 1, the GPUs" in refused.err


def test_loads_of_measurements_are_those_between_measured_ones(folder, cli, table):
    """AIConfigurator's and others' files seldom begin with one user: the next step takes them as they are."""
    powers = (1, 2, 4, 8, 16, 24)
    assert table.loads(PointWorkload(24, 1000, 101, tp=2), powers) == (1, 2, 4, 8, 16)
    assert table.loads(PointWorkload(24, 200, 51, tp=2), powers) == (8,)
    with pytest.raises(InputError, match="concurrency: got 4; expected from 8 to 8, as measured"):
        table.loads(PointWorkload(4, 200, 51, tp=2), (1, 2, 4))
    ask = ("operating-points", "measured.csv", "--machine", "box", "--batch", "24", "--input-tokens", "200",
           "--output-tokens", "51", "--tp", "2")  # fmt: skip
    for form in (
        ("measured", "--model", "a", "--gpu", "l4"),
        ("points_table", "--demand", "a/b"),
        ("serves", "--service", "a"),
    ):
        done = cli(*ask, "--as", *form)
        assert done.status == 0, done.err


def test_the_same_measurements_in_a_fleet(folder, cli, write):
    (folder / "measured.csv").write_text(ROWS)
    done = cli("operating-points", "measured.csv", "--as", "points_table", "--machine", "box", "--batch", "16",
               "--input-tokens", "1000", "--output-tokens", "101", "--tp", "2", "--loads", "8,16", "--tbt-s", "0.02",
               "--replicas-per-machine", "2", "--demand", "chat/long", "--out", "table.csv")  # fmt: skip
    assert done.status == 0, done.err
    fleet = {
        "formulation": "fleet", "schema": 1, "name": "mine", "objective": "min_cost", "points_table": "table.csv",
        "workloads": [{"name": "chat", "buckets": [{"name": "long", "requests_per_s": 25}]}],
        "pool": {"machines": [MACHINE]},
    }  # fmt: skip
    done = cli("solve", write(fleet), "--out", "mine")
    assert done.status == 0, done.out + done.err
    plan = json.loads((folder / "mine/instance-exact/plan.json").read_text())["plan"]
    (line,) = plan["periods"][0]["deployments"]
    assert (line["count"], line["tensor_parallel"], line["replicas_per_machine"]) == (2, 2, 2)  # 13.9 requests/s each
    made = cli("export", "mine/instance-exact/plan.json", "--to", "vllm")
    assert "tensor-parallel-size: 2" in made.out, made.out + made.err


def test_the_same_measurements_in_orchestration_and_reserved_capacity(folder, cli, write):
    (folder / "measured.csv").write_text(ROWS)
    ask = ("operating-points", "measured.csv", "--machine", "box", "--batch", "16", "--input-tokens", "1000",
           "--output-tokens", "101", "--tp", "2")  # fmt: skip
    assert cli(*ask, "--as", "measured", "--model", "llama-3.1-8b", "--gpu", "h100", "--out", "rates.csv").status == 0
    instance = {
        "formulation": "orchestration", "schema": 1, "name": "mine",
        "cluster": {"servers": [{"server": "s", "gpu": "h100", "gpus": 4}]},
        "models": [{"model": "llama-3.1-8b", "t_slice_s": 0.02}],
        "candidates": {"tp": [2], "batch": [8, 16]}, "latency": {"measured": "rates.csv"}, "slo": {"factor": 3},
        "requests": {"classes": [{"model": "llama-3.1-8b", "prompt_tokens": 1000, "output_tokens": 101,
                                  "slo_factor": 3, "requests_per_s": 2}], "duration_s": 60},
    }  # fmt: skip
    done = cli("solve", write(instance), "--out", "orchestrated")
    assert done.status == 0, done.out + done.err
    plan = json.loads((folder / "orchestrated/instance-exact/plan.json").read_text())["plan"]
    assert {c["tp"] for c in plan["configurations"]} == {2}
    done = cli(*ask, "--as", "serves", "--service", "chat", "--tbt-s", "0.015", "--out", "serves.yaml")
    assert done.status == 0
    assert yaml.safe_load((folder / "serves.yaml").read_text()) == {
        "machine": "box",
        "serves": {"chat": {"requests_per_s": pytest.approx(8 / 1.6), "prefill_s": pytest.approx(0.3)}},
    }
    assert cli(*ask, "--as", "serves", "--service", "chat", "--demand", "a/b").status == 2
    assert cli(*ask, "--as", "points_table", "--demand", "b").status == 2
    assert cli(*ask, "--as", "points_table").status == 2


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
        done = python("-m", "optmodels", *words, cwd=tmp_path)
        assert done.status == 0, done.err
        return done.out

    run("operating-points", "model.json", "--machine", "box", "--batch", "32", "--input-tokens", "256",
        "--output-tokens", "64", "--replicas", "1,2,4", "--out", "points.csv")  # fmt: skip
    instance = {
        "formulation": "cost_efficiency", "schema": 1, "serving": "static", "name": "box", "model": "llama-3.1-8b",
        "workload": {"batch": 32, "input_tokens": 256, "output_tokens": 64},
        "slo": {"kind": "real_time", "tps": 1, "ttft_s": 1.0, "tpot_s": 0.0105},
        "pool": {"machines": [{"machine": "box", "vram_gib": 48, "prices": {"on_demand": 1}}]},
        "latency": {"operating_points": "points.csv"},
    }  # fmt: skip
    (tmp_path / "box.yaml").write_text(json.dumps(instance))
    solved = json.loads(run("solve", "box.yaml", "--json"))
    # 32 users on one machine have 11.2 ms + 0.9 ms between tokens, 16 on each of two 9.6 + 0.5.
    assert solved["status"] == "optimal" and solved["check"]["ok"]
    assert solved["plan"]["machines"][0]["count"] == 2
    assert solved["plan"]["prediction"]["tpot_s"] == pytest.approx(0.008 + 16e-4 + 16e-7 * 288, rel=0.02)
