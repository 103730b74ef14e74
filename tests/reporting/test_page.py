"""The HTML page in a browser: complete without a network, harmless with hostile names, fit for phones and paper."""

import copy
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

import optmodels
from optmodels.reporting import page as pages

ROOT = Path(__file__).parents[2]
HOSTILE = (
    "<script>window.harmed=1;alert(1)</script>",
    "</script><script>window.harmed=2</script>",
    '"><img src=x onerror="window.harmed=3">',
    "javascript:alert(4)",
    "../../../etc/passwd",
    "{{ 7*7 }}{% raw %}",
    "[bold]markup[/bold] [link=javascript:alert(5)]x[/link]",
    "ẞ🙈 emoji \u202eright to left\u202c العربية",
    "]]> --> &lt; &amp; \x1b[31m\u2028\u2029",
    "x" * 10_000,
)


@pytest.fixture(scope="module")
def results():
    """A result of each shipped formulation, one infeasible, one comparison."""
    base = ROOT / "instances"
    found = {
        "cost": optmodels.solve(base / "cost_efficiency/fig1/real_time-budget-2.5.yaml"),
        "infeasible": optmodels.solve(base / "cost_efficiency/textbook/nobody-is-fast-enough.yaml"),
        "fleet": optmodels.solve(base / "fleet/day-and-night.yaml"),
        "week": optmodels.solve(base / "reserved_capacity/week-32-aws.yaml"),
    }
    table = base / "cost_efficiency/table_ix"
    rows = optmodels.compare([table / "batch-budget-1.0.yaml", table / "batch-budget-2.0.yaml"], ["exact", "greedy"])
    return found | {"compare": rows}


@pytest.fixture(scope="module")
def written(results, tmp_path_factory):
    """Their pages as files."""
    folder = tmp_path_factory.mktemp("pages")
    for name, result in results.items():
        optmodels.report(result, out=folder / f"{name}.html")
    return folder


class Outline(HTMLParser):
    """Headings, ids and elements of a page."""

    def __init__(self, text):
        super().__init__()
        self.headings, self.tags, self.captionless = [], [], 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))


# Words of table headers that stand on more than one line.
BROKEN_WORDS = """[...document.querySelectorAll('th')].flatMap(th => {
  const found = [], walk = document.createTreeWalker(th, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode())
    for (const word of node.data.matchAll(/[A-Za-z]+/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (range.getClientRects().length > 1) found.push(word[0]);
    }
  return found;
})"""


@pytest.mark.parametrize("name", ["cost", "infeasible", "fleet", "week", "compare"])
def test_page_is_complete_without_a_network(written, visit, name):
    path = written / f"{name}.html"
    opened = visit(path)
    assert opened.requests == [path.resolve().as_uri()]
    assert opened.messages == []  # neither an error nor a violation of the content security policy
    drawn = opened.page.evaluate(
        "[...document.querySelectorAll('[data-chart]')].map(e => !!e.querySelector('svg path'))"
    )
    assert all(drawn)
    assert len(drawn) >= (3 if name in ("cost", "fleet", "week") else 0)
    assert path.stat().st_size < 700_000


@pytest.mark.parametrize("name", ["cost", "fleet", "week", "compare"])
def test_page_fits_a_phone(written, visit, name):
    opened = visit(written / f"{name}.html", width=390, height=844)
    width = opened.page.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")
    assert width <= 390
    wide = opened.page.evaluate(
        "[...document.querySelectorAll('svg')].filter(e => e.getBoundingClientRect().width > 390).length"
    )
    assert wide == 0
    wide = "[...document.querySelectorAll('caption')].filter(c => c.getBoundingClientRect().width > 390).length"
    assert opened.page.evaluate(wide) == 0
    assert opened.page.evaluate(BROKEN_WORDS) == []
    cut_off = """[...document.querySelectorAll('.scroll')].filter(place => place.scrollWidth > place.clientWidth + 1)
        .filter(place => place.querySelector('tbody').rows.length <= 12).map(place => place.textContent)"""
    assert opened.page.evaluate(cut_off) == []


