"""Sweeps: what is varied, what is refused before the first solve, and that nothing is ever lost."""

from __future__ import annotations

import json
import operator
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import optmodels
from optmodels import formulation
from optmodels.errors import InputError
from optmodels.study.design import axes, points
from optmodels.study.frontier import frontier, refuse_unknown
from optmodels.study.journal import Journal
from optmodels.study.pool import DIED, pool
from optmodels.study.rows import figures
from optmodels.study.sweep import SweepInterrupted

TABLE_IX = ROOT / "instances/cost_efficiency/table_ix/batch-budget-2.0.yaml"
TWO_REGIONS = ROOT / "instances/reserved_capacity/textbook-two-regions.yaml"
DAY = ROOT / "instances/fleet/day-and-night.yaml"
REGIONS = ROOT / "instances/fleet/gcp-three-regions.yaml"  # a fleet that takes half a second
DEMAND = "services[chat].slo.ttft_s"


def design(*vary, samples=None, seed=0, whole=()):
    found = axes(vary)
    return points(found, {a.key: a.key in whole for a in found}, samples, seed)


# ------------------------------------------------------------------------------------------------ what is varied


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x=1:10:4", [1, 4, 7, 10]),
        ("x=0:1:5", [0.0, 0.25, 0.5, 0.75, 1.0]),
        ("x=1:100:3:log", [1, 10, 100]),
        ("x=0.1:0.3:3", [0.1, 0.2, 0.3]),
        ("x=1,2.5,1e3", [1, 2.5, 1000.0]),
        ("x=aws,gcp", ["aws", "gcp"]),
        ("x=200 ms,null,true", ["200 ms", None, True]),
        ("x=[high_end],[high_end, ao]", [["high_end"], ["high_end", "ao"]]),
    ],
)
def test_values_of_a_field(text, expected):
    values = [p["x"] for p in design(text)]
    assert values == expected
    assert [type(v) for v in values] == [type(v) for v in expected]


def test_grids_and_lists_are_combined_and_random_fields_drawn_together():
    found = design("a=1,2", "b=x,y,z", "c~0:1", "d~10:20", samples=5)
    assert len(found) == 2 * 3 * 5
    assert {(p["a"], p["b"]) for p in found} == {(a, b) for a in (1, 2) for b in "xyz"}
    assert all(0 <= p["c"] <= 1 and 10 <= p["d"] <= 20 for p in found)
    assert found == design("a=1,2", "b=x,y,z", "c~0:1", "d~10:20", samples=5)
    assert found != design("a=1,2", "b=x,y,z", "c~0:1", "d~10:20", samples=5, seed=1)


def test_random_whole_numbers_reach_both_ends_equally():
    drawn = [p["n"] for p in design("n~1:4", samples=4000, whole=("n",))]
    assert set(drawn) == {1, 2, 3, 4}
    assert np.bincount(drawn)[1:].min() > 900


def test_a_random_number_on_a_log_scale_has_its_median_in_the_middle_of_the_logarithms():
    drawn = [p["x"] for p in design("x~0.01:100:log", samples=4001)]
    assert np.median(drawn) == pytest.approx(1.0, rel=0.5)


@pytest.mark.parametrize(
    "wrong", ["x", "x=", "=1", "x=1:2", "x=1:2:0", "x=1:2:1.5", "x~1:2:3", "x~2:1", "x=0:1:3:log", "x=[1", "x~inf:1"]
)
def test_what_cannot_be_read_is_refused(wrong):
    with pytest.raises(InputError, match="--vary"):
        axes([wrong])


def test_samples_go_with_random_fields_and_with_nothing_else():
    for vary, samples in ((["x~1:2"], None), (["x=1,2"], 3)):
        with pytest.raises(InputError, match="samples"):
            design(*vary, samples=samples)
    with pytest.raises(InputError, match="once"):
        axes(["x=1", "x=2"])
    with pytest.raises(InputError, match="solves"):
        design("x=1:2:100000", "y=1:2:100000")


# ------------------------------------------------------------------------------------- refused before any solve


def refused(source, *vary, **options):
    solved = []
    with pytest.raises(InputError) as caught:
        optmodels.sweep(source, vary, on_row=lambda *a: solved.append(a), **options)
    assert not solved
    return [str(m) for m in caught.value.mistakes]


