"""Older spellings of keys: every file is read with either, with a note and messages that name the user's key."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import optmodels
from optmodels.errors import InputError

INSTANCES = Path(__file__).parents[2] / "instances"
OLDER = {
    "tpot_s:": "tbt_s:",
    "input_tokens:": "prompt_tokens:",
    "requests_per_s:": "requests_per_second:",
    "total_requests_per_s:": "total_requests_per_second:",
    "unit: requests_per_s": "unit: requests_per_second",
    "- name: chat": "- service: chat",
}


@pytest.mark.parametrize(
    ("name", "renamed", "noted"),
    [
        ("fleet/aws-continuous.yaml", ["tpot_s:"], ["tbt_s is called tpot_s now"]),
        ("cost_efficiency/textbook/hand-checkable.yaml", ["tpot_s:"], ["tbt_s is called tpot_s now"]),
        (
            "reserved_capacity/paper-five-regions.yaml",
            ["total_requests_per_s:"],
            ["total_requests_per_second is called total_requests_per_s now"],
        ),
        (
            "reserved_capacity/textbook-two-regions.yaml",
            ["requests_per_s:", "unit: requests_per_s", "- name: chat"],
            ["requests_per_second is called requests_per_s now", "service is called name now"],
        ),
        ("orchestration/azure-2023-classes.yaml", ["input_tokens:"], ["prompt_tokens is called input_tokens now"]),
    ],
)
def test_older_spellings_are_read_with_a_note(name: str, renamed: list[str], noted: list[str], tmp_path: Path) -> None:
    text = older = (INSTANCES / name).read_text(encoding="utf-8")
    for key in renamed:
        assert key in older
        new = f" {OLDER[key]}" if key.endswith(":") else OLDER[key]
        older = older.replace(f" {key}" if key.endswith(":") else key, new)
        older = older.replace(f"{{{key}", f"{{{OLDER[key]}")
    file = tmp_path / Path(name).name
    file.write_text(older, encoding="utf-8")
    with pytest.warns(FutureWarning) as notes:
        there = optmodels.load(file)
    assert [str(n.message).partition(": ")[2] for n in notes] == noted
    here = optmodels.load(yaml.safe_load(text), folder=tmp_path)
    assert here.model_dump() == there.model_dump()
    assert not {k.rstrip(":") for k in OLDER.values()} & keys(there.model_dump(mode="json", by_alias=True))


def keys(data: object) -> set[str]:
    if isinstance(data, dict):
        return set(data) | {k for v in data.values() for k in keys(v)}
    return {k for v in data for k in keys(v)} if isinstance(data, list) else set()


def test_a_model_of_orchestration_has_a_name_of_its_own() -> None:
    base = yaml.safe_load((INSTANCES / "orchestration/azure-2023-classes.yaml").read_text(encoding="utf-8"))
    models = base["models"]
    spelled = [
        [{"model": m["model"]} for m in models],
        [{"name": m["model"], "model": m["model"]} for m in models],
        [{"model": m["model"], "architecture": m["model"]} for m in models],
    ]
    found = [optmodels.load(base | {"models": each}).resolve() for each in spelled]
    assert found[0].models == found[1].models == found[2].models == tuple(m["model"] for m in models)
    assert found[0].architectures == found[1].architectures == found[2].architectures
    with pytest.raises(InputError, match="either name and model"):
        optmodels.load(base | {"models": [{"name": "a", "architecture": "mistral-7b", "model": "b"}]})


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("tbt_s: 5 GiB", "my.yaml:7: workloads[0].slo.tbt_s: got '5 GiB'; expected a quantity in s"),
        ("tpot_s: 5 GiB", "my.yaml:7: workloads[0].slo.tpot_s: got '5 GiB'; expected a quantity in s"),
        ("tbt_s: 50", "my.yaml:7: workloads[0].slo.tbt_s: got 50; expected a TPOT with its unit: '50 ms' or '50 s'"),
        ("tpot_s: 50", "my.yaml:7: workloads[0].slo.tpot_s: got 50; expected a TPOT with its unit: '50 ms' or '50 s'"),
        ("tpot_s: 0.05, tbt_s: 0.05", "expected either tpot_s or tbt_s, its older spelling"),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
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


PLAN_KEYS = {"tpot_s": "tbt_s"} | {f"{x}requests_per_s": f"{x}requests_per_second" for x in ("", "mean_", "peak_")}


@pytest.mark.parametrize("name", ["cost_efficiency/textbook/hand-checkable", "reserved_capacity/textbook-two-regions"])
def test_plans_with_older_keys_pass_their_check(name: str) -> None:
    document = optmodels.solve(INSTANCES / f"{name}.yaml").document()
    older = document | {"plan": renamed(document["plan"]), "optmodels_version": "0.1.9", "schema": 1}
    assert keys(older["plan"]) & set(PLAN_KEYS.values()) and not keys(document["plan"]) & set(PLAN_KEYS.values())
    assert optmodels.check(older).ok


def renamed(data: object) -> object:
    if isinstance(data, dict):
        return {PLAN_KEYS.get(k, k): renamed(v) for k, v in data.items()}
    return [renamed(v) for v in data] if isinstance(data, list) else data
