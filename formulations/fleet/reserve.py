"""How many spare deployments protect a pool against interruptions, as a table."""

from __future__ import annotations

from scipy.special import bdtrc


def largest_pools(unavailable: float, miss: float, most: int, levels: int = 60) -> list[tuple[int, int]]:
    """(k, N_k): the largest pool of which more than k deployments are lost with probability at most `miss`.

    Deployments are lost independently, each a share `unavailable` of the time, so the losses are binomial.

    Args:
        unavailable: q of one deployment.
        miss: probability allowed.
        most: no pool is larger.
        levels: at most so many k; larger pools are then excluded.
    """
    if unavailable <= 0:
        return [(0, most)]
    table: list[tuple[int, int]] = []
    k = size = 0
    while size < most and len(table) < levels:
        low, high = max(size, k), most
        while low < high:  # P(more than k lost) grows with the pool
            middle = (low + high + 1) // 2
            if k >= middle or float(bdtrc(k, middle, unavailable)) <= miss:
                low = middle
            else:
                high = middle - 1
        size = low
        if size > k:  # otherwise every one of the pool may be lost
            table.append((k, size))
        k += 1
        if k > most + levels:
            break
    return table
