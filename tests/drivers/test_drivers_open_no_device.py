"""A node that cannot be opened says nothing of its device: nobody opens one to learn about it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hardpoint.testing import FakeMachine

LOOK = """
import json, sys
from hardpoint import Device
from hardpoint.recorded import open_machine
from hardpoint_pci_drm import PciDrm
from hardpoint_usb import Usb

opened, said = [], {}
with open_machine(sys.argv[1]) as node:
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
    for driver in (PciDrm(node, PciDrm.Settings()), Usb(node, Usb.Settings())):
        for device in driver.publish_devices():
            if isinstance(device, Device):
                said[device.name] = str(driver.check_device(device).condition)
    devices = [path for path in opened if path.startswith(f"{node.dev}/")]
print(json.dumps([said, devices, len(opened)]))
"""


@pytest.mark.field_case("D09")
def test_devices_are_found_and_judged_without_opening_one(tmp_path: Path) -> None:
    """A daemon-reload may take an agent's own right to open what its node has."""
    machine = FakeMachine(tmp_path / "machine")
    machine.pci("0000:00:02.0", klass="030000", driver="i915").drm(card=0, render=128).i2c(4)
    adapter = machine.usb("1-2", vendor="0403", product="6001")
    adapter.interface(0, driver="ftdi_sio").node("tty", "ttyUSB0", 188, 0)

    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(machine.save())],
        capture_output=True,
        text=True,
        check=True,
    )

    said, opened, files = json.loads(done.stdout)
    assert set(said.values()) == {"Healthy"}
    assert {"pci-0000-00-02-0", "pci-0000-00-02-0-display", "usb-1-2-1-0"} <= said.keys()
    assert opened == []
    assert files > 20  # the hook hears of sysfs, so it would of /dev
