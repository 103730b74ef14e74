"""The benchmark library is consistent, is found again, and would notice if it were not."""

from __future__ import annotations

import copy
import shutil

import highspy
import pytest
import yaml
from conftest import ROOT

from benchmarks.library import Item, Library, export, main, problems, read, reproduced, update, updated
from optmodels import catalog
from optmodels.errors import InputError
from optmodels.latency import resolve
from optmodels.latency.engines.document import EngineModel

FOLDER = ROOT / "instances"
LIBRARY = read(FOLDER / "library.yaml")
FAST = [i for i in LIBRARY.instances if i.seconds < 1.0]
EVERY = 12  # a different part of the library would be as good: all are solved by `check --solve`


def test_every_shipped_instance_is_listed_with_values_that_agree():
    assert problems(LIBRARY, FOLDER) == []
    assert {i.status for i in LIBRARY.instances} >= {"optimal", "infeasible"}


@pytest.mark.parametrize("item", FAST[::EVERY], ids=lambda i: i.file)
def test_values_are_found_again(item):
    assert reproduced(item, FOLDER, time_limit=30.0) is None


@pytest.fixture
def small(tmp_path):
    """A library of one instance with two plans' worth of values, as data."""
    (tmp_path / "fleet").mkdir()
    shutil.copy(FOLDER / "fleet/stock-limited.yaml", tmp_path / "fleet")
    library = update(tmp_path / "library.yaml", methods=["exact", "greedy"])
    return tmp_path, library


def changed(library: Library, **values) -> Library:
    (item,) = library.instances
    known = {k: getattr(item, k).model_copy(update={"value": v}) for k, v in values.items()}
    return library.model_copy(update={"instances": [item.model_copy(update=known)]})


def test_what_does_not_agree_is_named(small):
    folder, library = small
    (item,) = library.instances
    assert (item.status, problems(library, folder)) == ("optimal", []) and item.gap == pytest.approx(0.0, abs=1e-9)
    value = item.best.value
    assert "beats its bound" in problems(changed(library, best=0.9 * value), folder)[0]
    assert "with gap" in problems(changed(library, best=1.1 * value), folder)[0]
    worse = changed(library, best=1.1 * value, bound=1.1 * value).instances[0]
    assert "beats the bound" in reproduced(worse, folder)
    better = changed(library, best=0.9 * value, bound=0.9 * value).instances[0]
    assert "beats" in reproduced(better, folder)
    closed = Item(**item.model_dump(exclude={"best", "bound", "status"}), status="infeasible")
    assert "the library infeasible" in reproduced(closed, folder)
    file = folder / "fleet/stock-limited.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text + "\nmax_load: 0.5\n" if "max_load" not in text else text.replace("max_load", "#"))
    assert any("changed since" in p for p in problems(library, folder))
    shutil.copy(file, folder / "fleet/other.yaml")
    assert any("other.yaml: not in the library" in p for p in problems(library, folder))
    file.unlink()
    assert any("not there" in p for p in problems(library, folder))


def test_an_update_keeps_what_is_better_and_forgets_another_instances_values(small):
    folder, library = small
    path = folder / "library.yaml"
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["instances"][0]["best"] |= {"value": 1e6, "method": "by hand"}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    again = update(path, methods=["greedy"])
    assert again.version == library.version + 1
    assert again.instances[0].best.method == "greedy"
    assert again.instances[0].bound == library.instances[0].bound
    file = folder / "fleet/stock-limited.yaml"
    file.write_text(file.read_text(encoding="utf-8") + "\n# the same problem\n", encoding="utf-8")
    assert update(path, methods=["greedy"]).instances[0].bound is not None
    file.write_text(file.read_text(encoding="utf-8").replace("title:", "title: another "), encoding="utf-8")
    fresh = update(path, methods=["greedy"]).instances[0]
    assert (fresh.bound, fresh.status) == (None, "open")


def test_values_proved_with_other_coefficients_are_forgotten(tmp_path, monkeypatch):
    """The file says the same when the shipped coefficients are fitted again; what it asks does not."""
    (tmp_path / "reserved_capacity").mkdir()
    name = "reserved_capacity/week-32-aws.yaml"
    shutil.copy(FOLDER / name, tmp_path / name)
    item = next(i for i in LIBRARY.instances if i.file == name)
    known = Library(version=1, updated=item.best.date, instances=[item])
    assert problems(known, tmp_path) == []
    again = copy.deepcopy(catalog.engine_model_document("default"))
    again["targets"]["tpot_s"]["coefficients"]["dense"] *= 1.01
    monkeypatch.setattr(resolve, "_shipped", lambda: EngineModel.model_validate(again))
    (wrong,) = problems(known, tmp_path)
    assert wrong.startswith(f"{name}: ") and "latency model" in wrong


def test_a_bound_that_a_plan_beats_is_not_kept(small):
    folder, library = small
    (item,) = library.instances
    (false,) = changed(library, best=1.1 * item.best.value, bound=1.1 * item.best.value).instances
    again = updated(false, item.file, folder, ["exact"], 60.0)
    assert again.status == "optimal"
    assert again.best.value == pytest.approx(item.best.value)
    assert again.bound.value == pytest.approx(item.best.value)


def test_models_are_exported_beside_their_values(tmp_path):
    made = export(FOLDER / "library.yaml", tmp_path, "mps", ["reserved_capacity/textbook-two-regions"])
    assert [p.name for p in made] == ["reserved_capacity-textbook-two-regions.mps", "library.csv"]
    h = highspy.Highs()
    h.setOptionValue("output_flag", False)
    h.readModel(str(made[0]))
    h.run()
    assert h.getInfo().objective_function_value == pytest.approx(8760)
    assert "8760" in (tmp_path / "library.csv").read_text()


def test_command_line(small, capsys):
    folder, _ = small
    arguments = ["--library", str(folder / "library.yaml")]
    assert main([*arguments, "check", "--solve"]) == 0
    assert "1 optimal" in capsys.readouterr().out
    assert main([*arguments, "check", "nowhere"]) == 2
    assert main(["--library", str(folder / "none.yaml"), "check"]) == 2
    (folder / "fleet/stock-limited.yaml").unlink()
    assert main([*arguments, "check"]) == 1
    with pytest.raises(InputError):
        read(folder / "none.yaml")
