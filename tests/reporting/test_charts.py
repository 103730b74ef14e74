"""Charts as pictures: file names and formats, what is drawn of a sweep, a comparison, a calibration, a table."""

from __future__ import annotations

import json

import numpy as np
import pytest
import vl_convert
import yaml

import optmodels
from optmodels.errors import InputError
from optmodels.latency import piecewise
from optmodels.latency.fit import calibrate_measurements, read_measurements
from optmodels.reporting.charts import Chart, chart, coloured, drawn, labels, save_chart
from optmodels.reporting.charts import latency as latency_charts
from optmodels.reporting.charts.comparison import charts as comparison_charts
from optmodels.reporting.charts.sweep import BEATEN, INFEASIBLE, NONE_FOUND, OPEN, PROVED
from optmodels.reporting.charts.sweep import charts as sweep_charts
from optmodels.reporting.colours import SERIES
from optmodels.reporting.quantities import title


def bars(names=("a", "b"), title="Bars") -> Chart:
    encoding = {"x": {"field": "name", "type": "nominal"}, "y": {"field": "n", "type": "quantitative"},
                "color": coloured("name", names)}  # fmt: skip
    return chart(title, "How many.", [{"name": n, "n": 1.0} for n in names], {"mark": "bar", "encoding": encoding})


def valid(picture: Chart) -> Chart:
    """By the schema of Vega-Lite, and drawn by Vega without a warning."""
    altair = pytest.importorskip("altair")
    assert json.dumps(picture.spec, allow_nan=False)
    altair.Chart.from_dict(drawn(picture), validate=True)
    assert vl_convert.vegalite_to_svg(drawn(picture)).startswith("<svg")
    return picture


@pytest.mark.parametrize(("kind", "begins"), [("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF")])
def test_formats_by_the_files_ending(tmp_path, kind, begins):
    path = tmp_path / "new" / f"bars.{kind}"
    save_chart(bars(), path, "two of them")
    assert path.read_bytes().startswith(begins)
    with pytest.raises(InputError, match="existing file"):
        save_chart(bars(), path)
    save_chart(bars(), path, overwrite=True)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_another_ending_is_a_mistake(tmp_path):
    with pytest.raises(InputError, match=r"\.png, \.svg or \.pdf"):
        save_chart(bars(), tmp_path / "bars.gif")
    assert list(tmp_path.iterdir()) == []


def test_legends_have_as_many_columns_as_their_names_have_room_for():
    assert drawn(bars())["config"]["legend"]["columns"] == 4
    assert drawn(bars(("a", "b" * 40)))["config"]["legend"]["columns"] == 2
    assert drawn(bars(("a", "b" * 90)))["config"]["legend"]["columns"] == 1
    assert drawn(bars(), "an instance")["title"] == {"text": "Bars", "subtitle": "an instance"}


def test_colours_go_round_and_labels_are_distinct():
    found = coloured("name", [str(i) for i in range(len(SERIES) + 1)])["scale"]["range"]
    assert (found[0], found[-1], len(found)) == (SERIES[0], SERIES[0], len(SERIES) + 1)
    assert len(set(labels(["x" * 60 + "1", "x" * 60 + "1" + "y" * 60, "x" * 90 + "y" * 60]).values())) == 3


def sweep(rows, **more):
    full = [{"plan": None, "check": {"ok": True}, "headline": "", "frontier": None, "bound": None} | r for r in rows]
    return {"rows": full, "keys": list(rows[0]["varied"]), "unit": "USD/h", "sense": "min", "pareto": None} | more


def test_a_sweep_shows_proofs_bounds_and_what_has_no_plan():
    rows = [
        {"varied": {"load": 1.0}, "status": "optimal", "proved": True, "objective": 3.0},
        {"varied": {"load": 10.0}, "status": "feasible", "proved": False, "objective": 4.0, "bound": 3.5},
        {"varied": {"load": 100.0}, "status": "infeasible", "proved": True, "objective": None},
        {"varied": {"load": 1000.0}, "status": "no_solution_found", "proved": False, "objective": None},
    ]
    (picture,) = sweep_charts(sweep(rows))
    valid(picture)
    assert picture.file == "sweep"
    assert [r["state"] for r in picture.spec["data"]["values"]] == [PROVED, OPEN, INFEASIBLE, NONE_FOUND]
    x = picture.spec["layer"][0]["encoding"]["x"]
    assert x["scale"]["type"] == "log"  # evenly spread in their logarithms
    assert sweep_charts(sweep([r | {"objective": None} for r in rows])) == []


