"""One cluster for the whole run, a namespace for each test. Where it cannot run, tests say why."""

from __future__ import annotations

import datetime
import gc
import os
import shutil
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.boards import Boards, boards_on
from cluster.granted import Granted, granted_on
from cluster.node import CannotRun, Cluster, check_machine, own_directory
from cluster.plugged import Plugged, plugged_on
from cluster.programs import release
from cluster.skipping import cannot
from cluster.turns import UnknownTurn, in_turn, wants_all
from cluster.witness import Namespace
from cluster.world import World

HERE = Path(__file__).parent
LOGS = HERE.parents[1] / "build/cluster-logs"
LINES = 30
"""Of each agent's log, shown with a failure."""


def pytest_configure(config: pytest.Config) -> None:
    """The official client leaves connections open that failed while a server restarted."""
    left = r"ignore:Exception ignored in. <ssl\.SSLSocket:pytest.PytestUnraisableExceptionWarning"
    config.addinivalue_line("filterwarnings", left)


@pytest.hookimpl(tryfirst=True)  # pytest looks for what was left open after this
def pytest_unconfigure() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        if item.path.is_relative_to(HERE) and names & {"world", "session_world"}:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(
                pytest.mark.timeout(1200, func_only=True)
            )  # only a hang is that slow; the first may wait for a build
    _keep_those_in_turn(config, items)


def _keep_those_in_turn(config: pytest.Config, items: list[pytest.Item]) -> None:
    try:
        if wants_all(os.environ) or config.getoption("lf", False):
            return  # what failed had its turn
    except UnknownTurn as error:
        raise pytest.UsageError(str(error)) from error
    all_of_them = {i.nodeid for i in items if i.get_closest_marker("cluster")}
    away = all_of_them - in_turn(all_of_them, datetime.date.today())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in away])
    items[:] = [item for item in items if item.nodeid not in away]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, Any]:
    """Show what the agents said last, where a test of the cluster has failed."""
    report = yield
    world = (getattr(item, "funcargs", None) or {}).get("session_world")
    if report.failed and isinstance(world, World):
        for log in sorted(world.cluster.logs.glob("*-agent.log")):
            last = log.read_text("utf-8", "replace").splitlines()[-LINES:]
            report.sections.append((log.name, "\n".join(last)))
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    try:
        check_machine()
    except CannotRun as error:
        cannot(str(error))
    with own_directory() as state:
        try:
            with Cluster.up(state, release(os.environ.get("KUBERNETES", ""))) as running:
                yield running
        finally:
            if (state / "logs").exists():
                shutil.rmtree(LOGS, ignore_errors=True)
                shutil.copytree(state / "logs", LOGS)


@pytest.fixture(scope="session")
def session_world(cluster: Cluster) -> Iterator[World]:
    made = World(cluster)
    yield made
    made.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def world(session_world: World) -> World:
    """The node, with all its devices there and all its programs running."""
    session_world.whole()
    return session_world


@pytest.fixture(scope="session")
def session_boards(
    session_world: World, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Boards]:
    with boards_on(session_world, tmp_path_factory.mktemp("boards")) as made:
        yield made


@pytest.fixture
def boards(world: World, session_boards: Boards) -> Boards:
    """A second node with a third party's boards, none of them taken or tainted."""
    session_boards.whole()
    return session_boards


@pytest.fixture(scope="session")
def session_plugged(
    session_world: World, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Plugged]:
    with plugged_on(session_world, tmp_path_factory.mktemp("plugged")) as made:
        yield made


@pytest.fixture
def plugged(world: World, session_plugged: Plugged) -> Plugged:
    """A node whose agent serves the device plugin API, with all its devices there."""
    session_plugged.whole()
    return session_plugged


@pytest.fixture(scope="session")
def session_granted(
    session_world: World, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Granted]:
    with granted_on(session_world, tmp_path_factory.mktemp("granted")) as made:
        yield made


@pytest.fixture
def granted(world: World, session_granted: Granted) -> Iterator[Granted]:
    """A node with GPUs of which nothing is granted yet; a test begins it with a frontend."""
    yield session_granted
    session_granted.agent.stop()  # it has the rights of the agent whose calls others count


@pytest.fixture
def modern(world: World) -> None:
    """For what older servers drop; test_node_old_servers shows what is done there."""
    if not world.modern:
        pytest.skip("before 1.36 the server drops taints, counters, shares and binding conditions")


@pytest.fixture
def namespace(world: World) -> Iterator[Namespace]:
    with world.namespace() as made:
        yield made
