"""``python -m formulations.orchestration FILE`` solves a problem file."""

from formulations.orchestration import FORMULATION
from optmodels.cli import solve_script

solve_script(FORMULATION)
