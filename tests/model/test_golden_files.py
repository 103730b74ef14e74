"""Golden files of a formulation: written on request, compared, complete."""

import pytest
from model.golden_files import REST, check_rest, golden_rows, names
from model.mutants import survivors
from model.transport import FAMILIES, Transport, budget, capacity, half_returns

CASES = {"plain": Transport(), "cycle": Transport(cyclic=True), "budget": Transport(budget=20.0)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OPTMODELS_REGENERATE", "1")
    for family in FAMILIES:
        golden_rows(tmp_path / "golden", family, CASES)
    check_rest(tmp_path / "golden", CASES)
    monkeypatch.delenv("OPTMODELS_REGENERATE")
    return tmp_path / "golden"


def test_every_family_has_a_file_and_every_mutant_is_noticed_by_it(folder):
    assert names(folder) == {f.__name__ for f in FAMILIES} | {REST}
    check_rest(folder, CASES)
    for family in FAMILIES:
        assert survivors(family, golden_rows(folder, family, CASES)) == []


@pytest.mark.parametrize(("old", "new"), [("0.5 x[0,0,0]", "0.6 x[0,0,0]"), ("<= 8.5", "<= 8"), ("# cycle", "# other")])
def test_a_golden_file_that_says_otherwise_fails(folder, old, new):
    file = folder / "half_returns.txt"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(AssertionError, match=r"half_returns\.txt"):
        golden_rows(folder, half_returns, CASES)


@pytest.mark.parametrize(("old", "new"), [("integer in", "in"), ("[0, 3]", "[0, 4]"), ("minimise", "maximise"),
                                          ("stock[2,2] in [0, 0]\n", "")])  # fmt: skip
def test_other_bounds_and_objectives_fail(folder, old, new):
    file = folder / f"{REST}.txt"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(AssertionError, match=REST):
        check_rest(folder, CASES)


def test_a_missing_file_fails(folder):
    (folder / "capacity.txt").unlink()
    with pytest.raises(AssertionError, match=r"there is no capacity\.txt"):
        golden_rows(folder, capacity, CASES)


def test_a_family_without_rows_in_any_case_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("OPTMODELS_REGENERATE", "1")
    with pytest.raises(AssertionError, match="no case has a row of budget"):
        golden_rows(tmp_path, budget, {"plain": Transport()})
