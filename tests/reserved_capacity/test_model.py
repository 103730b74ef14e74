"""The cut method against the full flow model, and small cases by hand."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from reserved import machine, random_instance, service, two_regions

import optmodels
from formulations.reserved_capacity.dispatch import RowLp
from formulations.reserved_capacity.methods import exact
from formulations.reserved_capacity.methods.oracles import RowByRow
from formulations.reserved_capacity.points import families, union_closed
from optmodels import formulation
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.loading import load

FORM = formulation.get("reserved_capacity")


def solved(document, method="exact", **options):
    problem = load(document)
    tables = FORM.tables(problem)
    found = FORM.method(method)(problem, tables, Options(**options))
    if found.plan is not None:
        verdict = FORM.check(problem, found.plan.model_dump(mode="json"))
        assert verdict.ok, verdict.violations
    return found


def cost(document, method="exact"):
    found = solved(document, method)
    assert found.status == "optimal"
    return found.plan.cost.total_usd_per_month


@pytest.mark.parametrize("few_flows", [0, 100_000])
@given(seed=st.integers(0, 10_000))
def test_same_optimum_as_the_full_model(few_flows, seed):
    """By cuts alone, and as a user's small instances are solved."""
    try:
        document = random_instance(seed)
        load(document)
    except InputError:
        assume(False)
    with patch.object(exact, "FEW_FLOWS", few_flows):
        full, cuts = solved(document, "full", time_limit=10.0), solved(document, time_limit=10.0)
    assume(full.limit is None and cuts.limit is None)
    assert cuts.status == full.status
    if full.plan is not None:
        assert cuts.plan.cost.total_usd_per_month == pytest.approx(full.plan.cost.total_usd_per_month, rel=5e-6)


def test_two_regions_share_twelve_machines():
    found = solved(two_regions())
    assert sum(r.count for r in found.plan.reservations) == 12
    assert found.plan.cost.total_usd_per_month == pytest.approx(12 * 730)


def test_out_of_reach_each_region_needs_its_own():
    assert cost(two_regions(services=service(slo={"ttft_s": 0.15}))) == pytest.approx(20 * 730)


def test_on_demand_replaces_rarely_used_reservations():
    short = {
        "kind": "inline",
        "unit": "requests_per_s",
        "by_region": {"west": [1.0] * 9 + [11.0], "east": [0.0] * 10},
    }
    document = two_regions(services=service(demand=short), terms=["reserved_3y", "on_demand"])
    # One machine all the time at 1, ten more a tenth of the time at 3: 0.3 < 1.
    assert cost(document) == pytest.approx((1 + 10 * 0.1 * 3) * 730)


def test_locality_loss_costs_machines():
    # Reserve n in each: 2 forwarded requests cost 2κ. Peak region: n ≥ 10 − f, other: n ≥ 2 + 1.5f → f = 3.2, n = 6.8.
    assert cost(two_regions(services=service(kappa=1.5))) == pytest.approx(14 * 730)


def test_forwarding_ceiling_keeps_demand_at_home():
    assert cost(two_regions(services=service(forwarding_ceiling=0.2))) == pytest.approx(16 * 730)


def test_residency_pins_demand():
    found = solved(two_regions(services=service(residency={"east": ["east"]})))
    assert sum(r.count for r in found.plan.reservations) == 12
    assert sum(r.count for r in found.plan.reservations if r.region == "east") >= 10


def test_loss_of_a_region():
    found = solved(two_regions(resilience={"lose_any_region_keep": 1.0}))
    assert {r.region: r.count for r in found.plan.reservations} == {"west": 12, "east": 12}


