"""The command-line contract of ARCHITECTURE: verbs, JSON documents, exit statuses, files, no harm from any name."""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import optmodels

ROOT = Path(__file__).resolve().parents[2]
TEXTBOOK = sorted((ROOT / "instances" / "cost_efficiency" / "textbook").glob("*.yaml"))
SOLVE_KEYS = {
    "instance", "formulation", "method", "status", "limit", "objective", "sense", "unit", "bound", "gap", "seconds",
    "size", "plan", "check",
}  # fmt: skip
SIZES = {"variables", "integers", "constraints", "nonzeros"}
METHODS = ["exact", "enumerate", "config_tree", "greedy", "greedy_dp", "high_end", "kvo_disk", "infersave",
           "infersave_plus", "ao_cluster"]  # fmt: skip
IMPOSSIBLE = {"kind": "real_time", "tps": 1.0, "ttft_s": 1e-6, "tpot_s": 1e-6}


def document(done):
    """The one JSON document on stdout."""
    decoder = json.JSONDecoder(parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
    found, end = decoder.raw_decode(done.out)
    assert done.out[end:].strip() == ""
    return found


def assert_contract(data):
    assert data.keys() >= SOLVE_KEYS
    assert data["seconds"].keys() >= {"build", "solve", "total"}
    assert data["size"].keys() == SIZES
    assert data["sense"] in ("min", "max")
    assert data["status"] in ("optimal", "feasible", "infeasible", "unbounded", "no_solution_found", "error")
    assert data["limit"] in (None, "time", "gap", "interrupt", "memory")
    if data["check"] is not None:
        assert data["check"].keys() >= {"ok", "violations"}


# ------------------------------------------------------------------ as users run it, in a process of its own


def test_solve_as_a_command(command, write, folder, tiny):
    write(tiny())
    done = command("solve", "instance.yaml", "--json")
    assert done.status == 0
    assert done.err == ""
    data = document(done)
    assert_contract(data)
    assert data["status"] == "optimal"
    assert data["check"] == {"ok": True, "violations": []}
    assert sorted(p.name for p in folder.iterdir()) == ["instance.yaml"]  # --json writes no files unless told


def test_a_mistake_as_a_command(command, write, folder, tiny):
    write(tiny(slo={"kind": "batch", "tps": "200 GiB"}))
    done = command("solve", "instance.yaml")
    assert (done.status, done.out) == (2, "")
    assert "instance.yaml" in done.err
    assert "slo.tps" in done.err
    assert "'200 GiB'" in done.err
    assert "Traceback" not in done.err
    assert sorted(p.name for p in folder.iterdir()) == ["instance.yaml"]


def test_nobody_meets_the_slo_as_a_command(command, write, tiny):
    write(tiny(slo=IMPOSSIBLE))
    done = command("solve", "instance.yaml")
    assert done.status == 3
    assert "infeasible, proved (method exact)" in done.out
    assert "Next: optmodels explain instance.yaml" in done.out
    assert "Traceback" not in done.err


def test_the_solve_script_of_the_formulation(command, write, tiny):
    write(tiny())
    done = command("instance.yaml", "--json", module="formulations.cost_efficiency")
    assert done.status == 0, done.err
    assert document(done)["formulation"] == "cost_efficiency"
    write({"formulation": "another", "schema": 1}, "other.yaml")
    done = command("other.yaml", module="formulations.cost_efficiency")
    assert done.status == 2
    assert "cost_efficiency" in done.err


def test_an_instance_in_a_folder_of_another_language(command, write, tiny):
    write(tiny(), "größe/例/instance.yaml")
    done = command("solve", "größe/例/instance.yaml", "--out", "ergebnis ü", PYTHONUTF8="1")
    assert done.status == 0, done.err


@pytest.mark.parametrize("verb", ["solve", "tables"])
def test_ctrl_c_outside_the_solver_ends_without_a_plan(cli, write, tiny, monkeypatch, verb):
    """Inside the solver it returns the incumbent: tests/solver."""

    @functools.wraps(getattr(optmodels, verb))  # whose options the command line has
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"optmodels.api.{verb}.{verb}", interrupted)
    done = cli(verb, write(tiny()))
    done.assert_clean()
    assert (done.status, done.out) == (4, "")
    assert "interrupted" in done.err


