"""The targets of docs/latency-models.md on the public measurements, where they stand beside the project."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from optmodels.latency.fit.document import errors
from optmodels.latency.fit.forms import FitOptions
from optmodels.latency.fit.measurements import read_measurements
from optmodels.latency.fit.reference import Reference

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "latency"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no public measurements at {DATA}")

spec = importlib.util.spec_from_file_location("latency_models", ROOT / "benchmarks" / "latency_models.py")
bench = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench)


@pytest.mark.parametrize("source", bench.SERVED_MODELS)
def test_served_under_leave_one_workload_out(source):
    options = FitOptions(Reference("h100", bench.SERVED_MODELS[source], "fp8"))
    m = read_measurements(DATA / "served_h100_trtllm.csv", columns=bench.SERVED, where={"source": source})
    for target, limit in (("tpot_s", 0.06), ("ttft_s", 0.30)):
        assert errors(m.values[target], bench.held_back(m, "additive", target, options)).mape <= limit


@pytest.mark.parametrize("name", bench.STEP_FILES)
def test_mixed_steps_on_prompts_held_out(name):
    m = read_measurements(DATA / "mixed_batches" / f"steps_RTXPRO6000_{name}.csv.gz", columns=bench.STEP)
    # Every third workload keeps the test fast; the benchmark uses all.
    m = m.take(m.workload % 3 == 0)
    assert errors(m.values["latency_s"], bench.held_back(m, "additive", "latency_s", FitOptions())).p90 <= 0.10


def test_safety_levels_cover_unseen_steps():
    name = bench.STEP_FILES[0]
    m = read_measurements(DATA / "mixed_batches" / f"steps_RTXPRO6000_{name}.csv.gz", columns=bench.STEP)
    from optmodels.latency.fit import calibrate_measurements

    model = calibrate_measurements(m.take(m.workload % 4 == 0), "additive").model
    test = m.take(m.workload % 4 == 2)
    for level in (0.8, 0.9, 0.95):
        covered = np.mean(test.values["latency_s"] <= model.predict(test.values, safety=level))
        assert level - 0.06 <= covered <= level + 0.06
