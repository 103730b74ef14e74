"""Golden files of a formulation: for each family one file with its rows in every case, and one of all the rest.

A formulation's test is a few lines::

    CASES = {"reserve": FleetModel(…), "day_and_night": FleetModel(…)}

    @pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
    def test_family(family):
        assert survivors(family, golden_rows(GOLDEN, family, CASES), EQUIVALENT.get(family.__name__)) == []

    def test_variables_and_objectives():
        check_rest(GOLDEN, CASES)

    def test_golden_files_are_those_of_the_families():
        assert names(GOLDEN) == {f.__name__ for f in FAMILIES} | {REST}
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from optmodels.model import Family, Model
from optmodels.model.golden import GoldenStatement, differences, parse, rows_of, statement, text

REST = "variables_and_objectives"


def golden_rows(folder: Path, family: Family, cases: Mapping[str, Model]) -> list[tuple[Model, GoldenStatement]]:
    """The cases with the golden rows of a family, which are those of the model; a family no case has rows of fails."""
    read = _checked(folder / f"{family.__name__}.txt", {name: rows_of(m, family) for name, m in cases.items()})
    assert any(stated.rows for stated in read.values()), f"no case has a row of {family.__name__}"
    return [(cases[name], stated) for name, stated in read.items()]


def check_rest(folder: Path, cases: Mapping[str, Model]) -> None:
    """Bounds, integrality and objectives of every case are the golden ones."""
    _checked(folder / f"{REST}.txt", {name: replace(statement(m), rows={}) for name, m in cases.items()})


def names(folder: Path) -> set[str]:
    """Families that have a file, and `REST`."""
    return {file.stem for file in folder.glob("*.txt")}


def _checked(file: Path, found: Mapping[str, GoldenStatement]) -> dict[str, GoldenStatement]:
    if os.environ.get("OPTMODELS_REGENERATE"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(f"# {name}\n{text(stated)}" for name, stated in found.items()), encoding="utf-8")
    anew = "OPTMODELS_REGENERATE=1 writes it anew: read the diff"
    assert file.exists(), f"there is no {file.name}; {anew}"
    parts = re.split(r"^# (.*)\n", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    golden = {name: parse(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}
    assert list(golden) == list(found), f"{file.name} has the cases {list(golden)}, not {list(found)}; {anew}"
    wrong = [f"{name}: {line}" for name in found for line in differences(golden[name], found[name])]
    wrong += [
        f"{name}: variable {v}"
        for name in found
        for v in sorted(golden[name].variables.keys() ^ found[name].variables.keys())
    ]
    assert not wrong, f"{file.name} differs; {anew}\n" + "\n".join(wrong[:20])
    return golden
