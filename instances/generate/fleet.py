"""Families of fleet instances that are generated, not shipped: Mélange-shaped grids and a scaling family.

python instances/generate/fleet.py scaling --workloads 1000 --points 10000 --out DIR
python instances/generate/fleet.py grid --rows 10 --columns 10 --types 8 --out DIR
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from formulations.fleet.problem import Bucket, Fleet, FleetPoint, FleetWorkload
from optmodels.errors import InputError
from optmodels.io.write import write_text

# Relative speed, memory bandwidth and USD/h of typical cloud GPUs: L4, A10G, L40S, A100-40, A100-80, H100, H200, B200.
TYPES = {
    "L4": (0.12, 0.30, 0.71), "A10G": (0.125, 0.60, 1.01), "L40S": (0.36, 0.86, 1.86), "A100-40": (0.31, 1.55, 2.75),
    "A100-80": (0.31, 2.04, 3.67), "H100": (0.99, 3.35, 6.88), "H200": (0.99, 4.80, 7.91), "B200": (2.25, 8.00, 14.24),
}  # fmt: skip


def throughput(speed: float, bandwidth: float, input_tokens: float, output_tokens: float, batch: float) -> float:
    """Requests/s of an 8B model: prefill at `speed` PFLOP/s, decode at `bandwidth` TB/s, `batch` requests at a time."""
    prefill = 16e9 * input_tokens / (speed * 1e15 * 0.5)
    step = (16e9 + batch * 131072.0 * (input_tokens + output_tokens / 2)) / (bandwidth * 1e12 * 0.7)
    return batch / (batch * prefill + output_tokens * step)


def grid(rows: int, columns: int, types: int, requests_per_s: float = 60.0, seed: int = 0) -> dict[str, Any]:
    """A configuration as Mélange reads it: rows × columns buckets of log-normal lengths, GPU types as profiled.

    Args:
        rows: input sizes, 32 … 16,384 tokens.
        columns: output sizes, 16 … 1,024 tokens.
        types: GPU types, at most eight.
        requests_per_s: in all.
        seed: of the distribution's noise.
    """
    rng = np.random.default_rng(seed)
    sizes_in = np.geomspace(32, 16384, rows)
    sizes_out = np.geomspace(16, 1024, columns)
    weight = np.exp(
        -(((np.log(sizes_in) - np.log(700)) / 1.3) ** 2)[:, None] / 2
        - (((np.log(sizes_out) - np.log(150)) / 1.1) ** 2)[None, :] / 2
    ) * rng.uniform(0.6, 1.4, (rows, columns))  # fmt: skip
    info = {}
    for name, (speed, bandwidth, cost) in list(TYPES.items())[:types]:
        memory = {"L4": 24, "A10G": 24, "L40S": 48, "A100-40": 40, "A100-80": 80, "H100": 80, "H200": 141, "B200": 180}
        table = []
        for a in sizes_in:
            line = []
            for b in sizes_out:
                batch = float(np.clip((0.9 * memory[name] - 18) * 1e9 / (131072.0 * (a + b)), 1, 128))
                line.append(float(f"{throughput(speed, bandwidth, a, b, batch):.4g}"))
            table.append(line)
        info[name] = {"cost": cost, "tputs": table}
    share = weight / weight.sum()
    return {
        "gpu_info": info, "workload_distribution": [[float(f"{v:.6g}") for v in row] for row in share],
        "total_request_rate": requests_per_s, "slice_factor": 1,
    }  # fmt: skip


def grid_problem(*arguments: Any, **options: Any) -> Fleet:
    """`grid` as a fleet problem."""
    from formulations.fleet.files import MelangeConfig
    from formulations.fleet.problem import from_melange

    workloads, points = from_melange(MelangeConfig.model_validate(grid(*arguments, **options)))
    return Fleet(formulation="fleet", schema_version=1, name="grid", workloads=workloads, points=points)


def scaling(workloads: int, points: int, seed: int = 0, models: int = 10) -> Fleet:
    """Bucket-workloads × operating points: `models` models of equal size, each with its own buckets and points.

    A point is a GPU type × number of GPUs × batch × noise in efficiency; rates (lognormal, 10 requests/s a bucket in
    the mean) are such that each model needs a hundred deployments or so. Some pairs are impossible: a long request
    at a large batch on little memory.
    """
    rng = np.random.default_rng(seed)
    names, offers = [], list(TYPES.items())
    many: list[FleetWorkload] = []
    all_points: list[FleetPoint] = []
    for m in range(models):
        W = workloads // models + (m < workloads % models)
        P = points // models + (m < points % models)
        if not W or not P:
            continue
        size = float(rng.uniform(0.5, 6.0))
        sizes = np.exp(rng.normal([6.2, 4.9], [1.1, 0.8], (W, 2))).clip(16, 16000)
        rates = np.exp(rng.normal(0.0, 1.0, W)) * 6.0
        buckets = tuple(
            Bucket(name=f"b{k}", input_tokens=int(a), output_tokens=int(b), requests_per_s=float(r))
            for k, ((a, b), r) in enumerate(zip(sizes, rates, strict=True))
        )
        name = f"model{m}"
        names.append(name)
        many.append(FleetWorkload(name=name, buckets=buckets))
        for k in range(P):
            kind, (speed, bandwidth, cost) = offers[int(rng.integers(len(offers)))]
            gpus = int(rng.choice([1, 2, 4, 8]))
            batch = float(rng.choice([1, 2, 4, 8, 16, 32, 64, 128]))
            efficiency = float(rng.uniform(0.6, 1.0)) * 0.88 ** np.log2(gpus)  # tensor parallelism costs
            longest = 40000.0 * gpus * bandwidth / batch
            rate = {}
            for i, (a, b) in enumerate(sizes):
                if a + b <= longest:
                    own = throughput(speed * gpus / size, bandwidth * gpus / size, a, b, batch)
                    rate[f"{name}/b{i}"] = efficiency * own * float(rng.uniform(0.9, 1.0))
            all_points.append(FleetPoint(
                name=f"{name}-{k}", machine=f"{gpus}x{kind}", usd_per_hour=gpus * cost, slots=int(batch),
                requests_per_s=rate,
            ))  # fmt: skip
    return Fleet(
        formulation="fleet", schema_version=1, name=f"scaling-{workloads}x{points}", workloads=tuple(many),
        points=tuple(all_points),
    )  # fmt: skip


def write(problem: Fleet, folder: Path) -> Path:
    """The problem as YAML with its points in a Parquet table beside it; returns the YAML file."""
    import io

    import pandas as pd

    names = [f"{w.name}/{b.label}" for w in problem.workloads for b in w.buckets or ()]
    rows = [
        {"name": p.name, "machine": p.machine, "usd_per_hour": p.usd_per_hour, "slots": p.slots}
        for p in problem.points or ()
    ]  # fmt: skip
    matrix = np.full((len(rows), len(names)), np.nan)
    column = {n: i for i, n in enumerate(names)}
    for k, p in enumerate(problem.points or ()):
        for n, v in p.requests_per_s.items():
            matrix[k, column[n]] = v
    frame = pd.concat([pd.DataFrame(rows), pd.DataFrame(matrix, columns=names)], axis=1)
    data = problem.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"points"})
    document = {"formulation": "fleet", "schema": 1} | data | {"points_table": f"{problem.name}.parquet"}
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    folder.mkdir(parents=True, exist_ok=True)
    from optmodels.io.write import write_bytes

    write_bytes(folder / f"{problem.name}.parquet", buffer.getvalue(), overwrite=True)
    target = folder / f"{problem.name}.yaml"
    write_text(target, yaml.safe_dump(document, sort_keys=False, allow_unicode=True), overwrite=True)
    return target


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("family", choices=["scaling", "grid"])
    parser.add_argument("--workloads", type=int, default=100)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--types", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args(arguments)
    try:
        if a.family == "scaling":
            target = write(scaling(a.workloads, a.points, a.seed), a.out)
        else:
            name = f"grid-{a.rows}x{a.columns}x{a.types}"
            write_text(
                a.out / f"{name}.json", json.dumps(grid(a.rows, a.columns, a.types, seed=a.seed)), overwrite=True
            )
            target = a.out / f"{name}.yaml"
            text = f"formulation: fleet\nschema: 1\nname: {name}\nmelange: {{file: {name}.json}}\n"
            write_text(target, text, overwrite=True)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
