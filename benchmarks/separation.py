"""When disaggregated prefill and decode pays: the figures and tables of docs/results/disaggregation.md.

python benchmarks/separation.py [--write]    solves and simulates some hundred fleets (four CPU minutes)

--write puts the tables into the page and draws its figure.

One bucket of requests to Llama 3.3 70B in FP8 on nodes of 8 H100 or H200, at rates that take some dozens of nodes, so
that whole machines hardly matter. Both fleets, with and without stages, are optima within 0.5 %.
"""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import Any

import optmodels
from optmodels.io.read import read_document

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/results/disaggregation.md"
RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # prompt tokens for each token of output
TPOT_S = (0.05, 0.065, 0.08, 0.1, 0.15)
NETS_GBPS = (5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0, 800.0, 3200.0)
GAP = 5e-3
TOKENS = 4096  # of a request, prompt and output
CERTIFY_S = 240.0  # for rounds of certification, of which each shipped instance takes less
SHIPPED = ("aws-stages", "llama-3.3-70b-stages", "agent-stages", "deepseek-r1-stages")


def instance(ratio: float, tpot_s: float, **deployment: Any) -> dict[str, Any]:
    """A fleet for requests of one shape."""
    output = max(round(TOKENS / (1 + ratio)), 2)
    prompt = TOKENS - output
    rate = 2e6 / (prompt + 3 * output)
    slo = {"ttft_s": {"at_most": 3.0, "percentile": 0.95}, "tpot_s": {"at_most": tpot_s, "percentile": 0.95}}
    return {
        "formulation": "fleet", "schema": 1, "name": f"ratio {ratio:g}",
        "workloads": [{
            "name": "w", "model": "llama-3.3-70b", "precision": {"weights": "fp8", "kv": "fp8"}, "slo": slo,
            "buckets": [{"input_tokens": prompt, "output_tokens": output, "requests_per_s": rate}],
        }],
        "pool": {"catalog": "aws", "include": ["p5.48xlarge", "p5en.48xlarge"]},
        "markets": {"main": ["on_demand"], "ao": ["on_demand"]}, "serving": "continuous", "deployment": deployment,
    }  # fmt: skip


def cost(problem: Any) -> float:
    """USD/h of the best fleet; infinite where there is none."""
    result = optmodels.solve(problem, gap=GAP, time_limit=60.0)
    if result.status == "infeasible":
        return math.inf
    assert result.objective is not None and result.gap is not None and result.gap <= GAP, result.status
    return float(result.objective)


def saved(together: float, apart: float) -> float:
    """Share of the cost together that is saved apart; 1 where together cannot."""
    return 1.0 if math.isinf(together) else 1.0 - apart / together


STAGES = ["both", "prefill", "decode"]


def by_shape() -> dict[tuple[float, float], tuple[float, float]]:
    """(ratio, TPOT) → (USD/h together, together or apart)."""
    return {
        (ratio, tpot): (cost(instance(ratio, tpot)), cost(instance(ratio, tpot, stages=STAGES)))
        for ratio in RATIOS for tpot in TPOT_S
    }  # fmt: skip


def by_link(ratios: tuple[float, ...], tpot_s: float) -> dict[tuple[float, float], tuple[float, float]]:
    """(ratio, Gbit/s of a node) → the same."""
    found = {}
    for ratio in ratios:
        together = cost(instance(ratio, tpot_s))
        for net in NETS_GBPS:
            apart = cost(instance(ratio, tpot_s, stages=STAGES, link={"net_gbps": net}))
            found[ratio, net] = together, apart
    return found


def cell(together: float, apart: float) -> str:
    """What a table says of two costs."""
    if math.isinf(apart):
        return "neither"
    if math.isinf(together):
        return "only apart"
    share = saved(together, apart)
    return "0" if share < GAP else f"{100 * share:.0f} %"


def table(found: dict[tuple[float, float], tuple[float, float]], across: str, unit: float) -> list[str]:
    """Rows by ratio, columns by the other value."""
    others = sorted({b for _, b in found})
    lines = [f"| prompt : output | {' | '.join(f'{b * unit:g} {across}' for b in others)} |",
             "|---|" + "---|" * len(others)]  # fmt: skip
    for a in sorted({a for a, _ in found}):
        name = f"{a:g} : 1" if a >= 1 else f"1 : {1 / a:g}"
        lines.append(f"| {name} | " + " | ".join(cell(*found[a, b]) for b in others) + " |")
    return lines


