"""What users get wrong, through the command line: exit status 2, the place and the value named, nothing written."""

import contextlib
import json

import pytest
import yaml
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

import optmodels
from optmodels.errors import InputError, Mistake, Mistakes, did_you_mean, one_of, shorten
from optmodels.loading import load
from optmodels.units import COMMON, convert

REAL_TIME = {"kind": "real_time", "tps": 100.0, "ttft_s": 2.0, "tpot_s": 0.1}


def set_at(data, path, value):
    """Set a dotted path (list positions as numbers); None removes the key."""
    *front, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    for part in front:
        data = data[part]
    if value is None:
        del data[last]
    else:
        data[last] = value


@pytest.fixture
def refused(cli, write, folder):
    """Solve a file that must be refused; returns stderr after the checks that hold for every mistake."""

    def run(data, *expected, name="instance.yaml", where=None):
        file = write(data, name)
        before = sorted(folder.rglob("*"))
        done = cli("solve", file)
        done.assert_clean()
        assert done.status == 2, (done.status, done.err, done.out[:300])
        assert done.out == ""
        assert (where or file) in done.err
        for text in expected:
            assert text in done.err, (text, done.err)
        assert sorted(folder.rglob("*")) == before
        return done.err

    return run


# ------------------------------------------------------------------------------------------------------ one number

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("path", "value", "shown", "expected"),
    [
        ("slo.tps", 0, "0", "> 0"),
        ("slo.tps", -5.5, "-5.5", "> 0 tokens/s"),
        ("slo.tps", NAN, "nan", "number"),
        ("slo.tps", INF, "inf", "finite"),
        ("slo.tps", "fast", "'fast'", "a number"),
        ("slo.tps", [1], "[1]", "number"),
        ("slo.tps", True, "True", "number"),
        ("slo.ttft_s", 0, "0", "> 0 s"),
        ("slo.ttft_s", "200 GiB", "'200 GiB'", "GiB cannot be converted"),
        ("slo.ttft_s", "200 parsecs", "parsecs", "quantity in s"),
        ("slo.ttft_s", "0 ms", "'0 ms'", "> 0"),
        ("slo.ttft_s", "1e999 s", "'1e999 s'", "finite"),
        ("slo.ttft_s", "1 s; rm -rf /", "rm -rf", "a number"),
        ("slo.tpot_s", -0.1, "-0.1", "> 0"),
        ("workload.batch", 0, "0", "≥ 1"),
        ("workload.batch", -1, "-1", "≥ 1"),
        ("workload.batch", 2.5, "2.5", "whole number"),
        ("workload.batch", 8.0, "8.0", "whole number"),
        ("workload.batch", "8", "'8'", "whole number"),
        ("workload.batch", NAN, "nan", "whole number"),
        ("workload.batch", INF, "inf", "whole number"),
        ("workload.batch", True, "True", "whole number"),
        ("workload.batch", 10**30, "1000000", "batch"),
        ("workload.input_tokens", 0, "0", "≥ 1"),
        ("workload.output_tokens", 0, "0", "≥ 1"),
        ("budget_usd_per_hour", -1, "-1", "≥ 0 USD/h"),
        ("budget_usd_per_hour", NAN, "nan", "number"),
        ("budget_usd_per_hour", INF, "inf", "finite"),
        ("budget_usd_per_hour", "5 s", "'5 s'", "USD/h"),
        ("memory.vram_usable", 0, "0", "> 0"),
        ("memory.vram_usable", 1.1, "1.1", "≤ 1"),
        ("memory.volume_gib", 0, "0", "> 0 GiB"),
        ("memory.chunk_tokens", 0, "0", "≥ 1"),
        ("strategies.alpha.min", -0.1, "-0.1", "≥ 0"),
        ("strategies.alpha.max", 1.5, "1.5", "≤ 1"),
        ("strategies.alpha.max", NAN, "nan", "number"),
        ("strategies.shared", [1], "1", "≥ 2"),
        ("strategies.parallel", [2000], "2000", "≤ 1024"),
        ("strategies.multi_pass", [2, "4"], "'4'", "whole"),
        ("strategies.replicas", [0], "0", "≥ 1"),
        ("strategies.families", [], "[]", "at least 1"),
        ("alternatives", -1, "-1", "≥ 0"),
        ("alternatives", 1000, "1000", "≤ 100"),
        ("pool.machines.1.vram_gib", 0, "0", "> 0 GiB"),
        ("pool.machines.1.vram_gib", -24, "-24", "> 0 GiB"),
        ("pool.machines.1.gpu_count", 0, "0", "≥ 1"),
        ("pool.machines.1.gpu_count", 10**30, "1000000", "gpu_count"),
        ("pool.machines.1.prices.on_demand", 0, "0", "> 0 USD/h"),
        ("pool.machines.1.prices.on_demand", -1, "-1", "> 0 USD/h"),
        ("pool.machines.1.net_gbps", "10 GiB", "GiB", "Gbps"),
        ("pool.machines.1.machine", "", "''", "at least 1"),
        ("pool.machines.1.machine", "m" * 10_000, "mmm", "200"),
        ("name", "n" * 10_000, "nnn", "200"),
        ("name", 7, "7", "a text"),
        ("markets.main", [], "[]", "at least 1"),
        ("latency.variant", "rooflin", "'rooflin'", "did you mean roofline"),
        ("precision.weights", "fp32", "'fp32'", "'fp16'"),
        ("objective", "cheapest", "'cheapest'", "'capped'"),
        ("schema", 2, "2", "1"),
        ("slo.kind", "realtime", "'realtime'", "did you mean real_time"),
        ("model", 5, "5", "a text"),
        ("pool", [], "[]", "a section"),
        ("workload", "many", "'many'", "a section"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(refused, tiny, path, value, shown, expected):
    data = tiny(slo=dict(REAL_TIME), memory={}, strategies={"alpha": {}}, markets={}, latency={}, precision={})
    set_at(data, path, value)
    err = refused(data, shown, expected)
    first = path.replace(".1.", "[1].").replace(".0.", "[0].")
    assert first in err


@pytest.mark.parametrize(
    "path",
    ["model", "workload", "slo", "pool", "schema", "workload.batch", "slo.tps", "slo.ttft_s", "slo.tpot_s", "slo.kind",
     "pool.machines.0.machine", "pool.machines.0.vram_gib", "pool.machines.0.prices", "formulation"],
)  # fmt: skip
def test_what_is_missing_is_named(refused, tiny, path):
    data = tiny(slo=dict(REAL_TIME))
    set_at(data, path, None)
    refused(data, "missing", path.replace(".0.", "[0]."))


@pytest.mark.parametrize(
    ("path", "wrong", "meant"),
    [
        ("", "budget_usd_per_hr", "budget_usd_per_hour"),
        ("workload", "bach", "batch"),
        ("slo", "ttft", "ttft_s"),
        ("pool.machines.2", "vram", "vram_gib"),
        ("pool.machines.2.prices", "ondemand", "on_demand"),
        ("strategies.alpha", "maximum", "max"),
    ],
)
def test_a_misspelt_key_gets_a_suggestion(refused, tiny, path, wrong, meant):
    data = tiny(slo=dict(REAL_TIME), strategies={"alpha": {}})
    inner = data
    for part in filter(None, path.split(".")):
        inner = inner[int(part) if part.isdigit() else part]
    inner[wrong] = 1
    refused(data, wrong, f"did you mean {meant}?")


@pytest.mark.parametrize(
    ("path", "wrong", "meant"),
    [
        ("model", "llama-3.1-8", "llama-3.1-8b"),
        ("formulation", "cost_eficiency", "cost_efficiency"),
        ("pool.machines.0.gpu", "l40", "l40s"),
        ("latency.calibration", "llm-pilot-table-vii", "llm-pilot-table-viii"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(refused, tiny, path, wrong, meant):
    data = tiny(latency={})
    set_at(data, path, wrong)
    refused(data, path.replace(".0.", "[0]."), wrong, f"did you mean {meant}")


def test_an_unknown_catalog_or_region(refused, tiny):
    refused(tiny(pool={"catalog": "awz"}), "pool.catalog", "'awz'", "did you mean aws?")
    refused(tiny(pool={"catalog": "aws", "region": "us-east-9"}), "pool.region", "'us-east-9'", "us-east-1")


def test_every_mistake_is_named_not_only_the_first(refused, tiny):
    data = tiny(slo={"kind": "batch", "tps": -1}, objective="best", workload={"batch": 0})
    err = refused(data, "slo.tps", "objective", "workload.batch", "workload.input_tokens", "workload.output_tokens")
    assert len(err.strip().splitlines()) == 5


def test_the_line_is_named(refused, tiny):
    text = yaml.safe_dump(tiny(), sort_keys=False).replace("tps: 100.0", "tps: -100.0")
    line = next(i for i, content in enumerate(text.splitlines(), 1) if "tps: -100.0" in content)
    refused(text, f"instance.yaml:{line}: slo.tps")


# -------------------------------------------------------------------------------------------------- contradictions


def test_latency_limits_in_a_batch_slo(refused, tiny):
    refused(tiny(slo={"kind": "batch", "tps": 10, "ttft_s": 1}), "slo", "ttft_s")


def test_alpha_limits_in_the_wrong_order(refused, tiny):
    refused(tiny(strategies={"alpha": {"min": 0.8, "max": 0.2}}), "strategies.alpha", "min (0.8) at most max (0.2)")


def test_more_tokens_than_the_model_has_positions(refused, tiny):
    err = refused(tiny(workload={"batch": 1, "input_tokens": 2000, "output_tokens": 100}), "workload", "2100", "2048")
    assert "instance.yaml:" in err


def test_a_region_without_a_catalog(refused, tiny):
    data = tiny()
    data["pool"]["region"] = "us-east-1"
    refused(data, "pool.region", "catalog")


def test_an_empty_pool(refused, tiny):
    refused(tiny(pool={}), "pool", "at least one machine")
    refused(tiny(pool={"machines": []}), "pool", "at least one machine")


def test_patterns_that_leave_nothing(refused, tiny):
    refused(tiny(pool={"catalog": "aws", "include": ["p9.*"]}), "pool", "p9.*", "removed by include/exclude")
    refused(tiny(pool={"catalog": "aws", "exclude": ["*"]}), "pool", "removed by include/exclude")


def test_a_machine_twice(refused, tiny):
    data = tiny()
    data["pool"]["machines"].append(dict(data["pool"]["machines"][0]))
    refused(data, "pool.machines[3].machine", "'big'", "once")


def test_a_machine_without_any_price(refused, tiny):
    data = tiny()
    data["pool"]["machines"][1]["prices"] = {}
    refused(data, "pool.machines[1].prices", "'mid'", "price in at least one market")


def test_a_machine_without_a_gpu_needs_measurements(refused, tiny):
    data = tiny()
    del data["pool"]["machines"][1]["gpu"]
    refused(data, "mid", "gpu")


def test_the_position_of_a_machine_is_that_in_the_file(refused, tiny):
    """Machines of a catalogue, and ones that patterns remove, do not shift the number in the message."""
    data = tiny()
    data["pool"] |= {"catalog": "llm-pilot-table-vii", "exclude": ["big"]}
    data["pool"]["machines"][2]["gpu"] = "t44"
    refused(data, "pool.machines[2].gpu", "'t44'", "instance.yaml:")


def test_baselines_outside_the_pool(refused, tiny):
    data = tiny(baselines={"high_end": "bigg", "ao_cluster": {"main": "mid", "ao": "nobody"}})
    refused(data, "baselines.high_end", "did you mean big?", "baselines.ao_cluster.ao", "'nobody'")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"kv_heads": 3}, "kv_heads (3) dividing heads (4)"),
        ({"moe": {"experts": 2, "active": 3, "expert_ffn": 4}}, "active (3) at most experts (2)"),
        ({"hidden": 0}, "hidden"),
        ({"ffn_matrices": 4}, "ffn_matrices"),
    ],
)
def test_an_impossible_model(refused, tiny, model, expected):
    shape = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "head_dim": 16, "ffn": 256, "ffn_matrices": 2,
             "vocab": 100, "max_positions": 4096}  # fmt: skip
    refused(tiny(model=shape | model), "model", expected)


