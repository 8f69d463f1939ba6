"""The tutorial's driver, built and installed as a third party's package, does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tutorial import ROOT, Tutorial, block

from hardpoint.testing import FakeMachine

PAGE = "tutorials/first-driver.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Tutorial:
    """The package of the page, installed where only this test sees it."""
    site = Tutorial(PAGE, "acme_hardpoint_watchdog", tmp_path_factory.mktemp("acme"))
    site.add_contract()
    return site


@pytest.mark.timeout(120)
def test_the_tutorials_driver_is_found_and_lists_its_device(site: Tutorial, tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    timer = machine.platform("acme-wdt.0", driver="acme_wdt")
    timer.node("watchdog", "watchdog0", 248, 0, identity="Acme Timer")
    machine.save()

    plugins = site.run("hardpoint.cli", "plugins")
    devices = site.run("hardpoint.cli", "devices", "--sysfs", str(tmp_path), "watchdog0")

    assert re.search(r"driver +watchdog +running +acme-hardpoint-watchdog 0.1.0", plugins.stdout)
    assert devices.returncode == 0, devices.stderr
    assert "identity = 'Acme Timer'" in devices.stdout
    assert "/dev/watchdog0" in devices.stdout


@pytest.mark.timeout(120)
def test_the_tutorials_driver_keeps_the_contract(site: Tutorial) -> None:
    answer = site.run("pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "tests")

    assert answer.returncode == 0, answer.stdout
    assert re.search(r"\d+ passed", answer.stdout)


@pytest.mark.timeout(120)
def test_the_first_tutorial_shows_what_is_printed(site: Tutorial) -> None:
    """Of the recorded desktop: the plugins, the devices, and the two names of one node."""
    machine = str(ROOT / "tests/data/machines/desktop.tar.gz")
    look = ("hardpoint.cli", "devices", "--sysfs", machine)
    answers = [site.run("hardpoint.cli", "plugins"), site.run(*look), site.run(*look, "watchdog1")]

    printed = [line.split() for answer in answers for line in answer.stdout.splitlines()]
    shown = [*_output("hardpoint plugins"), *_output("hardpoint devices")]
    assert ["watchdog1", "watchdog", "/dev/watchdog1"] in shown
    assert ["part", "char:245:1", "(exclusive)"] in shown
    for row in shown:
        assert row in printed


def _output(command: str) -> list[list[str]]:
    """Return the words of each line that the page shows as printed."""
    lines = block(PAGE, "console", command).splitlines()
    return [line.split() for line in lines if not line.startswith(("$", "…"))]
