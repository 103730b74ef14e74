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
from numba import njit

from formulations.fleet.engines import EngineKind, costs_of
from optmodels import question
from optmodels.autoscaling import levels
from optmodels.autoscaling.backtest import (
    KEEP_LEVELS,
    ORDER_LEVELS,
    PLAN_DEFAULT,
    Quantiles,
    _method,
    backtest,
    cost_at,
)
from optmodels.autoscaling.history import History
from optmodels.autoscaling.policies import PolicyMethod, QuantileRule, Static
from optmodels.autoscaling.queue import STEPS_A_MINUTE, serve_minute
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


def replicas_of(engine: Engine, ready: np.ndarray) -> tuple[list[Engine], np.ndarray]:
    """Engines whose number changes each minute, and each minute's shares; one that stops finishes what it has."""
    most = int(ready.max())
    kinds = [Engine(engine.costs, engine.kv_tokens, engine.max_num_seqs, engine.max_num_batched_tokens,
                    ranks=engine.ranks, kind=k) for k in range(most)]  # fmt: skip
    shares = np.zeros((len(ready), 1, most + 1))
    shares[:, 0, :most] = (np.arange(most)[None] < ready[:, None]) / ready[:, None]
    return kinds, shares


def followed(day: Day, engine: Engine, ready: np.ndarray) -> float:
    """Share attained by engines whose number changes each minute."""
    kinds, shares = replicas_of(engine, ready)
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


def fluid_rate(arrival_s: np.ndarray, count: int, share: float) -> float:
    """Requests/s of a replica with which `count` of them attain in the fluid queue what they attain step by step."""
    history = History(binned(arrival_s, 1))
    low, high = 0.1, 60.0
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


def following_apart(day: Day, earlier: np.ndarray, engine: Engine, static: tuple[int, int]) -> None:
    """Prefill and decode engines that follow the day each on its own; cheapest pair of settings, step by step."""
    one, later = np.ones_like(day.output), day.output > 1
    requests = Arrivals.of(day.arrival_s, day.input, one)

    def decoding(first) -> tuple[np.ndarray, np.ndarray, Arrivals]:
        came = first.first_s - engine.costs.request_s + TRANSFER_S
        order = np.argsort(came, kind="stable")
        order = order[later[order]]
        return came, order, Arrivals.of(came[order], day.input[order], day.output[order],
                                        received_tokens=day.input[order])  # fmt: skip

    def in_time(second, came, order) -> np.ndarray:
        good = np.ones(len(one), bool)
        gaps = day.output[order] - 1
        good[order] = (second.finish_s - engine.costs.request_s - came[order] + TRANSFER_S) / gaps <= ITL_S
        return good

    first = simulate(requests, [engine] * static[0], "shortest_queue")
    came, order, arrivals = decoding(first)
    share = float(in_time(simulate(arrivals, [engine] * static[1], "shortest_queue"), came, order).mean())
    rates = (fluid_rate(day.arrival_s, static[0], float((first.ttft_s <= TTFT_S).mean())),
             fluid_rate(np.sort(came), static[1], share))  # fmt: skip
    print(f"\nApart: {rates[0]:.2f} requests/s a prefill engine, {rates[1]:.2f} a decode engine\n")
    methods = ("plan", "hpa", "keda", "perfect")
    print("| start-up | attained | " + " | ".join(methods) + " | bound, all known |\n|---|---|" + "---|" * 5)
    history, alone = (History(np.concatenate([x, binned(day.arrival_s, 1)])) for x in (earlier, earlier[:0]))
    firsts: dict[bytes, object] = {}

    def attains(ready: tuple[np.ndarray, np.ndarray]) -> float:
        if (key := ready[0].tobytes()) not in firsts:
            kinds, shares = replicas_of(engine, ready[0])
            firsts[key] = simulate(requests, kinds, "planned_shares", planned=shares, planned_bin_s=60.0)
        came, order, arrivals = decoding(firsts[key])
        kinds, shares = replicas_of(engine, ready[1])
        second = simulate(arrivals, kinds, "planned_shares", planned=shares, planned_bin_s=60.0)
        return float(((firsts[key].ttft_s <= TTFT_S) & in_time(second, came, order)).mean())

    for start in (0, 5):
        replicas = [Replica(rate, 8.0, start, 1, SLACK_S) for rate in rates]
        cells = {goal: [] for goal in GOALS}
        for name in methods:
            pools = [useful(name, history, replica) for replica in replicas]
            pairs = sorted(((a, b) for a in pools[0] for b in pools[1]), key=lambda ab: ab[0][1] + ab[1][1])
            for goal in GOALS:
                found, left = "never", 60
                for a, b in pairs:
                    if a[0] + b[0] > 1 - goal + 0.02:  # the fluid queue errs by about a point
                        continue
                    share = attains((a[2], b[2]))
                    if share >= goal or len(pairs) == 1:
                        found = f"{a[1] + b[1]:.1f} = {a[1]:.1f} + {b[1]:.1f} ({share:.1%})"
                    left -= 1
                    if share >= goal or not left:
                        break
                cells[goal].append(found)
        for goal in GOALS:
            bound = sum(8 * least_attaining(alone, replica, goal)[0] for replica in replicas)
            print(f"| {60 * start} s | {goal:.0%} | " + " | ".join(cells[goal]) + f" | {bound:.1f} |", flush=True)