def test_experts_in_fewer_layers_than_none(refused, tiny):
    """More leading dense layers than layers would give a negative share of experts."""
    shape = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "head_dim": 16, "ffn": 256, "ffn_matrices": 2,
             "vocab": 100, "max_positions": 4096,
             "moe": {"experts": 4, "active": 2, "expert_ffn": 64, "dense_layers": 3}}  # fmt: skip
    refused(tiny(model=shape), "model", "dense_layers")


# ----------------------------------------------------------------------------------------------- operating points


def measured(tiny, *points, **changes):
    return tiny(latency={"operating_points": list(points)}, **changes)


POINT = {"name": "one", "family": "high_end", "main": "big", "tps": 150.0}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"e2e_s": 3.0}, "exactly one of tps and e2e_s"),
        ({"tps": None}, "exactly one of tps and e2e_s"),
        ({"ao": "small"}, "ao machine in the ao families"),
        ({"family": "ao"}, "ao machine in the ao families"),
        ({"main": "bigg"}, "did you mean big?"),
        ({"family": "highend"}, "did you mean high_end?"),
        ({"tps": 0}, "> 0"),
        ({"alpha": 2}, "≤ 1"),
    ],
)
def test_an_operating_point_that_contradicts_itself(refused, tiny, change, expected):
    point = {k: v for k, v in (POINT | change).items() if v is not None}
    refused(measured(tiny, POINT | {"name": "good"}, point), "latency.operating_points[1]", expected)


