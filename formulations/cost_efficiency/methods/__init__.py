"""Every way to find a plan, by its stable name."""

from formulations.cost_efficiency.methods import exact, heuristics

METHODS = {"exact": exact.exact, **heuristics.METHODS}
TITLES = {"exact": "MILP by HiGHS after pruning with proof", **heuristics.TITLES}
