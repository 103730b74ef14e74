"""The column form's families against golden rows, which are the independent statement; rows worked out by hand."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from maaso_cases import whole
from model.golden_files import REST, check_rest, golden_rows, names
from model.mutants import mutants, survivors

from formulations.orchestration import model
from formulations.orchestration.model import (
    FAMILIES,
    FlowModel,
    balance,
    eligible,
    expiry,
    memory,
    occupancy,
    packing,
    time,
)
from formulations.orchestration.problem import Orchestration
from formulations.orchestration.pruning import restrict
from optmodels.model.golden import differences, parse, rows_of, statement

GOLDEN = Path(__file__).parents[1] / "golden" / "orchestration"
A, B = "llama-3.2-3b", "llama-2-7b"
SERVED_A, SERVED_B = {"model": A, "t_slice_s": 0.025}, {"model": B, "t_slice_s": 0.05}
CHOSEN = [("h100", 1, 1, 1), ("h100", 2, 1, 1), ("a100-80g", 1, 3, 1), ("a100-80g", 2, 1, 2)]  # gpu, tp, pp, dp
# Class 0 and 1 of model A on configuration 0 and 1, class 2 of model B on 2 and 3; bins of 10 s.
SERVICE_S = [[15.0, 5.0, np.inf, np.inf], [25.0, 10.0, np.inf, np.inf], [np.inf, np.inf, 12.0, 10.0]]
SHARE = [[0.5, 1.0, 0.0, 0.0], [0.75, 0.8, 0.0, 0.0], [0.0, 0.0, 1.0, 0.25]]
WAIT_S = [
    [15.0, 22.5, -1.0, -1.0],
    [0.2, 12.5, -1.0, -1.0],
    [-1.0, -1.0, 10.0 - 1e-9, 0.1],
]  # the least that counts; as good as one bin; as good as none
FIRST_TOKEN_S = 0.01  # per token of the prompt
# Levels of class 0 that differ by their waits, classes 1 and 2 with one level; in class 2 by a hair.
CLOSE_SHARE = [[0.75, 0.755, 0.0, 0.0], [0.75, 0.755, 0.0, 0.0], [0.0, 0.0, 0.25, 0.26]]
CLOSE_WAIT_S = [[6.0, 12.5, -1.0, -1.0], [12.0, 12.5, -1.0, -1.0], [-1.0, -1.0, 10.0, 11.0]]
ALL_BUT_NONE = [[0.5, 1.0, 0.0, 0.0], [1 - 1e-9, 0.8, 0.0, 0.0], [0.0, 0.0, 1.0, 0.25]]


def tables(b_per_s=(0.1, 0.1, 0.3, 0.0), share=SHARE, wait_s=WAIT_S, **changes):
    """Three classes in four bins; units of 1 and 2 GPUs on h100, of 2 and 3 on a100-80g; `changes` by top-level key."""
    rates = [(A, "h100", 1, 1, 40.0), (A, "h100", 2, 1, 60.0), (B, "a100-80g", 2, 1, 30.0), (B, "a100-80g", 1, 3, 50.0)]
    asked = {"prompt_tokens": 100, "slo_factor": 2}
    document = {
        "formulation": "orchestration", "schema": 1, "name": "golden",
        "cluster": {
            "servers": [{"server": "a", "gpu": "h100", "gpus": 3}, {"server": "b", "gpu": "h100", "gpus": 2},
                        {"server": "c", "count": 2, "gpu": "a100-80g", "gpus": 5},
                        {"server": "d", "gpu": "a100-80g", "gpus": 3}],
            "tensor_groups_cross_servers": False, "pipelines_cross_servers": False, "stock": {"h100": 4},
        },
        "models": [SERVED_A, SERVED_B], "candidates": {"tp": [1, 2], "pp": [1, 3], "dp": [1, 2], "batch": [2]},
        "latency": {"measured_rows": [
            {"model": m, "gpu": gpu, "tp": tp, "pp": pp, "load": load, "tokens_per_s": rate}
            for m, gpu, tp, pp, rate in rates for load in (1, 2)
        ]},
        "requests": {"classes_bin_s": 10, "classes": [
            {"model": A, "output_tokens": 100, "requests_per_s": [0.2, 0.4, 0.1, 0.3], **asked},
            {"model": A, "output_tokens": 200, "requests_per_s": [0.1, 0.0, 0.3, 0.1], "weight": 2, **asked},
            {"model": B, "output_tokens": 300, "requests_per_s": list(b_per_s), **asked},
        ]},
        "objective": {"alpha": 0.5, "beta": 0.25, "latency_threshold_s": 10},
    }  # fmt: skip
    t = whole(Orchestration.model_validate(document | changes))
    t = restrict(t, [(t.case.gpu_types[x.gpu], x.tp, x.pp, x.dp) in CHOSEN for x in t.configurations])
    configurations = tuple(replace(x, prefill_s_per_token=FIRST_TOKEN_S) for x in t.configurations)
    return replace(
        t,
        configurations=configurations,
        first_s=FIRST_TOKEN_S * t.classes.prompt_tokens[:, None] * np.ones(4),
        service_s=np.array(SERVICE_S),
        share=np.array(share),
        wait_s=np.array(wait_s),
    )


def on_engines(**changes):
    """The same on engines: of each resource a start takes other shares on every configuration."""
    t = tables(**changes)
    engine = SimpleNamespace(most_running=2.0, stage="both")
    configurations = tuple(replace(x, engine=engine) for x in t.configurations)
    return replace(t, configurations=configurations, taken=tuple(Shares(c) for c in range(4)))


def apart():
    """The same where the first prefills and the second and third decode, the second of both models' classes."""
    t = on_engines()
    routes = np.array([[0, 1], [0, 2]])
    more = {"first_s": 0.5, "service_s": 30.0, "share": np.array([[1.0, 0.5]]), "wait_s": np.array([[0.0, 4.0]])}
    wider = {k: np.hstack((getattr(t, k), np.ones((3, 2)) * v)) for k, v in more.items()}
    taken = tuple(Shares(c, link=2.0**-c) for c in range(4))
    return replace(t, apart=routes, taken=taken, **wider)