def test_a_measured_point_without_latencies_under_a_real_time_slo(refused, tiny):
    refused(measured(tiny, POINT, slo=dict(REAL_TIME)), "latency.operating_points[0]", "ttft_s and tpot_s")


def test_no_measured_point_at_all(refused, tiny):
    refused(measured(tiny), "latency.operating_points", "at least one")


def test_two_measured_points_of_one_name(refused, tiny):
    refused(measured(tiny, POINT, POINT | {"tps": 120.0}), "latency.operating_points[1]", "'one'")


def test_more_parts_than_requests(refused, tiny):
    """Nine passes cannot split eight requests."""
    refused(measured(tiny, POINT | {"family": "multi_pass", "count": 9}), "latency.operating_points[0]", "9")


# ------------------------------------------------------------------------------------------------------ side files


HEADER = "name,family,main,tps\n"


def side(tiny, name="points.csv"):
    return tiny(latency={"operating_points": name})


def test_a_good_table_beside_the_instance_is_read(cli, write, tiny):
    write("# where it comes from\n" + HEADER + "one,high_end,big,150\n", "points.csv")
    done = cli("solve", write(side(tiny)), "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out)["plan"]["measured"] == "one"


def test_bad_rows_are_named_by_row(refused, write, tiny):
    write(HEADER + "one,high_end,big,150\ntwo,high_end,big,-3\nthree,nonsense,big,1\n", "points.csv")
    err = refused(side(tiny), where="points.csv")
    assert "points.csv:3: row 2.tps" in err
    assert "'-3'" in err
    assert "points.csv:4: row 3.family" in err


def test_the_line_of_a_bad_row_counts_comments(refused, write, tiny):
    write("# one comment\n# another\n" + HEADER + "one,high_end,big,-3\n", "points.csv")
    refused(side(tiny), where="points.csv:4: row 1.tps")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("name,family,main,tps\none,high_end,big,150,extra,cells\n", "row 1"),
        ("name,family,main,tps,count\none,high_end,big,150,²\n", "'²'"),
        ("name,family,main,tps,count\none,high_end,big,150," + "9" * 5000 + "\n", "count"),
        ("name,family,main,tps,tps\none,high_end,big,150,160\n", "tps"),
        ("nam,family,main,tps\none,high_end,big,150\n", "did you mean name?"),
        ("name,family,main,tps\n", "at least one"),
        ("", "at least one"),
        ("\x00\x01\x02", "UTF-8 CSV"),
    ],
)
def test_a_malformed_table(cli, write, tiny, content, expected):
    write(content, "points.csv")
    done = cli("solve", write(side(tiny)))
    done.assert_clean()
    assert done.status == 2, done.err
    assert expected in done.err


