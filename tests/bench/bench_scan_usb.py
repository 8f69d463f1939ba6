"""How long one look at 1,000 USB devices takes: the bound is 300 ms, and linear.

python -m bench.bench_scan_usb [DEVICES …]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from bench.rows import Row, Told, memory

from hardpoint.node import Node
from hardpoint.testing import FakeMachine
from hardpoint_usb import Usb

PORTS = 15
"""Ports of a root hub."""


def populate(root: Path, devices: int) -> Node:
    """Make a machine of serial adapters, as a kernel with udev shows them."""
    machine = FakeMachine(root)
    for number in range(devices):
        bus, port = divmod(number, PORTS)
        address = f"{bus + 1}-{port + 1}"
        adapter = machine.usb(
            address, vendor="0403", product="6001", serial=f"FT{number}", manufacturer="FTDI",
            product_name="FT232R USB UART", devnum=port + 2,
        )  # fmt: skip
        line = adapter.interface(0, klass="ff", driver="ftdi_sio").child(f"ttyUSB{number}")
        line.node("tty", f"ttyUSB{number}", 188, number, gid=20)
        for directory in (adapter.path / "power", adapter.path / f"{address}:1.0/power"):
            directory.mkdir()
        for endpoint in ("ep_81", "ep_02"):
            (adapter.path / f"{address}:1.0" / endpoint / "power").mkdir(parents=True)
        _named_by_udev(machine, number)
    return machine.node()


def _named_by_udev(machine: FakeMachine, number: int) -> None:
    data = machine.run / f"udev/data/c188:{number}"
    data.parent.mkdir(parents=True, exist_ok=True)
    name = f"usb-FTDI_FT232R_USB_UART_FT{number}-if00-port0"
    data.write_text(f"S:serial/by-id/{name}\nI:1\n" + "E:ID_MODEL=FT232R_USB_UART\n" * 20)
    claim = machine.run / f"udev/links/serial\\x2fby-id\\x2f{name}/c188:{number}"
    claim.parent.mkdir(parents=True)
    claim.touch()


def measure(node: Node, looks: int = 7) -> float:
    """Return the best time of several looks, in milliseconds."""
    driver, times = Usb(node, Usb.Settings()), []
    for _ in range(looks):
        begun = time.perf_counter()
        count = sum(1 for _ in driver.publish_devices())
        times.append(time.perf_counter() - begun)
        assert count
    return min(times) * 1000


def main(words: list[str]) -> int:
    """Print the time of a look for each number of devices; 1 where the bound is missed."""
    tell = Told()
    for devices in [int(word) for word in words] or [10, 100, 1000, 10_000]:
        with tempfile.TemporaryDirectory(dir=memory()) as root:
            spent = measure(populate(Path(root), devices))
        bound = 0.3 * devices if devices >= 1000 else None  # linear, apart from what it begins with
        tell(Row(f"scan of {devices} USB devices", spent, "ms", bound))
    return 1 if tell.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