def test_what_requests_see_of_what_they_may_is_seen_on_a_phone(visit, tmp_path):
    """TTFT and TPOT beside their limits, however long the names of workloads are."""
    result = optmodels.solve(ROOT / "instances/fleet/aws-continuous.yaml")
    optmodels.report(result, out=tmp_path / "page.html")
    opened = visit(tmp_path / "page.html", width=390, height=844)
    right = "[...document.querySelector('table').querySelectorAll('th, td')].map(x => x.getBoundingClientRect().right)"
    edges = opened.page.evaluate(right)
    assert len(edges) > 50
    assert max(edges) <= 390
    names = """[...document.querySelectorAll('svg .role-axis-label')].map(axis =>
        [...axis.querySelectorAll('text')].map(x => x.textContent).filter(x => x.endsWith('…')))"""
    for cut in opened.page.evaluate(names):
        assert len(set(cut)) == len(cut)  # names that are cut off do not look alike
    opened.page.click("table th:nth-child(3) button")
    assert all(
        opened.page.evaluate(
            "[...document.querySelectorAll('table')[0].tBodies[0].rows].map(r => r.cells[0].textContent)"
        )
    )


def test_page_prints(written, visit, tmp_path):
    opened = visit(written / "fleet.html")
    pdf = opened.page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    opened.page.emulate_media(media="print")
    assert opened.page.evaluate("getComputedStyle(document.querySelector('[data-save]')).display") == "none"


def test_page_says_what_it_must(results, written):
    result = results["cost"]
    text = (written / "cost.html").read_text(encoding="utf-8")
    body = text[text.index("<body>") :]
    for wanted in (
        result.plan["machines"][0]["machine"], "optimal, proved", "Independent check", "passed", "Budget and cost",
        result.certifies, "Decision map", "Alternatives", f"optmodels solve {result.instance}",
        result.optmodels_version,
    ):  # fmt: skip
        assert wanted in body, wanted
    order = [body.index(f"{title}</h2>") for title in ("The plan", "Next", "Certificate", "Key figures", "Reproduce")]
    assert order == sorted(order)


def test_page_carries_the_instance(results, written, visit):
    opened = visit(written / "cost.html")
    text = opened.page.evaluate("[...document.querySelectorAll('details pre')].at(-1).textContent")
    assert yaml.safe_load(text) == results["cost"].problem
    again = optmodels.solve(yaml.safe_load(text))
    assert again.objective == results["cost"].objective


@pytest.mark.parametrize("name", ["cost", "fleet", "week", "compare"])
def test_page_is_accessible(written, name):
    text = (written / f"{name}.html").read_text(encoding="utf-8")
    outline = Outline(text)
    assert ("html", {"lang": "en"}) in outline.tags
    assert outline.headings[0] == 1
    assert outline.headings.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(outline.headings, outline.headings[1:], strict=False))  # no level skipped
    heads = [a for t, a in outline.tags if t == "th"]
    assert heads
    assert all("scope" in a for a in heads)
    charts = [a for t, a in outline.tags if "data-chart" in a]
    assert all(a["role"] == "img" and len(a["aria-label"]) > 20 for a in charts)
    ids = [a["id"] for _, a in outline.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["aria-labelledby"] for _, a in outline.tags if "aria-labelledby" in a} <= set(ids)


def test_tables_sort_by_keyboard(written, visit):
    opened = visit(written / "compare.html")
    button = opened.page.locator("table.sortable th button").filter(has_text="method").first
    cells = "[...document.querySelector('table.sortable').tBodies[0].rows].map(r => r.cells[0].textContent)"
    button.focus()
    opened.page.keyboard.press("Enter")
    up = opened.page.evaluate(cells)
    opened.page.keyboard.press("Enter")
    assert opened.page.evaluate(cells) == up[::-1]
    assert up == sorted(up)


def test_regions_are_selected_in_the_legend(written, visit):
    opened = visit(written / "week.html")
    areas = "document.querySelectorAll('[data-chart=\"0\"] .mark-area path').length"
    before = opened.page.evaluate(areas)
    opened.page.locator('[data-chart="0"] .role-legend-entry .mark-symbol path').nth(2).dispatch_event("click")
    opened.page.wait_for_timeout(300)
    assert before > 20
    assert opened.page.evaluate(areas) <= 1


