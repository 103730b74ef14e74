"""What someone who only has the wheel can do, in a process that cannot see the repository.

Slow: pip builds a wheel and installs it, and each verb is a process that imports all libraries.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "optmodels", "formulations", "instances")
LARGEST_WHEEL_BYTES = 5_000_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy: a build/ folder left in the repository would end up in it."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", out, source], check=True, timeout=300)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def run(installed, tmp_path):
    """``optmodels …`` of the wheel in an empty folder; dependencies are those of this interpreter."""

    def started(*arguments, module="optmodels"):
        environment = os.environ | {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    return started


def test_holds_every_file_of_the_packages_and_the_instances_without_their_generators(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
    packages = [p for top in ("optmodels", "formulations") for p in (ROOT / top).rglob("*") if p.is_file()]
    instances = [p for p in (ROOT / "instances").rglob("*") if p.suffix in (".yaml", ".json", ".csv")]
    expected = {p.relative_to(ROOT).as_posix() for p in packages if "__pycache__" not in p.parts}
    assert names == expected | {f"optmodels/{p.relative_to(ROOT).as_posix()}" for p in instances}
    assert wheel.stat().st_size < LARGEST_WHEEL_BYTES


def test_lists_every_instance_of_the_repository(run):
    done = run("list", "instances", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    files = {p.relative_to(ROOT / "instances").as_posix() for p in (ROOT / "instances").rglob("*.yaml")}
    assert {f"{r['formulation']}/{r['name']}.yaml" for r in rows} == files - {"library.yaml"}
    assert all(r["title"] for r in rows)


@pytest.mark.parametrize(
    ("formulation", "name", "files"),
    [
        ("cost_efficiency", "table_ix/batch-budget-2.0", {"batch-budget-2.0.yaml", "measured.csv"}),
        ("fleet", "melange-example", {"melange-example.yaml", "melange-example.json"}),
    ],
)
def test_a_copy_of_a_shipped_instance_is_solved(run, tmp_path, formulation, name, files):
    done = run("new", formulation, "--from", name)
    assert (done.returncode, done.stdout) == (0, f"{name.rpartition('/')[2]}.yaml\n"), done.stderr
    assert {p.name for p in tmp_path.iterdir()} == files
    for file in files:
        assert (tmp_path / file).read_bytes() == (ROOT / "instances" / formulation / name).with_name(file).read_bytes()
    done = run(done.stdout.strip(), "--json", module=f"formulations.{formulation}")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["check"]["ok"]
    assert document["formulation"] == formulation


def test_writes_a_new_formulation_that_solves(run, installed, tmp_path):
    assert run("new", "formulation", "my_counts").returncode == 0
    example = installed / "optmodels" / "scaffold" / "machine_counts"
    written = {p.relative_to(tmp_path / "my_counts").as_posix() for p in (tmp_path / "my_counts").rglob("*.*")}
    expected = {p.relative_to(example).as_posix() for p in example.rglob("*.*")}
    assert written == {name.replace("machine_counts", "my_counts").replace(".py.txt", ".py") for name in expected}
    command = [sys.executable, "-m", "my_counts", "my_counts/template.yaml", "--json"]
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("formulation", ["cost_efficiency", "fleet", "orchestration", "reserved_capacity"])
def test_template_and_schema_are_those_of_the_repository(run, tmp_path, formulation):
    done = run("schema", formulation)
    published = ROOT / "docs" / "schema" / f"{formulation}.schema.json"
    assert json.loads(done.stdout) == json.loads(published.read_text())
    assert run("new", formulation, "mine.yaml").returncode == 0
    assert yaml.safe_load((tmp_path / "mine.yaml").read_text())["formulation"] == formulation
