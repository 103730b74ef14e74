"""Solves side by side share nothing, and any one can be stopped from elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import ROOT

import optmodels
from optmodels.cli import run
from optmodels.solver.cancel import cancelled, caught_interrupt
from optmodels.study import sweep

INSTANCES = ROOT / "instances"
LONG = [INSTANCES / "reserved_capacity/gcp-prices-1y-3y.yaml", INSTANCES / "fleet/spot-heavy.yaml"]
SHORT = [
    INSTANCES / "fleet/gcp-three-regions.yaml", INSTANCES / "cost_efficiency/table_ix/batch-budget-2.0.yaml",
    INSTANCES / "reserved_capacity/textbook-growth-and-scenarios.yaml",
]  # fmt: skip


class StopError(Exception):
    """Raised by a callback."""


def test_what_a_callback_raises_ends_the_solve_and_is_raised():
    def stop(event):
        raise StopError

    for source in SHORT[::2]:
        with pytest.raises(StopError):
            optmodels.solve(source, on_event=stop)
        assert optmodels.solve(source).status == "optimal"


@pytest.mark.parametrize("source", LONG, ids=lambda p: p.stem)
def test_a_cancelled_solve_returns_what_it_has(source):
    cancel = threading.Event()
    result = optmodels.solve(source, on_event=lambda event: cancel.set(), cancel=cancel)
    assert result.limit == "interrupt"
    assert result.status in ("feasible", "no_solution_found")
    assert result.exit_status == (0 if result.plan is not None else 4)
    assert result.plan is None or result.check.ok


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_the_incumbent_and_the_files(number, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    sent = []

    def send(event):
        if not sent:
            sent.append(event)
            os.kill(os.getpid(), number)

    result = optmodels.solve(LONG[1], on_event=send, out=tmp_path)
    assert result.limit == "interrupt" and sent
    assert list(tmp_path.glob("*/plan.json"))
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_after_the_plan_is_found_loses_nothing(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    show = []

    def on_result(result):
        show.append(result)
        signal.raise_signal(signal.SIGINT)

    result = optmodels.solve(SHORT[0], on_result=on_result, out=tmp_path)
    assert show == [result] and result.status == "optimal" and result.limit is None
    assert list(tmp_path.glob("*/plan.json")) and list(tmp_path.glob("*/report.html"))
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for what is imported in /proc")
@pytest.mark.parametrize("seconds", [0.5, 5.0])
def test_control_c_before_and_after_the_first_plan_leaves_one(seconds):
    """Reservations, cut for long before there is a plan at all.

    Slow: a process that has to reach its solver before it is interrupted.
    """
    command = [sys.executable, "-m", "optmodels", "solve", str(LONG[0]), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ready = time.monotonic() + 60
    while "scipy/special/_specfun" not in Path(f"/proc/{process.pid}/maps").read_text():  # the method is imported
        assert process.poll() is None and time.monotonic() < ready
        time.sleep(0.05)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    document = json.loads(out)
    assert process.returncode == 0, err
    assert (document["status"], document["limit"], document["check"]["ok"]) == ("feasible", "interrupt", True)
    assert document["log"]["left_out"]  # who stops a solve does not wait for reports that solve on


def test_the_command_line_ends_at_sigterm_as_at_control_c(tmp_path):
    command = [
        sys.executable,
        "-m",
        "optmodels",
        "sweep",
        str(SHORT[1]),
        "--vary",
        "slo.tps=1:100:5000",
        "--workers",
        "1",
    ]
    with subprocess.Popen([*command, "--out", str(tmp_path / "s")], stderr=subprocess.PIPE, text=True) as child:
        journal = tmp_path / "s/journal.jsonl"
        while not (journal.exists() and journal.stat().st_size) and child.poll() is None:
            time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=60)
    assert child.returncode == 4
    assert "interrupted" in said and "--resume" in said


def test_a_signal_that_comes_as_a_solve_ends_stops_the_sweep(monkeypatch, tmp_path):
    def ended(*arguments):
        row = solved_row(*arguments)
        signal.raise_signal(signal.SIGTERM)
        return row

    solved_row = sweep.solved_row
    monkeypatch.setattr(sweep, "solved_row", ended)
    command = ["sweep", str(SHORT[1]), "--vary", "slo.tps=1:100:3", "--workers", "1", "--out", str(tmp_path / "s")]
    assert run(command) == 4


def test_a_handler_of_somebody_elses_for_sigterm_stays_theirs():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    try:
        with caught_interrupt() as flag:
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen and not flag.is_set()


def test_threads_give_what_they_give_alone():
    alone = {s: optmodels.solve(s) for s in SHORT}
    found = {}

    def run(i, source):
        found[i] = optmodels.solve(source)

    threads = [threading.Thread(target=run, args=(i, s)) for i, s in enumerate(SHORT * 2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, source in enumerate(SHORT * 2):
        assert (found[i].status, found[i].plan) == (alone[source].status, alone[source].plan)


def test_cancelling_one_task_leaves_the_others_alone():
    async def both():
        cancel = threading.Event()
        long = asyncio.to_thread(
            optmodels.solve, LONG[1], on_event=lambda event: cancel.set(), cancel=cancel
        )  # fmt: skip
        short = [asyncio.to_thread(optmodels.solve, s, cancel=threading.Event()) for s in SHORT]
        return await asyncio.gather(long, *short)

    stopped, *rest = asyncio.run(both())
    assert stopped.limit == "interrupt"
    assert [r.status for r in rest] == ["optimal"] * len(SHORT)


def test_ctrl_c_around_several_solves_is_caught_once():
    """What is caught inside belongs to the outermost, which goes on to wind up; a second one interrupts as usual."""
    before = signal.getsignal(signal.SIGINT)
    with caught_interrupt() as outer:
        assert not cancelled()
        with caught_interrupt() as inner:
            assert inner is outer
            signal.raise_signal(signal.SIGINT)
        assert outer.is_set()
        assert cancelled()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert not cancelled()
    assert signal.getsignal(signal.SIGINT) is before


WHILE_IMPORTED = """
import sys

