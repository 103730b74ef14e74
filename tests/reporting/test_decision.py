"""What screen and page say first: machines, cost, SLO, how sure; and that a check recomputes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import optmodels
from formulations.fleet import decision as fleet
from optmodels.reporting import decision
from optmodels.reporting.decision import Rented, SeenLatency

EIGHT = Rented("p5.48xlarge", "us-east-1", "on_demand", 1, 55.04, "h100", 8)
SPOT = Rented("a3-highgpu-4g", "us-central1", "spot", 3, 12.5, "h100", 4)


def said(**more: Any) -> dict[str, Any]:
    return decision.summary(**({"machines": [EIGHT, EIGHT], "usd_per_hour": 110.08} | more))


def test_machines_with_place_market_gpus_and_cost_of_hour_and_month():
    assert said()["headline"] == "2× p5.48xlarge (AWS us-east-1, on demand): 16 H100"
    assert said()["cost"] == "110.08 USD/h ≈ 80,400 USD/month"  # 110.08 · 730 = 80,358.4
    assert said()["usd_per_month"] == 110.08 * 730
    two = said(machines=[EIGHT, SPOT])
    assert two["headline"] == (
        "1× p5.48xlarge (AWS us-east-1, on demand) + 3× a3-highgpu-4g (GCP us-central1, spot): 20 H100"
    )
    regions = ("us-east-1", "us-east-2", "us-west-1", "us-west-2", "eu-west-1")
    everywhere = said(machines=[EIGHT._replace(region=r, market="reserved_3y") for r in regions])
    assert everywhere["headline"] == "5× p5.48xlarge (AWS 5 regions, reserved 3y): 40 H100"
    assert (
        decision.summary(machines=[])["headline"] == "nothing to rent" and decision.summary(machines=[])["cost"] == ""
    )


def test_a_note_of_a_rented_machine_is_printed_and_one_on_another_market_is_not():
    notes = {("p5.48xlarge", "us-east-1"): "spot price of 2025; no ice", ("other", ""): "not rented"}
    lines = decision.first_lines({"summary": said(notes=notes)})
    assert [line for line in lines if "note" in line] == ["  [yellow]note: p5.48xlarge: no ice[/yellow]"]


def test_markets_that_are_not_sold_cannot_be_bought():
    gcp = [m for m in optmodels.list("machines") if re.fullmatch("a3-highgpu-[124]g", m["machine"])]
    assert len(gcp) == 54 and all(m["on_demand"] is None and m["reserved_1y"] is None and m["spot"] for m in gcp)


def test_the_tightest_of_every_latency_with_few_digits():
    rows = [SeenLatency("TTFT", "p95", 0.287431, 1.0, "a"), SeenLatency("TTFT", "p95", 0.5, 1.0, "b"),
            SeenLatency("TPOT", "mean", 0.0499996, 0.05, "a"), SeenLatency("E2E", "mean", None, 9.0, "a")]  # fmt: skip
    assert decision.latency_words(rows) == [
        "TTFT p95 500 ms predicted, SLO 1 s (b, the closest to its limit)", "TPOT mean 50 ms predicted, SLO 50 ms",
        "E2E mean not predicted, SLO 9 s",
    ]  # fmt: skip


def test_how_sure_names_what_was_not_measured_and_what_is_missed():
    entry = {"transfer": ["llm"], "tpot_at_most": 1.26, "ttft_at_most": 2.39, "level": 0.9}
    ((level, text),) = decision.source_verdict([entry], ["TPOT 64.9 ms, SLO 50 ms"])
    assert level == "warn" and text == (
        "No measurement of this LLM. In nine of ten comparable benchmarks TPOT was at most 1.26× and TTFT at most 2.39×"
        " the prediction. In this pessimistic case the plan misses its SLO: TPOT 64.9 ms, SLO 50 ms."
    )
    planned = entry | {"tpot_at_most": 1.0, "ttft_at_most": 1.0, "tpot_margin": 1.26, "ttft_margin": 2.39}
    assert decision.source_verdict([planned], []) == [("good", (
        "No measurement of this LLM. Predictions include a margin of 1.26× for TPOT and 2.39× for TTFT: nine of ten"
        " comparable benchmarks were faster than that."
    ))]  # fmt: skip
    assert decision.source_verdict([entry | {"transfer": []}], [])[0][0] == "good"
    assert "not known" in decision.source_verdict([entry | {"tpot_at_most": None}], [])[0][1]
    assert decision.source_verdict([], []) == []


def test_a_replay_that_misses_the_slo_is_said_first_and_refutes_the_plan():
    row = {"demand": "a", "latency": "ttft_s", "percentile": 0.95, "limit_s": 1.0, "seen_s": 4.0, "within": 0.0718}
    found = {"requests": "100 requests of its trace", "kept": False, "missed": [row, row | {"within": 0.9}]}
    ((level, text),) = fleet._replayed({"replayed": found})
    assert level == "bad" and decision.is_refuted({"summary": said(verdict=[(level, text)])})
    assert text == (
        "The plan misses its SLO on the trace: a: TTFT within 1 s for 7.2% of the requests, 95.0% promised, and 1 more,"
        " in the replay of 100 requests of its trace."
    )
    kept = {"requests": "100 requests of its trace", "kept": True, "missed": []}
    ((level, text),) = fleet._replayed({"replayed": kept})
    assert level == "good" and not decision.is_refuted({"summary": said(verdict=[(level, text)])})
    ((level, text),) = fleet._replayed({"replayed": kept, "replayed_whole": found | {"missed": [row]}})
    assert level == "bad" and "7.2%" in text  # the busiest stretch keeps it, the whole trace does not
    assert list(fleet._replayed({})) == []


def test_a_refuted_plan_has_no_headroom():
    room = {"share": 93.2, "text": "Headroom: the request rate may rise by 9321%."}
    for level, shown in (("bad", False), ("warn", True)):
        lines = decision.first_lines({"summary": said(verdict=[(level, "x")], headroom=room)})
        assert any("Headroom" in line for line in lines) is shown


def test_a_changed_summary_is_noticed():
    result = optmodels.solve(Path(__file__).parents[2] / "instances/cost_efficiency/textbook/hand-checkable.yaml")
    assert optmodels.check(result).ok and "summary" in optmodels.check(result).rebuilt
    document = result.document()
    document["summary"]["usd_per_month"] *= 0.9
    assert any("summary.usd_per_month" in v.requirement for v in optmodels.check(document).violations)


def test_a_replay_that_refutes_nothing_it_names_is_no_traceback():
    from optmodels.plans.replayed import missed

    assert missed({"replayed": {"kept": False, "missed": [], "requests": "3 requests"}})
    assert missed({"replayed": {"kept": True, "missed": []}}) is None
