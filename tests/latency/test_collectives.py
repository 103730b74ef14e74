"""Collectives over PCIe and NVLink."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from optmodels import catalog
from optmodels.latency.collectives import over_pcie
from optmodels.latency.engines.terms import Loads, ModelInstance, step_terms

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "latency"
REQUESTS = SHARED / "vllm_requests" / "rtxpro6000_qwen3-32b_tp2_vllm-0.19.csv"
LOADS = Loads(np.array([16.0]), np.array([1000.0]), np.array([100.0]))


def terms(gpu: str, gpus: int) -> dict[str, float]:
    d = ModelInstance(catalog.llms()["llama-3.1-70b"], "llama-3.1-70b", catalog.gpus()[gpu], gpu, "vllm", gpus=gpus)
    return {name: float(value[0]) for name, value in step_terms(d, LOADS).items()}


def test_nvlink_is_what_the_coefficients_were_fitted_on():
    assert over_pcie(catalog.gpus()["h100"], 8) == (1.0, 1.0)
    assert over_pcie(catalog.gpus()["gh200-96g"], 2) == (1.0, 1.0)
    assert terms("h100", 8)["comm"] == pytest.approx(80e-6)


def test_pcie_is_slower_the_more_gpus_share_the_host():
    l40s = catalog.gpus()["l40s"]
    assert over_pcie(l40s, 1) == (1.0, 1.0)
    assert over_pcie(l40s, 8) == (pytest.approx(5.63, abs=0.01), pytest.approx(32.0 / 9.933, abs=0.01))
    assert over_pcie(l40s, 16) == over_pcie(l40s, 8)
    assert terms("l40s", 4)["comm"] == pytest.approx(80e-6 * 14.1 / 4.65)
    # Two all-reduces of 8192 × 2 bytes in 80 layers, 3/4 of them twice, of 16 decoded and 160 prompt tokens
    moved = 176 * 80 * 2 * 2 * 3 / 4 * 8192 * 2 / l40s.link_bytes_per_s
    assert terms("l40s", 4)["collective"] == pytest.approx(moved * 32.0 / 9.933, rel=1e-3)


def test_a_faster_link_to_the_same_host_exchanges_no_faster():
    known = catalog.gpus()
    assert known["rtx-pro-6000"].link_bytes_per_s == 2.0 * known["l40s"].link_bytes_per_s
    for gpus in (2, 4, 8):
        seconds = [over_pcie(known[g], gpus)[1] / known[g].link_bytes_per_s for g in ("l40s", "rtx-pro-6000")]
        assert seconds[0] == pytest.approx(seconds[1])
    assert over_pcie(known["rtx-pro-6000"].model_copy(update={"link_bytes_per_s": 1e9}), 2)[1] == 1.0


@pytest.mark.skipif(not REQUESTS.is_file(), reason="the shared requests are not here")
def test_requests_to_two_gpus_over_pcie_take_as_long_as_measured(monkeypatch):
    """Qwen3-32B on two RTX PRO 6000, to which nothing is fitted: means of TTFT, TPOT and E2E within 8 %."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    served = importlib.import_module("never_fitted").served
    ratios = served(REQUESTS, "qwen3-32b", 2)
    assert all(found.mean() / seen.mean() == pytest.approx(1.0, abs=0.08) for seen, found in ratios.values())
