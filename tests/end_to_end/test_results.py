"""Which result export, check, replay and report are asked about."""

from __future__ import annotations

import os
import shutil

from conftest import ROOT

TINY = ROOT / "instances/cost_efficiency/table_ix/batch-budget-2.0.yaml"


def test_an_instance_stands_for_its_newest_result_and_older_ones_are_named_so(cli, folder):
    instance = folder / "mine.yaml"
    instance.write_text(TINY.read_text(encoding="utf-8"), encoding="utf-8")
    shutil.copy(TINY.parent / "measured.csv", folder)
    none = cli("check", "mine.yaml")
    assert none.status == 2 and "optmodels solve mine.yaml" in none.err
    assert cli("solve", "mine.yaml").status == 0
    alone = cli("check", "results/mine-exact")
    assert alone.status == 0 and alone.err == ""
    shutil.copytree(folder / "results/mine-exact", folder / "results/mine-exact-2")  # as another solve leaves it
    os.utime(folder / "results/mine-exact/plan.json", ns=(0, 0))
    found = cli("export", "mine.yaml", "--to", "vllm")
    assert found.status == 0 and "mine-exact-2" in found.err and "changed since" not in found.err
    for older in ("results/mine-exact", "results/mine-exact/plan.json"):
        said = cli("check", older)
        assert said.status == 0 and "the newest is results/mine-exact-2" in said.err
    assert cli("check", "results/mine-exact-2").err == ""
    instance.write_text(instance.read_text(encoding="utf-8").replace("2.0", "1.9"), encoding="utf-8")
    os.utime(instance, ns=(2**62, 2**62))
    assert "the problem has changed since" in cli("check", "mine.yaml").err


def test_the_folder_of_out_means_its_newest_result(tmp_path, capsys):
    import os

    from optmodels.cli.results import result_of

    for i, name in enumerate(("a-exact", "b-exact")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").write_text("{}")
        os.utime(tmp_path / name / "plan.json", (1000 + i, 1000 + i))
        assert result_of(tmp_path) == tmp_path / name
    assert "b-exact, the newest of 2 results" in capsys.readouterr().err
