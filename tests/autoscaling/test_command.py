"""`optmodels backtest` on files as people have them."""

import json

import numpy as np
import pytest

from optmodels.autoscaling.history import History, read_history
from optmodels.errors import InputError


@pytest.fixture
def counts(tmp_path):
    rng = np.random.default_rng(1)
    t = np.arange(3 * 1440)
    n = rng.poisson(60 * 40 * (1 + 0.5 * np.sin(2 * np.pi * t / 1440)))
    path = tmp_path / "day.csv"
    stamps = np.datetime64("2026-11-01T00:00:00") + t.astype("timedelta64[m]")
    path.write_text("time,requests\n" + "\n".join(f"{s}Z,{k}" for s, k in zip(stamps, n, strict=True)))
    return path


def test_the_command_prints_the_cheapest_that_kept_the_goal(counts, cli):
    asked = ["backtest", "--replica", "2:10", "--history", counts, "--train", "2d", "--judge", "1d"]
    done = cli(*asked, "--methods", "hpa,static,perfect")
    assert done.status == 0, done.err
    assert "meets the goal at the least cost" in done.out and "Hindsight" in done.out
    found = json.loads(cli(*asked, "--methods", "hpa", "--json").out)
    (row,) = found["rows"]
    assert row["usd"] == pytest.approx(row["over_hindsight"] * found["hindsight_usd"], rel=1e-9)


def test_a_fleet_instance_names_the_replica(counts, cli, folder):
    assert cli("new", "fleet", "--from", "two-models").status == 0
    asked = ["backtest", "two-models.yaml", "--history", counts, "--methods", "static", "--train", "2d"]
    asked += ["--judge", "1d"]
    done = cli(*asked, "--workload", "nobody")
    assert done.status == 2 and "--workload" in done.err
    done = cli(*asked, "--json")
    assert done.status == 0, done.err
    replica = json.loads(done.out)["replica"]
    assert replica["requests_per_s"] > 0 and replica["machines"].startswith("1 × ")
    # The tick has the same replica: of the model that keeps the quality by itself.
    found = json.loads(cli(*asked, "--methods", "replan", "--train", "90m", "--judge", "60m", "--json").out)
    assert found["types"][0] == {k: pytest.approx(replica[k]) for k in ("requests_per_s", "usd_per_hour")}
    (row,) = found["rows"]
    assert row["attained"] > 0.99


def test_gaps_are_missing_and_outages_are_no_traffic(tmp_path):
    path = tmp_path / "gaps.csv"
    rows = [(t, 60) for t in range(0, 3600, 60) if not 600 <= t < 720]
    path.write_text("time,requests\n" + "\n".join(f"{t},{n}" for t, n in rows))
    found = read_history(path)
    assert found.minutes == 60 and np.isnan(found.per_minute[10:12]).all() and found.notes
    assert found.per_minute[0] == pytest.approx(1.0)
    outage = History(np.concatenate([np.full(600, 10.0), np.zeros(120), np.full(600, 10.0)]))
    assert np.isnan(outage.for_forecasts()[100:120]).all() and np.isfinite(outage.for_forecasts()[:100]).all()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("time,requests\n0,1\n3600,2\n7200,3\n", "60 seconds"),
        ("time,requests\n0,1\n60,-2\n120,3\n", "a number ≥ 0"),
        ("time,requests\nsoon,1\nlater,2\n", "ISO 8601"),
        ("time,requests,workload\n0,1,a\n60,1,b\n", "--workload"),
    ],
)
def test_bad_histories_are_named(tmp_path, text, expected):
    (tmp_path / "h.csv").write_text(text)
    with pytest.raises(InputError) as error:
        read_history(tmp_path / "h.csv")
    assert expected in str(error.value)


def test_a_log_of_requests_is_counted(tmp_path):
    (tmp_path / "log.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,5\n3,5,5\n12,5,5\n125,5,5\n")
    assert read_history(tmp_path / "log.csv").requests[:3].tolist() == [2.0, 1.0, 0.0]


def test_arguments_are_checked(counts, cli):
    common = ["backtest", "--history", counts]
    for arguments, expected in (
        ([], "one of the two"), (["--replica", "2"], "RATE:USD"), (["--replica", "2:1", "--methods", "magic"], "magic"),
        (["--replica", "2:1", "--train", "soon"], "duration"), (["--replica", "2:1"], "at least 20,160 minutes"),
    ):  # fmt: skip
        done = cli(*common, *arguments)
        assert done.status == 2 and expected in done.err, (arguments, done.err)


def test_finished_autoscalers_are_kept_and_shown(counts, tmp_path, cli, monkeypatch):
    asked = ["backtest", "--replica", "2:10", "--history", counts, "--train", "1d", "--judge", "1d", "--tune"]
    kept = [*asked, "--keep", tmp_path / "kept"]
    assert cli(*kept, "--methods", "hpa,static").status == 0
    done = cli(*kept, "--methods", "hpa,static,apa", "--picture", tmp_path / "a.svg", "--out", tmp_path / "a.json")
    assert done.status == 0, done.err
    assert len((tmp_path / "kept" / "journal.jsonl").read_text().splitlines()) == 3  # apa alone was run
    plain = json.loads(cli(*asked, "--methods", "hpa,static,apa", "--json").out)
    found = json.loads((tmp_path / "a.json").read_text())
    assert {k: v for k, v in found.items() if k != "seconds"} == {k: v for k, v in plain.items() if k != "seconds"}
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    other = ["backtest", "--replica", "3:10", *map(str, kept[3:]), "--methods", "hpa"]
    assert cli(*other).status == 0  # another replica: run anew
    assert len((tmp_path / "kept" / "journal.jsonl").read_text().splitlines()) == 4
    assert cli("report", tmp_path / "a.json", "--out", tmp_path / "a.html").status == 0
    page = (tmp_path / "a.html").read_text()
    assert "Autoscalers on day.csv" in page and "hindsight" in page
    monkeypatch.setattr("optmodels.api.backtest.runs_of", lambda asked, name: 1 / 0)
    assert cli(*kept, "--methods", "hpa,static,apa").status == 0  # nothing left to run
