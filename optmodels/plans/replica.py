"""The unit that autoscaling adds and removes: one deployment with its rate and price."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReplicaOffer:
    """A deployment of one workload.

    Attributes:
        workload: name of the workload.
        machines: machines of a deployment, in words.
        requests_per_s: requests/s that it carries within the SLO.
        usd_per_hour: its price.
    """

    workload: str
    machines: str
    requests_per_s: float
    usd_per_hour: float
