"""What was found is not lost because it cannot be written, and nothing written can do harm."""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys

import pandas as pd
import pytest
from conftest import INSTANCES

import optmodels
from optmodels.errors import NotWrittenError
from optmodels.io.write import csv_text, write_bytes

TEXTBOOK = INSTANCES / "textbook/hand-checkable.yaml"
FEW = 16  # KiB that a file may have


def limited():
    resource.setrlimit(resource.RLIMIT_FSIZE, (FEW * 1024, FEW * 1024))


def ran(folder, *arguments, **options):
    done = subprocess.run(
        [sys.executable, "-m", "optmodels", *map(str, arguments)], cwd=folder, capture_output=True, timeout=120,
        check=False, **options,
    )  # fmt: skip
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (("solve",), "optimal, proved"), (("compare", "--methods", "exact,greedy"), "greedy"),
        (("sweep", "--vary", "slo.tps=1,2", "--workers", "1"), "2 solves"), (("explain", "--next", "0"), "solves"),
    ],
)  # fmt: skip
def test_what_is_found_is_printed_though_the_disk_is_full(folder, verb, words):
    status, out, err = ran(folder, verb[0], TEXTBOOK, *verb[1:], "--out", "kept", preexec_fn=limited)
    assert status == 2 and words in out
    assert "File too large" in err and "Traceback" not in err


@pytest.mark.parametrize(
    "verb",
    [("solve",), ("compare",), ("explain",), ("sweep", "--vary", "slo.tps=1,2"), ("replay",)],
    ids=lambda v: v[0],
)
def test_a_folder_that_is_none_is_refused_before_anything_is_solved(cli, folder, monkeypatch, verb):
    monkeypatch.setattr("optmodels.solver.session.Session.run", None)
    (folder / "file").write_text("")
    (folder / "plan.json").write_text("{}")
    asked = "plan.json" if verb[0] == "replay" else TEXTBOOK
    done = cli(verb[0], asked, *verb[1:], "--out", "file/kept")
    assert done.status == 2 and "folder" in done.err


def test_the_result_is_in_the_error(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr("optmodels.api.solve.save", lambda *_: write_bytes(tmp_path / "a\0b", b""))
    with pytest.raises((NotWrittenError, ValueError)):
        optmodels.solve(tiny(), out=tmp_path)

    def full(*_):
        (tmp_path / "taken").write_text("")
        write_bytes(tmp_path / "taken", b"")

    monkeypatch.setattr("optmodels.api.solve.save", full)
    with pytest.raises(NotWrittenError) as error:
        optmodels.solve(tiny(), out=tmp_path)
    assert error.value.result.plan is not None


def test_texts_are_no_formulas_and_numbers_stay_numbers():
    frame = pd.DataFrame({
        "name": ["=cmd|' /C calc'!A0", "+1", "-2.5", "@SUM(A1)", "- of a list", "plain", None, "1-2"],
        "value": [-1.5, 2, 0, 0, 0, 0, 0, -7], "=head": 0, "mixed": [-1, "-1", "=1", 2.5, True, None, "a=b", "\tx"],
    })  # fmt: skip
    again = pd.read_csv(io.StringIO(csv_text(frame)), dtype=str, keep_default_na=False)
    assert again["name"].tolist() == [
        "'=cmd|' /C calc'!A0",
        "+1",
        "-2.5",
        "'@SUM(A1)",
        "'- of a list",
        "plain",
        "",
        "1-2",
    ]
    assert again["value"].tolist()[0] == "-1.5" and again["value"].tolist()[-1] == "-7.0"
    assert again["mixed"].tolist() == ["-1", "-1", "'=1", "2.5", "True", "", "a=b", "'\tx"]
    assert "'=head" in again.columns


# ------------------------------------------------------------------------------------------------- terminals


def test_a_reader_that_goes_away_is_no_fault(folder):
    for verb in (("solve", TEXTBOOK, "--json"), ("solve", TEXTBOOK), ("schema", "fleet")):
        command = " ".join(f"'{w}'" for w in (sys.executable, "-m", "optmodels", *verb))
        done = subprocess.run(
            ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"], cwd=folder, capture_output=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0 and done.stderr == b"", done


def test_files_are_written_though_the_reader_goes_away(folder):
    command = f"'{sys.executable}' -m optmodels solve '{TEXTBOOK}' --out unread"
    subprocess.run(["bash", "-c", f"{command} | head -c 1"], cwd=folder, capture_output=True, timeout=120, check=True)
    (plan,) = (folder / "unread").rglob("plan.json")
    assert json.loads(plan.read_text())["status"] == "optimal"
    assert list((folder / "unread").rglob("report.html"))


CLOSED, BOTH_CLOSED, FULL = (">&-", 0), (">&- 2>&-", 0), ("> /dev/full", 2)


@pytest.mark.parametrize(
    ("verb", "redirects"),
    [
        (("solve", TEXTBOOK, "--json"), (CLOSED, FULL)), (("solve", TEXTBOOK), (BOTH_CLOSED, FULL)),
        (("list", "catalog"), (CLOSED, FULL)), (("--help",), (BOTH_CLOSED, FULL)),
    ],
)  # fmt: skip
def test_closed_and_full_outputs(folder, verb, redirects):
    command = " ".join(f"'{w}'" for w in (sys.executable, "-m", "optmodels", *verb))
    for redirect, status in redirects:
        done = subprocess.run(["bash", "-c", f"{command} {redirect}"], cwd=folder, capture_output=True, timeout=120)
        assert done.returncode == status and b"Traceback" not in done.stderr, (redirect, done)
        assert (b"stdout: got 'No space left on device'; expected a device that can be written" in done.stderr) == (
            status == 2
        )


def test_terminals_that_know_ascii_only(folder):
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    status, out, err = ran(folder, "solve", TEXTBOOK, env=environment)
    assert status == 0 and err == "" and out.isascii()
    status, out, _ = ran(folder, "list", "methods", "--json", env=environment)
    plain = ran(folder, "list", "methods", "--json", env=environment | {"PYTHONIOENCODING": "utf-8"})[1]
    assert out.isascii() and not plain.isascii() and json.loads(out) == json.loads(plain)
