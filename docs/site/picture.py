"""The picture of the landing page: one problem planned by several methods, as `docs/img/landing.svg`.

python docs/site/picture.py
"""

from __future__ import annotations

from pathlib import Path

import optmodels

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "img" / "landing.svg"
PROBLEM = "instances/fleet/aws-continuous.yaml"
METHODS = {
    "exact": "optmodels, proved best",
    "melange": "Mélange's slices, without a proof",
    "column_pruning": "few candidates per workload",
    "greedy": "best tokens per dollar first",
    "single_type": "one machine type for all",
}
WIDTH, TOP, ROW, BAR, LONGEST = 440, 56, 46, 18, 380  # labels stand above their bars, for narrow screens
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #222 } .small { fill: #666 }
  .title { font-weight: 600; font-size: 15px }
  rect { fill: #b8bfd6 } .best rect { fill: #3f51b5 } .best text { font-weight: 600 } line { stroke: #3f51b5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6e6e6 } .small { fill: #aaa }
    rect { fill: #565d78 } .best rect { fill: #8c9eff } line { stroke: #8c9eff }
  }
"""


def picture() -> str:
    """The picture as SVG; in dark mode its colours change."""
    rows = optmodels.compare([ROOT / PROBLEM], list(METHODS))
    cost = {str(r["method"]): float(r["objective"]) for r in rows}
    bound, most = max(float(r["bound"]) for r in rows if r["bound"] is not None), max(cost.values())
    height, at = TOP + ROW * len(METHODS) + 30, LONGEST * bound / most
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="Cost of one problem by method, USD per hour">',
        f"<style>{STYLE}</style>",
        '<text class="title" x="0" y="16">Six LLM workloads on AWS, the same SLOs</text>',
        '<text class="small" x="0" y="38">USD per hour</text>',
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP + 14}" y2="{height - 26}" stroke-dasharray="4 4"/>',
        *(_bar(TOP + ROW * i, METHODS[m], cost[m], most, m == "exact") for i, m in enumerate(METHODS)),
        f'<text class="small" x="{at:.1f}" y="{height - 8}" text-anchor="middle">no fleet costs less (proved)</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _bar(y: int, title: str, value: float, most: float, best: bool) -> str:
    long, group = LONGEST * value / most, '<g class="best">' if best else "<g>"
    return (
        f"{group}"
        f'<text x="0" y="{y + 14}">{title}</text>'
        f'<rect x="0" y="{y + 20}" width="{long:.1f}" height="{BAR}" rx="3"/>'
        f'<text x="{long + 8:.1f}" y="{y + 34}">{value:,.0f}</text></g>'
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
