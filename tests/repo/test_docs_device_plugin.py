"""What the page on extended resources says is what the frontend does with the recorded desktop."""

from __future__ import annotations

import re
import tomllib

import anyio
import pytest
import yaml
from tutorial import ROOT, blocks

from hardpoint._core.offer.shares import Shares
from hardpoint._core.offline import look, sections
from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint.cel import Selector
from hardpoint.model import Offer
from hardpoint.node import Node
from hardpoint.recorded import open_machine
from hardpoint.settings import AgentSettings
from hardpoint_deviceplugin import DevicePlugin
from hardpoint_deviceplugin.resources import Arranger

pytestmark = pytest.mark.timeout(120)  # a recorded machine is thousands of files

PAGE = "howto/device-plugin.md"
TEXT = (ROOT / "docs" / PAGE).read_text()


@pytest.fixture(scope="module")
def desktop() -> Offer:
    with open_machine(ROOT / "tests/data/machines/desktop.tar.gz") as node:
        return anyio.run(look, node, AgentSettings()).offer


def loaded(text: str) -> tuple[AgentSettings, Plugin]:
    settings = AgentSettings.model_validate(tomllib.loads(text))
    record = Plugin("frontend", "deviceplugin", loaded=DevicePlugin)
    section = sections(settings, "frontend").get("deviceplugin", {})
    Plugins([record]).start(record, Node(name="docs"), section)
    return settings, record


@pytest.mark.parametrize("text", blocks(PAGE, "toml"))
def test_every_settings_file_of_the_page_is_taken(text: str) -> None:
    _, record = loaded(text)

    assert record.state == "running", record.reason


def test_resources_hold_what_the_page_says(desktop: Offer) -> None:
    (text,) = (text for text in blocks(PAGE, "toml") if "zigbee" in text)
    _, record = loaded(text)

    arranged = Arranger(record.instance.settings).arrange(desktop, ())

    said = re.search(r"Of the desktop (.+?)\.\n", TEXT)
    assert said is not None
    pairs = re.findall(r"`([^`]+)` holds `([^`]+)`", said[1])
    assert len(pairs) == len(arranged.resources) == 2
    for name, device in pairs:
        assert {one.offered.name for one in arranged.resources[name].entries} == {device}
    assert len(arranged.resources["example.com/render"].entries) == 10
    assert arranged.problems == {}


def test_names_of_kinds_are_those_of_the_page(desktop: Offer) -> None:
    (text,) = (text for text in blocks(PAGE, "toml") if "names =" in text)
    _, record = loaded(text)

    arranged = Arranger(record.instance.settings).arrange(desktop, ())

    assert set(arranged.resources) == {"example.com/audio", "hardpoint.dev/serial"}


def test_both_frontends_share_the_desktop_without_a_dispute(desktop: Offer) -> None:
    (text,) = (text for text in blocks(PAGE, "toml") if "without =" in text)
    settings, _ = loaded(text)
    shares = Shares.of(settings, ["dra", "deviceplugin"])
    shares.check()

    kept, disputed = shares.judge(desktop.devices)

    assert disputed == ()
    parts = [shares.view(name, desktop).devices for name in ("dra", "deviceplugin")]
    assert all(parts)
    assert sorted(one.name for part in parts for one in part) == [one.name for one in kept]


def test_the_class_that_stands_in_selects_the_same_stick(desktop: Offer) -> None:
    (text,) = (text for text in blocks(PAGE, "yaml") if "extendedResourceName" in text)
    spec = yaml.safe_load(text)["spec"]
    selector = Selector(spec["selectors"][0]["cel"]["expression"])

    assert spec["extendedResourceName"] == "example.com/zigbee"
    assert [one.name for one in desktop.devices if selector.matches(one)] == ["usb-1-1-1-0"]
