"""Every way to find a plan, by its stable name; exact first."""

from .exact import exact
from .greedy import greedy

METHODS = {"exact": exact, "greedy": greedy}
TITLES = {"exact": "MILP by HiGHS", "greedy": "the largest service first, by USD per token still asked for"}
