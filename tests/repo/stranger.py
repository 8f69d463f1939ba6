"""Install the framework and each plugin's wheel in a fresh environment, as a stranger would.

    python tests/repo/stranger.py dist

Catches what an editable install hides: an undeclared dependency, a file missing from the wheel, an
entry point that does not load. Each driver's contract suite runs from outside of this repository.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

CONTRACT = '''
"""The contract suite of an installed driver, with nothing of its source at hand."""
import pytest
from hardpoint.testing import DriverContract
from hardpoint.testing.sysfs import FakeMachine
from {module} import {name} as Driver


class Test{name}(DriverContract):
    plugin = Driver

    @pytest.fixture
    def populated(self, machine: FakeMachine) -> FakeMachine:
        gpu = machine.pci(
            "0000:00:02.0", vendor="8086", device="46d2", klass="030000", driver="i915"
        )
        gpu.drm(card=0, render=128)
        stick = machine.usb("1-2", vendor="0403", product="6001", serial="FT1")
        serial = stick.interface(0, klass="ff", driver="ftdi_sio")
        serial.node("tty", "ttyUSB0", 188, 0)
        return machine
'''
DRIVERS = {
    "hardpoint-pci-drm": ("hardpoint_pci_drm", "PciDrm"),
    "hardpoint-usb": ("hardpoint_usb", "Usb"),
}


def main(dist: Path) -> int:
    """Check every driver wheel; return the exit status."""
    framework = next(dist.glob("hardpoint-0*.whl"))
    for distribution, (module, name) in DRIVERS.items():
        wheel = next(dist.glob(f"{distribution.replace('-', '_')}-*.whl"))
        with tempfile.TemporaryDirectory(prefix="stranger-") as scratch:
            check(Path(scratch), framework, wheel, CONTRACT.format(module=module, name=name))
        sys.stdout.write(f"{distribution}: installs alone and keeps its contract\n")
    return 0


def check(scratch: Path, framework: Path, wheel: Path, contract: str) -> None:
    """Install one driver beside the framework and run its contract. Raises where that fails."""
    venv.create(scratch / "venv", with_pip=True)
    python = str(scratch / "venv/bin/python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, f"{framework}[testing]", str(wheel)], check=True)
    (scratch / "test_contract.py").write_text(contract)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(scratch)}
    for command in (["-m", "pytest", "-q"], ["-m", "hardpoint.cli", "plugins"]):
        subprocess.run([python, *command], cwd=scratch, env=environment, check=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
