"""A sweep, and a backtest, on an existing Dask cluster, whose workers may die."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from conftest import ROOT

import optmodels
from optmodels.autoscaling.history import History

distributed = pytest.importorskip("distributed")

TWO_REGIONS = ROOT / "instances/reserved_capacity/textbook-two-regions.yaml"
VARY = {"services[chat].slo.ttft_s": "0.2:0.6:12", "machines[box].prices.on_demand": [2, 3]}


@pytest.fixture
def cluster():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
    ) as running:  # fmt: skip
        yield running


def test_the_table_is_that_of_one_process_even_if_a_worker_dies(cluster, tmp_path):
    alone = optmodels.sweep(TWO_REGIONS, VARY, out=tmp_path / "alone")
    killed = []

    def kill(done, total, row):
        if not killed:
            killed.append(next(iter(cluster.workers.values())).pid)
            os.kill(killed[0], signal.SIGKILL)

    address = cluster.scheduler_address
    spread = optmodels.sweep(TWO_REGIONS, VARY, out=tmp_path / "spread", scheduler=address, on_row=kill)
    assert killed
    assert len(spread.rows) == len(alone.rows) == 24
    for file in ("sweep.csv", "sweep.parquet"):
        assert (tmp_path / "alone" / file).read_bytes() == (tmp_path / "spread" / file).read_bytes()
    more = optmodels.sweep(
        TWO_REGIONS, VARY | {"machines[box].prices.on_demand": [2, 3, 4]}, out=tmp_path / "spread", resume=True,
        scheduler=address,
    )  # fmt: skip
    assert (more.reused, len(more.rows)) == (24, 36)
    assert len(distributed.Client(address, set_as_default=False).ncores()) >= 1  # the cluster is not ours to close


def test_autoscalers_on_a_cluster_cost_what_they_cost_here(cluster):
    bins = np.random.default_rng(0).poisson(300 + 100 * np.sin(np.arange(2 * 8640) / 1375)).astype(float)
    asked = {"replica": (4.0, 10.0), "history": History(bins), "train": "1d", "judge": "1d", "methods": ["hpa", "apa"]}
    here, there = (optmodels.backtest(**asked, scheduler=s) for s in (None, cluster.scheduler_address))
    assert here["rows"] == there["rows"]