def useful(name: str, history: History, replica: Replica) -> list[tuple[float, float, np.ndarray]]:
    """Late share, mean GPUs and ready replicas of a method's settings that no other setting beats in both."""
    first = 4 * 1440
    method = _method(name, history, replica, first, Quantiles(history, replica, first) if name == "plan" else None)
    runs = []
    for setting in method.settings():
        seen = run(method.make(**setting), history, replica)
        late = seen.late[first:].sum() / seen.requests[first:].sum()
        runs.append((float(late), float(seen.paid[first:].sum()) * 8 / 1440, seen.ready[first:].astype(int)))
    return [r for r in runs if not any(o[0] <= r[0] and o[1] < r[1] for o in runs)]


# ---------------------------------------------------------------------------------------------------------- distance


@njit(cache=True)
def schedule(arrivals, rate, most, start, drain, price, slack_s, patience_s, every, units, up):
    """Counts of least replica-minutes plus price·late with everything known, by dynamic programming.

    States are the count and the backlog in `units` equal parts of the largest one, rounded down (a bound) or up. The
    count changes every `every` minutes. Returns the least value, the counts, and late requests as the states say.
    """
    minutes, unit = len(arrivals) // 6, patience_s * rate * most / units
    shape = (most + 1, units + 1)
    value = np.full(shape, np.inf)
    for n in range(1, most + 1):
        value[n, 0] = start * n
    came_n, came_b = np.zeros((minutes, *shape), np.int16), np.zeros((minutes, *shape), np.int16)
    late_at = np.zeros((minutes, *shape))
    for t in range(minutes):
        moved, origin = value.copy(), np.zeros(shape, np.int16)
        for n in range(most + 1):
            origin[n] = n
        if t and t % every == 0:
            for b in range(units + 1):
                for n in range(2, most + 1):
                    if moved[n - 1, b] + start < moved[n, b]:
                        moved[n, b], origin[n, b] = moved[n - 1, b] + start, origin[n - 1, b]
                for n in range(most - 1, 0, -1):
                    if moved[n + 1, b] + drain < moved[n, b]:
                        moved[n, b], origin[n, b] = moved[n + 1, b] + drain, origin[n + 1, b]
        value = np.full(shape, np.inf)
        for n in range(1, most + 1):
            for b in range(units + 1):
                if not np.isfinite(moved[n, b]):
                    continue
                late, end, _ = serve_minute(arrivals, 6 * t, n * rate, b * unit, slack_s, patience_s)
                k = min(int(np.ceil(end / unit - 1e-9)) if up else int(np.floor(end / unit + 1e-9)), units)
                cost = moved[n, b] + n + price * late
                if cost < value[n, k]:
                    value[n, k], came_n[t, n, k], came_b[t, n, k], late_at[t, n, k] = cost, origin[n, b], b, late
    least, n, b = np.inf, 0, 0
    for i in range(1, most + 1):
        for j in range(units + 1):
            if value[i, j] < least:
                least, n, b = value[i, j], i, j
    path, late = np.zeros(minutes, np.int64), 0.0
    for t in range(minutes - 1, -1, -1):
        path[t], late = n, late + late_at[t, n, b]
        n, b = came_n[t, n, b], came_b[t, n, b]
    return least, path, late