class Shares:
    """What a start of class k takes on configuration c, in three bins: resources, none implied by another."""

    def __init__(self, c, link=0.0):
        self.c, self.link, self.service_s = c, link, np.array([10.0, 20.0, 30.0])

    def shares(self, engine, k, bin_s, since_s=0.0):
        first = np.append(2.0 ** -np.arange(1, 7) * (k + 1) / 8, self.link * (1 + since_s))
        later = np.append(first[-2::-1], self.link / 4) / (self.c + 1)
        return np.column_stack((first, later, later / 2))


LIMITED = {
    "models": [{**SERVED_A, "minimum_instances": 1, "maximum_instances": 4, "attainment_at_least": 0.9},
               {**SERVED_B, "attainment_at_least": 0.5}],
    "change": {"running": [{"model": A, "gpu": "h100", "tp": 2, "batch": 2, "count": 2}], "score_per_start": 0.125,
               "score_per_stop": 0.25},
    "slo": {"shortfall_penalty": 0.5},
    "objective": {"alpha": 0.5, "beta": 0.25, "throughput_threshold_tokens_per_s": 50, "latency_threshold_s": 10},
}  # fmt: skip
ATTAINED = {
    "models": [{**SERVED_A, "maximum_instances": 3},
               {**SERVED_B, "minimum_instances": 1, "attainment_at_least": 0.8}],
    "change": LIMITED["change"],
    "objective": {"kind": "lexicographic", "order": ["throughput", "attainment", "latency"], "latency_threshold_s": 10},
}  # fmt: skip
CASES = {
    "pooled": FlowModel(tables()),
    "pooled, with limits": FlowModel(tables(share=CLOSE_SHARE, wait_s=CLOSE_WAIT_S, **LIMITED)),
    "exact": FlowModel(tables((0.04, 0.0, 0.01, 0.0), **ATTAINED), pooled=False),
    "engines": FlowModel(on_engines()),
    "stages apart": FlowModel(apart()),
    "exact, instances given": FlowModel(
        tables((0.0, 0.0, 0.0, 0.0), share=ALL_BUT_NONE, **LIMITED), np.array([1, 0, 2, 1])
    ),
}
EQUIVALENT = {
    "expiry": {"line 11: m.wait_bins[k, c] > 0 → m.wait_bins[k, c] >= 0": "adds rows 0 ≤ 0 of pairs without a stock"},
    "_instances": {
        "line 12: 1 → 2": "-2 is what reshape finds out, too",
        "line 14: 1 → 2": "the same",
        "line 20: 1 → 2": "a table larger than needed",
        "line 20: 0 → 1": "the same",
    },
    "_requests": {
        "line 21: end[None, None] → end[None, None]": "the same text",
        "line 23: True → False": "lengths are equal",
        "line 27: 1 → -1": "the last of two dimensions",
        "line 28: 0 → 1": "a table larger than needed",
        "line 30: 1 → -1": "the last of two dimensions",
    },
    "_arrived": {"line 6: True → False": "lengths are equal"},
    "_scores": {"line 14: 0.0 → 1.0": "without a penalty there is no shortfall to multiply"},
}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_golden_rows_notice_every_mutant(family):
    assert survivors(family, golden_rows(GOLDEN, family, CASES), EQUIVALENT.get(family.__name__)) == []