def hostile_cost(tiny):
    """An instance with hostile texts wherever a user may put a name."""
    problem = tiny()
    big = problem["pool"]["machines"][0]
    problem["pool"]["machines"] = [
        copy.deepcopy(big) | {"machine": f"{text[:150]}{i}", "region": text[:500], "note": text,
                              "prices": {"on_demand": 2.2 + 0.1 * i}}
        for i, text in enumerate(HOSTILE)
    ]  # fmt: skip
    return problem | {"name": HOSTILE[0], "title": " ".join(HOSTILE), "notes": HOSTILE[-1], "alternatives": 9}


def hostile_fleet():
    """A fleet of measured points with hostile names of workloads, buckets, points and machines."""
    names = [text.replace("/", "|")[:90] for text in HOSTILE]
    workloads = [
        {"name": f"{n}{i}", "buckets": [{"name": f"{n}{i}", "requests_per_s": 1.0 + i}]} for i, n in enumerate(names)
    ]
    points = [
        {"name": f"{text[:95]}{i}", "machine": f"{text[:95]}{i}", "usd_per_hour": 1.0 + 0.01 * i,
         "requests_per_s": {f"{names[i]}{i}/{names[i]}{i}": 2.0}}
        for i, text in enumerate(HOSTILE)
    ]  # fmt: skip
    return {"formulation": "fleet", "schema": 1, "name": HOSTILE[4], "workloads": workloads, "points": points}


def test_hostile_names_do_no_harm(tiny, visit, folder):
    found = []
    for problem in (hostile_cost(tiny), hostile_fleet()):
        result = optmodels.solve(problem, out="results")
        assert result.check.ok
        found.append(result)
        opened = visit(folder / result.log["folder"] / "report.html")
        assert opened.page.evaluate("window.harmed") is None
        assert (opened.dialogs, opened.messages) == ([], [])
        assert len(opened.requests) == 1
        assert opened.page.evaluate("document.querySelectorAll('section img, section script, section a').length") == 0
    assert all(p.relative_to(folder).parts[0] == "results" for p in folder.rglob("*"))
    optmodels.report(found, out="all.html")
    opened = visit(folder / "all.html", width=390)
    assert opened.page.evaluate("window.harmed") is None
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_injected_script_could_not_run(written, visit, tmp_path):
    """The policy is the second line: even unescaped, a script of somebody else's would be refused."""
    text = (written / "infeasible.html").read_text(encoding="utf-8")
    path = tmp_path / "injected.html"
    path.write_text(text.replace("</main>", "<script>window.harmed=1</script></main>"), encoding="utf-8")
    opened = visit(path)
    assert opened.page.evaluate("window.harmed") is None
    assert any("Content Security Policy" in m for m in opened.messages)


def test_failed_check_is_said_first(results):
    document = results["cost"].model_dump(mode="json", by_alias=True)
    document["plan"]["usd_per_hour"] *= 0.5
    found = optmodels.check(document)
    document["check"] = found.model_dump(mode="json", include={"ok", "violations"})
    assert not found.ok
    text = optmodels.report(document)
    assert "FAILED" in text
    assert "refutes this plan" in text
    assert document["check"]["violations"][0]["requirement"] in text


def test_several_results_share_a_page(results, folder, cli):
    for name in ("cost", "infeasible"):
        (folder / f"{name}.json").write_text(results[name].to_json(), encoding="utf-8")
    run = cli(
        "report", "cost.json", "infeasible.json", "--title", "Two <of> them", "--figures", "figs", "--format", "svg"
    )
    assert (run.status, run.out.strip()) == (0, "report.html"), run.err
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert text.count("<article") == 2
    assert "Two &lt;of&gt; them" in text
    figures = sorted(p.name for p in (folder / "figs").iterdir())
    assert len(figures) >= 4
    assert all((folder / "figs" / f).read_text(encoding="utf-8").startswith("<svg") for f in figures)
    assert cli("report", "cost.json", "infeasible.json").out.strip() == "report-2.html"  # nothing is overwritten
    assert cli("report", "cost.json", "--out", "report.html").status == 2


def test_what_is_no_result_is_refused(folder, cli):
    (folder / "a.json").write_text('{"status": 3, "formulation": []}', encoding="utf-8")
    (folder / "b.json").write_text("[1, 2", encoding="utf-8")
    (folder / "empty").mkdir()
    for name in ("a.json", "b.json", "empty", "missing.json"):
        run = cli("report", name)
        assert run.status == 2
        assert name in run.err
        run.assert_clean()


