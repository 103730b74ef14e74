"""`fewest-gpus`: the fewest GPUs that attain a share of the requests."""

from __future__ import annotations

from typing import Any

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, verb


@verb("problem")
def fewest_gpus(given: dict[str, Any], as_json: Json = False) -> int:
    """Find the fewest GPUs for an SLO attainment. A bound proves that fewer cannot do."""
    from optmodels.reporting.evaluate import fewest_lines

    found = answer(lambda: optmodels.fewest_gpus(**given), as_json, fewest_lines)
    return 0 if found["gpus"] is not None else 3 if found["bound"] is None else 4
