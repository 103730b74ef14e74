"""Keys with another name: ``tpot_s`` is read as ``tbt_s``, in every file, with messages that name the user's key."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import optmodels
from optmodels.errors import InputError

INSTANCES = Path(__file__).parents[2] / "instances"


@pytest.mark.parametrize(
    "name",
    [
        "fleet/aws-continuous.yaml",
        "cost_efficiency/textbook/hand-checkable.yaml",
        "reserved_capacity/gcp-prices-1y-3y.yaml",
    ],
)
def test_tpot_is_read_as_tbt(name: str) -> None:
    text = (INSTANCES / name).read_text(encoding="utf-8")
    data, other = yaml.safe_load(text), yaml.safe_load(text.replace("tbt_s:", "tpot_s:"))
    assert data != other
    folder = (INSTANCES / name).parent
    here, there = (optmodels.load(x, folder=folder) for x in (data, other))
    assert here.model_dump() == there.model_dump()
    assert "tpot_s" not in str(there.model_dump())  # results keep the name that programs read


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("tpot_s: 5 GiB", "my.yaml:7: workloads[0].slo.tpot_s: got '5 GiB'; expected a quantity in s"),
        ("tpot_s: 50", "my.yaml:7: workloads[0].slo.tpot_s: got 50; expected a TPOT with its unit: '50 ms' or '50 s'"),
        ("tpot_s: 0.05, tbt_s: 0.05", "expected either tpot_s or tbt_s, its older spelling"),
    ],
)
def test_messages_name_the_key_that_was_written(written: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(f"""formulation: fleet
schema: 1
serving: continuous
workloads:
  - name: chat
    model: llama-3.1-8b
    slo: {{ttft_s: 2.0, {written}}}
    buckets: [{{input_tokens: 512, output_tokens: 256, requests_per_s: 2}}]
pool: {{catalog: aws, include: ["g6e.xlarge"]}}
""")
    with pytest.raises(InputError) as caught:
        optmodels.load(file)
    assert said in str(caught.value)
