"""LP(11)–(18) against numbers worked out by hand, and what the formulation relies on: convexity, bounds, minima."""

from itertools import pairwise

import numpy as np
import pytest
from cases import alpha_range, instances, tables_of
from hypothesis import given, settings
from hypothesis import strategies as st

from optmodels.catalog.types import Architecture
from optmodels.latency.calibration import Calibration, calibrate
from optmodels.latency.strategies import FAMILIES, BatchModel, Hardware
from optmodels.latency.work import layer_work

# One layer does 24·10⁶ FLOP a token and 4,000 a pair, keeps 4,000 bytes a token, sends 8,000 bytes a token to an AO
# machine, and under roofline adds 10⁶ FLOP of the head and reads 25·10⁶ bytes of weights.
L, B, S_IN, S_OUT = 3, 4.0, 10, 4
STEPS, CONTEXT = 3, 12.0  # l_t = 11, 12, 13
WORK = layer_work(
    Architecture(
        layers=L, hidden=1000, heads=1, kv_heads=1, head_dim=1000, ffn=4000, ffn_matrices=2, vocab=1500,
        max_positions=1000,
    )
)  # fmt: skip
PREFILL = 4 * 10 * (24e6 + 4 * 10 * 1000) / 1e12
PREFILL_ROOFLINE = PREFILL + 4 * 1e6 / 1e12
COMPUTE = 4 * (24e6 + 4000 * 12) / 1e12
KV = 4 * 12 * 4000  # bytes read in the mean step


def one(value):
    return np.array([float(value)])


def hardware(**changes):
    values = {
        "tp": 1, "flops": 1e12, "mem_bytes_per_s": 1e11, "vram_bytes": 1e12, "pcie_bytes_per_s": 1e10,
        "disk_bytes_per_s": 1e9, "net_bytes_per_s": 2e9, "link_bytes_per_s": 1e10, "ram_bytes": 1e12,
        "disk_bytes": 1e12,
    }  # fmt: skip
    return Hardware(**{k: one(v) for k, v in (values | changes).items()})


AO = {"flops": 1e11, "mem_bytes_per_s": 1e10, "net_bytes_per_s": 1e9}


def model(variant, **changes):
    return BatchModel(WORK, S_IN, S_OUT, variant=variant, **changes)


def at(curves, alpha):
    ttft, tbt, e2e = (float(v[0]) for v in curves.metrics(one(alpha)))
    return ttft, tbt, e2e


def expect(curves, alpha, ttft, tbt, e2e=None):
    got = at(curves, alpha)
    assert got[0] == pytest.approx(ttft, rel=1e-12)
    assert got[1] == pytest.approx(tbt, rel=1e-12)
    assert got[2] == pytest.approx(ttft + STEPS * tbt if e2e is None else e2e, rel=1e-12)


def test_the_hand_made_layer_is_as_stated():
    assert (WORK.linear_flops_per_token, WORK.attention_flops_per_pair) == (24e6, 4000)
    assert (WORK.kv_bytes_per_token, WORK.ao_bytes_per_token) == (4000, 8000)
    assert (WORK.head_flops_per_token, WORK.fixed_weight_bytes) == (1e6, 25e6)


# ------------------------------------------------------------------------------------------ paper, as printed


def test_paper_without_offloading():
    curves = model("paper").resident(hardware(), one(B), one(1))
    expect(curves, 0, L * PREFILL, L * (COMPUTE + KV / 1e11))


@pytest.mark.parametrize(
    ("io", "alpha", "prefill", "wait"),
    [
        (1e10, 0.5, PREFILL, 0.5 * KV / 1e10),  # the link is slower than memory
        (1e10, 0.05, PREFILL, 0.95 * KV / 1e11),  # little is offloaded: local reading is slower
        (1e7, 0.5, 0.5 * 4 * 10 * 4000 / 1e7, 0.5 * KV / 1e7),  # the link holds up prefill too
        (1e7, 0.0, PREFILL, KV / 1e11),
        (1e7, 1.0, 4 * 10 * 4000 / 1e7, KV / 1e7),
    ],
)
def test_paper_kv_offload_lp_11_12(io, alpha, prefill, wait):
    curves = model("paper").kv_offload(hardware(), one(B), one(io), one(1e12))
    expect(curves, alpha, L * prefill, L * (COMPUTE + wait))


