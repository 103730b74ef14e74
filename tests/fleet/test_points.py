"""Pruning keeps an optimum; waiting is what queueing theory says; reserve tables; soft SLOs; traces."""

from __future__ import annotations

import heapq
import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from fleet_cases import brute_force, random_fleet
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

import optmodels
from formulations.fleet.files import TraceFile
from formulations.fleet.methods.exact import exact
from formulations.fleet.points import _at_most, _fits_on_another, build_tables, nondominated, prune
from formulations.fleet.problem import Fleet
from formulations.fleet.reserve import largest_pools, spares
from optmodels.batch.queueing import erlang_c, variability, waiting
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.traces.buckets import bucket_trace

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@given(st.integers(0, 10_000))
def test_pruning_keeps_an_optimum(seed):
    """Brute force over every point and over the points kept give the same optimum."""
    rng = np.random.default_rng(seed)
    changes = {"stock": [{"machine": "m0", "at_most": 2}]} if rng.random() < 0.5 else {}
    if rng.random() < 0.3:
        changes |= {"w0": {"spot_share_max": 0.4}, "p1": {"market": "spot"}}
    problem = random_fleet(rng, 2, 4, **changes)
    tables = build_tables(problem)
    kept, counts = prune(tables)
    assert counts["kept"] == len(kept.points)
    a, b = brute_force(problem, tables, most=4), brute_force(problem, kept, most=4)
    assert a == (None if b is None else pytest.approx(b, rel=1e-9))


@given(st.integers(0, 10_000), st.integers(1, 20), st.sampled_from([1, 15, 16, 40, 101]))
def test_a_few_columns_first_find_the_pairs_that_all_columns_do(seed, n, k):
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 3, (n, k)) + 0.5
    b = a[rng.integers(0, n, 2 * n)] + (rng.random((2 * n, k)) < 0.1) - (rng.random((2 * n, k)) < 1 / (2 * k))
    b[rng.random(b.shape) < 0.05] = np.inf
    assert (_at_most(a, b) == (a[:, None] <= b).all(axis=2)).all()
    assert (_at_most(a, a, earlier=True) == np.triu((a[:, None] <= a).all(axis=2), 1)).all()


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 4), st.integers(1, 3))
def test_what_fits_on_another_point_is_the_definition(seed, n, demands, q):
    """In the order of largest and sum of the scarcest loads, ties as they come, an earlier point stands in."""
    rng = np.random.default_rng(seed)
    loads = rng.integers(1, 5, (q, demands, n)).astype(float)
    loads[:, rng.random((demands, n)) < 0.3] = np.inf
    besides = rng.integers(0, 2, (n, 2)).astype(float)
    found = _fits_on_another(loads, besides)
    most = loads.max(axis=0)
    place = {p: (-np.isfinite(most[:, p]).sum(), most[np.isfinite(most[:, p]), p].sum(), p) for p in range(n)}
    for p in range(n):
        serves = np.isfinite(most[:, p])
        assert found[p] == any(
            place[o] < place[p] and (besides[o] <= besides[p]).all() and (most[serves, o] <= each).all()
            for o in range(n)
            for each in loads[:, serves, p]
        )


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 4))
def test_nondominated_is_the_definition(seed, n, k):
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 4, (n, k)).astype(float)
    keys[rng.random((n, k)) < 0.2] = np.inf
    kept = set(nondominated(keys, chunk=7).tolist())
    for i in range(n):
        at_most = [j for j in range(n) if (keys[j] <= keys[i]).all() and j != i]
        strictly = [j for j in at_most if not (keys[i] <= keys[j]).all()]
        if i in kept:
            assert not strictly
            assert not any(j in kept for j in at_most)
        else:
            assert any(j in kept for j in at_most)


def test_waiting_of_mm1_and_mmc():
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert waiting(1, 0.7, 1.0, None) == pytest.approx(0.7 / 0.3)  # ρS/(1−ρ)
    assert waiting(1, 0.7, 1.0, 0.95) == pytest.approx(math.log(0.7 / 0.05) / 0.3)
    assert waiting(1, 0.7, variability("mdc", 9, 9), None) == pytest.approx(0.7 / 0.6)  # M/D/1: ρS/(2(1−ρ))
    assert waiting(1, 0.02, 1.0, 0.95) == 0.0
    for c, rho in ((2, 0.5), (16, 0.9), (64, 0.95), (3, 0.999)):
        a, b = c * rho, 1.0
        for k in range(1, c + 1):
            b = a * b / (k + a * b)
        assert erlang_c(c, rho) == pytest.approx(b / (1 - rho * (1 - b)), rel=1e-9)