class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "optmodels.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Stop())
from optmodels.__main__ import main
main()
"""


def test_ctrl_c_while_the_command_is_imported_is_no_traceback():
    found = subprocess.run([sys.executable, "-c", WHILE_IMPORTED], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (4, "interrupted\n")


@pytest.mark.parametrize("times", [1, 30])
def test_an_interrupt_that_compiled_code_drops_is_raised_again(times):
    """pydantic drops what is raised while it looks which model of a union an object is."""
    code = f"""
import abc, signal, time
from typing import Annotated, Literal
import optmodels.cli
from pydantic import BaseModel, Field

class A(BaseModel):
    kind: Literal["a"] = "a"

class B(BaseModel):
    kind: Literal["b"] = "b"

class Either(BaseModel):
    one: Annotated[A | B, Field(discriminator="kind")]

left, usual = [{times}], abc.ABCMeta.__instancecheck__

def interrupted(cls, instance):
    if left[0] and type(instance) is A:
        left[0] -= 1
        signal.raise_signal(signal.SIGINT)
    return usual(cls, instance)

optmodels.cli._begin()
abc.ABCMeta.__instancecheck__ = interrupted
try:
    while left[0]:
        Either(one=A())
    time.sleep(10)
except KeyboardInterrupt:
    print("heard")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=15, check=False)
    assert done.stdout == "heard\n", done.stderr
    assert "ignored" not in done.stderr


def test_an_ignored_interrupt_stays_ignored_during_a_solve():
    """A shell starts what a script puts into the background so."""
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with caught_interrupt() as flag:
            signal.raise_signal(signal.SIGINT)
            assert not flag.is_set()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, usual)
