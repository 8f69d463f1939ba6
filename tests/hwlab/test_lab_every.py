"""What is true of every machine: the slice, the command and the snapshot say the same."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hwlab import kernel
from hwlab.boots import BOOTS
from hwlab.live import DRIVER, Live

GOLDEN = Path(__file__).parents[1] / "golden"
LABS_OWN = "0000:00:1c."
"""The slot of the lab's own cards, of which there are more or fewer with its options."""

SLOW = ("stood still", "no answer within")
"""What the agent complains of on processors that are emulated, and shared."""

Answer = dict[str, Any]
Devices = dict[str, Answer]


@dataclass(frozen=True, slots=True)
class Said:
    """The machine as it has booted, asked in every way, before any test changes it."""

    here: Answer
    """By ``hardpoint devices``."""
    recorded: Answer
    """By the same, of a snapshot taken a moment before."""
    published: Devices
    """By the slices."""
    status: Answer


@pytest.fixture(scope="session")
async def said(session_live: Live) -> Said:
    live = session_live
    await live.quiet()
    tree = await live.snapshot()
    recorded = await answered(live, "--sysfs", str(tree))
    shutil.rmtree(tree)
    here = await answered(live)
    return Said(here, recorded, live.published, await live.json("status"))


async def answered(live: Live, *words: str) -> Answer:
    """Ask until no driver was late: on a busy host its ten seconds may be too few."""
    while True:
        answer: Answer = await live.json("devices", *words)
        if not any(SLOW[1] in fault["message"] for fault in answer["faults"]):
            return answer


def by_name(answer: Answer) -> Devices:
    return {device["name"]: device for device in answer["devices"]}


def test_the_machine_equals_its_snapshot(said: Said, boot: str) -> None:
    assert by_name(said.here) == by_name(said.recorded)
    assert said.here == said.recorded


def test_the_slices_have_what_the_command_shows(said: Said, live: Live, boot: str) -> None:
    shown = by_name(said.here)

    assert set(said.published) == set(shown)
    assert {name: _plain(device) for name, device in said.published.items()} == {
        name: device["attributes"] for name, device in shown.items()
    }
    assert all(one["spec"]["driver"] == DRIVER for one in live.slices)
    counts = {one["spec"]["pool"]["resourceSliceCount"] for one in live.slices}
    assert counts == {len(live.slices)}


def _plain(device: Answer) -> Answer:
    """Return a published device's attributes as plain values."""
    return {name: next(iter(value.values())) for name, value in device["attributes"].items()}


def test_nothing_is_wrong_with_the_agent(said: Said, boot: str) -> None:
    status = said.status
    wrong = [one for one in status["faults"] if not any(word in one["message"] for word in SLOW)]

    assert (status["running"], status["ready"], wrong) == (True, True, [])
    assert [one for one in status["plugins"] if one["state"] != "disabled"] == []
    assert said.here["faults"] == []


def test_every_node_that_is_offered_is_the_one_of_its_hardware(said: Said, boot: str) -> None:
    nodes = [(one["name"], node) for one in said.here["devices"] for node in one["nodes"]]
    assert nodes
    wrong = [
        (name, node)
        for name, node in nodes
        if kernel.numbers(node["path"]) != (node["major"], node["minor"])
        or kernel.group(node["path"]) != node.get("gid", 0)
        or not kernel.owner("char", (node["major"], node["minor"]))
    ]

    assert wrong == []


def test_no_disk_is_offered(said: Said, boot: str) -> None:
    nodes = [node for one in said.here["devices"] for node in one["nodes"]]

    assert [node["path"] for node in nodes if node["type"] == "b"] == []


def test_the_machine_is_the_one_that_was_recorded(said: Said, boot: str) -> None:
    """Numbers differ from boot to boot; what a device is, and where, does not."""
    golden = json.loads((GOLDEN / f"{BOOTS[boot].profile or boot}.json").read_text("utf-8"))

    assert _stable(said.here) == _stable(golden)
    assert _reasons(said.here) == _reasons(golden)


def _stable(answer: Answer) -> list[str]:
    return sorted(
        json.dumps(_without_numbers(device), sort_keys=True)
        for device in answer["devices"]
        if not device["attributes"].get("address", "").startswith(LABS_OWN)
    )


def _without_numbers(device: Answer) -> Answer:
    """Leave out the numbers of nodes and USB buses, and what only udev says."""
    attributes = {
        name: _without_bus(value) if name in ("address", "portPath") else value
        for name, value in device["attributes"].items()
        if name != "byId"
    }
    subsystems = sorted(node["subsystem"] for node in device["nodes"])
    parts = sorted(
        (_without_bus(part["name"]), part["exclusive"])
        for part in device["parts"]
        if not part["name"].startswith(("char:", "block:"))
    )
    own = {name: device[name] for name in ("driver", "kind", "shareable", "capacity", "taints")}
    return {**own, "attributes": attributes, "subsystems": subsystems, "parts": parts}


def _without_bus(text: str) -> str:
    """Leave out the number of a USB bus: controllers race for it at boot."""
    return re.sub(r"^(usb:(?:usb)?|usb-)?[0-9]+(?=-|$)", r"\1*", text)


def _reasons(answer: Answer) -> list[str]:
    """Leave out of a USB interface which half of it the kernel bound: modules race for it."""
    found = []
    for one in answer["not_offered"]:
        subject = one["subject"].partition("/")[0]
        port, half, _ = subject.partition(":")
        is_half = bool(half) and one["driver"] == "usb"
        reason = f"half of {_without_bus(port)}" if is_half else f"{subject} {one['rule']}"
        found.append(f"{one['driver']} {_without_bus(reason)}")
    return sorted({reason for reason in found if LABS_OWN not in reason})
