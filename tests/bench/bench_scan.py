"""How long a scan of the PCI bus takes: ``python -m bench.bench_scan [FUNCTIONS …]``.

The bound is 300 ms for 1,000 functions, and twice the functions may take twice the time.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from bench.rows import Row, Told, memory

from hardpoint import Device, Node
from hardpoint.testing.fake_device import put
from hardpoint.testing.sysfs import FakeMachine
from hardpoint_pci_drm import PciDrm

PLAIN = (
    "irq",
    "resource",
    "local_cpus",
    "dma_mask_bits",
    "msi_bus",
    "power_state",
    "d3cold_allowed",
)
"""Some of the attributes that every function has and no scan reads."""


def machine(root: Path, functions: int) -> Node:
    """Fill a machine: of 16 functions one is a GPU, one an NVMe disk, the rest have no node."""
    fake = FakeMachine(root)
    for number in range(functions):
        address = f"{number >> 13:04x}:{number >> 5 & 0xFF:02x}:{number & 0x1F:02x}.0"
        if number % 16 == 0:
            gpu = fake.pci(address, vendor="1002", klass="030000", driver="amdgpu")
            gpu.drm(card=number // 16, render=1024 + number).i2c(number, number + 1)
        elif number % 16 == 1:
            disk = fake.pci(address, klass="010802", driver="nvme").nvme(number, minor=number)
            disk.disk(f"nvme{number}n1", 259, number, nsid=1)
        else:
            fake.pci(address, vendor="8086", klass="020000", driver="ice")
        path = fake.sys / "bus/pci/devices" / address
        for name in PLAIN:
            put(path / name, 0)
        put(path / "power/control", "auto")
        put(path / "msi_irqs/40", "msi")
    return fake.node()


def best(node: Node, times: int = 5) -> tuple[float, int]:
    """Return the seconds of the fastest of several scans, and the devices found."""
    fastest, devices = 9e9, 0
    for _ in range(times):
        driver = PciDrm(node, PciDrm.Settings())
        start = time.perf_counter()
        devices = sum(isinstance(item, Device) for item in driver.publish_devices())
        fastest = min(fastest, time.perf_counter() - start)
    return fastest, devices


def main(words: list[str]) -> int:
    """Print the time of a scan for each number of functions; 1 where the bound is missed."""
    tell = Told()
    for number in [int(word) for word in words] or [10, 100, 1000, 10_000]:
        with tempfile.TemporaryDirectory(dir=memory()) as root:
            seconds, devices = best(machine(Path(root), number))
        bound = 0.3 * number if number >= 1000 else None  # linear, apart from what it begins with
        tell(Row(f"scan of {number} PCI functions, {devices} devices", 1000 * seconds, "ms", bound))
    return 1 if tell.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
