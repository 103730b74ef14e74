"""Plans that `alterations` alters: shipped problems of every kind, and questions with traces, spot, LoRA and limits."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import document_cases

import optmodels

SHIPPED = [
    "cost_efficiency/fig1/real_time-budget-3.0", "cost_efficiency/table_ix/batch-budget-2.0",
    "cost_efficiency/present_day/llama-3.1-70b-chat-aws", "cost_efficiency/present_day/mixtral-8x7b-rag-gcp",
    "cost_efficiency/textbook/hand-checkable",
    "fleet/day-and-night", "fleet/two-models", "fleet/melange-example", "fleet/spot-heavy", "fleet/stock-limited",
    "fleet/aws-six-workloads", "fleet/aws-continuous", "fleet/aws-stages", "fleet/agent-stages",
    "fleet/deepseek-r1-ranks", "fleet/llama-3.3-70b-stages",
    "orchestration/textbook-two-servers", "orchestration/maaso-trace-1", "orchestration/continuous-chat-and-code",
    "orchestration/failed-gpus", "orchestration/azure-2023-classes",
    "reserved_capacity/textbook-two-regions", "reserved_capacity/textbook-growth-and-scenarios",
    "reserved_capacity/paper-three-regions-l4", "reserved_capacity/week-32-aws",
]  # fmt: skip
CASES = [
    ("cost_efficiency", "continuous batching"),
    ("cost_efficiency", "attention ranks"),
    ("fleet", "certified"),
    ("fleet", "drawn"),
    ("orchestration", "certified"),
    ("orchestration", "shortfalls"),
    ("orchestration", "changes"),
    ("orchestration", "stages apart"),
    ("orchestration", "attention ranks"),
    ("orchestration", "continuous batching"),
    ("reserved_capacity", "other days"),
    ("reserved_capacity", "futures"),
    ("reserved_capacity", "continuous batching"),
]
STEPS = ((4.0, 300), (12.0, 240), (2.0, 300))  # requests/s, for seconds


def _trace(folder: Path) -> Path:
    """Requests at rates that change twice."""
    rng, at, begin, rows = random.Random(5), 0.0, 0.0, []
    for rate, seconds in STEPS:
        at = begin
        while (at := at + rng.expovariate(rate)) < begin + seconds:
            long = rng.random() < 0.3
            rows.append((at, rng.randint(3000, 5000) if long else rng.randint(200, 900), rng.randint(60, 240)))
        begin += seconds
    path = folder / "steps.csv"
    text = "".join(f"{t:.3f},{i},{o}\n" for t, i, o in rows)
    path.write_text("arrival_s,input_tokens,output_tokens\n" + text, encoding="utf-8")
    return path


def _questions(folder: Path) -> dict:
    """Answers to questions without a file, by name."""
    trace, chat = _trace(folder), {"model": "llama-3.1-8b", "input": 900, "output": 200, "rate": 30}
    of_trace = {"model": "llama-3.1-8b", "trace": trace, "ttft_p95": 1.5, "tpot_p95": 0.06, "gpu": ["l40s"]}
    lora = document_cases.BATCHING["engine"] | {"lora": {"max_loras": 4, "max_lora_rank": 16, "slower": 1.1}}
    return {
        "plan itl": lambda: optmodels.plan(**chat, ttft_p95=0.6, tpot=0.04, itl_p95=0.2, gpu=["l40s", "a10g"]),
        "plan trace": lambda: optmodels.plan(**of_trace),
        "plan trace uncertified": lambda: optmodels.plan(**of_trace, certify_replay=False),
        "plan spot": lambda: optmodels.plan(**chat, ttft=0.8, tpot=0.05, market=["spot", "on_demand"], survive=1),
        "plan certified": lambda: optmodels.plan(
            **chat, ttft_p95=0.6, tpot_p95=0.05, gpu=["l40s"], certify_replay=True
        ),
        "plan safety": lambda: optmodels.plan(**chat, ttft=0.8, tpot=0.05, gpu=["h100", "l40s"], safety=0.9),
        "plan in a second": lambda: optmodels.plan(**of_trace, time_limit=2),
        "lora": lambda: optmodels.solve(document_cases.BATCHING | {"engine": lora}),
    }


def _named() -> dict:
    """Every plan's name and how it is solved, in the folder given."""
    here = Path(__file__).parents[1] / "instances"
    found = {x: lambda _f, x=x: optmodels.solve(here / f"{x}.yaml", _method(x)) for x in SHIPPED}
    for form, case in CASES:
        problem, method = document_cases.CASES[form][case]
        found[f"{form} {case}"] = lambda _f, p=problem, m=method: optmodels.solve(p, m)
    names = ("plan itl", "plan trace", "plan trace uncertified", "plan spot", "plan certified", "plan safety",
             "plan in a second", "lora")  # fmt: skip
    return found | {n: lambda folder, n=n: _questions(folder)[n]() for n in names}


def _method(name: str) -> str:
    return "maaso_star" if "maaso" in name else "exact"


PLANS = _named()


def solved(name: str, folder: Path) -> tuple[dict | None, float]:
    """The document of a plan and the CPU seconds of its solve; kept in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{name.replace('/', '-').replace(' ', '-')}.json"
    if not kept.is_file():
        clock = time.process_time()
        document = PLANS[name](folder).model_dump(mode="json", by_alias=True)
        kept.write_text(json.dumps([document, time.process_time() - clock]), encoding="utf-8")
    document, seconds = json.loads(kept.read_text(encoding="utf-8"))
    if document["plan"] is None:
        sys.stdout.write(f"{name}: no plan ({document['status']})\n")
        return None, seconds
    return document, seconds
