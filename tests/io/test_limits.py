"""What may not be in a file: each is refused in words, with exit status 2, within bounded memory."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from copy import copy

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import optmodels
from optmodels.errors import LONGEST, MOST_SHOWN, InputError, Mistake
from optmodels.io import tables
from optmodels.io.read import MAX_DEPTH, read_document
from optmodels.latency.fit.measurements import read_measurements
from optmodels.traces.readers import read_trace

HEAD = "formulation: cost_efficiency\nschema: 1\n"


def refused(path, data, *words):
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError) as error:
        read_document(path)
    said = str(error.value)
    assert all(w in said for w in words), said
    assert len(said) < 1000
    return said


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('!!int ""', "no !!int"), ('!!bool "maybe"', "no !!bool"), ('!!float ""', "no !!float"),
        ('!!timestamp "abc"', "no !!timestamp"), ("2026-02-30", "no !!timestamp"),
        ("!!python/object/apply:os.system [true]", "could not determine a constructor"),
        ("0x" + "f" * 6000, "9.22e+18"), ("1" * 5000, "no !!int"), ("1" * 30, "9.22e+18"),
        ('"x\\ud800y"', "whole characters"), ("[" * 70 + "]" * 70, f"at most {MAX_DEPTH} levels"),
        ("[" * 3000, f"at most {MAX_DEPTH} levels"), ("&a [*a]", "an alias inside of what it names"),
        ("1.0e-320", "2.23e-308"), ("[1.0, -1.0e-320]", "2.23e-308"), ("{a: 1, a: 2}", "a second time"),
        ("{<<: [1, 2]}", "mapping"),
    ],
)  # fmt: skip
def test_yaml_values_that_are_none(tmp_path, value, words):
    said = refused(tmp_path / "x.yaml", f"{HEAD}name: {value}\n", words)
    assert "x.yaml:" in said


def test_merge_keys_are_read_and_lines_are_those_of_the_file(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("base: &b\n  a: 1\n  b: 2\nown:\n  <<: *b\n  b: 3\n")
    data, line = read_document(path)
    assert data["own"] == {"a": 1, "b": 3}
    assert line(("own", "b")) == 6 and line(("own", "a")) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": ' * 2000 + "1" + "}" * 2000, "levels"), ('{"a": ' * 100 + "1" + "}" * 100, "levels"),
        ('{"a": ' + "1" * 5000 + "}", "9.22e+18"), ('{"a": 99999999999999999999}', "a: got 99999999999999999999"),
        ('{"a": "\\ud800"}', "whole characters"), ('{"\\ud800": 1}', "whole characters"),
        ('{"a": 1, "a": 1}', "a second time"),
    ],
)  # fmt: skip
def test_json_values_that_are_none(tmp_path, text, words):
    refused(tmp_path / "x.json", text, words)


@pytest.mark.parametrize("levels", [100, 5000])  # the second is more than the reader of JSON goes down
@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_where_a_file_is_too_deep(tmp_path, suffix, levels):
    deep = '{"k":' + '[["a", ' * levels + "1" + "]]" * levels + "}"
    text = '{"x": {"formulation": "f}:[",\n"b": [1, [], {"c": 2}],\n"own": ' + deep.replace("[[", "[\n[") + "}}"
    refused(tmp_path / f"x.{suffix}", text, f"x.{suffix}:", ": x.own.k[0][1][0][1]", "60 levels")
    with pytest.raises(InputError) as error:
        read_document(tmp_path / f"x.{suffix}")
    assert error.value.mistakes[0].line == 3 + 29
    escaped = '{"\\u0061\\"b": [0,\n' + "[" * 70 + "]" * 70 + "]}"
    refused(tmp_path / "escaped.json", escaped, "escaped.json:2", 'a"b[1][0]', "60 levels")
    (tmp_path / f"list.{suffix}").write_text("{? [1, 2]\n: " + "[" * 70 + "]" * 70 + "}")
    with pytest.raises(InputError) as error:
        read_document(tmp_path / f"list.{suffix}")
    assert "Node" not in str(error.value)
    within = '{"x": ' + "[" * 59 + "[]" + "]" * 59 + "}"
    (tmp_path / f"x.{suffix}").write_text(within)
    assert read_document(tmp_path / f"x.{suffix}")[0]["x"]


def test_encodings(tmp_path):
    refused(tmp_path / "x.yaml", HEAD.encode("utf-16"), "UTF-16 text", "UTF-8")
    refused(tmp_path / "y.yaml", b"\xff\x00", "not UTF-8")
    (tmp_path / "z.yaml").write_bytes(b"\xef\xbb\xbf" + HEAD.encode())
    assert read_document(tmp_path / "z.yaml")[0]["schema"] == 1


def test_too_many_values_of_yaml(tmp_path, monkeypatch):
    monkeypatch.setattr("optmodels.io.read.MAX_YAML_VALUES", 100)
    refused(tmp_path / "x.yaml", HEAD + "x: [" + "1," * 200 + "]", "at most 100 values", "JSON")
    merged = "\n".join(f"m{i}: &m{i} {{<<: [*m{i - 1}, *m{i - 1}, *m{i - 1}]}}" for i in range(1, 6))
    refused(tmp_path / "y.yaml", f"{HEAD}m0: &m0 {{a: 1}}\n{merged}", "at most 100 values")


def test_a_mapping_of_python_is_held_to_the_same(tiny):
    for strange in (10**5000, "x\ud800", [[[]]] and _deep()):
        with pytest.raises(InputError) as error:
            optmodels.load(tiny() | {"name": strange})
        assert len(str(error.value)) < 1000


def _deep():
    value = []
    for _ in range(2000):
        value = [value]
    return value


def test_messages_are_bounded():
    value, expected = "v" * 690_000, "e" * 10_000
    many = InputError(Mistake("f", f"x[{i}]", value, expected) for i in range(3000))
    said = str(many)
    assert len(said) < LONGEST + 100
    shown = said.count("\n")
    assert 5 < shown < MOST_SHOWN and said.endswith(f"and {3000 - shown:,} more mistakes")
    few = str(InputError(Mistake("f", f"x[{i}]", "v", "e") for i in range(3000)))
    assert few.count("\n") == MOST_SHOWN and few.endswith(f"and {3000 - MOST_SHOWN:,} more mistakes")
    assert len(many.mistakes) == 3000
    assert str(pickle.loads(pickle.dumps(many))) == said


# ---------------------------------------------------------------------------------------------------- tables


def test_a_gzip_bomb_is_refused_at_the_limit(tmp_path, monkeypatch):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"arrival_s,prompt_tokens,output_tokens\n" + b"1,1,1\n" * 200_000))
    assert len(read_trace(path)) == 200_000
    monkeypatch.setattr(tables, "MAX_TEXT_BYTES", 2**20)
    for read in (read_trace, read_measurements):
        with pytest.raises(InputError, match=r"t\.csv\.gz.*at most 1 MiB of text, unpacked.*fewer rows"):
            read(path)


def test_a_parquet_bomb_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "t.parquet"
    rows = 60_000_000
    columns = {"arrival_s": np.zeros(rows // 20), "prompt_tokens": np.ones(rows // 20, np.int64)}
    table = pa.table(columns | {"output_tokens": columns["prompt_tokens"]})
    with pq.ParquetWriter(path, table.schema) as out:
        for _ in range(20):
            out.write_table(table)
    assert path.stat().st_size < 2**20
    for read in (read_trace, tables.read_frame):
        with pytest.raises(InputError, match=r"60,000,000 rows of 3 columns.*at most 512 MiB"):
            read(path)


def test_long_texts_that_parquet_holds_once_are_counted_as_often_as_they_stand_there(tmp_path):
    path = tmp_path / "t.parquet"
    names = pa.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), ["x" * 100_000])
    pq.write_table(pa.table({"name": names}), path)
    assert path.stat().st_size < 2**22
    with pytest.raises(InputError, match="long texts"):
        tables.read_frame(path)


def test_texts_and_numbers_of_parquet_are_as_pandas_reads_them(tmp_path):
    frame = pd.DataFrame({"a": [1, 2, 3], "b": ["x", None, "x"], "c": [0.5, np.nan, 1.0]})
    frame.to_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(tables.read_frame(tmp_path / "t.parquet"), pd.read_parquet(tmp_path / "t.parquet"))


def test_lists_within_columns_and_far_too_many_columns(tmp_path):
    pq.write_table(pa.table({"arrival_s": [[1, 2]]}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match="a list within a column"):
        read_trace(tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("a," * 20_000 + "\n1\n")
    for read in (read_trace, tables.read_frame):
        with pytest.raises(InputError, match="10,000 columns"):
            read(tmp_path / "t.csv")


def test_rows_longer_than_the_header_are_not_shifted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "1,2,3,4\n" * 5)
    for read in (read_trace, tables.read_frame):
        with pytest.raises(InputError, match=r"more cells|4 cells"):
            read(path)


def test_numbers_of_a_column():
    column = pd.Series([1, "2", True, None, "x", "1" * 400, [1], 10**400], dtype=object)
    np.testing.assert_array_equal(tables.numbers(column)[:2], [1, 2])
    assert not np.isfinite(tables.numbers(column)[2:]).any()


# --------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    "wrong", [{"gap": float("nan")}, {"time_limit": float("nan")}, {"seed": 0.5},
              {"gap": float("inf")}, {"time_limit": -1}, {"seed": -1}],
)  # fmt: skip
def test_options_that_are_no_numbers(tiny, wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        optmodels.solve(tiny(), **wrong)


@pytest.mark.parametrize("start", ["spawn", "fork", "forkserver"])
def test_a_result_goes_to_another_process(tiny, start):
    result = optmodels.solve(tiny())
    assert result.frames()
    with ProcessPoolExecutor(1, multiprocessing.get_context(start)) as pool:
        there, again = pool.submit(type(result).to_json, result).result(60), pool.submit(copy, result).result(60)
    assert json.loads(there) == json.loads(result.to_json())
    assert json.loads(again.to_json()) == json.loads(result.to_json())
    with pytest.raises(ValueError, match="only a result of solve"):
        again.frames()
