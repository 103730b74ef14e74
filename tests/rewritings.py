"""Instances rewritten: in a way that changes no optimum, or one known factor of it; or so that the optimum is no worse.

Each function takes an instance as data (older spellings replaced, files beside it kept) and changes it in place. It
returns False where its relation does not apply. Its docstring states the relation and why it holds.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.adversary.harness import FILES, Instance

Rng = np.random.Generator
Rewrite = Callable[[Instance, Rng], bool | float]
FLEET, COST, ORCHESTRATION, RESERVED = "fleet", "cost_efficiency", "orchestration", "reserved_capacity"
LISTS = {
    "machines", "regions", "services", "workloads", "models", "servers", "buckets", "points", "stock", "quota", "terms",
    "classes", "families", "batches", "tensor_parallel", "attention_ranks", "stages", "scenarios", "hits", "running",
    "operating_points", "replicas", "multi_pass", "parallel", "shared", "main", "ao", "lengths", "tp", "pp", "dp",
    "batch", "decay", "load_levels",
}  # fmt: skip
PRICES = {
    "prices", "prices_by_region", "usd_per_hour", "budget_usd_per_hour", "unserved_usd_per_1000_requests", "usd_per_gb",
    "usd_per_1000_requests", "unserved_usd_per_request", "start_usd", "stop_usd",
}  # fmt: skip
IN_SECONDS = {"ttft_s", "tpot_s", "itl_s", "deadline_s", "t_slice_s", "longest_wait_s", "queue_s", "e2e_s", "prefill_s"}
UNITS: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1e3, "ms"), (1e6, "us"), (1 / 60, "min"), (1 / 3600, "h")),
    "requests/s": ((60.0, "/min"), (3600.0, "/h"), (86400.0, "requests/day")),
    "USD/h": ((24.0, "USD/day"),),
    "B/s": ((1e-9, "GB/s"), (1e-12, "TB/s")),
    "FLOP/s": ((1e-12, "TFLOP/s"),),
    "GiB": ((1024.0, "MiB"), (1 / 1024, "TiB")),
}
UNIT_OF = (
    dict.fromkeys(IN_SECONDS, "s") | {"requests_per_s": "requests/s", "budget_usd_per_hour": "USD/h"}
    | dict.fromkeys(("on_demand", "spot", "reserved_1y", "reserved_3y"), "USD/h")
    | dict.fromkeys(("mem_bytes_per_s", "link_bytes_per_s", "pcie_bytes_per_s"), "B/s")
    | dict.fromkeys(("fp16_flops", "fp8_flops", "fp4_flops"), "FLOP/s") | {"vram_gib": "GiB", "ram_gib": "GiB"}
)  # fmt: skip
UNPRICED = "assumed_discounts"


@dataclass(frozen=True)
class Relation:
    """A way to rewrite an instance.

    Attributes:
        same: the optimum is `times` that of the instance; False: it is no worse.
        formulations: those it is about.
    """

    rewrite: Rewrite
    same: bool
    formulations: tuple[str, ...]

    @property
    def name(self) -> str:
        """That of the function, in words."""
        return self.rewrite.__name__.replace("_", " ")


RELATIONS: list[Relation] = []


def _relation(same: bool, *formulations: str) -> Callable[[Rewrite], Rewrite]:
    def add(rewrite: Rewrite) -> Rewrite:
        RELATIONS.append(Relation(rewrite, same, formulations or (COST, FLEET, ORCHESTRATION, RESERVED)))
        return rewrite

    return add


def same(*formulations: str) -> Callable[[Rewrite], Rewrite]:
    """The optimum is unchanged, or changed by the factor that the function returns."""
    return _relation(True, *formulations)


def looser(*formulations: str) -> Callable[[Rewrite], Rewrite]:
    """Every plan of the instance, or one that costs no more, is one of the rewritten instance."""
    return _relation(False, *formulations)


def rewritten(data: Instance, rng: Rng) -> Iterator[tuple[Relation, Instance, float]]:
    """The relations that apply to an instance, with the instance rewritten and the factor on its optimum."""
    plain = newest_spelling(data)
    for relation in RELATIONS:
        if data["formulation"] in relation.formulations:
            other = copy.deepcopy(plain)
            times = relation.rewrite(other, rng)
            if times and other != plain:
                yield relation, other, 1.0 if times is True else times


def newest_spelling(data: Any) -> Any:
    """The instance without older spellings of keys."""
    old = {
        "tbt_s": "tpot_s", "prompt_tokens": "input_tokens", "requests_per_second": "requests_per_s",
        "total_requests_per_second": "total_requests_per_s", "service": "name",
    }  # fmt: skip
    if isinstance(data, list):
        return [newest_spelling(x) for x in data]
    if not isinstance(data, dict):
        return data
    if "architecture" in data and "model" in data:
        data = {"name": data["model"], "model": data["architecture"]} | {
            k: v for k, v in data.items() if k not in ("model", "architecture")
        }
    keep = {"service"} if data.get("kind") == "file" else set()
    return {old.get(k, k) if k not in keep else k: v if k == FILES else newest_spelling(v) for k, v in data.items()}


def relaxed(data: Instance) -> Instance:
    """An instance whose limits are wide, in the place of one without a plan."""
    other: Instance = newest_spelling(copy.deepcopy(data))
    for key in ("budget_usd_per_hour", "stock", "quota"):
        other.pop(key, None)
    changed_at(other, IN_SECONDS - {"queue_s", "prefill_s", "e2e_s", "longest_wait_s", "t_slice_s"}, _longer)
    changed_at(other, {"tps"}, times(0.2))
    changed_at(other, {"quality_at_least"}, times(0.3))
    return other


def _longer(value: Any) -> Any:
    if isinstance(value, str):
        return f"{float(value.split()[0]) * 5!r} {value.split()[1]}"
    return times(5.0)(value)


def degenerate(data: Instance, rng: Rng) -> None:
    """Make some instances so: answers or prompts of one token, alike or beside others, and limits on means alone."""
    if FILES in data or rng.random() < 0.6:
        return
    share = float(rng.choice([0.5, 1.0]))
    tokens = str(rng.choice(["output_tokens", "output_tokens", "input_tokens"]))

    def one(value: Any) -> Any:
        if isinstance(value, list):
            return [one(v) for v in value]
        return 1 if rng.random() < share and isinstance(value, int) else value

    changed_at({k: v for k, v in data.items() if k != "requests"}, {tokens}, one)
    for w in data.get("workloads", ()):  # buckets of equal lengths need names of their own
        for k, b in enumerate(w.get("buckets", ())):
            b.setdefault("name", f"b{k}x")
    if rng.random() < 0.5:
        means = {"ttft_s", "tpot_s", "itl_s", "deadline_s"}
        changed_at(data, means, lambda x: x.get("at_most", x) if isinstance(x, dict) else x)


def mentions(data: Any, *keys: str) -> bool:
    """Whether the data has one of these keys anywhere, files beside it left out."""
    if isinstance(data, dict):
        return any(k in keys or (k != FILES and mentions(v, *keys)) for k, v in data.items())
    return isinstance(data, list) and any(mentions(v, *keys) for v in data)


def on_engines(data: Instance) -> bool:
    """Whether operating points of engines are computed."""
    return data.get("serving") == "continuous"


def changed_at(data: Any, keys: set[str], change: Callable[[Any], Any]) -> None:
    """Change the values of these keys in place, wherever they are."""
    for key, value in list(data.items()) if isinstance(data, dict) else list(enumerate(data)):
        if key == FILES:
            continue
        if key in keys:
            data[key] = change(value)
        elif isinstance(value, dict | list):
            changed_at(value, keys, change)


def times(factor: float) -> Callable[[Any], Any]:
    """A function that multiplies all numbers of a value, but percentiles."""

    def change(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: v if k in ("percentile", "share") else change(v) for k, v in value.items()}
        if isinstance(value, list):
            return [change(v) for v in value]
        return value * factor if isinstance(value, int | float) and not isinstance(value, bool) else value

    return change


def machines_of(data: Instance) -> list[Instance]:
    """Own machines of the pool or the pools."""
    pools = data.get("pool") or []
    return [m for one in (pools if isinstance(pools, list) else [pools]) for m in one.get("machines", [])]


# Every formulation ---------------------------------------------------------------------------------------------------


@same()
def lists_in_another_order(data: Instance, rng: Rng) -> bool:
    """No list whose elements are choices, sections or limits has an order that counts."""
    if mentions(data, "noise"):  # drawn by region after region
        return False

    def shuffled(value: Any) -> Any:
        if isinstance(value, dict | list):
            changed_at(value, LISTS, shuffled)
        return [value[i] for i in rng.permutation(len(value))] if isinstance(value, list) else value

    requests = data.get("workloads", [])
    if any("requests" in w for w in requests):  # which name their bucket by its index
        return False
    changed_at({k: v for k, v in data.items() if k not in ("requests", "latency")}, LISTS, shuffled)
    for key in LISTS & data.keys():
        if isinstance(data[key], list):
            data[key] = [data[key][i] for i in rng.permutation(len(data[key]))]
    return True


@same(COST, FLEET, RESERVED)
def prices_in_another_currency(data: Instance, rng: Rng) -> float | bool:
    """Prices × k: costs × k, tokens per USD / k, requests served × 1."""
    if FILES in data or mentions(data, "catalog", "prices_file", "melange"):
        return False
    factor = float(np.exp(rng.uniform(-2, 2)))
    changed_at(data, PRICES, times(factor))
    if data["formulation"] == COST or data.get("objective") == "max_ce":
        return 1 / factor
    return 1.0 if data.get("objective") == "max_served" else factor


@same()
def numbers_in_other_units(data: Instance, rng: Rng) -> bool:
    """A number with a unit of its own is the number in the unit of its key."""

    def spelled(value: Any, unit: str) -> Any:
        if isinstance(value, dict):
            return {k: spelled(v, unit) if k == "at_most" else v for k, v in value.items()}
        if isinstance(value, bool) or not isinstance(value, int | float) or rng.random() < 0.3:
            return value
        factor, name = UNITS[unit][rng.integers(len(UNITS[unit]))]
        return f"{value * factor!r} {name}"

    def walk(part: Any) -> None:
        for key, value in list(part.items()) if isinstance(part, dict) else list(enumerate(part)):
            if key in UNIT_OF and not isinstance(value, list):
                part[key] = spelled(value, UNIT_OF[key])
            elif isinstance(value, dict | list) and key not in (FILES, "points", "serves", "latency", "rows", UNPRICED):
                walk(value)

    walk(data)
    return True


@same(COST, FLEET, RESERVED)
def limit_that_cannot_bind(data: Instance, rng: Rng) -> bool:
    """A latency limit of a day is none, be it on the mean or on a percentile. Static batches know means alone.

    Not with disaggregated stages, where a deadline, however late, leaves fewer operating points to choose from.
    """
    if mentions(data, "points", "points_table", "operating_points") or "stages" in data.get("deployment", {}):
        return False
    sections = [w.setdefault("slo", {}) for w in data.get("workloads", ())]
    sections += [s["slo"] for s in data.get("services", ()) if "workload" in s]
    sections += [data["slo"]] if data.get("slo", {}).get("kind") == "real_time" else []
    for slo in sections:
        for key in ("ttft_s", "tpot_s", "itl_s", "deadline_s"):
            if key not in slo and rng.random() < 0.7 and (on_engines(data) or key != "itl_s"):
                slo[key] = "86400 s"
                if on_engines(data) and rng.random() < 0.5:
                    slo[key] = {"at_most": "86400 s", "percentile": float(rng.choice([0.5, 0.9, 0.99]))}
    return bool(sections)


@looser(COST, FLEET, RESERVED)
def latencies_predicted_with_less_safety(data: Instance, rng: Rng) -> bool:
    """A lower quantile of the prediction divides every latency by some number of at least 1."""
    of = data.get("latency")
    if not isinstance(of, dict) or not of.get("safety"):
        return False
    of["safety"] = round(of["safety"] * float(rng.uniform(0.3, 0.95)), 4)
    return True


@looser(COST, FLEET)
def faster_gpus(data: Instance, rng: Rng) -> bool:
    """More FLOP/s, bandwidth and memory at the same price: every latency is no longer, every cache no smaller."""
    if not data.get("gpus") or data.get("latency", {}).get("model") == "default" or mentions(data, "points"):
        return False
    factor = float(rng.uniform(1.05, 3))
    for gpu in data["gpus"].values():
        for key in gpu.keys() & {"mem_bytes_per_s", "link_bytes_per_s", "pcie_bytes_per_s", *UNIT_OF}:
            gpu[key] *= factor
    return True


@looser(COST, FLEET)
def machines_with_more_memory(data: Instance, rng: Rng) -> bool:
    """Every deployment that fits still does; caches are larger."""
    factor = float(rng.uniform(1.05, 2))
    for machine in machines_of(data):
        for key in ("vram_gib", "ram_gib", "disk_gbps", "net_gbps"):
            if key in machine:
                machine[key] *= factor
    return True


@looser(COST, FLEET)
def machine_listed_twice(data: Instance, rng: Rng) -> bool:
    """Every plan without the second one is still a plan."""
    pools = data.get("pool")
    if not isinstance(pools, dict) or not pools.get("machines") or mentions(data, "include", "exclude"):
        return False
    one = pools["machines"][rng.integers(len(pools["machines"]))]
    pools["machines"].append(copy.deepcopy(one) | {"machine": "twin"})
    return True


@same(COST, FLEET)
def machine_listed_twice_without_limits(data: Instance, rng: Rng) -> bool:
    """Nor does the second one help, where no limit or reserve is by machine."""
    if mentions(data, "stock", "quota", "interruptions", "reserve", "running", "change"):
        return False
    return machine_listed_twice(data, rng)


@same(COST, FLEET)
def machine_that_costs_more(data: Instance, rng: Rng) -> bool:
    """A machine equal to another but for its price is bought in no best plan."""
    if mentions(data, "stock", "quota", "interruptions", "reserve", "running", "change", "operating_points"):
        return False
    if not machine_listed_twice(data, rng):
        return False
    changed_at(data["pool"]["machines"][-1], {"prices"}, times(float(rng.uniform(1.01, 4))))
    return True


@looser(COST, FLEET)
def more_strategies(data: Instance, rng: Rng) -> bool:
    """More counts, batches and degrees to choose from."""
    of = data.get("strategies", {})
    for key, low, top in (("replicas", 1, 9), ("multi_pass", 2, 9), ("parallel", 2, 9), ("shared", 2, 9),
                          ("tensor_parallel", 1, 5), ("batches", 1, 40)):  # fmt: skip
        if of.get(key):
            more = [int(x) for x in rng.integers(low, top, size=2)]
            of[key] = [*of[key], *(x for x in dict.fromkeys(more) if x not in of[key])]
    if on_engines(data) and of.get("attention_ranks"):
        of["attention_ranks"] = [*of["attention_ranks"], *(x for x in (1, 2, 4) if x not in of["attention_ranks"])]
    return bool(of)


# Fleet ---------------------------------------------------------------------------------------------------------------


def _bucket_name(b: Instance) -> str:
    return str(b.get("name") or f"{b['input_tokens']}x{b['output_tokens']}")


@same(FLEET)
def workload_without_requests(data: Instance, rng: Rng) -> bool:
    """Nothing has to be served, so nothing changes."""
    if "workloads" not in data:
        return False
    other = copy.deepcopy(data["workloads"][rng.integers(len(data["workloads"]))])
    if "buckets" not in other:
        return False
    for key in ("min_replicas", "requests_per_s", "requests", "pieces", "serve_at_least", "quality_at_least"):
        other.pop(key, None)
    other["name"] = "nobody"
    for b in other["buckets"]:
        b.pop("share", None)
        b["requests_per_s"] = 0.0
    data["workloads"].insert(int(rng.integers(len(data["workloads"]) + 1)), other)
    return True


@same(FLEET)
def bucket_without_requests(data: Instance, rng: Rng) -> bool:
    """Nor does a bucket without requests, of another length."""
    able = [w for w in data.get("workloads", ()) if "buckets" in w]
    if not able:
        return False
    b = {"name": "none", "requests_per_s": 0.0, "input_tokens": int(rng.integers(1, 3000))}
    able[rng.integers(len(able))]["buckets"].append(b | {"output_tokens": int(rng.integers(1, 300))})
    return True


@same(FLEET)
def workload_in_two_halves(data: Instance, rng: Rng) -> bool:
    """Any plan gives both halves its shares; of a plan for the halves the mean of their shares serves the whole.

    Not with engines: their operating points depend on the number of buckets. Nor with replicas, of which either half
    would need its own, levels of queueing, or chances of a reserve, which are rounded by pool.
    """
    if on_engines(data) or FILES in data or mentions(data, "queueing", "melange", "engine", "rate_factors"):
        return False
    able = [w for w in data.get("workloads", ()) if "buckets" in w and not w.get("min_replicas")]
    if not able or mentions(data, "prefix_cache", "scenarios"):
        return False
    w = able[rng.integers(len(able))]
    part = float(rng.choice([0.5, 0.25, 0.9]))
    other = copy.deepcopy(w) | {"name": w["name"] + "-2"}
    for one, share in ((w, part), (other, 1 - part)):
        one.pop("requests", None)
        for section in (one, *one["buckets"]):
            if "requests_per_s" in section:
                section["requests_per_s"] *= share
    data["workloads"].append(other)
    for point in data.get("points", ()):
        rates = point["requests_per_s"]
        point["requests_per_s"] = rates | {
            k.replace(f"{w['name']}/", f"{other['name']}/", 1): v for k, v in rates.items()
            if k.startswith(f"{w['name']}/")
        }  # fmt: skip
    return True


@looser(FLEET, RESERVED)
def fewer_requests(data: Instance, rng: Rng) -> bool:
    """All rates × a number below 1: the same machines carry them, and the mixtures are the same."""
    if data.get("objective", "min_cost") != "min_cost" or mentions(data, "melange", "scenarios", "prefix_cache"):
        return False
    if data["formulation"] == FLEET and (mentions(data, "trace") or data.get("certify") == "replay"):
        return False
    factor = float(rng.uniform(0.3, 0.99))
    for w in data.get("workloads", ()):
        w.pop("requests", None)
        for section in (w, *w["buckets"]):
            if "requests_per_s" in section:
                section["requests_per_s"] *= factor
    return all(_demand_times(s["demand"], factor) for s in data.get("services", ()))


def _demand_times(demand: Instance, factor: float) -> bool:
    if demand["kind"] == "inline":
        demand["by_region"] = times(factor)(demand["by_region"])
    elif demand["kind"] == "diurnal":
        demand["total_requests_per_s"] *= factor
    else:
        demand["scale"] = demand.get("scale", 1.0) * factor
    return True


@same(FLEET)
def rates_and_throughputs_of_another_second(data: Instance, rng: Rng) -> float | bool:
    """Measured points: rates and throughputs × k, prices of requests / k. Served requests and tokens are × k."""
    if "points" not in data or FILES in data or mentions(data, "model", "models", "queueing", "slo"):
        return False
    factor = float(np.exp(rng.uniform(-3, 3)))
    for section in (*data["workloads"], *(b for w in data["workloads"] for b in w["buckets"]), *data["points"]):
        if "requests_per_s" in section:
            section["requests_per_s"] = times(factor)(section["requests_per_s"])
    changed_at(data, {"unserved_usd_per_1000_requests", "usd_per_1000_requests"}, times(1 / factor))
    return 1.0 if data.get("objective", "min_cost") == "min_cost" else factor


@same(FLEET)
def period_in_two(data: Instance, rng: Rng) -> bool:
    """Nothing starts or stops between two parts of a period, and each has its share of the hours."""
    periods = data.get("periods")
    if not periods or mentions(data, "max_starts", "max_stops", "scenarios"):
        return False
    at = int(rng.integers(len(periods)))
    part = periods[at]["hours"] * float(rng.uniform(0.1, 0.9))
    periods.insert(at + 1, copy.deepcopy(periods[at]) | {"name": "rest", "hours": periods[at]["hours"] - part})
    periods[at]["hours"] = part
    of = data.get("change", {})
    return len(periods) > 2 or not (of.get("start_usd") or of.get("stop_usd"))


@same(FLEET)
def day_begins_later(data: Instance, rng: Rng) -> bool:
    """The day repeats, so the first period may be any, unless machines run before it."""
    if len(data.get("periods", ())) < 2 or "running" in data:
        return False
    data["periods"] = [*data["periods"][1:], data["periods"][0]]
    return True


@same(FLEET)
def weights_on_another_scale(data: Instance, rng: Rng) -> float | bool:
    """Weights × k: what is served, and tokens per USD, are × k."""
    factor = float(np.exp(rng.uniform(-2, 2)))
    for w in data.get("workloads", ()):
        w["weight"] = w.get("weight", 1.0) * factor
    return "workloads" in data and (1.0 if data.get("objective", "min_cost") == "min_cost" else factor)


@looser(FLEET)
def another_precision(data: Instance, rng: Rng) -> bool:
    """A workload's model in a precision that no workload had before: more operating points."""
    if data.get("certify") == "replay" or mentions(data, "points", "points_table", "quality_at_least", "prefix_cache"):
        return False
    able = [w for w in data.get("workloads", ()) if "model" in w and "models" not in w]
    if not able or not machines_of(data):
        return False
    w = able[rng.integers(len(able))]
    first = {"model": w.pop("model"), "precision": w.pop("precision", {})}
    had = {str({"weights": "fp16", "kv": "fp16"} | x.get("precision", {})) for v in data["workloads"]
           for x in (v, first, *v.get("models", ()))}  # fmt: skip
    more = [{"weights": a, "kv": b} for a in ("fp16", "fp8", "int4") for b in ("fp16", "fp8")]
    more = [x for x in more if str(x) not in had]
    if not more:
        return False
    w["models"] = [first, {"model": first["model"], "precision": more[rng.integers(len(more))]}]
    return True