def test_a_closed_pipe_is_no_fault(write, folder):
    done = subprocess.run(
        f"{sys.executable} -m optmodels list catalog --json | head -c 10",
        shell=True, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""


def test_machines_are_listed_with_prices_their_date_and_source(cli):
    rows = json.loads(cli("list", "machines", "--cloud", "gcp", "--region", "europe-west4", "--json").out)
    (row,) = [r for r in rows if r["machine"] == "g2-standard-4"]
    assert (row["gpu"], row["gpus"], row["vram_gib"], row["date"]) == (
        "l4",
        1,
        22.0,
        "2026-07-30",
    )  # 24 GB, of which drivers leave 22 GiB
    assert row["reserved_3y"] < row["reserved_1y"] < row["on_demand"] == 0.742916
    assert "google-cloud-pricing" in row["source"] and "price list" in row["price_sources"]
    table = cli("list", "machines", "--cloud", "azure", "--region", "swedencentral")
    assert "Standard_ND96isr_H100_v5" in table.out and "USD per hour of 2026-06-18" in table.out
    for wrong in (("--region", "atlantis"), ("--cloud", "none")):
        assert cli("list", "machines", *wrong).status == 2
    assert cli("list", "catalog", "--cloud", "gcp").status == 2


# -------------------------------------------------------------------------------------------------------- documents


@pytest.mark.parametrize("method", METHODS)
def test_every_method_keeps_the_contract(cli, write, tiny, method):
    done = cli("solve", write(tiny()), "--method", method, "--json")
    done.assert_clean()
    data = document(done)
    assert_contract(data)
    assert data["method"] == method
    if data["plan"] is None:
        assert (done.status, data["status"]) == (4, "no_solution_found")
    else:
        assert done.status == 0
        assert data["check"]["ok"] is True
        assert data["objective"] > 0
    proved = data["status"] == "optimal"
    assert (data["bound"] is None) != proved
    assert (data["gap"] is None) != proved


@pytest.mark.parametrize("method", METHODS)
def test_an_impossible_slo_for_every_method(cli, write, tiny, method):
    done = cli("solve", write(tiny(slo=IMPOSSIBLE)), "--method", method, "--json")
    done.assert_clean()
    data = document(done)
    assert_contract(data)
    assert (data["plan"], data["objective"], data["gap"], data["check"]) == (None, None, None, None)
    proves = method in ("exact", "enumerate", "config_tree")
    assert (data["status"], done.status) == (("infeasible", 3) if proves else ("no_solution_found", 4))


def test_infeasible_explains_every_family(cli, write, tiny):
    data = document(cli("solve", write(tiny(slo=IMPOSSIBLE)), "--json"))
    families = data["report"]["families"]
    assert [f["family"] for f in families] == [
        "high_end", "multi_pass", "kvo_ram", "kvo_disk", "ao", "ao_parallel", "ao_shared"
    ]  # fmt: skip
    for f in families:
        assert f["plan"] is None
        assert f["killed_by"] or f["reason"] != "infeasible", f
        for cause in f["killed_by"]:
            assert cause["value"] > cause["limit"] or cause["name"] == "TPS"
    text = cli("solve", "instance.yaml")
    assert text.status == 3
    for title in ("High-end", "Multi-pass", "RAM", "disk", "1:1", "pairs", "shared"):
        assert title in text.out
    assert "TTFT" in text.out
    assert "TPOT" in text.out


@pytest.mark.parametrize("budget", [0, 0.01])
def test_a_budget_of_nothing_is_infeasible_because_of_the_budget(cli, write, tiny, budget):
    done = cli("solve", write(tiny(budget_usd_per_hour=budget)), "--json")
    done.assert_clean()
    assert done.status == 3
    causes = {c["name"] for f in document(done)["report"]["families"] for c in f["killed_by"]}
    assert causes == {"budget"}


def test_a_model_too_large_for_every_machine_says_so(cli, write, tiny):
    done = cli("solve", write(tiny(model="llama-3.1-405b")), "--json")
    done.assert_clean()
    assert done.status == 3
    causes = {c["name"] for f in document(done)["report"]["families"] for c in f["killed_by"]}
    assert "weights in VRAM" in causes


def test_the_summary_says_what_a_user_asked_for(cli, write, tiny):
    done = cli("solve", write(tiny(slo={"kind": "real_time", "tps": 50, "ttft_s": "3 s", "tpot_s": "200 ms"})))
    assert done.status == 0
    for text in ("main machine", "batch split", "α", "TTFT", "TPOT", "E2E", "tokens/s", "USD/h", "tokens/USD",
                 "cost efficiency, capped", "cost efficiency, uncapped", "Limits", "Best without spot",
                 "Next distinct plans", "By strategy family",
                 "Proved optimal", "bound", "gap", "Independent check: passed"):  # fmt: skip
        assert text in done.out, text


def test_a_certificate_says_what_it_holds_for(cli, write, tiny):
    for slo in ({}, IMPOSSIBLE):
        file = write(tiny(**({"slo": slo} if slo else {})))
        data = document(cli("solve", file, "--json"))
        assert data["certifies"] == "every deployment of the candidates, at predicted latencies"
        said = next(line for line in cli("solve", file).out.splitlines() if line.startswith("Proved "))
        assert said.endswith(f") for {data['certifies']}" if data["plan"] else f"infeasible for {data['certifies']}")


def test_fallbacks_are_distinct_worse_and_spot_free_where_they_say_so(cli, write, tiny):
    data = document(cli("solve", write(tiny(alternatives=5)), "--json"))
    plan, report = data["plan"], data["report"]
    hardware = [tuple(sorted({m["machine"] for m in p["machines"]})) for p in [plan, *report["next"]]]
    assert len(set(hardware)) == len(hardware) == 3  # alternatives are other machines, of which there are three
    values = [p["usd_per_million_tokens"] for p in [plan, *report["next"]]]
    assert values == sorted(values)
    spotless = report["without_spot"]
    assert not spotless["uses_spot"]
    assert all(m["market"] != "spot" for m in spotless["machines"])
    assert spotless["usd_per_million_tokens"] >= values[0]


def test_alternatives_may_be_none(cli, write, tiny):
    assert document(cli("solve", write(tiny(alternatives=0)), "--json"))["report"]["next"] == []


def test_json_instances_are_instances(cli, write, tiny):
    write(json.dumps(tiny()), "instance.json")
    write(tiny())
    a, b = (document(cli("solve", f, "--json")) for f in ("instance.json", "instance.yaml"))
    assert a["plan"] == b["plan"]


@pytest.mark.parametrize("file", TEXTBOOK, ids=lambda f: f.stem)
def test_the_textbook_instances_do_as_they_say(cli, file):
    done = cli("solve", file, "--json")
    done.assert_clean()
    assert done.status == (3 if "nobody" in file.stem or "nfeasible" in file.read_text()[:200] else 0)


# ------------------------------------------------------------------------------------------------------------ files


def test_results_go_to_a_folder_and_never_over_another(cli, write, folder, tiny):
    write(tiny())
    for _ in range(2):
        assert cli("solve", "instance.yaml").status == 0
    assert sorted(p.name for p in (folder / "results").iterdir()) == ["instance-exact", "instance-exact-2"]
    for result in (folder / "results").iterdir():
        assert {p.name for p in result.iterdir()} == {"plan.json", "operating_points.csv", "report.html"}
        assert_contract(json.loads((result / "plan.json").read_text()))


def test_out_chooses_the_folder_with_json_too(cli, write, folder, tiny):
    done = cli("solve", write(tiny()), "--json", "--out", "here/and/there")
    assert done.status == 0
    written = json.loads((folder / "here/and/there/instance-exact/plan.json").read_text())
    assert written["plan"] == document(done)["plan"]
    assert written["schema"] == 2


def test_out_where_no_folder_can_be(cli, write, folder, tiny):
    (folder / "taken").write_text("a file")
    done = cli("solve", write(tiny()), "--out", "taken")
    done.assert_clean()
    assert done.status == 2
    assert "taken" in done.err


def test_the_csv_lists_what_was_considered(cli, write, folder, tiny):
    import pandas as pd

    cli("solve", write(tiny()))
    frame = pd.read_csv(folder / "results/instance-exact/operating_points.csv")
    plan = json.loads((folder / "results/instance-exact/plan.json").read_text())["plan"]
    first = frame.iloc[0]
    assert first["family"] == plan["family"]
    assert first["usd_per_hour"] == pytest.approx(plan["usd_per_hour"])
    assert bool(first["feasible"])
    assert (frame["feasible"].astype(int).diff().dropna() <= 0).all()  # feasible ones first


# ------------------------------------------------------------------------------------------------------------ check


SOLVED = []


@pytest.fixture
def solved(cli, write, folder, tiny):
    """plan.json of the tiny instance, solved once."""
    file = folder / "results/instance-exact/plan.json"
    write(tiny())
    if SOLVED:
        file.parent.mkdir(parents=True)
        file.write_text(SOLVED[0], encoding="utf-8")
    else:
        assert cli("solve", "instance.yaml").status == 0
        SOLVED.append(file.read_text(encoding="utf-8"))
    return file


def test_a_fresh_plan_passes(cli, solved, folder):
    done = cli("check", solved)
    assert (done.status, "ok" in done.out) == (0, True)
    said = document(cli("check", solved, "--json"))
    assert (said["ok"], said["violations"], said["proof"]) == (True, [], None)
    assert "bound" in [t["path"] for t in said["trusted"]] and "report" in said["rebuilt"]
    assert cli("check", solved, "--problem", folder / "instance.yaml").status == 0


def test_a_fresh_plan_passes_elsewhere(command, cli, solved, folder):
    """The file stands alone: nothing else of the run is needed."""
    moved = folder / "elsewhere"
    moved.mkdir()
    (moved / "plan.json").write_bytes(solved.read_bytes())
    (folder / "instance.yaml").unlink()
    assert command("check", "elsewhere/plan.json").status == 0


@pytest.mark.parametrize("pool", ["aws", "gcp", "azure", "llm-pilot-table-ii"])
def test_a_fresh_plan_from_every_catalogue_pool_passes(cli, write, folder, tiny, pool):
    """Some GPUs of these pools lack figures; the file must stand alone all the same."""
    data = tiny(pool={"catalog": pool}, model="llama-3.1-8b", strategies={"families": ["high_end", "kvo_ram"]})
    assert cli("solve", write(data), "--method", "enumerate").status == 0
    done = cli("check", folder / "results/instance-enumerate/plan.json")
    assert done.status == 0, done.err


def test_a_fresh_measured_plan_passes(cli, write, folder, tiny):
    write("name,family,main,tps\none,high_end,big,150\n", "points.csv")
    assert cli("solve", write(tiny(latency={"operating_points": "points.csv"}))).status == 0
    (folder / "points.csv").unlink()
    assert cli("check", folder / "results/instance-exact/plan.json").status == 0


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("usd_per_hour", 0.001, "cost"),
        ("family", "ao", "AO machine"),
        ("batch_split", [], "batch_split"),
        ("tensor_parallel", 0, "tensor_parallel"),
        ("machines", [], "machines"),
        ("alpha", "half", "well-formed"),
    ],
)
def test_a_tampered_plan_fails(cli, solved, field, value, named):
    data = json.loads(solved.read_text())
    data["plan"][field] = value
    solved.write_text(json.dumps(data))
    for arguments in ((), ("--json",)):
        done = cli("check", solved, *arguments)
        done.assert_clean()
        assert done.status == 1
        assert named in done.out
    assert document(done)["ok"] is False


