"""A plan under stress: shares by hand, equivalent scenarios, losses, the command."""

import json

import pytest
import yaml

import optmodels
from optmodels.api.stress import stress
from optmodels.errors import InputError


@pytest.fixture(scope="module")
def one_type():
    """Two workloads on one engine type that serves 10 requests/s of either; the plan has 4 of them, just full."""
    return {
        "formulation": "fleet", "schema": 1, "name": "one-type",
        "workloads": [
            {"name": name, "buckets": [{"name": "all", "requests_per_s": 20}]} for name in ("chat", "code")
        ],
        "points": [{"name": "a", "machine": "A", "region": "here", "usd_per_hour": 3,
                    "requests_per_s": {"chat/all": 10, "code/all": 10}}],
    }  # fmt: skip


@pytest.fixture(scope="module")
def found(one_type):
    solved = optmodels.solve(one_type).document()
    ranges = {"demand": (1.0, 1.5), "latency": (1.0, 1.5)}
    return stress(solved, inflate=ranges, lose=("region", "machine", "spot"), draws=20)


def rows(found, **wanted):
    return [r for r in found["scenarios"] if all(r[k] == v for k, v in wanted.items())]


@pytest.mark.parametrize(("demand", "latency"), [(1.0, 1.0), (1.25, 1.0), (1.5, 1.25), (1.5, 1.5)])
def test_the_served_share_is_what_fits(found, demand, latency):
    (row,) = rows(found, demand=demand, latency=latency, lost=None)
    assert row["attained"] == pytest.approx(min(1.0, 1.0 / (demand * latency)), rel=1e-3)
    assert row["attained_bound"] >= row["attained"] - 1e-9
    engines = -(-40 * demand * latency // 10)
    assert row["usd_per_hour"] == pytest.approx(3 * engines) and row["bound"] <= row["usd_per_hour"] + 1e-9


def test_losses(found):
    lost = {r["lost"]: r["attained"] for r in found["scenarios"] if r["lost"]}
    assert lost.pop("region here") == 0.0
    ((name, attained),) = lost.items()  # no spot machine to lose
    assert name.startswith("one of 4") and attained == pytest.approx(0.75, rel=1e-3)


def test_margins_trade_cost_for_unserved_requests(found):
    for kind in ("uniform margin", "margin by workload", "scenarios"):
        mine = [r for r in found["frontier"] if r["kind"] in ("plan", kind)]
        costs, unserved = ([r[x] for r in mine] for x in ("usd_per_hour", "unserved"))
        assert costs == sorted(costs) and unserved == sorted(unserved, reverse=True)
        assert mine[0]["kept"] < 0.5 and (kind != "uniform margin" or mine[-1]["kept"] > 0.8)


def test_slower_engines_serve_less_and_cost_more(folder, cli):
    """Of modelled engines: twice the latency is no better than twice the demand, since limits bind, too."""
    assert cli("new", "fleet", "--from", "two-models").status == 0
    data = yaml.safe_load((folder / "two-models.yaml").read_text())
    data["workloads"][0]["requests_per_s"] = 40
    (folder / "small.yaml").write_text(yaml.safe_dump(data))
    assert cli("solve", "small.yaml", "--out", "r").status == 0
    asked = ["stress", "r/small-exact", "--inflate", "demand=1:1.5", "--inflate", "latency=1:1.5", "--steps", 2]
    done = cli(*asked, "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    at = {(r["demand"], r["latency"]): r for r in found["scenarios"]}
    assert at[1, 1]["attained"] == pytest.approx(1.0, abs=3e-4)
    assert at[1, 1.5]["attained"] <= at[1.5, 1]["attained"] + 1e-3 < 1.0
    assert at[1, 1.5]["usd_per_hour"] >= at[1.5, 1]["usd_per_hour"] - 1e-6
    done = cli(*asked, "--picture", "s.svg")
    assert done.status == 0 and "scenario" in done.out and (folder / "s.svg").read_text().startswith("<svg")


def test_mistakes(one_type):
    solved = optmodels.solve(one_type).document()
    for arguments, expected in (
        ({"inflate": {"weather": (1, 2)}}, "demand"), ({"inflate": {"demand": (2, 1)}}, "the smaller first"),
        ({"lose": ["sleep"]}, "region"), ({"steps": 0}, "1 to 20"), ({"draws": 5}, "scenarios to draw from"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=expected):
            stress(solved, **arguments)
    with pytest.raises(InputError, match="a plan"):
        stress(one_type)