def test_unknown_paths_are_named_all_at_once_with_near_ones():
    lines = refused(DAY, "workloads[chat].slo.tftf_s=1,2", "workloads[caht].model=a", "budget=3", "max_laod=0.5")
    assert len(lines) == 4
    assert "workloads[chat].slo.ttft_s" in lines[0]
    assert "one of chat" in lines[1]
    assert "budget_usd_per_hour" in lines[2]
    assert "did you mean max_load" in lines[3]


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ("max_load=high", "max_load"),
        ("max_load=0.5,1.5", "1.5"),
        ("workloads[chat].min_replicas=1,1.5", "whole number"),
        ("workloads[chat].slo=3", "section"),
        ("pool.catalog=aws,gpc", "gpc"),
        ("name.first=3", "single value"),
        ("workloads.slo=3", "in brackets"),
        ("schema=1,2", "the problem itself"),
        ("workloads[]=3", "path"),
    ],
)
def test_wrong_types_and_values_are_named(vary, said):
    lines = refused(DAY, vary)
    assert any(said in line for line in lines), lines


def test_other_arguments_are_checked_first_too(monkeypatch):
    monkeypatch.setattr("optmodels.study.pool.CONNECT_S", 1)
    assert "workers" in refused(DAY, "max_load=0.5", workers=0)[0]
    assert "time_limit" in refused(DAY, "max_load=0.5", time_limit=-1)[0]
    assert "exact" in refused(DAY, "max_load=0.5", method="exakt")[0]
    assert "--pareto" in refused(DAY, "max_load=0.5", pareto="max_load")[0]
    assert "scheduler" in refused(DAY, "max_load=0.5", scheduler="tcp://127.0.0.1:9")[0]


# ------------------------------------------------------------------------------------------------- what it finds


def test_rows_are_what_solve_says_at_each_point():
    found = optmodels.sweep(TABLE_IX, {"budget_usd_per_hour": [0.1, 0.5, 2.0], "slo.tps": [10, 200]})
    assert {r["status"] for r in found.rows} == {"optimal", "infeasible"}
    document = optmodels.load(TABLE_IX)
    for point, row in zip(found.points, found.rows, strict=True):
        changed = document.model_copy(update={
            "budget_usd_per_hour": point["budget_usd_per_hour"],
            "slo": document.slo.model_copy(update={"tps": float(point["slo.tps"])}),
        })  # fmt: skip
        changed._folder = TABLE_IX.parent
        alone = optmodels.solve(changed)
        assert (alone.status, alone.objective, alone.bound) == (row["status"], row["objective"], row["bound"])
        assert row["proved"]


@pytest.mark.parametrize("source", [ROOT / "instances/cost_efficiency/fig3/generative-real_time-b008.yaml", REGIONS])
def test_tables_kept_between_solves_change_nothing(source, monkeypatch):
    """Where nothing costly varies the tables are made once; the rows are those of fresh tables."""
    from dataclasses import replace

    from optmodels import formulation

    form = formulation.get("fleet" if source == REGIONS else "cost_efficiency")
    vary = {"budget_usd_per_hour": [3.0, 90.0]}
    if source != REGIONS:
        vary |= {"slo.ttft_s": [0.3, 0.5, 5.0]}
    made = []
    counted = replace(form, tables=lambda p: made.append(1) or form.tables(p))
    monkeypatch.setattr(formulation, "get", lambda name: counted)
    kept = optmodels.sweep(source, vary)
    assert len(made) == 1
    fresh = replace(counted, rebind=None)
    monkeypatch.setattr(formulation, "get", lambda name: fresh)
    again = optmodels.sweep(source, vary)
    assert len(made) == 1 + len(again.rows)
    pd.testing.assert_frame_equal(kept.frame, again.frame)
    assert len(kept.frame[["status", "objective"]].drop_duplicates()) > 1


def test_every_entry_and_catalogue_entries_can_be_varied():
    both = optmodels.sweep(TWO_REGIONS, {"machines[*].prices.reserved_3y": [1.0, 2.0]})
    assert both.frame["objective"].tolist() == [pytest.approx(8760), pytest.approx(2 * 8760)]
    price = "pool.machines[Sim-G].prices.spot"
    spot = optmodels.sweep(TABLE_IX, {price: [0.37, 0.74]}, method="enumerate")
    assert spot.frame["objective"][0] > spot.frame["objective"][1]


