"""``python -m formulations.fleet INSTANCE`` solves an instance file."""

from optmodels.cli import solve_script

solve_script("fleet")
