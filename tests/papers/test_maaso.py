"""The study of MaaSO's Fig. 4 in its quick form: resumable, checked plans, pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from papers import maaso

METHODS = ("greedy_dp", "alpaserve", "selective_replication")


def test_quick_study_resumes_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo = [p for p in maaso.points(quick=True) if p["trace"] == 4]
    first = maaso.study(tmp_path, todo, METHODS[:2], quick=True)
    assert len(first) == 4 * 2  # four points, each in one or several series
    assert first["check"].all()
    planned: list[str] = []
    run = maaso.run

    def counted(problem: Any, tables: Any, method: str) -> dict[str, Any]:
        planned.append(method)
        return run(problem, tables, method)

    monkeypatch.setattr(maaso, "run", counted)
    rows = maaso.study(tmp_path, todo, METHODS, quick=True)
    assert planned == ["selective_replication"] * 4
    assert len(rows) == 4 * 3
    means = maaso.compared(rows)
    assert means["points"].tolist() == [4, 4, 4]
    assert means.loc["greedy_dp", "attainment"] >= means.loc["alpaserve", "attainment"] - 0.005
    assert means.loc["alpaserve", "attainment"] > means.loc["selective_replication", "attainment"] + 0.1
    assert (means["exact_below"] == 0).all()  # exact was not among them
    maaso.draw(rows, tmp_path / "fig4.png", quick=True)
    assert (tmp_path / "fig4.png").stat().st_size > 20_000


def test_all_points_and_a_sample_of_them() -> None:
    every = maaso.points()
    assert len(every) == 13 * 6  # 6 sizes, 4 burstinesses, 5 numbers of requests, the default in all three
    some = maaso.points(most=15)
    assert len(some) == 15
    assert all(p in every for p in some)
    assert {p["trace"] for p in some} == set(maaso.TRACES)


def test_two_processes_find_the_same(tmp_path: Path) -> None:
    todo = [p for p in maaso.points(quick=True) if p["trace"] in (1, 4) and p["gpus"] == 8 and p["requests"] == 800]
    methods = ("alpaserve", "alpaserve_shared", "maaso_printed")
    one, two = (maaso.study(tmp_path / str(n), todo, methods, quick=True, workers=n) for n in (1, 2))
    assert len(one) == 2 * 3
    assert one.drop(columns="solver_s").equals(two.drop(columns="solver_s"))
    attained = one.groupby("method")["attainment"].mean()
    assert attained["alpaserve_shared"] <= attained["alpaserve"] + 0.005


def test_points_where_exact_is_worse() -> None:
    rows = pd.DataFrame([
        {"trace": t, "gpus": 8, "cv": 2.0, "requests": 10, "method": m, "attainment": a}
        for t, m, a in [(1, "exact", 0.9), (1, "greedy_dp", 0.904), (2, "exact", 0.9), (2, "greedy_dp", 0.91)]
    ])  # fmt: skip
    found = maaso.worse_than_heuristics(rows)
    assert found.index.get_level_values("trace").tolist() == [2]
    assert found["by"].tolist() == ["greedy_dp"]


def test_readings_of_the_baselines() -> None:
    """MaaSO 80 % after 1 s; a baseline 75 % after 2 s with its protection, 50 % after 4 s without."""
    rows = pd.DataFrame({
        "method": ["greedy_dp", "alpaserve"], "attainment": [0.8, 0.75], "attainment_unprotected": [0.6, 0.5],
        "latency_s": [1.0, 2.0], "latency_unprotected_s": [3.0, 4.0],
    })  # fmt: skip
    found = maaso.readings(rows)
    assert found.index.tolist() == ["alpaserve"]
    assert found.loc["alpaserve"].tolist() == pytest.approx([5.0, -0.5, 30.0, -0.75])


def test_case_converges_as_in_fig_1() -> None:
    """tp-d with 64·d requests is as slow as one GPU with 64: half its idle speed."""
    for tp, speed in maaso.SPEEDUP.items():
        assert speed * (1 - maaso.DELTA[tp] * maaso.math.log(64 * tp)) == pytest.approx(0.5)