def test_a_limit_nobody_can_meet_is_a_row_unless_all_are():
    found = optmodels.sweep(TWO_REGIONS, {DEMAND: [0.05, 0.5]})
    assert found.exit_status == 0
    assert found.frame["status"].tolist() == ["no_solution_found", "optimal"]
    assert "TTFT" in found.frame["headline"][0]
    assert "TTFT" in refused(TWO_REGIONS, f"{DEMAND}=0.05,0.06")[0]


def test_values_that_clash_together_are_named():
    lines = refused(TABLE_IX, "strategies.alpha.min=0.2,0.8", "strategies.alpha.max=0.5,1.0")
    assert any("at most max" in line for line in lines)


def test_dates_of_an_instance_survive(tmp_path):
    source = ROOT / "instances/reserved_capacity/week-32-aws.yaml"
    found = optmodels.sweep(source, {"services[chat].demand.noise": [0.05]}, out=tmp_path / "s")
    assert found.exit_status == 0
    document = json.loads((tmp_path / "s/sweep.json").read_text(encoding="utf-8"))
    again = optmodels.sweep(document["problem"], {"services[chat].demand.noise": [0.05]})
    pd.testing.assert_frame_equal(again.frame, found.frame)


def test_infeasible_points_are_answers():
    found = optmodels.sweep(TABLE_IX, {"budget_usd_per_hour": [0.0, 0.01]})
    assert found.exit_status == 3
    assert found.frame["proved"].all()
    assert found.frame["objective"].isna().all()


# -------------------------------------------------------------------------------------------------- frontiers


@given(arrays.arrays(float, st.tuples(st.integers(0, 12), st.integers(2, 4)), elements=st.integers(0, 3).map(float)))
def test_the_frontier_is_what_nothing_dominates(values):
    def beaten(v):
        return any((w <= v).all() and (w < v).any() for w in values)

    assert frontier(values).tolist() == [not beaten(v) for v in values]


def test_a_row_without_a_figure_is_on_no_frontier():
    values = np.array([[1.0, np.nan], [2.0, 2.0], [np.nan, 0.0]])
    assert frontier(values).tolist() == [False, True, False]


def test_frontier_of_cost_against_slo():
    """A looser limit never costs more, so the frontier is the loosest limit of each cost."""
    key = "workloads[chat].slo.tpot_s"
    found = optmodels.sweep(DAY, {key: [0.04, 0.06, 0.1]}, pareto="total_usd_per_hour:min,slo.tpot_s:min")
    cost = found.frame["plan.total_usd_per_hour"].tolist()
    assert cost == sorted(cost, reverse=True)
    assert len(set(cost)) > 1
    for i, on in enumerate(found.frame["frontier"]):
        assert on == (i == 0 or cost[i] < cost[i - 1])
    assert found.frontier[key].is_monotonic_decreasing


def test_unknown_columns_of_a_frontier_are_refused_before_anything_is_solved(monkeypatch):
    monkeypatch.setattr("optmodels.study.sweep.solve_point", None)
    aims = "usd_per_huor:min,slo.tps:max,plan.headroom.:min,plan.prediction.first:min"
    with pytest.raises(InputError) as caught:
        optmodels.sweep(TABLE_IX, {"slo.tps": [5, 10, 20]}, pareto=aims)
    wrong = {m.value: m for m in caught.value.mistakes}
    assert list(wrong) == ["usd_per_huor", "plan.headroom.", "plan.prediction.first"]
    assert "usd_per_hour" in wrong["usd_per_huor"].hint
    listed = wrong["usd_per_huor"].expected.removeprefix("one of ").split(", ")
    assert listed[:3] == ["slo.tps", "objective", "bound"] and "usd_per_hour" in listed


@pytest.mark.parametrize("name", formulation.names())
def test_every_number_of_a_plan_is_a_column_by_its_name_and_its_ending(name):
    file = {"cost_efficiency": TABLE_IX, "fleet": DAY, "reserved_capacity": TWO_REGIONS}.get(
        name, ROOT / "instances/orchestration/textbook-two-servers.yaml")  # fmt: skip
    plan = optmodels.solve(file).plan
    numbers = [k for k, v in figures(plan, "plan").items() if isinstance(v, int | float)]
    schema = formulation.get(name).plan.model_json_schema()
    assert numbers
    for column in numbers:
        refuse_unknown(f"{column}:min,objective:min", (), schema)
        refuse_unknown(f"{column.removeprefix('plan.')}:min,objective:min", (), schema)