@looser(FLEET)
def limits_that_may_be_missed(data: Instance, rng: Rng) -> bool:
    """Soft limits, wider ones and less expensive ones: every limit that is kept may still be."""
    if mentions(data, "points", "points_table", "melange") or "prefill" in data.get("deployment", {}).get("stages", ()):
        return False
    for w in data.get("workloads", ()):
        if "soft" in w:
            w["soft"]["up_to"] = min(w["soft"].get("up_to", 2.0) * float(rng.uniform(1.0, 2.0)), 100.0)
            w["soft"]["usd_per_1000_requests"] *= float(rng.uniform(0.3, 1.0))
        elif w.get("slo"):
            w["soft"] = {"usd_per_1000_requests": float(rng.uniform(1e-6, 10)), "up_to": float(rng.uniform(1.01, 4.0))}
    return True


@looser(FLEET)
def requests_that_may_be_refused(data: Instance, rng: Rng) -> bool:
    """A price of refused requests where all must be served."""
    if data.get("objective", "min_cost") != "min_cost" or mentions(data, "scenarios"):
        return False
    for w in data.get("workloads", ()):
        if not w.get("unserved_usd_per_1000_requests") and "serve_at_least" not in w:
            w["unserved_usd_per_1000_requests"] = float(np.exp(rng.uniform(-4, 4)))
    return True


