"""The table of families in a README."""

import sys
import types

import pytest
from model.transport import FAMILIES

from optmodels.errors import InputError
from optmodels.model import StatementError, no_rows
from optmodels.model.document import BEGIN, END, inequality, main, table, written

README = f"# Transport\n\nText.\n\n{BEGIN}\nold\n{END}\n\nMore.\n"


@pytest.fixture
def module(monkeypatch):
    made = types.ModuleType("stated_here")
    made.FAMILIES = FAMILIES
    monkeypatch.setitem(sys.modules, "stated_here", made)
    return "stated_here"


def test_inequality_and_note():
    assert inequality(FAMILIES[0]) == (
        "Σ_i x_tij + I_t−1,j − I_tj + late ≥ demand_tj",
        "from the road, or from the stock of the period before. Late units are counted once for all.",
    )
    assert inequality(FAMILIES[1]) == ("Σ_j x_tij ≤ supply_i·open_i", "")


def test_table_is_valid_markdown():
    lines = table(FAMILIES).splitlines()
    assert len(lines) == 2 + len(FAMILIES)
    assert lines[3] == "| `capacity` | Σ\\_j x\\_tij ≤ supply\\_i·open\\_i |  |"
    assert "≤ 4 \\| of each trade h |" in lines[4]


def test_a_family_without_docstring_is_refused():
    def silent(m):
        return no_rows()

    with pytest.raises(StatementError, match="family silent has no docstring"):
        table([silent])


@pytest.mark.parametrize("readme", ["", f"{BEGIN}", f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}", f"{BEGIN}{END}{END}"])
def test_a_readme_without_marks_is_refused(readme):
    with pytest.raises(InputError, match=r"README\.md"):
        written(readme, FAMILIES)


def test_command_writes_checks_and_says_what_is_wrong(module, tmp_path, capsys):
    readme = tmp_path / "README.md"
    readme.write_text(README)
    assert main([module, str(readme), "--check"]) == 1
    assert "not that of stated_here" in capsys.readouterr().err
    assert readme.read_text() == README
    assert main([module, str(readme)]) == 0
    assert readme.read_text() == README.replace("old", f"\n{table(FAMILIES)}\n")
    assert main([module, str(readme), "--check"]) == 0
    assert main([module, str(tmp_path / "none.md")]) == 2
    assert main(["no_such_module", str(readme)]) == 2
    assert main(["json", str(readme)]) == 2