def test_egress_is_paid_for_what_is_forwarded():
    # Two forwarded requests/s at least; a request costs 10 kB there at 0.1 and 40 kB back at 0.2 USD/GB.
    network = two_regions()["network"] | {"egress": {"usd_per_gb": {"west": 0.1, "east": 0.2}}}
    document = two_regions(services=service(request_kb=10, answer_kb=40), network=network)
    each = {"west": (10 * 0.1 + 40 * 0.2) / 1e6, "east": (10 * 0.2 + 40 * 0.1) / 1e6}
    found = solved(document)
    forwarded = {f.origin: f for f in found.plan.flows if f.origin != f.server}
    egress = sum(f.mean_requests_per_s * each[f.origin] * 3600 * 730 for f in forwarded.values())
    assert found.plan.cost.egress_usd_per_month == pytest.approx(egress)
    # Twelve machines in any split forward 4 requests/s in the mean; the cheaper way round is from the east.
    assert set(forwarded) == {"east"}
    assert cost(document) == pytest.approx(12 * 730 + 4 * each["east"] * 3600 * 730)
    assert cost(document) == pytest.approx(cost(document, "full"))


def test_dear_egress_keeps_requests_at_home():
    network = two_regions()["network"] | {"egress": {"usd_per_gb": 90.0}}
    assert cost(two_regions(services=service(answer_kb=100), network=network)) == pytest.approx(20 * 730)


def test_steps_and_minimum():
    found = solved(two_regions(machines=machine(step=5)))
    assert sum(r.count for r in found.plan.reservations) == 15
    found = solved(two_regions(machines=machine(minimum=14)))
    assert sum(r.count for r in found.plan.reservations) == 14


def test_worst_case_covers_any_one_region_above_its_demand():
    document = two_regions(uncertainty={"worst_case": {"deviation": 0.5, "regions": 1}})
    assert cost(document) == cost(document, "full") == pytest.approx(17 * 730)  # 15 + 2


def test_scenarios_are_all_served_and_costs_are_expected():
    futures = [{"scenario": "a", "probability": 0.5}, {"scenario": "b", "probability": 0.5, "factor": 2.0}]
    assert cost(two_regions(uncertainty={"scenarios": futures})) == pytest.approx(24 * 730)
    document = two_regions(uncertainty={"scenarios": futures}, terms=["reserved_3y", "on_demand"])
    assert cost(document) == cost(document, "full")


def test_growth_staggers_commitments():
    document = two_regions(
        growth={"quarters": 4, "factor_per_quarter": 1.5, "beyond_horizon_charged": 0.0},
        machines=machine(prices={"reserved_1y": 1.0, "on_demand": 9.0}),
        terms=["reserved_1y"],
    )
    found = solved(document)
    need = [12, 18, 27, 41]  # ⌈12·1.5^q⌉
    paid = sum(n * (4 - q) for q, n in enumerate(np.diff([0, *need]))) / 4
    assert found.plan.cost.total_usd_per_month == pytest.approx(paid * 730)
    assert {r.first_quarter for r in found.plan.reservations} == {0, 1, 2, 3}


def test_zero_demand_and_a_single_region():
    zero = {"kind": "inline", "unit": "requests_per_hour", "by_region": {"west": [0.0], "east": [0.0]}}
    assert cost(two_regions(services=service(demand=zero))) == 0.0
    alone = two_regions(
        regions=[{"region": "west"}],
        network={"rtt_ms": {}},
        services=service(demand={"kind": "inline", "unit": "requests_per_hour", "by_region": {"west": [7200.0]}}),
    )
    assert cost(alone) == pytest.approx(2 * 730)


def test_too_little_to_reserve_is_infeasible():
    for method in ("exact", "full"):
        assert solved(two_regions(machines=machine(reservable=3)), method).status == "infeasible"


def test_among_equals_machines_stand_where_users_are():
    found = solved(two_regions())
    counts = {r.region: r.count for r in found.plan.reservations}
    assert counts == {"west": 6, "east": 6} or found.plan.forwarded_share <= 1 / 3 + 1e-9


