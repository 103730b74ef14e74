"""``python -m formulations.cost_efficiency FILE`` solves a problem file."""

from formulations.cost_efficiency import FORMULATION
from optmodels.cli import solve_script

solve_script(FORMULATION)