def test_variables_and_objectives():
    check_rest(GOLDEN, CASES)


def test_golden_files_are_those_of_the_families():
    assert names(GOLDEN) == {f.__name__ for f in FAMILIES} | {REST}


BY_HAND = {
    # Servers of 3 and of 2 h100. Units of one GPU and more may take all 5; units of two 2·(⌊3/2⌋ + ⌊2/2⌋) = 4.
    # On a100 units of two and of three do not nest. A server of 3 holds a three (pattern 0) or a two (1), one of 5
    # both (2) or two twos (3). Configuration 3 has two units of two, configuration 2 a unit of three.
    (packing, "pooled"): """
        packing[0,1]: n[0] + 2 n[1] <= 5
        packing[0,2]: 2 n[1] <= 4
        packing[1,2]: 2 n[3] - y[1,1] - y[1,2] - 2 y[1,3] <= 0
        packing[1,3]: n[2] - y[1,0] - y[1,2] <= 0
    """,
    # 12 s of service, starts anywhere in 10 s: in its own bin a request is busy for 5 s on average, so for 0.5 of it;
    # in the last one for (start + 12 − 20) s, which is above 0 for the last 2 s of starts: 2²/2/10 = 0.2 s, 0.02 of
    # it; 12 s in all leave 6.8 s, 0.68, for the bin between. Batch 2: two slots each.
    (occupancy, "pooled"): """
        occupancy[2,0]: 0.5 x[2,2,0] - 2 n[2] <= 0
        occupancy[2,1]: 0.5 x[2,2,1] + 0.68 x[2,2,0] - 2 n[2] <= 0
        occupancy[2,2]: 0.5 x[2,2,2] + 0.68 x[2,2,1] + 0.02 x[2,2,0] - 2 n[2] <= 0
        occupancy[2,3]: 0.5 x[2,2,3] + 0.68 x[2,2,2] + 0.02 x[2,2,1] - 2 n[2] <= 0
        occupancy[2,4]: 0.68 x[2,2,3] + 0.02 x[2,2,2] - 2 n[2] <= 0
    """,
    # Of the time of configuration 3's two engines a start of class 2 takes ½·3/8·½, then ½·3/8·1/64 by 4, then half.
    (time, "engines"): """
        time[3,0]: 0.09375 x[2,3,0] - n[3] <= 0
        time[3,2]: 0.09375 x[2,3,2] + 0.000732421875 x[2,3,1] + 0.0003662109375 x[2,3,0] - n[3] <= 0
    """,
    # Of their cache ½·3/8·⅛, then ½·3/8·1/16 by 4, then half.
    (memory, "engines"): """
        memory[3,4]: 0.0029296875 x[2,3,3] + 0.00146484375 x[2,3,2] - n[3] <= 0
    """,
    # A wait of 22.5 s is 2 bins and a quarter. Of those waiting at the end of t, all but a quarter of the ones
    # admitted in t start in the two bins after it: Y_t − ¼(x_t + Y_t − Y_t−1) ≤ x_t+1 + x_t+2.
    (expiry, "exact"): """
        expiry[0,1,0]: 0.75 Y[0,1,0] - 0.25 x[0,1,0] - x[0,1,1] - x[0,1,2] <= 0
        expiry[0,1,1]: 0.75 Y[0,1,1] + 0.25 Y[0,1,0] - 0.25 x[0,1,1] - x[0,1,2] - x[0,1,3] <= 0
        expiry[0,1,2]: 0.75 Y[0,1,2] + 0.25 Y[0,1,1] - 0.25 x[0,1,2] - x[0,1,3] <= 0
        expiry[0,1,3]: 0.75 Y[0,1,3] + 0.25 Y[0,1,2] - 0.25 x[0,1,3] <= 0
    """,
    # Half of class 0 can be in time on configuration 0 (level 0), all on 0 or 1 (level 1); 2, 4, 1 and 3 arrive.
    (balance, "pooled"): """
        balance[0,0]: x[0,0,0] + I[0,0] <= 1
        balance[0,1]: x[0,0,1] + I[0,1] - I[0,0] <= 2
        balance[1,1]: x[0,0,1] + x[0,1,1] + I[1,1] - I[1,0] <= 4
    """,
    # Three quarters of class 1 can be in time on configuration 0, 0.8 on either; in bin 2 arrive 3.
    (eligible, "exact"): """
        eligible[1,2]: x[1,0,2] + Y[1,0,2] - Y[1,0,1] <= 2.25
        eligible[2,2]: x[1,0,2] + Y[1,0,2] - Y[1,0,1] + x[1,1,2] + Y[1,1,2] - Y[1,1,1] <= 2.4
    """,
}