@looser(FLEET)
def one_workload_less(data: Instance, rng: Rng) -> bool:
    """Measured and static points: what serves the others still does."""
    if data.get("objective", "min_cost") != "min_cost" or len(data.get("workloads", ())) < 2 or on_engines(data):
        return False
    if FILES in data or mentions(data, "queueing", "rate_factors", "scenarios", "melange"):
        return False
    gone = data["workloads"].pop(int(rng.integers(len(data["workloads"]))))["name"]
    for point in data.get("points", ()):
        rates = point["requests_per_s"]
        point["requests_per_s"] = {k: v for k, v in rates.items() if not k.startswith(f"{gone}/")}
    return all(q["requests_per_s"] for q in data.get("points", ()))


@looser(FLEET)
def stages_more(data: Instance, rng: Rng) -> bool:
    """Disaggregated prefill and decode beside engines that do both."""
    if (
        not on_engines(data)
        or data.get("certify") == "replay"
        or mentions(data, "soft", "prefix_cache", "attention_ranks")
    ):
        return False
    of = data.setdefault("deployment", {})
    of["stages"] = sorted({*of.get("stages", ["both"]), "both", "prefill", "decode"})
    of.setdefault("link", {}).setdefault("net_gbps", float(rng.uniform(10, 400)))
    return True


