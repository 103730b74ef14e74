"""Every way to find a plan, by its stable name."""

from formulations.reserved_capacity.methods import exact, full, heuristics

METHODS = {"exact": exact.exact, "full": full.full, **heuristics.METHODS}
TITLES = {
    "exact": "flows projected out by min-cut cuts and Benders, by HiGHS",
    "full": "the full flow formulation by HiGHS",
    **heuristics.TITLES,
}
