"""From one piece of hardware to the devices that it makes, or the reason why it makes none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from hardpoint import Device, DeviceNode, Entry, Node, Unread, Withheld
from hardpoint.attributes import fit_name, with_hash
from hardpoint.model import AttributeValue
from hardpoint.node import described
from hardpoint.platform import Platform, Suspected
from hardpoint_pci_drm import board, disks, gpu, pci, withheld
from hardpoint_pci_drm.settings import PciDrmSettings
from hardpoint_pci_drm.shapes import FRAMEBUFFER, Shape, shapes, subsystem

Listed = Device | Withheld | Unread
Facts = dict[str, AttributeValue]


class Scan:
    """One look at the machine."""

    def __init__(self, node: Node, settings: PciDrmSettings, names: pci.PciIds) -> None:
        self.node, self.settings, self.names = node, settings, names
        self.platform = Platform.of(node)

    def listed(self) -> Iterator[Listed]:
        """Judge every PCI function, then what the board has; names are unique."""
        yield from told_apart([*self.node.each("bus/pci/devices", self.function), *self._board()])

    def function(self, function: Entry) -> Iterator[Device | Withheld]:
        """Judge one PCI function."""
        driver = function.driver
        if not driver:
            yield withheld.undriven(function, pci.hexadecimal(function.text("class")))
        elif driver in withheld.PLUMBING:
            yield withheld.plumbing(function)
        elif driver in withheld.PASSTHROUGH:
            yield withheld.passthrough(function)
        else:
            found = _nodes(function)
            facts = pci.identity(function, self.names) if found else {}
            yield from self._made(function, found, facts)

    def _board(self) -> Iterator[Listed]:
        found = board.find(self.node)
        yield from found.unread
        for owner in board.sorted_owners(found.owners):
            yield from described(owner, self._owner)
        for owner in board.sorted_owners(found.undriven):
            yield from described(owner, lambda entry: [withheld.ownerless(entry)])

    def _owner(self, owner: Entry) -> Iterator[Device | Withheld]:
        yield from self._made(owner, _nodes(owner), board.identity(owner))

    # -- devices ----------------------------------------------------------------------------------

    def _made(
        self, owner: Entry, found: list[disks.Found], facts: Facts
    ) -> Iterator[Device | Withheld]:
        """Make the devices of one owner from the nodes below it."""
        odd = withheld.oddly_named(owner)
        if odd is not None:
            yield odd
            return
        storage = [(e, n) for e, n in found if n.subsystem in disks.SUBSYSTEMS]
        others = [(e, n) for e, n in found if n.subsystem not in disks.SUBSYSTEMS]
        buses = [] if self.settings.smbus else [n for e, n in others if _is_smbus(e, n)]
        kept, dropped = self.platform.keep(n for _, n in others if n not in buses)
        made: list[Device | Withheld] = [
            *self._drives(owner, storage, facts),
            *self._shapes(owner, kept, facts, alone=not storage),
            *(withheld.smbus(owner, node) for node in buses),
        ]
        if made:
            yield from made
            yield from (withheld.node_kept(owner, node, reason) for node, reason in dropped)
            yield from (withheld.framebuffer(owner, n) for n in kept if subsystem(n) == FRAMEBUFFER)
        else:
            yield _empty(owner, kept, dropped, has_storage=bool(storage))

    def _shapes(
        self, owner: Entry, nodes: tuple[DeviceNode, ...], facts: Facts, *, alone: bool
    ) -> Iterator[Device]:
        """Make devices of nodes that are of no disk; ``alone``: no disk shares the owner."""
        for shape in shapes(nodes):
            device = self._device(owner, shape, facts)
            if shape.whole and alone:
                yield replace(device, parts=owner.whole())
            else:
                yield self._rendering(owner, device) if shape.shareable else device

    def _device(self, owner: Entry, shape: Shape, facts: Facts) -> Device:
        return Device(
            name=_name(owner, shape.suffix),
            kind=shape.kind,
            nodes=shape.nodes,
            attributes=facts | _said(shape),
            shareable=shape.shareable,
            parts=owner.beside(),
            topology=owner.topology(),
            origin=_origin(owner),
        )

    def _rendering(self, owner: Entry, device: Device) -> Device:
        """Add what a render node has beyond others: the GPU's memory, and a way to compute."""
        kfd = gpu.compute_node(self.node, device.nodes) if self.settings.compute else None
        if kfd is not None:
            device = replace(
                device,
                nodes=(*device.nodes, kfd),
                attributes={**device.attributes, "computeNode": True},
            )
        return replace(device, capacity=gpu.memory(owner))

    def _drives(
        self, owner: Entry, found: list[disks.Found], facts: Facts
    ) -> Iterator[Device | Withheld]:
        drives = disks.drives(found)
        for drive, port in zip(drives, disks.suffixes(drives, owner), strict=True):
            device = self._drive(owner, drive, port, facts)
            reason = self._kept(device)
            yield withheld.disk_kept(owner, drive.entry.name, reason) if reason else device

    def _kept(self, device: Device) -> str:
        """Say why a drive is not offered; "" if it is, or if the framework is to judge.

        The holder of a drive may write to it what makes it look in use: a volume, the signature of
        a storage system. The framework judges its nodes, as long as no other drive has taken its
        place; and those of a free drive that no more than a signature speaks against, since it
        knows the admin's rules.
        """
        reasons = [reason for _, reason in self.platform.keep(device.nodes)[1]]
        used = [reason for reason in reasons if not isinstance(reason, Suspected)]
        here = [held for held in self.node.held().values() if held.origin == device.origin]
        if any(disks.may_be_one(held, device) for held in here):
            return ""
        return next(iter([*used, *(reasons if here else ())]), "")

    def _drive(self, owner: Entry, drive: disks.Drive, port: str, facts: Facts) -> Device:
        word: Facts = {"subsystem": drive.nodes[0].subsystem}
        return Device(
            name=_name(owner, port),
            kind=drive.kind,
            nodes=tuple(drive.nodes),
            attributes=facts | word | disks.attributes(drive),
            capacity=disks.capacity(drive),
            parts=owner.beside(),
            topology=owner.topology(),
            origin={**_origin(owner), "drive": port.removeprefix("-")},
        )


