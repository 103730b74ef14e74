"""Steps from one fleet to another: what is served after each, room, losses, the command."""

import copy
import json

import pytest

import optmodels
from optmodels import migrate


def instance(chat, stock=None, price=30.0):
    """One workload on a large type (10 requests/s) or a small one (1 request/s)."""
    data = {
        "formulation": "fleet", "schema": 1, "name": "move",
        "workloads": [{"name": "chat", "buckets": [{"name": "all", "requests_per_s": chat}]}],
        "points": [
            {"name": "a", "machine": "big", "usd_per_hour": price, "requests_per_s": {"chat/all": 10}},
            {"name": "b", "machine": "small", "usd_per_hour": 4, "requests_per_s": {"chat/all": 1}},
        ],
    }  # fmt: skip
    if stock is not None:
        data["quota"] = [{"machine": "*", "at_most": stock}]
    return data


def replayed(found, before):
    """Counts after each step, from the words of the steps alone."""
    counts = dict(before)
    for s in found["steps"]:
        name = "big" if "big" in s["deployment"] else "small"
        counts[name] = counts.get(name, 0) + (1 if s["do"] == "start" else -1) * s["count"]
        yield s, dict(counts)


@pytest.fixture(scope="module")
def plans():
    cheap_big = optmodels.solve(instance(20)).document()
    cheap_small = optmodels.solve(instance(20, price=60.0)).document()
    return cheap_big, cheap_small


def test_capacity_is_kept_at_every_step(plans):
    big, small = plans
    found = migrate(big, small)
    assert found["kept"] and found["attained"]["least"] >= 1 - 3e-4
    for step, counts in replayed(found, {"big": 2}):
        assert 10 * counts["big"] + counts.get("small", 0) >= 20 * (1 - 1e-3), step
        assert step["attained"] == pytest.approx(1.0, abs=3e-4) and min(counts.values()) >= 0
    assert counts == {"big": 0, "small": 20}
    assert migrate(big, big)["steps"] == []


def test_with_little_room_it_alternates(plans):
    """12 machines at most, from 2 large ones to 11 small ones at a smaller rate."""
    target = optmodels.solve(instance(11, stock=12, price=60.0)).document()
    assert target["plan"]["periods"][0]["deployments"][0]["count"] == 11
    found = migrate(plans[0], target)
    for _, counts in replayed(found, {"big": 2}):
        assert sum(counts.values()) <= 12
    assert counts == {"big": 0, "small": 11} and found["kept"]
    assert [s["do"] for s in found["steps"]] == ["start", "stop", "start", "stop"]


def test_without_room_the_loss_is_stated(plans):
    """20 machines at most: 20 small ones fit only after both large ones are gone."""
    target = optmodels.solve(instance(20, stock=20, price=60.0)).document()
    assert sum(d["count"] for d in target["plan"]["periods"][0]["deployments"]) == 20
    found = migrate(plans[0], target)
    assert not found["kept"] or found["attained"]["least"] >= 1 - 3e-4
    for _, counts in replayed(found, {"big": 2}):
        assert sum(counts.values()) <= 20
    assert counts["small"] == 20 and counts["big"] == 0


def test_the_command(plans, folder, cli):
    for name, plan in zip(("now", "then"), plans, strict=True):
        (folder / name).mkdir()
        (folder / name / "plan.json").write_text(json.dumps(copy.deepcopy(plan), default=str))
    done = cli("migrate", "now", "then")
    assert done.status == 0 and "capacity kept at every step" in done.out and "1. start 20" in done.out, done.err
    assert json.loads(cli("migrate", "now", "then", "--json").out)["kept"]
    done = cli("migrate", "now", "nowhere")
    assert done.status == 2 and "nowhere" in done.err
