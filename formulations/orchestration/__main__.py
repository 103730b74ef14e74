"""``python -m formulations.orchestration INSTANCE`` solves an instance file."""

from formulations.orchestration import FORMULATION
from optmodels.cli import solve_script

solve_script(FORMULATION)
