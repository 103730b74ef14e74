"""Measured points by stage and by model: against enumeration, by hand, and what is refused."""

from __future__ import annotations

import copy
import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import yaml
from scipy.optimize import linprog

import optmodels
from formulations.fleet.check import check
from formulations.fleet.deploy import deployments
from formulations.fleet.methods import METHODS
from formulations.fleet.methods.exact import exact
from formulations.fleet.points import build_tables
from optmodels.errors import InputError
from optmodels.formulation import Options

TWO = {
    "formulation": "fleet", "schema_version": 1, "name": "two",
    "workloads": [{
        "name": "chat", "quality_at_least": 0.8,
        "models": [
            {"name": "small", "model": "llama-3.1-8b", "quality": 0.7},
            {"name": "large", "model": "llama-3.3-70b", "quality": 0.9},
        ],
        "buckets": [{"name": "short", "requests_per_s": 20}, {"name": "long", "requests_per_s": 5}],
    }],
    "deployment": {"stages": ["both", "prefill", "decode"]},
    "points": [
        {"name": "s", "usd_per_hour": 3, "model": "small", "requests_per_s": {"chat/short": 6, "chat/long": 2}},
        {"name": "l", "usd_per_hour": 9, "model": "large", "requests_per_s": {"chat/short": 4, "chat/long": 1}},
        {"name": "lp", "usd_per_hour": 4, "stage": "prefill", "model": "large", "tp": 2,
         "requests_per_s": {"chat/short": 10, "chat/long": 2}},
        {"name": "ld", "usd_per_hour": 4, "stage": "decode", "model": "large", "tp": 4,
         "requests_per_s": {"chat/short": 7, "chat/long": 4}},
        {"name": "sp", "usd_per_hour": 1, "stage": "prefill", "model": "small", "tp": 1,
         "requests_per_s": {"chat/short": 7, "chat/long": 4}},
    ],
}  # fmt: skip


def changed(*changes):
    """`TWO` with some values set: ((path, …), value); None takes them out."""
    made = copy.deepcopy(TWO)
    for path, value in changes:
        inner = made
        for step in path[:-1]:
            inner = inner.setdefault(step, {}) if isinstance(inner, dict) else inner[step]
        if value is None:
            del inner[path[-1]]
        else:
            inner[path[-1]] = copy.deepcopy(value)
    return made


def by_enumeration(data):
    """The least cost over all counts, shares by a linear program written out here; inf where there is no fleet."""
    w, points = data["workloads"][0], data["points"]
    rate = {f"{w['name']}/{b['name']}": b["requests_per_s"] for b in w["buckets"]}
    quality = {m["name"]: m["quality"] for m in w.get("models", ())}
    pairs = [(d, p) for d in rate for p, q in enumerate(points) if q["requests_per_s"].get(d, 0) > 0]
    first = [points[p].get("stage", "both") != "decode" for _, p in pairs]
    rest = [points[p].get("stage", "both") != "prefill" for _, p in pairs]
    spot = [points[p].get("market") == "spot" for _, p in pairs]
    equal = data["deployment"].get("link", {}).get("tensor_parallel") == "equal"

    def exchange(p):
        q = points[p]
        return q.get("model"), q.get("region", ""), q.get("tp") if equal else None

    A_eq, b_eq, A, b = [], [], [], []
    for d in rate:
        mine = np.array([x == d for x, _ in pairs])
        A_eq.append(mine & np.array(first))
        b_eq.append(1.0)
        for k in {exchange(p) for _, p in pairs}:
            here = mine & np.array([exchange(p) == k for _, p in pairs])
            A_eq.append(1.0 * (here & rest) - (here & np.array(first)))  # of those that do both nothing is left
            b_eq.append(0.0)
        for does in (first, rest):
            A.append(mine & np.array(does) & np.array(spot))
            b.append(w.get("spot_share_max", 1.0))
    if "quality_at_least" in w:
        A.append([
            f * rate[d] * (w["quality_at_least"] - quality[points[p]["model"]])
            for (d, p), f in zip(pairs, first, strict=True)
        ])  # fmt: skip
        b.append(0.0)
    able = {
        p for i, (d, p) in enumerate(pairs) if (first[i] and rest[i]) or any(
            x == d and exchange(q) == exchange(p) and (first[j], rest[j]) == (rest[i], first[i])
            for j, (x, q) in enumerate(pairs)
        )
    }  # fmt: skip
    load = np.array([
        [rate[d] / points[p]["requests_per_s"][d] if p == k else 0.0 for d, p in pairs] for k in range(len(points))
    ])  # fmt: skip
    most = [max(1, w.get("min_replicas", 0), math.ceil(row.sum())) for row in load]
    usd = np.array([q["usd_per_hour"] for q in points])
    counts = np.array(list(itertools.product(*(range(m + 1) for m in most))))
    for n in counts[np.argsort(counts @ usd, kind="stable")]:
        stages = [[k for k in able if points[k].get("stage", "both") != other] for other in ("decode", "prefill")]
        if any(sum(n[k] for k in mine) < w.get("min_replicas", 0) for mine in stages):
            continue
        if any(sum(n[p] / load[p][i] for i, (x, p) in enumerate(pairs) if x == d and does[i]) < 1 - 1e-9
               for does in (first, rest) for d in rate):  # fmt: skip
            continue
        found = linprog(
            np.zeros(len(pairs)), np.array([*A, *load], float), [*b, *n], np.array(A_eq, float), b_eq, (0, 1)
        )
        if found.status == 0:
            return float(n @ usd)
    return math.inf


