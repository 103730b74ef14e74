"""Every way to find a plan, by its stable name."""

from formulations.fleet.certify import certified
from formulations.fleet.methods import exact, heuristics, melange

METHODS = {
    name: certified(method)
    for name, method in {
        "exact": exact.exact,
        **heuristics.METHODS,
        "column_pruning": exact.column_pruning,
        "melange": melange.melange,
    }.items()
}
TITLES = {"exact": "MILP by HiGHS after dominance pruning, column generation when large", **heuristics.TITLES}