def test_union_closed_family():
    reach = np.array([[1, 1, 0], [0, 1, 1], [0, 0, 1]], dtype=bool)
    family = {tuple(z.astype(int)) for z in union_closed(reach)}
    assert family == {(1, 1, 0), (0, 1, 1), (0, 0, 1), (1, 1, 1)}
    assert union_closed(np.eye(20, dtype=bool), most=1000) is None


def test_a_family_too_large_to_list_is_cut_row_by_row():
    names = [f"r{i}" for i in range(16)]
    rng = np.random.default_rng(0)
    document = two_regions(
        regions=[{"region": n, "utc_offset_h": 0} for n in names],
        network={"rtt_ms": {a: dict.fromkeys(names, 20.0) for a in names}},
        services=service(
            forwarding_ceiling=0.4,
            demand={
                "kind": "inline",
                "unit": "requests_per_s",
                "by_region": {n: [float(v) for v in rng.uniform(1, 9, 6).round(1)] for n in names},
            },
        ),
    )
    found = solved(document)
    assert found.log["sets"] == "by row LPs"
    assert found.plan.cost.total_usd_per_month == pytest.approx(cost(document, "full"))


def test_gap_and_bound_are_honest():
    document = two_regions(terms=["reserved_3y", "on_demand"])
    found = solved(document, gap=0.2)
    assert found.bound <= cost(document) + 1e-6 <= found.plan.cost.total_usd_per_month + 2e-6


def test_the_block_fits_into_another_model():
    import pyomo.environ as pyo

    from formulations.reserved_capacity import model as f
    from optmodels.solver import solve_model

    problem = load(two_regions())
    tables = FORM.tables(problem)
    model = pyo.ConcreteModel()
    model.here = pyo.Block()
    f.attach(model.here, problem, tables)
    model.cap = pyo.Constraint(expr=sum(model.here.k[c] for c in model.here.k) >= 15)
    model.cost = pyo.Objective(expr=model.here.reserved_usd_per_month + model.here.hourly_usd_per_month)
    report, _, _ = solve_model(model)
    assert report.objective == pytest.approx(15 * 730)


def test_result_document():
    result = optmodels.solve(two_regions())
    assert result.status == "optimal"
    assert result.gap == 0
    assert result.unit == "USD/month"
    assert optmodels.check(result).ok


def test_parts_of_a_network_are_listed_apart():
    reach = np.zeros((20, 20), dtype=bool)
    for i in range(20):  # ten pairs of neighbours: 2^20 unions together, three sets a pair
        reach[i, [i, i ^ 1]] = True
    reach[0, 1] = False
    assert union_closed(reach, most=1000) is None
    listed = families(reach, most=1000)
    assert sorted(len(f) for f in listed) == [1] * 9 + [2]
    assert families(np.zeros((3, 2), dtype=bool)) == []


@pytest.mark.parametrize("kappa, egress", [(1.0, 0.05), (1.3, None), (1.15, 0.02)])
def test_a_month_by_known_duals_equals_the_full_model(kappa, egress):
    regions = [("west", -8), ("mid", -3), ("east", 4), ("far", 9)]
    network = {"rtt_ms": {"west": {"mid": 60, "east": 150, "far": 210}, "mid": {"east": 90, "far": 160},
                          "east": {"far": 70}}, "local_rtt_ms": 5.0}  # fmt: skip
    if egress is not None:
        network["egress"] = {"usd_per_gb": {n: egress * (1 + x) for x, (n, _) in enumerate(regions)}}
    demand = {"kind": "diurnal", "hours": 504, "total_requests_per_s": 160.0, "noise": 0.2, "seed": 3,
              "curve": "azure-2024-conv"}  # fmt: skip
    chat = {"service": "chat", "slo": {"ttft_s": 0.3}, "demand": demand, "kappa": kappa, "answer_kb": 500.0}
    document = two_regions(
        regions=[{"region": n, "utc_offset_h": h} for n, h in regions], network=network, services=[chat],
        machines=machine(prices={"on_demand": 2.2, "reserved_3y": 1.0}, on_demand_available=40),
        terms=["reserved_3y", "on_demand"],
    )  # fmt: skip
    found, reference = solved(document, gap=1e-3), solved(document, "full", gap=1e-4)
    assert found.log["sets"] == "by row LPs" and "start_seconds" in found.log
    true, cost = reference.plan.cost.total_usd_per_month, found.plan.cost.total_usd_per_month
    assert found.bound <= true * (1 + 1e-6) and cost >= reference.bound * (1 - 1e-6)
    assert cost - found.bound <= 1e-3 * cost


