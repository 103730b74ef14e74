"""What every test may use: a tiny instance, and the command line in this process or in its own."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from zlib import crc32

import pytest
import yaml
from commands import Run
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
INSTANCES = ROOT / "instances" / "cost_efficiency"
sys.path.insert(0, str(ROOT / "tests"))  # so that tests can import `cases`

os.environ.pop("COLUMNS", None)  # 80 where tests run in several processes: texts would wrap
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: its children would ignore Ctrl-C too
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "suite",
    deadline=None,
    max_examples=25,
    derandomize=True,  # repeatable; to look for more: --hypothesis-profile=hunt --hypothesis-seed=N
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
settings.register_profile("hunt", settings.get_profile("suite"), derandomize=False)
settings.load_profile("suite")


def pytest_addoption(parser):
    parser.addoption(
        "--every", type=int, default=1, metavar="N", help="of the tests marked slow only every Nth, by name"
    )


LONGEST = (  # files by the CPU time of their tests, the longest first
    "study/test_sweep.py", "test_documents.py", "io/test_unwritten.py", "test_schemas.py",
    "adversary/test_adversary.py", "end_to_end/test_plan.py", "study/test_explain.py", "end_to_end/test_cli.py",
    "orchestration/test_continuous.py", "reserved_capacity/test_lengths.py", "reporting/test_page.py",
    "cost_efficiency/test_ranks.py",
    "reported/test_reported_operation.py", "test_cancel.py", "cost_efficiency/test_continuous.py",
    "fleet/test_on_trace.py", "study/test_sweep_pairs.py", "robustness/test_robustness.py", "fleet/test_current.py",
    "reserved_capacity/test_other_demand.py", "end_to_end/test_replay.py", "study/test_compare.py",
)  # fmt: skip


def pytest_collection_modifyitems(config, items):
    """Long files first, then those with most slow tests: of processes that take whole files none begins one last."""
    every = config.getoption("--every")
    left_out = [bool(x.get_closest_marker("slow") and crc32(x.nodeid.encode()) % every) for x in items]
    if any(left_out):
        config.hook.pytest_deselected(items=[x for x, out in zip(items, left_out, strict=True) if out])
        items[:] = [x for x, out in zip(items, left_out, strict=True) if not out]
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    place = {ROOT / "tests" / name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (place.get(item.path, len(place)), -slow[item.path]))


def tiny_problem(**changes):
    """A valid instance with three machines of its own; `changes` replace top-level keys (None removes one)."""
    problem = {
        "formulation": "cost_efficiency",
        "schema": 1,
        "name": "tiny",
        "serving": "static",
        "markets": {"main": ["on_demand", "spot"], "ao": ["on_demand", "spot"]},
        "model": "opt-6.7b",
        "workload": {"batch": 8, "input_tokens": 256, "output_tokens": 32},
        "slo": {"kind": "batch", "tps": 100.0},
        "pool": {
            "machines": [
                {
                    "machine": "big",
                    "gpu": "l40s",
                    "vram_gib": 48,
                    "ram_gib": 64,
                    "disk_gbps": 5,
                    "net_gbps": 20,
                    "prices": {"on_demand": 2.2, "spot": 0.9},
                },
                {
                    "machine": "mid",
                    "gpu": "a10g",
                    "vram_gib": 24,
                    "ram_gib": 32,
                    "disk_gbps": 4,
                    "net_gbps": 10,
                    "prices": {"on_demand": 1.0, "spot": 0.4},
                },
                {
                    "machine": "small",
                    "gpu": "t4",
                    "vram_gib": 16,
                    "ram_gib": 16,
                    "disk_gbps": 3.5,
                    "net_gbps": 5,
                    "prices": {"on_demand": 0.5},
                },
            ]
        },
    }
    problem |= changes
    return copy.deepcopy({k: v for k, v in problem.items() if v is not None})


def run_here(*arguments) -> Run:
    """The command line in this process: the same code path as the command but for starting Python."""
    from optmodels.cli import run

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run([str(a) for a in arguments])
    return Run(status, out.getvalue(), err.getvalue())


def run_command(*arguments, cwd, module="optmodels", **environment) -> Run:
    """The command line as users run it."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        env=os.environ | {"TERMINAL_WIDTH": "160"} | environment, cwd=cwd, capture_output=True, timeout=120,
        check=False,
    )  # fmt: skip
    return Run(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(folder):
    """Run the command line in `folder`."""
    return run_here


@pytest.fixture
def command(folder):
    """Run the command line in `folder` in a process of its own."""

    def run(*arguments, **options):
        return run_command(*arguments, cwd=folder, **options)

    return run


@pytest.fixture
def tiny():
    """The builder of small instances."""
    return tiny_problem


@pytest.fixture
def write(folder):
    """Write an instance (a mapping or text) to a file in `folder`; returns its name."""

    def write(data, name="instance.yaml"):
        text = data if isinstance(data, str) else yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return name

    return write
