"""``python -m formulations.reserved_capacity FILE`` solves a problem file."""

from formulations.reserved_capacity import FORMULATION
from optmodels.cli import solve_script

solve_script(FORMULATION)
