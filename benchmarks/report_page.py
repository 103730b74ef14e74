"""The page of the largest shipped result: its size, and how soon Chromium has drawn it.

    python benchmarks/report_page.py [INSTANCE]

Rival, in the same run: the page that vl-convert itself writes of that result's charts, one below the other. Both are
opened from disk without a network; seconds are medians over three visits, CPU is the page's main thread.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import optmodels
from optmodels.reporting import page
from optmodels.reporting.charts import CONFIG

LARGEST = Path(__file__).parents[1] / "instances/reserved_capacity/year-40-gcp.yaml"
VISITS = 3


def rival(charts: list[Any]) -> str:
    """vl-convert's page of the same charts."""
    import vl_convert

    specs = [{k: v for k, v in c.spec.items() if k != "$schema"} | {"width": 960} for c in charts]
    spec = {"$schema": charts[0].spec["$schema"], "vconcat": specs, "config": CONFIG}
    return str(vl_convert.vegalite_to_html(spec, bundle=True))


def visit(browser: Any, file: Path, ready: str) -> tuple[float, float]:
    """Seconds from opening until everything is drawn, and CPU seconds of the page's main thread."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_offline(True)
    tab = context.new_page()
    tools = context.new_cdp_session(tab)
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})
    began = time.perf_counter()
    tab.goto(file.as_uri())
    tab.wait_for_selector(ready, timeout=60_000)
    seconds = time.perf_counter() - began
    metrics = {m["name"]: m["value"] for m in tools.send("Performance.getMetrics")["metrics"]}
    context.close()
    return seconds, metrics["TaskDuration"]


def main() -> None:
    """Print sizes and medians."""
    from playwright.sync_api import sync_playwright

    instance = Path(sys.argv[1]) if len(sys.argv) > 1 else LARGEST
    result = optmodels.solve(instance)
    articles = page.articles([result])
    pages = {"optmodels": page.render(articles), "vl-convert": rival(articles[0].charts())}
    ready = {"optmodels": "html[data-drawn]", "vl-convert": "canvas, svg.marks"}
    found = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        browser = p.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        for name, text in pages.items():
            file = Path(folder) / f"{name}.html"
            file.write_text(text, encoding="utf-8")
            visits = [visit(browser, file, ready[name]) for _ in range(VISITS)]
            found[name] = [statistics.median(v) for v in zip(*visits, strict=True)]
            seconds, cpu = found[name]
            print(f"{name}: {len(text.encode()) / 1e6:.2f} MB, all drawn after {seconds:.2f} s ({cpu:.2f} s CPU)")
        browser.close()
    ours, theirs = found["optmodels"][0], found["vl-convert"][0]
    print(f"{len(articles[0].charts())} charts of {instance.stem}: {ours / theirs:.2f} times vl-convert's seconds")


if __name__ == "__main__":
    main()
