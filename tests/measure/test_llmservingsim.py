"""Steps composed from kernels that LLMServingSim profiled: by hand, and against steps composed elsewhere."""

from __future__ import annotations

import gzip
from itertools import product

import numpy as np
import pytest
from conftest import ROOT

from optmodels import importers
from optmodels.errors import InputError
from optmodels.importers import rows
from optmodels.latency.engines.document import deployment
from optmodels.latency.fit import calibrate_measurements, read_measurements
from optmodels.latency.fit.steps import step_costs
from optmodels.latency.resolve import collective_costs

SHARED = ROOT.parent / "shared" / "data" / "latency" / "mixed_batches"
DENSE = ("embedding", "layernorm", "qkv_proj", "qk_norm", "rotary_emb", "o_proj", "final_layernorm")
MLP = ("gate_up_proj", "act_fn", "down_proj")
ATTENTION = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"


def profile(folder, model="Qwen/Qwen3-32B", *, tp=(1,), moe=False, hardware="H100", tokens=(1, 64, 2048)):
    """A profile as its tool leaves it; every kernel takes 1 µs and 0.01 µs a token."""
    base = folder / hardware / model / "bf16"
    base.mkdir(parents=True)
    (base / "meta.yaml").write_text(
        f"vllm_version: 0.19.0\nhardware: {hardware}\nmodel: {model}\nvariant: bf16\ntp_degrees: [1, 2]\n"
    )
    for n in tp:
        here = base / f"tp{n}"
        here.mkdir()
        kernels = DENSE if moe else DENSE + MLP
        rows = [f"{x},{t},{1 + 0.01 * t}" for x in kernels for t in tokens]
        (here / "dense.csv").write_text("\n".join(["layer,tokens,time_us", *rows, ""]))
        rows = [f"{x},{s},{100 + s}" for x in ("lm_head", "sampler") for s in (1, 256)]
        (here / "per_sequence.csv").write_text("\n".join(["layer,sequences,time_us", *rows, ""]))
        rows = [
            f"{p},{k},{b},{c},{2 + 0.1 * p + 1e-5 * p * (k + p / 2) + b * (0.5 + 0.01 * c)}"
            for p, (k, b, c) in product((0, 16, 512, 2048), ((0, 1, 100), (0, 8, 1000), (512, 8, 100), (0, 64, 2000)))
            if p or not k
        ]  # fmt: skip
        (here / "attention.csv").write_text("\n".join([ATTENTION, *rows, ""]))
    if moe:
        rows = [f"{t},{e},{10 * e + 0.5 * t}" for t in (1, 2, 4, 16, 64, 2048) for e in (8, 16, 32, 128) if e <= 8 * t]
        (base / "tp1" / "moe.csv").write_text("\n".join(["tokens,activated_experts,time_us", *rows, ""]))
    return base


def step(frame, p, k, b, c, tp=1):
    columns = ["prefill_tokens", "prefill_context_tokens", "decode_requests", "decode_context_tokens", "tp"]
    row = frame[(frame[columns] == [p, k, b, c, tp]).all(axis=1)]
    assert len(row) == 1
    return float(row.latency_s.iloc[0])


def test_a_step_is_the_sum_of_its_kernels(tmp_path):
    base = profile(tmp_path)
    kind, found = importers.read([base / "tp1" / "attention.csv"])
    assert kind == "step"
    row = found.frame.iloc[0]
    assert (row.model, row.gpu, row.engine_version, row.precision) == ("Qwen/Qwen3-32B", "h100", "0.19.0", "bf16")
    # 16 prompt tokens and 8 requests: 24 tokens, 9 sequences; nine kernels a layer beside attention, and two once.
    attention = 2 + 1.6 + 1e-5 * 16 * (512 + 8) + 8 * (0.5 + 1.0)
    by_hand = 64 * (9 * 1.24 + attention) + 2 * 1.24 + 2 * 109
    assert step(found.frame, 16, 512, 8, 100) == pytest.approx(by_hand * 1e-6)
    # 2,056 tokens are more than were measured.
    assert (found.frame.prefill_tokens + found.frame.decode_requests).max() <= 2048
    assert any("more tokens or sequences" in note for note in found.about["files"][0]["notes"])


def test_a_folder_holds_every_degree_and_calibrate_reads_it(tmp_path):
    base = profile(tmp_path, tp=(1, 2))
    for path in (base / "tp2").glob("*.csv"):
        with gzip.open(f"{path}.gz", "wt") as stream:
            stream.write(path.read_text())
        path.unlink()
    _, found = importers.read([tmp_path])
    assert sorted(found.frame.tp.unique()) == [1, 2] and len(found.about["files"]) == 2
    costs = collective_costs(deployment("vllm", "h100", "qwen3-32b", tp=2))
    more = step(found.frame, 512, 0, 8, 1000, tp=2) - step(found.frame, 512, 0, 8, 1000)
    assert more == pytest.approx(costs.fixed_s + 520 * costs.prompt_token_s) and more > 0
    rows.write(tmp_path / "steps.parquet", found)
    m = read_measurements(tmp_path / "steps.parquet", where={"tp": "1"})
    fitted = step_costs(calibrate_measurements(m, "steps").model, 0.0)
    alone = fitted.step(np.array([512.0]), np.zeros(1), np.full(8, 1000.0))
    assert alone == pytest.approx(step(found.frame, 512, 0, 8, 1000), rel=0.1)


