"""A looser limit, a lower price and one more machine to choose from lose nothing."""

from __future__ import annotations

import pytest

from tests import relations


@pytest.mark.parametrize("name", relations.FORMULATIONS)
def test_what_is_looser_loses_nothing(name: str) -> None:
    seen, lost = relations.run(name, 4, seed=100, engines=True)
    assert not lost and seen["kept"] >= 4, (seen, lost)