def random_case(seed):
    """Two buckets, up to two models and regions, five points of any stage."""
    rng = np.random.default_rng(seed)
    models = ["small", "large"][: 1 + seed % 2]
    w = {
        "name": "w", "buckets": [{"name": n, "requests_per_s": float(rng.uniform(1, 3))} for n in "ab"],
        "models": [{"name": m, "model": "any", "quality": q} for m, q in zip(models, (0.7, 0.9), strict=False)],
        "quality_at_least": 0.65 + 0.1 * (len(models) == 2), "min_replicas": int(rng.integers(0, 3)),
        "spot_share_max": float(rng.choice([1.0, 0.6])),
    }  # fmt: skip
    points = [
        {
            "name": f"p{k}", "usd_per_hour": float(rng.integers(1, 9)), "model": str(rng.choice(models)),
            "stage": stage, "tp": int(rng.choice([1, 2])), "region": str(rng.choice(["", "r"], p=[0.8, 0.2])),
            "market": str(rng.choice(["spot", "on_demand"])),
            "requests_per_s": {f"w/{n}": float(rng.uniform(1, 4)) for n in "ab" if rng.random() < 0.9},
        }
        for k, stage in enumerate(["both", "prefill", "decode", "prefill", "decode"])
    ]  # fmt: skip
    link = {"tensor_parallel": str(rng.choice(["any", "equal"]))}
    return {
        "formulation": "fleet", "schema_version": 1, "name": f"r{seed}", "workloads": [w], "points": points,
        "deployment": {"stages": ["both", "prefill", "decode"], "link": link},
    }  # fmt: skip


def test_fleets_are_those_of_enumeration():
    stages, costs = 0, []
    for seed in range(10):
        data = random_case(seed)
        expected, problem = by_enumeration(data), optmodels.load(data)
        found = exact(problem, build_tables(problem), Options(answer_only=True))
        if math.isinf(expected):
            assert found.status == "infeasible", seed
            continue
        assert found.plan.total_usd_per_hour == pytest.approx(expected), seed
        assert check(problem, found.plan.model_dump(mode="json")).ok, seed
        costs.append(expected)
        stages += bool(found.plan.periods[0].transfers)
    assert len(costs) >= 4 and stages >= 1, (len(costs), stages)


