"""What Numba kept of an earlier version is dropped, so that an upgrade in place does not fail on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import optmodels
from optmodels.simulation.stale import drop_stale


@pytest.mark.parametrize(
    ("sources", "kept", "left"),
    [
        ({"a": 10, "b": 20}, {"a": 30, "b": 30}, {"a", "b"}),
        ({"a": 10, "b": 40}, {"a": 30, "b": 50}, {"b"}),  # `b` was called by `a`
        ({"a": 10}, {"a": 30, "b": 30}, {"a"}),  # no source any more
        ({}, {}, set()),
    ],
)  # fmt: skip
def test_code_older_than_a_source_or_without_one_goes(
    tmp_path: Path, sources: dict[str, int], kept: dict[str, int], left: set[str]
) -> None:
    (tmp_path / "__pycache__").mkdir()
    for name, at in sources.items():
        (tmp_path / f"{name}.py").touch()
        os.utime(tmp_path / f"{name}.py", (at, at))
    for name, at in kept.items():
        file = tmp_path / "__pycache__" / f"{name}.f-1.py311.nbi"
        file.touch()
        os.utime(file, (at, at))
    assert drop_stale(tmp_path) == len(kept) - len(left)
    assert {file.name[0] for file in (tmp_path / "__pycache__").iterdir()} == left


def test_an_index_that_cannot_be_loaded_does_no_harm(tmp_path: Path) -> None:
    """As an upgrade leaves it: older than the sources, with a record that nobody has."""
    package = tmp_path / "optmodels"
    ignored = shutil.ignore_patterns("*.nbi", "*.nbc")
    shutil.copytree(Path(optmodels.__file__).parent, package, ignore=ignored)
    code = """
from pathlib import Path
import optmodels.autoscaling, optmodels.simulation
print(optmodels.simulation.__file__)
"""
    cache = package / "simulation" / "__pycache__"
    cache.mkdir(exist_ok=True)
    file = cache / "engine._run-1.py311.nbi"
    file.write_bytes(b"\x80\x04cnobody\nNobody\n.")
    os.utime(file, (1, 1))
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
                         env=os.environ | {"PYTHONPATH": str(tmp_path)})  # fmt: skip
    assert ran.stdout.strip() == str(package / "simulation" / "__init__.py")
    assert not file.exists()