@pytest.mark.parametrize("name", ["[/bold]", "[red]", "[link=file:///]x", "a\\", ":skull:", "\x1b[31m"])
def test_a_tampered_name_does_not_break_the_output(cli, solved, name):
    data = json.loads(solved.read_text())
    data["plan"]["machines"][0]["machine"] = name
    solved.write_text(json.dumps(data))
    done = cli("check", solved)
    done.assert_clean()
    assert done.status == 1
    assert (name in done.out) == ("\x1b" not in name)
    assert "\x1b" not in done.out


@pytest.mark.parametrize(
    ("content", "expected"),
    [("{}", "plan"), ('{"plan": null}', "plan"), ('{"plan": {}}', "problem"), ("[1]", "mapping"), ("{", "JSON"),
     ('{"plan": {}, "problem": 3}', "problem"), ('{"plan": {}, "problem": {"formulation": 1}}', "formulation")],
)  # fmt: skip
def test_what_is_no_result_is_refused(cli, folder, content, expected):
    (folder / "plan.json").write_text(content)
    done = cli("check", "plan.json")
    done.assert_clean()
    assert done.status == 2
    assert expected in done.err


def test_a_plan_against_another_instance_fails(cli, solved, write, tiny):
    write(tiny(budget_usd_per_hour=0.05), "poor.yaml")
    done = cli("check", solved, "--problem", "poor.yaml")
    assert done.status == 1
    assert "budget" in done.out