@looser(FLEET)
def smaller_losses(data: Instance, rng: Rng) -> bool:
    """Fewer interruptions, and costs of starting and stopping that are lower."""
    for x in data.get("interruptions", ()):
        x["per_hour"] *= float(rng.uniform(0.2, 0.9))
        x["recovery_s"] = x.get("recovery_s", 600.0) * float(rng.uniform(0.2, 0.9))
    for key in ("start_usd", "stop_usd"):
        if key in data.get("change", {}):
            data["change"][key] *= float(rng.uniform(0.1, 0.9))
    return True


@looser(FLEET)
def evener_arrivals(data: Instance, rng: Rng) -> bool:
    """Static and measured points: less variance of arrivals and services, more levels of load, or no waiting at all."""
    of = data.get("queueing")
    if not of or of.get("model", "none") == "none":
        return False
    if rng.random() < 0.2:
        of["model"] = "none"
    elif of["model"] == "mmc" and rng.random() < 0.5:
        of["model"] = "mdc"
    of["load_levels"] = [*of.get("load_levels", (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)), float(rng.uniform(0.2, 0.99))]
    for key in ("arrival_scv", "service_scv"):
        if of["model"] == "ggc":
            of[key] = of.get(key, 1.0) * float(rng.uniform(0.3, 1.0))
    return True


