"""Every way to find a plan, by its stable name."""

from formulations.fleet.certify import FleetRounds, beside_whole
from formulations.fleet.methods import apart, exact, heuristics, melange
from optmodels.simulation.certification import certified

METHODS = {
    name: beside_whole(certified(method, FleetRounds))
    for name, method in {
        "exact": exact.exact,
        **heuristics.METHODS,
        "column_pruning": exact.column_pruning,
        "melange": melange.melange,
        **apart.METHODS,
    }.items()
}
TITLES = {
    "exact": "MILP by HiGHS after dominance pruning, column generation when large",
    **heuristics.TITLES,
    **apart.TITLES,
}
