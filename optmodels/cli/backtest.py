"""`backtest`: autoscalers on a history of requests, compared with hindsight."""

from __future__ import annotations

from typing import Any

import optmodels
from optmodels.cli.console import answer, one_line
from optmodels.cli.options import Json, verb


@verb("file", policies=None)
def backtest(given: dict[str, Any], as_json: Json = False) -> int:
    """Compare autoscalers on a request history. Prints cost, SLO attainment and the least cost with hindsight."""
    from optmodels.reporting.backtest import backtest_lines

    def run() -> dict[str, Any]:
        with one_line() as on_step:
            return optmodels.backtest(**given, on_step=on_step)

    answer(run, as_json, backtest_lines)
    return 0