@same(FLEET)
def trace_in_another_order(data: Instance, rng: Rng) -> bool:
    """Rows shuffled, times from another beginning and in another unit."""
    found = [w for w in data.get("workloads", ()) if "trace" in w]
    for w in found:
        name, factor, later = w["trace"]["file"], float(rng.choice([1.0, 0.5, 60.0])), float(rng.uniform(0, 1000))
        head, *rows = (line.split(",") for line in data[FILES][name].strip().split("\n"))
        if "time_unit_s" in w["trace"]:
            w["trace"]["time_unit_s"] /= factor
        else:
            factor = 1.0
        rows = [[repr(float(r[0]) * factor + later), *r[1:]] for r in rows]
        data[FILES][name] = (
            "\n".join(",".join(r) for r in (head, *(rows[i] for i in rng.permutation(len(rows))))) + "\n"
        )
    return bool(found)


@looser(COST, FLEET)
def more_room_beside_the_weights(data: Instance, rng: Rng) -> bool:
    """Less memory for the runtime, and more found in the prefix cache."""
    of = data.setdefault("memory", {})
    if "runtime_gib" in of or on_engines(data):
        of["runtime_gib"] = of.get("runtime_gib", 1.0) * float(rng.uniform(0.0, 0.9))
    return bool(of)


