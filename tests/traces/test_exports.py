"""Traces as people export them: ZIP, files put one after another, Excel's and pandas' own forms, databases."""

import io
import json
import tarfile
import zipfile

import numpy as np
import pandas as pd
import pytest

from optmodels.errors import InputError
from optmodels.traces.readers import read_trace

NAMES = ["timestamp", "input_tokens", "output_tokens"]
ROWS = [(1772442000 + 30 * i, 100 + i, 10 + i) for i in range(4)]
CSV = ",".join(NAMES) + "\n" + "".join("{},{},{}\n".format(*r) for r in ROWS)
BY_NAME = {name: [r[i] for r in ROWS] for i, name in enumerate(NAMES)}


def packed(files):
    """A ZIP archive."""
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return found.getvalue()


def mongo(row):
    at, prompt, output = row
    return {"createdAt": {"$date": at}, "promptTokens": {"$numberInt": str(prompt)}, "completionTokens": output}


EXPORTS = {
    "zip": packed({"logs/": "", "logs/a.csv": CSV}),
    "zip of macOS": packed({"a.csv": CSV, "__MACOSX/._a.csv": b"\0"}),
    "one file after another": CSV + "".join(CSV.splitlines(keepends=True)[:1]),
    "Excel's separator": "sep=;\n" + CSV.replace(",", ";"),
    "lists by column": json.dumps(BY_NAME),
    "pandas by column": json.dumps({k: {str(i): x for i, x in enumerate(v)} for k, v in BY_NAME.items()}),
    "pandas split": json.dumps({"columns": NAMES, "index": [0, 1, 2, 3], "data": ROWS}, indent=1),
    "MongoDB": "".join(json.dumps(mongo(r)) + "\n" for r in ROWS),
    "Gemini": json.dumps([
        {"createTime": at, "usageMetadata": {"promptTokenCount": p, "candidatesTokenCount": o}} for at, p, o in ROWS
    ]),
}  # fmt: skip


def is_read(path):
    trace = read_trace(path)
    np.testing.assert_allclose(trace.arrival_s, [0.0, 30.0, 60.0, 90.0])
    assert list(zip(trace.prompt_tokens, trace.output_tokens, strict=True)) == [r[1:] for r in ROWS]
    return trace


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_is_read_as_it_is(name, tmp_path):
    data = EXPORTS[name]
    (tmp_path / "t").write_bytes(data if isinstance(data, bytes) else data.encode())
    trace = is_read(tmp_path / "t")
    assert any("repeated headers left out: 1, the first in line 6" in n for n in trace.notes) == ("after" in name)


def test_the_index_of_a_parquet_table_is_a_column(tmp_path):
    frame = pd.DataFrame(BY_NAME)
    frame.assign(timestamp=pd.to_datetime(frame.timestamp, unit="s")).set_index("timestamp").to_parquet(tmp_path / "t")
    is_read(tmp_path / "t")


def test_an_archive_of_several_files_is_named(tmp_path):
    with tarfile.open(tmp_path / "t.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a.csv"))
    (tmp_path / "two.zip").write_bytes(packed({"a.csv": CSV, "b.csv": CSV}))
    (tmp_path / "book.xlsx").write_bytes(packed({"[Content_Types].xml": "", "xl/workbook.xml": ""}))
    (tmp_path / "cut.zip").write_bytes(EXPORTS["zip"][:60])
    words = {"t.tar.gz": "tar", "two.zip": "2 files", "book.xlsx": "Excel workbook", "cut.zip": "cannot be read"}
    for file, said in words.items():
        with pytest.raises(InputError, match=said):
            read_trace(tmp_path / file)
