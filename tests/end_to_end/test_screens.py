"""What a screen of 80 columns shows: whole words, nothing cut off, nothing beyond its edge."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time

import pytest
from rich.console import Console
from rich.table import Table

from optmodels import shipped
from optmodels.cli.console import Progress, show
from optmodels.reporting.decision import short_seconds
from optmodels.solver.highs import Event

INSTANCES = shipped.root()


@pytest.mark.parametrize(
    ("verb", "file"),
    [
        ("solve", "fleet/day-and-night.yaml"),
        ("solve", "orchestration/textbook-two-servers.yaml"),
        ("solve", "reserved_capacity/textbook-two-regions.yaml"),
        ("solve", "cost_efficiency/textbook/hand-checkable.yaml"),
        ("explain", "fleet/infeasible/deadline.yaml"),
        ("compare", "fleet/day-and-night.yaml"),
    ],
)
def test_nothing_is_wider_than_the_columns_asked_for(cli, monkeypatch, verb, file):
    monkeypatch.setenv("COLUMNS", "80")
    done = cli(verb, INSTANCES / file, *(("--max-solves", "12") if verb == "explain" else ("--time-limit", "5")))
    assert done.err == "" or verb == "explain"
    wide = [line for line in done.out.splitlines() if len(line) > 80 and len(line.split()) > 1]
    assert not wide
    assert "…" not in done.out.replace("… and", "")
    if verb == "compare":
        assert re.search(
            r"^greedy +feasible +10\.842\d+ +\d+\.\d\d% ", done.out, re.M
        )  # a table, not a text for each row


def test_a_pipe_without_columns_keeps_every_text_in_a_line(cli, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    done = cli("solve", INSTANCES / "reserved_capacity/textbook-two-regions.yaml")
    assert max(map(len, done.out.splitlines())) > 80
    assert any(
        line.startswith("Proved optimal: ") and line.endswith("divisible requests") for line in done.out.splitlines()
    )


def _shown(items, width, monkeypatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    out = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        show(items)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_texts_break_between_words_and_keep_their_margin(monkeypatch):
    path = "results/" + "x" * 40
    assert _shown([f"  [bold]one[/bold] two three {path}  four", "", "\\[five]"], 20, monkeypatch) == [
        "  one two three", f"  {path}", "  four", "", "[five]",
    ]  # fmt: skip


def test_a_table_gives_words_room_first_and_becomes_texts_where_they_have_none(monkeypatch):
    def table() -> Table:
        made = Table("machine", "what is said of it", "n")
        made.add_row("g6e.12xlarge", "[green]several words that may go below one another[/green]", "1")
        return made

    assert Console(width=200).measure(table()).maximum > 40
    lines = _shown([table()], 40, monkeypatch)
    assert max(map(len, lines)) <= 40 and any(line.startswith("g6e.12xlarge  several") for line in lines)
    words = " ".join(" ".join(lines).split())
    assert all(word in words for word in ("machine", "several", "another"))
    assert _shown([table()], 25, monkeypatch) == [
        "g6e.12xlarge  what is", "said of it several words", "that may go below one", "another; n 1",
    ]  # fmt: skip


def test_somebody_at_a_terminal_waits_five_minutes_at_most_unless_told_otherwise(cli, folder, monkeypatch):
    file = INSTANCES / "reserved_capacity/textbook-two-regions.yaml"

    def limits() -> list[float | None]:
        return [json.loads(p.read_text())["options"]["time_limit"] for p in sorted(folder.rglob("plan.json"))]

    assert cli("solve", file, "--out", "piped").status == 0
    monkeypatch.setattr("optmodels.cli.solve.at_a_terminal", lambda: True)
    for name, asked in (("q", []), ("r", ["--time-limit", "inf"]), ("s", ["--time-limit", "9"])):
        assert cli("solve", file, "--out", name, *asked).status == 0
    assert limits() == [None, 300.0, None, 9.0]


def test_progress_drops_its_hint_before_its_gap(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((60, 24)))
    monkeypatch.setattr(Progress, "AFTER_S", 0.03)
    shown = Progress()
    shown(Event(seconds=1.0, objective=104.4447, bound=104.2, nodes=123))
    time.sleep(0.1)
    shown.stop()
    last = written.getvalue().split("\r")[1]
    assert "gap 0.2" in last and "nodes 123" in last and "Ctrl-C" not in last


def test_a_second_is_no_thousand_milliseconds():
    assert [short_seconds(x) for x in (0.9999, 0.9994, 0.0529, 1.0)] == ["1 s", "999 ms", "52.9 ms", "1 s"]
