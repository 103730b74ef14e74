"""How many spare deployments protect a pool against interruptions, as a table."""

from __future__ import annotations

from bisect import bisect_left

MOST_SPARES = 20_000  # of a pool; a reserve that needs more is refused, not cut


def spares(size: int, unavailable: float, miss: float) -> int:
    """Fewest k such that among `size` deployments more than k are lost with probability at most `miss`.

    Deployments are lost independently, each a share `unavailable` of the time, so the losses are binomial.
    """
    from optmodels.special import bdtrc

    return bisect_left(range(size), True, key=lambda k: float(bdtrc(k, size, unavailable)) <= miss)


def largest_pools(unavailable: float, miss: float, load: int) -> list[tuple[int, int]]:
    """(k, N_k): the largest pool that k spare deployments protect, see `spares`; none is larger than load + k.

    A pool with a load of `load` deployments needs no more than that and its spare ones, so the table ends with the
    first k that protects this many. It is empty where that takes more than `MOST_SPARES`.

    Args:
        unavailable: q of one deployment.
        miss: probability allowed.
        load: deployments that the largest load of the pool takes, without spare ones.
    """
    if unavailable <= 0 or load <= 0:
        return [(0, load)]
    from optmodels.special import bdtrc

    def protected(k: int, size: int) -> int:  # P(more than k lost) grows with the pool
        larger = range(size + 1, load + k + 1)
        return size + bisect_left(larger, True, key=lambda n: float(bdtrc(k, n, unavailable)) > miss)

    table: list[tuple[int, int]] = []
    size = 0
    for k in range(MOST_SPARES + 1):
        size = protected(k, max(size, k))
        if size > k:  # otherwise every one of the pool may be lost
            table.append((k, size))
        if size >= load + k:
            return table
    return []