@pytest.mark.parametrize(("model", "scv"), [("mmc", 1.0), ("mdc", 0.0)])
def test_waiting_against_simulation(model, scv):
    """400,000 arrivals at c slots: mean and 95th percentile within sampling error and the approximation's own."""
    rng = np.random.default_rng(1)
    c, rho, n = 8, 0.85, 400_000
    arrive = np.cumsum(rng.exponential(1 / (c * rho), n))
    service = rng.exponential(1.0, n) if scv else np.ones(n)
    free = [0.0] * c
    wait = []
    for a, s in zip(arrive.tolist(), service.tolist(), strict=True):
        start = max(a, free[0])
        wait.append(start - a)
        heapq.heapreplace(free, start + s)
    factor = variability(model, 1.0, 1.0, c, rho)
    assert waiting(c, rho, factor, None) == pytest.approx(np.mean(wait[5000:]), rel=0.08)
    assert waiting(c, rho, factor, 0.95) == pytest.approx(np.quantile(wait[5000:], 0.95), rel=0.15)


def test_reserve_table_is_the_binomial():
    table = largest_pools(0.05, 1e-3, 60)
    assert table[-1][1] == 60 + table[-1][0]  # the load and its spare deployments: no pool needs more
    for k, size in table:
        assert binom.sf(k, size, 0.05) <= 1e-3
        if size < 60 + k:
            assert binom.sf(k, size + 1, 0.05) > 1e-3
        assert spares(size, 0.05, 1e-3) == k or size <= table[k - 1][1]
    assert largest_pools(0.0, 1e-3, 9) == [(0, 9)]
    assert largest_pools(0.2, 1e-4, 5_000)[-1][0] > 1_000  # as many spare ones as it takes


def modelled(**changes):
    return Fleet.model_validate({
        "formulation": "fleet", "schema": 1, "name": "modelled", "serving": "static",
        "workloads": [{"name": "chat", "model": "llama-3.1-8b",
                       "buckets": [{"input_tokens": 512, "output_tokens": 128, "requests_per_s": 4.0},
                                   {"input_tokens": 2048, "output_tokens": 128, "requests_per_s": 1.0}],
                       "slo": {"ttft_s": {"at_most": 1.5, "percentile": 0.95}, "tpot_s": 0.1}} | changes.pop("w", {})],
        "pool": {"catalog": "aws", "include": ["g6.xlarge", "g6e.xlarge"]},
        "strategies": {"families": ["high_end"], "batches": [4, 16]},
    } | changes)  # fmt: skip


def test_waiting_costs_and_is_never_ignored():
    """Under queueing no deployment is planned at 100 % and the fleet costs at least as much."""
    free, queued = modelled(), modelled(queueing={"model": "mmc"})
    plans = [exact(p, build_tables(p), Options()).plan for p in (free, queued)]
    assert plans[0].total_usd_per_hour <= plans[1].total_usd_per_hour
    for d in plans[1].periods[0].deployments:
        assert d.utilisation <= d.load_level <= 0.95 + 1e-9
        for s in d.serves:
            assert s.ttft_s + s.wait_s <= 1.5 * (1 + 1e-9)
            assert s.e2e_s <= d.service_cap_s * (1 + 1e-9)


def test_soft_slo_is_missed_only_for_its_price():
    hard = modelled(w={"slo": {"tpot_s": 0.024}})
    assert build_tables(hard).blocked or exact(hard, build_tables(hard), Options()).plan is not None
    plans = []
    for price in (1e-6, 1e6):
        p = modelled(w={"slo": {"tpot_s": 0.06}, "soft": {"usd_per_1000_requests": price, "up_to": 3.0}})
        plans.append(exact(p, build_tables(p), Options()).plan)
    late = [[s.misses_slo for d in p.periods[0].deployments for s in d.serves] for p in plans]
    assert plans[0].usd_per_hour <= plans[1].usd_per_hour
    assert not any(late[1])
    assert plans[0].penalty_usd_per_hour < 1e-3


