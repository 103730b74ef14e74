"""A published day of RAG requests: fewest GPUs with a bound, and GPU-hours of a fleet that follows it.

    python benchmarks/rag_day.py [--data FOLDER] [--seed 0]

The published study (ai-dynamo/aisimulate, examples/sweeper/nvopt-ragpulse, October 2026) plans DeepSeek-V3 on at most
256 H200 for 537,600 requests of one day: TTFT ≤ 1 s and mean ITL ≤ 50 ms of each request. Its trace is 512 copies of
RAGPulse's day 5, each session moved by up to 30 seconds. With the public rows of RAGPulse in FOLDER each hour draws its
rows from that hour of day 5, as many as published. Without them arrivals are uniform in each hour and lengths
lognormal about the published means. Both are random with the stated seed.

*Static*: engines step by step, all requests, the fewest of them that attain a share. *Bound*: no fleet attains the
share with fewer, whatever it batches, dispatches and disaggregates (`least_gpus`). *Following*: replicas of the best
static engine in the fluid queue of `backtest`, then the same replicas minute by minute in the step simulator.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from formulations.fleet.engines import EngineKind, costs_of
from optmodels import question
from optmodels.autoscaling.backtest import (
    KEEP_LEVELS,
    ORDER_LEVELS,
    PLAN_DEFAULT,
    Quantiles,
    backtest,
    cost_at,
)
from optmodels.autoscaling.history import History
from optmodels.autoscaling.policies import PolicyMethod, QuantileRule, Static
from optmodels.autoscaling.running import Replica, run
from optmodels.engine.continuous import EngineLimits
from optmodels.loading import load
from optmodels.simulation.continuous import Arrivals, Engine, simulate

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"
COPIES, JITTER_S, DAY = 512, 30.0, 86_400
TTFT_S, ITL_S, GPUS = 1.0, 0.05, 256
TRANSFER_S, SLACK_S = 0.005, 0.7  # of a KV cache; of waiting, beside a prefill of about 0.3 s
GOALS = (0.90, 0.95, 0.99)
STARTS_S = (0, 65, 155, 300)
PUBLISHED = {0.90: (56, 64.2), 0.95: (80, 79.7), 0.99: (96, 151.5)}  # static GPUs, planned mean GPUs at start-up 0
BEFORE = 2_024_448 // COPIES // 4  # rows of an earlier day
REQUESTS, INPUT, OUTPUT = 537_600, 1_476_413_952, 160_730_624
SD_INPUT, SD_OUTPUT = 0.45, 0.75  # of the logarithms, where lengths are drawn
# Requests, million input and output tokens by hour, as published.
HOURLY = (
    (24460, 67.35, 6.56), (29981, 86.27, 9.08), (44602, 110.34, 10.79), (52509, 139.05, 13.60), (28160, 90.00, 10.94),
    (23552, 63.70, 6.74), (35328, 82.79, 8.80), (30685, 82.86, 9.47), (38334, 102.64, 12.09), (41522, 104.17, 12.35),
    (30288, 85.41, 9.22), (29155, 84.01, 8.99), (28160, 86.56, 8.55), (21783, 62.69, 6.57), (24447, 69.27, 8.44),
    (20842, 64.64, 8.13), (8704, 23.28, 2.37), (6505, 20.13, 2.01), (2199, 6.44, 0.63), (2048, 6.16, 0.42),
    (2560, 4.39, 1.23), (1536, 1.94, 0.70), (2048, 5.35, 0.44), (8192, 26.96, 2.60),
)  # fmt: skip


@dataclass(frozen=True)
class Day:
    """Requests in the order of their arrival: seconds, prompt and output tokens."""

    arrival_s: np.ndarray
    input: np.ndarray
    output: np.ndarray


def rows_of(folder: Path) -> np.ndarray | None:
    """Rows of RAGPulse (second, input, output), or None where the file is absent."""
    path = folder / "ragpulse_7days.jsonl.gz"
    if not path.is_file():
        return None
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found = [json.loads(line) for line in file if line.strip()]
    return np.array([[float(r["timestamp"]), r["input_length"], r["output_length"]] for r in found])


def copies(second: np.ndarray, prompt: np.ndarray, answer: np.ndarray, rng: np.random.Generator) -> Day:
    """512 copies of a day's rows, each moved by up to 30 seconds."""
    t = np.repeat(second, COPIES) + rng.uniform(-JITTER_S, JITTER_S, len(second) * COPIES)
    order = np.argsort(t, kind="stable")
    each = [np.maximum(np.repeat(x, COPIES)[order].astype(np.int64), 1) for x in (prompt, answer)]
    return Day(np.maximum(t[order], 0.0), *each)