def test_one_point_apart_at_half_the_price_is_as_good_as_whole():
    whole = changed((("workloads", 0, "quality_at_least"), None), (("points",), [TWO["points"][1]]))
    point = whole["points"][0]
    halves = [point | {"name": s, "stage": s, "usd_per_hour": point["usd_per_hour"] / 2} for s in ("prefill", "decode")]
    one, two = (optmodels.solve(whole | {"points": p}) for p in ([point], halves))
    assert one.objective == two.objective == 9 * 10  # 20/4 + 5/1
    assert one.objective == optmodels.solve({k: v for k, v in whole.items() if k != "deployment"}).objective
    assert one.log.get("stages") is None
    assert {d["count"] for d in two.plan["periods"][0]["deployments"]} == {10}


def test_quality_is_counted_where_a_request_is_prefilled():
    found = optmodels.solve(TWO)
    assert found.objective == 4 * 3 + 2 * 4 + 2 * 4  # half of 25/s by each: 4 small ones, 12.5 of 14/s decoded apart
    line = next(x for x in found.plan["periods"][0]["limits"] if x["name"] == "quality of chat")
    assert line["value"] == pytest.approx(0.8) and line["binding"]
    [sent] = found.plan["periods"][0]["transfers"]
    assert (sent["loads"], sent["model"], sent["gb_per_s"]) == (None, "large", None)
    assert sent["requests_per_s"] == pytest.approx(12.5)
    assert found.log["stages"]["without"]["objective"] == 4 * 3 + 4 * 9
    lines = {d["point"]: (d["stage"], d["model"]) for d in found.plan["periods"][0]["deployments"]}
    assert lines == {"s": ("both", "small"), "lp": ("prefill", "large"), "ld": ("decode", "large")}


def test_caches_are_exchanged_within_a_model_a_region_and_where_asked_a_parallelism():
    def cost(*changes):
        problem = optmodels.load(changed((("points",), TWO["points"][:4]), *changes))
        return exact(problem, build_tables(problem), Options(answer_only=True)).plan.total_usd_per_hour

    equal = ("deployment", "link"), {"tensor_parallel": "equal"}
    assert cost() == cost(equal, (("points", 3, "tp"), 2)) == 28
    for change in (equal, (("points", 3, "region"), "elsewhere"), (("points", 3, "model"), "small")):
        assert cost(change) == 4 * 3 + 4 * 9  # whole requests alone