def test_after_the_loss_of_a_region_a_forwarding_ceiling_does_not_hold_its_users():
    """Half of a region's demand may leave; of a lost one 80 % is served elsewhere all the same."""
    demand = {"a": [10.0, 4.0], "b": [4.0, 10.0], "c": [5.0, 5.0]}
    document = two_regions(
        regions=[{"region": n} for n in demand], network={"rtt_ms": {"a": {"b": 20.0, "c": 30.0}, "b": {"c": 20.0}}},
        services=service(forwarding_ceiling=0.5,
                         demand={"kind": "inline", "unit": "requests_per_s", "by_region": demand}),
        machines=machine(serves={"chat": {"requests_per_s": 2.0, "prefill_s": 0.1}}),
        resilience={"lose_any_region_keep": 0.8},
    )  # fmt: skip
    # 0.8 · 19 requests/s take 8 machines in any two regions: twelve in all.
    assert cost(document) == pytest.approx(cost(document, "full")) == pytest.approx(12 * 730)
    document["services"][0]["forwarding_ceiling"] = 0.0
    assert cost(document) == pytest.approx(cost(document, "full"))
    document["services"][0]["kappa"] = 1.2
    assert cost(document) == pytest.approx(cost(document, "full"))
    # Users in one region only: what serves them after its loss stands where nobody is served before it.
    demand = {"a": [6.6, 4.0], "b": [0.0, 0.0], "c": [0.0, 0.0]}
    document["services"][0]["demand"]["by_region"] = demand
    document |= {"machines": machine(minimum=5), "resilience": {"lose_any_region_keep": 1.0}}
    for method in ("exact", "full"):
        found = {r.region: r.count for r in solved(document, method).plan.reservations}
        assert found.pop("a") == 7 and list(found.values()) == [8]  # 6.6 · 1.2 in either of the others


@pytest.mark.parametrize("charged, bought", [(1.0, {}), (0.4, {"reserved_1y": 50}), (0.0, {"reserved_3y": 50})])
def test_two_quarters_of_need_do_not_buy_three_years_for_nothing(charged, bought):
    """50 machines for two quarters: three years are 12 of them, one year 4, and by the hour there is no commitment."""
    document = two_regions(
        regions=[{"region": "a"}], network={"rtt_ms": {"a": {"a": 2.0}}},
        services=service(demand={"kind": "inline", "unit": "requests_per_s", "by_region": {"a": [50.0]}}),
        machines=machine(prices={"on_demand": 1.9, "reserved_1y": 1.3, "reserved_3y": 0.9}),
        terms=["reserved_1y", "reserved_3y", "on_demand"],
        growth={"quarters": 2, "factor_per_quarter": 1.0, "beyond_horizon_charged": charged},
    )  # fmt: skip
    for method in ("exact", "full"):
        found = solved(document, method).plan
        assert {r.term: r.count for r in found.reservations} == bought
        [(price, quarters)] = [
            (p, q) for t, p, q in (("reserved_1y", 1.3, 4), ("reserved_3y", 0.9, 12)) if t in bought
        ] or [(0, 0)]
        assert found.cost.committed_usd == pytest.approx(50 * price * 730 * 3 * quarters)
        assert found.cost.committed_beyond_horizon_usd == pytest.approx(50 * price * 730 * 3 * max(0, quarters - 2))
        paid = 50 * price * (2 + charged * (quarters - 2)) / 2 if bought else 50 * 1.9
        assert found.cost.total_usd_per_month == pytest.approx(730 * paid)


