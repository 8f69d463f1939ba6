"""With the domain set to liken.sh, a machine like the guide's is offered and delivered as the guide
says: name for name, attribute for attribute, node for node.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import yaml
from e2e_node import ADAPTER, DISPLAY, I2C, LIKEN, NODE, RENDER, EndToEnd

from hardpoint.testing.kubelet import PodFailed

MODALIAS = "pci:v00008086d000046D2sv00001028sd00000B0Dbc03sc00i00"
CARD: dict[str, Any] = {
    "address": "0000:00:02.0",
    "bus": "pci",
    "class": "display",
    "classCode": "030000",
    "driver": "i915",
    "modalias": MODALIAS,
    "name": "Alder Lake-N [UHD Graphics]",
    "product": "46d2",
    "resource.kubernetes.io/pciBusID": "0000:00:02.0",
    "vendor": "8086",
}
GUIDE: dict[str, dict[str, Any]] = {
    RENDER: CARD | {"renderNode": True, "subsystem": "drm"},
    DISPLAY: CARD | {"displayNode": True, "subsystem": "drm"},
    I2C: CARD | {"subsystem": "i2c-dev"},
}
"""The three devices of the guide, with every attribute that it shows."""

BEYOND = {
    "kind",  # the sort of thing, in one word: drm.render
    "resource.kubernetes.io/pcieRoot",  # pairs devices below one PCIe root complex
    "subsystemVendor",  # the board's maker and model, which vendor and product do not say
    "subsystemDevice",
    "revision",
}
"""What is published beside it, in `hardpoint attributes` and docs/reference/attributes."""

ADAPTER_GUIDE = {
    "address": "1-8:1.0",
    "bus": "usb",
    "classCode": "ff",
    "driver": "cp210x",
    "name": "Silicon Labs CP2102N",
    "product": "ea60",
    "serial": "0001",
    "subsystem": "tty",
    "vendor": "10c4",
}


def hardpoint(node: EndToEnd, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "hardpoint.cli", *words, "--sysfs", str(node.machine.save())],
        env={"PATH": os.environ["PATH"]} | node.environment,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def values(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return attributes of a slice as plain values: each is under its type's name."""
    return {name: next(iter(typed.values())) for name, typed in attributes.items()}


# -- what is offered ------------------------------------------------------------------------------


async def test_devices_as_json_are_the_guides_three_and_the_adapter(node: EndToEnd) -> None:
    found = {
        one["name"]: one for one in json.loads(hardpoint(node, "devices", "--json"))["devices"]
    }

    assert set(found) == {*GUIDE, ADAPTER}
    for name, guide in GUIDE.items():
        assert _without(found[name]["attributes"], BEYOND) == guide
        assert found[name]["domain"] == LIKEN
    assert {name for name, one in found.items() if one["shareable"]} == {RENDER}


async def test_the_slice_that_would_be_written_is_the_guides(node: EndToEnd) -> None:
    (found,) = yaml.safe_load_all(hardpoint(node, "slice", "--node", NODE))

    _is_the_guides_slice(found)


async def test_the_slice_that_the_agent_writes_is_the_guides(node: EndToEnd) -> None:
    async with node.agent():
        await node.server.until(lambda: len(node.published) == 4)

    (found,) = node.slices
    _is_the_guides_slice(found)


def _is_the_guides_slice(found: dict[str, Any]) -> None:
    assert found["metadata"]["name"] == f"{NODE}-{LIKEN}"
    spec = found["spec"]
    assert (spec["driver"], spec["nodeName"], spec["pool"]["name"]) == (LIKEN, NODE, NODE)
    devices = {one["name"]: one for one in spec["devices"]}
    assert list(devices) == sorted({*GUIDE, ADAPTER})
    for name, guide in GUIDE.items():
        assert _without(values(devices[name]["attributes"]), BEYOND) == guide
    booleans = {
        (name, attribute)
        for name, one in devices.items()
        for attribute, typed in one["attributes"].items()
        if "bool" in typed and name in GUIDE
    }
    assert booleans == {(RENDER, "renderNode"), (DISPLAY, "displayNode")}
    shared = {name for name, one in devices.items() if one.get("allowMultipleAllocations")}
    assert shared == {RENDER}
    shown = values(devices[ADAPTER]["attributes"])
    assert {name: shown.get(name) for name in ADAPTER_GUIDE} == ADAPTER_GUIDE


def _without(attributes: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name not in names}


# -- what a claim delivers ------------------------------------------------------------------------