@pytest.mark.parametrize(
    ("changes", "path", "said"),
    [
        ([(("deployment",), {})], "points[2].stage", "deployment: {stages: [both, prefill, decode]}"),
        ([(("points", 0, "model"), None)], "points[0].requests_per_s.chat/short", "its model, one of chat's"),
        ([(("points", 0, "model"), "smal")], "points[0].model", "the name of one of a workload's models: large, small"),
        (
            [(("workloads", 0, "models"), None), (("workloads", 0, "quality_at_least"), None)],
            "points[0].model", "the name of one of a workload's models: there is none",
        ),
        ([(("workloads", 0, "slo"), {"deadline_s": 9})], "workloads[0].slo.deadline_s", "limit ttft_s and tpot_s"),
        ([(("queueing",), {"model": "mmc"})], "queueing.model", "max_load"),
        ([(("deployment", "link"), {"net_gbps": 100})], "deployment.link.net_gbps", "include sending caches"),
        (
            [(("deployment", "link"), {"tensor_parallel": "equal"}), (("points", 3, "tp"), None)],
            "points[3].tp", "tensor_parallel: equal",
        ),
        ([(("points", 2, "stage"), "prefil")], "points[2].stage", "prefill"),
        (
            [(("workloads",), [*TWO["workloads"], TWO["workloads"][0] | {
                "name": "other", "models": [TWO["workloads"][0]["models"][0] | {"model": "llama-3.2-3b"}]}])],
            "workloads[1].models[0].name", "one model and precision by that name",
        ),
        (
            [(("workloads",), [*TWO["workloads"], {"name": "o", "buckets": [{"name": "b", "requests_per_s": 1}]}]),
             (("points", 0, "requests_per_s", "o/b"), 2)],
            "points[0].requests_per_s.o/b", "o has no list of models with small",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_named_by_their_path(changes, path, said):
    with pytest.raises(InputError) as raised:
        optmodels.load(changed(*changes)).resolve()
    [mistake] = [m for m in raised.value.mistakes if m.path == path]
    assert said in mistake.expected


def test_a_workload_accepts_some_models_only():
    other = TWO["workloads"][0] | {"name": "other", "models": TWO["workloads"][0]["models"][1:]}
    made = changed((("workloads",), [*TWO["workloads"], other]), (("points", 0, "requests_per_s", "other/short"), 2))
    with pytest.raises(InputError) as raised:
        optmodels.load(made).resolve()
    assert [m.path for m in raised.value.mistakes] == ["points[0].requests_per_s.other/short"]
    assert "other accepts large, not small" in raised.value.mistakes[0].expected


def test_a_check_sees_another_stage_model_or_transfer():
    problem = optmodels.load(TWO)
    plan = exact(problem, build_tables(problem), Options(answer_only=True)).plan.model_dump(mode="json")
    assert check(problem, plan).ok
    [sent], lines = plan["periods"][0]["transfers"], plan["periods"][0]["deployments"]
    decoding = next(d for d in lines if d["stage"] == "decode")
    wrong = [
        (sent, "gb_per_s", 1.0),
        (sent, "requests_per_s", 12),
        (sent, "model", "small"),
        (sent, "loads", "chat"),
        (decoding, "stage", "both"),
        (decoding, "model", "small"),
        (decoding["serves"][0], "share", 0.1),
    ]
    for where, key, value in wrong:
        kept, where[key] = where[key], value
        assert not check(problem, plan).ok, key
        where[key] = kept
    decoding["point"], decoding["name"] = "lp", "lp"
    assert not check(problem, plan).ok


def test_a_check_counts_no_replica_that_nothing_completes():
    least, points = (("workloads", 0, "min_replicas"), 7), TWO["points"][2:]
    dear = points[1] | {"name": "sd", "usd_per_hour": 100, "model": "small"}
    completed, alone = (optmodels.load(changed(least, (("points",), of))) for of in ([*points, dear], points))
    plan = exact(completed, build_tables(completed), Options(answer_only=True)).plan.model_dump(mode="json")
    assert plan["total_usd_per_hour"] == pytest.approx(5 * 4 + 2 * 1 + 7 * 4)  # two of them are sp, and none sd
    assert check(completed, plan).ok
    assert "replicas for chat" in check(alone, plan).violations[0].requirement


@pytest.mark.parametrize(
    ("chat", "rate", "requirement"),
    [
        ({"serve_at_least": 0, "min_replicas": 1}, 0.1, "replicas for chat"),
        ({"soft": {"up_to": 2, "usd_per_1000_requests": 1}}, 0.5, "deadline of chat/b"),
    ],
)
def test_a_check_sees_what_waiting_makes_too_late(chat, rate, requirement):
    """One server half busy: a second of service, and one of waiting before it."""
    point = {"name": "p", "usd_per_hour": 1, "requests_per_s": {"chat/b": 1, "other/b": 1}}
    chat = {"name": "chat", "buckets": [{"name": "b", "requests_per_s": rate}], **chat}
    other = {"name": "other", "buckets": [{"name": "b", "requests_per_s": 0.5}]}  # fills one of them
    slow, quick = (
        optmodels.load({
            "formulation": "fleet", "schema_version": 1, "name": "waits", "points": [point],
            "workloads": [{**chat, "slo": {"deadline_s": limit}}, other],
            "queueing": {"model": "mmc", "load_levels": [0.5]},
        })
        for limit in (2.01, 1.99)
    )  # fmt: skip
    plan = exact(slow, build_tables(slow), Options(answer_only=True)).plan.model_dump(mode="json")
    assert check(slow, plan).ok
    assert requirement in check(quick, plan).violations[0].requirement


def test_heuristics_plan_stages_or_whole_requests():
    def objectives(data, *methods):
        problem = optmodels.load(data)
        tables = build_tables(problem)
        plans = [METHODS[name](problem, tables, Options()).plan for name in methods]
        return [None if plan is None else plan.total_usd_per_hour for plan in plans]

    assert objectives(TWO, "distserve", "xpyd") == [40, 40]  # 5 × lp and 5 × ld for all
    assert objectives(TWO, "greedy", "lp_rounding") == [90, 48]
    assert objectives(changed((("points",), TWO["points"][2:4])), "exact", "greedy", "xpyd") == [40, None, 40]


@pytest.mark.parametrize(
    "more",
    [
        {"periods": [{"name": "day", "hours": 12}, {"name": "night", "hours": 12, "rate_factor": 0.3}],
         "change": {"start_usd": 0.5}},
        {"reserve": {"lost": 1}},
        {"objective": "max_ce"},
        {"objective": "max_served", "budget_usd_per_hour": 20},
        {"stock": [{"machine": "lp", "at_most": 1}]},
    ],
)  # fmt: skip
def test_everything_else_goes_with_them(more):
    found = optmodels.solve(TWO | more)
    assert found.status == "optimal" and found.check.ok
    again = optmodels.load(json.loads(json.dumps(found.problem)))  # with everything written out
    assert check(again, found.plan).ok


def test_a_table_has_the_columns(tmp_path):
    rows = [
        {k: v for k, v in p.items() if k != "requests_per_s"} | p["requests_per_s"] for p in TWO["points"]
    ]  # fmt: skip
    names = list(dict.fromkeys(k for r in rows for k in r))
    lines = [",".join(names), *(",".join(str(r.get(n, "")) for n in names) for r in rows)]
    (tmp_path / "points.csv").write_text("\n".join(lines), encoding="utf-8")
    made = changed((("points",), None)) | {"points_table": "points.csv"}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(made), encoding="utf-8")
    assert optmodels.load(tmp_path / "two.yaml").resolve().points == optmodels.load(TWO).points
    (tmp_path / "points.csv").write_text("\n".join(lines).replace("prefill", "prefil"), encoding="utf-8")
    with pytest.raises(InputError, match="stage"):
        optmodels.load(tmp_path / "two.yaml").resolve()
    listed = TWO["points"][0] | {"name": "listed"}
    (tmp_path / "points.csv").write_text("\n".join(lines).replace("large", "larg"), encoding="utf-8")
    rows = [k for k, line in enumerate(lines) if "large" in line]
    for points in (None, [listed]):
        (tmp_path / "two.yaml").write_text(yaml.safe_dump(made | {"points": points}), encoding="utf-8")
        with pytest.raises(InputError) as error:
            optmodels.load(tmp_path / "two.yaml").resolve()
        assert rows and [(m.file, m.path) for m in error.value.mistakes[: len(rows)]] == [
            ("points.csv", f"row {k}.model") for k in rows
        ]


def test_what_to_run_names_model_and_stage_as_far_as_they_are_known():
    problem = optmodels.load(TWO)
    plan = exact(problem, build_tables(problem), Options(answer_only=True)).plan.model_dump(mode="json")
    made = {d.name: d for d in deployments(problem, plan).deployments}
    assert {n: (d.stage, d.model, d.max_num_seqs) for n, d in made.items()} == {
        "s": ("both", "Llama 3.1 8B", None), "lp": ("prefill", "Llama 3.3 70B", None),
        "ld": ("decode", "Llama 3.3 70B", None),
    }  # fmt: skip
    assert any("measured point lp: run the engine as it was measured, with large." in n for n in made["lp"].notes)


def test_on_the_command_line(tmp_path):
    file = tmp_path / "two.yaml"
    file.write_text(yaml.safe_dump(TWO), encoding="utf-8")
    run = [sys.executable, "-m", "optmodels"]
    out = subprocess.run(
        [*run, "solve", str(file), "--out", str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    said = " ".join(out.stdout.split())
    assert out.returncode == 0 and "KV caches from prefill to decode: 12.5 requests/s" in said, out.stderr
    replayed = subprocess.run(
        [*run, "replay", str(tmp_path / "out" / "two-exact")], capture_output=True, text=True, check=False
    )
    assert replayed.returncode == 2 and "rates alone" in replayed.stderr + replayed.stdout
