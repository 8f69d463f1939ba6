"""A second node, with a recorded machine and a third party's driver, installed from its wheel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import pods
from cluster.agent import ROOT, AgentProcess, agent_on
from cluster.boards import install
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import LIKEN, World

from hardpoint.testing.sysfs import FakeMachine

DOMAIN = "hardpoint.dev"
PAGE = ROOT / "docs/tutorials/first-driver.md"


def block(language: str, containing: str) -> str:
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return next(one for one in found if containing in one)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tutorial's driver, built as a wheel and installed where one agent looks."""
    source = tmp_path_factory.mktemp("acme")
    package = source / "src/acme_hardpoint_watchdog"
    package.mkdir(parents=True)
    (source / "pyproject.toml").write_text(block("toml", "entry-points"))
    (package / "__init__.py").write_text(block("python", "class Watchdogs:"))
    return install(source, source)


@pytest.fixture(scope="module")
def second(
    session_world: World, site: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AgentProcess]:
    """An agent on a second node, which has nothing but the stranger's device."""
    machine = FakeMachine(tmp_path_factory.mktemp("second"))
    timer = machine.platform("acme-wdt.0", driver="acme_wdt")
    timer.node("watchdog", "watchdog0", 248, 0, identity="Acme Timer")
    cluster, witness = session_world.cluster, session_world.witness
    cluster.add_node("n1")
    settings = {"HARDPOINT_DOMAIN": DOMAIN, "PYTHONPATH": str(site)}
    agent = agent_on(cluster, witness, "n1", settings, "--sysfs", str(machine.save()))
    agent.start()
    until("published", lambda: "watchdog0" in witness.devices(DOMAIN, "n1"))
    session_world.until_registered(agent)
    yield agent
    agent.stop()


def test_a_strangers_device_is_offered_allocated_and_delivered(
    world: World, second: AgentProcess, namespace: Namespace
) -> None:
    assert second.running
    world.witness.create(pods.device_class("watchdog", f"device.driver == '{DOMAIN}'"))
    namespace.create(pods.claim("timer", timer="watchdog"))
    namespace.create(pods.pod("p", {"timer": "timer"}))

    namespace.until_running("p")

    assert "248,   0" in namespace.run("p", "ls", "-l", "/dev/watchdog0")
    assert namespace.pod("p")["spec"]["nodeName"] == "n1"


def test_nodes_offer_nothing_of_each_others(world: World, second: AgentProcess) -> None:
    assert second.running

    assert world.witness.slices(DOMAIN, "n0") == []
    assert world.witness.slices(LIKEN, "n1") == []
