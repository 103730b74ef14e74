"""Orchestration at its edges, as users meet them: the right answer or a message that names what is wrong."""

# ruff: noqa: E501 - tables of cases

from __future__ import annotations

import copy
import json

import pytest
import yaml

BASE = yaml.safe_load("""
formulation: orchestration
schema: 1
cluster: {servers: [{server: s, gpu: v100-16g-pcie, gpus: 4}]}
models: [{model: llama-3.2-3b}]
candidates: {tp: [1, 2], batch: [2, 4]}
latency:
  decay:
  - {model: llama-3.2-3b, tp: 1, base_tokens_per_s: 50, delta: 0.1}
  - {model: llama-3.2-3b, tp: 2, base_tokens_per_s: 80, delta: 0.1}
requests: {rows: {arrival_s: [0, 0.5, 1, 2], output_tokens: [100, 100, 100, 100]}}
slo: {factor: 2}
""")
ROWS = BASE["requests"]["rows"]
SERVER = BASE["cluster"]["servers"][0]
HEADER = "arrival_s,prompt_tokens,output_tokens\n"


@pytest.fixture
def solved(cli, folder):
    """Status, plan and messages of `optmodels solve` on the base case with other sections; `trace`: a file beside it."""

    def run(changes, trace=None):
        if trace is not None:
            (folder / "trace.csv").write_text(trace)
            changes = {"requests": {"trace": {"file": "trace.csv"}}} | changes
        (folder / "case.yaml").write_text(yaml.safe_dump(copy.deepcopy(BASE) | changes))
        done = cli("solve", "case.yaml", "--json")
        return done.status, json.loads(done.out) if done.status == 0 else None, done.err

    return run


TOO_BIG = {
    "models": [{"model": "llama-3.2-3b"}, {"model": "llama-3-70b", "t_slice_s": 0.05}],
    "requests": {"rows": ROWS | {"model": ["llama-3.2-3b", "llama-3-70b"] * 2}},
    "latency": {"decay": [*BASE["latency"]["decay"],
                          *({"model": "llama-3-70b", "tp": n, "base_tokens_per_s": 20, "delta": 0.1} for n in (1, 2))]},
}  # fmt: skip
NEVER = {"duration_s": 10, "classes": [
    {"model": "llama-3.2-3b", "output_tokens": 100, "slo_factor": 2, "requests_per_s": 0}]}  # fmt: skip
LONG = {"model": "llama-3.2-3b", "prompt_tokens": 900_000, "output_tokens": 100, "slo_factor": 2, "requests_per_s": 0.1}
SLOW = ROWS | {"slo_factor": [2, 0.01, 2, 2]}  # due before any instance could be done
DOUBLE = "id,arrival_s,prompt_tokens,output_tokens\n7,0,1,100\n7,0,1,100\n7,0.5,1,100\n8,1,1,100\n"


@pytest.mark.parametrize(
    "changes, trace, requests, in_time",
    [
        ({}, None, 4, 4),
        ({"requests": {"rows": SLOW}}, None, 4, 3),
        ({"cluster": {"servers": [SERVER], "failed_gpus": {"s": [0, 1, 2, 3]}}}, None, 4, 0),
        ({"cluster": {"servers": [SERVER], "stock": {"v100-16g-pcie": 0}}}, None, 4, 0),
        (TOO_BIG, None, 4, 2),
        ({"requests": {"rows": ROWS | {"output_tokens": [100, 100, 900_000, 100]}}}, None, 4, 3),
        ({"requests": {"rows": ROWS | {"prompt_tokens": [9, 9, 9, 900_000]}}, "memory": {"tokens_per_slot": "max"}}, None, 4, 3),
        ({}, HEADER + "0,1,100\n0.1,1000000000,100\n0.2,1,100\n", 3, 2),
        ({"requests": {"duration_s": 60, "classes": [LONG, LONG | {"prompt_tokens": 10}]}}, None, 12, 6),
        ({"slo": {"factor": 1e-9}}, None, 4, 0),
        ({"slo": {"factor": 2, "ttft_s": 1e-9}}, None, 4, 4),  # prefill takes no time here, and nobody need wait
        ({"requests": NEVER}, None, 0, 0),
        ({}, DOUBLE, 4, 4),  # an id is no part of our columns: equal rows are requests of their own
        ({}, HEADER + "0,1,100\n" * 4, 4, 4),
    ],
    ids=["plain", "due at once", "all failed", "no stock", "too big",
         "long answer", "long prompt", "long row", "long class", "due at once, all", "first token at once", "nobody",
         "equal ids", "equal rows"],
)  # fmt: skip
def test_right_answers(solved, changes, trace, requests, in_time):
    status, document, err = solved(changes, trace)
    assert status == 0, err
    plan = document["plan"]
    assert document["status"] == "optimal" and document["check"]["ok"]
    assert (plan["prediction"]["requests"], plan["prediction"]["in_time"]) == pytest.approx((requests, in_time))
    assert sum(c["requests"] for c in plan["classes"]) == requests
    assert in_time > 0 or not plan["instances"]
    for seen in (document["report"].get("replay") or {}).get("policies", {}).values():
        assert seen["attainment"] + seen["refused"] + seen["late"] == pytest.approx(float(requests > 0))


