"""Calls in a process of their own: what they return and raise, and that nothing outlives its time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from optmodels.errors import InputError, SolverError
from optmodels.solver import Settings, highs, solve_compiled
from optmodels.solver.cancel import cancellable
from optmodels.solver.compile import Compiled
from optmodels.solver.own_process import EndedError, in_own_process

HERE = Path(__file__).parent


def test_it_returns_what_the_call_returns_and_raises_what_it_raises():
    assert in_own_process(divmod, 17, 5, seconds=30.0) == (3, 2)
    assert in_own_process(print, "no answer", seconds=30.0) is None
    with pytest.raises(ZeroDivisionError):
        in_own_process(divmod, 17, 0, seconds=None)
    with pytest.raises(SolverError, match="died"):
        in_own_process(os._exit, 3, seconds=30.0)


def test_the_next_call_has_the_same_process_and_one_that_was_ended_has_no_next():
    first = in_own_process(os.getpid, seconds=30.0)
    assert first != os.getpid()
    with pytest.raises(ZeroDivisionError):
        in_own_process(divmod, 17, 0, seconds=30.0)
    assert in_own_process(os.getpid, seconds=30.0) == first
    with pytest.raises(EndedError):
        in_own_process(time.sleep, 60, seconds=0.2)
    assert in_own_process(os.getpid, seconds=30.0) != first


def test_calls_at_a_time_have_a_process_each():
    together = threading.Barrier(2)

    def call(_):
        together.wait()
        return in_own_process(_slowly, seconds=60.0)

    with ThreadPoolExecutor(2) as threads:
        assert len(set(threads.map(call, range(2)))) == 2


def _slowly():
    time.sleep(1.0)
    return os.getpid()


def test_it_has_the_path_of_the_caller(monkeypatch, tmp_path):
    (tmp_path / "made_up_module.py").write_text("def answer():\n    return 42\n", encoding="utf-8")
    in_own_process(os.getpid, seconds=30.0)
    monkeypatch.syspath_prepend(str(tmp_path))
    import made_up_module  # type: ignore[import-not-found]

    assert in_own_process(made_up_module.answer, seconds=30.0) == 42


def test_it_is_ended_when_its_time_is_over():
    began = time.monotonic()
    with pytest.raises(EndedError):
        in_own_process(time.sleep, 60, seconds=0.5)
    assert 0.5 <= time.monotonic() - began < 5


def test_it_is_ended_when_somebody_cancels():
    event = threading.Event()
    threading.Timer(0.5, event.set).start()
    began = time.monotonic()
    with cancellable(event), pytest.raises(EndedError):
        in_own_process(time.sleep, 60, seconds=None)
    assert time.monotonic() - began < 5


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_it_ends_with_its_caller():
    code = """
import os, signal, threading, time
from optmodels.solver.own_process import in_own_process
def end():
    while not (children := open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()):
        time.sleep(0.01)
    time.sleep(1.0)
    print(*children, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=end).start()
in_own_process(time.sleep, 60, seconds=None)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    (child,) = done.stdout.split()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()


def test_a_tree_that_hears_no_time_limit_is_ended():
    """Fleet 107348 by `melange`: costs of 6e-6 and 9.8e5, on which HiGHS 1.15.1 loops without presolve."""
    of = json.loads((HERE / "endless.json").read_text(encoding="utf-8"))
    cost = np.array(of["cost"])
    low, high = (np.array([s * np.inf if v is None else v for v in of[k]], dtype=float)
                 for s, k in ((-1, "row_lower"), (1, "row_upper")))  # fmt: skip
    upper = np.array([np.inf if v is None else v for v in of["upper"]], dtype=float)
    A = sp.csc_array((of["value"], (of["row"], of["column"])), shape=(len(low), len(cost)))
    model = Compiled(
        cost[None], np.zeros(1), np.ones(1), A, low, high, np.zeros(len(cost)), upper, np.ones(len(cost), dtype=bool),
        [f"x{j}" for j in range(len(cost))], [f"r{i}" for i in range(len(low))],
    )  # fmt: skip
    began = time.monotonic()
    try:
        report = solve_compiled(model, Settings(time_limit=2.0))
    except InputError as refused:  # no run of 1.16 has a point that holds
        assert "numbers less far apart" in str(refused)
    else:
        if report.x is None:  # on a busy machine the time ends before a second run
            assert (report.status, report.limit) == ("no_solution_found", "time")
        else:
            assert report.status in ("optimal", "feasible") and model.violation(report.x) is None
    assert time.monotonic() - began < 10


def test_every_run_on_extreme_numbers_but_the_first_can_be_ended(monkeypatch):
    """Costs 10^18 apart: the run with the dear ones capped, and those that have to agree, each HiGHS deaf."""
    ran = []

    def deaf(call, model, seen, settings, *, seconds):
        ran.append((float(seen.model.costs[0].max() / seen.model.costs[0].min()), seconds))
        raise EndedError

    monkeypatch.setattr(highs, "in_own_process", deaf)
    A = sp.csc_array([[1.0, 1.0]])
    model = Compiled(
        np.array([[1e-5, 1e13]]), np.zeros(1), np.ones(1), A, np.array([2.5]), np.array([np.inf]), np.zeros(2),
        np.array([10.0, 10.0]), np.ones(2, dtype=bool), ["cheap", "dear"], ["served"],
    )  # fmt: skip
    report = solve_compiled(model, Settings(time_limit=8.0))
    apart, seconds = ran[0]
    assert apart < 1e17 < ran[1][0]
    assert seconds <= 8.0 / 2 + highs.GRACE_S  # and as much is left for another that agrees
    assert report.status == "feasible"  # one run's bound is none
    assert model.violation(report.x) is None
    monkeypatch.undo()
    assert solve_compiled(model, Settings(time_limit=60.0)).x.tolist() == [3.0, 0.0]  # the first alone has [10, 0]


def test_a_solve_goes_on_where_others_ran_highs_on_more_threads():
    """HiGHS has one scheduler a process and refuses another number of threads; Pyomo's own interface starts all."""
    code = f"""
import highspy, optmodels
h = highspy.Highs()
h.setOptionValue("output_flag", False)
h.setOptionValue("threads", 2)
h.addVar(0.0, 5.0)
h.run()
result = optmodels.solve({str(HERE.parents[1] / "instances/reserved_capacity/textbook-two-regions.yaml")!r})
assert result.status == "optimal" and result.check.ok, result.log
"""
    subprocess.run([sys.executable, "-c", code], check=True)
