"""What the API types of KEDA, KServe and LeaderWorkerSet take, as compact JSON Schemas; pods and Kubernetes' own types
are left to kubernetes-validate.

Names, types, enumerations and what is required are those of the published types, read on 22 November 2026:
ScaledObject, kedacore/keda apis/keda/v1alpha1/scaledobject_types.go and scaletriggers_types.go at 01ee1d3;
InferenceService, kserve/kserve pkg/apis/serving/v1beta1/component.go and its generated reference
python/kserve/docs (V1beta1PredictorSpec, AutoScalingSpec, MetricsSpec, ExternalMetricSource, MetricSource,
MetricTarget) at 33c6804; LeaderWorkerSet, kubernetes-sigs/lws api/leaderworkerset/v1/leaderworkerset_types.go at
024af08; HorizontalPodAutoscaler, Kubernetes' API reference, autoscaling/v2; KEDA's cron scaler, keda.sh/docs.
"""

from __future__ import annotations

from typing import Any

TEXT, TEXTS = {"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}
INT32 = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
ANY: dict[str, Any] = {"type": "object"}
QUANTITY = {"anyOf": [
    {"type": "integer"},
    {"type": "string", "pattern": r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"},
]}  # fmt: skip


def section(required: str = "", **fields: Any) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {"type": "object", "properties": fields, "required": required.split(), "additionalProperties": False}


def listed(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def resource(version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A Kubernetes object."""
    named = {"type": "object", "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 253},
        "labels": TEXTS, "annotations": TEXTS, "namespace": TEXT,
    }, "required": ["name"], "additionalProperties": False}  # fmt: skip
    return section(
        "apiVersion kind metadata spec",
        apiVersion={"const": version}, kind={"const": kind}, metadata=named, spec=spec,
    )  # fmt: skip


TRIGGER = section(
    "type metadata",
    type=TEXT, name=TEXT, useCachedMetrics={"type": "boolean"}, metadata=TEXTS,
    metricType={"enum": ["AverageValue", "Value", "Utilization"]},
    authenticationRef=section("name", name=TEXT, kind=TEXT),
)  # fmt: skip
PROMETHEUS = section(  # a scaler's own settings, all of them text: keda.sh/docs, Prometheus
    "serverAddress query threshold",
    serverAddress=TEXT, query=TEXT, threshold=TEXT, activationThreshold=TEXT, namespace=TEXT, customHeaders=TEXT,
    ignoreNullValues=TEXT, unsafeSsl=TEXT, timeout=TEXT, queryParameters=TEXT,
)  # fmt: skip
SCALED_OBJECT = resource("keda.sh/v1alpha1", "ScaledObject", section(
    "scaleTargetRef triggers",
    scaleTargetRef=section("name", name=TEXT, apiVersion=TEXT, kind=TEXT, envSourceContainerName=TEXT),
    pollingInterval=INT32, initialCooldownPeriod=INT32, cooldownPeriod=INT32, idleReplicaCount=INT32,
    minReplicaCount=INT32, maxReplicaCount=INT32, advanced=ANY, fallback=ANY, triggers=listed(TRIGGER),
))  # fmt: skip

RULES = section(
    "", stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    selectPolicy={"enum": ["Max", "Min", "Disabled"]}, policies=listed(ANY), tolerance=QUANTITY,
)  # fmt: skip
BEHAVIOUR = section("", scaleUp=RULES, scaleDown=RULES)
HORIZONTAL_POD_AUTOSCALER = resource("autoscaling/v2", "HorizontalPodAutoscaler", section(
    "scaleTargetRef maxReplicas",
    scaleTargetRef=section("kind name", apiVersion=TEXT, kind=TEXT, name=TEXT),
    minReplicas={"type": "integer", "minimum": 0}, maxReplicas={"type": "integer", "minimum": 1},
    metrics=listed(section(
        "type",
        type={"enum": ["Resource", "Pods", "Object", "External", "ContainerResource"]},
        external=section(
            "metric target", metric=section("name", name=TEXT, selector=ANY),
            target=section("type", type={"enum": ["Utilization", "Value", "AverageValue"]}, value=QUANTITY,
                           averageValue=QUANTITY, averageUtilization=INT32),
        ),
    )),
    behavior=BEHAVIOUR,
))  # fmt: skip
DAILY = {"type": "string", "pattern": r"^\d+ \d+ \* \* \*$"}
CRON = section(
    "timezone start end desiredReplicas", timezone=TEXT, start=DAILY, end=DAILY,
    desiredReplicas={"type": "string", "pattern": r"^[1-9]\d*$"},
)  # fmt: skip

METRIC = section(
    "type",
    type={"enum": ["Resource", "External", "PodMetric"]}, resource=ANY, podmetric=ANY,
    external=section(
        "",
        metric=section("", backend={"enum": ["prometheus", "graphite", "opentelemetry"]}, serverAddress=TEXT,
                       query=TEXT, namespace=TEXT, operationOverTime=TEXT),
        target=section("", type={"enum": ["Utilization", "Value", "AverageValue"]}, value=QUANTITY,
                       averageValue=QUANTITY, averageUtilization=INT32),
    ),
)  # fmt: skip
INFERENCE_SERVICE = resource("serving.kserve.io/v1beta1", "InferenceService", section(
    "predictor",
    predictor=section(
        "containers",
        minReplicas={"type": "integer", "minimum": 0}, maxReplicas={"type": "integer", "minimum": 0},
        autoScaling=section("", metrics=listed(METRIC), behavior=ANY, keda=ANY), scaleTarget=INT32, scaleMetric=TEXT,
        containerConcurrency=INT32, timeout=INT32, canaryTrafficPercent=INT32, labels=TEXTS, annotations=TEXTS,
        deploymentStrategy=ANY,
        containers=listed(ANY), affinity=ANY, nodeSelector=TEXTS, tolerations=listed(ANY), volumes=listed(ANY),
    ),
    transformer=ANY, explainer=ANY,
))  # fmt: skip

TEMPLATE = section("spec", metadata=ANY, spec=ANY)
LEADER_WORKER_SET = resource("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", section(
    "leaderWorkerTemplate",
    replicas=INT32,
    leaderWorkerTemplate=section(
        "workerTemplate",
        leaderTemplate=TEMPLATE, workerTemplate=TEMPLATE, size={"type": "integer", "minimum": 1},
        restartPolicy={"enum": ["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]},
        subGroupPolicy=section("", subGroupPolicyType={"enum": ["LeaderWorker", "LeaderExcluded"]}, subGroupSize=INT32),
        volumeClaimTemplates=listed(ANY), persistentVolumeClaimRetentionPolicy=ANY,
    ),
    rolloutStrategy=section("type", type={"const": "RollingUpdate"}, rollingUpdateConfiguration=ANY),
    startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
    networkConfig=section("subdomainPolicy", subdomainPolicy={"enum": ["Shared", "UniquePerReplica"]}),
))  # fmt: skip
