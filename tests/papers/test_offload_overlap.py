"""The overlap study tells a maximum from a sum, on steps whose truth is known."""

import json

import numpy as np
import pandas as pd
import pytest

from papers import offload_overlap as study

FIXED, REQUEST, RESIDENT, MOVED = 2e-3, 1e-4, 4e-8, 4e-7


def steps(rho, noise=0.01, seed=0):
    rng = np.random.default_rng(seed)
    rows = []

    def noisy(seconds):
        return seconds * np.exp(noise * rng.standard_normal())

    def row(batch, context, family, schedule, alpha, seconds, **turns):
        rows.append({
            "model": "m", "phase": "decode", "family": family, "schedule": schedule, "alpha": alpha, "tp": 1,
            "prefill_tokens": 0, "prefill_context_tokens": 0, "prefill_requests": 0,
            "decode_requests": batch, "decode_context_tokens": context,
            "latency_s": noisy(seconds), "resident_s": np.nan, "serial_s": np.nan,
            "predicted_s": 0.5 * seconds, "predicted_paper_s": np.nan, **turns,
        })  # fmt: skip

    for batch in (1, 2, 4, 8):
        for context in (512, 1024, 2048, 4096):
            kv = batch * (context + 1)
            work = FIXED + REQUEST * batch + RESIDENT * kv
            row(batch, context, "high_end", "overlap", 0.0, work)
            for alpha in (0.125, 0.25, 0.5, 0.75, 1.0):
                transfer = MOVED * alpha * kv
                both = max(work, transfer) + rho * min(work, transfer)
                row(batch, context, "kvo_ram", "overlap", alpha, both,
                    resident_s=noisy(work), serial_s=noisy(work + transfer))  # fmt: skip
                row(batch, context, "kvo_ram", "serial", alpha, work + transfer)
    return pd.DataFrame(rows)


@pytest.mark.parametrize("rho", [0.0, 0.6, 1.0, 1.5])
def test_the_share_that_is_not_hidden_is_found(rho):
    (line,) = study.analyse(steps(rho))
    assert line["rho"] == pytest.approx(rho, abs=0.1)
    assert line["rho_low"] <= rho + 0.03 and line["rho_high"] >= rho - 0.03
    assert line["hidden_p90"] < 0.04 and line["hideable_steps"] > 40
    assert line["lp18_roofline_p90"] < 0.04 and line["lp18_paper_p90"] is None
    assert rho > 0 or line["sum_p90"] > 0.05  # a sum does not explain a maximum
    (said,) = study.verdict([line])
    assert ("confirmed" in said) == (rho == 0.0) and ("refuted" in said) == (rho > 0.5)


def test_rates_are_recovered():
    rows = steps(0.0, noise=0.0)
    x, y, _ = study._inputs(rows[rows["schedule"] == "overlap"], decode=True)
    found = study.fit(study.FORMS["hidden"], x, y)
    assert found[:-1] == pytest.approx([FIXED, REQUEST, RESIDENT, MOVED], rel=1e-3)
    assert found[-1] == pytest.approx(0.0, abs=1e-3)


def test_the_printed_lp12_is_recovered_where_it_is_the_truth():
    rows = steps(0.0)
    rows = rows[rows["schedule"] == "overlap"]
    x, _, group = study._inputs(rows, decode=True)
    truth = np.array([1e-3, 2e-4, 3e-8, 2e-7, 5e-7, 0.0])
    y = study.FORMS["max"].predict(truth, x)
    assert study.fit(study.FORMS["max"], x, y) == pytest.approx(truth, rel=1e-3)
    error = {n: np.abs(study.held_out(study.FORMS[n], x, y, group) / y - 1).max() for n in ("max", "sum")}
    assert error["max"] < 1e-3 < error["sum"]


def test_where_nothing_can_be_hidden_nothing_is_said():
    rows = steps(0.0)
    rows[["latency_s", "resident_s", "serial_s"]] = FIXED
    assert "nothing to be told" in study.verdict(study.analyse(rows))[0]


def test_the_command_reads_a_table_of_steps(tmp_path):
    steps(0.0).drop(columns="model").to_csv(tmp_path / "box.csv", index=False)
    assert study.main([str(tmp_path / "box.csv"), "--out", str(tmp_path / "out")]) == 0
    (line,) = json.loads((tmp_path / "out" / "overlap.json").read_text())
    assert line["model"] == "box" and line["rho"] == pytest.approx(0.0, abs=0.1)
    assert study.main([str(tmp_path / "missing.csv"), "--out", str(tmp_path)]) == 2