def day_five(rows: np.ndarray | None, rng: np.random.Generator) -> Day:
    """The published day: rows of each hour to the published number, lengths scaled to the published tokens."""
    made: list[list[np.ndarray]] = [[], [], []]
    counts = np.diff(np.round(np.cumsum([0.0, *(n / COPIES for n, _, _ in HOURLY)]))).astype(int)
    for hour, (n, (requests, prompt, answer)) in enumerate(zip(counts.tolist(), HOURLY, strict=True)):
        mine = None if rows is None else rows[(rows[:, 0] // 3600).astype(int) == 96 + hour]
        if mine is not None and len(mine):
            drawn = mine[
                np.concatenate([rng.permutation(len(mine))[:n], rng.integers(0, len(mine), max(n - len(mine), 0))])
            ]
            second = drawn[:, 0] - 4 * DAY
            second[len(mine) :] = 3600 * hour + rng.uniform(
                0, 3600, max(n - len(mine), 0)
            )  # rows not in the public file
            lengths = drawn[:, 1], drawn[:, 2]
        else:
            second = 3600 * hour + rng.uniform(0, 3600, n)
            lengths = rng.lognormal(0, SD_INPUT, n), rng.lognormal(0, SD_OUTPUT, n)
        made[0].append(second)
        for of, values, tokens in zip(made[1:], lengths, (prompt, answer), strict=True):
            of.append(values * (tokens * 1e6 / requests) / values.mean())
    return copies(*(np.concatenate(x) for x in made), rng)


def before(rows: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """Requests of days 1 to 4 in bins of ten seconds; drawn by the hours of day 5 where the file is absent."""
    if rows is None:
        share = np.array([n for n, _, _ in HOURLY]) / REQUESTS
        second = np.concatenate([DAY * d + 3600 * rng.choice(24, BEFORE, p=share) + rng.uniform(0, 3600, BEFORE)
                                 for d in range(4)])  # fmt: skip
    else:
        second = rows[rows[:, 0] < 4 * DAY, 0]
    one = np.ones(len(second))
    return binned(copies(second, one, one, rng).arrival_s, 4)


def binned(arrival_s: np.ndarray, days: int) -> np.ndarray:
    """Requests in each bin of ten seconds."""
    return np.bincount(np.minimum(arrival_s // 10, days * 8640 - 1).astype(np.int64), minlength=days * 8640).astype(
        float
    )


# ----------------------------------------------------------------------------------------------------------- engines


def engines() -> dict[str, Engine]:
    """Engines of 8 H200 by name: tensor parallel, or data-parallel attention ranks with experts over all."""
    asked = question.Question(
        model="deepseek-v3", input_tokens=INPUT // REQUESTS, output_tokens=OUTPUT // REQUESTS, rate=1.0, gpus=("h200",),
        kv="fp8",
    )  # fmt: skip
    case = load(question.instance(asked)).resolve()
    (w,) = case.workloads
    machine = next(m for m in case.machines if m.gpu == "h200" and m.gpu_count == 8)
    found = {}
    for ranks in (1, 2):  # 4 and 8 ranks attain less: 70 and 53 % with 56 GPUs, where 1 rank attains 86 %
        kind = EngineKind("h200", 8 // ranks, machine.vram_gib / 8, attention_ranks=ranks)
        for budget in (2048, 8192):
            limits = EngineLimits(max_num_seqs=256 // ranks, max_num_batched_tokens=budget)
            of = costs_of(case, w, kind, INPUT / REQUESTS, INPUT / REQUESTS, limits)
            name = f"TP{8 // ranks} × DP{ranks}, {budget} tokens a step"
            found[name] = Engine(of.costs, int(of.kv_tokens / ranks), 256 // ranks, budget, ranks=ranks)
    return found


def within(day: Day, seen) -> float:
    """Share of the requests with TTFT and mean ITL within the SLO."""
    good = (seen.ttft_s <= TTFT_S) & (np.nan_to_num(seen.tpot_s) <= ITL_S)
    return float(good.mean())


def attained(day: Day, engine: Engine, count: int) -> float:
    """Share attained by a constant number of engines, each request to the shortest queue."""
    return within(day, simulate(Arrivals.of(day.arrival_s, day.input, day.output), [engine] * count, "shortest_queue"))


def followed(day: Day, engine: Engine, ready: np.ndarray) -> float:
    """Share attained by engines whose number changes each minute; one that stops finishes what it has."""
    most = int(ready.max())
    kinds = [Engine(engine.costs, engine.kv_tokens, engine.max_num_seqs, engine.max_num_batched_tokens,
                    ranks=engine.ranks, kind=k) for k in range(most)]  # fmt: skip
    shares = np.zeros((len(ready), 1, most + 1))
    shares[:, 0, :most] = (np.arange(most)[None] < ready[:, None]) / ready[:, None]
    arrivals = Arrivals.of(day.arrival_s, day.input, day.output)
    return within(day, simulate(arrivals, kinds, "planned_shares", planned=shares, planned_bin_s=60.0))


def work(day: Day, all_engines: dict[str, Engine]) -> tuple[np.ndarray, np.ndarray]:
    """Least GPU-seconds of each request for prefill and for decoding, over all engines of 8 GPUs.

    A prompt of n tokens takes n·(p + s/B) + q·n²/2 seconds: p by token, q by pair, s of a step that carries up to B.
    Decoding takes o·(d + c·context)/(1 − f/ITL): within the mean ITL, steps whose fixed part is f leave 1 − f/ITL of
    the time to work. Attention ranks take at least this, as a step waits for its busiest rank.
    """
    prefill, decode = np.full(len(day.input), np.inf), np.full(len(day.input), np.inf)
    later = np.maximum(day.output - 1, 0)
    for e in all_engines.values():
        c, free = e.costs, 1.0 - min(e.costs.fixed_s / ITL_S, 0.99)
        token_s = c.prompt_token_s + c.prompt_step_s / (e.max_num_batched_tokens * e.ranks)
        context = min(c.context_s, c.mixed_context_s) * (day.input + day.output / 2)
        prefill = np.minimum(prefill, 8 * (token_s * day.input + c.prompt_pair_s * day.input**2 / 2))
        decode = np.minimum(decode, 8 * later * (c.decode_request_s + context) / free)
    return prefill, decode


def least_gpus(day: Day, all_engines: dict[str, Engine], goal: float) -> int:
    """No fewer GPUs attain the goal: in each window the requests of least work, and all of it fits the window's time.

    A request within its SLO ends its prefill a second after its arrival, and all its work ITL·output later. Windows are
    disjoint, requests of more than 500 output tokens count as attained for nothing.
    """
    prefill, decode = work(day, all_engines)
    best = 0
    for seconds in (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0):
        for least, end in ((prefill, TTFT_S), (prefill + decode, TTFT_S + ITL_S * 500)):
            least = np.where((day.output > 500) & (end > TTFT_S), 0.0, least)
            window = (day.arrival_s // seconds).astype(np.int64)
            order = np.lexsort((least, window))
            first = np.searchsorted(window[order], np.arange(window.max() + 2))
            total = np.concatenate([[0.0], np.cumsum(least[order])])
            gpus = 1
            while gpus < GPUS:
                most = np.searchsorted(total, total[first[:-1]] + gpus * (seconds + end), side="right") - 1
                if (np.minimum(most, first[1:]) - first[:-1]).sum() >= goal * len(least):
                    break
                gpus += 1
            best = max(best, gpus)
    return 8 * -(-best // 8)  # engines of 8


def fewest(day: Day, engine: Engine, goal: float, known: dict[int, float]) -> int | None:
    """The fewest engines that attain the goal, by bisection; None: 32 do not."""
    low, high = 1, GPUS // 8
    for n in (high,):
        known.setdefault(n, attained(day, engine, n))
    if known[high] < goal:
        return None
    while low < high:
        n = (low + high) // 2
        if n not in known:
            known[n] = attained(day, engine, n)
        low, high = (low, n) if known[n] >= goal else (n + 1, high)
    return low


def disaggregated(day: Day, engine: Engine) -> dict[float, tuple[int, int, float]]:
    """Fewest prefill and decode engines by goal, and their share: the KV cache comes with the request."""
    one, best = np.ones_like(day.output), {}
    decoded = day.output > 1
    for prefill in range(2, 13):
        first = simulate(Arrivals.of(day.arrival_s, day.input, one), [engine] * prefill, "shortest_queue")
        early = first.ttft_s <= TTFT_S
        came = first.first_s - engine.costs.request_s + TRANSFER_S
        order = np.argsort(came, kind="stable")
        order = order[decoded[order]]
        arrivals = Arrivals.of(came[order], day.input[order], day.output[order], received_tokens=day.input[order])
        for decode in range(1, 5):
            wanted = [g for g in GOALS if early.mean() >= g and (g not in best or prefill + decode < sum(best[g][:2]))]
            if not wanted:
                continue
            second = simulate(arrivals, [engine] * decode, "shortest_queue")
            itl = (second.finish_s - engine.costs.request_s - came[order]) / (day.output[order] - 1)
            good = early.copy()
            good[order] &= itl + TRANSFER_S / (day.output[order] - 1) <= ITL_S
            best |= {g: (prefill, decode, float(good.mean())) for g in wanted if good.mean() >= g}
    return best


def fluid_rate(day: Day, count: int, share: float) -> float:
    """Requests/s of a replica with which `count` of them attain in the fluid queue what they attain step by step."""
    history = History(binned(day.arrival_s, 1))
    low, high = 0.1, 20.0
    for _ in range(30):
        rate = (low + high) / 2
        seen = run(Static(count * rate, 1.0), history, Replica(rate, 8.0, 0, 0, SLACK_S))
        low, high = (low, rate) if 1 - seen.late.sum() / seen.requests.sum() >= share else (rate, high)
    return rate


def following(day: Day, earlier: np.ndarray, engine: Engine, rate: float) -> None:
    """Mean GPUs by start-up time and goal, from all settings on the day as in the study, and step by step."""
    history = History(np.concatenate([earlier, binned(day.arrival_s, 1)]))
    methods = ("plan", "hpa", "keda", "wva", "perfect")
    print("\n| start-up | attained | " + " | ".join(methods) + " | hindsight | `plan`, step by step |")
    print("|---|---|" + "---|" * (len(methods) + 2))
    for start_s in STARTS_S:
        replica = Replica(rate, 8.0, -(-start_s // 60), 1, SLACK_S)  # whole minutes, rounded up; 8 GPUs
        found = backtest(history, replica, 4 * 1440, 1440, methods=methods, goal=GOALS[0])
        q = Quantiles(history, replica, 4 * 1440)
        for goal in GOALS:
            at = {m: cost_at(found.frontiers[m], goal) for m in methods}
            cells = ["never" if at[m] is None else f"{at[m] * found.hindsight_usd / 24:.1f}" for m in methods]
            steps = "never"
            able = [
                (cost, s) for (share, cost), s in zip(found.frontiers["plan"], settings(), strict=True) if share >= goal
            ]
            if able:
                _, s = min(able, key=lambda x: x[0])
                seen = run(QuantileRule(q.order(s["order"]), q.keep(s["keep"])), history, replica)
                used = seen.paid[4 * 1440 :].sum() * 8 / 60
                share = followed(day, engine, seen.ready[4 * 1440 :].astype(int))
                steps = f"{used / 24:.1f} GPUs, {share:.1%}"
            print(
                f"| {start_s} s | {goal:.0%} | " + " | ".join(cells) + f" | {found.hindsight_usd / 24:.1f} | {steps} |",
                flush=True,
            )


def settings() -> list[dict[str, float]]:
    """Settings of `plan` in the order of its frontier."""
    return PolicyMethod(QuantileRule, PLAN_DEFAULT, {"order": ORDER_LEVELS, "keep": KEEP_LEVELS}).settings()


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    began = time.process_time()
    rng = np.random.default_rng(a.seed)
    rows = rows_of(a.data)
    day, earlier = day_five(rows, rng), before(rows, rng)
    busiest = np.bincount((day.arrival_s // 60).astype(np.int64)).max() / 60
    print(
        f"{'Generated' if rows is None else 'RAGPulse rows'}, seed {a.seed}: {len(day.input):,} requests, "
        f"{day.input.sum():,} input and {day.output.sum():,} output tokens, busiest minute {busiest:.1f} requests/s"
    )
    designs = engines()
    found: dict[str, dict[int, float]] = {name: {} for name in designs}
    print("\n| engine of 8 H200 | 40 GPUs | 56 | 80 | 96 |\n|---|---|---|---|---|")
    for name, engine in designs.items():
        for n in (5, 7, 10, 12):
            found[name][n] = attained(day, engine, n)
        print(f"| {name} | " + " | ".join(f"{found[name][n]:.1%}" for n in (5, 7, 10, 12)) + " |", flush=True)
    print("\n| attained | fewest static GPUs | engine | bound | published static |\n|---|---|---|---|---|")
    best = {}
    for goal in GOALS:
        each = {name: fewest(day, designs[name], goal, found[name]) for name in designs}
        name = min((n for n in each if each[n] is not None), key=lambda n: (each[n], -found[n][each[n]]))
        best[goal] = name
        bound = least_gpus(day, designs, goal)
        ours = f"{8 * each[name]} ({found[name][each[name]]:.1%})"
        print(f"| {goal:.0%} | {ours} | {name} | {bound} | {PUBLISHED[goal][0]} |", flush=True)
    apart = disaggregated(day, designs[best[0.95]])
    print("\n| attained | fewest GPUs, prefill and decode on their own engines |\n|---|---|")
    for goal, (prefill, decode, share) in apart.items():
        print(f"| {goal:.0%} | {8 * (prefill + decode)} = {8 * prefill} + {8 * decode} ({share:.1%}) |", flush=True)
    engine, count = designs[best[0.95]], min(n for n, share in found[best[0.95]].items() if share >= 0.95)
    rate = fluid_rate(day, count, found[best[0.95]][count])
    print(f"\nReplica: {best[0.95]}, {rate:.2f} requests/s in the fluid queue")
    following(day, earlier, engine, rate)
    print(f"\n{time.process_time() - began:.0f} CPU seconds")


if __name__ == "__main__":
    main()