def test_paper_the_slower_reading_changes_from_step_to_step():
    # Two lines over l that cross inside the decode steps need local and remote constants; roofline has them: compute
    # 10⁻⁴ + 4·4000·l/10¹² against transfer α·16000·l/io. At io = 1.92·10⁹·α they are equal near l = 12.
    curves = model("roofline").kv_offload(hardware(mem_bytes_per_s=1e13), one(B), one(1.92e9), one(1e12))
    steps = [max(1e-4 + 1.6e-8 * x, 2.5e-6 + 0.0, 16000 * x / 1.92e9) for x in (11, 12, 13)]
    assert steps[0] == pytest.approx(1e-4 + 1.6e-8 * 11)
    assert steps[2] == pytest.approx(16000 * 13 / 1.92e9)
    assert at(curves, 1.0)[1] == pytest.approx(L * sum(steps) / 3, rel=1e-12)


def test_paper_attention_offload_lp_13_14():
    curves = model("paper").attention_offload(hardware(), hardware(**AO), one(B), one(0))
    ffn, sent = 4 * 24e6 / 1e12, 4 * 8000 / 1e9  # D_ao(B), not D_ao(αB), as printed
    local, remote = 2 * 4000 * 12 / 1e12, 2 * 4000 * 12 / 1e11 + sent
    expect(curves, 0.5, L * PREFILL, L * (ffn + max(local, remote)))
    slow = model("paper").attention_offload(hardware(), hardware(**AO | {"net_bytes_per_s": 1e6}), one(B), one(0))
    assert at(slow, 0.5)[0] == pytest.approx(L * 0.5 * 4 * 10 * 8000 / 1e6, rel=1e-12)


@pytest.mark.parametrize("variant", ["paper", "roofline"])
def test_the_slower_of_the_two_networks_counts(variant):
    m = model(variant)
    one_way = m.attention_offload(hardware(net_bytes_per_s=1e7), hardware(net_bytes_per_s=1e9), one(B), one(0))
    other = m.attention_offload(hardware(net_bytes_per_s=1e9), hardware(net_bytes_per_s=1e7), one(B), one(0))
    assert at(one_way, 0.5) == at(other, 0.5)
    assert at(one_way, 0.5)[0] == pytest.approx(L * 0.5 * 4 * 10 * 8000 / 1e7, rel=1e-12)


# --------------------------------------------------------------------------------------------------- roofline


def test_roofline_decode_reads_the_weights():
    curves = model("roofline").resident(hardware(), one(B), one(1))
    expect(curves, 0, L * PREFILL_ROOFLINE, L * (25e6 + KV) / 1e11)


def test_roofline_prefill_of_a_short_prompt_reads_the_weights():
    curves = model("roofline").resident(hardware(mem_bytes_per_s=1e10), one(B), one(1))
    assert at(curves, 0)[0] == pytest.approx(L * 25e6 / 1e10, rel=1e-12)


@pytest.mark.parametrize(("io", "tbt"), [(1e10, (25e6 + 0.5 * KV) / 1e11), (1e8, 0.5 * KV / 1e8)])
def test_roofline_kv_offload(io, tbt):
    curves = model("roofline").kv_offload(hardware(), one(B), one(io), one(1e12))
    expect(curves, 0.5, L * max(PREFILL_ROOFLINE, 0.5 * 4 * 10 * 4000 / io), L * tbt)


def test_roofline_compute_bound_decode():
    curves = model("roofline").kv_offload(hardware(mem_bytes_per_s=1e13), one(B), one(1e12), one(1e12))
    expect(curves, 0.5, L * PREFILL_ROOFLINE, L * (4 * 25e6 + 4 * 4000 * 12) / 1e12)


def test_roofline_attention_offload():
    curves = model("roofline").attention_offload(hardware(), hardware(**AO), one(B), one(0))
    local = max(4 * 4000 * 12 / 1e12, KV / 1e11)
    remote = max(4 * 4000 * 12 / 1e11, KV / 1e10) + 4 * 8000 / 1e9
    expect(curves, 0.5, L * PREFILL_ROOFLINE, L * (25e6 / 1e11 + max(0.5 * local, 0.5 * remote)))
    expect(curves, 0.0, L * PREFILL_ROOFLINE, L * (25e6 / 1e11 + local))


