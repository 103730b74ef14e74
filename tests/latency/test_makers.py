"""GPUs of another maker: coefficients of their own, which leave those of all other GPUs."""

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

import optmodels
from optmodels import catalog
from optmodels.latency.engines.document import Deployed, chip, deployed, deployment, labels, maker, read_engine_model
from optmodels.latency.engines.fit import Fitted, Form, adjust
from optmodels.latency.engines.terms import ModelInstance
from optmodels.latency.resolve import engine_costs

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "latency"
VALUES = {"concurrency": np.array([4.0, 64.0]), "input_tokens": np.full(2, 2048.0), "output_tokens": np.full(2, 512.0)}


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("maker_model")


def test_amds_coefficients_leave_every_prediction_of_other_gpus(benchmark):
    model, before = read_engine_model(), benchmark.without(read_engine_model())
    assert {maker(catalog.gpus()[g]) for g in before.measured["gpu"]} == {"NVIDIA"}
    llms = catalog.llms()
    for gpu, data in ((g, data) for g, data in catalog.gpus().items() if maker(data) != "AMD" and data.fp16_flops):
        for engine in ("vllm", "sglang", "trtllm"):
            for llm, precision in (("deepseek-r1", "fp8"), ("deepseek-r1", "fp4"), ("llama-3.1-8b", "fp16")):
                d = ModelInstance(llms[llm], llm, data, gpu, engine, precision, "fp16", 8)
                new, old = Deployed(model, d), Deployed(before, d)
                for target in ("tpot_s", "ttft_s"):
                    assert new.predict(VALUES, target).tolist() == old.predict(VALUES, target).tolist()
                    assert new.factors(target) == old.factors(target)
                assert (new.levels, new.caveats, new.said) == (old.levels, old.caveats, old.said)


def test_measured_gpus_of_amd_are_as_slow_as_measured():
    """Medians of DeepSeek-R1 in fp8 under SGLang, 16 at a time, 1,024 + 1,024 tokens: SemiAnalysis, January 2026."""
    values = {"concurrency": np.array([16.0]), "input_tokens": np.array([1024.0]), "output_tokens": np.array([1024.0])}
    for gpu, tpot in (("mi300x", 0.0331), ("mi325x", 0.0316)):
        d = deployed("sglang", gpu, "deepseek-r1", "fp8", 8)
        assert d.predict(values)[0] == pytest.approx(tpot, rel=0.1)
        assert (
            d.transfer == () and d.caveats == () and "adjusted for AMD by 120 rows" in engine_costs(d, 1024.0)[1].source
        )


def test_what_was_never_measured_on_amd_is_stated():
    vllm = deployed("vllm", "mi300x", "llama-3.1-70b", "fp8", 8)
    assert vllm.transfer == ("engine|gpu", "llm|gpu")
    (said,) = vllm.caveats
    assert "under sglang was measured, never vllm and llama-3.1-70b: the interval is of GPUs of NVIDIA" in said
    assert said in engine_costs(vllm, 1024.0)[1].notes
    (said,) = deployed("vllm", "gaudi3", "llama-3.1-70b", "fp8", 8).caveats
    assert said.startswith("nothing of Intel was measured: the interval is of GPUs of NVIDIA and says")


def test_list_gpus_states_which_were_never_measured():
    found = {row["name"]: row["latencies"] for row in optmodels.list("gpus")}
    assert found.keys() == catalog.gpus().keys()
    assert found["mi300x"] == "measured under sglang" and found["h100"] == "measured under sglang, trtllm, vllm"
    assert found["l40s"] == "never measured (single kernels of vLLM)"
    assert found["v520"] == "never measured (coefficients of mi300x, mi325x, mi355x)"
    assert found["gaudi3"] == "never measured (nothing of Intel)"


def test_gpus_of_one_chip_differ_in_their_memory():
    gpus = catalog.gpus()
    assert chip(gpus["mi300x"]) == chip(gpus["mi325x"]) == "AMD 1307.4 TFLOP/s" != chip(gpus["mi355x"])
    assert labels(deployment("sglang", "mi355x", "deepseek-r1", "fp4"))["maker"] == "AMD"


def test_rows_of_new_levels_are_fitted_and_others_stay():
    rng, n = np.random.default_rng(0), 60
    terms = {"dense": rng.uniform(1, 2, n), "layer": rng.uniform(1, 2, n)}
    known = Fitted(
        {"dense": 1.0, "layer": 2.0}, {"engine": {"vllm": {"dense": 0.1, "layer": 0.0}}}, {"gpu": {"a": 0.2}}
    )
    of = {"engine": ["vllm"] * n, "maker": ["new"] * n, "gpu": ["b"] * n}
    seconds = np.exp(0.1) * terms["dense"] + 3.0 * 2.0 * terms["layer"]
    form = Form({}, {"maker": {"*": 1.0}}, {"gpu": 0.01}, (0.01, 0.01))
    found = adjust(form, known, terms, seconds, of)
    assert found.predict(terms, of) == pytest.approx(seconds, rel=0.02)
    assert found.adjustments["maker"]["new"]["layer"] == pytest.approx(np.log(3.0), abs=0.05)
    other = {"engine": ["vllm"], "maker": ["old"], "gpu": ["a"]}
    assert found.predict(terms, other).tolist() == known.predict(terms, other | {"maker": ["old"]}).tolist()
    assert replace(found, adjustments={}, factors={}) == replace(known, adjustments={}, factors={})


def test_documented_errors_on_amd_are_those_of_the_shipped_file(benchmark):
    (rows,) = read_engine_model().makers
    text = benchmark.PAGE.read_text(encoding="utf-8")
    assert f"<!-- makers: begin -->\n{benchmark.table(rows)}\n<!-- makers: end -->" in text
    assert rows.left_out["tpot_s"]["gpu"].median < 0.1 and rows.left_out["tpot_s"]["gpu"].covered >= 0.9
    assert rows.left_out["tpot_s"]["llm"].median > 0.2  # the coefficients without any row of AMD


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared rows are not here")
def test_the_shipped_coefficients_follow_from_the_rows(benchmark):
    mine, shipped = benchmark.Maker(DATA), read_engine_model()
    found = mine.model(shipped.makers[0].left_out)
    assert found.together == shipped.together
    for name, target in found.targets.items():
        for g in ("maker", "chip"):
            for level, terms in target.adjustments[g].items():
                assert terms == pytest.approx(shipped.targets[name].adjustments[g][level], abs=1e-4), (name, level)
