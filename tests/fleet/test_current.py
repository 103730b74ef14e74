"""What runs today: figures by hand, the best routing by brute force, the optimum's own fleet, and mistakes."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import yaml
from fleet_cases import fleet
from scipy.optimize import linprog

import optmodels
from formulations.fleet.current import RoutingModel, of_trace
from optmodels.api.solve import MOMENT_S
from optmodels.cli import run
from optmodels.cli.console import show
from optmodels.errors import InputError
from optmodels.reporting.evaluate import evaluate_lines, fewest_lines
from optmodels.simulation import compiling
from optmodels.solver.highs import solve_compiled
from optmodels.traces.types import Label, Trace

INSTANCE = {
    "formulation": "fleet", "schema": 1, "name": "shop", "serving": "continuous",
    "latency": {"model": "roofline"}, "pool": {"catalog": "aws", "include": ["g6e.xlarge", "p5.4xlarge"]},
    "workloads": [
        {"name": "chat", "model": "llama-3.1-8b", "requests_per_s": 20.0,
         "buckets": [{"input_tokens": 300, "output_tokens": 150, "share": 0.6},
                     {"input_tokens": 2000, "output_tokens": 200, "share": 0.4}],
         "slo": {"ttft_s": {"at_most": 1.0, "percentile": 0.95}, "tpot_s": 0.06}},
        {"name": "mail", "model": "qwen2.5-7b",
         "buckets": [{"input_tokens": 3000, "output_tokens": 300, "requests_per_s": 1.0}],
         "slo": {"deadline_s": 60}},
    ],
}  # fmt: skip
TODAY = {
    "schema": 1,
    "deployments": [
        {"workloads": ["chat"], "machine": "g6e.xlarge", "replicas": 3},
        {"workloads": ["chat"], "gpu": "h100", "machines": 1, "usd_per_hour": 5.0},
        {"workloads": ["mail"], "machine": "g6e.xlarge", "replicas": 1, "max_num_seqs": 64},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def found():
    return optmodels.evaluate(TODAY, problem=INSTANCE)


def test_it_costs_what_its_machines_cost(found):
    price = next(m["on_demand"] for m in optmodels.list("machines")
                 if (m["machine"], m["region"]) == ("g6e.xlarge", "us-east-1"))  # fmt: skip
    report = found["report"]
    assert report["usd_per_hour"] == pytest.approx(4 * price + 5.0)
    assert report["gpus"] == 5
    assert found["today"]["objective"] == report["usd_per_hour"]
    best = found["best"]
    assert best["status"] == "optimal"
    assert found["saving"]["share"] == pytest.approx(1 - best["objective"] / report["usd_per_hour"])


def test_a_dispatcher_fills_unlike_engines_alike(found):
    """All requests/s arrive somewhere, and those that share chat hold equal shares of their KV cache."""
    small, large, mail = found["report"]["deployments"]
    assert small["requests_per_s"] + large["requests_per_s"] == pytest.approx(20.0)
    assert mail["requests_per_s"] == pytest.approx(1.0)
    assert small["kv_in_use"] == pytest.approx(large["kv_in_use"], rel=0.02)
    for d in (small, large, mail):
        assert d["replayed_requests_per_s"] == pytest.approx(d["requests_per_s"], rel=0.15)
        assert d["replayed_step_s"] == pytest.approx(d["step_s"], rel=0.15)


def test_predictions_are_near_the_replay(found):
    for d in found["report"]["demands"]:
        assert d["predicted_within"] == pytest.approx(d["replayed_within"], abs=0.05), d["demand"]
        assert d["predicted_keeps"] == d["replayed_keeps"]
    assert found["report"]["planned_routing"]["served_share"] == pytest.approx(1.0)


def test_the_best_plans_own_fleet_has_nothing_to_save(found):
    today = {"schema": 1, "deployments": [
        {"workloads": sorted({s["demand"].split("/")[0] for s in d["serves"]}), "machine": m["machine"],
         "market": m["market"], "region": m["region"], "machines": m["count"] * d["count"],
         "tensor_parallel": d["tensor_parallel"]}
        for d in found["best"]["plan"]["periods"][0]["deployments"] for m in d["machines"]
    ]}  # fmt: skip
    again = optmodels.evaluate(today, problem=INSTANCE)
    assert again["saving"]["share"] == pytest.approx(0.0, abs=1e-9)
    routing = again["report"]["planned_routing"]
    assert routing["served_share"] == pytest.approx(1.0)
    assert routing["engines_needed"] == routing["engines"]


def test_it_fits_a_screen_of_80_columns(found, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    show(evaluate_lines(found))
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert "chat/300x150" in said and "\n3× g6e.xlarge, TP=1, for chat  USD/h " in said
    assert "…" not in said


@pytest.mark.parametrize("seed", range(8))
def test_the_best_routing_is_that_of_brute_force(seed):
    rng = np.random.default_rng(seed)
    W, Q, counts = 2, 2, np.array([2, 1])
    line = np.array([0, 0, 1])
    capacities = rng.uniform(0.1, 0.8, (Q, W, 3))
    capacities[:, rng.integers(W), rng.integers(3)] = np.inf
    rates, usd = rng.uniform(1.0, 5.0, W), np.array([1.0, 2.5])
    m = RoutingModel(rates, capacities, line, counts, usd)
    report = solve_compiled(m.compiled())
    best = 0.0, 0.0
    for n in itertools.product(range(3), range(3), range(2)):
        if n[0] + n[1] > 2:
            continue
        able = np.isfinite(capacities).all(axis=0) & (np.array(n) > 0)
        pairs = [(w, p) for w in range(W) for p in range(3) if able[w, p]]
        if not pairs:
            continue
        rows = [[rates[w] * capacities[q, w, p] * (p == k) for w, p in pairs] for k in range(3) for q in range(Q)]
        rows += [[float(w == k) for w, _ in pairs] for k in range(W)]
        right = [n[k] for k in range(3) for _ in range(Q)] + [1.0] * W
        served = -linprog([-rates[w] for w, _ in pairs], rows, right).fun
        cost = sum(n[k] * (usd[line[k]] + 1e-3) for k in range(3))
        if served > best[0] + 1e-6 or (served > best[0] - 1e-6 and cost < -best[1]):
            best = served, -cost
    assert report.objectives[0] == pytest.approx(best[0], rel=1e-5)
    assert report.objectives[1] == pytest.approx(-best[1], rel=1e-4)


def test_rates_and_lengths_of_a_trace_replace_those_of_the_instance():
    """Four requests of chat in 8 s, two in each bucket, none of mail."""
    trace = Trace(
        "four", np.array([0.0, 2.0, 5.0, 8.0]), np.array([250, 1500, 310, 2500]), np.array([100, 200, 141, 300]),
        {"model": Label(("chat", "mail"), np.zeros(4, np.int64))},
    )  # fmt: skip
    case = of_trace(optmodels.load(INSTANCE), trace).resolve()
    assert [(d.name, d.input_tokens, d.output_tokens, d.requests_per_s, d.longest_tokens) for d in case.demands] == [
        ("chat/300x150", 280, 121, (0.25,), 451), ("chat/2000x200", 2000, 250, (0.25,), 2800),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("deployment", "path", "expected"),
    [
        ({"workloads": ["chatt"]}, "deployments[0].workloads", "a workload of the problem"),
        ({"machine": "g6e.xlarg"}, "deployments[0].machine", "a machine of the pool or the catalogue"),
        ({"workloads": ["chat", "mail"]}, "deployments[0].workloads", "workloads of one model and precision"),
        ({"tensor_parallel": 2}, "deployments[0].tensor_parallel", "at most 1, the GPUs of a machine"),
        ({"machines": 1, "replicas": 2}, "deployments[0].replicas", "at most 1: 1 on each machine"),
        ({"market": "reserved_3y", "region": "us-east-1"}, "deployments[0].market", "a price"),
        ({"max_num_batched_tokens": 64}, "", "max_num_batched_tokens at least max_num_seqs"),
    ],
)  # fmt: skip
def test_mistakes_are_named(deployment, path, expected):
    one = {"workloads": ["chat"], "machine": "g6e.xlarge", "replicas": 1} | deployment
    with pytest.raises(InputError) as raised:
        optmodels.evaluate({"schema": 1, "deployments": [one]}, problem=INSTANCE)
    assert any(m.path == path and expected in m.expected for m in raised.value.mistakes), raised.value


def test_the_command_line(tmp_path, capsys):
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(INSTANCE))
    today = tmp_path / "today.yaml"
    today.write_text(yaml.safe_dump(TODAY | {"instance": "shop.yaml"}))

    command = [sys.executable, "-m", "optmodels", "evaluate", str(today), "--json", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["best"]["status"] == "optimal"
    (folder,) = (tmp_path / "out").iterdir()
    names = {p.name for p in folder.iterdir()}
    assert {"evaluate.json", "requests-replayed.csv", "requests-planned_routing.csv", "shop-exact"} <= names
    assert optmodels.check(folder / "shop-exact").ok
    today.write_text(yaml.safe_dump(TODAY | {"instance": "../shop.yaml"}))
    assert run(["evaluate", str(today)]) == 2
    assert "instance: got '../shop.yaml'; expected an existing file in" in capsys.readouterr().err


def test_a_file_to_start_from_is_evaluated_as_it_is(cli, folder):
    (folder / "below").mkdir()
    (folder / "below" / "shop.yaml").write_text(yaml.safe_dump(INSTANCE))
    assert cli("new", "current", "today.yaml", "--from", "below/shop.yaml").out == "today.yaml\n"
    written = yaml.safe_load((folder / "today.yaml").read_text())
    assert written["instance"] == "below/shop.yaml"
    assert [(d["workloads"], d["machine"], d["machines"]) for d in written["deployments"]] == [
        (["chat"], "g6e.xlarge", 1), (["mail"], "g6e.xlarge", 1),
    ]  # fmt: skip
    done = cli("evaluate", "today.yaml", "--json", "--time-limit", "20")
    assert done.status == 0, done.err
    price = next(m["on_demand"] for m in optmodels.list("machines") if m["machine"] == "g6e.xlarge")
    assert json.loads(done.out)["report"]["usd_per_hour"] == pytest.approx(2 * price)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"pool": {"catalog": "aws", "include": ["g4dn.xlarge"]}}, "pool"), ({"serving": "static"}, "serving")],
)
def test_a_file_to_start_from_needs_engines_that_hold_the_models(change, words, cli, folder):
    large = [w | {"model": "qwen3-32b"} for w in INSTANCE["workloads"]]
    (folder / "shop.yaml").write_text(yaml.safe_dump(INSTANCE | {"workloads": large} | change))
    done = cli("new", "current", "--from", "shop.yaml")
    assert done.status == 2 and words in done.err


def test_a_file_to_start_from_lies_beside_its_instance_or_above(cli, folder):
    (folder / "below").mkdir()
    (folder / "shop.yaml").write_text(yaml.safe_dump(INSTANCE))
    done = cli("new", "current", "below/today.yaml", "--from", "shop.yaml")
    assert done.status == 2 and "--from" in done.err
    assert cli("new", "current").status == 2


def gpus_of(plan):
    return sum(m["count"] * m["gpus_per_machine"] * d["count"]
               for d in plan["periods"][0]["deployments"] for m in d["machines"])  # fmt: skip


def test_the_fewest_gpus_of_a_fleet():
    """Of one machine the cheapest fleet is the fewest GPUs; with others beside it there are no more of them."""
    one = INSTANCE | {"pool": {"catalog": "aws", "include": ["p5.4xlarge"]}}
    alone = optmodels.fewest_gpus(one)
    assert alone["gpus"] == alone["bound"] == gpus_of(alone["plan"]) == gpus_of(optmodels.solve(one).plan)
    several = INSTANCE | {"pool": {"catalog": "aws", "include": ["g6e.xlarge", "g6e.12xlarge", "p5.4xlarge"]}}
    fewest = optmodels.fewest_gpus(several)
    assert fewest["gpus"] == fewest["bound"] == gpus_of(fewest["plan"]) <= alone["gpus"]
    machine = fewest["plan"]["periods"][0]["deployments"][0]["machines"][0]["machine"]
    assert machine in fewest["headline"] and f"  {fewest['headline']}" in fewest_lines(fewest)
    assert fewest["gpus"] < gpus_of(optmodels.solve(several).plan)  # which takes what is cheap, and more of it
    tiny = fleet([3.0], [[1.0]], [1.0])
    with pytest.raises(InputError, match="a pool, whose GPUs are known"):
        optmodels.fewest_gpus(tiny)


def test_the_time_limit_is_of_everything(monkeypatch):
    """What has no time is left out and named, what is predicted stays; the best plan has what is left."""
    given, solve = [], optmodels.solve
    monkeypatch.setattr("optmodels.api.evaluate.solve", lambda p, **how: given.append(how["time_limit"]) or solve(p))
    found = optmodels.evaluate(TODAY, problem=INSTANCE, time_limit=1e-3)
    assert found["left_out"] == ["the replay", "the planned routing"]
    report = found["report"]
    assert list(report["attainment"]) == ["predicted"]
    assert report["planned_routing"] is None
    assert all("load" in d and "replayed_step_s" not in d for d in report["deployments"])
    assert "Left out at the time limit: the replay, the planned routing" in evaluate_lines(found)
    assert given == [MOMENT_S]


def test_no_replay_begins_that_has_to_be_compiled_for_longer_than_there_is_time(monkeypatch):
    monkeypatch.setattr(compiling, "compiling_s", lambda: 60.0)
    found = optmodels.evaluate(TODAY, problem=INSTANCE, time_limit=100)  # of which 50 s are for what runs
    first, second = found["left_out"]
    assert first.startswith("the replay (not compiled yet, which takes about 60 s")
    assert second.startswith("the replay of the planned routing (")
    assert found["report"]["planned_routing"]["served_share"] == pytest.approx(1.0)
    assert optmodels.evaluate(TODAY, problem=INSTANCE)["left_out"] == []


def test_a_new_installation_knows_that_it_compiles(tmp_path):
    said = "from optmodels.simulation.compiling import *; print(compiling_s(), COMPILING_S)"
    ran = subprocess.run([sys.executable, "-c", said], env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
                         capture_output=True, text=True, check=True)  # fmt: skip
    assert ran.stdout.split() == ["60.0", "60.0"]
