"""The walk finds what is wrong with a way of saving a file, and nothing wrong with a good one."""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hardpoint.testing import durable
from hardpoint.testing.durable import (
    DurableRun,
    Fail,
    Fault,
    Kill,
    Overlap,
    Reboot,
    heard,
    mended,
    resume,
    told,
    walk,
)

pytestmark = [
    pytest.mark.skipif(bool(durable.unsupported()), reason=durable.unsupported()),
    pytest.mark.timeout(60),
]

COLOURS = ("blue", "green")


class Saves(DurableRun):
    """Keeps a colour in a file: each subclass in another way."""

    watch = ("state",)

    def begin(self, root: Path) -> None:
        (root / "state").mkdir()
        (root / "state/colour").write_text("red")

    def save(self, path: Path, colour: str) -> None:
        path.write_text(colour)

    def work(self, root: Path) -> None:
        for colour in COLOURS:
            self.save(root / "state/colour", colour)
            told(root, colour)

    def look(self, root: Path) -> None:
        known = ["red", *(colour for (colour,) in heard(root))]
        found = (root / "state/colour").read_text()
        assert found in (known[-1], *COLOURS[len(known) - 1 :][:1]), f"{found!r} after {known}"


class InPlace(Saves):
    pass


class Renamed(Saves):
    def save(self, path: Path, colour: str) -> None:
        new = path.with_suffix(".new")
        new.write_text(colour)
        new.rename(path)


class FlushedFile(Saves):
    def save(self, path: Path, colour: str) -> None:
        new = path.with_suffix(".new")
        with new.open("w") as file:
            file.write(colour)
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)


class Flushed(FlushedFile):
    def save(self, path: Path, colour: str) -> None:
        super().save(path, colour)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(directory)
        os.close(directory)


class Insists(Flushed):
    """Tries again once, after there is room again."""

    def save(self, path: Path, colour: str) -> None:
        mended(path.parents[1])  # it may be said more than once
        try:
            super().save(path, colour)
        except OSError:
            mended(path.parents[1])
            super().save(path, colour)


class GivesUp(Flushed):
    restarts = 1

    def work(self, root: Path) -> None:
        try:
            super().work(root)
        except OSError as error:
            sys.exit(str(error))


class Breaks(Flushed):
    """Whoever starts it again does not mend an exception."""

    restarts = 1


class InDatabase(Saves):
    def begin(self, root: Path) -> None:
        (root / "state").mkdir()
        with closing(self._open(root)) as db, db:
            db.execute("CREATE TABLE colours (colour TEXT)")

    def _open(self, root: Path) -> sqlite3.Connection:
        db = sqlite3.connect(root / "state/colours.db")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        return db

    def work(self, root: Path) -> None:
        with closing(self._open(root)) as db:
            for colour in COLOURS:
                with db:
                    db.execute("INSERT INTO colours VALUES (?)", (colour,))
                told(root, colour)

    def look(self, root: Path) -> None:
        with closing(self._open(root)) as db:
            found = [colour for (colour,) in db.execute("SELECT colour FROM colours")]
        assert found[: len(heard(root))] == [colour for (colour,) in heard(root)]


async def test_a_good_way_of_saving_has_no_problem_at_any_step(tmp_path: Path) -> None:
    walked = walk(Flushed, tmp_path, Kill())

    assert [(step.call, step.path) for step in walked.steps[:6]] == [
        ("open", "state/colour.new"),
        ("write", "state/colour.new"),
        ("sync", "state/colour.new"),
        ("rename", "state/colour"),
        ("opendir", "state"),
        ("sync", "state"),
    ]
    assert (walked.steps[6].call, walked.steps[6].path) == ("reply", "told")
    assert (walked.rounds, walked.problems) == (len(walked.steps), ())


