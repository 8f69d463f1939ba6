"""What changed in a directory is learned at once, whatever becomes of the directory."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from hardpoint import inotify


class Seen:
    """Counts the calls, and lets a test wait for another one."""

    def __init__(self) -> None:
        self.calls = 0
        self._again = anyio.Event()

    def __call__(self) -> None:
        self.calls += 1
        again, self._again = self._again, anyio.Event()
        again.set()

    async def after(self, act: Callable[[], Any]) -> None:
        """Do something, and wait until that has been told of."""
        await self.quiet()
        before = self.calls
        act()
        with anyio.fail_after(15):
            while self.calls == before:
                await self._again.wait()

    async def quiet(self) -> None:
        """Wait until what has happened was told of."""
        for _ in range(100):
            before = self.calls
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            if self.calls == before:
                return


@contextmanager
def refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A kernel whose limit of watches is reached (fs.inotify.max_user_instances)."""

    class Libc:
        def inotify_init1(self, flags: int) -> int:
            ctypes.set_errno(errno.EMFILE)
            return -1

    with monkeypatch.context() as patch:
        patch.setattr("hardpoint.inotify.ctypes.CDLL", lambda *a, **k: Libc())
        patch.setattr("hardpoint.inotify.POLL", 0.01)
        yield


@asynccontextmanager
async def watching(directory: Path) -> AsyncIterator[Seen]:
    seen = Seen()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(inotify.watch, directory, seen)
        with anyio.fail_after(10):
            while not seen.calls:
                await seen._again.wait()
        yield seen
        tasks.cancel_scope.cancel()


@pytest.fixture(params=["told by the kernel", "by looking"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "by looking":
        with refused(monkeypatch):
            yield
    else:
        yield


@pytest.mark.usefixtures("kernel")
async def test_files_that_come_change_and_go_are_told_of(tmp_path: Path) -> None:
    file, other = tmp_path / "a", tmp_path / "b"
    async with watching(tmp_path) as seen:
        await seen.after(lambda: file.write_text("1"))
        await seen.after(lambda: file.write_text("22"))
        await seen.after(lambda: file.rename(other))
        await seen.after(lambda: file.hardlink_to(other))
        await seen.after(lambda: file.chmod(0o600))
        await seen.after(other.unlink)


@pytest.mark.usefixtures("kernel")
async def test_a_directory_that_appears_later_is_watched(tmp_path: Path) -> None:
    directory = tmp_path / "late"
    async with watching(directory) as seen:
        await seen.after(directory.mkdir)
        await seen.after(lambda: (directory / "a").write_text("1"))


@pytest.mark.usefixtures("kernel")
async def test_a_directory_that_is_replaced_is_watched_on(tmp_path: Path) -> None:
    directory, away = tmp_path / "here", tmp_path / "away"
    directory.mkdir()

    def swap() -> None:
        directory.rename(away)
        directory.mkdir()

    async with watching(directory) as seen:
        await seen.after(swap)
        await seen.after(lambda: (directory / "a").write_text("1"))


@pytest.mark.usefixtures("kernel")
async def test_a_directory_that_is_removed_is_told_of_and_looked_for(tmp_path: Path) -> None:
    directory = tmp_path / "here"
    directory.mkdir()
    async with watching(directory) as seen:
        await seen.after(directory.rmdir)
        await seen.after(directory.mkdir)
        await seen.after(lambda: (directory / "a").write_text("1"))


async def test_of_what_stands_over_a_directory_nobody_tells_and_it_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a link to another one does, or a mount."""
    monkeypatch.setattr("hardpoint.inotify._IDENTITY", 0.01)
    one, other, link = tmp_path / "1", tmp_path / "2", tmp_path / "link"
    one.mkdir()
    other.mkdir()
    link.symlink_to(one)

    def point() -> None:
        link.unlink()
        link.symlink_to(other)

    async with watching(link) as seen:
        await seen.after(point)
        await seen.after(lambda: (other / "a").write_text("1"))


async def test_watching_keeps_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        async with watching(tmp_path):
            assert len(os.listdir("/proc/self/fd")) >= before

    assert len(os.listdir("/proc/self/fd")) == before
