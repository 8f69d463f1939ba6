"""What the machine itself uses, and what nobody must ever be handed: its disks, its consoles.

    platform = Platform.of(node)                 # one look; make a new one for each scan
    kept, dropped = platform.keep(entry.nodes())

The framework asks it about every node of every device, whichever driver publishes it; a driver asks
it too where a node less changes what the device is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cached_property

from hardpoint._disks_in_use import DisksInUse, Suspected
from hardpoint.model import DeviceNode, NodeType
from hardpoint.node import Entry, Node, said

__all__ = ["ALWAYS", "Platform", "Suspected"]

_TPM = re.compile(r"/dev/(tpm|tpmrm)\d+")
_LEGACY_WATCHDOG = (10, 130)
"""Numbers of /dev/watchdog, another name of watchdog0 (include/linux/miscdevice.h)."""

_AGENTS = re.compile(r"org\.qemu\.guest_agent\.|com\.redhat\.|org\.spice-space\.|ovirt-guest-agent")
"""Names of virtio ports through which a hypervisor talks to agents of its guest, as libvirt, SPICE
and oVirt give them. An agent that does not run just now leaves its port open to anybody."""

CONSOLE = "it is a console of this machine"
TPM = "the TPM is the machine's: whoever opens it could take its ownership"
CLOCK = "the machine's clock is set through it"

ALWAYS = {
    "tpm": TPM,
    "tpmrm": TPM,
    "mtd": "it is flash memory of the board, which may hold its firmware",
    "ipmi": "the machine's BMC answers there: it turns the node off, and who may is set through it",
    "mei": "the machine's management engine answers there, which can be made to let others in",
}
"""Subsystems of which no node is ever offered: what is done through it outlasts its holder."""

Numbers = tuple[NodeType, int, int]


class Platform:
    """What one look at a machine says that the machine keeps for itself."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @classmethod
    def of(cls, node: Node) -> Platform:
        """Look at a machine. Nothing is read before it is asked for, and then once."""
        return cls(node)

    def keep(
        self, nodes: Iterable[DeviceNode]
    ) -> tuple[tuple[DeviceNode, ...], tuple[tuple[DeviceNode, str], ...]]:
        """Return the nodes that may be offered, and the others, each with the reason."""
        kept, dropped = [], []
        for node in nodes:
            reason = self.reason(node)
            if reason is None:
                kept.append(node)
            else:
                dropped.append((node, reason))
        return tuple(kept), tuple(dropped)

    def reason(self, node: DeviceNode) -> str | None:
        """Say in a sentence why a node must not be offered; None if it may be.

        A node is known by its numbers, those it states and those that the host's /dev has under its
        path. What cannot be read is not offered. Never raises.

        The sentence is ``Suspected`` where only the signature of a storage system speaks against a
        disk: the framework offers it where a rule names the device, and drivers leave that to it.
        """
        try:
            return self._by_path(node) or self._by_numbers(node)
        except (OSError, ValueError) as error:
            return f"what uses it cannot be read ({said(error)})"

    def _by_path(self, node: DeviceNode) -> str | None:
        paths = (node.source, node.path)
        if any(_TPM.fullmatch(path) for path in paths):
            return TPM
        if node.subsystem in ALWAYS:
            return ALWAYS[node.subsystem]
        if any(path == "/dev/rtc0" for path in paths):
            return CLOCK
        if any(path in (self._consoles or ()) for path in paths):
            return CONSOLE
        return None

    def _by_numbers(self, node: DeviceNode) -> str | None:
        numbers = self._numbers(node)
        if not numbers and node.type is NodeType.BLOCK:
            return "which block device it is cannot be told"
        for kind, major, minor in numbers:
            if kind is NodeType.BLOCK:
                reason = self._disks.of_block(major, minor)
            else:
                reason = self._char(major, minor)
            if reason:
                return reason
        return None

    def _numbers(self, node: DeviceNode) -> list[Numbers]:
        found: list[Numbers] = []
        if node.major is not None and node.minor is not None:
            found.append((node.type, node.major, node.minor))
        info = self._node.info(node.source)
        if info is not None and (info.type, info.major, info.minor) not in found:
            found.append((info.type, info.major, info.minor))
        return found

    # -- char nodes -------------------------------------------------------------------------------

    def _char(self, major: int, minor: int) -> str | None:
        if (major, minor) == _LEGACY_WATCHDOG:
            return self._watchdog(self._node.entry("class/watchdog/watchdog0"))
        entry = self._node.entry(f"dev/char/{major}:{minor}")
        if not entry.exists():
            return None  # NVIDIA's nodes, for one, are unknown to sysfs
        subsystem, name = entry.subsystem, os.path.basename(entry.path)
        if subsystem in ALWAYS:
            return ALWAYS[subsystem]
        if subsystem == "rtc":
            return CLOCK if name == "rtc0" or entry.get("hctosys") == "1" else None
        if subsystem == "virtio-ports":
            return self._port(entry)
        if subsystem == "watchdog":
            return self._watchdog(entry)
        if subsystem == "tty":
            return self._tty(entry, name)
        return self._disks.of_char(entry, _owner(entry))

    def _port(self, entry: Entry) -> str | None:
        name = entry.text("name")
        if _AGENTS.match(name):
            return f"the hypervisor talks to an agent of this machine through it ({name[:64]})"
        return None

    def _watchdog(self, entry: Entry) -> str | None:
        if entry.get("state") == "active":
            return "the machine has armed this watchdog: whoever stops feeding it reboots the node"
        return None

    def _tty(self, entry: Entry, name: str) -> str | None:
        if self._consoles is None:
            return "which terminals are consoles of this machine cannot be read"
        if f"/dev/{name}" in self._consoles:
            return CONSOLE
        if entry.has("type") and entry.text("type") == "0":
            return "it is a port that is reserved for a UART which is not there"
        for child in entry.children():
            # serport, hci_uart and slcan make what they attach a child of the line
            if child.subsystem:
                return f"{child.name} is attached to this line"
        return None

    @cached_property
    def _consoles(self) -> frozenset[str] | None:
        """Paths of the terminals that the kernel writes to; None where they cannot be read."""
        try:
            names = self._node.entry("class/tty/console").text("active").split()
            if "tty0" in names:  # stands for the terminal in the foreground
                names += self._node.entry("class/tty/tty0").text("active").split()
        except OSError:
            return None
        return frozenset({"/dev/console", *(f"/dev/{name}" for name in names)})

    # -- disks ------------------------------------------------------------------------------------

    @cached_property
    def _disks(self) -> DisksInUse:
        return DisksInUse(self._node)


def _owner(entry: Entry) -> str:
    """Return the device that a char node belongs to: what its class device calls ``device``.

    A USB device is its own; what is on another bus hangs from the device above it (the replay
    protected memory of an eMMC).
    """
    if entry.has("device"):
        return os.path.realpath(f"{entry.path}/device")
    return entry.path if entry.subsystem == "usb" else os.path.dirname(entry.path)
