"""A looser limit, a lower price and one more machine to choose from lose nothing."""

from __future__ import annotations

import pytest

from tests import relations


@pytest.mark.parametrize("name", relations.FORMULATIONS)
def test_what_is_looser_loses_nothing(name: str) -> None:
    seen, lost = relations.run(name, 4, seed=100, engines=True)
    assert not lost and seen["kept"] >= 4, (seen, lost)


def test_a_search_between_two_steps_loses_nothing_without_a_deadline() -> None:
    """Without its limit on E2E an engine had one iteration time, which carried less than those within the limit."""
    seen, lost = relations.run("reserved_capacity", 2, seed=20089, engines=True)
    assert not lost and seen["kept"] >= 2, (seen, lost)


def test_no_longest_wait_is_a_very_long_one() -> None:
    """Fixed waits up to an infinite one cannot be listed."""
    seen, lost = relations.run("fleet", 2, seed=61004, engines=True)
    assert not lost and seen["kept"] >= 2, (seen, lost)


def test_ttft_that_is_dropped_leaves_its_percentile_to_the_wait() -> None:
    """`queue_s` is a wait at the percentile of TTFT; without it a longer mean wait missed the deadline."""
    seen, lost = relations.run("reserved_capacity", 2, seed=60692, engines=True)
    assert not lost and seen["kept"] >= 2, (seen, lost)
