"""Collectives over PCIe and NVLink."""

import numpy as np
import pytest

from optmodels import catalog
from optmodels.latency.collectives import over_pcie
from optmodels.latency.engines.terms import Deployment, Loads, step_terms

LOADS = Loads(np.array([16.0]), np.array([1000.0]), np.array([100.0]))


def terms(gpu: str, gpus: int) -> dict[str, float]:
    d = Deployment(catalog.llms()["llama-3.1-70b"], "llama-3.1-70b", catalog.gpus()[gpu], gpu, "vllm", gpus=gpus)
    return {name: float(value[0]) for name, value in step_terms(d, LOADS).items()}


def test_nvlink_is_what_the_coefficients_were_fitted_on():
    assert over_pcie(catalog.gpus()["h100"], 8) == (1.0, 1.0)
    assert over_pcie(catalog.gpus()["gh200-96g"], 2) == (1.0, 1.0)
    assert terms("h100", 8)["comm"] == pytest.approx(80e-6)


def test_pcie_is_slower_the_more_gpus_share_the_host():
    l40s = catalog.gpus()["l40s"]
    assert over_pcie(l40s, 1) == (1.0, 1.0)
    assert over_pcie(l40s, 8) == (pytest.approx(5.63, abs=0.01), pytest.approx(12.2, abs=0.05))
    assert over_pcie(l40s, 16) == over_pcie(l40s, 8)
    assert terms("l40s", 4)["comm"] == pytest.approx(80e-6 * 14.1 / 4.65)
    # Two all-reduces of 8192 × 2 bytes in 80 layers, 3/4 of them twice, of 16 decoded and 160 prompt tokens
    moved = 176 * 80 * 2 * 2 * 3 / 4 * 8192 * 2 / l40s.link_bytes_per_s
    assert terms("l40s", 4)["collective"] == pytest.approx(moved * 0.283 / 0.059)
