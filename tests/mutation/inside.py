"""Changes of modules, each in a fork of a process that has collected its tests.

The tests are run once unchanged, to learn which of them run which lines and how long each takes. A
change is then shown to those alone that run its statement, the quickest first, until one fails.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage
import pytest
from mutation.changes import Change
from mutation.live import take_effect

CLEAN, TOO_SLOW, FAILED, NO_EFFECT = 0, 1, 3, 4
"""How a fork ends; ``faulthandler`` ends a process with 1."""
KILLED, SLOW, SURVIVED, UNCOVERED, NOT_MADE = (
    "killed",
    "timed out",
    "survived",
    "run by no test",
    "not made",
)
TIMES, AT_LEAST = 8.0, 4.0
"""A test may take so many times as long as it did, and so many seconds."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One change of one module."""

    path: Path
    change: Change


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a change."""

    tried: Tried
    ending: str
    seconds: float
    by: str = ""
    """The test that noticed it."""


@dataclass(slots=True)
class _Running:
    tried: Tried
    began: float
    home: Path


class Forks:
    """A pytest plugin that tries changes in place of running the tests."""

    def __init__(
        self,
        picked: Sequence[Tried],
        sources: dict[Path, str],
        jobs: int,
        told: Callable[[Fate], None],
    ) -> None:
        self._picked, self._sources = picked, sources
        self._jobs, self._told = jobs, told
        self._home = Path(tempfile.mkdtemp(prefix="hpm"))
        self._took: dict[str, float] = {}
        self._runs: dict[tuple[str, int], set[str]] = {}
        self.fates: list[Fate] = []
        self.why = ""
        """Why nothing could be tried."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        try:
            self._measure(session)
            if not self.why:
                self._try_all(session)
        finally:
            shutil.rmtree(self._home, ignore_errors=True)
        return True

    # -- unchanged --------------------------------------------------------------------------------

    def _measure(self, session: pytest.Session) -> None:
        """Run every test, in a fork: this process stays as it was after collecting."""
        if session.testsfailed:
            self.why = "not every test can be collected"
            return
        answer = self._home / "clean.json"
        if not (pid := os.fork()):
            _leave(lambda: self._measured(session, answer))
        os.waitpid(pid, 0)
        if not answer.exists():
            self.why = "the unchanged tests end the process"
            return
        said = json.loads(answer.read_text())
        self._took = said["took"]
        self._runs = {
            (path, int(line)): {one for one in ids if one}
            for path, lines in said["runs"].items()
            for line, ids in lines.items()
        }
        if said["failed"]:
            self.why = "unchanged, these fail: " + ", ".join(said["failed"])
        elif not session.items:
            self.why = "there is no test"

    def _measured(self, session: pytest.Session, answer: Path) -> int:
        _settle(session, self._home / "clean")
        seen = coverage.Coverage(
            data_file=None, config_file=False, include=[str(path) for path in self._sources]
        )
        took: dict[str, float] = {}
        watch = _Watch()
        session.config.pluginmanager.register(watch)
        seen.start()
        for item, after in _pairs(session.items):
            seen.switch_context(item.nodeid)
            began = time.monotonic()
            _run(item, after)
            took[item.nodeid] = time.monotonic() - began
        seen.stop()
        runs = {str(path): seen.get_data().contexts_by_lineno(str(path)) for path in self._sources}
        said = {"took": took, "runs": runs, "failed": watch.failed}
        answer.write_text(json.dumps(said))
        return CLEAN

    # -- changed ----------------------------------------------------------------------------------

    def _try_all(self, session: pytest.Session) -> None:
        left, running = deque(self._picked), dict[int, _Running]()
        while left or running:
            if left and len(running) < self._jobs:
                self._start(session, left.popleft(), running)
            else:
                self._wait(running)

    def _start(self, session: pytest.Session, tried: Tried, running: dict[int, _Running]) -> None:
        change, path = tried.change, str(tried.path)
        ids = set[str]().union(*(self._runs.get((path, line), set()) for line in change.lines))
        if change.kind == "own":
            ids = set(self._took)
        tests = sorted(
            (one for one in session.items if one.nodeid in ids), key=lambda i: self._took[i.nodeid]
        )
        if not tests:
            self._end(Fate(tried, UNCOVERED, 0.0))
            return
        home = Path(tempfile.mkdtemp(dir=self._home))
        if not (pid := os.fork()):
            _leave(lambda: self._tried(session, tried, tests, home))
        running[pid] = _Running(tried, time.monotonic(), home)

    def _tried(
        self, session: pytest.Session, tried: Tried, tests: list[pytest.Item], home: Path
    ) -> int:
        _settle(session, home)
        if not take_effect(tried.path, self._sources[tried.path], tried.change):
            return NO_EFFECT
        session.config.pluginmanager.register(_Watch(home / "failed"))
        for item, after in _pairs(tests):
            limit = max(AT_LEAST, TIMES * self._took[item.nodeid])
            (home / "failed").write_text(item.nodeid)
            faulthandler.dump_traceback_later(limit, exit=True)
            _run(item, after)
            faulthandler.cancel_dump_traceback_later()
        return CLEAN

    def _wait(self, running: dict[int, _Running]) -> None:
        pid, status = os.wait()
        one = running.pop(pid, None)
        if one is None:
            return
        _end_group(pid)
        code = os.waitstatus_to_exitcode(status)
        noted = one.home / "failed"
        by = noted.read_text() if noted.exists() and code not in (CLEAN, NO_EFFECT) else ""
        ending = {CLEAN: SURVIVED, TOO_SLOW: SLOW, NO_EFFECT: NOT_MADE}.get(code, KILLED)
        shutil.rmtree(one.home, ignore_errors=True)
        self._end(Fate(one.tried, ending, time.monotonic() - one.began, by))

    def _end(self, fate: Fate) -> None:
        self.fates.append(fate)
        self._told(fate)


class _Watch:
    """Notes which test fails; given a file, ends the process there."""

    def __init__(self, note: Path | None = None) -> None:
        self.failed: list[str] = []
        self._note = note

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
            if self._note is not None:
                os._exit(FAILED)


def _settle(session: pytest.Session, home: Path) -> None:
    """Give a fork a group and directories of its own, and nobody to talk to."""
    os.setsid()
    home.mkdir(exist_ok=True)
    tempfile.tempdir = str(home)
    factory: Any = session.config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = home / "t"
    factory._basetemp.mkdir()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def _pairs(items: Sequence[pytest.Item]) -> list[tuple[pytest.Item, pytest.Item | None]]:
    return list(zip(items, [*items[1:], None], strict=True))


def _run(item: pytest.Item, after: pytest.Item | None) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)


def _leave(work: Callable[[], int]) -> None:
    """Do the work of a fork, and never return from it."""
    code = FAILED
    try:
        code = work()
    finally:
        os._exit(code)


def _end_group(pid: int) -> None:
    """End what a fork has started and left."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
