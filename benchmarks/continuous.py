"""Continuous batching: the formulas of `optmodels.engine.continuous` against the step simulator.

    python benchmarks/continuous.py mixtures [--count 200] [--seed 0]     means and tails at given rates
    python benchmarks/continuous.py mixtures_of_ranks [--count 60]         the same of engines with attention ranks
    python benchmarks/continuous.py promises [--count 20] [--seed 0]      random levels filled to the edge of their rows
    python benchmarks/continuous.py short [--count 200] [--seed 0]         the same, with answers of 2 to 8 tokens alone
    python benchmarks/continuous.py capacity                               what levels carry of what the simulator does
    python benchmarks/continuous.py levels                                 what finer levels gain on aws-continuous.yaml
    python benchmarks/continuous.py ranks                                  levels of engines with attention ranks, full

`mixtures`: random step costs, one to three classes, load 0.3 to 0.9, plenty of slots and memory; errors of the mean
step, the mean of running requests, TTFT (of the class with the largest error, and of each), time per output token and
time between tokens, predicted over simulated less 1. `mixtures_of_ranks`: those of `RANKS`, at predicted loads of 0.3
to 0.9 and without what the first tenth and the last twentieth of the requests see: an engine fills slowly.
`promises`: everything that a level bounds, simulated over planned; a promise is broken above 1. The mean step has idle
time counted as steps without requests, as in (S1).
`capacity`: one kind of requests on vLLM by the shipped coefficients, limits on mean TPOT and p95 of TTFT; the most that
a level carries over the most at which the simulator keeps both.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from optmodels import catalog
from optmodels.engine.continuous import (
    MOST_OF_WAIT,
    QUANTILES,
    TIME,
    Classes,
    Coefficients,
    EngineLimits,
    levels_of_loads,
    loads_of_levels,
    operating_points,
    predict,
    with_best_steps,
)
from optmodels.latency.resolve import deployment, resolve, source_of
from optmodels.latency.steps import StepCosts
from optmodels.simulation.continuous import EDGES_S, Arrivals, Engine, Gaps, at_quantile, of_edges, simulate

REQUESTS = 300_000
RARE = 3000  # requests of a class below which its p99 is left out
ROOT = Path(__file__).resolve().parents[1]


def drawn(rng):
    """Costs of a step, inputs, outputs and shares of a random mixture."""
    n = int(rng.integers(1, 4))
    costs = StepCosts(
        fixed_s=rng.uniform(0.004, 0.02), prompt_step_s=float(rng.choice([0.0, rng.uniform(0.0, 0.03)])),
        prompt_token_s=rng.uniform(1e-5, 6e-5), prompt_pair_s=rng.uniform(0, 2e-9),
        decode_request_s=rng.uniform(1e-5, 5e-5), context_s=(context := rng.uniform(2e-8, 2e-7)),
        mixed_context_s=context,
    )  # fmt: skip
    inputs = np.rint(np.exp(rng.uniform(np.log(50), np.log(6000), n)))
    outputs = np.rint(np.exp(rng.uniform(np.log(20), np.log(800), n)))
    return costs, inputs, outputs, rng.dirichlet(np.full(n, 2.0))


def arrivals(rng, rates, inputs, outputs, count=REQUESTS):
    """Poisson arrivals of the classes, and which each is of."""
    kind = rng.choice(len(rates), count, p=rates / rates.sum())
    times = np.cumsum(rng.exponential(1 / rates.sum(), count))
    return Arrivals.of(times, inputs[kind].astype(int), outputs[kind].astype(int)), kind


RANKS = (  # LLM, weights, GPU, TP, attention ranks
    ("deepseek-r1", "fp8_block", "h200", 4, 2), ("deepseek-r1", "fp8_block", "h200", 2, 4),
    ("deepseek-r1", "fp8_block", "h200", 1, 8), ("qwen3-235b-a22b", "fp8", "h100", 4, 2),
    ("qwen3-235b-a22b", "fp8", "h100", 2, 4),
)  # fmt: skip


def at_load(load, share, costs, classes, engine, dp):
    """Rates at which an engine of `dp` ranks has this load as predicted; None: its ranks cannot prefill so much."""
    low, high = 0.0, 1.0 / costs.fixed_s
    for _ in range(60):
        middle = (low + high) / 2
        try:
            less = predict(costs, classes, middle * share, engine, attention_ranks=dp).load < load
        except ValueError:
            less = False
        low, high = (middle, high) if less else (low, middle)
    found = predict(costs, classes, low * share, engine, attention_ranks=dp)
    return low * share if np.isfinite(found.waiting_s) else None


def drawn_of_ranks(rng):
    """A random mixture on one of `RANKS`: `drawn`, its engine, rates and ranks; None: its ranks would be overloaded."""
    llm, weights, gpu, tp, dp = RANKS[int(rng.integers(len(RANKS)))]
    n = int(rng.integers(1, 4))
    inputs = np.rint(np.exp(rng.uniform(np.log(50), np.log(8000), n)))
    outputs = np.rint(np.exp(rng.uniform(np.log(20), np.log(1500), n)))
    share, load, batched = rng.dirichlet(np.full(n, 2.0)), rng.uniform(0.3, 0.9), int(rng.choice([2048, 8192]))
    source = source_of("default", "vllm", Path, "latency")
    model = deployment(source, catalog.llms()[llm], llm, catalog.gpus()[gpu], gpu, weights, "fp16", tp, dp)
    costs = resolve(source, model, float(share @ inputs))[0]
    engine = EngineLimits(max_num_seqs=batched - 16, max_num_batched_tokens=batched)
    rates = at_load(load, share, costs, Classes.of(inputs, outputs, weight=share), engine, dp)
    return None if rates is None else (costs, inputs, outputs, share, engine, rates, dp)


def drawn_of_one(rng):
    """The same of an engine of one rank; None: prompts would hardly fit beside decodes, as at no level."""
    costs, inputs, outputs, share = drawn(rng)
    batched = int(rng.choice([1024, 2048, 8192]))
    c, load = Coefficients.of(costs), rng.uniform(0.3, 0.9)
    work = c.prefill_work_s(inputs, 0.0, np.full_like(inputs, batched), 1.0)
    work = work + c.decode_work_s(inputs, outputs, 0.0)
    rates = load / (share @ work) * share
    if float(rates @ outputs) * costs.fixed_s / (1 - load) > batched / 4:
        return None
    engine = EngineLimits(max_num_seqs=batched - 16, max_num_batched_tokens=batched)
    return costs, inputs, outputs, share, engine, rates, 1


def mixtures(count, seed, drawn_of=drawn_of_one):
    """Print every mixture, and the mean and largest absolute errors."""
    rng = np.random.default_rng(seed)
    errors: dict[str, list[float]] = {}
    classes_of: dict[str, list[float]] = {}
    done = 0
    while done < count:
        if (made := drawn_of(rng)) is None:
            continue
        costs, inputs, outputs, share, engine, rates, dp = made
        found = predict(costs, Classes.of(inputs, outputs, weight=share), rates, engine, attention_ranks=dp)
        if not np.isfinite(found.waiting_s):  # prefill is overloaded
            continue
        if found.running > dp * engine.max_num_batched_tokens / 4:
            continue
        requests, kind = arrivals(rng, rates, inputs, outputs)
        limits = engine.slots, engine.max_num_batched_tokens
        steady = slice(None) if dp == 1 else slice(REQUESTS // 10, -REQUESTS // 20)
        of = np.full(REQUESTS, -1)
        of[steady] = 0
        seen = simulate(requests, [Engine(costs, 10**9, *limits, ranks=dp)], gaps=Gaps(EDGES_S, of))
        pauses = of_edges(EDGES_S, seen.gaps[0])
        line = {
            "step": found.step_s / float(seen.busy_s[0] / seen.steps[0]) - 1,
            "running": found.running / (float((seen.finish_s - seen.start_s).sum()) / seen.finish_s.max()) - 1,
        }
        for q in (None, *QUANTILES):
            name = "mean" if q is None else f"p{100 * q:g}"
            tpot = seen.tpot_s[steady][~np.isnan(seen.tpot_s[steady])]
            line[f"TPOT {name}"] = found.all_tpot_s[q] / (tpot.mean() if q is None else np.quantile(tpot, q)) - 1
            if q is not None:
                line[f"ITL {name}"] = found.between.at(q) / at_quantile(*pauses, q) - 1
            each = []
            for w in range(len(inputs)):
                mine = seen.ttft_s[steady][kind[steady] == w]
                if len(mine) >= RARE:
                    each.append(found.ttft_s[q][w] / (mine.mean() if q is None else np.quantile(mine, q)) - 1)
            line[f"TTFT {name}"] = max(each, key=abs)
            classes_of.setdefault(f"TTFT {name} of each class", []).extend(each)
        done += 1
        print(f"{done:3d} load {found.load:.2f}, {len(inputs)} classes{f', {dp} ranks' if dp > 1 else ''}: "
              + ", ".join(f"{name} {100 * value:+.1f} %" for name, value in line.items()))  # fmt: skip
        for name, value in line.items():
            errors.setdefault(name, []).append(value)
    print()
    for name, values in (errors | classes_of).items():
        x = np.abs(values)
        print(
            f"{name}: mean absolute error {100 * x.mean():.1f} %, median {100 * np.median(x):.1f} %,"
            f" nine in ten within {100 * np.quantile(x, 0.9):.1f} %, bias {100 * np.mean(values):+.1f} %"
        )


def drawn_short(rng):
    """`drawn` with answers of 2 to 8 tokens, in every other mixture beside one class of longer ones."""
    costs, inputs, outputs, share = drawn(rng)
    short = rng.integers(2, 9, len(outputs)).astype(float)
    if len(outputs) > 1 and rng.random() < 0.5:
        short[-1] = outputs[-1]
    return costs, inputs, short, share


def promises(count, seed, drawn_of=drawn, sent=REQUESTS):
    """Print the largest ratio of what was simulated to what was planned, level by level."""
    rng = np.random.default_rng(seed)
    ratios, made = [], 0
    while made < count:
        costs, inputs, outputs, share = drawn_of(rng)
        limits = EngineLimits(max_num_seqs=int(rng.choice([64, 256])), max_num_batched_tokens=4096)
        kv = float(rng.uniform(30_000, 600_000))
        classes, load = Classes.of(inputs, outputs, weight=share), rng.uniform(0.1, 0.95)
        steps = levels_of_loads([costs], np.array([load]))[:, 1:]
        step = rng.permutation(steps, axis=1)[:, :1]  # of few prompts, or any
        points = operating_points([costs], np.array([kv]), limits, classes, step)
        most = MOST_OF_WAIT[int(rng.integers(2))]
        wait = np.array([[[rng.uniform(0.02, 1.0)]]])
        rows = np.concatenate([points.load[:, 0, 0], points.waiting(wait, most)[0, 0]])
        if not np.isfinite(rows).all():
            continue
        made += 1
        mixture = rng.dirichlet(np.ones(len(inputs)))  # not the one that the level's constants are for
        rates = mixture / (rows @ mixture).max()
        requests, kind = arrivals(rng, rates, inputs, outputs, sent)
        came = np.bincount(kind, minlength=len(rates)) / requests.arrival_s[-1]
        requests = replace(requests, arrival_s=requests.arrival_s * (rows @ came).max())  # the rates drawn fill it, too
        seen = simulate(
            requests, [Engine(costs, int(kv), limits.max_num_seqs, limits.max_num_batched_tokens)],
            gaps=Gaps(EDGES_S, kind),
        )  # fmt: skip
        seconds, busy = float(seen.finish_s.max()), float(seen.busy_s[0])
        step_s = seconds / (seen.steps[0] + (seconds - busy) / costs.fixed_s)
        ratio = {"step": float(step_s / points.step_s[0, 0])}
        for q in (None, 0.9, 0.95, 0.99):
            base, waits = points.ttft_s(q, most)
            for w in range(len(inputs)):
                mine = kind == w
                if mine.sum() < RARE:
                    continue
                if q is not None:
                    got = at_quantile(*of_edges(EDGES_S, seen.gaps[w]), q)
                    key = f"ITL p{100 * q:g}"
                    ratio[key] = max(ratio.get(key, 0.0), float(got / points.itl_s(q)[0, 0, w]))
                for name, values, planned in (
                    ("TTFT", seen.ttft_s[mine], base[0, 0, w] + waits * wait[0, 0, 0]),
                    ("TPOT", seen.tpot_s[mine], points.tpot_s(q)[0, 0, w]),
                ):
                    got = values.mean() if q is None else np.quantile(values, q)
                    key = f"{name} {'mean' if q is None else f'p{100 * q:g}'}"
                    ratio[key] = max(ratio.get(key, 0.0), float(got / planned))
        ratios += [(name.partition(" ")[0], value) for name, value in ratio.items()]
        print(f"{made:3d} step {1e3 * float(step[0, 0]):.1f} ms of at least {1e3 * costs.fixed_s:.1f}, "
              f"{len(inputs)} classes, preempted {int(seen.preemptions.sum())}: "
              + ", ".join(f"{name} {value:.2f}" for name, value in ratio.items()), flush=True)  # fmt: skip
    for itl in (False, True):
        all_of = np.array([value for name, value in ratios if (name == "ITL") == itl])
        over, far = (all_of > 1).sum(), (all_of > 1.03).sum()
        print(f"\n{over} of {len(all_of)} promises {'of ITL ' if itl else ''}broken, {far} by more than 3 %,"
              f" worst {all_of.max():.2f} times the plan")  # fmt: skip


SERVED = (  # LLM, weights, GPU, TP, prompt, output, TPOT and TTFT limits
    ("llama-3.1-8b", "fp8", "h100", 1, 1000, 300, 0.02, 1.0), ("qwen3-32b", "fp8", "h100", 1, 1200, 300, 0.04, 1.0),
    ("llama-3.1-70b", "fp8", "h100", 4, 1000, 300, 0.03, 1.0),
    ("llama-3.1-70b", "fp8", "h100", 4, 6000, 150, 0.05, 2.0),
    ("gpt-oss-120b", "mxfp4", "h100", 4, 2000, 500, 0.02, 1.5),
    ("qwen3-235b-a22b", "fp8", "h100", 4, 2000, 500, 0.05, 2.0),
    ("deepseek-r1", "fp8", "h100", 8, 2000, 500, 0.05, 2.0),
)  # fmt: skip


def capacity():
    """Print for each of `SERVED` the requests/s of its best level, and those at which simulated limits are kept."""
    source, limits, kv = source_of("default", "vllm", Path, "latency"), EngineLimits(), 1e7
    for llm, weights, gpu, tp, prompt, output, tpot_s, ttft_s in SERVED:
        model = deployment(source, catalog.llms()[llm], llm, catalog.gpus()[gpu], gpu, weights, "fp16", tp)
        costs, classes = resolve(source, model, float(prompt))[0], Classes.of([float(prompt)], [float(output)])

        def at(step_s, costs=costs, classes=classes):
            return operating_points([costs], np.array([kv]), limits, classes, step_s)

        def missed(step_s, at=at, tpot_s=tpot_s):
            points = at(step_s)
            carried = np.where(points.exists, 1.0 / points.load[TIME, ..., 0], 0.0)
            return points.missed(points.tpot_s(None), tpot_s)[..., 0], carried

        points, best = at(with_best_steps(levels_of_loads([costs], loads_of_levels()), missed)), 0.0
        for most in MOST_OF_WAIT:
            base, per = points.ttft_s(0.95, most)
            wait = (ttft_s - base[..., 0]) / per
            keeps = points.exists & (points.tpot_s(None)[..., 0] <= tpot_s) & (wait > 0)
            rows = np.concatenate(
                [points.load, points.waiting(np.where(keeps, wait, 1.0)[..., None], most)[None, :, :, 0]]
            )
            best = max(best, float(np.where(keeps, 1 / rows[..., 0].max(axis=0), 0.0).max()))

        def kept(rate, costs=costs, prompt=prompt, output=output, tpot_s=tpot_s, ttft_s=ttft_s):
            rng = np.random.default_rng(0)
            requests, _ = arrivals(rng, np.array([rate]), np.array([prompt]), np.array([output]))
            seen = simulate(requests, [Engine(costs, int(kv), limits.max_num_seqs, limits.max_num_batched_tokens)])
            return seen.tpot_s.mean() <= tpot_s and np.quantile(seen.ttft_s, 0.95) <= ttft_s

        low, high = best / 2, best * 4
        for _ in range(10):
            middle = (low + high) / 2
            low, high = (middle, high) if kept(middle) else (low, middle)
        print(f"{llm} {weights} on {tp} x {gpu}, {prompt} + {output} tokens: {best:.2f} of {low:.2f} requests/s,"
              f" {best / low:.2f}", flush=True)  # fmt: skip


def ranks():
    """Print the ratios for each of `RANKS` and some lengths of prompts."""
    source, count = source_of("default", "vllm", Path, "latency"), 8000
    for llm, weights, gpu, tp, dp in RANKS:
        model = deployment(source, catalog.llms()[llm], llm, catalog.gpus()[gpu], gpu, weights, "fp16", tp, dp)
        for prompt, output in ((100, 300), (1000, 1000), (2000, 2000), (8000, 1000), (12000, 800)):
            costs, limits, kv = resolve(source, model, float(prompt))[0], EngineLimits(max_num_seqs=1024), 10**8
            classes, step = Classes.of([float(prompt)], [float(output)]), levels_of_loads([costs], np.array([0.45]))
            points = operating_points([costs], np.array([kv]), limits, classes, step[:, -1:], attention_ranks=dp)
            wait = np.array([[[3.0 * dp * float(points.turn_s[0, 0, 0])]]])
            rate = 1.0 / max(*points.load[:, 0, 0, 0], float(points.waiting(wait, np.inf)[0, 0, 0, 0]))
            rng = np.random.default_rng(1)
            requests = Arrivals.of(
                np.cumsum(rng.exponential(1.0 / rate, count)), np.full(count, prompt), np.full(count, output)
            )
            seen = simulate(requests, [Engine(costs, kv // dp, 1024, 8192, ranks=dp)])
            tpot, at = seen.tpot_s[count // 5 : -count // 20], float(step[0, -1])
            print(f"{llm}, {tp} x {dp}, {prompt} + {output} tokens, {rate:.2f} requests/s,"
                  f" steps of {1e3 * at:.0f} ms: step {float(seen.busy_s[0] / seen.steps[0]) / at:.2f},"
                  f" TPOT {tpot.mean() / points.tpot_s(None)[0, 0, 0]:.2f},"
                  f" p95 {np.quantile(tpot, 0.95) / points.tpot_s(0.95)[0, 0, 0]:.2f}", flush=True)  # fmt: skip


def levels():
    """Cost of aws-continuous.yaml with levels further apart and closer."""
    from formulations.fleet import engines
    from formulations.fleet.methods.exact import exact
    from formulations.fleet.points import build_tables
    from optmodels.formulation import Options
    from optmodels.loading import load

    problem = load(ROOT / "instances/fleet/aws-continuous.yaml")
    for classes in (5, 1):
        engines.loads_of_levels = lambda most, _=1, least=0.01, classes=classes: loads_of_levels(most, classes, least)
        found = exact(problem, build_tables(problem), Options(time_limit=120.0))
        count, cost = len(loads_of_levels(classes=classes)), found.plan.total_usd_per_hour
        print(f"{count} levels: {cost:.4f} USD/h, bound {found.bound:.4f}", flush=True)


def main(arguments):
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "what", choices=("mixtures", "mixtures_of_ranks", "promises", "short", "capacity", "levels", "ranks")
    )
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args(arguments)
    if a.what in ("levels", "capacity", "ranks"):
        {"levels": levels, "capacity": capacity, "ranks": ranks}[a.what]()
    else:
        run, count = {
            "mixtures": (mixtures, 200), "promises": (promises, 20),
            "short": (lambda *given: promises(*given, drawn_short, 60_000), 200),
            "mixtures_of_ranks": (lambda *given: mixtures(*given, drawn_of_ranks), 60),
        }[a.what]  # fmt: skip
        run(a.count or count, a.seed)


if __name__ == "__main__":
    main(sys.argv[1:])
