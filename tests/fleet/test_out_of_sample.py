"""A fleet planned for a trace on requests that it was not made for: what replays say, checked, left out when asked."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optmodels
from formulations.fleet.certify import FleetRounds, simulations
from formulations.fleet.files import TraceFile
from formulations.fleet.on_trace import OTHER_REQUESTS
from formulations.fleet.plan import FleetPlan
from formulations.fleet.problem import Fleet
from formulations.fleet.show import summary
from optmodels.errors import InputError
from optmodels.loading import load
from optmodels.solver.deadline import HEADROOM
from optmodels.traces.buckets import bucket_trace

ROWS = [(9.0, 100, 10), (1.0, 50, 20), (3.0, 2000, 5), (2.0, 0, 7), (5.0, 120, 500)]


def document() -> dict[str, Any]:
    return {
        "formulation": "fleet", "schema": 1, "name": "cut",
        "workloads": [{"name": "chat", "model": "llama-3.1-8b", "trace": {"file": "t.csv", "rate_factor": 2.0},
                       "slo": {"ttft_s": {"at_most": 2.0, "percentile": 0.9}}}],
        "pool": {"machines": [
            {"machine": "one", "gpu": "l40s", "gpu_count": 1, "vram_gib": 48, "prices": {"on_demand": 2.0}}]},
        "markets": {"main": ["on_demand"]}, "serving": "continuous", "latency": {"model": "roofline"},
        "periods": [{"name": "day", "rate_factor": 3.0, "hours": 12}, {"name": "night", "hours": 12}],
    }  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    rng = np.random.default_rng(2)
    at = np.cumsum(rng.exponential(0.5, 300))
    rows = zip(at, rng.choice([100, 900], 300), rng.choice([20, 90], 300), strict=True)
    text = "".join(f"{a},{i},{o}\n" for a, i, o in rows)
    (folder / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + text)
    (folder / "cut.yaml").write_text(json.dumps(document()))
    return folder / "cut.yaml"


def test_requests_keep_the_bucket_that_they_were_cut_into(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{t},{i},{o}\n" for t, i, o in ROWS))
    with pytest.raises(InputError, match="ContextTokens: got 0"):
        bucket_trace(path, TraceFile(file="t.csv"), 2.0)
    found = bucket_trace(path, TraceFile(file="t.csv", skip_bad=True), 2.0)
    requests = found.requests
    assert requests.arrival_s == (0.0, 1.0, 2.0, 4.0)  # from the first, twice as fast, the one without tokens left out
    assert requests.input_tokens == (50, 2000, 120, 100)
    names = [found.cells[b].name for b in requests.bucket]
    assert names == ["≤256x≤64", "≤4096x≤64", "≤256x>256", "≤256x≤64"]


def test_what_is_certified_has_the_lengths_of_the_trace(file: Path) -> None:
    """Every stream is of the lengths that its bucket was cut from, from the file as from the document."""
    problem = load(document() | {"certify": "replay"}, folder=file.parent)
    found = optmodels.solve(problem)
    assert isinstance(problem, Fleet) and found.plan is not None
    assert found.plan["certification"]["status"] == "certified"
    plan = FleetPlan.model_validate(found.plan)
    for case in (problem.resolve(), problem.inline().resolve()):
        trace = case.trace
        assert trace is not None
        label = trace.labels["class"]
        for name, lengths in case.lengths.items():
            mine = label.codes == label.names.index(name)
            rows = zip(trace.prompt_tokens[mine].tolist(), trace.output_tokens[mine].tolist(), strict=True)
            assert sorted(lengths) == sorted(rows)
        streams = {s for q in plan.periods for x in simulations(case, q, plan.stretch) for s in x.streams}
        assert streams and {s.lengths for s in streams} <= set(case.lengths.values())


def test_the_busiest_period_has_its_rate(file: Path) -> None:
    problem = load(file)
    case = problem.resolve()
    assert case.trace is not None
    rate = len(case.trace) / case.trace.duration_s
    assert rate == pytest.approx(sum(d.requests_per_s[0] for d in case.demands), rel=1e-9)
    again = Fleet.model_validate_json(problem.inline().model_dump_json()).resolve()
    assert again.trace is not None
    for name in ("arrival_s", "prompt_tokens", "output_tokens"):
        assert np.array_equal(getattr(again.trace, name), getattr(case.trace, name))
    assert again.demands == case.demands


def test_promised_replayed_and_out_of_sample_are_those_of_replays(file: Path, tmp_path: Path) -> None:
    result = optmodels.solve(file, out=tmp_path)
    found = result.report["out_of_sample"]
    own = optmodels.replay(result, policy="planned_shares")["report"]["demands"]
    other = optmodels.replay(result, policy="planned_shares", resample=OTHER_REQUESTS)["report"]["demands"]
    assert len(found["promises"]) == len(own) == 4
    for row, mine, new in zip(found["promises"], own, other, strict=True):
        assert (row["demand"], row["latency"], row["promised"]) == (mine["demand"], "ttft", 0.9)
        assert (row["replayed"], row["out_of_sample"]) == (mine["ttft_within"], new["ttft_within"])
    assert any(getattr(x, "title", None) and "resampled" in str(x.title) for x in summary(result.document()))
    [written] = tmp_path.glob("*/plan.json")
    assert optmodels.check(written).ok
    changed = json.loads(written.read_text())
    changed["report"]["out_of_sample"]["promises"][0]["out_of_sample"] = 0.125
    written.write_text(json.dumps(changed))
    assert any("out_of_sample" in v.requirement for v in optmodels.check(written).violations)


def test_percentiles_say_that_they_are_of_mean_lengths_where_nothing_is_certified(file: Path, tmp_path: Path) -> None:
    result = optmodels.solve(file)
    [note] = result.report["notes"]
    assert note.startswith("percentiles are computed for the mean lengths of each bucket; with varying lengths")
    assert optmodels.check(result).ok  # the document says the same of the instance that it carries
    certified, means = document() | {"certify": "replay"}, document()
    means["workloads"][0]["slo"] = {"ttft_s": 2.0}
    for other in (certified, means):
        assert optmodels.solve(load(other, folder=file.parent)).report["notes"] == []


def test_certification_leaves_it_time(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that take all that they may do not take the time of the replay."""

    def judge(self: FleetRounds, plan: FleetPlan, number: int, over: Callable[[], bool]) -> tuple[list[Any], bool]:
        while not over():
            time.sleep(0.01)
        return [], False

    optmodels.solve(file)  # compiles the simulator, which is no part of the limit below
    monkeypatch.setattr(FleetRounds, "judge", judge)
    result = optmodels.solve(file, certify_replay=True, time_limit=4.0)
    assert result.plan is not None and result.plan["certification"]["status"] == "incomplete"
    assert set(result.log.get("left_out", [])) <= {HEADROOM}  # a solve of its own, of at most 5 s
    assert optmodels.check(result).ok
    assert len(result.report["out_of_sample"]["promises"]) == 4


