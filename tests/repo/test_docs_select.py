"""The selectors of the how-to page, asked about the recorded desktop, select what the page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import anyio
import pytest
import yaml
from tutorial import ROOT, block, blocks

from hardpoint._core.offline import look
from hardpoint.quantity import amount
from hardpoint.settings import AgentSettings
from hardpoint.testing import FakeMachine

pytestmark = pytest.mark.timeout(120)  # a recorded machine is thousands of files

PAGE = "howto/select.md"
TEXT = (ROOT / "docs" / PAGE).read_text()
SAID = re.findall(r"^Of the desktop this selects (.+)\.$", TEXT, re.MULTILINE)

_READ = r'device\.(attributes|capacity)\["([^"]+)"\]\.(\w+)'
_HAS = re.compile(rf"has\({_READ}\)")
_EQUALS = re.compile(rf'{_READ} == "([^"]*)"')
_AT_LEAST = re.compile(rf'{_READ}\.compareTo\(quantity\("([^"]+)"\)\) >= 0')
_DRIVER = re.compile(r'device\.driver == "([^"]+)"')


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Devices of the desktop's slice by name, with the page's rule in force."""
    settings = tmp_path_factory.mktemp("settings") / "hardpoint.toml"
    settings.write_text(block(PAGE, "toml", "allow"))
    machine = ROOT / "tests/data/machines/desktop.tar.gz"
    words = ["-m", "hardpoint.cli", "slice", "--config", str(settings), "--sysfs", str(machine)]
    answer = subprocess.run(
        [sys.executable, *words], env=os.environ, capture_output=True, text=True, check=True
    )
    slices = list(yaml.safe_load_all(answer.stdout))
    return {device["name"]: device for one in slices for device in one["spec"]["devices"]}


def _objects() -> list[dict[str, Any]]:
    texts = [text for text in blocks(PAGE, "yaml") if text.startswith("apiVersion")]
    return [each for text in texts for each in yaml.safe_load_all(text)]


def _expressions(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["expression"]] if "expression" in value else []
        return own + [e for each in value.values() for e in _expressions(each)]
    return [e for each in value for e in _expressions(each)] if isinstance(value, list) else []


def _selects(device: dict[str, Any], expression: str) -> bool:
    """Evaluate what the page uses of CEL; an attribute that is read and not there is an error."""
    return all(_is_true(device, term.strip()) for term in expression.split("&&"))


def _is_true(device: dict[str, Any], term: str) -> bool:
    if found := _DRIVER.fullmatch(term):
        return found[1] == "hardpoint.dev"
    if found := _HAS.fullmatch(term):
        return _name(found) in device.get(found[1], {})
    if found := _EQUALS.fullmatch(term):
        (value,) = device[found[1]][_name(found)].values()
        return bool(value == found[4])
    found = _AT_LEAST.fullmatch(term)
    assert found, f"the page says what this test cannot evaluate: {term}"
    return amount(device[found[1]][_name(found)]["value"]) >= amount(found[4])


def _name(found: re.Match[str]) -> str:
    return found[3] if found[2] == "hardpoint.dev" else f"{found[2]}/{found[3]}"


def test_every_selector_selects_what_the_page_says(offered: dict[str, dict[str, Any]]) -> None:
    expressions = _expressions(_objects())

    assert len(expressions) == len(SAID) > 3
    for expression, said in zip(expressions, SAID, strict=True):
        selected = {name for name, device in offered.items() if _selects(device, expression)}
        assert selected == set(re.findall(r"`([^`]+)`", said)), expression


def test_every_attribute_that_is_read_is_guarded() -> None:
    for expression in _expressions(_objects()):
        terms = [term.strip() for term in expression.split("&&")]
        assert _DRIVER.fullmatch(terms[0])
        guarded: set[str] = set()
        for term in terms[1:]:
            if found := _HAS.fullmatch(term):
                guarded.add(_name(found))
            elif found := re.match(_READ, term):
                assert _name(found) in guarded, term