def _empty(
    owner: Entry,
    kept: tuple[DeviceNode, ...],
    dropped: tuple[tuple[DeviceNode, str], ...],
    *,
    has_storage: bool,
) -> Withheld:
    """Say why an owner makes no device at all."""
    if dropped:
        return withheld.all_kept(owner, dropped)
    if has_storage:
        return withheld.controller(owner)
    if kept:  # no shape is made of frame buffers alone
        return withheld.nothing_but_a_framebuffer(owner)
    return withheld.without_nodes(owner, owner.driver)


def _is_smbus(entry: Entry, node: DeviceNode) -> bool:
    """Say whether a node is a system management bus, by what its driver calls the adapter.

    All of them do (``SMBus I801 adapter at efa0``), whatever the class of their function is.
    """
    return node.subsystem == "i2c-dev" and entry.get("name").startswith("SMBus ")


def _nodes(owner: Entry) -> list[disks.Found]:
    return [(e, node) for e in owner.below() if (node := e.device_node()) is not None]


def _said(shape: Shape) -> Facts:
    word: Facts = {"subsystem": shape.subsystem} if shape.subsystem else {}
    return word | shape.flags


def _origin(owner: Entry) -> dict[str, str]:
    return {"bus": owner.subsystem, "address": owner.address}


# -- names ----------------------------------------------------------------------------------------


def _name(owner: Entry, suffix: str) -> str:
    """Return ``pci-0000-00-02-0-display``: where it is plugged in, and which part of it this is."""
    suffix = fit_name(suffix, room=24)
    return fit_name(owner.slug, room=len(suffix)) + suffix


def told_apart(listed: Iterable[Listed]) -> Iterator[Listed]:
    """Give devices that came to the same name a hash of their address each.

    ``acme:1`` and ``acme.1`` are two addresses, and one piece of a name.
    """
    items = list(listed)
    names = Counter(item.name for item in items if isinstance(item, Device))
    for item in items:
        if isinstance(item, Device) and names[item.name] > 1:
            yield replace(item, name=with_hash(item.name, "/".join(item.origin.values())))
        else:
            yield item