# Cost efficiency -----------------------------------------------------------------------------------------------------


@same(COST)
def lengths_in_halves(data: Instance, rng: Rng) -> bool:
    """A class of requests in two of equal lengths, shares on another scale."""
    lengths = data["workload"].get("lengths")
    if lengths is None and on_engines(data):
        w = data["workload"]
        lengths = [{"input_tokens": w.pop("input_tokens"), "output_tokens": w.pop("output_tokens")}]
    if not isinstance(lengths, list):
        return False
    factor, part = float(rng.uniform(0.2, 3)), float(rng.uniform(0.2, 0.8))
    at = int(rng.integers(len(lengths)))
    made = [x | {"share": x.get("share", 1.0) * factor} for x in lengths]
    made.append(made[at] | {"share": made[at]["share"] * part})
    made[at] = made[at] | {"share": made[at]["share"] * (1 - part)}
    data["workload"]["lengths"] = made
    return True


# Reserved capacity ---------------------------------------------------------------------------------------------------


@same(RESERVED)
def service_in_two_halves(data: Instance, rng: Rng) -> bool:
    """Flows, ceilings and losses are linear in a service's demand."""
    s = data["services"][rng.integers(len(data["services"]))]
    if s["demand"]["kind"] in ("trace", "file") or mentions(s, "speculation"):
        return False
    part = float(rng.choice([0.5, 0.3]))
    other = copy.deepcopy(s) | {"name": s["name"] + "-2"}
    _demand_times(s["demand"], part)
    _demand_times(other["demand"], 1 - part)
    _twin_service(data, s, other)
    return True


def _twin_service(data: Instance, s: Instance, other: Instance) -> None:
    data["services"].append(other)
    for m in data["machines"]:
        if s["name"] in m.get("serves", {}):
            m["serves"][other["name"]] = copy.deepcopy(m["serves"][s["name"]])


@same(RESERVED)
def service_without_requests(data: Instance, rng: Rng) -> bool:
    """Nothing has to be served, so nothing changes."""
    of = data["services"][rng.integers(len(data["services"]))]
    s = copy.deepcopy(of) | {"name": "nobody"}
    if s["demand"]["kind"] in ("trace", "file"):
        return False
    _demand_times(s["demand"], 0.0)
    _twin_service(data, of, s)
    return True


@same(RESERVED)
def horizon_of_the_same_hours_again(data: Instance, rng: Rng) -> bool:
    """All inline: every hour twice, each at half its share of the time."""
    if any(s["demand"]["kind"] != "inline" for s in data["services"]):
        return False
    for s in data["services"]:
        s["demand"]["by_region"] = {r: v * 2 for r, v in s["demand"]["by_region"].items()}
    return True


@same(RESERVED)
def hours_in_another_order(data: Instance, rng: Rng) -> bool:
    """No row couples two hours."""
    if any(s["demand"]["kind"] != "inline" for s in data["services"]):
        return False
    hours = len(next(iter(data["services"][0]["demand"]["by_region"].values())))
    order = rng.permutation(hours)
    for s in data["services"]:
        s["demand"]["by_region"] = {r: [v[i] for i in order] for r, v in s["demand"]["by_region"].items()}
    return True


@same(RESERVED)
def demand_in_another_unit(data: Instance, rng: Rng) -> bool:
    """Requests a second, a minute or an hour."""
    per = {"requests_per_second": 1.0, "requests_per_s": 1.0, "requests_per_minute": 60.0, "requests_per_hour": 3600.0}
    for s in data["services"]:
        if s["demand"]["kind"] == "inline":
            unit = str(rng.choice(["requests_per_s", "requests_per_minute", "requests_per_hour"]))
            s["demand"]["by_region"] = times(per[unit] / per[s["demand"]["unit"]])(s["demand"]["by_region"])
            s["demand"]["unit"] = unit
    return True


@same(RESERVED)
def rates_of_another_second(data: Instance, rng: Rng) -> bool:
    """Demand and stated throughputs × k, prices and bytes of a request / k."""
    if mentions(data, "workload") or any(s["demand"]["kind"] != "inline" for s in data["services"]):
        return False
    factor = float(np.exp(rng.uniform(-2, 2)))
    for s in data["services"]:
        _demand_times(s["demand"], factor)
        for key in ("unserved_usd_per_request", "request_kb", "answer_kb"):
            if key in s:
                s[key] /= factor
    for m in data["machines"]:
        changed_at(m.get("serves", {}), {"requests_per_s"}, times(factor))
    return True