def test_all_reduces_that_were_measured_are_taken(tmp_path):
    base = profile(tmp_path, tp=(1, 2))
    samples = "".join(f"      - {{collective: all_reduce, bytes: {b}, us: {10 + b / 1000}}}\n" for b in (1000, 100000))
    (tmp_path / "H100" / "hardware.yaml").write_text(
        f"measured:\n  interconnect:\n    npus: 2\n    samples:\n{samples}"
    )
    _, found = importers.read([base])
    more = step(found.frame, 512, 0, 8, 1000, tp=2) - step(found.frame, 512, 0, 8, 1000)
    assert more == pytest.approx((2 * 64 + 1) * (10 + 2 * 5120 * 520 / 1000) * 1e-6)


def test_experts_by_the_number_that_tokens_touch(tmp_path):
    base = profile(tmp_path, "Qwen/Qwen3-30B-A3B-Instruct-2507", tp=(1, 2), moe=True)
    _, found = importers.read([base])
    touched = 128 * (1 - (1 - 8 / 128) ** 24)
    attention = 2 + 1.6 + 1e-5 * 16 * (512 + 8) + 8 * (0.5 + 1.0)
    by_hand = 48 * (6 * 1.24 + attention + 10 * touched + 12) + 2 * 1.24 + 2 * 109
    assert step(found.frame, 16, 512, 8, 100) == pytest.approx(by_hand * 1e-6)
    # One request touches k experts: a table without more than these at one token says so exactly.
    one = 48 * (6 * 1.01 + 2 + 0.5 + 1.0 + 80.5) + 2 * 1.01 + 2 * 101
    assert step(found.frame, 0, 0, 1, 100) == pytest.approx(one * 1e-6)
    two = found.about["files"][1]
    assert "experts spread over 2 GPUs, by the moe table of one" in two["notes"]
    split = 48 * (10 * touched / 2 + 0.5 * 12 - 10 * touched - 12) * 1e-6
    more = step(found.frame, 16, 512, 8, 100, tp=2) - step(found.frame, 16, 512, 8, 100)
    assert 0 < more - split < 5e-3  # the all-reduces


@pytest.mark.parametrize(("spoil", "path", "said"), [
    (lambda b: (b / "tp1" / "dense.csv").unlink(), "dense.csv", "the dense kernels beside attention.csv"),
    (lambda b: replaced(b / "meta.yaml", "Qwen/Qwen3-32B", "some/stranger"), "meta.yaml", "a model of the catalogue"),
    (lambda b: replaced(b / "tp1" / "dense.csv", "qk_norm", "indexer"), "attention.csv", "of other layers"),
    (lambda b: replaced(b / "tp1" / "attention.csv", "0,0,8,1000,", "0,0,8,-1,"), "attention.csv", "≥ 0"),
    (lambda b: replaced(b / "tp1" / "per_sequence.csv", "lm_head,1,101", "lm_head,1,"), "per_sequence.csv", "number"),
    (lambda b: (b / "meta.yaml").unlink(), "meta.yaml", "file"),
    (lambda b: replaced(b / "meta.yaml", "Qwen3-32B", "Qwen3-30B-A3B"), "attention.csv", "of other layers"),
])  # fmt: skip
def test_what_is_wrong_is_named(tmp_path, spoil, path, said):
    base = profile(tmp_path)
    spoil(base)
    with pytest.raises(InputError) as caught:
        importers.read([base])
    mistake = caught.value.mistakes[0]
    assert mistake.file.endswith(path) and said in str(mistake)


def replaced(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_other_tables_lead_to_the_one_to_give(tmp_path):
    base = profile(tmp_path)
    with pytest.raises(InputError, match="the other tables are read beside it"):
        importers.read([base / "tp1" / "dense.csv"])


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared data")
@pytest.mark.parametrize("key", ["Llama-3.1-8B", "Qwen3-32B"])
def test_public_kernels_give_the_steps_that_were_composed_elsewhere(key):
    import pandas as pd

    _, found = importers.read([SHARED / f"kernel__RTXPRO6000__{key}__tp1__attention.csv.gz"])
    steps = pd.read_csv(SHARED / f"steps_RTXPRO6000_{key}_tp1.csv.gz").merge(
        found.frame, left_on=["prefill_chunk", "kv_prefill", "n_decode", "kv_decode"],
        right_on=["prefill_tokens", "prefill_context_tokens", "decode_requests", "decode_context_tokens"],
    )  # fmt: skip
    assert len(steps) > 10_000
    np.testing.assert_allclose(1e3 * steps.latency_s, steps.step_ms, rtol=1e-5)