def test_next_to_nothing_served_is_nothing_served():
    """Rounding left 1e-14 requests/s to serve without a machine, and the check refused the proved optimum."""
    prices = {"reserved_3y": 1000.0}
    demand = {"kind": "inline", "unit": "requests_per_s",
              "by_region": {"west": [100 / 3, 333.3, 71.7], "east": [1000 / 3, 1e-14, 0.0]}}  # fmt: skip
    free = service(unserved_usd_per_request=1e-6, forwarding_ceiling=0.3, demand=demand)
    for method in ("exact", "full", "greedy", "lp_rounding"):
        assert solved(two_regions(services=free, machines=machine(prices=prices)), method).plan is not None


def test_users_out_of_every_reach_pay_their_price_within_the_bound():
    """What they cost was left out of the cuts by sets: exact stopped at a gap that no cut could close."""
    machines = machine(prices={"on_demand": 3.0, "reserved_3y": 1.0}, regions=["west"])
    document = two_regions(services=service(slo={"ttft_s": 0.15}, unserved_usd_per_request=0.0005), machines=machines,
                           terms=["reserved_3y", "on_demand"])  # fmt: skip
    assert cost(document) == pytest.approx(cost(document, "full"))
    document["resilience"] = {"lose_spot_keep": 1.0}
    assert solved(document).status == solved(document, "full").status == "infeasible"


def test_a_cut_keeps_what_the_hours_cost_however_dear_a_machine_by_the_hour_is():
    """Beside 290 million USD a month the cost of the hours was dropped from its cuts: a false optimum."""
    day = {"kind": "diurnal", "hours": 2, "total_requests_per_s": 4.0}
    document = two_regions(
        regions=[{"region": "west", "utc_offset_h": 6}, {"region": "east", "utc_offset_h": -8}],
        services=service(demand=day, slo={"ttft_s": 0.09}), terms=["on_demand", "reserved_1y", "reserved_3y"],
        machines=machine(prices={"on_demand": 4e5, "reserved_1y": 1e5, "reserved_3y": 7e4}, step=7,
                         serves={"chat": {"requests_per_s": 2.0}}),
    )  # fmt: skip
    assert cost(document) == pytest.approx(cost(document, "full"))


def test_known_duals_bound_rows_whose_hourly_machines_are_few():
    """What few machines save was left out of their price: long instances were bounded above their optimum."""
    demand = {"kind": "inline", "unit": "requests_per_s", "by_region": {"west": [9.0, 3.0], "east": [4.0, 16.0]}}
    t = FORM.tables(load(two_regions(
        services=service(kappa=1.3, unserved_usd_per_request=0.002, demand=demand), terms=["reserved_3y", "on_demand"],
        machines=machine(prices={"on_demand": 2.5, "reserved_3y": 1.0}, on_demand_available=3),
    )))  # fmt: skip
    oracle, lp, rows = RowByRow(t, np.arange(2)), RowLp(t, tie_break=False), np.arange(2)
    oracle.cost(np.zeros((2, 1)))
    for machines in (0.0, 2.0, 5.0):
        bound, _ = oracle._bounds(rows, np.full((2, 2), machines))
        for h in rows:
            lp.solve(t.demand[h], np.full(2, machines))
            assert bound[h] <= lp.objective * (1 + 1e-9) + 1e-9
            assert machines > 0 or bound[h] == pytest.approx(lp.objective)


# ------------------------------------------------------------------------------------------------------------- hairs


def _hair(peak, on_demand):
    """One region that peaks at `peak` half of the time, machines at 1 USD/h reserved, `on_demand` by the hour."""
    demand = {"kind": "inline", "unit": "requests_per_s", "by_region": {"west": [peak, 1.5], "east": [0.0, 0.0]}}
    prices = {"on_demand": on_demand, "reserved_3y": 1.0}
    document = two_regions(services=service(demand=demand), machines=machine(prices=prices))
    return load(document | {"terms": ["reserved_3y", "on_demand"]})