def least_attaining(history: History, replica: Replica, goal: float, every: int = 1) -> tuple[float, float, float]:
    """Mean replicas that attain a goal with everything known: a bound, a schedule, and the share that it attains.

    Late requests are priced. With the price μ the least value less μ·(1 − goal)·requests bounds the cost from below.
    The schedule is the cheapest found that attains the goal when it is run in the fluid queue.
    """
    x, total = history.requests, float(history.requests.sum())
    most = int(np.ceil(history.required(replica.slack_s).max() / replica.requests_per_s)) + 2
    low, high, bound, best = 1e-4, 5.0, 0.0, (np.inf, 0.0)
    for _ in range(14):
        price = (low * high) ** 0.5
        for up in (False, True):
            value, path, late = schedule(
                x, replica.requests_per_s, most, replica.start_min, replica.drain_min, price, replica.slack_s,
                replica.patience_s, every, 60, up,
            )  # fmt: skip
            if not up:
                bound, few = max(bound, value - price * (1.0 - goal) * total), late <= (1.0 - goal) * total
            share, paid = replayed(path, history, replica)
            if share >= goal and paid < best[0]:
                best = paid, share
        low, high = (low, price) if few else (price, high)
    return bound / history.minutes, best[0] / history.minutes, best[1]


def replayed(path: np.ndarray, history: History, replica: Replica) -> tuple[float, int]:
    """Share within the slack of counts minute by minute, and the replica-minutes that they pay."""
    late = backlog = 0.0
    for t, n in enumerate(path.tolist()):
        more, backlog, _ = serve_minute(history.requests, t * STEPS_A_MINUTE, n * replica.requests_per_s, backlog,
                                        replica.slack_s, replica.patience_s)  # fmt: skip
        late += more
    return 1.0 - late / history.requests.sum(), levels.paid_minutes(path, replica.start_min, replica.drain_min)


def distance(day: Day, rate: float) -> None:
    """What the cost above the work is made of, at start-up 0 and 300 s and 95 %."""
    history, goal = History(binned(day.arrival_s, 1)), 0.95
    for start in (0, 5):
        replica = Replica(rate, 8.0, start, 1, SLACK_S)
        mean, peak = history.per_minute, history.required(SLACK_S)
        print(f"\nStart-up {start} min: mean GPUs\n\n| | | attained |\n|---|---|---|")
        print(f"| fractions of a replica, no waiting | {8 * mean.mean() / rate:.1f} | |")
        for name, rates in (("each minute's mean", mean), ("each minute's largest burst", peak)):
            need = np.ceil(rates / rate - 1e-9).astype(np.int64).clip(min=1)
            share, paid = replayed(levels.hindsight(need, start, 1), history, replica)
            print(f"| whole replicas for {name}, start-up and draining paid | {8 * paid / 1440:.1f} | {share:.1%} |")
        for every in (1, 5, 15, 60, 1440):
            bound, cost, share = least_attaining(history, replica, goal, every)
            what = f"least for {goal:.0%}, all known, changes every {every} min"
            print(f"| {what} | {8 * cost:.1f}, bound {8 * bound:.1f} | {share:.1%} |", flush=True)
        hasty = Replica(rate, 8.0, start, 1, SLACK_S, patience_s=SLACK_S)
        bound, cost, share = least_attaining(history, hasty, goal)
        print(f"| the same, late requests dropped | {8 * cost:.1f}, bound {8 * bound:.1f} | {share:.1%} |", flush=True)


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
    rate = fluid_rate(day.arrival_s, count, found[best[0.95]][count])
    print(f"\nReplica: {best[0.95]}, {rate:.2f} requests/s in the fluid queue")
    distance(day, rate)
    following(day, earlier, engine, rate)
    following_apart(day, earlier, engine, apart[0.95][:2])
    print(f"\n{time.process_time() - began:.0f} CPU seconds")


if __name__ == "__main__":
    main()