@looser(RESERVED)
def region_without_users(data: Instance, rng: Rng) -> bool:
    """A region more in which machines may stand; machines with a list of regions are not offered there."""
    net = data["network"]
    if "rtt_ms" not in net or mentions(data, "noise", "egress"):
        return False
    names = [r["region"] for r in data["regions"]]
    away = {a: float(rng.uniform(5, 200)) for a in names}
    net["rtt_ms"] = {a: {**net["rtt_ms"].get(a, {}), "far": away[a]} for a in names} | {"far": away}
    data["regions"].append({
        "region": "far", "weight": 0.0, "latitude_deg": 0.0, "longitude_deg": 0.0, "utc_offset_h": 0.0,
    })  # fmt: skip
    for s in data["services"]:
        if s["demand"]["kind"] == "inline":
            hours = len(next(iter(s["demand"]["by_region"].values())))
            s["demand"]["by_region"]["far"] = [0.0] * hours
        elif s["demand"]["kind"] != "diurnal":
            return False
    return True


@looser(RESERVED)
def regions_nearer(data: Instance, rng: Rng) -> bool:
    """Shorter round trips, less work of forwarded requests and lower prices of egress."""
    net = data["network"]
    if "rtt_ms" in net:
        net["rtt_ms"] = times(float(rng.uniform(0.3, 1)))(net["rtt_ms"])
    if "usd_per_gb" in net.get("egress", {}):
        net["egress"]["usd_per_gb"] = times(0.8)(net["egress"]["usd_per_gb"])
    for s in data["services"]:
        if "kappa" in s:
            s["kappa"] = 1 + 0.5 * (s["kappa"] - 1)
    return True


@looser(RESERVED)
def faster_machines(data: Instance, rng: Rng) -> bool:
    """Higher stated throughput, shorter prefill and requests, less of spot time lost, smaller minima."""
    factor = float(rng.uniform(1.0, 2.0))
    for m in data["machines"]:
        changed_at(m.get("serves", {}), {"requests_per_s"}, times(factor))
        changed_at(m.get("serves", {}), {"prefill_s", "e2e_s"}, times(1 / factor))
        if "spot_lost_share" in m:
            m["spot_lost_share"] *= 0.7
    return True


@looser(RESERVED)
def milder_future(data: Instance, rng: Rng) -> bool:
    """Slower growth, and less of what is committed beyond the horizon is charged."""
    g = data.get("growth")
    if g is None:
        return False
    g["factor_per_quarter"] = g.get("factor_per_quarter", 1.0) * float(rng.uniform(0.5, 1.0))
    g["beyond_horizon_charged"] = g.get("beyond_horizon_charged", 1.0) * float(rng.uniform(0.0, 1.0))
    return True


@same(RESERVED)
def horizon_of_equal_quarters(data: Instance, rng: Rng) -> bool:
    """Quarters of equal demand, with nothing charged beyond the last: each costs what the horizon without end does."""
    if "growth" in data:
        return False
    data["growth"] = {"quarters": int(rng.integers(1, 4)), "beyond_horizon_charged": 0.0}
    return True


@same(RESERVED)
def machine_type_listed_twice(data: Instance, rng: Rng) -> bool:
    """A twin of a machine that no limit restricts."""
    able = [m for m in data["machines"] if not m.keys() & {
        "reservable", "on_demand_available", "spot_available", "catalog", "prices_file"}]  # fmt: skip
    if not able:
        return False
    m = able[rng.integers(len(able))]
    data["machines"].append(copy.deepcopy(m) | {"machine": "twin"})
    return True


@looser(RESERVED)
def reservations_one_by_one(data: Instance, rng: Rng) -> bool:
    """Steps of 1 in place of larger ones."""
    for m in data["machines"]:
        m.pop("step", None)
    return True


# Orchestration -------------------------------------------------------------------------------------------------------


@same(ORCHESTRATION)
def servers_listed_one_by_one(data: Instance, rng: Rng) -> bool:
    """`count` equal servers are so many entries."""
    made = []
    for s in data["cluster"]["servers"]:
        n = s.get("count", 1)
        names = [s["server"]] if n == 1 else [f"{s['server']}-{i + 1}" for i in range(n)]
        made += [{k: v for k, v in s.items() if k != "count"} | {"server": name} for name in names]
    if mentions(data, "placement"):
        return False
    data["cluster"]["servers"] = made
    return True


@looser(ORCHESTRATION)
def one_server_more(data: Instance, rng: Rng) -> bool:
    """Its GPUs need not be used."""
    one = data["cluster"]["servers"][rng.integers(len(data["cluster"]["servers"]))]
    data["cluster"]["servers"].append({k: v for k, v in one.items() if k != "count"} | {"server": "more"})
    return True


@looser(ORCHESTRATION)
def failed_gpus_repaired(data: Instance, rng: Rng) -> bool:
    """So with GPUs that had failed."""
    return data["cluster"].pop("failed_gpus", None) is not None


@looser(ORCHESTRATION)
def more_candidates(data: Instance, rng: Rng) -> bool:
    """More degrees and batches to choose from."""
    if "candidates" not in data:
        return False
    for key, more in (("tp", (1, 2)), ("pp", (1, 2)), ("dp", (1, 2)), ("batch", (1, 3, 6))):
        had = data["candidates"].get(key, [1] if key in ("pp", "dp") else None)
        if had is not None:
            data["candidates"][key] = [*had, *(x for x in more if x not in had)]
    return True


@looser(ORCHESTRATION)
def longer_deadlines(data: Instance, rng: Rng) -> bool:
    """Every SLO factor × a number above 1."""
    factor = float(rng.uniform(1.01, 3))
    changed_at(data["requests"], {"slo_factor"}, times(factor))
    changed_at(data.get("slo", {}), {"factor"}, times(factor))
    return "trace" not in data["requests"]