# ------------------------------------------------------------------------------------------- journal and resuming


def test_a_line_cut_off_anywhere_is_recognised_and_replaced(tmp_path):
    file = tmp_path / "journal.jsonl"
    journal = Journal(file)
    journal.add([("a", {"v": 1}), ("b", {"v": "ü\n"})])
    journal.close()
    whole = file.read_bytes()
    last = whole[: whole.rstrip(b"\n").rindex(b"\n") + 1]
    for cut in range(len(last) + 1, len(whole)):
        file.write_bytes(whole[:cut])
        again = Journal(file)
        assert again.rows == {"a": {"v": 1}}
        assert again.damaged == 1
        again.add([("b", {"v": "ü\n"})])
        again.close()
        assert file.read_bytes() == whole
    file.write_bytes(b"\0\0\0\n" + whole)
    healed = Journal(file)
    assert (healed.rows, healed.damaged) == ({"a": {"v": 1}, "b": {"v": "ü\n"}}, 1)
    healed.close()


def test_one_process_writes_at_a_time(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    with pytest.raises(InputError, match="no other sweep"):
        Journal(tmp_path / "journal.jsonl")
    journal.close()
    Journal(tmp_path / "journal.jsonl").close()


def test_windows_locks_a_byte_that_no_journal_reaches(tmp_path, monkeypatch):
    """What is locked there cannot be read: the place is far beyond the end; a second one may not have it."""
    held = set()

    def locking(handle, mode, count):
        place = os.lseek(handle, 0, os.SEEK_CUR)
        if place in held:
            raise PermissionError(13, "denied")
        held.add(place)

    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
    journal = Journal(tmp_path / "journal.jsonl")
    journal.add([("a", {"v": 1})])
    with pytest.raises(InputError, match="in use"):
        Journal(tmp_path / "journal.jsonl")
    journal.close()
    assert held == {2**40} and (tmp_path / "journal.jsonl").stat().st_size < 100
    held.clear()
    assert Journal(tmp_path / "journal.jsonl").rows == {"a": {"v": 1}}


def test_resume_takes_what_is_the_same_and_nothing_else(tmp_path):
    out = tmp_path / "s"
    first = optmodels.sweep(TABLE_IX, {"slo.tps": [5, 10]}, out=out)
    assert first.reused == 0
    with pytest.raises(InputError, match="--resume"):
        optmodels.sweep(TABLE_IX, {"slo.tps": [5, 10]}, out=out)
    more = optmodels.sweep(TABLE_IX, {"slo.tps": [5, 10, 20]}, out=out, resume=True)
    assert more.reused == 2
    other_method = optmodels.sweep(TABLE_IX, {"slo.tps": [5]}, method="enumerate", out=out, resume=True)
    assert other_method.reused == 0
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / TABLE_IX.name).write_text(TABLE_IX.read_text(encoding="utf-8"), encoding="utf-8")
    table = (TABLE_IX.parent / "measured.csv").read_text(encoding="utf-8")
    (copy / "measured.csv").write_text(table, encoding="utf-8")
    same = optmodels.sweep(copy / TABLE_IX.name, {"slo.tps": [5, 10]}, out=out, resume=True)
    assert same.reused == 2
    (copy / "measured.csv").write_text(table + "# a remark\n", encoding="utf-8")
    changed = optmodels.sweep(copy / TABLE_IX.name, {"slo.tps": [5, 10]}, out=out, resume=True)
    assert changed.reused == 0


