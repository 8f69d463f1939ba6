"""The tutorial's driver, built and installed as a third party's package, does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hardpoint.testing.sysfs import FakeMachine

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorials/first-driver.md").read_text()


def _block(language: str, containing: str) -> str:
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return next(block for block in blocks if containing in block)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the page, installed where only this test sees it."""
    source = tmp_path_factory.mktemp("acme")
    package = source / "src/acme_hardpoint_watchdog"
    package.mkdir(parents=True)
    (source / "pyproject.toml").write_text(_block("toml", "entry-points"))
    (package / "__init__.py").write_text(_block("python", "class Watchdogs:"))
    (source / "tests").mkdir()
    (source / "tests/test_contract.py").write_text(_block("python", "DriverContract"))
    target = source / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    subprocess.run([*install, *options, str(source)], check=True)
    return source


def _run(site: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site / "site"), "PYTHONWARNINGS": "default"}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=site, env=environment, capture_output=True, text=True
    )


@pytest.mark.timeout(120)
def test_the_tutorials_driver_is_found_and_lists_its_device(site: Path, tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    timer = machine.platform("acme-wdt.0", driver="acme_wdt")
    timer.node("watchdog", "watchdog0", 248, 0, identity="Acme Timer")
    machine.save()

    plugins = _run(site, "hardpoint.cli", "plugins")
    devices = _run(site, "hardpoint.cli", "devices", "--sysfs", str(tmp_path), "watchdog0")

    assert re.search(r"driver +watchdog +running +acme-hardpoint-watchdog 0.1.0", plugins.stdout)
    assert devices.returncode == 0, devices.stderr
    assert "identity = 'Acme Timer'" in devices.stdout
    assert "/dev/watchdog0" in devices.stdout


@pytest.mark.timeout(120)
def test_the_tutorials_driver_keeps_the_contract(site: Path) -> None:
    answer = _run(site, "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "tests")

    assert answer.returncode == 0, answer.stdout
    assert re.search(r"\d+ passed", answer.stdout)
