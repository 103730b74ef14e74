"""Fits: hand-worked coefficients, terms against equations, degenerate data, safety coverage, choice of model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optmodels.errors import InputError
from optmodels.io.read import validate
from optmodels.latency.calibration import quantile_factor
from optmodels.latency.fit import calibrate_measurements
from optmodels.latency.fit.calibrate import calibrate_pairs, folds, to_calibration
from optmodels.latency.fit.document import LatencyModel, errors, residual_quantiles
from optmodels.latency.fit.forms import MODELS, FitOptions, fit_segments, targets_of
from optmodels.latency.fit.linear import fit_nonnegative
from optmodels.latency.fit.loads import served_load, static_load, step_load
from optmodels.latency.fit.measurements import measurements, read_measurements
from optmodels.latency.fit.reference import Reference


def served(n_workloads=4, noise=0.0, seed=0):
    """A closed loop whose step time is exactly 5 ms + 30 µs a request + 40 µs a prompt token."""
    rng = np.random.default_rng(seed)
    grid = [
        (c, s, o) for s, o in [(256, 128), (512, 256), (1024, 128), (2048, 512)][:n_workloads] for c in (1, 4, 16, 64)
    ]
    C, S, out = (np.array(x, dtype=float) for x in zip(*grid, strict=True))
    tpot = 0.005 + 3e-5 * C + 4e-5 * C * S / out
    ttft = 0.02 + 4e-5 * S
    jitter = np.exp(noise * rng.standard_normal((2, len(C))))
    return measurements(
        "served",
        {
            "concurrency": C,
            "input_tokens": S,
            "output_tokens": out,
            "ttft_s": ttft * jitter[0],
            "tpot_s": tpot * jitter[1],
        },
    )


def steps(n=300, seed=0, noise=0.0):
    """Decode steps of 10 ms + 1 µs a context token/10 + 0.1 ms a request."""
    rng = np.random.default_rng(seed)
    b, c = rng.integers(1, 65, n).astype(float), rng.integers(16, 4096, n).astype(float)
    y = (0.010 + 1e-7 * b * c + 1e-4 * b) * np.exp(noise * rng.standard_normal(n))
    return measurements("step", {"decode_requests": b, "decode_context_tokens": c, "latency_s": y})


# ------------------------------------------------------------------------------------------- linear


def test_exact_data_give_exact_coefficients():
    x = np.arange(1.0, 21.0)
    fit = fit_nonnegative(np.stack([np.ones(20), x], 1), 3.0 + 0.5 * x, ("fixed", "slope"))
    np.testing.assert_allclose(fit.value, [3.0, 0.5], rtol=1e-9)
    np.testing.assert_allclose(fit.low, fit.value, rtol=1e-6)
    assert fit.warnings == ()


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    x = np.linspace(1, 50, 40)
    hits = 0
    for seed in range(200):
        y = (2.0 + 0.3 * x) * (1 + 0.03 * np.random.default_rng(seed).standard_normal(40))
        fit = fit_nonnegative(np.stack([np.ones(40), x], 1), y, ("fixed", "slope"), robust=False)
        hits += fit.low[1] <= 0.3 <= fit.high[1]
    assert 175 <= hits <= 199  # 95 % ± four standard errors, and the small bias of relative weights


def test_a_negative_slope_is_held_at_zero():
    x = np.arange(1.0, 11.0)
    fit = fit_nonnegative(np.stack([np.ones(10), x], 1), 20.0 - x, ("fixed", "slope"))
    assert fit.value[1] == 0 and np.isnan(fit.low[1]) and fit.value[0] > 0


def test_proportional_terms_are_named():
    x = np.arange(1.0, 11.0)
    fit = fit_nonnegative(np.stack([x, 2 * x], 1), x, ("one", "other"))
    assert "cannot tell other from one" in fit.warnings[0] and fit.value[1] == 0


@pytest.mark.parametrize("factor", [1000.0, 0.001])
def test_outliers_times_1000_do_not_bend_the_rest(factor):
    x = np.arange(1.0, 101.0)
    y = 3.0 + 0.5 * x
    y[[7, 50, 90]] *= factor
    fit = fit_nonnegative(np.stack([np.ones(100), x], 1), y, ("fixed", "slope"))
    keep = np.delete(np.arange(100), [7, 50, 90])
    assert np.abs((fit.value[0] + fit.value[1] * x)[keep] / (3.0 + 0.5 * x)[keep] - 1).max() < 0.25
    assert any("outliers" in w for w in fit.warnings)


# ----------------------------------------------------------------------------------- terms of a load


def test_static_load_is_the_sum_of_its_steps():
    B, S, out = 3.0, 10, 5
    whole = static_load(
        {
            "batch": np.array([B]),
            "input_tokens": np.array([S]),
            "output_tokens": np.array([out]),
            "tp": np.ones(1),
        }
    )
    t = np.arange(1, out)
    parts = step_load(
        {
            "prefill_tokens": np.concatenate([[B * S], 0 * t]),
            "prefill_requests": np.concatenate([[B], 0 * t]),
            "prefill_context_tokens": np.zeros(out),
            "decode_requests": np.concatenate([[0], B + 0 * t]),
            "decode_context_tokens": np.concatenate([[0], S + t]),
            "tp": np.ones(out),
        }
    )
    for name in (
        "steps",
        "prefill_tokens",
        "prefill_squares",
        "decodes",
        "decode_context",
        "prefills",
        "prefill_steps",
    ):
        assert getattr(whole, name)[0] == pytest.approx(getattr(parts, name).sum()), name


def test_served_load_conserves_prompt_tokens():
    v = {
        "concurrency": np.array([8.0]),
        "input_tokens": np.array([1000.0]),
        "output_tokens": np.array([200.0]),
        "tp": np.ones(1),
    }
    load = served_load(v)
    # One user's request takes 200 steps and brings 1000 prompt tokens; eight users, so 40 per step.
    assert load.prefill_tokens[0] == 40 and load.decodes[0] == 8 and load.decode_context[0] == 8 * 1100


# --------------------------------------------------------------------------------------------- models


def test_additive_recovers_a_closed_loop():
    fitted = calibrate_measurements(served(), "additive")
    for target in ("ttft_s", "tpot_s"):
        assert fitted.model.targets[target].cross_validated.mape < 0.01


def test_two_segment_has_the_paper_s_terms():
    m = steps()
    (segment,), _ = fit_segments("two_segment", m, "latency_s", FitOptions())
    value = {c.name: c.value for c in segment.terms}
    assert value["fixed"] == pytest.approx(0.010, rel=1e-6)
    assert value["sum_c"] == pytest.approx(1e-7, rel=1e-6)
    assert value["sum_p"] == pytest.approx(1e-4, rel=1e-6)  # |B|, Σp and Σp² coincide when all decode


def test_decay_recovers_its_parameters():
    W = np.array([1.0, 2, 4, 8, 16, 32, 64, 128])
    rate = 100 * (1 - 0.15 * np.log(0.5 + np.minimum(W, 64)))
    m = measurements(
        "served",
        {
            "concurrency": W,
            "input_tokens": W * 0 + 100,
            "output_tokens": W * 0 + 100,
            "ttft_s": W * 0 + 1,
            "tpot_s": 1 / rate,
        },
    )
    (segment,), _ = fit_segments("decay", m, "tpot_s", FitOptions(batch_limit=64.0))
    value = {c.name: c.value for c in segment.terms}
    assert value["base_tokens_per_s"] == pytest.approx(100, rel=1e-3)
    assert value["delta"] == pytest.approx(0.15, rel=1e-3) and value["epsilon"] == pytest.approx(0.5, rel=1e-2)


def test_linear_batch_is_d0_plus_d1_b():
    b = np.arange(1.0, 30.0)
    m = measurements(
        "step", {"decode_requests": b, "decode_context_tokens": b * 0 + 100, "latency_s": 0.027 + 0.0002 * b}
    )
    (segment,), _ = fit_segments("linear_batch", m, "latency_s", FitOptions())
    assert [c.value for c in segment.terms] == pytest.approx([0.027, 0.0002])


def test_scaled_recovers_lp18_and_loads_as_a_calibration():
    ref = Reference("h100", "llama-3.1-8b")
    v = {k: served().values[k] for k in ("concurrency", "input_tokens", "output_tokens", "tp")}
    ttft, tbt = ref.latencies(v)
    m = measurements("served", v | {"ttft_s": 1.5 * ttft + 0.01, "tpot_s": 2.0 * tbt + 0.001})
    fitted = calibrate_measurements(m, "scaled", FitOptions(reference=ref))
    calibration = to_calibration(fitted.model)
    prefill, decode = (calibration.find("h100", "high_end", p) for p in ("prefill", "decode"))
    assert (prefill.slope, prefill.intercept_s) == pytest.approx((1.5, 0.01), rel=1e-6)
    assert (decode.slope, decode.intercept_s) == pytest.approx((2.0, 0.001), rel=1e-6)
    with pytest.raises(InputError, match="scaled"):
        to_calibration(calibrate_measurements(served(), "additive").model)


TABLE_VIII = {  # LLM-Pilot: configuration → (real, predicted, printed error %) for Gen, Bal, Sum
    "high_end": [(39.4, 38.5, 2.3), (20.8, 20.3, 2.4), (8.2, 8.0, 2.5)],
    "ao": [(68.5, 65.2, 4.8), (36.4, 34.5, 5.2), (11.8, 10.9, 7.6)],
    "ao_shared": [(78.6, 73.1, 7.0), (41.2, 38.5, 6.5), (13.5, 12.4, 8.1)],
    "kvo_disk": [(368.5, 335.2, 9.0), (189.2, 172.5, 8.8), (49.8, 45.6, 8.4)],
}


@pytest.mark.parametrize("family", TABLE_VIII)
def test_table_viii_of_llm_pilot(family):
    real, predicted, printed = (np.array(x) for x in zip(*TABLE_VIII[family], strict=True))
    np.testing.assert_allclose(100 * np.abs(predicted / real - 1), printed, atol=0.1)
    m = measurements("pairs", {"predicted_s": predicted, "latency_s": real})
    (segment,), _ = fit_segments("scaled", m, "latency_s", FitOptions())
    value = {c.name: c.value for c in segment.terms}
    fitted = value.get("predicted_s", 0) * predicted + value.get("offset", 0)
    assert errors(real, fitted).mape < 0.005  # LP(18) takes the bias out of every row of the table
    assert 1.0 < value["predicted_s"] < 1.12


def test_auto_prefers_the_form_that_made_the_data():
    v = served().values
    v = {k: np.tile(v[k], 3) for k in ("concurrency", "input_tokens", "output_tokens", "ttft_s")}
    tp = np.repeat([1.0, 2.0, 4.0], len(v["ttft_s"]) // 3)
    tpot = 0.002 + (0.010 + 4e-5 * v["concurrency"] * v["input_tokens"] / v["output_tokens"]) / tp  # sharded work
    m = measurements("served", v | {"tp": tp, "tpot_s": tpot})
    assert calibrate_measurements(m, "auto").model.model == "additive"
    b = np.tile(np.arange(1.0, 33.0), 4)
    m = measurements(
        "step",
        {
            "decode_requests": b,
            "decode_context_tokens": np.repeat([100.0, 200, 300, 400], 32),
            "latency_s": 0.03 + 0.001 * b,
        },
    )
    chosen = calibrate_measurements(m, "auto").model
    assert chosen.model == "linear_batch" and chosen.why[-1].startswith("chose linear_batch")


def test_auto_is_judged_on_ttft_too():
    """Two models equal in TPOT, one with a wrong TTFT: LP(18) cannot say a TTFT that grows with the crowd."""
    m = served(4)
    C = m.values["concurrency"]
    reference = Reference("h100", "llama-3.1-8b", "fp16")
    _, tbt = reference.latencies(m.values)
    m.values["ttft_s"], m.values["tpot_s"] = 0.02 + 2e-5 * m.values["input_tokens"] + 1e-3 * C, 1.5 * tbt + 2e-3
    found = calibrate_measurements(m, "auto", FitOptions(reference))
    scaled = calibrate_measurements(m, "scaled", FitOptions(reference)).model.targets
    assert scaled["tpot_s"].cross_validated.mape < 1e-6 < scaled["ttft_s"].cross_validated.mape
    assert found.model.model != "scaled" and all("TTFT" in w and "TPOT" in w for w in found.model.why[:-1])


@pytest.mark.parametrize("workloads", [2, 3])
def test_few_workloads_are_warned_of(workloads):
    found = calibrate_measurements(served(workloads), "auto").model
    assert any(w.startswith(f"{workloads} workloads by input_tokens") for w in found.warnings)
    assert not any("too few to tell" in w for w in calibrate_measurements(served(4), "additive").model.warnings)


def test_whole_workloads_are_held_back():
    m = served()
    fold = folds(m.workload)
    for w in range(4):
        assert len(set(fold[m.workload == w])) == 1
    assert len(set(fold)) == 4


def test_the_model_file_round_trips():
    model = calibrate_measurements(served(noise=0.02), "additive").model
    again = LatencyModel.model_validate(model.model_dump(mode="json", by_alias=True))
    values = served().values
    np.testing.assert_array_equal(model.predict(values, "ttft_s"), again.predict(values, "ttft_s"))


def test_extrapolation_is_said():
    model = calibrate_measurements(served(), "additive").model
    values = {k: v.copy() for k, v in served().values.items()}
    assert model.extrapolation(values) == ()
    values["concurrency"][0] = 500
    (said,) = model.extrapolation(values)
    assert "concurrency" in said and "extrapolation" in said


# --------------------------------------------------------------------------------------------- safety


@pytest.mark.parametrize("level", [0.8, 0.9, 0.95])
def test_safety_level_covers_rows_held_back(level):
    covered = []
    for seed in range(5):
        model = calibrate_measurements(steps(300, seed, noise=0.1), "two_segment").model
        fresh = steps(1000, 100 + seed, noise=0.1)
        covered.append(np.mean(fresh.values["latency_s"] <= model.predict(fresh.values, safety=level)))
    assert level - 0.025 <= np.mean(covered) <= level + 0.04


def test_residual_quantiles_are_the_conformal_ranks():
    ratio = np.arange(1.0, 20.0)  # n = 19: the 0.95 quantile is the ⌈20·0.95⌉ = 19th
    q = residual_quantiles(ratio, np.ones(19))
    assert q["0.95"] == 19 and q["0.5"] == 10 and "0.96" not in q
    assert quantile_factor(q, 0.93) == 19  # the next higher level stored
    assert quantile_factor(q, None) == 1
    with pytest.raises(InputError, match="support"):
        quantile_factor(q, 0.99)
    with pytest.raises(InputError, match="between 0 and 1"):
        quantile_factor(q, 1.5)


# --------------------------------------------------------------------------------------- degenerate data


def degenerate():
    base = {k: v.copy() for k, v in served().values.items()}
    one = {k: v[:1] for k, v in base.items()}
    constant = {k: np.full(6, v[0]) for k, v in base.items()}
    zeros = {k: np.zeros(6) for k in base}
    nan = {k: v.copy() for k, v in base.items()}
    nan["tpot_s"][3] = np.nan
    negative = {k: v.copy() for k, v in base.items()}
    negative["ttft_s"][2] = -1.0
    outliers = {k: v.copy() for k, v in base.items()}
    outliers["tpot_s"][5] *= 1000
    return {
        "one": one,
        "constant": constant,
        "zeros": zeros,
        "nan": nan,
        "negative": negative,
        "outliers": outliers,
    }


@pytest.mark.parametrize("model", [*MODELS, "auto"])
@pytest.mark.parametrize("case", degenerate())
def test_degenerate_data_end_in_a_named_error_or_a_robust_answer(case, model):
    options = FitOptions(reference=Reference("h100", "llama-3.1-8b"))
    data = degenerate()[case]
    try:
        fitted = calibrate_measurements(measurements("served", data, name=case), model, options).model
    except InputError as error:
        assert error.mistakes and all(m.expected for m in error.mistakes)
        assert case != "outliers"
        return
    assert case in ("constant", "outliers")
    good = served().values if case == "outliers" else data
    for target in fitted.targets:
        predicted = fitted.predict(good, target)
        assert np.isfinite(predicted).all() and (predicted > 0).all()
    if case == "outliers" and model in ("additive", "auto"):
        keep = np.arange(len(good["tpot_s"])) != 5
        assert np.median(np.abs(fitted.predict(good, "tpot_s") / good["tpot_s"] - 1)[keep]) < 0.05


@settings(max_examples=40, deadline=None)
@given(
    y=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=12),
    b=st.lists(st.integers(1, 512), min_size=12, max_size=12),
)
def test_any_positive_times_fit_or_are_refused(y, b):
    m = measurements("step", {"decode_requests": b[: len(y)], "decode_context_tokens": [100] * len(y), "latency_s": y})
    for model in ("linear_batch", "two_segment", "additive"):
        try:
            fitted = calibrate_measurements(m, model).model
        except InputError as error:
            assert len(y) < 3, error
            continue
        for segment in fitted.targets["latency_s"].segments:
            assert all(c.value >= 0 and np.isfinite(c.value) for c in segment.terms)


def test_a_column_of_next_to_nothing_is_refused_in_words():
    """Fuzz case 29272: contexts of 10⁻³⁰ tokens were fitted to 10²⁶ s a token, and failed the model's schema."""
    rows = [(p, b) for p in (0, 128, 512) for b in (1, 1, 4, 4, 16, 16)]
    data = {
        "prefill_tokens": [p for p, _ in rows], "prefill_context_tokens": [0] * 18,
        "decode_requests": [b for _, b in rows], "decode_context_tokens": [1e-30] * 18,
        "latency_s": [0.005 + 2e-5 * p + 1e-4 * b for p, b in rows],
    }  # fmt: skip
    with pytest.raises(InputError, match="measurements in their units"):
        calibrate_measurements(measurements("step", data), "two_segment")


