"""What is around a command: names that are not UTF-8, screens and disks that are full, pipes, foreign journals."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from optmodels.errors import InputError
from optmodels.io import pipes, write
from optmodels.study.sweep import run_sweep
from optmodels.traces.readers import read_trace

COST = Path(__file__).parent / "operation" / "cost-static.yaml"
VIDUR = Path(__file__).parent / "traces" / "vidur.csv"
MOONCAKE = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
pytestmark = pytest.mark.skipif(os.name == "nt", reason="pipes and paths of POSIX")


def optmodels(*arguments, **options):
    return subprocess.run([sys.executable, "-m", "optmodels", *map(os.fsencode, arguments)], capture_output=True,
                          check=False, timeout=300, **options)  # fmt: skip


def test_paths_that_are_not_utf_8_lose_nothing(tmp_path):
    strange = tmp_path / os.fsdecode(b"b\377")
    strange.mkdir()
    shutil.copyfile(COST, strange / "i.yaml")
    done = optmodels("solve", strange / "i.yaml", "--out", strange / "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (strange / "out" / "i-exact" / "plan.json").is_file()
    assert optmodels("check", strange / "out" / "i-exact").returncode == 0
    assert write.path_text(strange).endswith(r"b\xff")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_files_are_written_where_the_screen_cannot_be(tmp_path):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "optmodels", "solve", COST, "--out", "r"],
            stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, check=False,
        )  # fmt: skip
    assert done.returncode == 2 and b"No space left" in done.stderr and b"Traceback" not in done.stderr
    assert (tmp_path / "r" / "cost-static-exact" / "plan.json").is_file()


def test_a_screen_of_ascii_is_written_to(tmp_path):
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = optmodels("solve", COST, "--out", "r", cwd=tmp_path, env=ascii_only)
    assert done.returncode == 0 and b"Independent check: passed" in done.stdout, done.stderr


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_to_be_full_and_leaves_nothing_half_written(number, tmp_path, monkeypatch):
    def full(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(write.os, "fsync", full)
    with pytest.raises(InputError, match="free space on the disk") as error:
        write.write_text(tmp_path / "plan.json", "{}")
    assert os.strerror(number) in str(error.value) and not list(tmp_path.iterdir())


def written(path, text, pause=0.0):
    def later():
        threading.Event().wait(pause)
        with path.open("w") as to:
            to.write(text)

    thread = threading.Thread(target=later, daemon=True)
    thread.start()
    return thread


def test_pipes_are_read_once_by_all_that_read(tmp_path, monkeypatch):
    fifo = tmp_path / "f.csv"
    os.mkfifo(fifo)
    writer = written(fifo, VIDUR.read_text(), pause=0.2)
    assert len(read_trace(fifo)) == 6
    writer.join()
    assert len(read_trace(fifo)) == 6  # what the pipe held the first time
    alone = tmp_path / "alone.csv"
    os.mkfifo(alone)
    monkeypatch.setattr(pipes, "PATIENCE_S", 0.1)
    with pytest.raises(InputError, match=r"alone\.csv: .*got 'nothing within 0\.1 s'"):
        read_trace(alone)
    with pytest.raises(InputError, match="a device"):
        read_trace(Path("/dev/null"))


def test_mistakes_in_a_pipe_name_the_pipe(tmp_path):
    fifo = tmp_path / "f.csv"
    os.mkfifo(fifo)
    written(fifo, "arrival_s,prompt_tokens,output_tokens\n0,1,0\n")
    with pytest.raises(InputError, match="output_tokens: got 0") as error:
        read_trace(fifo)
    assert error.value.mistakes[0].file == str(fifo) and error.value.mistakes[0].line == 2


@pytest.mark.parametrize("arguments", [
    ("prefix-hits", "/dev/stdin"), ("simulate", "--model", "llama-3.1-8b", "--gpu", "h100", "--trace", "/dev/stdin"),
])  # fmt: skip
def test_verbs_read_standard_input(arguments):
    text = (MOONCAKE + MOONCAKE.replace(": 0", ": 900")).encode()
    done = optmodels(*arguments, "--json", input=text)
    assert done.returncode == 0, done.stderr


def test_plan_reads_standard_input_and_every_option_of_traces(tmp_path):
    text = b"when;size;answer;ok\n0;900;5;1\n1000;800;6;1\n2500;700;0;1\n9000;700;7;0\n"
    options = ("--column", "arrival_s=when:ms", "--column", "input_tokens=size", "--column", "output_tokens=answer",
               "--where", "ok=1", "--skip-bad")  # fmt: skip
    done = optmodels("plan", "--model", "llama-3.1-8b", "--gpu", "h100", "--trace", "/dev/stdin", "--ttft", "5",
                     *options, input=text, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stdout.decode()
    assert "1 of 4 rows left out by --where" in said and "1 of 3 rows skipped: line 4: answer 0" in said
    refused = optmodels("plan", "--model", "llama-3.1-8b", "--trace", "/dev/stdin", "--ttft", "5", input=text)
    assert refused.returncode == 2 and b"when, size, answer, ok" in refused.stderr and b"--column" in refused.stderr
    assert refused.stderr.count(b"\n") <= 2


@pytest.mark.parametrize("foreign", ["null", "{}", "[]", '{"status": "optimal"}'])
def test_lines_of_a_journal_that_hold_no_result_are_skipped_and_solved_again(foreign, tmp_path):
    def sweep(resume):
        return run_sweep(
            COST, ["budget_usd_per_hour=10,20"], method="exact", samples=None, seed=0, time_limit=None, gap=0.0,
            workers=1, scheduler=None, folder=lambda: tmp_path, resume=resume, pareto=None, on_row=None,
        )  # fmt: skip

    first = sweep(False)
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_text().splitlines()
    identity = lines[0].split('"id": ')[1].split(",")[0]
    journal.write_text("\n".join([f'{{"id": {identity}, "row": {foreign}}}', *lines[1:]]) + "\n")
    for made in tmp_path.iterdir():
        if made != journal:
            made.unlink()
    again = sweep(True)
    assert again.damaged == 1 and again.reused == 1
    assert [r["objective"] for r in again.rows] == [r["objective"] for r in first.rows]
