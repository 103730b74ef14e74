"""``benchmarks/answers.py compare``: what counts as the same answer."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("answers", ROOT / "benchmarks" / "answers.py")
answers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(answers)

PROVED = {"status": "optimal", "sense": "min", "objective": "10.0", "bound": "9.999999", "check": "True"}
STOPPED = {"status": "feasible", "limit": "time", "sense": "min", "objective": "10.0", "bound": "8.0", "check": "True"}
INFEASIBLE = {"status": "infeasible", "sense": "min"}
NOTHING = {"status": "no_solution_found", "limit": "time", "sense": "min", "bound": "8.0"}


def row(*changes):
    found = dict.fromkeys(answers.COLUMNS, "") | {"instance": "a.yaml", "method": "exact"}
    found |= {"time_limit_s": "60", "seconds": "9"}
    for change in changes:
        found |= change
    return found


def differ(old, new):
    found = answers.differences(old, new)
    assert bool(found) == bool(answers.differences(new, old))
    return bool(found)


@pytest.mark.parametrize("change", [
    {"objective": "10.00000002"}, {"bound": "9.99999898"}, {"bound": ""}, {"objective": "-10.0"}, {"check": "False"},
    {"status": "feasible"}, {"status": "feasible", "limit": "gap"}, INFEASIBLE | {"objective": "", "bound": ""},
])  # fmt: skip
def test_a_changed_answer_differs(change):
    assert differ(row(PROVED), row(PROVED, change))


@pytest.mark.parametrize("change", [{}, {"objective": "10.000000001"}, {"variables": "7", "gap": "1", "seconds": "8"}])
def test_the_same_answer_to_nine_digits_agrees(change):
    assert not differ(row(PROVED), row(PROVED, change))


@pytest.mark.parametrize(("other", "expected"), [
    (PROVED, False),
    (STOPPED | {"objective": "12.0", "bound": "9.0"}, False),
    (STOPPED | {"objective": "12.0", "bound": "10.0"}, False),
    (STOPPED | {"objective": "12.0", "bound": "10.1"}, True),
    (STOPPED | {"objective": "7.9", "bound": ""}, True),
    (STOPPED | {"objective": "12.0", "bound": ""}, False),
    (PROVED | {"seconds": "31"}, False),
    (NOTHING, False),
    (NOTHING | {"bound": "10.1"}, True),
    (INFEASIBLE, True),
    (STOPPED | {"check": "False"}, True),
    ({"status": "refused"}, True),
])  # fmt: skip
def test_stopped_by_time_the_intervals_must_overlap(other, expected):
    assert differ(row(STOPPED), row(other)) == expected


def test_of_a_maximum_the_bound_lies_above():
    stopped = row(STOPPED, {"sense": "max", "objective": "8.0", "bound": "10.0"})
    assert not differ(stopped, row(NOTHING, {"sense": "max", "bound": "8.0"}))
    assert differ(stopped, row(NOTHING, {"sense": "max", "bound": "7.9"}))
    assert differ(stopped, row(INFEASIBLE, {"sense": "max"}))


def test_over_half_the_limit_counts_as_stopped_by_time():
    other = row(PROVED, {"objective": "10.1"})
    assert differ(row(PROVED), other)
    assert differ(row(PROVED, {"seconds": "30"}), other)
    assert not differ(row(PROVED, {"seconds": "31", "objective": "10.1"}), row(PROVED))


def test_infeasible_agrees_with_nothing_found_in_time():
    assert not differ(row(NOTHING), row(INFEASIBLE))


def write(path, *rows):
    lines = [",".join(answers.COLUMNS)] + [",".join(r.values()) for r in rows]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_the_command_counts_rows_and_exits_1_where_any_differs(tmp_path, capsys):
    old = write(tmp_path / "old.csv", row(PROVED), row(STOPPED, {"method": "full"}))
    new = write(tmp_path / "new.csv", row(PROVED, {"objective": "11.0"}), row(PROVED, {"method": "greedy"}))
    assert answers.main(["compare", old, old]) == 0
    assert "2 runs in both, 1 of them limited by time; 0 rows differ" in capsys.readouterr().out
    assert answers.main(["compare", old, new]) == 1
    out = capsys.readouterr().out
    assert "objective 10.0, now 11.0" in out
    assert "1 runs in both, 0 of them limited by time; 3 rows differ" in out


def test_a_row_twice_or_another_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="exact twice"):
        answers.read(Path(write(tmp_path / "twice.csv", row(PROVED), row(PROVED))))
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="columns"):
        answers.read(tmp_path / "other.csv")
