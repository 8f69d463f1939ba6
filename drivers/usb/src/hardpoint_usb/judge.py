"""The rules: what is in a port, to the devices it is offered as, or why it is not.

Either the device as a whole, where no kernel driver has any of it and programs drive it through
usbfs, or each interface that a driver made a node of. Never both, so that one physical device is
not offered to two owners who do not know of each other; parts hold where a rule errs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hardpoint import Device, DeviceNode, NodeType, Taint, Withheld, exclusive, shared
from hardpoint.attributes import text
from hardpoint.model import AttributeValue, Listed, Part
from hardpoint.platform import Suspected
from hardpoint_usb import serio, withheld
from hardpoint_usb.adapters import BTUSB, extra_nodes
from hardpoint_usb.attributes import ids_of, of_interface, of_port, of_whole, present
from hardpoint_usb.by_id import by_id, is_late
from hardpoint_usb.identity import device_name
from hardpoint_usb.ports import USBFS, Interface, Port
from hardpoint_usb.shapes import SOUND, roles_of, subsystem_of
from hardpoint_usb.usbfs import SUBSYSTEM, Usbfs, When

if TYPE_CHECKING:
    from hardpoint_usb.scan import Scan

KIND = "usb"
ADAPTER = "bluetooth.adapter"

MAY_BIND = Taint("driver-may-bind")
IN_USE = Taint("in-use")


@dataclass(frozen=True, slots=True)
class Draft:
    """A device before it is known how many its port has."""

    name: str
    interfaces: tuple[Interface, ...]
    nodes: tuple[DeviceNode, ...]
    kind: str = KIND
    extra: tuple[DeviceNode, ...] = ()
    """Nodes that are handed over too and say nothing of what the device is."""
    alone: bool = True
    """False for a device that is some nodes of its interface, beside another."""

    @property
    def subsystem(self) -> str:
        """One word for its nodes."""
        return subsystem_of(self.nodes)

    @property
    def has_disk(self) -> bool:
        """Say whether it hands over a block device."""
        return any(node.type is NodeType.BLOCK for node in self.nodes)


def judge(scan: Scan, port: Port) -> Iterator[Listed]:
    """Yield the devices of a port, and a reason for what of it is not offered."""
    refused = _refused(scan, port)
    if refused is not None:
        yield refused
    elif _is_whole(scan, port):
        yield _whole(scan, port)
    else:
        yield from _by_interface(scan, port)


def _refused(scan: Scan, port: Port) -> Withheld | None:
    """Return why nothing of the port is offered, or None.

    What a claim holds may be replaced by the same model, or come back under the ids of its
    successor. Another model in its port is somebody else's device.
    """
    if port.is_hub:
        return withheld.hub(port)
    if not port.authorized:
        return withheld.unauthorized(port.address, "device")
    if not port.interfaces:
        return withheld.unconfigured(port)
    for held in scan.held(port).values():
        if held.origin["ids"] != ids_of(port, scan.settings.successors).published:
            return withheld.other_model(port, held.name)
    return None


# -- driven by programs --------------------------------------------------------------------------


def _is_whole(scan: Scan, port: Port) -> bool:
    held = scan.held(port)
    if held:
        return "" in held
    if serio.matches(scan.settings.serio, port) or port.usbfs is None:
        return False
    return all(one.driver in ("", USBFS) and one.authorized for one in port.interfaces)


def _whole(scan: Scan, port: Port) -> Device:
    usbfs = Usbfs(port.usbfs, When.ALWAYS)
    claimed = any(one.driver == USBFS for one in port.interfaces)
    return Device(
        name=device_name(port.address, scan.interfaces),
        kind=KIND,
        nodes=usbfs.unasked,
        attributes=present(
            _of_port(scan, port) | of_whole(port) | {"subsystem": SUBSYSTEM, "usbfsNode": True}
        ),
        parts=(exclusive(f"usb:{port.address}"), *scan.above(port)),
        taints=(
            *([MAY_BIND] if scan.may_bind(port) else []),
            *([IN_USE] if claimed and not scan.held(port) else []),
        ),
        topology=scan.topology(port),
        origin={**_origin(scan, port), **usbfs.origin()},
    )


# -- driven by the kernel ------------------------------------------------------------------------


def _by_interface(scan: Scan, port: Port) -> Iterator[Listed]:
    drafts: list[Draft] = []
    kept_by_machine = ""
    for item in _drafts(scan, port):
        if isinstance(item, Withheld):
            yield item
            continue
        fit, reason = _fit(scan, port, item)
        kept_by_machine = kept_by_machine or reason
        if fit is None:
            yield withheld.in_use(item.interfaces[0], reason)
        else:
            drafts.append(fit)
    reach = ""
    for draft in drafts:
        usbfs = _usbfs(scan, port, draft, len(drafts), kept_by_machine)
        device = _device(scan, port, draft, usbfs)
        bare = not device.nodes and usbfs.when is When.NEVER
        yield withheld.nothing_left(draft.interfaces[0], usbfs.why) if bare else device
        reach = reach or usbfs.reach(device.name)
    for one in port.interfaces:
        if not one.driven and one.address not in scan.held(port):
            yield withheld.undriven(one, reach)


def _drafts(scan: Scan, port: Port) -> Iterator[Draft | Withheld]:
    line = serio.matches(scan.settings.serio, port)
    radios = tuple(one for one in port.interfaces if one.driver == BTUSB)
    if radios:
        bare = port.usbfs is None
        yield withheld.no_node(radios[0]) if bare else _adapter(scan, port, radios)
    for one in port.interfaces:
        if one in radios:
            if one is not radios[0]:
                yield withheld.second_half(one, radios[0])
        elif line and serio.has_line(one):
            yield from _attached(one)
        elif one.driven or one.address in scan.held(port):
            yield _interface(scan, port, one)


def _adapter(scan: Scan, port: Port, radios: tuple[Interface, ...]) -> Draft:
    """One device per controller, which has a second interface for voice."""
    nodes = tuple(node for one in radios for node in one.nodes)
    extra = tuple(extra_nodes(scan.node, f"{port.entry.path}/"))
    return Draft(device_name(radios[0].address), radios, nodes, ADAPTER, extra)


def _attached(one: Interface) -> Iterator[Draft | Withheld]:
    found = False
    for suffix, nodes in serio.attached(one):
        found = True
        yield Draft(device_name(one.address) + suffix, (one,), nodes, alone=False)
    if not found:
        yield withheld.not_attached(one)


def _interface(scan: Scan, port: Port, one: Interface) -> Draft | Withheld:
    """Return a device for an interface, or why not.

    One that a claim holds stays while it is there, whatever its holder did to the driver.
    """
    held = scan.held(port).get(one.address)
    if held is None and not one.nodes:
        first = _first_half(port, one)
        return withheld.second_half(one, first) if first else withheld.no_node(one)
    return Draft(device_name(one.address), (one,), one.nodes, held.kind if held else KIND)


def _first_half(port: Port, one: Interface) -> Interface | None:
    """Return the interface that speaks for the whole function; None for one that does itself.

    That one has the driver's nodes (CDC data, UVC streaming belong to it), or has been reported.
    Of several functions with one driver the nearest before it is taken.
    """
    same = (o for o in port.interfaces if o.driver == one.driver and o is not one)
    able = [other for other in same if other.nodes or other.number < one.number]

    def distance(other: Interface) -> tuple[bool, bool, int]:
        after = other.number > one.number
        return not other.nodes, after, abs(other.number - one.number)

    return min(able, key=distance, default=None)


def _is_held_disk(scan: Scan, port: Port, draft: Draft) -> bool:
    """Say whether a claim holds this disk, and no other has taken its place.

    Its holder may write to it what makes it look in use: a volume, the signature of a storage
    system. The framework judges the nodes of a held device.
    """
    held = scan.held(port).get(draft.interfaces[0].address)
    if held is None or not draft.has_disk:
        return False
    before, after = held.attributes.get("serial", ""), text(port.serial)
    return not before or not after or before == after


def _fit(scan: Scan, port: Port, draft: Draft) -> tuple[Draft | None, str]:
    """Return the draft without what the machine itself uses, and the first reason.

    A disk of which anything is in use is not offered at all: its pass-through node writes
    everywhere. A free one that only carries a signature is the framework's to judge, which knows
    the admin's rules.
    """
    if _is_held_disk(scan, port, draft):
        return draft, ""
    reasons = {node: reason for node in draft.nodes if (reason := scan.keeps(node))}
    free = draft.interfaces[0].address not in scan.held(port)
    if not reasons or (free and all(isinstance(why, Suspected) for why in reasons.values())):
        return draft, ""
    rest = tuple(node for node in draft.nodes if node not in reasons)
    why = next(iter(reasons.values()))
    if not rest or draft.has_disk:
        return None, why
    return Draft(draft.name, draft.interfaces, rest, draft.kind, draft.extra, draft.alone), why


def _usbfs(scan: Scan, port: Port, draft: Draft, siblings: int, kept_by_machine: str) -> Usbfs:
    node = port.usbfs
    if serio.matches(scan.settings.serio, port):
        return Usbfs(node, When.NEVER, "a reset would end the attached serial line")
    if kept_by_machine:
        return Usbfs(node, When.NEVER, f"it reaches what the machine uses: {kept_by_machine}")
    if beside := _out_of_reach(port, draft):
        return Usbfs(node, When.NEVER, f"it reaches the {beside} at another interface")
    held = scan.held(port).get(draft.interfaces[0].address)
    had_it = held is not None and held.origin.get("usbfsWhen") == When.DEFAULT
    if siblings == 1 or draft.kind == ADAPTER or had_it:
        return Usbfs(node, When.DEFAULT)
    return Usbfs(node, When.REQUEST)


def _out_of_reach(port: Port, draft: Draft) -> str:
    """Name what another interface has that nobody gets by way of usbfs.

    A disk is offered where the admin allows it, and a network interface may be the node's own.
    """
    others = [one for one in port.interfaces if one not in draft.interfaces]
    if any(node.type is NodeType.BLOCK for one in others for node in one.nodes):
        return "disk"
    return "network interface" if any(one.has_network for one in others) else ""


def _device(scan: Scan, port: Port, draft: Draft, usbfs: Usbfs) -> Device:
    first = draft.interfaces[0]
    shown = (*draft.nodes, *usbfs.unasked)
    own: dict[str, AttributeValue | None] = {
        "subsystem": draft.subsystem,
        "byId": _by_id(scan, port, draft),
        **roles_of(shown),
        SOUND: draft.subsystem == "sound",
    }
    return Device(
        name=draft.name,
        kind=draft.kind,
        nodes=(*draft.nodes, *usbfs.unasked, *draft.extra),
        attributes=present(_of_port(scan, port) | of_interface(first) | own),
        parts=(*_parts(draft), shared(f"usb:{port.address}"), *scan.above(port)),
        taints=(MAY_BIND,) if scan.may_bind(port) else (),
        topology=scan.topology(port),
        origin={**_origin(scan, port), "interface": first.address, **usbfs.origin()},
    )


def _by_id(scan: Scan, port: Port, draft: Draft) -> str:
    name = by_id(scan.node, draft.nodes)
    if not name and is_late(scan.node, draft.nodes):
        scan.waits_for_udev(port)
    return name


def _parts(draft: Draft) -> Iterator[Part]:
    take = exclusive if draft.alone else shared
    for one in draft.interfaces:
        yield take(f"usb:{one.address}")


def _origin(scan: Scan, port: Port) -> dict[str, str]:
    ids = ids_of(port, scan.settings.successors)
    return {"port": port.address, "ids": ids.published}


def _of_port(scan: Scan, port: Port) -> dict[str, AttributeValue | None]:
    ids = ids_of(port, scan.settings.successors)
    return of_port(port, ids, unique=scan.serial_is_unique(port))