@pytest.mark.parametrize(
    ("run", "fault", "bad"),
    [
        (InPlace, Kill(), True),
        (Renamed, Kill(), False),
        (Renamed, Reboot(), True),
        (Renamed, Reboot(lost=False), False),
        (FlushedFile, Reboot(), True),
        (Flushed, Reboot(), False),
        (InDatabase, Kill(), False),
        (InDatabase, Reboot(), False),
        (Flushed, Fail(errno.ENOSPC), True),
        (Insists, Fail(errno.ENOSPC), False),
        (Insists, Fail(errno.EIO, lasts=True), False),
        (GivesUp, Fail(errno.EIO), False),
        (Breaks, Fail(errno.EIO), True),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
async def test_what_a_way_of_saving_survives(
    tmp_path: Path, run: type[DurableRun], fault: Fault, bad: bool
) -> None:
    walked = walk(run, tmp_path, fault)

    assert walked.rounds >= 6
    assert bool(walked.problems) is bad, walked.problems


async def test_a_problem_names_the_step_and_keeps_the_directory(tmp_path: Path) -> None:
    walked = walk(InPlace, tmp_path, Kill())

    where = next(path for path in tmp_path.iterdir() if str(path) in walked.problems[0])
    assert "write state/colour" in walked.problems[0]
    assert "'' after ['red']" in walked.problems[0]
    assert (where / "state/colour").read_text() == ""


async def test_a_sample_takes_each_sort_of_step_and_is_the_same_every_time(tmp_path: Path) -> None:
    whole = walk(Flushed, tmp_path / "a", Kill())
    some = walk(Flushed, tmp_path / "b", Kill(), sample=8)

    assert some.steps == whole.steps
    assert some.rounds == 8
    assert whole.rounds == len(whole.steps) > 8


# -- two processes --------------------------------------------------------------------------------


class Counts(DurableRun):
    """Two processes add one to a number, and take no lock."""

    watch = ("state",)

    def begin(self, root: Path) -> None:
        (root / "state").mkdir()
        (root / "state/number").write_text("0")

    def add(self, root: Path) -> None:
        number = int((root / "state/number").read_text())
        (root / "state/number").write_text(str(number + 1))

    def work(self, root: Path) -> None:
        self.add(root)
        told(root, "one")

    def beside(self, root: Path) -> None:
        resume(root)
        self.add(root)

    def look(self, root: Path) -> None:
        assert (root / "state/number").read_text() == "2"


class CountsByName(Counts):
    """They make a file each instead."""

    def begin(self, root: Path) -> None:
        (root / "state").mkdir()

    def add(self, root: Path) -> None:
        (root / "state" / str(os.getpid())).touch()

    def look(self, root: Path) -> None:
        assert len(list((root / "state").iterdir())) == 2


async def test_a_process_that_was_stopped_undoes_what_another_did(tmp_path: Path) -> None:
    assert walk(Counts, tmp_path / "a", Overlap()).problems
    assert not walk(CountsByName, tmp_path / "b", Overlap()).problems


# -- a service and the world around it ------------------------------------------------------------


class Serves(DurableRun):
    """A server that keeps what it is sent, and says so on a unix socket."""

    watch = ("state",)
    restarts = 1

    def begin(self, root: Path) -> None:
        (root / "state").mkdir()

    def work(self, root: Path) -> None:
        path = root / "state/socket"
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen()
            while True:
                with server.accept()[0] as caller:
                    word = caller.recv(100).decode()
                    self.keep(root / "state" / word)
                    caller.send(word.encode())

    def keep(self, path: Path) -> None:
        path.touch()

    def world(self, root: Path) -> None:
        for word in ("one", "two", "three"):
            while self.say(root / "state/socket", word) != word:
                pass
            told(root, word)

    def say(self, path: Path, word: str) -> str:
        with socket.socket(socket.AF_UNIX) as caller:
            try:
                caller.connect(str(path))
                caller.send(word.encode())
                return caller.recv(100).decode()
            except OSError:
                return ""

    def look(self, root: Path) -> None:
        kept = {path.name for path in (root / "state").iterdir()}
        assert {word for (word,) in heard(root)} == kept - {"socket"} == {"one", "two", "three"}


class Forgets(Serves):
    def keep(self, path: Path) -> None:
        if path.name != "two":
            path.touch()


async def test_a_service_is_started_again_while_the_world_goes_on(short_path: Path) -> None:
    walked = walk(Serves, short_path, Kill())

    assert ("reply", "state/socket") in {(step.call, step.path) for step in walked.steps}
    assert not walked.problems
    assert walked.rounds > 6
    assert walk(Forgets, short_path, Kill()).problems


# -- what it is made of ---------------------------------------------------------------------------


def _shell(root: Path) -> None:
    """Change files in every way there is, from another program too."""
    state = root / "state"
    (state / "a").write_text("a")
    os.link(state / "a", state / "b")
    os.symlink("a", state / "c")
    os.truncate(state / "a", 0)
    os.chmod(state / "a", 0o600)
    (state / "d").mkdir()
    (state / "d").rmdir()
    directory = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
    os.rename("b", "e", src_dir_fd=directory, dst_dir_fd=directory)
    os.unlink("e", dir_fd=directory)
    subprocess.run([sys.executable, "-c", f"open({str(state / 'f')!r}, 'w')"], check=True)


class Every(DurableRun):
    watch = ("state",)
    act: Callable[[Path], None] = staticmethod(_shell)

    def begin(self, root: Path) -> None:
        (root / "state").mkdir()

    def work(self, root: Path) -> None:
        self.act(root)


async def test_every_change_is_a_step_also_one_of_a_program_that_was_started(
    tmp_path: Path,
) -> None:
    walked = walk(Every, tmp_path, Kill(), sample=1)

    assert [(step.call, step.path.removeprefix("state/")) for step in walked.steps] == [
        ("open", "a"),
        ("write", "a"),
        ("link", "b"),
        ("link", "c"),
        ("truncate", "a"),
        ("chmod", "a"),
        ("mkdir", "d"),
        ("rmdir", "d"),
        ("opendir", "state"),
        ("rename", "e"),
        ("unlink", "e"),
        ("open", "f"),
    ]
