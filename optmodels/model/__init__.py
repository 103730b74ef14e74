"""The kernel: a constraint family is stated once, as a function over arrays whose docstring is the inequality.

From that statement come the arrays HiGHS gets (`Model.compiled`), a Pyomo block (`Model.attach`), golden rows in tests
(`optmodels.model.golden`), the table of families in a README (`python -m optmodels.model.document`) and the names in
``explain``. A statement reads like this::

    class Transport(Model):
        def __init__(self, supply, demand, usd):              # (I,), (J,), (I, J)
            super().__init__("transport")
            self.supply, self.demand = supply, demand
            self.x = self.variable("x", ("i", "j"), usd.shape)
            self.open = self.variable("open", ("i",), supply.shape, integer=True, upper=1)
            self.state(FAMILIES)
            i, j = self.x.labels
            self.minimise("cost", self.x * usd[i, j])

    def demand_met(m: Transport) -> Rows:
        \"\"\"Σ_i x_ij ≥ demand_j.\"\"\"
        return at_least(m.demand, m.x.by("j"), over=m.demand.shape)

    def capacity(m: Transport) -> Rows:
        \"\"\"Σ_j x_ij ≤ supply_i·open_i: nothing comes from a closed plant.\"\"\"
        return at_most(0.0, m.x.by("i") - m.open * m.supply)

    FAMILIES = (demand_met, capacity)

**Variables** live on index sets. ``labels`` are one integer array for each set, entry by entry, so a coefficient is
written with NumPy's indexing: ``usd[i, j]``. A variable exists where `over` states: on a grid ``(I, J)``, or only for
the labels given. Bounds are scalars, tables over the sets, or one number for each entry.

**Terms** are a variable's entries with coefficients and the row each belongs to; a variable is its own terms.

=============================  ==================================================================================
``m.x.by("j")``                rows j: the sum over every set that is not named
``m.x.by("t", j=pool[p])``     rows (t, j), where j depends on the entry
``m.x * a[i, j]``              coefficients, entry by entry; ``2.0 * m.x``, ``-m.x``, ``m.x + m.y``, ``m.x - m.y``
``m.x[mask]``                  only these entries
``used - m.n.among(used)``     n only in rows that ``used`` has entries in
``m.n.dot("p", a, "r")``       Σ_p a_pr·n_tp in rows (t, r)
``m.stock.lag("t")``           I_{t−1} as a term of row t; the first row has none, or the last one if ``cyclic=True``
``m.n.across(t=T)``            n_c in every row (c, t)
``m.x.at(entries, labels, a)`` anything else: entry by entry the row it is in; ``m.x.find(k, c, t)`` gives entries
=============================  ==================================================================================

**Rows** come from ``at_most(rhs, terms)``, ``at_least``, ``equal`` and ``between(low, high, terms)``. There is one row
for each label that occurs. With ``over=`` there is one for each label given, and a term of any other row is an error;
an empty row stays and makes the model infeasible if 0 does not satisfy it: demand without a machine is not lost.
A right-hand side is a scalar or a table over the rows' labels (with `over`, also one number for each row); a row with
an infinite one, a limit that is not set, is left out.

**A family decides itself whether it applies**: it returns `no_rows` where it does not. So a formulation has one tuple
``FAMILIES``, in the order of its README, and its model states all of them.

**A model** is a subclass of `Model`: parameters and variables in ``__init__``, then ``state``, ``expression``, and
``minimise`` or ``maximise`` once for each priority. A family never changes the model.
"""

from optmodels.model.labels import StatementError
from optmodels.model.model import Family, Model
from optmodels.model.rows import Rows, at_least, at_most, between, equal, no_rows
from optmodels.model.terms import Expression, Terms, Variable

__all__ = [
    "Expression",
    "Family",
    "Model",
    "Rows",
    "StatementError",
    "Terms",
    "Variable",
    "at_least",
    "at_most",
    "between",
    "equal",
    "no_rows",
]
