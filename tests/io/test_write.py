"""Result files: whole or not at all, never over another, names that cannot leave the folder."""

import errno
import os
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optmodels.errors import InputError
from optmodels.io.tables import read_frame
from optmodels.io.write import (
    check_folder,
    columns_of,
    csv_text,
    data_frame,
    new_folder,
    safe_name,
    write_bytes,
    write_frame,
    write_text,
)


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_pipe_is_written_to_and_a_link_followed_but_neither_is_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    for overwrite in (False, True):
        write_text(tmp_path / "pipe", "α", overwrite=overwrite)
        assert os.read(reader, 9).decode() == "α"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "file").write_text("old")
    write_text(tmp_path / "link", "new", overwrite=True)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "new"
    if Path("/dev/full").is_char_device():
        with pytest.raises(InputError, match="free space"):
            write_text(Path("/dev/full"), "x" * 9, overwrite=True)
        assert Path("/dev/full").is_char_device()


def test_a_file_is_written_with_its_folders(tmp_path):
    write_text(tmp_path / "a" / "b" / "c.txt", "α\n")
    assert (tmp_path / "a" / "b" / "c.txt").read_text(encoding="utf-8") == "α\n"
    assert names(tmp_path / "a" / "b") == ["c.txt"]
    assert stat.S_IMODE((tmp_path / "a" / "b" / "c.txt").stat().st_mode) == 0o644


def test_nothing_is_overwritten_unless_told(tmp_path):
    file = tmp_path / "x.txt"
    write_text(file, "first")
    with pytest.raises(InputError, match="existing file"):
        write_text(file, "second")
    assert file.read_text() == "first"
    write_text(file, "third", overwrite=True)
    assert file.read_text() == "third"
    assert names(tmp_path) == ["x.txt"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch, overwrite):
    file = tmp_path / "x.txt"
    if overwrite:
        file.write_text("before")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises((OSError, InputError)):
        write_text(file, "after", overwrite=overwrite)
    assert names(tmp_path) == (["x.txt"] if overwrite else [])
    if overwrite:
        assert file.read_text() == "before"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_in_the_way_is_the_users_mistake(tmp_path, overwrite):
    (tmp_path / "x").mkdir()
    with pytest.raises(InputError):
        write_text(tmp_path / "x", "text", overwrite=overwrite)
    assert names(tmp_path) == ["x"]


def test_a_file_where_a_folder_should_be_is_the_users_mistake(tmp_path):
    (tmp_path / "x").write_text("a file")
    with pytest.raises(InputError):
        write_text(tmp_path / "x" / "y.txt", "text")
    with pytest.raises(InputError):
        new_folder(tmp_path / "x", "result")


@pytest.mark.parametrize("name", ["n" * 300, "é" * 200])
def test_a_name_too_long_for_the_disk_is_the_users_mistake(tmp_path, name):
    with pytest.raises(InputError):
        write_text(tmp_path / name, "text")
    assert names(tmp_path) == []


def test_a_file_system_without_hard_links_is_written_all_the_same(tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    write_text(tmp_path / "x.txt", "whole")
    assert (tmp_path / "x.txt").read_text() == "whole" and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(InputError, match="an existing file"):
        write_text(tmp_path / "x.txt", "another")
    assert (tmp_path / "x.txt").read_text() == "whole" and len(list(tmp_path.iterdir())) == 1


def test_a_folder_on_a_drive_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(os.path, "lexists", lambda path: False)
    with pytest.raises(InputError, match="is no folder"):
        check_folder(Path("Z:/somewhere"))


@pytest.mark.parametrize("name", ["CON", "nul", "com1.lp", "Aux.tar.gz"])
def test_a_safe_name_is_none_of_windows_devices(name):
    assert safe_name(name) == f"_{name}" and safe_name("con-exact") == "con-exact"


def test_a_row_longer_than_the_header_is_named_in_words(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4,5\n")
    with pytest.raises(InputError, match=r"t\.csv:3: row: got '3 cells'; expected 2 cells, as the header has"):
        read_frame(tmp_path / "t.csv")


def test_a_symbolic_link_is_not_written_through(tmp_path):
    target = tmp_path / "precious.txt"
    target.write_text("precious")
    (tmp_path / "link.txt").symlink_to(target)
    with pytest.raises(InputError):
        write_text(tmp_path / "link.txt", "overwritten")
    assert target.read_text() == "precious"


def test_new_folders_count_up(tmp_path):
    assert [new_folder(tmp_path / "r", "x").name for _ in range(3)] == ["x", "x-2", "x-3"]


@given(st.text(max_size=300))
def test_a_safe_name_is_one_plain_component(text):
    name = safe_name(text)
    assert name
    assert len(name) <= 80
    assert name not in (".", "..")
    assert not set(name) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert not name.startswith((".", "-"))


@pytest.mark.parametrize(
    "hostile", ["../../etc/passwd", "<script>alert(1)</script>", "/", "..", "", "\x00", "🙂", "-rf"]
)
def test_hostile_names_stay_inside(tmp_path, hostile):
    folder = new_folder(tmp_path, safe_name(hostile))
    assert folder.parent == tmp_path
    assert folder.is_dir()


def test_frames_by_ending(tmp_path):
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "ü"]})
    write_frame(tmp_path / "f.csv", frame)
    write_frame(tmp_path / "f.parquet", frame)
    assert pd.read_csv(tmp_path / "f.csv").equals(frame)
    assert pd.read_parquet(tmp_path / "f.parquet").equals(frame)
    with pytest.raises(InputError, match=r"csv or \.parquet"):
        write_frame(tmp_path / "f.xlsx", frame)
    with pytest.raises(InputError, match="existing"):
        write_frame(tmp_path / "f.csv", frame)


def test_bytes_are_bytes(tmp_path):
    write_bytes(tmp_path / "b", bytes(range(256)))
    assert (tmp_path / "b").read_bytes() == bytes(range(256))


@given(
    st.lists(
        st.tuples(
            st.floats(), st.integers(-(2**60), 2**60), st.booleans(),
            st.one_of(st.none(), st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r"), max_size=8)),
        ),
        min_size=1, max_size=5,
    )
)  # fmt: skip
def test_columns_are_written_as_a_data_frame_of_them_is(rows):
    floats, whole, flags, texts = zip(*rows, strict=True)
    columns = {"=a": np.array(floats), "b": np.array(whole), "c,d": np.array(flags), "e": list(texts)}
    assert csv_text(columns) == csv_text(data_frame(columns))


def test_rows_as_columns_leave_out_what_a_row_lacks():
    assert columns_of([{"a": 1, "b": 2.5}, {"c": "x", "a": 3}]) == {"a": [1, 3], "b": [2.5, None], "c": [None, "x"]}
    assert csv_text(columns_of([{"a": "x"}, {"b": "=y"}])) == "a,b\nx,\n,'=y\n"
