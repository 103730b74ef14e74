"""Manifests of autoscalers that a backtest tuned: HPA, KEDA, and KEDA's timetable, with targets, windows and bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

DEPLOYMENT = "my-engines"  # the user's Deployment: a name to set
PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"
QUERY = 'sum(rate(vllm:request_success_total{{service="{name}"}}[{window}]))'
METRIC = "requests_per_second"


def manifests(found: Mapping[str, Any], timetable: Iterable[int] | None = None) -> dict[str, dict[str, Any]]:
    """File name → manifest, of the tuned setting of each autoscaler (default where it was not tuned).

    Args:
        found: document of a backtest.
        timetable: replicas by hour of the day (UTC) for the scheduled autoscaler; None: no timetable.
    """
    rows: dict[str, Mapping[str, Any]] = {}
    for row in found["rows"]:
        if row["method"] not in rows or row["tuned"]:
            rows[row["method"]] = row
    rate = found["replica"]["requests_per_s"]
    made: dict[str, dict[str, Any]] = {}
    if "hpa" in rows:
        made["hpa.yaml"] = _hpa(rows["hpa"], rate)
    if "keda" in rows:
        made["keda.yaml"] = _keda(rows["keda"], rate)
    if "scheduled" in rows and timetable is not None:
        made["schedule.yaml"] = _schedule(rows["scheduled"], list(timetable))
    return made


def _note(row: Mapping[str, Any]) -> dict[str, str]:
    how, cost = "tuned" if row["tuned"] else "default", row["over_hindsight"]
    return {"optmodels/backtest": f"{how}: {row['attained']:.2%} within the SLO, {cost:.2f} × hindsight"}


def _behaviour(row: Mapping[str, Any]) -> dict[str, Any]:
    seconds = int(60 * row["setting"]["window_min"])
    return {"scaleDown": {"stabilizationWindowSeconds": seconds}, "scaleUp": {"stabilizationWindowSeconds": 0}}


def _per_replica(row: Mapping[str, Any], rate: float) -> str:
    return f"{rate * row['setting']['target'] * 1000:.0f}m"  # Kubernetes writes a quantity of thousandths so


def _hpa(row: Mapping[str, Any], rate: float) -> dict[str, Any]:
    return {
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": DEPLOYMENT, "annotations": _note(row)},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": DEPLOYMENT},
            "minReplicas": max(row["fewest"], 1), "maxReplicas": max(row["most"], 1),
            "metrics": [{"type": "External", "external": {
                "metric": {"name": METRIC}, "target": {"type": "AverageValue", "averageValue": _per_replica(row, rate)},
            }}],
            "behavior": _behaviour(row),
        },
    }  # fmt: skip


def _scaled_object(row: Mapping[str, Any], triggers: list[dict[str, Any]], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
        "metadata": {"name": DEPLOYMENT, "annotations": _note(row)},
        "spec": {"scaleTargetRef": {"name": DEPLOYMENT}, "minReplicaCount": max(row["fewest"], 1),
                 "maxReplicaCount": max(row["most"], 1), **spec, "triggers": triggers},
    }  # fmt: skip


def _keda(row: Mapping[str, Any], rate: float) -> dict[str, Any]:
    trigger = {
        "type": "prometheus", "metricType": "AverageValue",
        "metadata": {
            "serverAddress": PROMETHEUS, "query": QUERY.format(name=DEPLOYMENT, window="2m"),
            "threshold": f"{rate * row['setting']['target']:.4g}",
        },
    }  # fmt: skip
    advanced = {"horizontalPodAutoscalerConfig": {"behavior": _behaviour(row)}}
    return _scaled_object(row, [trigger], advanced=advanced)


def _schedule(row: Mapping[str, Any], timetable: list[int]) -> dict[str, Any]:
    triggers = [
        {"type": "cron", "metadata": {
            "timezone": "UTC", "start": f"0 {hour} * * *", "end": f"0 {(hour + 1) % 24} * * *",
            "desiredReplicas": str(max(count, 1)),
        }}
        for hour, count in enumerate(timetable)
    ]  # fmt: skip
    return _scaled_object(row, triggers)