# --------------------------------------------------------------------------------------------- files


def test_columns_are_mapped_by_name_and_unit(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("gpu,n,ctx,ms\nh100,1,100,10\nh100,2,100,11\na100,2,100,50\n")
    m = read_measurements(
        path,
        columns={"decode_requests": "n", "decode_context_tokens": "ctx", "latency_s": "ms:ms", "tp": "2"},
        where={"gpu": "h100"},
    )
    assert m.kind == "step" and len(m) == 2
    np.testing.assert_allclose(m.values["latency_s"], [0.010, 0.011])
    np.testing.assert_array_equal(m.values["tp"], [2, 2])


def test_parquet_reads_like_csv(tmp_path):
    import pandas as pd

    frame = pd.DataFrame({"decode_requests": [1, 2], "decode_context_tokens": [10, 10], "latency_s": [0.1, 0.2]})
    frame.to_parquet(tmp_path / "m.parquet")
    frame.to_csv(tmp_path / "m.csv", index=False)
    a, b = (read_measurements(tmp_path / f"m.{s}") for s in ("parquet", "csv"))
    for name in a.values:
        np.testing.assert_array_equal(a.values[name], b.values[name])


@pytest.mark.parametrize(
    ("text", "columns", "path"),
    [
        ("a,b\n1,2\n", {}, "columns"),
        ("decode_requests,latency_s\n1,-1\n", {}, "row 1.latency_s"),
        ("decode_requests,latency_s\n1,\n", {}, "row 1.latency_s"),
        ("decode_requests,latency_s\n1,abc\n", {}, "row 1.latency_s"),
        ("decode_requests,latency_s\n0,1\n", {}, "row 1"),
        ("decode_requests,t\n1,1\n", {"latency_s": "t:kg"}, "columns.latency_s"),
        ("decode_requests,t\n1,1\n", {"latency_s": "x"}, "columns.latency_s"),
        ("decode_requests,latency_s\n1,1\n", {"nonsense": "x"}, "columns.nonsense"),
        ("decode_requests,latency_s\n", {}, ""),
    ],
)
def test_mistakes_are_named(tmp_path, text, columns, path):
    file = tmp_path / "m.csv"
    file.write_text(text)
    with pytest.raises(InputError) as raised:
        read_measurements(file, columns=columns)
    assert raised.value.mistakes[0].path == path and raised.value.mistakes[0].expected


def test_targets_of_unsuitable_models_are_empty():
    assert targets_of("decay", "step") == () and targets_of("additive", "pairs") == ()
    with pytest.raises(InputError, match="step measurements"):
        calibrate_measurements(steps(), "decay")
    with pytest.raises(InputError, match="one of"):
        calibrate_measurements(steps(), "nonsense")


def test_a_cell_without_a_name_and_a_time_too_short_are_named_by_row(tmp_path):
    path = tmp_path / "pairs.csv"
    head = "gpu,family,phase,predicted_s,latency_s\n"
    rows = [f"l4,high_end,{phase},{x},{x * 1.2}\n" for phase in ("prefill", "decode") for x in (0.01, 0.02, 0.05)]
    path.write_text(head + "".join(rows).replace("high_end,decode,0.02", "null,decode,0.02"))
    with pytest.raises(InputError, match=r"row 5\.family: missing; expected a name in every row"):
        read_measurements(path)
    path.write_text(head + "".join(rows).replace("0.02,0.024", "0.02,1e-320"))
    with pytest.raises(InputError, match=r"row 2\.latency_s: got 1e-320; expected a number ≥ 1e-12 s"):
        read_measurements(path)
    path.write_text(head + "".join(rows).replace("high_end", "fastest"))
    with pytest.raises(InputError, match=r"pairs\.csv: family: got 'fastest'"):
        calibrate_pairs(read_measurements(path))


def decay(**over):
    """A model file of MS(1), as `calibrate` writes it, with some of a target's fields changed."""
    terms = [{"name": n, "value": v} for n, v in (("base_tokens_per_s", 50.0), ("delta", 0.1), ("epsilon", 1.0))]
    errors_ = {"rows": 4, "r2": None, "mape": 0.1, "p50": 0.1, "p90": 0.1, "p99": 0.1, "bias": 0.0}
    target = {"segments": [{"when": "tp=2", "terms": terms}], "in_sample": errors_} | over
    return {"model": "decay", "measured": "served", "targets": {"tpot_s": target}}


TERM = {"name": "delta", "value": 0.1}


@pytest.mark.parametrize(("document", "said"), [
    (decay(segments=[{"terms": [TERM]}]), "base_tokens_per_s, delta, epsilon once each"),
    (decay(segments=[{"terms": [TERM, TERM | {"name": "epsilon"}, TERM | {"name": "base_tokens_per_s", "value": 0}]}]),
     "a base_tokens_per_s > 0"),
    (decay(segments=[{"terms": []}]), r"segments\[0\]\.terms: got \[\]"),
    (decay(segments=[{"terms": [TERM | {"name": "x" * 99}]}]), "terms of decay that served rows have"),
    (decay(segments=[{"when": "tp=two", "terms": [TERM]}]), r"segments\[0\]\.when: got 'tp=two'"),
    (decay(segments=[{"terms": [TERM | {"value": float("nan")}]}]), r"terms\[0\]\.value: got nan"),
    (decay(segments=[{"terms": [TERM | {"value": 1e300}]}]), r"terms\[0\]\.value: got 1e\+300"),
    (decay(residual_quantiles={"often": 1.2}), r"residual_quantiles\.often"),
    (decay() | {"measured": "step"}, "latency_s as targets of step measurements, not 'tpot_s'"),
    (decay() | {"measured": "pairs", "model": "scaled"}, "latency_s as targets of pairs measurements"),
    (decay() | {"batch_limit": 0}, "batch_limit: got 0"),
    (decay() | {"domain": {"tp": [4, 1]}}, r"domain\.tp: .*the smaller bound first"),
])  # fmt: skip
def test_a_model_file_holds_the_terms_that_its_model_has(document, said):
    LatencyModel.model_validate(decay())
    with pytest.raises(InputError, match=said):
        validate(LatencyModel, document)
