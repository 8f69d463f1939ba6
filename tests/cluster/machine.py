"""The machine that the agent runs on: the seed's, with a second card, as a tree that can change.

Its device nodes are real ones (making them needs root, which the tests have), so the agent stats
and delivers them as it would those of /dev. It is told of changes as on any machine: by a kernel
event, which is asked for at a device that the host has.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from hardpoint.testing.sysfs import FakeMachine, FakePci, FakeUsb

FIRST, SECOND = "0000:00:02.0", "0000:03:00.0"
PCI_IDS = """\
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t7480  Navi 33
8086  Intel Corporation
\t46d2  Alder Lake-N [UHD Graphics]
"""
VIDEO, RENDER, DIALOUT = 44, 104, 20
"""Groups of the nodes, by Debian's numbers."""
_KERNEL_EVENTS = Path("/sys/bus/pci/devices")


class Machine:
    """Two graphics cards and a USB serial adapter."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fake = FakeMachine(root)
        self._second: FakePci | None = None
        self._adapter: FakeUsb | None = None
        self.renumbered = False
        """True while the adapter has other numbers than at first."""
        self.ids = root / "pci.ids"
        self.ids.write_text(PCI_IDS)
        first = self.fake.pci(FIRST, vendor="8086", device="46d2", klass="030000", driver="i915")
        first.drm(card=0, render=128, gid=VIDEO, render_gid=RENDER, connectors=("HDMI-A-1",))
        first.i2c(4, 5)
        (self.fake.proc / "2").mkdir()
        (self.fake.proc / "2/comm").write_text("kthreadd\n")  # the host's processes are seen
        self.whole()

    def whole(self) -> None:
        """Plug in what is not; every test begins with that."""
        if self._second is None:
            self.plug_card()
        if self._adapter is None:
            self.plug_adapter()
        self._lay()

    def plug_card(self, card: int = 1, render: int = 129) -> None:
        found = self.fake.pci(SECOND, vendor="1002", device="7480", klass="030000", driver="amdgpu")
        found.drm(card=card, render=render, gid=VIDEO, render_gid=RENDER, connectors=("DP-1",))
        self._second = found
        self._lay()

    def unplug_card(self) -> None:
        assert self._second is not None
        self._second.remove()
        self._second = None
        self._lay()

    def plug_adapter(self, *, devnum: int = 2, tty: int = 0) -> None:
        """Plug the adapter in, under the numbers that the kernel happens to give it."""
        adapter = self.fake.usb(
            "1-8",
            vendor="10c4",
            product="ea60",
            serial="0001",
            manufacturer="Silicon Labs",
            product_name="CP2102N",
            devnum=devnum,
        )
        line = adapter.interface(0, klass="ff", driver="cp210x")
        line.node("tty", f"ttyUSB{tty}", 188, tty, gid=DIALOUT)
        self._adapter = adapter
        self.renumbered = tty != 0
        self._lay()

    def unplug_adapter(self) -> None:
        assert self._adapter is not None
        self._adapter.remove()
        self._adapter, self.renumbered = None, False
        self._lay()

    def boot(self, number: int) -> None:
        """Begin another boot: the kernel has a new boot id."""
        known = f"6b1d3a52-0000-4000-8000-{number:012x}"
        (self.fake.proc / "sys/kernel/random/boot_id").write_text(known + "\n")

    def environment(self) -> dict[str, str]:
        """Return settings that let an agent run on this machine."""
        return trees(self.root) | {
            "HARDPOINT_DRIVER__PCI_DRM__PCI_IDS": json.dumps([str(self.ids)])
        }

    def _lay(self) -> None:
        lay_nodes(self.fake)
        kernel_event()


def lay_nodes(fake: FakeMachine) -> None:
    """Make the nodes of /dev what the machine's table says they are."""
    nodes = json.loads((fake.save() / "dev.json").read_text())["nodes"]
    wanted = {fake.root / path.lstrip("/"): info for path, info in nodes.items()}
    for path in (fake.root / "dev").rglob("*"):
        if path not in wanted and not path.is_dir():
            path.unlink()
    for path, info in wanted.items():
        device = os.makedev(info["major"], info["minor"])
        if path.exists() and path.stat().st_rdev == device:
            continue
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o600, device)
        path.chmod(int(info["mode"], 8))
        os.chown(path, info["uid"], info["gid"])


def kernel_event() -> None:
    """Let the kernel send an event of some PCI function, as ``udevadm trigger`` does.

    Every process of the machine that listens hears it, other agents too.
    """
    source = next(iter(sorted(_KERNEL_EVENTS.glob("*/uevent"))))
    source.write_text("change")


def trees(root: Path) -> dict[str, str]:
    """Return settings that let an agent run on the machine below a root."""
    return {f"HARDPOINT_PATHS__{t.upper()}": str(root / t) for t in _TREES}


_TREES = ("sys", "dev", "proc", "run")