@pytest.mark.parametrize(("family", "case"), BY_HAND, ids=lambda v: v if isinstance(v, str) else v.__name__)
def test_rows_by_hand(family, case):
    expected, found = parse(BY_HAND[family, case]), rows_of(CASES[case], family)
    assert differences(expected, replace(found, rows={name: found.rows[name] for name in expected.rows})) == []


def test_score_by_hand():
    """α = ½, β = ¼; 20 requests, 25 by weight; 3,500 tokens; first tokens after 1 s of 10 s, and what was waited."""
    score = statement(CASES["pooled"]).objectives["score"].coefficients
    assert score["x[1,0,0]"] == pytest.approx(0.5 * 2 / 25 + 0.5 * (0.25 * 200 / 3500 + 0.75 * (1 - 1 / 10) / 20))
    assert score["I[1,0]"] == pytest.approx(-0.5 * 0.75 * 10 / 10 / 20)
    assert "I[0,0]" not in score  # those who wait for level 0 wait for level 1, too
    capped = statement(CASES["pooled, with limits"])  # 50 tokens/s for 40 s count as 1
    assert capped.rows["throughput_cap"].coefficients["x[1,0,0]"] == pytest.approx(200 / 2000)
    assert capped.objectives["score"].coefficients["T"] == pytest.approx(0.5 * 0.25)


@pytest.mark.parametrize("pooled", [True, False])
def test_less_than_one_request_in_all_is_counted_in_units(pooled):
    """A thousandth of the requests: of a unit the score is as much larger, and an instance has as many more slots."""
    t, factor = tables(), 2.0**-10
    classes = replace(t.classes, arrivals=t.classes.arrivals * factor)
    many, few = FlowModel(t, pooled=pooled), FlowModel(replace(t, classes=classes), pooled=pooled)
    assert (many.one, few.one) == (1.0, 2.0**-6)  # of 20 requests
    old, new = (statement(m).objectives["score"].coefficients for m in (many, few))
    assert new == pytest.approx({name: value / factor * few.one for name, value in old.items()})
    old, new = (rows_of(m, occupancy).rows["occupancy[2,2]"].coefficients for m in (many, few))
    assert new == pytest.approx(old | {"n[2]": old["n[2]"] / few.one})


PARAMETERS = (
    FlowModel._instances, FlowModel._requests, FlowModel._arrived, FlowModel.by_level, FlowModel._scores,
    model._levels, model._nested, model._pairs,
)  # fmt: skip


@pytest.mark.parametrize("function", PARAMETERS, ids=lambda f: f.__name__)
def test_golden_files_notice_every_mutant_of_sets_bounds_and_objectives(function, monkeypatch):
    golden = {name: statement(m) for name, m in CASES.items()}
    owner = FlowModel if "." in function.__qualname__ else model
    left = []
    for mutant in mutants(function):
        monkeypatch.setattr(owner, function.__name__, mutant.function)
        if not any(_noticed(name, stated) for name, stated in golden.items()):
            left.append(mutant.description)
    assert left == list(EQUIVALENT.get(function.__name__, {}))


def _noticed(name, golden):
    m = CASES[name]
    try:
        found = statement(FlowModel(m.t, m.n.lower.astype(int) if m.given else None, pooled=m.pooled))
    except Exception:
        return True
    return golden.variables != found.variables or bool(differences(golden, found))
