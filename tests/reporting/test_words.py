"""What is counted, limited and said of sources, in words."""

from __future__ import annotations

from formulations.fleet.problem import StockLine
from optmodels.limits import quantity
from optmodels.reporting.evaluate import fewest_lines
from optmodels.reporting.replay import _by_latency
from optmodels.reporting.sources import source_lines
from optmodels.reporting.text import beside_limit, told_apart


def test_one_gpu_is_no_plural():
    found = {"attainment": 0.9, "certifies": "every plan"}
    assert fewest_lines(found | {"gpus": 1, "bound": 1})[0].startswith("[bold]1 GPU[/bold] attains 90% of the requests")
    assert fewest_lines(found | {"gpus": 1200, "bound": 9})[0].startswith("[bold]1,200 GPUs[/bold] attain 90% of")
    assert "1 GPU or more" in fewest_lines(found | {"gpus": None, "bound": 1})[0]
    assert [quantity(n, "gpus") for n in (1, 6)] == ["1 GPU", "6 GPUs"]


def test_a_quota_of_everything_has_a_name():
    assert StockLine(at_most=6).label == "all machines"
    assert StockLine(gpu="h100", region="eu-*", at_most=6).label == "h100 in eu-*"


def test_a_source_of_many_latencies_is_said_once():
    entry = {"model": "default", "source": "1,548 rows", "tpot_at_most": 1.5, "ttft_at_most": 2.0, "notes": []}
    h100 = entry | {"of": ["a on h100"], "transfer": []}
    l4 = entry | {"of": ["a on l4"], "transfer": ["gpu"], "ttft_at_most": 4.0, "notes": ["by hand"]}
    l40s = entry | {"of": ["a on l40s"], "transfer": ["llm|gpu", "engine|gpu"], "tpot_at_most": 1.6}
    may = "in nine of ten comparable benchmarks TPOT was at most 1.50× and TTFT at most 4.00× the prediction"
    ends = "in nine of ten comparable benchmarks TPOT was at most 1.50× and TTFT at most 2.00× the prediction"
    assert source_lines([h100]) == [f"[bold]Latencies[/bold] of a on h100: default (1,548 rows); {ends}"]
    assert source_lines([h100, l4, h100 | {"of": ["b"], "source": "mine"}]) == [
        "[bold]Latencies[/bold]: default (1,548 rows)",
        f"  a on h100; {ends}",
        f"  a on l4; no measurement of this GPU; {may}",
        "  by hand",
        f"[bold]Latencies[/bold] of b: default (mine); {ends}",
    ]
    (said,) = source_lines([l40s])
    assert "LLM, GPU and engine never measured together; in nine of ten comparable benchmarks TPOT was" in said
    of = ["a on 1 × h100", "a on l4", "a on l40s", "b on l4"]
    assert source_lines([h100 | {"of": of}])[1] == f"  a on 1 × h100, l4 and l40s, b on l4; {ends}"


def test_several_latencies_of_a_row_are_rows_that_a_screen_has_room_for():
    row = {"demand": "a", "ttft_limit_s": 1.0, "ttft_within": 0.9, "tpot_limit_s": 0.1, "tpot_within": 1.0}
    assert _by_latency(row) == [
        {"demand": "a", "latency": "TTFT", "limit_s": 1.0, "within": 0.9},
        {"demand": "a", "latency": "TPOT", "limit_s": 0.1, "within": 1.0},
    ]
    alone = {"demand": "a", "ttft_limit_s": 1.0, "ttft_within": 0.9}
    assert _by_latency(alone) == [alone]


def test_a_miss_that_rounds_to_its_limit_is_seen():
    assert told_apart(0.10004, 0.1) == ("100.04 ms", "100 ms")
    assert told_apart(0.12, 0.1) == ("120 ms", "100 ms")
    assert told_apart(0.1 * (1 + 1e-9), 0.1) == ("100 ms", "100 ms")  # kept but for rounding
    assert told_apart(0.0499996, 0.05) == ("50 ms", "50 ms")  # kept: digits would mean nothing
    assert beside_limit(2.00003, 2.0, 0.9) == "[red]2.00003 s[/red] of 2 s (p90)"
