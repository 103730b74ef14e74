"""Every way to find a plan, by its stable name."""

from functools import wraps

from formulations.fleet.methods import apart, exact, heuristics, melange
from formulations.fleet.plan import FleetPlan
from formulations.fleet.points import FleetTables
from formulations.fleet.problem import Fleet
from optmodels.formulation import Method, Options
from optmodels.plans.outcome import Outcome


def _certifying(method: Method) -> Method:
    """The method, with rounds of certification where the instance asks for them: the simulator is imported then."""

    @wraps(method)
    def run(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
        if problem.scenarios is not None and method is not exact.exact:
            reason = "with scenarios only the method exact makes plans"
            return Outcome("no_solution_found", None, log={"reason": reason})
        if problem.certify == "none":
            return method(problem, tables, options)
        from formulations.fleet.certify import FleetRounds, beside_whole
        from optmodels.certification.rounds import certified

        return beside_whole(certified(method, FleetRounds))(problem, tables, options)

    return run


METHODS = {
    name: _certifying(method)
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
