"""Plans judged on traces: a discrete-event simulation of instances with slots, its policies and its summary."""

from __future__ import annotations

from pathlib import Path

from optmodels.simulation.stale import drop_stale

drop_stale(Path(__file__).parent)
