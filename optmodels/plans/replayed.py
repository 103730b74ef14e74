"""Results of the replay of a plan on its own requests for its SLOs, as every document has them
(`report.replayed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CALLED = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "deadline_s": "E2E"}
PLACES = ("replayed", "replayed_whole")  # of a report: on the requests that it keeps, on all of a longer trace


def missed(report: Mapping[str, Any] | None) -> str | None:
    """The worst promise that a replay of a plan's own requests refutes, in words; None: it refutes none."""
    for place in PLACES:
        found = (report or {}).get(place)
        if isinstance(found, Mapping) and not found.get("kept", True):
            if not found.get("missed"):  # a changed document: its check states what should be there
                return "a promise that the document does not name"
            worst = found["missed"][0]
            more = len(found["missed"]) - 1
            return in_words(worst) + (f", and {more} more" if more else "") + f", in the replay of {found['requests']}"
    return None


def in_words(row: Mapping[str, Any]) -> str:
    """``chat/1024x256: TTFT within 1 s for 7.2 % of the requests, 95 % promised``."""
    latency, limit = CALLED.get(row["latency"], row["latency"]), f"{row['limit_s']:.3g} s"
    if row["percentile"] is None:
        return f"{row['demand']}: mean {latency} {row['seen_s']:.3g} s, {limit} promised"
    within, promised = f"{row['within']:.1%}", f"{row['percentile']:.1%}"
    of = "times between tokens" if row["latency"] == "itl_s" else "requests"
    return f"{row['demand']}: {latency} within {limit} for {within} of the {of}, {promised} promised"


def is_consistent(found: Any) -> bool:
    """Whether a replay's verdict fits its rows: none is listed that is within its limit, and any listed is missed."""
    if not isinstance(found, Mapping) or found.get("kept") is not (found.get("missed") == []):
        return False
    try:
        return all(
            row["seen_s"] > row["limit_s"] > 0
            and 0 <= row["within"] <= (1 if row["percentile"] is None else row["percentile"])
            for row in found["missed"]
        )
    except (KeyError, TypeError):
        return False
