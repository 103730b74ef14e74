"""Every notebook runs from top to bottom, where no repository is, and what it ends its cells with can be shown."""

import ast
import json

import pytest
from conftest import ROOT

NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


def shown(source, space):
    """Run a cell; the value of its last line if that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), space)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), space)


START = {"start_plan", "start_compare", "start_embed"}  # a newcomer opens these first


def test_every_formulation_has_one():
    folders = {p.parent.name for p in (ROOT / "formulations").glob("*/problem.py")}
    assert {p.stem for p in NOTEBOOKS} == folders | START


def test_notebooks_to_start_with_are_short():
    for path in NOTEBOOKS:
        if path.stem in START:
            assert len(json.loads(path.read_text(encoding="utf-8"))["cells"]) <= 15, path.stem


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs(path, folder, capsys):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert all(not cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code")  # kept clean
    space, pictures = {"__name__": "__main__"}, 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            value = shown("".join(cell["source"]), space)
            assert value is not False
            if hasattr(value, "_repr_html_"):
                assert "<table" in value._repr_html_()
                pictures += 1
            repr(value)
    assert pictures >= 2