@pytest.mark.field_case("D10", "H08")
@pytest.mark.parametrize(
    ("device", "paths"),
    [
        (RENDER, ["/dev/dri/renderD128"]),
        (DISPLAY, ["/dev/dri/card0"]),
        (I2C, ["/dev/i2c-4", "/dev/i2c-5", "/dev/i2c-6"]),
        (ADAPTER, ["/dev/bus/usb/001/002", "/dev/ttyUSB0"]),
    ],
)
async def test_a_claim_delivers_its_nodes_and_nothing_else(
    node: EndToEnd, device: str, paths: list[str]
) -> None:
    pod, uid = node.claim("mine", device)
    async with node.agent():
        (prepared,) = await node.kubelet.prepare(pod)
        document = json.loads((node.cdi / f"{LIKEN}-{uid}.json").read_text())
        inside = node.inside(pod)
        await node.kubelet.unprepare(pod)

        assert prepared.cdi_ids == (f"{LIKEN}/device={uid}-{device}",)
        assert (prepared.pool, prepared.device) == (NODE, device)
        assert document["kind"] == f"{LIKEN}/device"
        assert [one["name"] for one in document["devices"]] == [f"{uid}-{device}"]
        assert sorted(inside.paths) == paths
        assert (inside.mounts, inside.env) == ((), ())
        assert node.files == []


async def test_two_transcoders_hold_the_render_node_at_once(node: EndToEnd) -> None:
    first, _ = node.claim("one", RENDER)
    second, _ = node.claim("two", RENDER)
    async with node.agent() as agent:
        await node.kubelet.prepare(first)
        await node.kubelet.prepare(second)

        assert node.inside(first).paths == node.inside(second).paths == ("/dev/dri/renderD128",)
        assert len(agent.holds()) == len(node.files) == 2
        await node.kubelet.unprepare(first)
        assert node.inside(second).paths == ("/dev/dri/renderD128",)


@pytest.mark.parametrize("device", [DISPLAY, I2C, ADAPTER])
async def test_a_second_holder_is_refused_by_the_first_ones_name(
    node: EndToEnd, device: str
) -> None:
    first, _ = node.claim("player", device)
    second, _ = node.claim("kiosk", device)
    async with node.agent() as agent:
        await node.kubelet.prepare(first)
        with pytest.raises(PodFailed, match=f"{device}.*default/player"):
            await node.kubelet.prepare(second)

        assert [str(hold.claim) for hold in agent.holds()] == ["default/player"]
        await node.kubelet.unprepare(first)
        await node.kubelet.prepare(second)
        assert len(node.inside(second).paths) >= 1


async def test_a_player_gets_both_halves_of_one_card_in_one_claim(node: EndToEnd) -> None:
    pod, uid = node.claim("player", RENDER, DISPLAY)
    async with node.agent():
        await node.kubelet.prepare(pod)

        assert sorted(node.inside(pod).paths) == ["/dev/dri/card0", "/dev/dri/renderD128"]
        assert node.inside(pod, "r0").paths == ("/dev/dri/renderD128",)
        assert node.inside(pod, "r1").paths == ("/dev/dri/card0",)
        assert node.files == [f"{LIKEN}-{uid}.json"]


async def test_a_render_claim_and_a_display_claim_share_the_card(node: EndToEnd) -> None:
    render, _ = node.claim("transcoder", RENDER)
    display, _ = node.claim("player", DISPLAY)
    async with node.agent() as agent:
        await node.kubelet.prepare(render)
        await node.kubelet.prepare(display)

        assert len(agent.holds()) == 2


async def test_admin_access_is_refused(node: EndToEnd) -> None:
    holder, _ = node.claim("player", DISPLAY)
    labels = {"resource.kubernetes.io/admin-access": "true"}
    node.server.edit("namespaces", "default").update(metadata={"labels": labels})
    admin, _ = node.claim("monitor", DISPLAY, admin=True)
    async with node.agent():
        await node.kubelet.prepare(holder)
        with pytest.raises(PodFailed, match=r"admin access to device .* is refused"):
            await node.kubelet.prepare(admin)

        assert len(node.files) == 1


async def test_files_of_others_are_left_alone(node: EndToEnd) -> None:
    foreign = node.cdi / "liken.sh-somebody-elses.json"
    node.cdi.mkdir()
    foreign.write_text('{"cdiVersion": "0.6.0", "kind": "other.sh/device", "devices": []}')
    pod, _ = node.claim("mine", RENDER)
    async with node.agent():
        await node.kubelet.prepare(pod)
        await node.kubelet.unprepare(pod)

    assert node.files == [foreign.name]