def test_a_frontier_steps_towards_the_better_side():
    rows = [
        {"varied": {"k": k}, "status": "optimal", "proved": k > 1, "objective": c, "plan": {"cost": c, "slo": s},
         "frontier": front, "check": {"ok": ok}}
        for k, (c, s, front, ok) in enumerate([(3.0, 1.0, True, True), (2.0, 2.0, True, True), (5.0, 2.0, False, True),
                                               (1.0, 1.0, False, False)], 1)
    ]  # fmt: skip
    for direction, step in (("min", "step-after"), ("max", "step-before")):
        aims = [{"column": "cost", "direction": "min"}, {"column": "slo", "direction": direction}]
        picture = valid(sweep_charts(sweep(rows, pareto=aims))[0])
        line, _ = picture.spec["layer"]
        assert line["mark"]["interpolate"] == step
        shown = [(r["x"], r["y"], r["kind"]) for r in picture.spec["data"]["values"]]
        assert shown == [
            (1.0, 3.0, "on the frontier, not proved"), (2.0, 2.0, "on the frontier, proved"), (2.0, 5.0, BEATEN),
        ]  # fmt: skip
    three = [*aims, {"column": "k", "direction": "min"}]
    assert len(sweep_charts(sweep(rows, pareto=three))[0].spec["layer"]) == 1  # no line through a surface


def test_a_comparison_of_more_methods_than_colours():
    methods = [f"m{i}" for i in range(len(SERIES) + 2)]
    rows = [
        {"instance": f"{folder}/same.yaml", "method": m, "seed": 0, "status": "optimal", "objective": 2.0 + i,
         "gap": 0.0, "gap_to_bound": i / 10, "proved": True, "sense": "min", "unit": "USD/h", "check": {"ok": True},
         "seconds": {"total": 1.0 + i, "to_proof": 1.0 + i}, "events": [
             {"seconds": 0.1, "objective": 4.0, "bound": 2.0}, {"seconds": 0.5, "objective": 2.0, "bound": 2.0}]}
        for folder in ("a", "b") for i, m in enumerate(methods)
    ]  # fmt: skip
    found = {c.file: valid(c) for c in comparison_charts(rows)}
    assert set(found) == {"gap-and-time", "compare", "profile", "time", "gap-over-time"}
    encoding = found["compare"].spec["encoding"]
    pairs = zip(encoding["color"]["scale"]["range"], map(str, encoding["strokeDash"]["scale"]["range"]), strict=True)
    assert len(set(pairs)) == len(methods)  # colour and dashes tell them apart
    panels = {r["instance"] for r in found["gap-over-time"].spec["data"]["values"]}
    assert panels == {"a/same.yaml", "b/same.yaml"}
    ends = [r for r in found["compare"].spec["data"]["values"] if r["method"] == "m3"]
    assert [(r["gap"], r["share"]) for r in ends] == [(0, 0), (0, 0), (0.3, 0.5), (0.3, 1), (1.56, 1)]
    profile = [r for r in found["profile"].spec["data"]["values"] if (r["method"], r["measure"]) == ("m2", "quality")]
    assert [(r["factor"], r["share"]) for r in profile] == [(1, 0), (2, 0.5), (2, 1), (pytest.approx(8.25), 1)]


def test_a_table_is_drawn_with_its_error():
    x = np.arange(1.0, 20.0)
    y = 1 + 0.01 * x**2
    t = piecewise.table(x, y, max_error=0.03, name_x="batch", name_y="latency")
    picture = valid(latency_charts.table(t, x, y))
    rows = picture.spec["data"]["values"]
    assert sum("error" not in r for r in rows) == len(t.x)
    assert max(abs(r["error"]) for r in rows if "error" in r) == pytest.approx(t.max_error, rel=1e-5)