def test_a_table_from_a_spreadsheet_is_read(cli, write, folder, tiny):
    (folder / "points.csv").write_bytes(b"\xef\xbb\xbf" + (HEADER + "one,high_end,big,150\r\n").encode())
    done = cli("solve", write(side(tiny)), "--json")
    assert done.status == 0, done.err


def test_a_table_that_is_not_text(cli, write, folder, tiny):
    (folder / "points.csv").write_bytes(b"\xff\xfe\x00\x01")
    (folder / "points.parquet").write_bytes(b"PAR0 not really")
    for name in ("points.csv", "points.parquet"):
        done = cli("solve", write(side(tiny, name)))
        done.assert_clean()
        assert (done.status, name in done.err) == (2, True)


@pytest.mark.parametrize(
    "name", ["../points.csv", "/etc/passwd", "sub/../../points.csv", "", ".", "missing.csv", "a" * 5000, "a\x00b.csv"]
)
def test_a_side_file_elsewhere_is_refused(cli, write, folder, tiny, name):
    inside = folder / "inside"
    inside.mkdir()
    (folder / "points.csv").write_text(HEADER + "one,high_end,big,150\n")
    (inside / "instance.json").write_text(json.dumps(side(tiny, name)))
    done = cli("solve", inside / "instance.json")
    done.assert_clean()
    assert done.status == 2, done.err
    assert "latency.operating_points" in done.err


