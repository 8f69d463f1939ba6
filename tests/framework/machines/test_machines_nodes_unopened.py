"""What is listed is read from sysfs: a node need not be one that the agent may open."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hardpoint.testing import FakeMachine

LOOK = """
import json, os, sys
import anyio
from hardpoint._core.offline import look
from hardpoint.node import Node
from hardpoint.settings import load

root = sys.argv[1]
opened = []

def watch(event, arguments):
    if event == "open" and str(arguments[0]).startswith(f"{root}/dev/"):
        opened.append(arguments[0])

sys.addaudithook(watch)
node = Node(name="n", **{each: f"{root}/{each}" for each in ("sys", "dev", "proc", "run")})
found = anyio.run(look, node, load(environment={"HARDPOINT_DRIVERS": "pci_drm,usb"}))
print(json.dumps([[o.name for o in found.offer.devices], opened, len(found.faults)]))
"""


@pytest.mark.field_case("A19")
def test_hardware_is_listed_without_opening_any_of_its_nodes(tmp_path: Path) -> None:
    """A container's device cgroup lets it open nothing that was plugged in after its start."""
    machine = FakeMachine(tmp_path)
    gpu = machine.pci("0000:00:02.0", vendor="8086", device="46d2", klass="030000", driver="i915")
    gpu.drm(card=0, render=128)
    stick = machine.usb("1-2", vendor="0403", product="6001", serial="FT1")
    stick.interface(0, klass="ff", driver="ftdi_sio").node("tty", "ttyUSB0", 188, 0)
    for name in ("dri/card0", "dri/renderD128", "ttyUSB0", "bus/usb/001/002"):
        node = tmp_path / "dev" / name
        node.parent.mkdir(parents=True, exist_ok=True)
        node.symlink_to("/dev/null")  # making a node of its own takes root

    answer = subprocess.run(
        [sys.executable, "-c", LOOK, str(tmp_path)], capture_output=True, text=True, check=True
    )

    assert json.loads(answer.stdout) == [
        ["pci-0000-00-02-0", "pci-0000-00-02-0-display", "usb-1-2-1-0"],
        [],
        0,
    ]
