"""``python -m formulations.reserved_capacity INSTANCE`` solves an instance file."""

from formulations.reserved_capacity import FORMULATION
from optmodels.cli import solve_script

solve_script(FORMULATION)
