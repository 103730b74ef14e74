"""CPU seconds and peak memory of whole commands, and of what they spend it on: explain, solve with check and report.

python benchmarks/whole_commands.py            every row, several minutes
python benchmarks/whole_commands.py week year  rows whose name has one of these
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLEETS = ("aws-six-workloads", "aws-continuous", "agent-stages", "day-and-night")
ROWS = {
    **{f"explain {name}": ("explain", f"instances/fleet/{name}.yaml") for name in FLEETS},
    "solve week-32-aws": ("solve", "instances/reserved_capacity/week-32-aws.yaml"),
    "solve gcp-prices-1y-3y": ("solve", "instances/reserved_capacity/gcp-prices-1y-3y.yaml", "--time-limit", "60"),
    "solve year-40-gcp": ("solve", "instances/reserved_capacity/year-40-gcp.yaml", "--time-limit", "60"),
}


def measured(command: tuple[str, ...]) -> tuple[float, float, dict[str, object]]:
    """CPU seconds, MiB at most, and the document of one command."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as out:
        program = [sys.executable, "-m", "optmodels", *command, "--json", "--out", folder]
        child = subprocess.Popen(program, cwd=ROOT, stdout=out, stderr=subprocess.DEVNULL)
        _, _, used = os.wait4(child.pid, 0)
        out.seek(0)
        return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, json.load(out)


def main() -> None:
    """One row a command."""
    print("| command | CPU s | MiB | found | check wall s | solve wall s |\n|---|---|---|---|---|---|")
    for name, command in ROWS.items():
        if sys.argv[1:] and not any(part in name for part in sys.argv[1:]):
            continue
        cpu, memory, found = measured(command)
        seconds = found["seconds"] if isinstance(found.get("seconds"), dict) else {}
        done = f"{found['solves']} solves" if "solves" in found else str(found["status"])
        parts = [f"{seconds[k]:.2f}" if k in seconds else "" for k in ("check", "solve")]
        print(f"| {name} | {cpu:.1f} | {memory:.0f} | {done} | {' | '.join(parts)} |", flush=True)


if __name__ == "__main__":
    main()
