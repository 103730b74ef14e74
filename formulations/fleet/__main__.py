"""``python -m formulations.fleet INSTANCE`` solves an instance file."""

from formulations.fleet import FORMULATION
from optmodels.cli import solve_script

solve_script(FORMULATION)