# ---------------------------------------------------------------------------------------------------------- compare


def test_compare_rows(cli, write, tiny):
    write(tiny(), "a.yaml")
    write(tiny(slo=IMPOSSIBLE), "b.yaml")
    done = cli("compare", "a.yaml", "b.yaml", "--json")
    done.assert_clean()
    assert done.status == 0
    rows = document(done)
    assert [(r["instance"], r["method"]) for r in rows] == [(f, m) for f in ("a.yaml", "b.yaml") for m in METHODS]
    for row in rows:
        assert_contract(row | {"plan": None})
        assert "plan" not in row
        assert "gap_to_bound" in row
        if row["objective"] is not None:
            assert row["gap_to_bound"] >= 0
            assert row["check"]["ok"]
    exact = rows[0]
    assert exact["gap_to_bound"] <= 1e-6
    assert all(r["objective"] <= exact["objective"] * (1 + 1e-6) for r in rows[:10] if r["objective"] is not None)


def test_compare_chosen_methods_as_a_table_with_files(cli, write, folder, tiny):
    done = cli("compare", write(tiny()), "--methods", "exact, greedy", "--out", "out")
    assert done.status == 0
    assert "greedy" in done.out
    assert "infersave" not in done.out
    assert "compare.csv" in {p.name for p in (folder / "out" / "compare").iterdir()}


