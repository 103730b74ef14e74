"""``python -m formulations.cost_efficiency INSTANCE`` solves an instance file."""

from optmodels.cli import solve_script

solve_script("cost_efficiency")
