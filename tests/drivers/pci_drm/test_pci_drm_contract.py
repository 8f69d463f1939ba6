from __future__ import annotations

import pytest

from hardpoint.testing.driver_contract import DriverContract
from hardpoint.testing.sysfs import FakeMachine
from hardpoint_pci_drm import PciDrm


class TestPciDrm(DriverContract):
    plugin = PciDrm

    @pytest.fixture
    def populated(self, machine: FakeMachine) -> FakeMachine:
        gpu = machine.pci("0000:0a:00.0", vendor="1002", klass="030000", driver="amdgpu")
        gpu.drm(card=0, render=128).i2c(3, 4).dp_aux(0).fb(0)
        machine.pci("0000:0a:00.1", klass="040300", driver="snd_hda_intel").sound(1, jacks=1)
        machine.pci("0000:00:1f.0", klass="060100")
        machine.pci("0000:00:1f.2", klass="010601", driver="ahci").ata(1).disk("sda", 8, 0)
        nvme = machine.pci("0000:01:00.0", klass="010802", driver="nvme").nvme(0, serial="N1")
        nvme.disk("nvme0n1", 259, 0, nsid=1)
        machine.platform("i8042", driver="i8042").node("input", "input/event0", 13, 64)
        return machine
