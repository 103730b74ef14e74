"""Some hundred mutated files; `make fuzz N=…` runs any number (SECURITY.md)."""

from __future__ import annotations

import pytest

from tests.fuzz.__main__ import run, summary
from tests.fuzz.corpus import SECOND, THIRD

COUNT = 30  # of each half of the corpus, and from where the last files are in it


@pytest.mark.slow
def test_no_mutated_file_is_a_fault_of_the_program(tmp_path):
    """Slow: 150 files, each read by a verb in a process of its own."""
    found = run(range(COUNT), 2, tmp_path) | run(range(SECOND, SECOND + COUNT), 2, tmp_path)
    found |= run(range(THIRD, THIRD + 3 * COUNT), 2, tmp_path)
    assert not [r for r in found.values() if r["wrong"]], summary(found)