def test_compare_takes_folders_and_leaves_results_alone(cli, write, folder, tiny):
    write(tiny(), "cases/a.yaml")
    assert cli("solve", "cases/a.yaml", "--out", "cases/results").status == 0
    done = cli("compare", "cases", "--methods", "greedy", "--json")
    done.assert_clean()
    assert done.status == 0, done.err
    assert [r["instance"] for r in document(done)] == [str(Path("cases/a.yaml"))]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("--methods", "exact,gredy"), "did you mean greedy?"), (("--time-limit", "0"), "--time-limit: got 0.0"),
     (("--time-limit", "nan"), "--time-limit: got nan")],
)  # fmt: skip
def test_compare_refuses_before_it_solves(cli, write, tiny, arguments, named):
    done = cli("compare", write(tiny()), *arguments)
    done.assert_clean()
    assert (done.status, done.out) == (2, "")
    assert named in done.err


def test_compare_names_the_broken_one_of_several(cli, write, tiny):
    write(tiny(), "a.yaml")
    write(tiny(objective="best"), "b.yaml")
    done = cli("compare", "a.yaml", "b.yaml", "nothing.yaml")
    assert (done.status, done.out) == (2, "")
    assert "b.yaml" in done.err


def test_compare_of_nothing_is_a_mistake(cli, folder):
    (folder / "empty").mkdir()
    done = cli("compare", "empty")
    done.assert_clean()
    assert done.status == 2
    assert "empty" in done.err


# ------------------------------------------------------------------------------------------- list, new, tables, help


