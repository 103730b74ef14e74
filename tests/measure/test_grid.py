"""Order of measurement, predictions, device names, and how `calibrate` reads what was measured; without PyTorch."""

import itertools

import numpy as np
import pandas as pd
import pytest

from optmodels import catalog
from optmodels.errors import InputError
from optmodels.latency.fit import calibrate_measurements, read_measurements
from optmodels.latency.fit.calibrate import calibrate_pairs
from optmodels.measure import campaign, predict
from optmodels.measure.device import catalogue_gpu
from optmodels.measure.grid import Grid, Point, features, informative_first, points
from optmodels.units import GIB

H100 = predict.Machine(catalog.gpus()["h100"], disk_bytes_per_s=2e9, net_bytes_per_s=12.5e9)


def scaled_rows(found, seconds):
    X = np.stack([features(p) for p in found]) / seconds[:, None]
    X = X[:, (X**2).mean(axis=0) > 0]
    return X / np.sqrt((X**2).mean(axis=0))


def information(X, rows):
    return np.linalg.slogdet(X[rows].T @ X[rows] + 1e-6 * np.eye(X.shape[1]))[1]


def test_the_order_is_a_permutation_with_more_information_early_than_chance():
    found = points(Grid(), offload=("ram",), alphas=(0.25, 0.5, 1.0))
    arch = catalog.llms()["llama-3.1-8b"]
    seconds = np.array([predict.estimate(arch, H100, p) for p in found])
    order = informative_first(found, seconds)
    assert sorted(map(str, order)) == sorted(map(str, found))
    X = scaled_rows(found, seconds)
    rng = np.random.default_rng(0)
    for k in (12, 20, 40):
        ours = information(X, [found.index(p) for p in order[:k]])
        chance = [information(X, rng.choice(len(found), k, replace=False)) for _ in range(200)]
        assert ours > max(chance)


def test_the_greedy_order_is_near_the_best_subset():
    """Greedy D-optimal design is within a factor of the best; here the best of all subsets is known."""
    found = points(Grid((1, 8), (128,), (128, 4096), ()))
    seconds = np.array([predict.estimate(catalog.llms()["llama-2-7b"], H100, p) for p in found])
    X = scaled_rows(found, seconds)
    order = [found.index(p) for p in informative_first(found, seconds)]
    best = max(information(X, list(c)) for c in itertools.combinations(range(len(found)), 4))
    assert information(X, order[:4]) >= best - np.log(2)


def test_predictions_are_lp_4_11_and_12_as_printed():
    arch, gpu = catalog.llms()["opt-13b"], H100.gpu
    B, S, alpha, h, L = 4, 512, 0.75, arch.hidden, arch.layers
    io = gpu.pcie_bytes_per_s

    def point(**kv):
        return predict.predicted(arch, H100, Point(family="kvo_ram", alpha=alpha, **kv), "paper")

    flops = B * S * (24 * h**2 + 4 * S * h)
    assert point(prefills=B, chunk=S) == pytest.approx(
        L * max(flops / gpu.fp16_flops, alpha * 2 * B * S * h * 2 / io)
    )  # fmt: skip
    l = S + 1  # noqa: E741
    moved = 2 * B * l * h * 2
    read = max((1 - alpha) * moved / gpu.mem_bytes_per_s, alpha * moved / io)
    assert point(decodes=B, context=S) == pytest.approx(L * (B * (24 * h**2 + 4 * l * h) / gpu.fp16_flops + read))
    assert np.isnan(predict.predicted(arch, H100, Point(prefills=1, chunk=8, decodes=1, context=8)))
    assert np.isnan(predict.predicted(arch, H100, Point(prefills=1, chunk=8, earlier=8)))
    disk, ram = (predict.predicted(arch, H100, Point(decodes=B, context=S, family=f, alpha=1.0))
                 for f in ("kvo_disk", "kvo_ram"))  # fmt: skip
    assert disk / ram == pytest.approx(io / 2e9)


