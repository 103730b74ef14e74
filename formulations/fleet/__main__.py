"""``python -m formulations.fleet FILE`` solves a problem file."""

from formulations.fleet import FORMULATION
from optmodels.cli import solve_script

solve_script(FORMULATION)
