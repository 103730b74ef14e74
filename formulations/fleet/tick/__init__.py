"""One tick of a fleet that follows its traffic: what to order, stop and load now. docs/tick.md.

* `state`: running and ordered machines, lead times: the file of ``--state``.
* `data`: an instance, a state and a forecast as arrays.
* `rule`: base stock at the lead time with bridging: exactly optimal for one machine type, without a solver.
* `model`: the tick as a MILP with expected shortage.
* `solve`: rule, rounding and MILP within a time limit, and the reasons of each order and stop.
* `check`: every transition replayed machine by machine, cost and shortage recomputed.
"""