@pytest.mark.parametrize(
    "changes, trace, words",
    [
        ({"cluster": {"servers": []}}, None, "cluster.servers"),
        ({"cluster": {"servers": [SERVER | {"gpus": 0}]}}, None, "cluster.servers[0].gpus: got 0; expected a number ≥ 1"),
        ({"cluster": {"servers": [SERVER, SERVER]}}, None, "each name once"),
        ({"cluster": {"servers": [SERVER | {"count": 250_001}]}}, None, "cluster.servers: got 1000004; expected at most 1,000,000 GPUs"),
        ({"models": [{"model": "llama-3.2-3b"}] * 2}, None, "each name once"),
        ({"slo": {"factor": 0}}, None, "slo.factor: got 0; expected a number > 0"),
        ({"slo": {"factor": 2, "ttft_s": 0}}, None, "slo.ttft_s: got 0; expected a number > 0 s"),
        ({"requests": {"rows": ROWS | {"slo_factor": [1, 0, 1, 1]}}}, None, "slo_factor[1]: got 0"),
        ({"requests": {"rows": ROWS | {"arrival_s": [-1, 0, 1, 2]}}}, None, "arrival_s[0]: got -1; expected a number ≥ 0"),
        ({"requests": {"rows": ROWS | {"arrival_s": [1, 0, 1, 2]}}}, None, "ascending order"),
        ({"requests": {"rows": {"arrival_s": [], "output_tokens": []}}}, None, "at least 1 entry"),
        ({}, HEADER, "at least one request"),
        ({}, "", "an empty file"),
        ({}, HEADER + "-1,1,1\n", "trace.csv:2: arrival_s: got -1"),
        ({}, HEADER.strip() + ",slo_factor\n0,1,1,0\n", "trace.csv:2: slo_factor: got 0"),
    ],
)  # fmt: skip
def test_clear_messages(solved, changes, trace, words):
    status, _, err = solved(changes, trace)
    assert status == 2 and words in err and "Traceback" not in err


SORTED = "1 of 2 rows came before the row above them: sorted by arrival\n"


def test_rows_out_of_order_are_sorted_with_a_note(solved):
    rows = "0.5,1,100\n", "1,1,200\n"
    plans, notes = [], []
    for text in ("".join(rows), "".join(reversed(rows))):
        status, document, err = solved({}, HEADER + text)
        assert status == 0, err
        plans.append(document["plan"])
        notes.append(document["report"]["notes"])
    assert plans[0] == plans[1]
    assert notes == [[], [SORTED.strip()]]


def test_a_replay_refuses_an_empty_trace_and_sorts_rows_out_of_order(cli, folder, solved):
    status, document, err = solved({})
    assert status == 0, err
    (folder / "result.json").write_text(json.dumps(document))

    def replayed(rows):
        (folder / "other.csv").write_text(HEADER + rows)
        return cli("replay", "result.json", "--trace", "other.csv")

    empty = replayed("")
    assert empty.status == 2 and "at least one request" in empty.err
    other = replayed("1,1,200\n0,1,100\n")
    in_order = replayed("0,1,100\n1,1,200\n")
    assert other.status == in_order.status == 0
    assert SORTED in other.out
    table = other.out.replace(SORTED, "").rpartition("Files:")[0]
    assert table and table == in_order.out.rpartition("Files:")[0]