def test_of_a_master_with_a_hair_one_run_is_not_believed():
    """Two machines and one on demand at the peak cost 2.8 USD/h. A run that leaves out all but one reserved says 3."""
    problem = _hair(3 * (1 - 3e-7), 1.6)
    solve = exact.CommitmentMaster.solve

    def wrongly(master, gap, seconds):
        if master.session._integer.any():
            master.between(upper=np.array([1.0, 0.0]))
        found = solve(master, gap, seconds)
        master.between()
        return found

    with (
        patch.object(exact._ExactRun, "_round", lambda run, x: None),
        patch.object(exact.CommitmentMaster, "solve", wrongly),
    ):
        found = exact.exact(problem, FORM.tables(problem), Options())
    assert found.plan is not None and found.bound <= 2.8 * 730 * (1 + 1e-6)
    assert found.status == "optimal" and found.plan.cost.total_usd_per_month == pytest.approx(2.8 * 730, rel=1e-6)


@pytest.mark.parametrize("relaxed", [False, True])
def test_a_master_that_says_the_same_for_ever_ends_the_rounds(relaxed):
    """It is passed anew once; then the best plan is returned, with the bound that is known, and why."""
    solve, first, forgotten = exact.CommitmentMaster.solve, {}, []

    def again(master, gap, seconds):
        status, x, bound = solve(master, gap, seconds)
        if bool(master.session._integer.any()) is relaxed:
            return status, x, bound
        return first.setdefault("answer", (status, x, bound * 0.9))

    with (
        patch.object(exact, "FEW_FLOWS", 0),
        patch.object(exact.CommitmentMaster, "solve", again),
        patch.object(exact.Session, "forget", lambda session: forgotten.append(session)),
    ):
        problem = _hair(2.5, 1.6)
        found = exact.exact(problem, FORM.tables(problem), Options())
    assert found.log["ended"] == exact.NOTHING_NEW and forgotten
    assert found.plan.cost.total_usd_per_month == pytest.approx(2.4 * 730)
    if relaxed:  # the integer rounds prove it
        assert found.status == "optimal"
    else:
        assert (found.status, found.limit) == ("feasible", "gap") and found.bound < 2.4 * 730


def test_a_row_that_always_has_a_point_has_one_whatever_presolve_says():
    """Unserved demand has a price, and three machines carry 3 + 7·10⁻⁸ of it: HiGHS' presolve finds no point."""
    rates = {
        "chat": {"requests_per_s": 1.7, "prefill_s": 0.02},
        "code": {"requests_per_s": 1.8, "prefill_s": 0.02},
    }
    demands = {
        "chat": {"west": [3.4], "east": [3.3999993142633933]},
        "code": {"west": [0.0], "east": [1.8000008493744797]},
    }
    services = [
        {"service": name, "slo": {"ttft_s": 0.5}, "unserved_usd_per_request": 0.00045460028761194554,
         "demand": {"kind": "inline", "unit": "requests_per_s", "by_region": by_region}}
        for name, by_region in demands.items()
    ]  # fmt: skip
    services[1].pop("unserved_usd_per_request")
    t = FORM.tables(load(two_regions(services=services, machines=machine(serves=rates))))
    lp = RowLp(t)
    lp.solve(t.demand[0], np.where(t.sink_region == t.case.regions.index("west"), 0.0, 3.0))
    assert lp.objective > 0


