"""`prefix-hits`: shares of prompts that prefix caches have."""

from __future__ import annotations

from typing import Any

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, verb


@verb("trace")
def prefix_hits(given: dict[str, Any], as_json: Json = False) -> int:
    """Estimate the prefix-cache hit rate of a trace. The table goes by cache size and number of engines."""
    from optmodels.reporting.simulate import prefix_lines

    answer(lambda: optmodels.prefix_hits(**given), as_json, prefix_lines)
    return 0
