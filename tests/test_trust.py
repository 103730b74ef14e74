"""What a document states next to its plan is made again: solves, certifications, words of the log; what the clock left
out is missing, not on trust.
"""

from __future__ import annotations

import copy
import functools
import random

import pytest
from alterations import HISTORY, alterations
from document_cases import BATCHING, CASES
from tampering import pattern
from test_documents import remembering

import optmodels
from formulations.fleet.check import is_open
from optmodels import formulation
from optmodels.loading import load
from optmodels.plans.replayed import is_consistent
from optmodels.verification import verify


@functools.cache
def solved(name, case):
    problem, method = CASES[name][case]
    return optmodels.solve(problem, method).model_dump(mode="json", by_alias=True)


def verdict(document, *path, value=None, change=None):
    """The verdict on the document with one place changed."""
    document = copy.deepcopy(document)
    inner = document
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value if change is None else change(inner[path[-1]])
    return optmodels.check(document)


@pytest.mark.parametrize(
    ("name", "case"),
    [("cost_efficiency", "offloading"), ("fleet", "shadow prices"), ("reserved_capacity", "two regions")],
)
def test_drawn_alterations_are_seen_but_for_the_history_and_what_is_listed(name, case):
    document = solved(name, case)
    form, problem = remembering(formulation.get(name)), load(document["problem"])
    good = verify(form, problem, document)
    assert good.ok, good.violations
    listed = [t.path for t in good.trusted]
    missed, tried = [], 0
    for what, path, mutant in alterations(document, random.Random(name), 80):
        where = pattern(path)
        if path[0] in HISTORY or any(where == t or where.startswith((f"{t}.", f"{t}[")) for t in listed):
            continue
        tried += 1
        missed += [what] if verify(form, problem, mutant).ok else []
    assert not missed and tried > 40


def test_labels_are_those_of_their_facts():
    fleet, cluster = solved("fleet", "shadow prices"), solved("orchestration", "sub-clusters")
    for document, *path in (
        (fleet, "plan", "periods", 0, "deployments", 0, "name"), (cluster, "plan", "instances", 0, "name"),
        (cluster, "plan", "classes", 0, "label"),
    ):  # fmt: skip
        assert optmodels.check(document).ok
        for change in (lambda x: x + "x", lambda x: ""):
            found = verdict(document, *path, change=change).violations
            assert any("of its facts" in v.requirement for v in found)


def test_a_dispatcher_is_as_cautious_as_one_that_is_tried():
    document = solved("orchestration", "sub-clusters")
    assert not verdict(document, "plan", "dispatcher", "caution", value=1.1).ok


def test_headroom_is_solved_again():
    document = optmodels.solve(BATCHING).model_dump(mode="json", by_alias=True)
    assert document["report"]["headroom"]["factor"] > 0
    assert optmodels.check(document).ok
    for key in ("factor", "bound"):
        assert not verdict(document, "report", "headroom", key, change=lambda x: x * 1.1).ok
    assert not verdict(document, "report", "headroom", value=None).ok
    said = document["report"]["headroom"]
    assert is_open("report.headroom", said | {"bound": 2 * said["factor"]}) and not is_open("report.headroom", said)
    assert not verdict(document, "log", "left_out", value=["the headroom"]).ok  # it is there


def test_values_of_one_more_machine_are_solved_again():
    document = solved("reserved_capacity", "two regions")
    assert document["report"]["values"]["basis"] == "exact re-solve"
    assert not verdict(document, "report", "values", "machines", 0, "usd_per_month", change=lambda x: x * 1.1 + 1).ok
    assert not verdict(document, "report", "values", "basis", value="").ok


def test_another_version_is_compared_as_far_as_it_agrees():
    document = solved("reserved_capacity", "two regions")
    report = verdict(document, "optmodels_version", value="0.2.1")
    assert report.ok and "report" in report.rebuilt
    document = copy.deepcopy(document) | {"optmodels_version": "0.2.1"}
    document["report"]["regions"][0]["region"] += "x"
    report = optmodels.check(document)
    assert report.ok and not report.rebuilt
    [why] = {t.why for t in report.trusted if t.path == "summary"}
    assert "0.2.1" in why and "report.regions[0].region" in why
    for unknown in ("", "new", "0"):
        assert not verdict(document, "optmodels_version", value=unknown).ok


def test_words_of_the_log_agree_with_the_report():
    document = solved("reserved_capacity", "two regions")
    assert not verdict(document, "log", "missed", value="chat: mean TTFT 3 s, 2 s promised").ok
    assert not verdict(document, "log", "left_out", value="the headroom").ok


ROW = {"demand": "chat/a", "latency": "ttft_s", "percentile": 0.95, "limit_s": 1.0, "seen_s": 1.2, "within": 0.9}


@pytest.mark.parametrize(
    ("found", "right"),
    [
        ({"kept": True, "missed": []}, True), ({"kept": False, "missed": [ROW]}, True),
        ({"kept": False, "missed": [ROW | {"percentile": None, "within": 0.97}]}, True),
        ({"kept": True, "missed": [ROW]}, False), ({"kept": False, "missed": []}, False), ({"kept": True}, False),
        ({"kept": False, "missed": [ROW | {"seen_s": 0.9}]}, False), (None, False),
        ({"kept": False, "missed": [ROW | {"within": 0.96}]}, False), ({"kept": False, "missed": ["x"]}, False),
    ],
)  # fmt: skip
def test_the_verdict_of_a_replay_fits_its_rows(found, right):
    assert is_consistent(found) == right


def test_the_plan_at_the_other_end_is_solved_again():
    found = optmodels.plan("llama-3.1-8b", input=900, output=200, rate=30, ttft=0.8, tpot=0.05,
                           gpu=["h100", "l40s"], safety=0.9)  # fmt: skip
    document = found.model_dump(mode="json", by_alias=True)
    assert {"log.safer", "log.next_measurement"} <= set(optmodels.check(document).rebuilt)
    assert not verdict(document, "log", "safer", "usd_per_hour", change=lambda x: x * 1.1).ok
    assert not verdict(document, "log", "next_measurement", "rows", change=lambda x: x + 1).ok
