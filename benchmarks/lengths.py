"""A closed loop planned for its mean lengths and for the lengths of a trace, both replayed with the trace's requests.

    python benchmarks/lengths.py FOLDER

FOLDER holds the public traces `AzureLLMInferenceTrace_code.csv` and `AzureLLMInferenceTrace_conv.csv` (Azure 2023). 400
users of Llama 3.1 8B on any GPU machine of AWS, on demand, vLLM's global coefficients; each limit is for 95 % of the
requests. Printed: machines and price of each plan, and what share of the replayed requests is within each limit, where
users begin spread over the time of a request.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import optmodels
from formulations.cost_efficiency.replay import replay
from optmodels.simulation.options import ReplayOptions
from optmodels.traces.readers import read_trace

LIMITS = {"conv": {"ttft_s": 1.0, "tpot_s": 0.05, "deadline_s": 15.0},
          "code": {"ttft_s": 1.0, "tpot_s": 0.1, "deadline_s": 4.0}}  # fmt: skip
METRICS = {"ttft_s": "ttft_s", "tpot_s": "tpot_s", "deadline_s": "e2e_s"}
SHARE = 0.95


def instance(limits: dict[str, float], requests: dict[str, Any]) -> dict[str, Any]:
    """Of these limits and lengths."""
    return {
        "formulation": "cost_efficiency", "schema": 1, "model": "llama-3.1-8b", "workload": {"batch": 400, **requests},
        "slo": {"kind": "real_time", "tps": 1000,
                **{k: {"at_most": v, "percentile": SHARE} for k, v in limits.items()}},
        "pool": {"catalog": "aws"}, "markets": {"main": ["on_demand"]}, "serving": "continuous",
        "strategies": {"families": ["high_end"]}, "latency": {"model": "default", "engine": "vllm"},
    }  # fmt: skip


def main(folder: Path) -> None:
    """Command line."""
    for name, limits in LIMITS.items():
        file = folder / f"AzureLLMInferenceTrace_{name}.csv"
        trace = read_trace(file)
        means = [round(float(x.mean())) for x in (trace.prompt_tokens, trace.output_tokens)]
        fine = {"input_edges": [128, 256, 512, 1024, 2048, 3072, 4096], "output_edges": [16, 64, 128, 256, 384, 512]}
        planned = {
            f"{means[0]} + {means[1]} tokens": dict(zip(("input_tokens", "output_tokens"), means, strict=True)),
            "lengths of the trace": {"lengths": {"trace": file.name}},
            "the same, cut finer": {"lengths": {"trace": file.name, **fine}},
        }
        print(f"{name}: within " + ", ".join(f"{k} {v:g}" for k, v in limits.items()) + f" for {SHARE:.0%}")
        for label, requests in planned.items():
            with tempfile.TemporaryDirectory() as beside:
                shutil.copy(file, beside)
                (Path(beside) / "instance.yaml").write_text(yaml.safe_dump(instance(limits, requests)))
                problem = optmodels.load(Path(beside) / "instance.yaml")
                found = optmodels.solve(problem)
                if found.plan is None:
                    print(f"  {label}: {found.status}")
                    continue
                assert found.check is not None and found.check.ok
                kept: dict[str, float] = {}

                def keep(
                    _: str, columns: dict[str, Any], kept: dict[str, float] = kept, limits: dict[str, float] = limits
                ) -> None:
                    for limit, metric in METRICS.items():
                        values = columns[metric][np.isfinite(columns[metric])]
                        kept[limit] = float((values <= limits[limit]).mean())

                replay(problem, found.plan, trace, ReplayOptions(policy="spread", keep=keep))
            (m,) = found.plan["machines"]
            print(f"  {label}: {m['count']} × {m['machine']}, {found.plan['usd_per_hour']:.2f} USD/h; within "
                  + ", ".join(f"{k} {v:.1%}" for k, v in kept.items()))  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
