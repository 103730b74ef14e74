"""SkyLB's serving figures (Figs 6, 8, 9, 10) replayed on stated workloads, beside the paper's, with pictures.

python -m papers.skylb_replay [FOLDER] [--seconds S] [--seed N]

Replicas: Llama-3.1-8B on one L4. Prefill at the 300 ms for 512 tokens that SK §2.1 reports (23 % of the dense peak);
decoding at 80 % of 300 GB/s; KV memory of 88 % of 22.5 GiB less the weights (SGLang's default share). Round trips: the
catalogue's, us-east-1, eu-central-1, ap-northeast-1. Clients, replicas and trees as in SK §5.1 and 5.2.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from optmodels import catalog
from optmodels.catalog import geography
from optmodels.latency.work import layer_work
from optmodels.reporting.charts import chart, coloured, save_chart
from optmodels.simulation.regions import POLICIES, RegionEngine, RegionFleet, RegionRouting, Replay, policy, simulate
from optmodels.traces.multiregion import Chat, RegionWorkload
from optmodels.units import GIB
from papers.skylb_workloads import ARENA, WILDCHAT, Tree, closed_loop_chat, closed_loop_trees

REGIONS = ("us-east-1", "eu-central-1", "ap-northeast-1")
PREFILL_512_S = 0.300  # SK §2.1
L4_BYTES_PER_S, DECODE_EFFICIENCY = 300e9, 0.8
USABLE_GIB, SHARE = 22.5, 0.88
LOCAL_RTT_MS = 2.0
SECONDS, WARM_UP = 600.0, 0.2
NAMES = {"round_robin": "RR", "least_load": "LL", "consistent_hashing": "CH", "prefix": "SGL", "skylb_ch": "SkyLB-CH",
         "skylb": "SkyLB", "gateway": "gateway"}  # fmt: skip
FIG9_KV_TOKENS = 15_000  # what 20 to 50 of our requests fill, which is what SK §3.3 saw an L4 hold
LONG = Tree(thought_tokens=320.0, most_tokens=640)  # fills the memory: bursts spill


def l4_engine() -> RegionEngine:
    """Llama-3.1-8B on an L4 as the module's docstring says."""
    work = layer_work(catalog.llms()["llama-3.1-8b"])
    per_token = PREFILL_512_S / 512
    bandwidth = L4_BYTES_PER_S * DECODE_EFFICIENCY
    return RegionEngine(
        kv_tokens=int((USABLE_GIB * SHARE * GIB - work.weight_bytes) / work.kv_bytes_per_token_all_layers),
        decode_s=work.layers * work.fixed_weight_bytes / bandwidth,
        decode_per_kv_token_s=work.kv_bytes_per_token_all_layers / bandwidth, decode_per_sequence_s=per_token,
        prefill_s=0.005, prefill_per_token_s=per_token,
    )  # fmt: skip


def fleet(*replicas: int) -> RegionFleet:
    """L4 replicas in the first of `REGIONS`."""
    known, rtt = geography.round_trip_times("aws")
    at = [known.index(r) for r in REGIONS[: len(replicas)]]
    one_way = rtt[np.ix_(at, at)] / 2000.0
    np.fill_diagonal(one_way, LOCAL_RTT_MS / 2000.0)
    where = np.repeat(np.arange(len(replicas)), replicas)
    return RegionFleet(REGIONS[: len(replicas)], one_way, (l4_engine(),), where, np.zeros(len(where), dtype=np.int64))


@dataclass(frozen=True)
class Case:
    """One column of Fig. 8."""

    name: str
    work: RegionWorkload
    fleet: RegionFleet


def by_region(*clients: int) -> dict[str, int]:
    """Clients of the regions in order."""
    return dict(zip(REGIONS, clients, strict=False))