def test_render_and_display_of_one_card_agree_in_the_constraint(
    offered: dict[str, dict[str, Any]],
) -> None:
    (claim,) = (o for o in _objects() if o["metadata"]["name"] == "kiosk")
    (constraint,) = claim["spec"]["devices"]["constraints"]
    classes = {o["metadata"]["name"]: _expressions(o)[0] for o in _objects() if _expressions(o)}
    chosen = [
        [
            (name, device["attributes"][constraint["matchAttribute"]])
            for name, device in offered.items()
            if _selects(device, classes[request["exactly"]["deviceClassName"]])
        ]
        for request in claim["spec"]["devices"]["requests"]
    ]

    pairs = [(a, b) for a, here in chosen[0] for b, there in chosen[1] if here == there]

    assert pairs == [("pci-0000-00-01-0", "pci-0000-00-01-0-display")]
    assert "can only be `pci-0000-00-01-0` and `pci-0000-00-01-0-display`" in TEXT


def test_a_disk_says_its_controllers_ids(offered: dict[str, dict[str, Any]]) -> None:
    facts = offered["pci-0000-00-09-0-scsi-0-0-0-0"]["attributes"]

    assert facts["vendor"]["string"] == "1af4"
    assert facts["product"]["string"] == "1004"
    assert facts["model"]["string"] == "Disk 7200"


def test_the_pages_parameters_are_the_drivers() -> None:
    from hardpoint.parameters import decode
    from hardpoint_usb import Usb

    text = block(PAGE, "yaml", "opaque:")
    (config,) = yaml.safe_load(text)["config"]

    assert decode(Usb.Parameters, (config["opaque"]["parameters"],), where="x") == Usb.Parameters(
        usbfs=False
    )


def test_every_kind_of_the_recorded_machines_is_on_its_page() -> None:
    rows = _kinds()
    for golden in (ROOT / "tests/golden").glob("*.json"):
        for device in json.loads(golden.read_text())["devices"]:
            shared, capacities = rows[device["driver"], device["kind"]]
            assert shared == device["shareable"], device["kind"]
            assert set(device["capacity"]) <= capacities, device["kind"]


def test_every_capacity_of_disks_is_on_its_page(machine: FakeMachine) -> None:
    """Disks are in no recorded answer: they are offered only where a rule allows it."""
    sata = machine.pci("0000:00:1f.2", klass="010601", driver="ahci").ata(1)
    sata.disk("sda", 8, 0, size=1024)
    gpu = machine.pci("0000:0a:00.0", klass="030000", driver="amdgpu", mem_info_vram_total=1 << 30)
    gpu.drm(card=0, render=128)
    settings = AgentSettings.model_validate(
        {"rules": [{"action": "allow", "where": {"blockNode": True}}]}
    )

    offer = anyio.run(look, machine.node(), settings).offer

    found = {(o.device.driver, o.device.kind): set(o.device.capacity) for o in offer.devices}
    assert found["pci_drm", "disk"] == _kinds()["pci_drm", "disk"][1] == {"size"}
    assert found["pci_drm", "drm.render"] == _kinds()["pci_drm", "drm.render"][1] == {"memory"}


def test_every_kind_that_drivers_name_is_on_its_page() -> None:
    from hardpoint_pci_drm.shapes import KINDS
    from hardpoint_usb.judge import ADAPTER, KIND

    named = {driver: {k for d, k in _kinds() if d == driver} for driver in ("pci_drm", "usb")}
    assert named["pci_drm"] >= {*KINDS.values(), "drm.render", "mixed", "disk", "tape", "changer"}
    assert named["usb"] == {KIND, ADAPTER}


def _kinds() -> dict[tuple[str, str], tuple[bool, set[str]]]:
    """Return the page's rows: driver and kind, to whether it is shared and its capacities."""
    rows: dict[tuple[str, str], tuple[bool, set[str]]] = {}
    text = (ROOT / "docs/reference/kinds.md").read_text()
    for section in text.split("\n## Driver ")[1:]:
        driver = section.split("\n")[0]
        for line in re.findall(r"^\| (`.+) \|$", section, re.MULTILINE):
            kinds, _, shared, capacity = (cell.strip() for cell in line.split("|"))
            for kind in re.findall(r"`([^`]+)`", kinds):
                rows[driver, kind] = (shared == "yes", set(re.findall(r"`([^`]+)`", capacity)))
    return rows
