"""What the board has without a bus that could list it: found by its nodes, from ``sys/dev``.

The owner of a node is the outermost directory above it that a driver is bound to: the keyboard
controller rather than the keyboard, which hangs two drivers deep below it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from hardpoint import Entry, Node, Unread
from hardpoint.model import AttributeValue
from hardpoint.node import said

LISTED = frozenset({"pci", "usb"})
"""Buses that list their own devices: what hangs from a driven one of those is judged with it."""

CARRIERS = frozenset({"simple-pm-bus", "simple-bus"})
"""Drivers of what is a bus rather than a device: a whole system on a chip is below it."""


@dataclass(slots=True)
class Found:
    """Owners by bus and address, those without a driver, and what could not be read."""

    owners: dict[tuple[str, str], Entry] = field(default_factory=dict)
    undriven: dict[tuple[str, str], Entry] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Directory:
    subsystem: str
    driver: str


class _Tree:
    """The directories above nodes, each looked at once."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._known: dict[str, _Directory] = {}

    def look(self, path: str) -> _Directory:
        if path not in self._known:
            entry = Entry(self._node, path, path)
            self._known[path] = _Directory(entry.subsystem, entry.driver)
        return self._known[path]


def find(node: Node) -> Found:
    """Find what owns the nodes of this machine that no bus lists."""
    found, tree = Found(), _Tree(node)
    for index in ("dev/char", "dev/block"):
        for entry in node.entries(index):
            try:
                _place(entry, tree, found)
            except OSError as error:
                found.unread.append(Unread(entry.key, said(error)))
    for known in found.owners:
        found.undriven.pop(known, None)
    return found


def _place(entry: Entry, tree: _Tree, found: Found) -> None:
    """Note who owns the node that an entry of ``sys/dev`` stands for.

    What hangs from a listed device is judged with it, if that has a driver. The bridge to the old
    ISA bus has none on many boards, and what hangs from it (a BMC, a TPM) has one of its own.
    """
    root = entry.node.devices
    if not entry.path.startswith(f"{root}/"):
        return
    steps = entry.path[len(root) + 1 :].split("/")
    if steps[0] == "virtual":
        return
    listed, below = _listed(root, steps, tree)
    if listed is not None and listed.driver:
        return
    for depth in range(below, len(steps) + 1):
        seen = tree.look("/".join((root, *steps[:depth])))
        if seen.driver and seen.driver not in CARRIERS:
            owner = _on_bus(entry.node, seen.subsystem, steps[depth - 1])
            if owner is not None:
                found.owners[_key(owner)] = owner
            return
    if listed is None:
        _note_undriven(entry.node, root, steps, tree, found)


def _listed(root: str, steps: list[str], tree: _Tree) -> tuple[_Directory | None, int]:
    """Return the nearest device of a bus that lists its own, and the depth of what is below it."""
    for depth in range(len(steps), 0, -1):
        seen = tree.look("/".join((root, *steps[:depth])))
        if seen.subsystem in LISTED:
            return seen, depth + 1
    return None, 1


def _note_undriven(node: Node, root: str, steps: list[str], tree: _Tree, found: Found) -> None:
    for depth in range(1, len(steps)):
        seen = tree.look("/".join((root, *steps[:depth])))
        owner = _on_bus(node, seen.subsystem, steps[depth - 1]) if not seen.driver else None
        if owner is not None:
            found.undriven[_key(owner)] = owner
            return


def _on_bus(node: Node, bus: str, address: str) -> Entry | None:
    """Return the entry of a device in its bus's list; None where it is in none."""
    if not bus:
        return None
    entry = node.entry(f"bus/{bus}/devices/{address}")
    return entry if entry.exists() else None


def _key(entry: Entry) -> tuple[str, str]:
    bus = os.path.basename(os.path.dirname(os.path.dirname(entry.link_path)))
    return bus, entry.address


def identity(owner: Entry) -> dict[str, AttributeValue]:
    """Return what every device of this owner is known by."""
    facts = {
        "bus": owner.subsystem,
        "address": owner.address,
        "driver": owner.driver,
        "modalias": owner.get("modalias"),
    }
    return {name: value for name, value in facts.items() if value}


def sorted_owners(owners: dict[tuple[str, str], Entry]) -> Iterator[Entry]:
    """Yield owners in order of bus and address, however sysfs lists them."""
    for _, entry in sorted(owners.items()):
        yield entry