@pytest.mark.parametrize(
    ("name", "gib", "key"),
    [
        ("NVIDIA H100 80GB HBM3", 79.1, "h100"),
        ("NVIDIA H100 PCIe", 79.1, "h100-pcie"),
        ("NVIDIA H100 NVL", 93.6, "h100-nvl"),
        ("NVIDIA H200", 139.8, "h200"),
        ("NVIDIA A100-SXM4-80GB", 79.2, "a100-80g"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "a100-40g"),
        ("NVIDIA A100 80GB PCIe", 79.2, "a100-80g-pcie"),
        ("NVIDIA L40S", 44.4, "l40s"),
        ("NVIDIA L4", 22.0, "l4"),
        ("NVIDIA A10G", 22.1, "a10g"),
        ("Tesla T4", 14.6, "t4"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 94.9, "rtx-pro-6000"),
        ("NVIDIA GeForce RTX 3090", 23.7, None),
    ],
)
def test_devices_are_recognised_by_name_and_memory(name, gib, key):
    assert catalogue_gpu(name, gib * GIB) == key


@pytest.fixture
def measured(tmp_path):
    """A file as `measure` writes it, whose offloaded and control rows have another law than its resident ones."""
    rows = []
    for p in points(
        Grid((1, 2, 4, 8), (64, 256), (64, 512, 2048), (64,)),
        offload=("ram",), alphas=(0.5, 1.0), schedules=("overlap", "serial"),
    ):  # fmt: skip
        predicted = 1e-3 * (1 + 0.01 * p.tokens + 1e-4 * p.kv_tokens + 1e-3 * p.moved_tokens)
        factor = {"high_end": 2.0, "kvo_ram": 5.0 if p.schedule == "overlap" else 50.0}[p.family]
        rows.append({
            "prefill_tokens": p.prefills * p.chunk, "prefill_context_tokens": p.earlier,
            "prefill_requests": p.prefills, "decode_requests": p.decodes, "decode_context_tokens": p.context,
            "tp": 1, "gpu": "h100", "family": p.family, "phase": p.phase, "alpha": p.alpha, "schedule": p.schedule,
            "predicted_s": np.nan if p.phase == "mixed" or p.earlier else predicted,
            "latency_s": factor * predicted + 0.002,
        })  # fmt: skip
    found = campaign.Measured(pd.DataFrame(rows), {"model": "x"})
    path = tmp_path / "steps.parquet"
    campaign.write(path, found)
    return path, found.frame


def test_calibrate_reads_steps_and_pairs_from_one_file(measured):
    path, frame = measured
    steps = read_measurements(path)
    assert steps.kind == "step" and len(steps) == (frame["alpha"] == 0).sum()
    assert "offloaded" in steps.source["left_out"]
    with_where = read_measurements(path, where={"family": "kvo_ram", "schedule": "serial"})
    assert len(with_where) == ((frame["family"] == "kvo_ram") & (frame["schedule"] == "serial")).sum()
    assert calibrate_measurements(steps, "additive").model.targets["latency_s"].in_sample.p90 < 0.05

    pairs = read_measurements(path, kind="pairs")
    assert len(pairs) == (frame["predicted_s"].notna() & (frame["schedule"] == "overlap")).sum()
    assert len(set(pairs.workload.tolist())) < len(pairs)  # every α of a point is held back with it
    found = calibrate_pairs(pairs)
    for family, slope in (("high_end", 2.0), ("multi_pass", 2.0), ("kvo_ram", 5.0)):
        for phase in ("prefill", "decode"):
            c = found.find("h100", family, phase)
            assert c.slope == pytest.approx(slope) and c.intercept_s == pytest.approx(0.002)
    assert found.find("h100", "kvo_disk", "decode") is None  # never measured


def test_files_are_written_once_and_only_as_parquet_or_csv(measured, tmp_path):
    path, frame = measured
    found = campaign.Measured(frame, {"a": 'é, "quoted"'})
    with pytest.raises(InputError, match="existing file"):
        campaign.write(path, found)
    with pytest.raises(InputError, match=r"parquet or \.csv"):
        campaign.write(tmp_path / "x.json", found)
    campaign.write(tmp_path / "x.csv", found)
    assert campaign.read_about(tmp_path / "x.csv") == found.about
    again = read_measurements(tmp_path / "x.csv")
    assert again.values["latency_s"] == pytest.approx(read_measurements(path).values["latency_s"])
    assert campaign.read_about(tmp_path / "none.csv") == {}