def test_a_link_out_of_the_folder_is_refused(cli, folder, tiny):
    inside = folder / "inside"
    inside.mkdir()
    (folder / "points.csv").write_text(HEADER + "one,high_end,big,150\n")
    (inside / "points.csv").symlink_to(folder / "points.csv")
    (inside / "instance.json").write_text(json.dumps(side(tiny)))
    done = cli("solve", inside / "instance.json")
    assert done.status == 2
    assert "own folder" in done.err


def test_a_calibration_file_is_checked_like_the_instance(cli, write, tiny):
    write({"schema": 1, "coefficients": [{"phase": "prefil", "slope": 0}]}, "mine.yaml")
    done = cli("solve", write(tiny(latency={"calibration": "mine.yaml"})))
    done.assert_clean()
    assert done.status == 2
    for text in ("mine.yaml", "coefficients[0].phase", "did you mean prefill?", "coefficients[0].slope"):
        assert text in done.err


# ---------------------------------------------------------------------------------------------------- whole files


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "an empty file"),
        ("# only a comment\n", "an empty file"),
        ("- a\n- b\n", "a mapping"),
        ("just words", "a mapping"),
        ("a: 1\na: 2\n", "the key 'a' a second time"),
        ("workload: {batch: 1, batch: 2}\n", "the key 'batch' a second time"),
        ("a: [1, 2\n", "valid YAML"),
        ("a: 1\n\tb: 2\n", "valid YAML"),
        ("a: !!python/object/apply:os.system ['touch owned']\n", "valid YAML"),
        ("a: *nobody\n", "valid YAML"),
        ("a: 1\n---\nb: 2\n", "valid YAML"),
        ("{[1, 2]: 3}", "valid YAML"),
        ("a: \x07\n", "valid YAML"),
        ("[" * 2000, "valid"),
    ],
)
def test_a_file_that_is_no_mapping(refused, folder, text, expected):
    refused(text, expected)
    assert not (folder / "owned").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1, "a": 2}', "the key a a second time"),
        ('{"a": 1', "valid JSON"),
        ("[]", "a mapping"),
        ("null", "an empty file"),
        ("[" * 100_000, "nested"),
        ('{"formulation": "cost_efficiency", "schema": 1, "serving": "static", "name": "\\ud800"}', "name"),
    ],
)
def test_a_json_file_that_is_none(refused, text, expected):
    refused(text, expected, name="instance.json")


def test_keys_that_are_no_text(refused, tiny):
    refused("1: 2\n" + yaml.safe_dump(tiny()), "1")
    data = tiny()
    data["workload"][7] = 8
    refused(data, "workload", "7")


