"""``python -m formulations.reserved_capacity INSTANCE`` solves an instance file."""

from optmodels.cli import solve_script

solve_script("reserved_capacity")