@same(ORCHESTRATION)
def classes_in_two_halves(data: Instance, rng: Rng) -> bool:
    """Requests of a class are divisible."""
    classes = data["requests"].get("classes")
    if not classes:
        return False
    part = float(rng.choice([0.5, 0.3]))
    other = copy.deepcopy(classes)
    changed_at(classes, {"requests_per_s"}, times(part))
    changed_at(other, {"requests_per_s"}, times(1 - part))
    data["requests"]["classes"] = [*classes, *other]
    return True


@same(ORCHESTRATION)
def model_without_requests(data: Instance, rng: Rng) -> bool:
    """Nothing has to be served, so nothing changes."""
    requests = data["requests"]
    if len(data["models"]) == 1 and "model" not in requests and "model" not in requests.get("rows", {"model": 0}):
        return False  # the only model need not be named
    one = copy.deepcopy(data["models"][rng.integers(len(data["models"]))]) | {"name": "nobody"}
    for key in ("minimum_instances", "attainment_at_least"):
        one.pop(key, None)
    data["models"].append(one)
    before = data["models"][0]["name"]
    of = data["latency"]
    for key in ("decay", "measured_rows"):
        if key in of:
            of[key] = [*of[key], *(r | {"model": "nobody"} for r in of[key] if r["model"] == before)]
    return not mentions(of, "measured", "fitted")


@same(ORCHESTRATION)
def weights_of_requests_on_another_scale(data: Instance, rng: Rng) -> bool:
    """Attainment is a share of the weights."""
    factor = float(np.exp(rng.uniform(-1, 1)))
    for m in data["models"]:
        m["weight"] = m.get("weight", 1.0) * factor
    return True


@same(ORCHESTRATION)
def requests_that_come_again(data: Instance, rng: Rng) -> bool:
    """The same requests once more, so late that the first are gone: every share and mean is the same.

    The second time begins with a bin, and no request of the first can still wait or run.
    """
    rows, bin_s = data["requests"].get("rows"), data.get("bins", {}).get("seconds")
    n = len(rows["arrival_s"]) if rows else 0
    if not rows or not bin_s or n > 20 or mentions(data, "throughput_threshold_tokens_per_s", "prefix_blocks"):
        return False
    if on_engines(data) or data.get("bins", {}).keys() & {"lengths", "slo"}:  # bursts; groups by quantile
        return False
    after = bin_s * math.ceil(3 * (rows["arrival_s"][-1] + 600) / bin_s)
    for key, value in rows.items():
        if isinstance(value, list):
            rows[key] = [*value, *([x + after for x in value] if key == "arrival_s" else value)]
    return True


@same(ORCHESTRATION)
def seconds_of_another_length(data: Instance, rng: Rng) -> bool:
    """Arrivals, bins and times per token × k, speeds and rates / k. Of stated speeds alone."""
    if "decay" not in data["latency"] or on_engines(data) or FILES in data or mentions(data, "trace"):
        return False
    if any("t_slice_s" not in m for m in data["models"]) or "seconds" not in data.get("bins", {}):
        return False
    factor = float(np.exp(rng.uniform(-1, 1)))
    changed_at(data, {"arrival_s", "seconds", "t_slice_s", "ttft_s", "duration_s", "classes_bin_s",
                      "latency_threshold_s"}, times(factor))  # fmt: skip
    changed_at(data, {"base_tokens_per_s", "prefill_tokens_per_s", "requests_per_s",
                      "throughput_threshold_tokens_per_s"}, times(1 / factor))  # fmt: skip
    return True


@looser(ORCHESTRATION)
def calmer_engines(data: Instance, rng: Rng) -> bool:
    """A lower quantile, evener arrivals and more delays to choose from."""
    if not on_engines(data) or "change" in data:
        return False
    of = data.setdefault("engine", {})
    of["quantile"] = max(of.get("quantile", 0.8) * float(rng.uniform(0.8, 1.0)), 0.5)
    if isinstance(of.get("bursts"), float):
        of["bursts"] = 1 + (of["bursts"] - 1) * float(rng.uniform(0.0, 1.0))
    waits = of.get("waits", [1.0, 4.0])
    waits = waits if isinstance(waits, list) else [waits]
    of["waits"] = [*waits, float(np.exp(rng.uniform(-2, 2)))]
    return True


@looser(ORCHESTRATION)
def changes_at_a_lower_price(data: Instance, rng: Rng) -> bool:
    """Starts and stops cost less score."""
    for key in ("score_per_start", "score_per_stop"):
        if key in data.get("change", {}):
            data["change"][key] *= float(rng.uniform(0.0, 0.9))
    return True


@looser(ORCHESTRATION)
def faster_instances(data: Instance, rng: Rng) -> bool:
    """Stated speeds × a number above 1, beside stated times per token of the deadline."""
    if "decay" not in data["latency"] or any("t_slice_s" not in m for m in data["models"]) or on_engines(data):
        return False
    for row in data["latency"]["decay"]:
        for key in ("base_tokens_per_s", "prefill_tokens_per_s"):
            if key in row:
                row[key] *= float(rng.uniform(1.01, 2.0)) if key == "prefill_tokens_per_s" else 1.5
        row["delta"] *= 0.7
    return True