@pytest.mark.parametrize("name", ["nothing.yaml", "", ".", "x" * 5000 + ".yaml", "a\x00b.yaml"])
def test_no_such_file(cli, folder, name):
    done = cli("solve", name)
    done.assert_clean()
    assert done.status == 2
    assert done.out == ""
    assert list(folder.iterdir()) == []


def test_a_binary_file(cli, folder):
    (folder / "instance.yaml").write_bytes(bytes(range(256)))
    done = cli("solve", "instance.yaml")
    done.assert_clean()
    assert done.status == 2
    assert "UTF-8" in done.err


def test_a_bomb_of_aliases_is_answered_in_no_time(refused):
    """Six levels of ten here; ten levels would be 10¹⁰ words written out. Only a cut of it may ever be built."""
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 6)]
    text = "\n".join([*lines, "formulation: cost_efficiency", "schema: 1", "model: *a5", "name: *a5"])
    refused(text, "at most 500,000 values, aliases written out")


def test_a_value_is_cut_before_it_is_written_out():
    calls = []

    class Loud:
        def __repr__(self):
            calls.append(1)
            return "loud"

    assert len(shorten([[Loud()] * 1000] * 100)) <= 80
    assert len(calls) < 1000


def test_a_value_may_not_contain_itself(refused):
    refused("formulation: cost_efficiency\nschema: 1\nname: &a [*a]\n", "instance.yaml:3", "an alias inside of what")


def test_control_characters_do_not_reach_the_terminal(refused, tiny):
    err = refused(tiny(objective="\x1b[31mred\x1b]0;owned\x07"), "objective")
    assert "\x1b" not in err
    assert "\x07" not in err


def test_control_characters_in_a_key_do_not_reach_the_terminal(refused, tiny):
    err = refused(tiny(**{"\x1b[31mred": 1}))
    assert "\x1b" not in err


# ----------------------------------------------------------------------------------------------------------- units


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        ("200 ms", "s", 0.2), ("200ms", "s", 0.2), ("1.5", "s", 1.5), (" 2 min ", "s", 120.0), ("1e-3 s", "s", 1e-3),
        (".5 s", "s", 0.5), ("3 µs", "s", 3e-6), ("24 GB", "GiB", 24e9 / 2**30), ("24 GiB", "GiB", 24.0),
        ("1 TiB", "GiB", 1024.0), ("5 $/h", "USD/h", 5.0), ("0.5 USD/h", "USD/h", 0.5), ("12 $/day", "USD/h", 0.5),
        ("1 GB/s", "Gbps", 8.0), ("10 Gbit/s", "Gbps", 10.0), ("100 Mbps", "Gbps", 0.1),
        ("312 TFLOP/s", "FLOP/s", 3.12e14), ("2 TB/s", "B/s", 2e12), ("1000 tokens/s", "token/s", 1000.0),
        ("6000 token/min", "token/s", 100.0), (7, "s", 7),
    ],
)  # fmt: skip
def test_quantities_with_their_own_unit(value, unit, expected):
    assert convert(value, unit) == pytest.approx(expected)


@pytest.mark.parametrize(("own", "unit"), COMMON)
def test_the_common_factors_are_those_of_pint_to_the_last_digit(monkeypatch, own, unit):
    quick = [convert(f"{number} {own}", unit) for number in (1, 0.3, 271.828)]
    monkeypatch.setattr("optmodels.units.COMMON", {})
    assert quick == [convert(f"{number} {own}", unit) for number in (1, 0.3, 271.828)]


@pytest.mark.parametrize("value", ["", " ", "s", "1 2", "1,5 s", "0x10", "1 s s", "five", "1__0", "1 s/", "5 /s"])
def test_what_is_no_quantity(value):
    with pytest.raises(PydanticCustomError):
        convert(value, "s")


@settings(max_examples=200)
@given(
    st.from_regex(r"\A[0-9]{1,3} ?[A-Za-zµ$][A-Za-zµ$/]{0,8}\Z"), st.sampled_from(["s", "GiB", "USD/h", "FLOP/s", ""])
)
def test_any_unit_converts_or_is_refused(value, unit):
    with contextlib.suppress(PydanticCustomError):
        assert isinstance(convert(value, unit), float)