# -------------------------------------------------------------------------------- topologies, passes, parallelism


@pytest.mark.parametrize("variant", ["paper", "roofline"])
@pytest.mark.parametrize("N", [2, 3])
def test_shared_waits_as_in_m_d_1_lp_16(variant, N):
    m, fast_ao = model(variant), hardware(flops=1e13, mem_bytes_per_s=1e12, net_bytes_per_s=1e10)
    alone = m.attention_offload(hardware(net_bytes_per_s=1e10), fast_ao, one(B), one(0))
    shared = m.attention_offload(hardware(net_bytes_per_s=1e10), fast_ao, one(B), one(N))
    alpha = 0.5
    T = at(alone, alpha)[1] / L
    if variant == "paper":
        service = 0.5 * 4 * 4000 * 12 / 1e13 + 4 * 8000 / 1e10
    else:
        service = 0.5 * (KV / 1e12 + 4 * 8000 / 1e10)
    mu, rho = 1 / service, N * service / T
    assert 0 < rho < 1
    assert float(shared.load(one(alpha))[0]) == pytest.approx(rho, rel=1e-12)
    expect(shared, alpha, at(alone, alpha)[0], L * (T + rho / (2 * mu * (1 - rho))))


def test_shared_is_never_served_beyond_saturation():
    slow = hardware(**AO | {"flops": 1e9})
    shared = model("paper").attention_offload(hardware(), slow, one(B), one(8))
    assert at(shared, 1.0)[1] == np.inf
    assert float(shared.alpha_hi[0]) < 1


def test_shared_divides_the_ao_machines_memory():
    m = model("paper")
    ao = hardware(vram_bytes=3e5)
    kv = B * (S_IN + S_OUT) * L * 4000
    assert m.attention_offload(hardware(), ao, one(B), one(0)).alpha_hi[0] == pytest.approx(3e5 / kv)
    assert m.attention_offload(hardware(), ao, one(B), one(3)).alpha_hi[0] <= 1e5 / kv * (1 + 1e-12)


def problem_of(family, variant, **strategies):
    machine = {"gpu": "a10g", "vram_gib": 24, "ram_gib": 64, "disk_gbps": 5, "net_gbps": 25}
    return {
        "formulation": "cost_efficiency", "schema": 1, "serving": "static", "name": family, "model": "opt-6.7b",
        "workload": {"batch": 8, "input_tokens": 64, "output_tokens": 16}, "slo": {"kind": "batch", "tps": 1},
        "pool": {"machines": [
            {"machine": "a", "prices": {"on_demand": 1.0}, **machine},
            {"machine": "b", "prices": {"on_demand": 1.0}, **machine},
        ]},
        "strategies": {"families": [family], **strategies}, "latency": {"variant": variant},
    }  # fmt: skip


@pytest.mark.parametrize("variant", ["paper", "roofline"])
def test_parallel_is_the_pair_at_b_over_k_lp_15(variant):
    _, pairs = tables_of(problem_of("ao_parallel", variant, parallel=[4]))
    small = problem_of("ao", variant)
    small["workload"]["batch"] = 2
    _, pair = tables_of(small)
    alpha = np.full(len(pairs.curves), 0.3)
    assert np.array_equal(np.stack(pairs.curves.metrics(alpha)), np.stack(pair.curves.metrics(alpha)))
    assert pairs.candidates.usd_per_hour.tolist() == [4 * c for c in pair.candidates.usd_per_hour]


def test_multi_pass_runs_one_part_after_another_lp_17():
    curves = model("paper").resident(hardware(), one(B), one(5))
    one_pass = L * PREFILL + STEPS * L * (COMPUTE + KV / 1e11)
    expect(curves, 0, L * PREFILL + 4 * one_pass, L * (COMPUTE + KV / 1e11), 5 * one_pass)


def test_a_part_that_does_not_divide_rounds_up():
    _, t = tables_of(problem_of("multi_pass", "paper", multi_pass=[3]))
    assert set(t.configurations.batch.tolist()) == {3}  # 8 = 3 + 3 + 2


def test_passes_that_would_leave_one_empty_are_not_offered():
    _, t = tables_of(problem_of("multi_pass", "paper", multi_pass=[2, 3, 4, 5, 6, 7, 8, 16]))
    assert sorted(set(t.configurations.count.tolist())) == [2, 3, 4, 5, 6, 7, 8]