def test_list_methods_and_formulations(cli, folder):
    rows = document(cli("list", "methods", "--json"))
    assert {r["name"] for r in rows if r["formulation"] == "cost_efficiency"} >= set(METHODS)
    assert all(r["title"] for r in rows)
    assert "cost_efficiency" in {r["name"] for r in document(cli("list", "formulations", "--json"))}
    assert "cost_efficiency" in cli("list").out


def test_list_catalog(cli, folder):
    rows = document(cli("list", "catalog", "--json"))
    names = {(r["kind"], r["name"]) for r in rows}
    assert names >= {("pool", "aws"), ("model", "opt-6.7b"), ("gpu", "l40s"), ("calibration", "llm-pilot-table-viii")}
    assert "llm-pilot-table-vii" in cli("list", "catalog").out


def test_what_verbs_wrote_is_no_instance(cli, write, folder, tiny):
    write(tiny())
    cli("solve", "instance.yaml")
    cli("explain", "instance.yaml", "--out", "explained", "--max-solves", "2")
    assert len(list(folder.rglob("*.json"))) == 2
    assert len(json.loads(cli("compare", ".", "--methods", "greedy", "--json").out)) == 1


def test_list_instances(cli, write, folder, tiny):
    write(tiny(title="Mine"), "instances/a.yaml")
    write("not: an instance\n", "instances/notes.yaml")
    write("{broken", "instances/broken.json")
    rows = document(cli("list", "instances", "--folder", "instances", "--json"))
    assert [(Path(r["file"]).name, r["title"]) for r in rows] == [("a.yaml", "Mine")]


def test_a_series_of_shipped_instances_is_one_row(cli):
    shown, every = cli("list", "problems").out, document(cli("list", "problems", "--json"))
    series = [r["name"] for r in every if r["name"].startswith("fig3/")]
    assert {series[0], series[-1], f"({len(series)})"} <= {*shown.split()}
    assert "day-and-night" in shown and series[1] not in shown


@pytest.mark.parametrize("arguments", [("list", "everything"), ("list", "instances", "--folder", "nowhere")])
def test_list_of_what_is_not_there(cli, folder, arguments):
    done = cli(*arguments)
    done.assert_clean()
    assert done.status == 2
    assert arguments[-1] in done.err


def test_new_then_solve(cli, folder):
    done = cli("new", "cost_efficiency", "mine.yaml")
    assert (done.status, done.out) == (0, "mine.yaml\n")
    text = (folder / "mine.yaml").read_text()
    assert cli("new", "cost_efficiency").out == text
    assert yaml.safe_load(text)["formulation"] == "cost_efficiency"
    done = cli("solve", "mine.yaml", "--json")
    assert done.status == 0, done.err
    assert document(done)["status"] == "optimal"


def test_every_commented_option_of_the_template_is_an_option(cli, folder):
    """Lines such as `# exclude: […]` work once their comment sign goes."""
    text = cli("new", "cost_efficiency").out
    for line in re.findall(r"^( *)# (exclude|assumed_discounts|region)(:.*)$", text, re.MULTILINE):
        (folder / "one.yaml").write_text(text.replace(f"{line[0]}# {line[1]}{line[2]}", f"{line[0]}{line[1]}{line[2]}"))
        done = cli("solve", "one.yaml", "--method", "greedy", "--json")
        assert done.status in (0, 4), (line, done.err)
    block = text[text.index("  # machines:") : text.index("\nmarkets:")]
    (folder / "all.yaml").write_text(text.replace(block, re.sub("(?m)^  # ", "  ", block)))
    done = cli("solve", "all.yaml", "--method", "greedy", "--json")
    assert done.status == 0, done.err


def test_new_does_not_overwrite_unless_forced(cli, folder):
    (folder / "mine.yaml").write_text("precious")
    done = cli("new", "cost_efficiency", "mine.yaml")
    assert done.status == 2
    assert (folder / "mine.yaml").read_text() == "precious"
    assert cli("new", "cost_efficiency", "mine.yaml", "--force").status == 0
    assert (folder / "mine.yaml").read_text() != "precious"


