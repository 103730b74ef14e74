"""Copies of shipped instances: complete, never over what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

import optmodels
from optmodels import shipped
from optmodels.errors import InputError
from optmodels.loading import load

ROWS = [(r["formulation"], r["name"]) for r in optmodels.list("instances")]
EVERY = 10  # of those that refer to no file


def some() -> list[tuple[str, str]]:
    """Every instance that refers to a file beside it, and some of the others."""
    files = [shipped.root() / form / f"{name}.yaml" for form, name in ROWS]
    names = [{p.name for p in f.parent.iterdir() if p.suffix != ".yaml"} for f in files]
    text = [f.read_text(encoding="utf-8") for f in files]
    refers = [any(name in t for name in ns) for t, ns in zip(text, names, strict=True)]
    assert sum(refers) >= 10
    return [row for i, row in enumerate(ROWS) if refers[i] or i % EVERY == 0]


def test_names_are_unique_in_a_formulation():
    assert len(ROWS) == len(set(ROWS)) > 100


@pytest.mark.parametrize(("formulation", "name"), some())
def test_a_copy_says_what_the_original_says(formulation, name, tmp_path):
    """What it refers to came along: it loads where nothing else is, to the same problem."""
    copy = tmp_path / "copy.yaml"
    text = optmodels.new(formulation, copy, from_=name)
    original = shipped.root() / formulation / f"{name}.yaml"
    assert text == copy.read_text(encoding="utf-8") == original.read_text(encoding="utf-8")
    expected, found = (load(p, limits_may_fail=True).model_dump() for p in (original, copy))
    assert found | {"name": ""} == expected | {"name": ""}


def test_writes_over_nothing_unless_told_to(tmp_path):
    copy, beside = tmp_path / "batch-budget-2.0.yaml", tmp_path / "measured.csv"
    beside.write_text("mine")
    with pytest.raises(InputError) as refused:
        optmodels.new("cost_efficiency", copy, from_="table_ix/batch-budget-2.0")
    assert [(m.file, m.value) for m in refused.value.mistakes] == [(str(beside), "an existing file")]
    assert (list(tmp_path.iterdir()), beside.read_text()) == ([beside], "mine")
    optmodels.new("cost_efficiency", copy, from_="table_ix/batch-budget-2.0", force=True)
    assert beside.read_text() != "mine"
    with pytest.raises(InputError):
        optmodels.new("cost_efficiency", copy, from_="table_ix/batch-budget-2.0")


def test_two_copies_share_a_file_that_both_refer_to(tmp_path):
    for name in ("batch-budget-1.0", "batch-budget-2.0"):
        optmodels.new("cost_efficiency", tmp_path / f"{name}.yaml", from_=f"table_ix/{name}")
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("day-and-nigth", "day-and-night"),
        ("deadline", "infeasible/deadline"),
        ("../cost_efficiency/textbook/hand-checkable", None),
        ("", None),
    ],
)
def test_an_unknown_name_is_a_mistake_with_near_ones(cli, folder, name, near):
    done = cli("new", "fleet", "--from", name)
    done.assert_clean()
    assert done.status == 2
    assert near is None or f"did you mean {near}?" in done.err
    assert not list(Path(folder).iterdir())
