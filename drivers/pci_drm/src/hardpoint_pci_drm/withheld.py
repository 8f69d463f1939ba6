"""Why hardware is not offered, in sentences that a person can act on.

Subjects are ``<bus> <address>``, followed by a node or disk where only that is kept back.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable

from hardpoint import DeviceNode, Entry, Withheld
from hardpoint.node import clean
from hardpoint_pci_drm.pci import class_word, hexadecimal

PLUMBING = frozenset({"pcieport", "shpchp"})
"""Drivers of what carries other devices."""

PASSTHROUGH = frozenset({"vfio-pci", "pci-stub", "xen-pciback"})
"""Drivers that keep a function for a virtual machine."""

RULES = {
    "no-driver": "no kernel driver is bound to it",
    "no-nodes": "its driver makes no node in /dev",
    "plumbing": "it carries other devices, which are listed by themselves",
    "passthrough": "it is kept for a virtual machine",
    "platform": "the machine itself uses it",
    "framebuffer": "whoever opens a frame buffer takes over the display",
    "smbus": "what hangs from the management bus of the board, a wrong write can ruin for good",
    "controller": "it is a storage controller, whose disks are offered one by one",
    "disk-in-use": "the machine itself uses the disk",
    "odd-name": "its address is not plain text",
}
"""Every rule of this driver, and what it means."""


def subject(owner: Entry, what: str = "") -> str:
    """Return how hardware is called in a list of what is not offered."""
    return clean(os.fsencode(f"{owner.subsystem or 'sys'} {owner.address} {what}"))


def oddly_named(owner: Entry) -> Withheld | None:
    """Say why a device is not offered whose address no ledger could keep; None for a plain one."""
    if owner.address.isascii() and owner.address.isprintable():
        return None
    return Withheld(subject(owner), "odd-name", "its address is not plain text, as kernels give it")


def undriven(owner: Entry, code: str) -> Withheld:
    """Say why a device without a driver is not offered."""
    if class_word(code) == "bridge":
        reason = "it is a bridge: what is behind it is listed by itself"
        return Withheld(subject(owner), "plumbing", reason)
    what = "this GPU" if class_word(code) == "display" else "it"
    return Withheld(
        subject(owner),
        "no-driver",
        f"no kernel driver is bound to {what}, so it has no nodes to deliver: load the module "
        f"that knows {owner.get('modalias') or 'it'} (modprobe finds it by that) or, if that is "
        f"loaded, write {owner.address} to /sys/bus/pci/drivers_probe",
    )


def plumbing(owner: Entry) -> Withheld:
    """Say why a port is not offered."""
    reason = f"it is a port, driven by {owner.driver}: what is behind it is listed by itself"
    return Withheld(subject(owner), "plumbing", reason)


def ownerless(owner: Entry) -> Withheld:
    """Say why nodes on the board are not offered that no driver answers for."""
    paths = ", ".join(node.path for node in owner.nodes())
    reason = f"no kernel driver is bound to it that could answer for its nodes: {paths}"
    return Withheld(subject(owner), "no-driver", reason[:1000])


def passthrough(owner: Entry) -> Withheld:
    """Say why a function that a virtual machine takes is not offered."""
    reason = f"it is bound to {owner.driver}, which keeps it for a virtual machine"
    return Withheld(subject(owner), "passthrough", reason)


def without_nodes(owner: Entry, driver: str) -> Withheld:
    """Say why a driven device that has no nodes is not offered."""
    code = hexadecimal(owner.get("class"))
    if class_word(code) == "storage":
        return controller(owner)
    if class_word(code) == "network" or _has_network(owner):
        reason = f"{driver} makes it a network interface, and no node in /dev"
    elif code.startswith("0c03"):
        reason = "it is a USB controller: what is plugged into it is listed by itself"
    elif code.startswith("0c05"):
        reason = (
            f"{driver} makes no node in /dev for it; the module i2c-dev would, and "
            "driver.pci_drm.smbus = true offers that"
        )
    else:  # a misc or watchdog device may have no parent: i6300esb's, hwrng's
        reason = f"its driver {driver} makes no node in /dev, or none that sysfs ties to it"
    return Withheld(subject(owner), "no-nodes", reason)


def _has_network(owner: Entry) -> bool:
    """Say whether an interface is below it: that of a CAN controller has a class of any kind."""
    return any(entry.has("net") for entry in owner.below())


def controller(owner: Entry) -> Withheld:
    """Say why a storage controller is not offered."""
    reason = "it is a storage controller, which is never handed over whole, and it has no disk"
    return Withheld(subject(owner), "controller", reason)


def nothing_but_a_framebuffer(owner: Entry) -> Withheld:
    """Say why hardware with nothing but a frame buffer is not offered."""
    reason = "it has a frame buffer and nothing else, and whoever opens that takes over the display"
    return Withheld(subject(owner), "framebuffer", reason)


def framebuffer(owner: Entry, node: DeviceNode) -> Withheld:
    """Say why a frame buffer is not delivered with the card that it is of."""
    reason = "whoever opens a frame buffer takes over the display: it is delivered to nobody"
    return Withheld(subject(owner, node.path), "framebuffer", reason)


def smbus(owner: Entry, node: DeviceNode) -> Withheld:
    """Say why the management bus of the board is not offered."""
    reason = (
        "it is the management bus of the board: memory modules and voltage regulators hang from "
        "it, and a wrong write there can ruin them for good; driver.pci_drm.smbus = true offers it"
    )
    return Withheld(subject(owner, node.path), "smbus", reason)


def node_kept(owner: Entry, node: DeviceNode, reason: str) -> Withheld:
    """Say why one node of a device is not delivered, while others are."""
    return Withheld(subject(owner, node.path), "platform", reason)


def all_kept(owner: Entry, dropped: Iterable[tuple[DeviceNode, str]]) -> Withheld:
    """Say why a device is not offered whose every node the machine uses itself."""
    paths: dict[str, list[str]] = defaultdict(list)
    for node, why in dropped:
        paths[why].append(node.path)
    reason = "; ".join(f"{', '.join(each)}: {why}" for why, each in paths.items())
    return Withheld(subject(owner), "platform", reason[:1000])


def disk_kept(owner: Entry, name: str, reason: str) -> Withheld:
    """Say why a disk is not offered."""
    return Withheld(subject(owner, name), "disk-in-use", reason)