def command(*arguments):
    return [sys.executable, "-m", "optmodels", "sweep", *map(str, arguments)]


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(("workers", "kills"), [(1, 3), (2, 1)])
def test_killed_at_random_moments_the_table_is_the_undisturbed_one(tmp_path, workers, kills):
    chance = random.Random(workers)
    vary = ["--vary", f"{DEMAND}=0.08:0.6:8", "--vary", "machines[box].prices.on_demand=2,3,4", "--seed", "7"]
    undisturbed = optmodels.sweep(
        TWO_REGIONS, [f"{DEMAND}=0.08:0.6:8", "machines[box].prices.on_demand=2,3,4"], seed=7, out=tmp_path / "calm",
        pareto=f"objective:min,{DEMAND}:min",
    )  # fmt: skip
    out = tmp_path / "hurt"
    base = [TWO_REGIONS, *vary, "--workers", workers, "--pareto", f"objective:min,{DEMAND}:min", "--out", out, "--json"]
    for kill in range(kills):
        process = subprocess.Popen(
            command(*base, *(["--resume"] if kill else [])), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        at_least = lines_in(out / "journal.jsonl") + chance.randint(1, 18 // kills)
        while process.poll() is None and lines_in(out / "journal.jsonl") < at_least:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it finished before it was killed: nothing was tested"
        with (out / "journal.jsonl").open("ab") as journal:
            journal.write(b'{"id": "torn off in the mid'[: chance.randint(0, 27)])
    before = lines_in(out / "journal.jsonl")
    done = subprocess.run(command(*base, "--resume"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["reused"] == before >= kills
    for file in ("sweep.csv", "frontier.csv", "sweep.parquet"):
        assert (out / file).read_bytes() == (tmp_path / "calm" / file).read_bytes()
    assert len(undisturbed.rows) == lines_in(out / "journal.jsonl") == 24


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_workers_end_with_a_killed_parent(tmp_path):
    process = subprocess.Popen(
        command(REGIONS, "--vary", "workloads[chat].slo.ttft_s=0.5:3:200", "--workers", 2, "--out", tmp_path / "s"),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while lines_in(tmp_path / "s/journal.jsonl") < 1:
        assert process.poll() is None
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) >= 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{c}").exists() for c in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [c for c in children if Path(f"/proc/{c}").exists()]


@pytest.mark.parametrize("workers", [1, 2])
def test_control_c_leaves_a_folder_to_go_on_with(tmp_path, workers):
    out = tmp_path / "s"
    vary = ["--vary", "workloads[chat].slo.ttft_s=1.3:2:60", "--workers", workers, "--out", out]
    process = subprocess.Popen(
        command(REGIONS, *vary), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while lines_in(out / "journal.jsonl") < 2:
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert "--resume" in err
    assert "Traceback" not in err
    assert "leaked" not in err
    assert not (out / "sweep.csv").exists()
    rows = [json.loads(line)["row"] for line in (out / "journal.jsonl").read_text().splitlines()]
    assert 2 <= len(rows) < 60
    assert all(r["limit"] is None for r in rows)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_control_c_while_workers_begin_is_left_to_the_parent(tmp_path):
    vary = ["--vary", "workloads[chat].slo.ttft_s=0.5:3:60", "--workers", 3, "--out", tmp_path / "s"]
    process = subprocess.Popen(
        command(REGIONS, *vary), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not children.read_text().split():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert "Traceback" not in err
    assert "leaked" not in err


def test_control_c_that_another_thread_hears_waits_until_a_worker_is_launched():
    code = """
import os, signal, threading, time
from optmodels.study.pool import _sheltered
threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
try:
    with _sheltered():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        print("launched")
except KeyboardInterrupt:
    print("heard")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["launched", "heard"]


def test_a_solve_imports_no_pyomo():
    """Its import makes a lock for processes, which a worker that is stopped at once would leave behind."""
    code = f"import sys, optmodels; optmodels.solve({str(REGIONS)!r}); sys.exit('pyomo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_interrupt_from_the_callback_stops_and_keeps(tmp_path):
    def stop(done, total, row):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(SweepInterrupted) as caught:
        optmodels.sweep(TABLE_IX, {"slo.tps": [5, 10, 20, 30]}, out=tmp_path / "s", on_row=stop)
    assert (caught.value.done, caught.value.total) == (2, 4)
    assert optmodels.sweep(TABLE_IX, {"slo.tps": [5, 10, 20, 30]}, out=tmp_path / "s", resume=True).reused == 2


# ------------------------------------------------------------------------------------------------ command line


def test_command_line_table_files_and_json(cli, folder):
    run = cli("sweep", TABLE_IX, "--vary", "budget_usd_per_hour=0.1:2:4", "--vary", "slo.tps=10,100", "--workers", 1,
              "--pareto", "usd_per_hour:min,slo.tps:max")  # fmt: skip
    assert run.status == 0, run.err
    assert "Frontier" in run.out
    out = folder / "results/batch-budget-2.0-sweep"
    table = pd.read_csv(out / "sweep.csv")
    assert len(table) == 8
    assert set(table["status"]) == {"optimal", "infeasible"}
    columns = pd.read_parquet(out / "sweep.parquet")
    assert list(columns) == list(table)
    assert table["status"].tolist() == columns["status"].tolist()
    assert table["objective"].tolist() == pytest.approx(columns["objective"].tolist(), nan_ok=True)
    again = cli("sweep", TABLE_IX, "--vary", "budget_usd_per_hour=0.1:2:4", "--workers", 1, "--json", "--resume")
    document = json.loads(again.out)
    assert document["folder"] == str(out.relative_to(folder))
    assert len(document["rows"]) == 4


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", "../../x", "[bold]", "a" * 10_000, "🎈\x1b[31m"])
def test_hostile_values_do_no_harm(cli, write, tiny, folder, hostile):
    name = write(tiny())
    run = cli("sweep", name, "--vary", f"title={hostile.replace(',', ' ')}", "--workers", 1)
    run.assert_clean()
    assert "\x1b" not in run.out + run.err
    assert {p.name for p in folder.iterdir()} <= {"instance.yaml", "results"}


def test_an_item_that_kills_its_worker_costs_one_row():
    """SIGCHLD does nothing to a process, SIGKILL ends it; the others under way then are done again."""
    with pool(2, None) as workers:
        items = {str(i): signal.SIGKILL if i == 5 else signal.SIGCHLD for i in range(12)}
        found = dict(entry for batch in workers.run(operator.call, signal.raise_signal, items, str) for entry in batch)
    assert found.pop("5") == DIED
    assert found == dict.fromkeys(items.keys() - {"5"})


def test_a_pool_of_a_list_that_names_its_machines_is_reached_where_it_stands_too():
    mine = {
        "machine": "mine",
        "gpu": "l4",
        "gpu_count": 1,
        "vram_gib": 24,
        "region": "here",
        "prices": {"on_demand": 9},
    }
    fleet = {
        "formulation": "fleet", "schema": 1, "name": "two-pools", "serving": "static",
        "markets": {"main": ["on_demand"]},
        "workloads": [{"name": "chat", "model": "llama-3.1-8b", "slo": {"ttft_s": 5.0},
                       "buckets": [{"input_tokens": 512, "output_tokens": 128, "requests_per_s": 2.0}]}],
        "pool": [{"catalog": "aws", "include": ["g6.xlarge"]}, {"machines": [mine]}],
    }  # fmt: skip
    for key in ("pool[1].machines[mine].prices.on_demand", "pool.machines[mine].prices.on_demand"):
        cheap, dear = (row["objective"] for row in optmodels.sweep(fleet, {key: [0.01, 50.0]}).rows)
        assert cheap < dear


def test_prices_in_a_list_of_pools_are_those_of_its_machines():
    bucket = {"input_tokens": 256, "output_tokens": 128, "requests_per_s": 1.0}
    fleet = {
        "formulation": "fleet", "schema": 1, "name": "two-pools", "serving": "static",
        "markets": {"main": ["on_demand"]},
        "workloads": [{"name": "chat", "model": "llama-3.1-8b", "buckets": [bucket], "slo": {"ttft_s": 2.0}}],
        "pool": [{"catalog": "aws", "include": ["g6.xlarge"]}, {"catalog": "gcp", "include": ["g2-standard-4"]}],
        "strategies": {"families": ["high_end"], "batches": [4]},
    }  # fmt: skip
    found = optmodels.sweep(fleet, {"pool.machines[g2-standard-4].prices.on_demand": [0.01, 50.0]}).rows
    assert ["g2-standard-4" in r["headline"] for r in found] == [True, False]
    with pytest.raises(InputError, match=r"did you mean pool\.machines\[g6\.xlarge\]\.prices\.on_demand"):
        optmodels.sweep(fleet, {"pool[0].machines[g6.xlarge].prices.on_demand": [0.5]})