def test_tensor_parallel_adds_two_ring_all_reduces_a_layer():
    hw = hardware(tp=2)
    curves = model("paper").resident(hw, one(B), one(1))
    ring = 2 * 2 * (1 / 2) * 2000 / 1e10  # seconds a token
    expect(curves, 0, L * (PREFILL + 40 * ring), L * (COMPUTE + 2 * KV / 1e11 + 4 * ring))  # each holds the one head


def test_a_single_output_token_has_no_decode():
    curves = BatchModel(WORK, S_IN, 1, variant="roofline").resident(hardware(), one(B), one(2))
    first = L * PREFILL_ROOFLINE
    assert at(curves, 0) == pytest.approx((2 * first, 0.0, 2 * first))


def test_memory_bounds_alpha():
    kv = B * (S_IN + S_OUT) * L * 4000
    fixed = WORK.weight_bytes + B * S_IN * WORK.activation_bytes_per_token + B * WORK.logit_bytes_per_sequence
    m = model("paper", vram_usable=0.5)
    hw = hardware(vram_bytes=2 * (fixed + 0.25 * kv))
    curves = m.kv_offload(hw, one(B), one(1e10), one(0.9 * kv))
    assert curves.alpha_lo[0] == pytest.approx(0.75)
    assert curves.alpha_hi[0] == pytest.approx(0.9)
    resident = m.resident(hw, one(B), one(1))
    assert resident.alpha_lo[0] > resident.alpha_hi[0] == 0  # without offloading it does not fit


# ------------------------------------------------------------------------------------------ calibration, LP(18)


def test_calibration_scales_each_phase_and_the_first_match_wins():
    curves = model("paper").resident(hardware(), one(B), one(2))
    given_ = Calibration(
        coefficients=[
            {"phase": "prefill", "gpu": "t4", "slope": 9.0},
            {"phase": "prefill", "slope": 1.5, "intercept_s": 0.01},
            {"phase": "decode", "family": "multi_pass", "slope": 2.0, "intercept_s": 0.001},
            {"phase": "decode", "slope": 7.0},
        ]
    )
    calibrated = calibrate(curves, given_, ["a10g"], ["multi_pass"])
    ttft, tbt = 1.5 * L * PREFILL + 0.01, 2.0 * L * (COMPUTE + KV / 1e11) + 0.001
    one_pass = ttft + STEPS * tbt
    expect(calibrated, 0, ttft + one_pass, tbt, 2 * one_pass)


def test_a_calibration_that_says_nothing_changes_nothing():
    curves = model("roofline").kv_offload(hardware(), one(B), one(1e9), one(1e12))
    other = Calibration(coefficients=[{"phase": "prefill", "gpu": "h100", "slope": 3.0}])
    assert at(calibrate(curves, other, ["a10g"], ["kvo_ram"]), 0.4) == at(curves, 0.4)


def test_waiting_is_calibrated_with_the_decode_it_is_part_of():
    shared = model("roofline").attention_offload(hardware(), hardware(), one(B), one(2))
    doubled = calibrate(shared, Calibration(coefficients=[{"phase": "decode", "slope": 2.0}]), ["x"], ["ao_shared"])
    assert at(doubled, 0.1)[1] == pytest.approx(2 * at(shared, 0.1)[1])


# ------------------------------------------------------------------- what pruning and the formulation rely on


def offloading(document):
    """Tables of a random instance restricted to configurations with an α-range, or None."""
    _, t = tables_of(document)
    rows = np.flatnonzero(t.curves.alpha_lo <= t.curves.alpha_hi)
    return (t, rows) if len(rows) else None


@settings(max_examples=40)
@given(instances(), st.integers(0, 2**31))
def test_curves_are_convex(document, seed):
    found = offloading(document)
    if found is None:
        return
    t, rows = found
    part, rng = t.curves.take(rows), np.random.default_rng(seed)
    for _ in range(5):
        x, z = (part.alpha_lo + (part.alpha_hi - part.alpha_lo) * rng.random(len(rows)) for _ in range(2))
        weight = rng.random()
        y = weight * x + (1 - weight) * z
        for at_x, at_y, at_z in zip(part.metrics(x), part.metrics(y), part.metrics(z), strict=True):
            finite = np.isfinite(at_x) & np.isfinite(at_z)
            chord = weight * at_x[finite] + (1 - weight) * at_z[finite]
            assert (at_y[finite] <= chord * (1 + 1e-9)).all()


