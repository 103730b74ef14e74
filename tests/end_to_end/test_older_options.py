"""Older names of options are read, with a note that names today's."""

from __future__ import annotations

import importlib

import pytest

from optmodels import cli


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("simulate --llm qwen3-32b --gpu h100", "simulate --model qwen3-32b --gpu h100"),
        ("calibrate rows.csv --model steps --llm=qwen3-32b", "calibrate rows.csv --form steps --model=qwen3-32b"),
        ("calibrate rows.csv --model=default", "calibrate rows.csv --form=default"),
        ("attribute x --model steps.yaml", "attribute x --latencies steps.yaml"),
        ("plan --model llama-3.1-8b --apart", "plan --model llama-3.1-8b --disaggregate"),
        ("operating-points m --tbt-s 0.1", "operating-points m --tpot-s 0.1"),
        ("list machines --pool aws", "list machines --cloud aws"),
        ("list instances", "list problems"),
    ],
)
def test_older_names_are_read(given: str, read: str) -> None:
    importlib.import_module("optmodels.cli.list")  # a verb's module does not hide Python's list
    cli._notes.clear()
    assert cli._renamed(given.split()) == read.split()
    changed = [(a, b) for a, b in zip(given.split(), read.split(), strict=True) if a != b]
    notes = [f"{a.partition('=')[0]} is called {b.partition('=')[0]} now" for a, b in changed]
    assert cli._notes == notes
    assert cli._renamed(read.split()) == read.split() and cli._notes == notes