@pytest.mark.parametrize("arguments", [("new", "cost_eficiency"), ("new", "cost_efficiency", ".", "--force"),
                                       ("new", "cost_efficiency", "n" * 300)])  # fmt: skip
def test_new_with_a_mistake(cli, folder, arguments):
    done = cli(*arguments)
    done.assert_clean()
    assert done.status == 2
    assert list(folder.iterdir()) == []


def test_tables(cli, write, folder, tiny):
    write(tiny())
    done = cli("tables", "instance.yaml", "--json", "--max-error", "0.01")
    done.assert_clean()
    data = document(done)
    assert data["certified_error"] <= 0.01
    assert data["operating_points"][0].keys() >= {"family", "main", "alpha", "usd_per_hour", "feasible"}
    assert data["curves"][0].keys() >= {"alpha", "ttft_s", "tpot_s", "e2e_s", "certified_error"}
    assert "certified relative error" in cli("tables", "instance.yaml").out
    assert cli("tables", "instance.yaml", "--out", "t.csv").status == 0
    assert {p.name for p in folder.iterdir()} == {"instance.yaml", "t.csv", "t-curves.csv"}


def test_tables_of_an_infeasible_instance(cli, write, tiny):
    done = cli("tables", write(tiny(slo=IMPOSSIBLE)), "--json")
    done.assert_clean()
    assert done.status == 0
    assert document(done)["curves"] == []


@pytest.mark.parametrize("arguments", [("--max-error", "0"), ("--max-error", "nan"), ("--max-error", "-1"),
                                       ("--out", "t.xlsx"), ("--out", "instance.yaml")])  # fmt: skip
def test_tables_with_a_mistake(cli, write, folder, tiny, arguments):
    done = cli("tables", write(tiny()), *arguments)
    done.assert_clean()
    assert done.status == 2
    assert [p.name for p in folder.iterdir()] == ["instance.yaml"]


def test_tables_write_both_files_or_neither(cli, write, folder, tiny):
    (folder / "t-curves.csv").write_text("precious")
    assert cli("tables", write(tiny()), "--out", "t.csv").status == 2
    assert {p.name for p in folder.iterdir()} == {"instance.yaml", "t-curves.csv"}


@pytest.mark.parametrize("verb", [(), ("solve",), ("compare",), ("check",), ("tables",), ("new",), ("list",)])
def test_help(cli, folder, verb):
    done = cli(*verb, "--help")
    assert done.status == 0
    assert "Usage" in done.out
    if not verb:
        for name in ("solve", "compare", "check", "tables", "new", "list"):
            assert name in done.out


def test_the_verbs_are_said_in_full_in_80_columns(cli, folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = cli("--help").out.partition("Plan:")[2]
    assert "plan" in said and "..." not in said and max(map(len, said.splitlines())) <= 80


def test_versions_are_what_a_report_of_a_fault_needs(cli, folder):
    done = cli("--version")
    assert done.status == 0
    assert all(f"{name} " in done.out for name in ("optmodels", "highspy", "pyomo", "Python"))


# ------------------------------------------------------------------------------------------------------- bad usage


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("slove", "instance.yaml"), ("solve",), ("solve", "instance.yaml", "--no-such-option"),
        ("solve", "instance.yaml", "--method", "exakt"), ("solve", "instance.yaml", "--method", ""),
        ("solve", "instance.yaml", "--time-limit", "soon"), ("solve", "instance.yaml", "--time-limit", "0"),
        ("solve", "instance.yaml", "--time-limit", "-1"), ("solve", "instance.yaml", "--time-limit", "nan"),
        ("solve", "instance.yaml", "--gap", "-0.1"), ("solve", "instance.yaml", "--gap", "nan"),
        ("solve", "instance.yaml", "--gap", "1.5"), ("solve", "instance.yaml", "--seed", "many"),
        ("solve", "instance.yaml", "--seed", "-1"), ("solve", "instance.yaml", "--seed", "99999999999999999999"),
        ("solve", "instance.yaml", "instance.yaml"), ("check",), ("check", "nothing.json"),
        ("check", "instance.yaml"), ("compare",), ("new",),
    ],
)  # fmt: skip
def test_bad_usage(cli, write, folder, tiny, arguments):
    write(tiny())
    done = cli(*arguments)
    done.assert_clean()
    assert done.status == 2
    assert done.err or not arguments
    assert [p.name for p in folder.iterdir()] == ["instance.yaml"]