@settings(max_examples=40)
@given(instances(pools=("llm-pilot-table-vii", "llm-pilot-table-vi")), st.integers(0, 2**31))
def test_beyond_the_light_load_cut_tbt_only_grows(document, seed):
    document["strategies"]["families"] = ["ao_shared"]
    document["strategies"]["alpha"] = {"min": 0.0, "max": 1.0}
    _, t = tables_of(document)
    _, high = alpha_range(t)
    rows = np.flatnonzero((t.curves.alpha_lo <= t.curves.alpha_hi) & (high > t.curves.alpha_hi))
    part, rng = t.curves.take(rows), np.random.default_rng(seed)
    previous = part.tbt(part.alpha_hi)
    for share in np.sort(rng.random(8)):
        value = part.tbt(part.alpha_hi + share * (high[rows] - part.alpha_hi))
        assert (value >= previous * (1 - 1e-9)).all()
        previous = value


@settings(max_examples=40)
@given(instances())
def test_lower_bounds_are_lower_bounds(document):
    found = offloading(document)
    if found is None:
        return
    t, rows = found
    part = t.curves.take(rows)
    bounds = part.lower_bounds()
    for share in np.linspace(0, 1, 41):
        for bound, value in zip(
            bounds, part.metrics(part.alpha_lo + share * (part.alpha_hi - part.alpha_lo)), strict=True
        ):
            assert (bound <= value * (1 + 1e-9)).all()


@settings(max_examples=30)
@given(instances())
def test_the_minimisers_beat_a_dense_grid(document):
    found = offloading(document)
    if found is None:
        return
    t, rows = found
    part = t.curves.take(rows)
    fastest, calmest = part.fastest_alpha(), part.calmest_alpha()
    for alpha in (fastest, calmest):
        assert ((part.alpha_lo <= alpha) & (alpha <= part.alpha_hi)).all()
    e2e, tbt = part.e2e(fastest), part.tbt(calmest)
    for share in np.linspace(0, 1, 101):
        alpha = part.alpha_lo + share * (part.alpha_hi - part.alpha_lo)
        assert (e2e <= part.e2e(alpha) * (1 + 1e-9)).all()
        assert (tbt <= part.tbt(alpha) * (1 + 1e-9)).all()


@settings(max_examples=30)
@given(instances(), st.floats(1.0, 1.5))
def test_sublevel_ends_are_feasible_and_nothing_beyond_them_is(document, slack):
    found = offloading(document)
    if found is None:
        return
    t, rows = found
    part = t.curves.take(rows)
    calm = part.calmest_alpha()
    within = part.tbt(calm)[np.isfinite(part.tbt(calm))]
    if not len(within):
        return
    limit = float(np.median(within)) * slack
    left, right = part.sublevel("tbt", limit, calm)
    ok = part.tbt(calm) <= limit
    for end in (left, right):
        assert (part.tbt(end)[ok] <= limit).all()
        assert np.array_equal(end[~ok], calm[~ok])
    step = 1e-6
    for end, beyond in ((left, left - step), (right, right + step)):
        inside = ok & (beyond >= part.alpha_lo) & (beyond <= part.alpha_hi)
        assert (part.tbt(beyond)[inside] >= limit * (1 - 1e-7)).all(), end


@settings(max_examples=20)
@given(instances())
def test_ttft_never_falls_with_alpha(document):
    _, t = tables_of(document)
    low, high = t.curves.alpha_lo, np.maximum(t.curves.alpha_lo, t.curves.alpha_hi)
    single = t.curves.passes == 1
    values = [t.curves._first_token(low + s * (high - low))[single] for s in np.linspace(0, 1, 9)]
    assert all((b >= a).all() for a, b in pairwise(values))


def test_every_family_appears_in_some_random_instance():
    """The random instances above would prove nothing about a family they never reach."""
    document = problem_of("ao", "roofline", parallel=[2], shared=[2], multi_pass=[2])
    document["strategies"]["families"] = list(FAMILIES)
    _, t = tables_of(document)
    assert {FAMILIES[i] for i in t.configurations.family} == set(FAMILIES)
