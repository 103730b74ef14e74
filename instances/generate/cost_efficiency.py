"""Write the paper families of shipped instances: ``python instances/generate/cost_efficiency.py`` (CI compares them).

Single cases (textbook/, present_day/) are written by hand; a family is one rule, so it is generated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parents[1]
WORKLOADS = {"summarization": (1024, 128), "generative": (128, 1024), "balanced": (512, 512)}
SLOS = {
    "real_time": "{kind: real_time, tps: 100, ttft_s: 0.2, tpot_s: 0.05}",
    "batch": "{kind: batch, tps: 10}",
}
READING = {"real_time": "capped", "batch": "uncapped"}
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
BUDGETS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)
SIMULATION_BATCH = 4

STRATEGIES = """\
# The paper's space has no replicas; which k, K and N it tries it does not say.
strategies:
  replicas: [1]
  multi_pass: [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
  parallel: [2, 3, 4, 6, 8]
  shared: [2, 3, 4, 6, 8]"""

FIG3 = """\
# LLM-Pilot Fig. 3, one cell: {workload} ({s_in}/{s_out} tokens), {service}, B = {batch}, on Table VII's pool.
# {in_figure}
formulation: cost_efficiency
schema: 1
name: fig3-{workload}-{service}-b{batch:03d}
title: LLM-Pilot Fig. 3, {workload}, {service}, B = {batch}
model: opt-6.7b
workload: {{batch: {batch}, input_tokens: {s_in}, output_tokens: {s_out}}}
slo: {slo}
objective: {reading}
markets: {{main: [on_demand, spot], ao: [on_demand, spot]}}
serving: static
pool: {{catalog: llm-pilot-table-vii}}
{strategies}
latency: {{variant: roofline, calibration: llm-pilot-table-viii}}
memory: {{vram_usable: 1.0, ram_usable: 1.0}}
baselines:
  high_end: g6e.2xlarge
  ao_cluster: {{main: g5.xlarge, ao: g4dn.4xlarge}}
  kvo_disk: g4dn.xlarge
  infersave: {{base: g5.4xlarge, plus: g5.8xlarge}}
"""

FIG1 = """\
# LLM-Pilot Fig. 1, one budget: Balanced (512/512 tokens), {service}, on Table VI's pool. The paper does not state
# the batch size; B = {batch} is the power of two at which its AO pair, Sim-D + Sim-A, comes nearest to the 110 tokens/s
# that Table IX implies (python -m papers.llm_pilot --only fig1 prints the pair's predictions by batch size).
formulation: cost_efficiency
schema: 1
name: fig1-{service}-{budget:.1f}
title: LLM-Pilot Fig. 1, {service}, budget {budget:.1f} USD/h
model: opt-6.7b
workload: {{batch: {batch}, input_tokens: 512, output_tokens: 512}}
slo: {slo}
objective: {reading}
budget_usd_per_hour: {budget:.1f}
markets: {{main: [on_demand, spot], ao: [on_demand, spot]}}
serving: static
pool: {{catalog: llm-pilot-table-vi}}
{strategies}
latency: {{variant: roofline, calibration: llm-pilot-table-viii}}
memory: {{vram_usable: 1.0, ram_usable: 1.0}}
baselines:
  high_end: Sim-G
  ao_cluster: {{main: Sim-D, ao: Sim-A}}
  kvo_disk: Sim-A
  infersave: {{base: Sim-E, plus: Sim-F}}
"""

TABLE_IX = """\
# LLM-Pilot Table IX's economics, {service}, budget {budget:.1f} USD/h: throughputs read off the paper's CE figures
# (measured.csv), prices of Table VI, markets ours to choose. Real-time latencies are not in the paper, so the SLO here
# is its throughput alone.
formulation: cost_efficiency
schema: 1
name: table-ix-{service}-{budget:.1f}
title: LLM-Pilot Table IX, {service}, budget {budget:.1f} USD/h
model: opt-6.7b
workload: {{batch: 8, input_tokens: 512, output_tokens: 512}}
slo: {{kind: batch, tps: {tps}}}
objective: {reading}
budget_usd_per_hour: {budget:.1f}
markets: {{main: [on_demand, spot], ao: [on_demand, spot]}}
serving: static
pool: {{catalog: llm-pilot-table-vi}}
latency: {{operating_points: measured.csv}}
baselines:
  high_end: Sim-G
  ao_cluster: {{main: Sim-D, ao: Sim-A}}
  kvo_disk: Sim-A
  infersave: {{base: Sim-E, plus: Sim-F}}
"""


def instances() -> Iterator[tuple[Path, str]]:
    """Every generated file with its text."""
    root = HERE / "cost_efficiency"
    for workload, (s_in, s_out) in WORKLOADS.items():
        for service, slo in SLOS.items():
            for batch in BATCHES:
                shown = "One of its 32 cells." if workload != "balanced" else "Not in the figure, which omits Balanced."
                text = FIG3.format(
                    workload=workload, s_in=s_in, s_out=s_out, service=service, batch=batch, slo=slo,
                    reading=READING[service], in_figure=shown, strategies=STRATEGIES,
                )  # fmt: skip
                yield root / "fig3" / f"{workload}-{service}-b{batch:03d}.yaml", text
    for service, slo in SLOS.items():
        for budget in BUDGETS:
            text = FIG1.format(
                service=service, batch=SIMULATION_BATCH, slo=slo, reading=READING[service], budget=budget,
                strategies=STRATEGIES,
            )  # fmt: skip
            yield root / "fig1" / f"{service}-budget-{budget:.1f}.yaml", text
    for service, tps in (("real_time", 100), ("batch", 10)):
        for budget in (1.0, 1.5, 2.0, 5.0):
            text = TABLE_IX.format(service=service, budget=budget, tps=tps, reading=READING[service])
            yield root / "table_ix" / f"{service}-budget-{budget:.1f}.yaml", text


def main() -> None:
    """Write every file."""
    for path, text in instances():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(list(instances()))} instances\n")


if __name__ == "__main__":
    main()