def test_residuals_are_drawn_by_target(tmp_path):
    users, lengths = np.meshgrid([1, 2, 4, 8, 16, 32], [256, 1024, 4096, 512])
    lines = [f"{c},{n},128,1,{0.02 + 1e-5 * n},{0.01 + 2e-4 * c}"
             for c, n in zip(users.ravel(), lengths.ravel(), strict=True)]  # fmt: skip
    path = tmp_path / "served.csv"
    path.write_text("\n".join(["concurrency,input_tokens,output_tokens,tp,ttft_s,tpot_s", *lines]))
    m = read_measurements(path)
    fitted = calibrate_measurements(m, "linear_batch")
    picture = valid(latency_charts.residuals(m, fitted))
    assert len(picture.spec["hconcat"]) == len(fitted.model.targets)
    inside = [r for r in picture.spec["data"]["values"] if r["kind"] == latency_charts.IN_SAMPLE]
    assert len(inside) == len(lines) * len(fitted.model.targets)


def test_the_charts_of_a_plan_are_drawn_on_demand(tmp_path):
    """Beside the plan is its page alone; the busy slots and arrivals of an orchestration are those of its tables."""
    problem = yaml.safe_load(optmodels.new("orchestration"))
    problem["requests"]["trace"]["generated"]["requests"] = 120
    result = optmodels.solve(problem, "round_robin", out=tmp_path)
    names = {"cluster-map", "requests-over-time", "busy-slots", "request-classes"}
    (folder,) = tmp_path.iterdir()
    assert not list(folder.glob("*.png"))
    optmodels.report(folder / "plan.json", figures=tmp_path / "drawn")
    assert {p.stem.partition("-")[2] for p in (tmp_path / "drawn").iterdir()} == names
    timeline = result.report["timeline"]
    arrived = sum(timeline["arriving"]) * timeline["step_s"]
    assert arrived == pytest.approx(result.plan["prediction"]["requests"], rel=1e-2)
    shares = [v for line in timeline["busy"] for v in line["share"]]
    assert 0 < max(shares) <= 1 + 1e-6


def test_the_gap_over_time_never_shows_bounds_of_parts():
    from optmodels.reporting.charts.generic import gap_over_time

    events = [(0.1, 12.0, 12.0), (0.2, 12.0, 4.0), (0.3, None, 5.0), (0.4, 11.0, 3.0), (0.5, 10.0, 8.0)]
    document = {"sense": "min", "objective": 10.0, "bound": 8.0,
                "events": [{"seconds": s, "objective": o, "bound": b, "nodes": 0} for s, o, b in events]}  # fmt: skip
    rows = gap_over_time(document).spec["data"]["values"]
    assert [(r["seconds"], r["gap"]) for r in rows] == [
        (0.2, pytest.approx(8 / 12, rel=1e-5)), (0.3, pytest.approx(7 / 12, rel=1e-5)),
        (0.4, pytest.approx(6 / 11, rel=1e-5)), (0.5, 0.2),
    ]  # fmt: skip


def test_the_gap_of_a_plan_worth_nothing_is_not_shown():
    from optmodels.reporting.charts.generic import gap_over_time

    events = [(0.1, -0.0, 2.0), (0.2, 0.5, 1.0), (0.3, 0.5, 0.5)]
    document = {"sense": "max", "objective": 0.5, "bound": 0.5,
                "events": [{"seconds": s, "objective": o, "bound": b, "nodes": 0} for s, o, b in events]}  # fmt: skip
    spec = gap_over_time(document).spec
    assert [r["gap"] for r in spec["data"]["values"]] == [1.0, 0.0]
    json.dumps(spec, allow_nan=False)


@pytest.mark.parametrize(("path", "said"), [
    ("slo.ttft_s", "SLO TTFT, s"), ("workload.batch", "Workload batch"), ("slo.tps", "SLO throughput, tokens/s"),
    ("usd_per_hour", "Cost, USD/h"), ("workloads[name=chat].requests_per_s", "chat, requests/s"),
    ("workloads[chat].slo.ttft_s", "chat SLO TTFT, s"), ("stock[0].at_most", "Stock 1 at most"),
    ("pool.machines[g6.xlarge].prices.on_demand", "Pool g6.xlarge prices on demand"),
    ("workloads[*].slo.tpot_s", "Workloads SLO TPOT, s"), ("plan.usd_per_hour", "Cost, USD/h"),
    ("markets.main[0]", "Markets main 1"), ("services[chat].demand.scale", "chat demand scale"),
])  # fmt: skip
def test_axes_are_named_in_words(path, said):
    assert title(path) == said