def test_a_misspelt_method_gets_a_suggestion(cli, write, tiny):
    assert "did you mean exact?" in cli("solve", write(tiny()), "--method", "exakt").err


# ---------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("method", METHODS)
def test_a_time_limit_of_almost_nothing(cli, write, tiny, method):
    done = cli("solve", write(tiny()), "--method", method, "--time-limit", "1e-9", "--json")
    done.assert_clean()
    data = document(done)
    assert_contract(data)
    if data["plan"] is None:
        assert done.status == 4
        assert data["status"] == "no_solution_found"
    else:
        assert done.status == 0
        assert data["check"]["ok"]
        if data["bound"] is not None:
            assert data["bound"] >= data["objective"] * (1 - 1e-9)


def test_a_generous_time_limit_changes_nothing(cli, write, tiny):
    write(tiny())
    a = document(cli("solve", "instance.yaml", "--json"))
    b = document(cli("solve", "instance.yaml", "--json", "--time-limit", "inf", "--gap", "0"))
    assert a["plan"] == b["plan"]


def test_a_gap_is_honoured(cli, write, tiny):
    data = document(cli("solve", write(tiny(objective="uncapped")), "--json", "--gap", "0.5"))
    assert data["status"] in ("optimal", "feasible")
    assert data["gap"] <= 0.5
    assert data["limit"] in (None, "gap")


# --------------------------------------------------------------------------------------------------- hostile names

HOSTILE = ["<script>alert(1)</script>", "../../escape", "/etc/passwd", "🙂" * 20, "[bold red]", "[/]", ":skull:",
           "a\\", "$(touch owned)", "'; DROP TABLE plans; --", "%n%n", "{0}", "-rf", "=cmd|' /C calc'!A0"]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_do_no_harm(cli, write, folder, tiny, name):
    data = tiny(name=name, title=name, notes=name)
    data["pool"]["machines"][1] |= {"machine": name, "region": name, "provider": name, "note": name}
    write(data)
    done = cli("solve", "instance.yaml", "--method", "enumerate", "--out", "results")
    done.assert_clean()
    assert done.status == 0, done.err
    assert name in re.sub(r"\n\s*", "", done.out) or len(name) > 60
    assert {p.name for p in folder.iterdir()} == {"instance.yaml", "results"}
    assert [p.name for p in (folder / "results").iterdir()] == ["instance-enumerate"]
    plan = folder / "results" / "instance-enumerate" / "plan.json"
    assert cli("check", plan).status == 0
    assert json.loads(plan.read_text(encoding="utf-8"))["problem"]["name"] == name
    assert cli("compare", "instance.yaml", "--methods", "greedy").status == 0
    assert cli("list", "instances", "--folder", ".").status == 0


@pytest.mark.parametrize(
    "file", ["<script>.yaml", "[bold].yaml", "-dash.yaml", "sp ace.yaml", "🙂.yaml", ":skull:.yaml"]
)
def test_hostile_file_names_do_no_harm(cli, write, folder, tiny, file):
    write(tiny(), file)
    arguments = ("solve", "--method", "enumerate", *(("--",) if file.startswith("-") else ()), file)
    done = cli(*arguments)
    done.assert_clean()
    assert done.status == 0
    assert file in done.out
    (result,) = (folder / "results").iterdir()
    assert result.parent == folder / "results"
    assert (result / "plan.json").is_file()


def test_control_characters_do_not_reach_the_terminal(cli, write, tiny):
    data = tiny(title="\x1b]0;owned\x07\x1b[31mred")
    data["pool"]["machines"][1]["machine"] = "mid\x1b[2J"
    done = cli("solve", write(json.dumps(data), "instance.json"))
    done.assert_clean()
    assert "\x1b" not in done.out
    assert "\x07" not in done.out