def test_it_is_left_out_when_asked(file: Path) -> None:
    result = optmodels.solve(file, out_of_sample=False)
    assert "out_of_sample" not in result.report
    assert optmodels.check(result).ok


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ({"arrival_s": [1, 0], "input_tokens": [1, 1], "output_tokens": [1, 1], "bucket": [0, 0]}, "ascending"),
        ({"arrival_s": [0, 1], "input_tokens": [1], "output_tokens": [1, 1], "bucket": [0, 0]}, "input_tokens of 2"),
        ({"arrival_s": [0], "input_tokens": [1], "output_tokens": [1], "bucket": [1]}, "number of buckets"),
    ],
)
def test_requests_that_are_not_those_of_the_buckets(requests: dict[str, Any], expected: str) -> None:
    data = document()
    bucket = {"name": "b", "input_tokens": 9, "output_tokens": 9, "requests_per_s": 1.0}
    data["workloads"][0] |= {"trace": None, "buckets": [bucket], "requests": requests}
    with pytest.raises(InputError, match=expected):
        optmodels.solve(data)


def test_without_a_replay_out_of_sample_the_result_says_why(file: Path) -> None:
    partly = document()
    partly["workloads"].append({
        "name": "rest", "model": "llama-3.1-8b", "slo": {"ttft_s": 2.0},
        "buckets": [{"input_tokens": 100, "output_tokens": 20, "requests_per_s": 1.0}],
    })  # fmt: skip
    (file.parent / "partly.yaml").write_text(json.dumps(partly))
    result = optmodels.solve(file.parent / "partly.yaml", time_limit=20)
    assert result.report["not_out_of_sample"] == "rest given as rates, without a trace"
    assert optmodels.check(result).ok


def test_of_a_long_trace_the_busiest_stretch_is_kept_and_all_of_it_replayed(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optmodels.traces.buckets.MOST_REQUESTS", 200)
    result = optmodels.solve(file, certify_replay=True, out=tmp_path)
    [kept] = [w["requests"] for w in result.problem["workloads"]]
    assert (len(kept["arrival_s"]), kept["of"]) == (200, 300)
    assert result.report["replayed"]["requests"] == "its own busiest 200 of 300 requests"
    assert result.report["replayed_whole"] == {"requests": "all its 300 requests", "kept": True, "missed": []}
    [written] = tmp_path.glob("*/plan.json")
    assert optmodels.check(written).ok
    assert optmodels.replay(written)["report"]["sent"] == "its own busiest 200 of 300 requests"
