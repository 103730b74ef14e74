"""Prefill and decode apart: by brute force, by hand, against plans without stages, in the check, replay and export."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from orchestration_cases import two_models
from tampering import replaced

import optmodels
from formulations.orchestration.check import check
from formulations.orchestration.engines import LINK, REQUESTS
from formulations.orchestration.methods.exact import exact
from formulations.orchestration.model import FlowModel, dispatch
from formulations.orchestration.plan import Dispatcher
from formulations.orchestration.points import build_tables
from formulations.orchestration.pruning import together
from formulations.orchestration.replay import cluster_of, requests_of, sent, shares_of
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.loading import load
from optmodels.simulation.options import ReplayOptions

GB = 131072e-9  # of KV a token of llama-3.1-8b: 32 layers, 8 heads of 128, keys and values in two bytes


def document(stages=("both", "prefill", "decode"), net_gbps=400, **changes):
    """Long prompts and a deadline that steps beside others' prompts hardly meet; two GPU types."""
    link = {"net_gbps": net_gbps, "latency_s": 0.01, "most_used": 0.5}
    return two_models(**{
        "cluster": {"servers": [{"server": "s", "gpu": "h100", "gpus": 2}, {"server": "a", "gpu": "a100-80g", "gpus": 2}]},
        "models": [{"model": "llama-3.1-8b"}], "candidates": {"tp": [1], "batch": [1, 4]},
        "latency": {"model": "roofline"}, "serving": "continuous",
        "deployment": {"stages": list(stages), "link": link},
        "requests": {"duration_s": 20, "classes": [
            {"model": "llama-3.1-8b", "prompt_tokens": 3000, "output_tokens": 200, "slo_factor": 1.7,
             "requests_per_s": 9},
            {"model": "llama-3.1-8b", "prompt_tokens": 300, "output_tokens": 100, "slo_factor": 1.5,
             "requests_per_s": 4}]},
        "bins": {"seconds": 5.0},
    } | changes)  # fmt: skip


def solved(data, **options):
    problem = load(data)
    t = build_tables(problem)
    return problem, t, exact(problem, t, Options(**options))


@pytest.fixture(scope="module")
def apart():
    return solved(document(("prefill", "decode")))


@pytest.mark.parametrize("changes", [
    {}, {"stages": ("prefill", "decode")}, {"net_gbps": 8},
    {"stages": ("prefill", "decode"), "net_gbps": 8, "slo": {"ttft_s": 0.6}},
], ids=str)  # fmt: skip
def test_equals_every_choice_of_instances_tried(changes):
    """The best schedule of all numbers of instances that fit the four GPUs."""
    _, t, found = solved(document(**changes))
    assert found.status == "optimal"
    of = [[c for c in range(len(t.configurations)) if t.gpu_of[c] == g] for g in range(2)]
    every = [
        [picked for n in range(3) for picked in itertools.combinations_with_replacement(mine, n)] for mine in of
    ]
    best = -np.inf
    for chosen in itertools.product(*every):
        counts = np.bincount(np.array([c for part in chosen for c in part], dtype=np.int64),
                             minlength=len(t.configurations))  # fmt: skip
        if counts.sum() < 4 or not t.open(counts).any():
            continue  # fewer serve no more
        flow, report = dispatch(t, counts)
        if flow is not None and report.objective is not None:
            best = max(best, report.objective)
    assert found.plan.score.total == pytest.approx(best, abs=1e-6)
