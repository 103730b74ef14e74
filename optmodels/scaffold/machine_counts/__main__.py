"""``python -m machine_counts INSTANCE`` solves an instance file; ``python -m machine_counts compare …`` any verb."""

from optmodels.cli import solve_script

from . import FORMULATION

solve_script(FORMULATION)