def test_a_damaged_document_is_refused_with_the_place_and_no_exception_of_ours(results, folder, cli):
    def refused(name, change):
        document = json.loads(json.dumps(results[name].document() if name != "compare" else results[name]))
        change(document)
        (folder / "plan.json").write_text(json.dumps(document), encoding="utf-8")
        run = cli("report", "plan.json")
        assert run.status == 2
        assert "Error" not in run.err and "Field required" not in run.err
        run.assert_clean()
        return run.err

    assert "plan.periods[0].hours: missing" in refused("fleet", lambda d: d["plan"]["periods"][0].pop("hours"))
    assert "plan.periods[0].limits: got 3" in refused("fleet", lambda d: d["plan"]["periods"][0].update(limits=3))
    assert ": unit: missing" in refused("cost", lambda d: d.pop("unit"))
    assert "report … prediction.e2e_s: missing" in refused(
        "cost", lambda d: d["report"]["next"][0]["prediction"].pop("e2e_s"))  # fmt: skip
    assert "seconds: missing" in refused("compare", lambda d: d[0].pop("seconds"))
    assert ": total: missing" in refused("compare", lambda d: d[0]["seconds"].pop("total"))
    assert "[0].seconds.total: got 'long'" in refused("compare", lambda d: d[0]["seconds"].update(total="long"))
    assert "a part that cannot be shown" in refused("cost", lambda d: d["report"].update(next=3))


def test_charts_are_valid_vega_lite(results):
    altair = pytest.importorskip("altair")
    for name in ("cost", "fleet", "week", "compare"):
        for chart in pages.articles([results[name]])[0].charts():
            assert json.dumps(chart.spec, allow_nan=False)
            few = {"values": chart.spec["data"]["values"][:2]}
            altair.Chart.from_dict(chart.spec | {"data": few}, validate=True)


def test_orchestration_has_a_cluster_map(visit, tmp_path):
    """From the plan's document alone: every GPU of every server is a cell, occupied as the plan says."""
    problem = yaml.safe_load(optmodels.new("orchestration"))
    problem["requests"]["trace"]["generated"]["requests"] = 150
    problem["cluster"]["failed_gpus"] = {"big-2": [0, 5]}
    result = optmodels.solve(problem, "round_robin", out=tmp_path)
    (article,) = pages.articles([result])
    cluster = next(c for c in article.charts() if c.title == "Cluster map")
    cells = cluster.spec["data"]["values"]
    assert len(cells) == 2 * 8
    broken = {(c["server"].partition(" ")[0], c["gpu"]) for c in cells if c["model"] == "out of order"}
    assert broken == {("big-2", 0), ("big-2", 5)}
    used = sum(len(g) for i in result.plan["instances"] for g in i["placement"].values())
    assert sum(bool(c["instance"]) for c in cells) == used == result.plan["prediction"]["gpus_used"]
    over_time = next(c for c in article.charts() if c.title == "Requests over time")
    width = over_time.spec["data"]["values"][1]["time"] - over_time.spec["data"]["values"][0]["time"]
    planned = sum(r["rate"] for r in over_time.spec["data"]["values"]) * width
    assert planned == pytest.approx(sum(result.plan["shares"]["admitted"]), rel=1e-3)
    opened = visit(Path(result.log["folder"]) / "report.html")
    assert opened.messages == []


def limit(name, path, value):
    words = {"words": f"{name} at most {value}", "name": name, "path": path, "value": value, "unit": "s"}
    return words | {"side": "most", "written": True}


