"""What the screen says of policies that serve nobody."""

from __future__ import annotations

from rich.console import Console

from formulations.orchestration.show import latency_table


def test_a_policy_that_serves_nobody_has_no_latencies() -> None:
    none = {name: dict.fromkeys(("mean", "p95", "p99")) for name in ("ttft_s", "tpot_s", "e2e_s")}
    some = {name: {"mean": 0.5, "p95": 0.7, "p99": None} for name in ("ttft_s", "tpot_s", "e2e_s")}
    console = Console(width=100)
    with console.capture() as seen:
        console.print(latency_table({"predicted": {}, "policies": {"least_loaded": none, "by_plan": some}}))
    lines = [line.split() for line in seen.get().splitlines()]
    assert ["least", "loaded"] in [[x for x in line if x not in "│"] for line in lines]
    assert any("500 / 700" in line and "least" not in line for line in seen.get().splitlines())