@pytest.mark.parametrize("name", ["exact", "full"])
def test_what_a_plan_leaves_of_a_demand_by_a_hair_is_paid_for(name):
    """3.4·10⁻⁷ requests/s that no machine has room for, at 24 USD/h each: `full` had a plan 2·10⁻⁶ below its bound."""
    boxes = [
        {"machine": f"m{k}", "prices": {"reserved_3y": usd},
         "serves": {"chat": {"requests_per_s": chat, "prefill_s": 0.02},
                    "code": {"requests_per_s": 3.9, "prefill_s": 0.02}}}
        for k, (usd, chat) in enumerate([(0.8642085562047661, 1.6), (0.39405347559979775, 1.2)])
    ]  # fmt: skip
    services = [
        {"service": name, "slo": {"ttft_s": 0.5},
         "demand": {"kind": "inline", "unit": "requests_per_s", "by_region": {"west": [0.0, peak]}}}
        for name, peak in [("chat", 4.800006959357386), ("code", 3.8999777243383873)]
    ]  # fmt: skip
    services[1]["unserved_usd_per_request"] = 0.00657151065931816
    one = {"regions": [{"region": "west", "utc_offset_h": 0}], "network": {"rtt_ms": {"west": {}}, "local_rtt_ms": 5.0}}
    problem = load(two_regions(services=services, machines=boxes) | one)
    found = FORM.method(name)(problem, FORM.tables(problem), Options())
    assert found.status == "optimal"
    assert found.plan.cost.total_usd_per_month == pytest.approx(1438.298141, rel=1e-7)
    assert found.bound <= found.plan.cost.total_usd_per_month * (1 + 1e-6)


def _priced_beside(chat, code, rates, usd, **more):
    """`chat`, which must be served, beside `code` at a price of being unserved, on machines of three years."""
    services = [
        {"service": name, "slo": {"ttft_s": 0.5},
         "demand": {"kind": "inline", "unit": "requests_per_s", "by_region": by_region}}
        for name, by_region in (("chat", chat), ("code", code))
    ]  # fmt: skip
    services[0] |= more
    services[1]["unserved_usd_per_request"] = usd
    serves = {
        name: {"requests_per_s": rate, "prefill_s": 0.02} for name, rate in zip(("chat", "code"), rates, strict=True)
    }
    return load(two_regions(services=services, machines=machine(serves=serves)) | {"terms": ["reserved_3y"]})


def test_enough_is_read_alike_where_one_service_has_a_price():
    """Six machines carry 9 of 9.0000009 requests/s at the peak; `exact` proved seven, `full` and `greedy` have six."""
    chat = {"west": [4.5, 4.5000009], "east": [4.5000009, 0.0]}
    problem = _priced_beside(chat, {"west": [0.0, 5.4], "east": [0.0, 0.0]}, (1.5, 2.7), 0.005)
    found = [FORM.method(name)(problem, FORM.tables(problem), Options()) for name in ("exact", "full", "greedy")]
    assert [x.plan.cost.total_usd_per_month for x in found] == pytest.approx([6 * 730] * 3, rel=1e-6)
    assert all(x.bound <= 6 * 730 * (1 + 1e-6) for x in found[:2])


@pytest.mark.parametrize(
    ("problem", "machines"),
    [
        # Within HiGHS' tolerance three machines are enough for 4.5000015 requests/s.
        (_priced_beside({"west": [0.0, 1.5000015], "east": [0.0, 3.0]}, {"west": [0.0, 0.0], "east": [6.6, 0.0]},
                        (1.5, 2.2), 0.0029, kappa=1.2), 4.0),
        # Runs of HiGHS state bounds above its own point.
        (_priced_beside({"west": [0.0, 4.0000008], "east": [6.0, 2.0000004]},
                        {"west": [3.30000066, 3.3], "east": [2.2, 2.2]}, (2.0, 1.1), 0.007), 8.0),
    ],
)  # fmt: skip
def test_what_full_finds_on_hairs_is_a_plan(problem, machines):
    found = {name: optmodels.solve(problem, name) for name in ("exact", "full")}
    assert all(r.check.ok and r.objective == pytest.approx(machines * 730, rel=1e-5) for r in found.values())
    assert found["exact"].status == "optimal" and found["full"].status in ("optimal", "feasible")
    assert all(r.bound is None or r.bound <= machines * 730 * (1 + 1e-5) for r in found.values())