def test_explanations_have_a_page(visit, folder, cli):
    """Every sentence of the document is on the page, and each limit that binds is a bar."""
    infeasible = {
        "kind": "explanation", "instance": "a.yaml", "formulation": "cost_efficiency", "title": "<b>tight</b>",
        "status": "infeasible", "words": "Infeasible, proved.", "definitions": {"binds": "dropping it helps"},
        "conflicts": [{"irreducible": True, "words": "both", "members": [
            {"limit": limit("TTFT", "slo.ttft_s", 0.2), "words": "TTFT at most 0.2 s"},
            {"limit": limit("budget", "budget_usd_per_hour", 1.0), "words": "budget at most 1 USD/h"}]}],
        "restored_words": "Without them there is a plan.",
        "alone": [{"limit": limit("TTFT", "slo.ttft_s", 0.2), "needed": 0.3, "change": 0.5, "words": "TTFT to 0.3 s"}],
        "skipped": ["the rest"], "solves": 7, "seconds": 0.5,
    }  # fmt: skip
    feasible = infeasible | {
        "status": "feasible", "words": "Optimal.", "conflicts": [], "alone": [], "unit": "USD/h", "restored_words": "",
        "limits": [
            {"limit": limit("TTFT", "slo.ttft_s", 0.2), "binds": True, "gain_of_step": 0.1, "gain_without": 2.0,
             "words": "TTFT binds"},
            {"limit": limit("TPOT", "slo.tpot_s", 0.05), "binds": False, "words": "TPOT is slack"}],
        "prices": [{"name": "g6", "value": 2.0, "low": None, "high": 3.0, "unit": "USD/h", "bought": True,
                    "words": "g6 up to 3 USD/h"}],
        "next_plans": [{"objective": 3.5, "headline": "another plan", "words": "does without g6"}],
    }  # fmt: skip
    for name, document in (("no", infeasible), ("yes", feasible)):
        (folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
        run = cli("report", f"{name}.json", "--out", f"{name}.html")
        assert run.status == 0, run.err
        opened = visit(folder / f"{name}.html", width=390)
        assert opened.messages == []
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
    text = (folder / "no.html").read_text(encoding="utf-8")
    for wanted in ("TTFT at most 0.2 s", "budget at most 1 USD/h", "none can be left out: proved", "TTFT to 0.3 s",
                   "Without them there is a plan.", "&lt;b&gt;tight"):  # fmt: skip
        assert wanted in text, wanted
    worth, prices = pages.articles([feasible])[0].charts()
    assert [(r["what"], r["gain"]) for r in worth.spec["data"]["values"]] == [
        ("without it", 2.0), ("one step looser", 0.1),
    ]  # fmt: skip
    (price,) = prices.spec["data"]["values"]
    assert (price["low"], price["high"]) == (0.0, 1.5)


def test_sweeps_have_a_page(visit, tiny, write, folder):
    write(tiny())
    optmodels.sweep("instance.yaml", {"slo.tps": [50.0, 100.0, 1e9], "workload.batch": [4, 8]}, workers=1,
                    out="swept", pareto="usd_per_hour:min,e2e_s:min")  # fmt: skip
    opened = visit(folder / "swept/report.html")
    assert opened.messages == []
    text = (folder / "swept/report.html").read_text(encoding="utf-8")
    assert "optmodels sweep instance.yaml --vary" in text
    document = json.loads((folder / "swept/sweep.json").read_text(encoding="utf-8"))
    (article,) = pages.articles([document])
    frontier = next(c for c in article.charts() if c.title == "Frontier")
    on_it = [r for r in frontier.spec["data"]["values"] if r["kind"].startswith("on the frontier")]
    assert len(on_it) == sum(bool(r["frontier"]) for r in document["rows"]) > 0
    grid = next(c for c in article.charts() if c.title == "Map")
    assert sum(r["objective"] is None for r in grid.spec["data"]["values"]) == 2  # 10⁹ tokens/s: nothing feasible


def test_text_is_legible_on_light_and_dark_screens():
    """WCAG AA: 4.5 to 1 between every colour of text and what is behind it."""
    style = (files("optmodels.reporting.page") / "style.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", style, re.S)
    light, dark = (dict(re.findall(r"--(\w+): (#[0-9a-f]+)", block)) for block in blocks)
    assert set(light) == set(dark)

    def luminance(colour):
        digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colours in (light, dark):
        for text in ("ink", "soft", "accent", "good", "warn", "bad"):
            for behind in ("back", "card"):
                high, low = sorted((luminance(colours[text]), luminance(colours[behind])), reverse=True)
                assert (high + 0.05) / (low + 0.05) >= 4.5, (text, behind)
    assert luminance(dark["back"]) < 0.05 < 0.8 < luminance(light["back"])
