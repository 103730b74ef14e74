"""Every way to find a plan, by its stable name."""

from formulations.fleet.methods import heuristics
from formulations.fleet.methods.exact import column_pruning, exact
from formulations.fleet.methods.melange import melange

METHODS = {"exact": exact, **heuristics.METHODS, "column_pruning": column_pruning, "melange": melange}
TITLES = {"exact": "MILP by HiGHS after dominance pruning, column generation when large", **heuristics.TITLES}