@pytest.mark.parametrize("requests_per_s", [3.0, 0.0])
def test_a_table_of_points_may_name_a_bucket_of_rate_0_as_points_may(tmp_path, requests_per_s):
    """The bucket asks for nothing: its column, or entry, changes nothing. One of no bucket is still refused."""
    (tmp_path / "points.csv").write_text("name,usd_per_hour,w/a,w/b\np,2.0,1.5,4.0\nq,1.0,,9.0\n")
    (tmp_path / "wrong.csv").write_text("name,usd_per_hour,w/a,w/c\np,2.0,1.5,4.0\n")
    buckets = [{"name": "a", "requests_per_s": 3.0}, {"name": "b", "requests_per_s": requests_per_s}]
    listed = [{"name": "p", "usd_per_hour": 2.0, "requests_per_s": {"w/a": 1.5, "w/b": 4.0}},
              {"name": "q", "usd_per_hour": 1.0, "requests_per_s": {"w/b": 9.0}}]  # fmt: skip
    for points in ({"points": listed}, {"points_table": "points.csv"}, {"points_table": "wrong.csv"}):
        document = {"formulation": "fleet", "schema": 1, "workloads": [{"name": "w", "buckets": buckets}]} | points
        (tmp_path / "instance.yaml").write_text(yaml.safe_dump(document))
        if points == {"points_table": "wrong.csv"}:
            with pytest.raises(InputError, match=r"columns: got \['w/c'\]"):
                optmodels.solve(tmp_path / "instance.yaml")
        else:
            result = optmodels.solve(tmp_path / "instance.yaml")
            assert (result.status, result.check.ok) == ("optimal", True)
            assert result.objective == pytest.approx(4.0 + (1.0 if requests_per_s else 0.0))


def test_trace_into_buckets(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,100,10\n"
                    "2023-11-16 18:15:51.6805900,200,20\n2023-11-16 18:15:56.6805900,5000,300\n")  # fmt: skip
    first, second = bucket_trace(path, TraceFile(file="trace.csv")).cells
    assert _of(first) == ("≤256x≤64", 150, 15, pytest.approx(0.2), 220)
    assert _of(second) == (">4096x>256", 5000, 300, pytest.approx(0.1), 5300)
    assert (first.input_bounds, second.output_bounds) == ((0, 256), (256, None))


def _of(c):
    return c.name, c.input_tokens, c.output_tokens, c.requests_per_s, c.longest_tokens


@pytest.mark.parametrize(("name", "text"), [
    ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n1,100,10\n2,200,1000000\n"),
    ("t.jsonl", '{"timestamp": 0, "input_length": 200, "output_length": 1000000}\n'
                '{"timestamp": 4000, "input_length": 301, "output_length": 9}\n'),
])  # fmt: skip
def test_a_request_longer_than_a_bucket_may_be_is_a_mistake_of_the_trace(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=r"a request of 1,000,200 tokens'; expected at most 1,000,000 tokens"):
        bucket_trace(tmp_path / name, TraceFile(file=name))


@pytest.mark.parametrize(("name", "text"), [
    ("t.jsonl", '{"timestamp": 0, "input_length": 300, "output_length": 9}\n'
                '{"timestamp": 4000, "input_length": 301, "output_length": 9}\n'),
    ("t.csv", "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n1,m,300,9,309,a\n3,m,5,0,5,a\n"
              "5,m,301,9,310,a\n"),
    ("t.json", '{\n"start_times": [7.0, 3.0], "input_lens": [301, 300],\n"output_lens": [9, 9]}'),
])  # fmt: skip
def test_traces_of_other_known_formats_are_cut_into_buckets(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    [cell] = bucket_trace(tmp_path / name, TraceFile(file=name)).cells
    assert _of(cell) == ("≤1024x≤64", 301, 9, pytest.approx(0.5), 310)
    (tmp_path / name).write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="the file has the columns a, b"):
        bucket_trace(tmp_path / name, TraceFile(file=name))


@pytest.mark.skipif(not DATA.is_dir(), reason="public traces are not beside the project")
def test_public_trace_rates():
    cells = bucket_trace(DATA / "traces" / "AzureLLMInferenceTrace_conv.csv", TraceFile(file="x.csv")).cells
    assert sum(c.requests_per_s for c in cells) == pytest.approx(5.53, rel=0.01)


def test_waiting_is_named_when_it_rules_out_a_bucket():
    slo = {"ttft_s": {"at_most": 0.5, "percentile": 0.999}, "tpot_s": 0.1}
    tables = build_tables(modelled(w={"slo": slo}, queueing={"model": "mmc", "load_levels": [0.95]}))
    assert set(tables.blocked) == {"chat/512x128", "chat/2048x128"}
    assert "not with waiting" in tables.blocked["chat/512x128"]