def shipped() -> list[str]:
    """The shipped instances with and without stages."""
    lines = ["| instance | aggregated | free choice | saved |", "|---|---|---|---|"]
    for name in SHIPPED:
        document = read_document(ROOT / f"instances/fleet/{name}.yaml")[0]
        together, apart = (cost(document | {"deployment": {"stages": s}}) for s in (["both"], STAGES))
        both = f"{together:.2f}" if math.isfinite(together) else "impossible"
        lines.append(f"| `{name}` | {both} | {apart:.2f} | {cell(together, apart)} |")
    return lines


def certified() -> list[str]:
    """The shipped instances with and without stages, each the cheapest fleet whose promises hold in simulation."""
    lines = ["| instance | aggregated | free choice | saved | proved |", "|---|---|---|---|---|"]
    for name in SHIPPED:
        document = read_document(ROOT / f"instances/fleet/{name}.yaml")[0]
        result = optmodels.solve(document | {"certify": "replay"}, gap=GAP, time_limit=CERTIFY_S)
        stages, apart = result.log["stages"], result.objective
        assert result.plan is not None and apart is not None and stages["certified"]
        together = stages["without"]["objective"] if stages["used"] else apart
        proved = (
            "no disaggregated fleet is cheaper" if stages.get("none_is_better") else f"none below {result.bound:.2f}"
        )
        lines.append(f"| `{name}` | {together:.2f} | {apart:.2f} | {cell(together, apart)} | {proved} |")
    return lines


def draw(shapes: dict[Any, tuple[float, float]], links: dict[Any, tuple[float, float]], file: Path) -> None:
    """Both figures side by side."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    colours, only_apart = plt.get_cmap("viridis"), "possible only apart"
    for i, tpot in enumerate(TPOT_S):
        shown = [(r, 100 * saved(*shapes[r, tpot])) for r in RATIOS if not math.isinf(shapes[r, tpot][0])]
        colour = colours(i / len(TPOT_S))
        left.plot(*zip(*shown, strict=True), "o-", color=colour, label=f"{1000 * tpot:g} ms")
        beyond = [r for r in RATIOS if math.isinf(shapes[r, tpot][0]) and not math.isinf(shapes[r, tpot][1])]
        if beyond:
            left.plot(beyond, [74 + 3 * i] * len(beyond), "^", color=colour, label=only_apart)
            only_apart = "_"  # said once
    left.set(xscale="log", xlabel="prompt tokens for each token of output", ylabel="saved apart, % of USD/h",
             ylim=(-3, 99), title="by shape of requests")  # fmt: skip
    left.set_xticks(RATIOS, ["1:4", "1:2", *(f"{r:g}" for r in RATIOS[2:])])
    left.minorticks_off()
    left.legend(title="TPOT (p95) at most", fontsize=8)
    for i, ratio in enumerate(sorted({a for a, _ in links})):
        right.plot(NETS_GBPS, [100 * saved(*links[ratio, b]) for b in NETS_GBPS], "o-", color=f"C{i}",
                   label=f"{ratio:g} : 1")  # fmt: skip
    right.set(xscale="log", xlabel="network of a node, Gbit/s", title="by network", ylim=(-3, 99))
    right.set_xticks(NETS_GBPS, [f"{b:g}" for b in NETS_GBPS])
    right.minorticks_off()
    right.legend(title="prompt : output", fontsize=8)
    for one in (left, right):
        one.grid(alpha=0.3)
    figure.savefig(file, dpi=110, metadata={"Software": None})


LINK_RATIOS, LINK_TPOT_S = (4.0, 8.0, 32.0), 0.065


def main() -> None:
    """Print the tables; with --write put them into the page, and the figure beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    shapes, links = by_shape(), by_link(LINK_RATIOS, LINK_TPOT_S)
    parts = {
        "shape": table(shapes, "ms", 1000.0), "link": table(links, "Gbit/s", 1.0), "shipped": shipped(),
        "certified": certified(),
    }  # fmt: skip
    for name, lines in parts.items():
        print(f"{name}\n" + "\n".join(lines) + "\n")
    if write:
        draw(shapes, links, ROOT / "docs/img/separation.png")
        text = PAGE.read_text(encoding="utf-8")
        for name, lines in parts.items():
            mark = re.compile(rf"(<!-- {name} -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
            text = mark.sub(lambda m, lines=lines: m[1] + "\n".join(lines) + m[2], text)
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
