"""Small files that are there whole or not at all."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hardpoint import files


def test_a_file_is_made_whole_and_only_where_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a"

    files.create(path, b"one", mode=0o640)
    with pytest.raises(FileExistsError):
        files.create(path, b"two")

    assert path.read_bytes() == b"one"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["a"]


def test_a_link_that_leads_nowhere_is_in_the_way_of_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(FileExistsError):
        files.create(tmp_path / "a", b"one")

    assert not (tmp_path / "elsewhere").exists()


def test_so_much_of_a_file_is_read_and_nobody_waits_for_a_writer(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one two")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    os.mkfifo(tmp_path / "c")

    assert files.read(tmp_path / "a", 3) == b"one"
    assert files.read(tmp_path / "c", 3) == b""
    for name in ("b", "d", "."):
        with pytest.raises(OSError):  # noqa: PT011 - what the kernel calls it differs
            files.read(tmp_path / name, 3)


def test_of_several_who_make_one_file_one_does(tmp_path: Path) -> None:
    def make(number: int) -> bool:
        try:
            files.create(tmp_path / "a", str(number).encode() * 1000)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make, range(8)))

    assert made.count(True) == 1
    assert (tmp_path / "a").read_bytes() == str(made.index(True)).encode() * 1000
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_is_replaced_or_left_as_it_was(tmp_path: Path) -> None:
    path, temporary = tmp_path / "a", tmp_path / ".a.tmp"
    path.write_text("old")
    temporary.symlink_to(tmp_path / "elsewhere")

    files.replace(path, b"new", temporary=temporary)
    (tmp_path / "b").mkdir()
    with pytest.raises(IsADirectoryError):
        files.replace(tmp_path / "b", b"new", temporary=temporary)

    assert path.read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_what_is_not_there_or_no_file_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").mkdir()

    assert [files.remove(tmp_path / name) for name in ("a", "b", "c")] == [True, False, False]
    assert os.listdir(tmp_path) == ["b"]
