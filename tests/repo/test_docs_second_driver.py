"""The second tutorial's driver, installed as a third party's package, does what the page says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from tutorial import ROOT, Tutorial, block

from hardpoint.errors import HoldDenied
from hardpoint.parameters import decode
from hardpoint.testing import DriverUnderTest, FakeMachine, hold_on

PAGE = "tutorials/second-driver.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Tutorial:
    site = Tutorial(PAGE, "acme_hardpoint_leds", tmp_path_factory.mktemp("acme"))
    site.add_contract()
    return site


@pytest.fixture(scope="module")
def leds(site: Tutorial) -> ModuleType:
    at = site.folder / "src/acme_hardpoint_leds/__init__.py"
    spec = importlib.util.spec_from_file_location("acme_hardpoint_leds", at)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(120)
def test_the_second_driver_keeps_the_contract_with_its_parameters(site: Tutorial) -> None:
    answer = site.run("pytest", "-v", "-p", "no:randomly", "-p", "no:cacheprovider", "tests")

    assert answer.returncode == 0, answer.stdout
    assert re.search(r"machine_as_it_was\[brightness=3\] PASSED", answer.stdout)
    assert re.search(r"cannot_be_read_costs_only_itself PASSED", answer.stdout)


@pytest.mark.timeout(120)
def test_the_page_shows_what_is_printed(site: Tutorial) -> None:
    shown = block(PAGE, "console", "--why led").partition("--why led\n")[2].splitlines()
    machine = str(ROOT / "tests/data/machines/minimal.tar.gz")

    answer = site.run("hardpoint.cli", "devices", "--sysfs", machine, "--why", "led")

    assert [line for line in answer.stdout.splitlines() if " leds " in line] == shown[1:]
    assert answer.stdout.splitlines()[0].split() == shown[0].split()


@pytest.mark.timeout(120)
def test_a_wrong_setting_refuses_the_driver_with_the_keys_that_exist(
    site: Tutorial, tmp_path: Path
) -> None:
    (tmp_path / "hardpoint.toml").write_text("[driver.leds]\nkept = []\n")

    answer = site.run("hardpoint.cli", "plugins", HARDPOINT_CONFIG=str(tmp_path / "hardpoint.toml"))

    assert re.search(r"leds +refused", answer.stdout)
    assert "the keys are keep" in answer.stdout


def test_a_claim_is_refused_in_the_pages_words(leds: ModuleType) -> None:
    sentence = block(PAGE, "", "unknown key").strip()
    where, _, _ = sentence.partition(": ")
    wrong = {"apiVersion": "hardpoint.dev/v1", "kind": "LedParameters", "brightnes": 3}

    with pytest.raises(HoldDenied, match=re.escape(sentence)):
        decode(leds.LedParameters, (wrong,), where=where)
    for words in ("apiVersion: hardpoint.dev/v1", "kind: LedParameters", "brightness: 3"):
        assert words in block(PAGE, "yaml", "opaque:")


def test_an_led_shines_as_asked_while_it_is_held(leds: ModuleType, machine: FakeMachine) -> None:
    lamp = machine.platform("gpio-leds").child(
        "leds/blue:status", klass="leds", brightness=40, max_brightness=255, trigger="[none] timer"
    )
    driver = DriverUnderTest(leds.Leds, machine.node(writable=True))
    (device,) = driver.scan().devices
    hold = hold_on(device)

    driver.prepare(device, hold, {"brightness": 7})
    assert (lamp.path / "brightness").read_text().strip() == "7"
    driver.unprepare(device, hold)

    assert (lamp.path / "brightness").read_text().strip() == "40"
    (mount,) = driver.deliver(device).mounts
    assert mount.host_path == str(lamp.path / "brightness")
    assert mount.container_path == "/leds/leds-blue-status"
