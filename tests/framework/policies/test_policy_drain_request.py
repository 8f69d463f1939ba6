"""The file that asks for a drain: whatever it is, it asks; only its directory says that it went."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from hardpoint.policies.drain.request import Request, read, remove, write
from hardpoint.policies.drain.settings import DrainSettings


def test_what_is_written_is_read(tmp_path: Path) -> None:
    asked = write(tmp_path / "drain", by="root", why="it moves")

    assert read(tmp_path / "drain") == asked
    assert (tmp_path / "drain").stat().st_mode & 0o777 == 0o600


def test_to_ask_twice_is_to_ask_once(tmp_path: Path) -> None:
    first = write(tmp_path / "drain", by="root", why="it moves")

    assert write(tmp_path / "drain", by="somebody", why="again") == first
    assert [one.name for one in tmp_path.iterdir()] == ["drain"]


def test_a_directory_is_made(tmp_path: Path) -> None:
    write(tmp_path / "new/state/drain", by="root", why="")

    assert (tmp_path / "new/state").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 4096, b"x" * 100_000, b"{", b"[]", b'{"id": 1}', b"\xff\xfe", b"[" * 4000],
    ids=["empty", "nul", "huge", "cut", "list", "few", "no text", "deep"],
)
def test_a_file_of_anything_asks(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "drain").write_bytes(content)

    found = read(tmp_path / "drain")

    assert found is not None
    assert (found.id, found.by, found.why) == ("", "", "")


def test_a_link_a_pipe_and_a_directory_ask_and_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()

    assert all(isinstance(read(one), Request) for one in tmp_path.iterdir())


def test_words_that_a_log_would_break_on_are_cleaned(tmp_path: Path) -> None:
    write(tmp_path / "drain", by="root\n2026 ERROR", why="\x1b[31m" + "x" * 500)

    found = read(tmp_path / "drain")

    assert found is not None
    assert found.by == "root 2026 ERROR"
    assert found.why.isprintable()
    assert len(found.why) <= 200


def test_a_missing_file_is_no_request_and_a_missing_directory_is_no_word(tmp_path: Path) -> None:
    assert read(tmp_path / "drain") is None
    for path in (tmp_path / "gone/drain", tmp_path / "file/drain"):
        (tmp_path / "file").touch()
        with pytest.raises(OSError, match=r"(gone|file)"):
            read(path)


def test_a_request_is_taken_back_once(tmp_path: Path) -> None:
    write(tmp_path / "drain", by="root", why="")

    assert remove(tmp_path / "drain")
    assert not remove(tmp_path / "drain")
    assert read(tmp_path / "drain") is None


def test_a_directory_is_not_said_to_have_been_taken_back(tmp_path: Path) -> None:
    (tmp_path / "drain").mkdir()

    with pytest.raises(OSError, match=r"is no file: remove it"):
        remove(tmp_path / "drain")


@pytest.mark.parametrize("since", ["NaN", "1e999", "-1e400", "1" + "0" * 400])
def test_a_time_that_is_none_is_that_of_the_file(tmp_path: Path, since: str) -> None:
    words = f'{{"id": "a", "by": "b", "why": "c", "since": {since}}}'
    (tmp_path / "drain").write_text(words)

    found = read(tmp_path / "drain")

    assert found is not None
    assert found.since == (tmp_path / "drain").stat().st_mtime


@pytest.mark.parametrize(
    "wrong", [{"request_file": "relative"}, {"prefix": ""}, {"longest_grace_s": 0}, {"cordn": True}]
)
def test_a_setting_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DrainSettings.model_validate(wrong)