def macro_cases(seconds: float, seed: int = 0) -> list[Case]:
    """Fig. 8's four workloads; enough programs that no client runs out."""
    each = int(seconds / 4) + 4
    trees = dict.fromkeys(REGIONS, Tree())
    uneven, even = fleet(3, 2, 3), fleet(4, 4, 4)
    return [
        Case("ChatBot Arena", closed_loop_chat(ARENA, by_region(80, 80, 80), each, seed=seed), uneven),
        Case("WildChat", closed_loop_chat(WILDCHAT, by_region(40, 30, 30), each, seed=seed), uneven),
        Case("ToT", closed_loop_trees(trees, by_region(40, 20, 20), each // 2, seed=seed), even),
        Case("Mixed Tree", closed_loop_trees(trees | {REGIONS[0]: Tree(4)}, by_region(2, 20, 20), each // 2, seed=seed),
             even),
    ]  # fmt: skip


def run(case: Case, routing: RegionRouting, seconds: float, seed: int = 0) -> tuple[Replay, dict[str, Any]]:
    """Replay one case for so long; metrics after the warm-up."""
    r = simulate(case.work.trace, case.fleet, routing, programs=case.work.programs, until_s=seconds, seed=seed)
    return r, r.metrics(warmup_s=WARM_UP * seconds)


def systems() -> dict[str, RegionRouting]:
    """Fig. 8's systems; the gateway is a balancer in every region, least load, forwarding at 20 outstanding."""
    return dict(POLICIES) | {"gateway": RegionRouting("round_robin", "outstanding", "regional", limit=20)}


def figure_8(seconds: float, seed: int = 0) -> list[dict[str, Any]]:
    """Throughput, TTFT, end to end latency and hit rates of every system on every workload."""
    rows = []
    for case in macro_cases(seconds, seed):
        for name, routing in systems().items():
            _, m = run(case, routing, seconds, seed)
            rows.append({"workload": case.name, "system": name} | m)
    return rows


def figure_6(seconds: float, seed: int = 0) -> list[dict[str, Any]]:
    """Hit rates of consistent hashing against one prefix tree over all replicas: cross-user, bursty, heterogeneous.

    Arrivals are the same for both; the tree has a global view and is checked for load as SkyLB's (SP-P), as is the
    hash ring.
    """
    each = int(seconds / 4) + 4
    question = Chat(1.2, 64.0, 128.0, template_tokens=512, templated=1.0, users=4000, activity=0.0, common=800)
    many = by_region(100)
    cases = {
        "cross-user sharing": closed_loop_chat(question, many, each, seed=seed),
        "bursty users": closed_loop_trees({REGIONS[0]: LONG}, by_region(32), each // 4, user_clients=8, seed=seed),
        "heterogeneous programs": closed_loop_chat(replace(question, turns=2.0, users=16), many, each, seed=seed),
    }  # fmt: skip
    rows = []
    for name, work in cases.items():
        for select in ("consistent_hashing", "prefix"):
            _, m = run(Case(name, work, fleet(4)), policy(select, "pending", match=0.3, router=False), seconds, seed)
            rows.append({"case": name, "policy": select, "cache_hit_rate": m["cache_hit_rate"]})
    return rows


def figure_9(seconds: float, seed: int = 0, limits: tuple[int, ...] = (12, 20, 50)) -> list[dict[str, Any]]:
    """Blind pushing, SP-O at several limits and SP-P of SGLang's router: one region, four replicas, 30 clients, ToT.

    With the whole KV memory of an L4 nothing ever waits at a replica and the three are equal; hence FIG9_KV_TOKENS.
    """
    each, four = int(seconds / 8) + 4, fleet(4)
    four = replace(four, engines=(replace(four.engines[0], kv_tokens=FIG9_KV_TOKENS),))
    case = Case("ToT", closed_loop_trees({REGIONS[0]: Tree()}, by_region(30), each, seed=seed), four)
    ways = {"BP": policy("prefix", "blind")}
    ways |= {f"SP-O {n}": policy("prefix", "outstanding", limit=n) for n in limits}
    ways["SP-P"] = policy("prefix", "pending")
    return [{"push": name} | run(case, routing, seconds, seed)[1] for name, routing in ways.items()]


def figure_10(seconds: float, seed: int = 0, replicas: tuple[int, ...] = (3, 6, 9, 12)) -> list[dict[str, Any]]:
    """Throughput of SkyLB and of regions left to themselves: 120/40/40 clients, replicas spread evenly (SK §5.2).

    Chat as in WildChat, but prompts less spread: the few longest would make throughput a matter of luck.
    """
    chat = replace(WILDCHAT, sigma_user=1.2)
    work = closed_loop_chat(chat, by_region(120, 40, 40), int(seconds / 4) + 4, seed=seed)
    rows = []
    for n in replicas:
        case = Case(f"{n} replicas", work, fleet(*[n // 3] * 3))
        for name, routing in (("skylb", POLICIES["skylb"]), ("region_local", policy("skylb", layout="local"))):
            rows.append({"replicas": n, "deployment": name} | run(case, routing, seconds, seed)[1])
    return rows


def skew(seconds: float, seed: int = 0, busy: tuple[int, ...] = (67, 100, 120, 140, 160)) -> list[dict[str, Any]]:
    """What makes SK's -25 % hold: 9 pooled replicas against 12 region-local ones, by clients of the busy region of 200.

    With `figure_10`'s conversations, and with single questions that share nothing: no cache hits to lose by forwarding.
    ``pooled_over_local`` is the ratio of output tokens/s; ``peak_to_mean`` the busy region's clients over the mean.
    """
    chat = replace(WILDCHAT, sigma_user=1.2)
    plain = replace(chat, turns=1.0, user_tokens=chat.user_tokens + 256.0, templated=0.0, system_tokens=1)
    ways = {"pooled": (3, POLICIES["skylb"]), "local": (4, policy("skylb", layout="local"))}
    rows = []
    for requests, kind in (("conversations", chat), ("single questions", plain)):
        for n in busy:
            rest = (200 - n) // 2
            work = closed_loop_chat(kind, by_region(n, rest, rest), int(seconds / 4) + 4, seed=seed)
            seen = {name: run(Case(name, work, fleet(*[each] * 3)), routing, seconds, seed)[1]
                    for name, (each, routing) in ways.items()}  # fmt: skip
            rows.append({
                "requests": requests, "clients": [n, rest, rest], "peak_to_mean": 3 * n / (n + 2 * rest),
                "pooled_over_local": seen["pooled"]["output_tokens_per_s"] / seen["local"]["output_tokens_per_s"],
                "hit_pooled": seen["pooled"]["cache_hit_rate"], "hit_local": seen["local"]["cache_hit_rate"],
            })  # fmt: skip
    return rows


# --------------------------------------------------------------------------------------------------- pictures


def draw(folder: Path, found: dict[str, list[dict[str, Any]]]) -> list[Path]:
    """Pictures of what was found."""
    made = []
    for name, picture in (("fig8", _draw_8), ("fig6", _draw_6), ("fig9", _draw_9), ("fig10", _draw_10)):
        if name in found:
            made.append(folder / f"skylb-{name}.png")
            rows, spec = picture(found[name])
            title = f"SkyLB {name.replace('fig', 'Fig. ')} recomputed"
            save_chart(chart(title, "As in the paper.", rows, spec), made[-1], overwrite=True)
    return made


OURS, OTHERS = "#4477aa", "#bbbbbb"
Drawn = tuple[list[dict[str, Any]], dict[str, Any]]  # rows of data, and what draws them


def _flat(row: dict[str, Any], name: str, ours: bool) -> dict[str, Any]:
    """A row of data: throughput, hit rate and the quantiles of both latencies."""
    quantiles = {f"{what}_{q}": v for what in ("ttft_s", "e2e_s") for q, v in row[what].items()}
    return quantiles | {"name": name, "colour": OURS if ours else OTHERS, "speed": row["output_tokens_per_s"],
                        "hit": f"{row['cache_hit_rate']:.0%}"}  # fmt: skip


def _throughput_and_latencies(names: list[str], size: dict[str, Any]) -> list[dict[str, Any]]:
    """Three panels: throughput with the hit rate above; TTFT and end to end from p10 to p90, with quartiles, median
    and the mean as a triangle, as in Fig. 8."""
    x = {"field": "name", "type": "nominal", "sort": names, "title": None, "axis": {"labelAngle": -50}}
    speed = {"field": "speed", "type": "quantitative", "title": "output tokens/s (hit rate above)"}
    colour = {"field": "colour", "type": "nominal", "scale": None}
    bars = [
        {"mark": {"type": "bar"}, "encoding": {"x": x, "y": speed, "color": colour}},
        {"mark": {"type": "text", "dy": -6, "fontSize": 9}, "encoding": {"x": x, "y": speed, "text": {"field": "hit"}}},
    ]

    def box(what: str, title: str, kind: str) -> list[dict[str, Any]]:
        def at(low: str, high: str | None = None) -> dict[str, Any]:
            y = {"field": f"{what}_{low}", "type": "quantitative", "title": title, "axis": {"format": ",~r"},
                 "scale": {"type": kind, "nice": True}}  # fmt: skip
            return {"x": x, "y": y} | ({"y2": {"field": f"{what}_{high}"}} if high else {})

        return [
            {"mark": {"type": "rule"}, "encoding": at("p10", "p90")},
            {"mark": {"type": "bar", "width": {"band": 0.6}, "stroke": "#333", "cornerRadiusEnd": 0},
             "encoding": at("p25", "p75") | {"color": colour}},
            {"mark": {"type": "tick", "width": {"band": 0.6}, "thickness": 2, "color": "#cc3311"},
             "encoding": at("p50")},
            {"mark": {"type": "point", "shape": "triangle-down", "filled": True, "color": "#111", "size": 25,
                      "opacity": 1}, "encoding": at("mean")},
        ]  # fmt: skip

    layers = (bars, box("ttft_s", "TTFT, s", "log"), box("e2e_s", "end to end, s", "linear"))
    return [size | {"layer": layer} for layer in layers]


def _draw_8(rows: list[dict[str, Any]]) -> Drawn:
    flat = [_flat(r, NAMES[r["system"]], r["system"].startswith("skylb")) | {"workload": r["workload"]} for r in rows]
    columns = []
    for workload in dict.fromkeys(r["workload"] for r in flat):
        names = [r["name"] for r in flat if r["workload"] == workload]
        size = {"width": 200, "height": 190, "transform": [{"filter": {"field": "workload", "equal": workload}}]}
        columns.append({"title": workload, "vconcat": _throughput_and_latencies(names, size)})
    return flat, {"hconcat": columns}


def _draw_6(rows: list[dict[str, Any]]) -> Drawn:
    named = {"consistent_hashing": "consistent hashing", "prefix": "prefix tree, global view"}
    flat = [{"case": r["case"], "policy": named[r["policy"]], "hit": r["cache_hit_rate"],
             "text": f"{r['cache_hit_rate']:.1%}"} for r in rows if r["policy"] in named]  # fmt: skip
    place = {
        "x": {"field": "case", "type": "nominal", "sort": None, "title": None, "axis": {"labelAngle": 0}},
        "xOffset": {"field": "policy", "sort": list(named.values())},
        "y": {"field": "hit", "type": "quantitative", "title": "KV cache hit rate", "axis": {"format": "%"},
              "scale": {"domain": [0, 1]}},
    }  # fmt: skip
    bars = {"mark": {"type": "bar"}, "encoding": place | {"color": coloured("policy", named.values(), (OTHERS, OURS))}}
    text = {"mark": {"type": "text", "dy": -7}, "encoding": place | {"text": {"field": "text"}}}
    return flat, {"width": 420, "height": 240, "layer": [bars, text]}


def _draw_9(rows: list[dict[str, Any]]) -> Drawn:
    flat = [_flat(r, r["push"], r["push"] == "SP-P") for r in rows]
    return flat, {"hconcat": _throughput_and_latencies([r["name"] for r in flat], {"width": 220, "height": 200})}


def _draw_10(rows: list[dict[str, Any]]) -> Drawn:
    named = {"skylb": "SkyLB", "region_local": "region-local"}
    flat = [{"name": named[r["deployment"]], "replicas": r["replicas"], "speed": r["output_tokens_per_s"]}
            for r in rows if r["deployment"] in named]  # fmt: skip
    encoding = {
        "x": {"field": "replicas", "type": "quantitative", "title": "replicas in three regions",
              "axis": {"tickMinStep": 1}, "scale": {"zero": False}},
        "y": {"field": "speed", "type": "quantitative", "title": "output tokens/s"},
        "color": coloured("name", named.values(), (OURS, "#cc3311")),
    }  # fmt: skip
    return flat, {"width": 400, "mark": {"type": "line", "point": {"size": 50}}, "encoding": encoding}


# ------------------------------------------------------------------------------------------------------- text


def lines(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """What was found, in words."""
    return [
        *(f"{r['workload']}, {NAMES[r['system']]}: {_speed(r)}, end to end p50 {_s(r['e2e_s']['p50'])},"
          f" forwarded {r['forwarded_share']:.0%}, outstanding max/min {_ratio(r['outstanding_max_over_min'])}"
          for r in found.get("fig8", [])),
        *(f"{r['case']}, {NAMES[r['policy']]}: hit rate {r['cache_hit_rate']:.1%}" for r in found.get("fig6", [])),
        *(f"{r['push']}: {_speed(r)}" for r in found.get("fig9", [])),
        *(f"{r['replicas']} replicas, {r['deployment']}: {_speed(r)}" for r in found.get("fig10", [])),
        *(f"{r['requests']} of {'/'.join(map(str, r['clients']))} clients, peak/mean {r['peak_to_mean']:.2f}:"
          f" 9 pooled replicas serve {r['pooled_over_local']:.2f} times what 12 local ones do"
          f" (hit rate {r['hit_pooled']:.0%} against {r['hit_local']:.0%})" for r in found.get("skew", [])),
    ]  # fmt: skip


def _speed(r: dict[str, Any]) -> str:
    t = r["ttft_s"]
    return (f"{r['output_tokens_per_s']:,.0f} output tokens/s, hit rate {r['cache_hit_rate']:.1%},"
            f" TTFT p50 {_s(t['p50'])} p90 {_s(t['p90'])}")  # fmt: skip


def _s(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def main(arguments: list[str]) -> int:
    """Replay all figures, print and draw them."""
    import json

    from optmodels.cli.console import show

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="results/skylb", help="for the pictures and replay.json")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figures", default="fig6,fig8,fig9,fig10")
    a = parser.parse_args(arguments)
    known = {"fig6": figure_6, "fig8": figure_8, "fig9": figure_9, "fig10": figure_10, "skew": skew}
    found = {name: known[name](a.seconds, a.seed) for name in a.figures.split(",")}
    show(lines(found))
    folder = Path(a.folder)
    made = draw(folder, found)
    (folder / "replay.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    show([f"written: {', '.join(map(str, [*made, folder / 'replay.json']))}"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
