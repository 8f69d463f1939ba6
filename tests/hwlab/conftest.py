"""Runs these tests inside virtual machines, one boot for all tests of a machine.

Outside, a test is not run: its machine is booted with the first that needs it, the same test runs
there, and what the guest's pytest reports of it is reported here. Inside, tests are tests.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hwlab.boots import BOOTS, UnknownMachine, chosen
from hwlab.lab import Guest, NoLab, booted, find

HERE = Path(__file__).parent
INSIDE = os.environ.get("HWLAB") == "1"
BOOT = os.environ.get("HARDPOINT_HWLAB_BOOT", os.environ.get("HWLAB_PROFILE", ""))
"""The machine that this is, inside."""

_LAB = pytest.StashKey["Lab"]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "boots(*names): the machines of the lab that it runs on")
    if INSIDE:
        config.pluginmanager.register(Told(config), "hwlab-told")


def pytest_report_header() -> str:
    return f"machines of the lab: {' '.join(_wanted())}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "boot" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("boots")
        names = mark.args if mark and mark.args else tuple(BOOTS)
        metafunc.parametrize("boot", names, scope="session")


def _boot_of(item: pytest.Item) -> str:
    """Return the machine that a test runs on; ``""`` for one that needs none."""
    call = getattr(item, "callspec", None)
    here = item.path.is_relative_to(HERE) and call is not None
    return str(call.params.get("boot", "")) if here and call else ""


def pytest_itemcollected(item: pytest.Item) -> None:
    if _boot_of(item):
        item.add_marker(pytest.mark.hwlab)
        item.add_marker(pytest.mark.timeout(1200 if INSIDE else 0))


@pytest.hookimpl(trylast=True)  # after they were shuffled
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the machines that have their turn, and those of one machine together.

    First what is to see the machine as it has booted.
    """
    if not any(map(_boot_of, items)):
        return
    wanted = _wanted()
    others = [item for item in items if _boot_of(item) not in {"", *wanted}]
    if others:
        config.hook.pytest_deselected(items=others)
    turns = {"": -1} | {name: turn for turn, name in enumerate(wanted)}
    kept = [item for item in items if _boot_of(item) in turns]
    items[:] = sorted(kept, key=lambda item: (turns[_boot_of(item)], _is_late(item)))


def _wanted() -> tuple[str, ...]:
    if INSIDE:
        return (BOOT,)
    try:
        return chosen(os.environ, datetime.date.today())
    except UnknownMachine as error:
        raise pytest.UsageError(str(error)) from error


def _is_late(item: pytest.Item) -> bool:
    return bool(_boot_of(item)) and item.path.name != "test_lab_every.py"


# -- outside --------------------------------------------------------------------------------------


class Lab:
    """The machine that runs at this moment, if one does."""

    def __init__(self) -> None:
        self._exits = ExitStack()
        self._guest: Guest | None = None

    def guest(self, item: pytest.Item) -> Guest:
        """Return the machine of a test, booted with all tests of this run that are its own.

        Raises ``NoLab``.
        """
        name = _boot_of(item)
        if self._guest is None or self._guest.boot.name != name:
            self.close()
            nodeids = [one.nodeid for one in item.session.items if _boot_of(one) == name]
            first = nodeids.index(item.nodeid)
            guest = booted(find(), BOOTS[name], nodeids[first:])
            self._guest = self._exits.enter_context(guest)
        return self._guest

    def close(self) -> None:
        """End it."""
        self._guest = None
        self._exits.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    if INSIDE or not _boot_of(item):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _reports(item: pytest.Item) -> Iterator[pytest.TestReport]:
    lab = item.config.stash.setdefault(_LAB, Lab())
    try:
        guest = lab.guest(item)
    except NoLab as error:
        must = os.environ.get("HARDPOINT_CI") == "1"
        yield _said(item, f"HARDPOINT_CI=1, and {error}" if must else str(error), skip=not must)
        return
    found = guest.reports(item.nodeid)
    if not found:
        yield _said(item, guest.why())
    for data in found:
        revive = item.config.hook.pytest_report_from_serializable
        yield revive(config=item.config, data=data)


def _said(item: pytest.Item, why: str, *, skip: bool = False) -> pytest.TestReport:
    path, line, _ = item.location
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="skipped" if skip else "failed",
        longrepr=(path, line or 0, f"Skipped: {why}") if skip else why,
        when="call",
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    lab = session.config.stash.get(_LAB, None)
    if lab is not None:
        lab.close()


# -- inside ---------------------------------------------------------------------------------------


class Told:
    """Writes each report where the pytest outside reads it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        logs = os.environ.get("HARDPOINT_HWLAB_LOGS", "")
        self._file = Path(logs, "reports.jsonl") if logs else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        import json

        serial = self._config.hook.pytest_report_to_serializable
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps(serial(config=self._config, report=report)) + "\n")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """One loop for the whole boot: the agent of it serves all tests."""
    return "asyncio"


@pytest.fixture(scope="session")
async def session_live(boot: str, anyio_backend: Any) -> AsyncIterator[Any]:
    """The agent on this machine, from the first test to the last."""
    from hwlab.live import living

    async with living(boot) as node:
        yield node


@pytest.fixture
def settings() -> str:
    """The agent's settings, in TOML; a module may have others."""
    return ""


@pytest.fixture
async def live(session_live: Any, settings: str) -> AsyncIterator[Any]:
    """The agent, with all that a test claimed given back and plugged in again after it."""
    await session_live.begin(settings)
    yield session_live
    await session_live.end()