def test_milliseconds_are_accepted_in_an_instance(tiny):
    problem = load(tiny(slo={"kind": "real_time", "tps": "6000 tokens/min", "ttft_s": "200 ms", "tpot_s": "50 ms"}))
    assert (problem.slo.ttft_s, problem.slo.tpot_s, problem.slo.tps) == pytest.approx((0.2, 0.05, 100.0))


# ------------------------------------------------------------------------------------------ any document whatever


@settings(max_examples=80)
@given(data=st.data())
def test_no_mutation_of_an_instance_crashes_the_loader(data, tiny):
    """Any value anywhere: a problem or a list of mistakes, never another exception."""
    document = tiny(slo=dict(REAL_TIME), strategies={"alpha": {"min": 0, "max": 1}}, latency={"variant": "paper"})
    path = []
    inner = document
    while isinstance(inner, dict | list) and inner:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        path.append(data.draw(st.sampled_from(keys)))
        inner = inner[path[-1]]
        if data.draw(st.booleans()):
            break
    rubbish = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(
            ["1 ms", "0 s", "../x.csv", "aws", "*", "[", 10**25, -(10**25), 1e308, 5e-324]),
        lambda s: st.lists(s, max_size=3) | st.dictionaries(st.text(max_size=8), s, max_size=3), max_leaves=4,
    )  # fmt: skip
    owner = document
    for part in path[:-1]:
        owner = owner[part]
    owner[path[-1]] = data.draw(rubbish)
    try:
        load(document)
    except InputError as error:
        assert error.mistakes
        assert all(str(m) for m in error.mistakes)


def test_a_collector_reports_everything_at_once():
    wrong = Mistakes()
    wrong.raise_any()  # nothing is wrong yet
    wrong.unknown("pool.gpu", "l5", "a GPU", (f"l{i}" for i in range(4, 18)))
    assert wrong[0].expected == "a GPU: l10, l11, l12, l13, l14, l15, l16, l17, l4, l5, l6, l7, …"
    wrong = Mistakes()
    wrong.unknown("pool.gpu", "h10", "a GPU", ["l4", "h100"])
    wrong.unknown("model", "zzz", "a model", ["opt-13b"])

    def fails(text):
        raise InputError([Mistake("x.csv", "row 1", text, "a number"), Mistake("x.csv", "row 2", text, "a number")])

    assert wrong.collect(fails, "a") is None
    assert wrong.collect(len, "four") == 4
    with wrong.collecting():
        fails("b")
    assert [m.hint for m in wrong] == ["did you mean h100?", None, None, None, None, None]
    assert [m.value for m in wrong] == ["h10", "zzz", "a", "a", "b", "b"]
    with pytest.raises(InputError) as error:
        wrong.raise_any()
    assert error.value.mistakes == tuple(wrong)
    with pytest.raises(InputError) as error:
        wrong.raise_any(2)
    assert error.value.mistakes == tuple(wrong[:2])


def test_one_of_names_the_choices_and_the_nearest():
    one_of("queue", "fifo", ("fifo", "deadline"))
    with pytest.raises(InputError, match=r"^queue: got 'best'; expected one of fifo, deadline$"):
        one_of("queue", "best", ("fifo", "deadline"))
    with pytest.raises(InputError, match=r"\(did you mean fifo\?\)$"):
        one_of("queue", "fif", ("fifo", "deadline"))


def test_the_nearest_name_is_near_in_capitals_too():
    assert did_you_mean("H100", ["v100", "h100"]) == "did you mean h100?"
    assert did_you_mean("h100", ["V100", "H100"]) == "did you mean H100?"
    assert did_you_mean("zebra", ["h100"]) is None


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("cost_efficiency/present_day/llama-3.1-70b-chat-aws", "candidates"), ("fleet/agent-stages", "points"),
        ("orchestration/continuous-chat-and-code", "classes"), ("reserved_capacity/textbook-two-regions", "rows"),
    ],
)  # fmt: skip
def test_tables_are_shown_in_a_line(file, shown):
    text = repr(optmodels.tables(ROOT / "instances" / f"{file}.yaml"))
    assert len(text) < 120 and shown in text and file.rpartition("/")[2] in text
