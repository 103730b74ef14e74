"""Closed loops of requests of several lengths: brute force, one length as before, traces, the check, refusals."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from loop_cases import TPOT, TTFT, cheapest, instance

import optmodels
from formulations.cost_efficiency.check import check
from formulations.cost_efficiency.problem import CostEfficiency
from formulations.cost_efficiency.replay import replay
from optmodels.errors import InputError
from optmodels.simulation.options import ReplayOptions

LENGTHS = ((100, 20, 3.0), (300, 1, 1.0), (1000, 320, 2.0), (400, 220, 4.0))
LISTED = [{"input_tokens": i, "output_tokens": o, "share": f} for i, o, f in LENGTHS]
MIXED = {"batch": 60, "lengths": LISTED}


def slo(deadline: Any = None, ttft: Any = TTFT, tpot: Any = TPOT) -> dict[str, Any]:
    return {"kind": "real_time", "tps": 200, "ttft_s": ttft, "tpot_s": tpot, "deadline_s": deadline}


@pytest.mark.parametrize(
    "limits",
    [
        slo({"at_most": 10.0, "percentile": 0.95}, ttft=1.0),
        slo(8.0, {"at_most": 0.5, "percentile": 0.6}, {"at_most": 0.1, "percentile": 0.99}), slo(None, 2.0, 0.05),
    ],
    ids=["deadline", "mean deadline and percentiles", "means"],
)  # fmt: skip
def test_exact_is_the_cheapest_by_brute_force(limits: dict[str, Any]) -> None:
    problem = instance(workload=MIXED, slo=limits)
    found = optmodels.solve(problem)
    assert found.plan is not None
    assert found.check is not None and found.check.ok
    usd, e2e = cheapest(problem)
    assert found.plan["usd_per_hour"] == pytest.approx(usd)
    assert found.plan["prediction"]["e2e_s"] == pytest.approx(e2e, rel=1e-6)


def test_one_class_is_the_two_numbers() -> None:
    limits = slo({"at_most": 9.0, "percentile": 0.95})
    one = {"batch": 60, "lengths": [{"input_tokens": 500, "output_tokens": 120, "share": 0.2}]}
    two, listed = (optmodels.solve(instance(slo=limits, **w)) for w in ({}, {"workload": one}))
    assert two.plan == listed.plan and two.report["notes"] == listed.report["notes"]
    assert "prompts of exactly 500" in two.report["notes"][0]


def test_a_percentile_over_lengths_is_not_that_of_their_mean() -> None:
    """The mean request is in time on what leaves one in ten of them late; the other way round is dearer."""
    mean = {"batch": 60, "input_tokens": 420, "output_tokens": 158}
    late = slo({"at_most": 10.0, "percentile": 0.95})
    alike, mixed = (instance(workload=w, slo=late) for w in (mean, MIXED))
    cheap, dear = (optmodels.solve(p) for p in (alike, mixed))
    assert cheap.plan is not None and dear.plan is not None
    assert cheap.plan["usd_per_hour"] < dear.plan["usd_per_hour"]
    assert dear.report["notes"] == ["percentiles are over 4 lengths"]
    kept = [next(p for p in replay(mixed, plan, None, ReplayOptions(policy="spread"))["promises"]
                 if p["promise"].startswith("E2E")) for plan in (cheap.plan, dear.plan)]  # fmt: skip
    assert [p["kept"] for p in kept] == [False, True]
    assert kept[1]["replayed"] <= kept[1]["planned_bound"]


def test_users_ask_by_the_shares() -> None:
    problem = instance(workload=MIXED)
    plan = optmodels.solve(problem).plan
    assert plan is not None
    seen: dict[str, Any] = {}
    found = replay(problem, plan, None, ReplayOptions(policy="spread", keep=lambda _, columns: seen.update(columns)))
    for prompt, answer, share in LENGTHS:
        of = (seen["input_tokens"] == prompt) & (seen["output_tokens"] == answer)
        assert of.mean() == pytest.approx(share / 10, abs=0.04)
    row = found["policies"]["spread"]
    assert found["predicted"]["e2e_s"]["mean"] == plan["prediction"]["e2e_s"] >= row["e2e_s"]["mean"]
    assert found["predicted"]["tokens_per_s"] <= row["tokens_per_s"]
    assert "predicted" not in optmodels.solve(problem).report


@pytest.mark.parametrize(
    ("path", "factor"),
    [(("prediction", "ttft_s"), 0.9), (("prediction", "tpot_s"), 0.9), (("prediction", "e2e_s"), 0.9),
     (("prediction", "tps"), 1.1), (("engine", "capacities", "memory"), 0.5), (("engine", "step_s"), 0.9)],
)  # fmt: skip
def test_the_check_recomputes_what_all_see(path: tuple[str, ...], factor: float) -> None:
    problem = instance(workload=MIXED, slo=slo({"at_most": 12.0, "percentile": 0.95}))
    plan = optmodels.solve(problem).plan
    assert plan is not None and check(problem, plan).ok
    wrong: Any = copy.deepcopy(plan)
    place = wrong
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] *= factor
    assert not check(problem, wrong).ok
    longer = [x | {"output_tokens": x["output_tokens"] + 40} for x in LISTED]
    assert not check(instance(workload={"batch": 60, "lengths": longer}, slo=slo(12.0)), plan).ok


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    """An instance beside a trace of 300 requests in 2 × 2 buckets."""
    rng = np.random.default_rng(0)
    long = rng.random(300) < 0.3
    rows = zip(np.where(long, 1000, 100) + rng.integers(0, 50, 300), rng.choice([20, 200], 300), strict=True)
    text = "".join(f"{i},{prompt},{answer}\n" for i, (prompt, answer) in enumerate(rows))
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + text)
    data = json.loads(instance().model_dump_json(by_alias=True, exclude_unset=True))
    data["workload"] = {"batch": 60, "lengths": {"trace": "t.csv", "input_edges": [512], "output_edges": [100]}}
    (tmp_path / "instance.yaml").write_text(yaml.safe_dump(data))
    return tmp_path / "instance.yaml"


def test_lengths_of_a_trace_are_those_of_its_buckets(traced: Path) -> None:
    problem = optmodels.load(traced)
    assert isinstance(problem, CostEfficiency)
    lengths = problem.resolve().lengths
    rows = np.loadtxt(traced.parent / "t.csv", delimiter=",", skiprows=1)[:, 1:]
    assert len(lengths) == 4
    for x in lengths:
        mine = rows[((rows[:, 0] > 512) == (x.input_tokens > 512)) & ((rows[:, 1] > 100) == (x.output_tokens > 100))]
        assert (x.input_tokens, x.output_tokens) == tuple(np.ceil(mine.mean(axis=0)))
        assert x.share == pytest.approx(len(mine) / 300)
    found = optmodels.solve(problem)
    assert found.check is not None and found.check.ok
    alone = CostEfficiency.model_validate(problem.inline().model_dump(mode="json", by_alias=True))
    again = optmodels.solve(alone)
    assert again.plan is not None and found.plan is not None
    assert again.plan["prediction"] == pytest.approx(found.plan["prediction"])
    fewer = problem.model_copy(update={"workload": problem.workload.model_copy(update={"lengths": (lengths[0],)})})
    assert len(fewer.resolve().lengths) == 1  # what was read of the trace is not another section's


@pytest.mark.parametrize(
    ("changes", "path", "expected"),
    [
        ({"serving": "static", "latency": {}, "slo": slo(None, 3.0, 0.1)}, "workload.lengths", "serving: static"),
        ({"deployment": {"stages": ["both", "prefill", "decode"]}}, "deployment.stages", "formulation: fleet"),
        ({"workload": {"batch": 1, "lengths": {"trace": "no.csv"}}}, "workload.lengths.trace", "inline data"),
        ({"workload": {"batch": 1, "lengths": [LISTED[0], {"input_tokens": 10**6, "output_tokens": 1}]}},
         "workload.lengths (1)", "context"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(changes: dict[str, Any], path: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        instance(**({"workload": MIXED} | changes)).resolve()
    assert any(m.path == path and expected in m.expected for m in caught.value.mistakes), caught.value


@pytest.mark.parametrize(
    ("workload", "path"),
    [
        (MIXED | {"input_tokens": 5}, "workload.input_tokens"),
        ({"batch": 60, "lengths": []}, "workload.lengths"),
        ({"batch": 60, "lengths": [LISTED[0] | {"share": 0}]}, "workload.lengths[0].share"),
        ({"batch": 60, "lengths": {"trace": "t.csv", "rate_factor": 2}}, "workload.lengths.rate_factor"),
        ({"lengths": LISTED}, "workload.batch"),
        (None, "workload"),
    ],
)
def test_a_mistake_has_its_path(traced: Path, workload: Any, path: str) -> None:
    data = yaml.safe_load(traced.read_text()) | {"workload": workload}
    traced.write_text(yaml.safe_dump(data))
    with pytest.raises(InputError) as caught:
        optmodels.load(traced)
    assert [m.path for m in caught.value.mistakes] == [path]
