"""What sysfs says of a USB device and its interfaces, each file read once.

A *port* is a place that a device is plugged into, named by bus and hub ports: ``1-4.2``. The
device there has one or more *interfaces*, each with a kernel driver of its own: ``1-4.2:1.0``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from hardpoint import DeviceNode, Entry, exclusive
from hardpoint_usb.classes import HUB

USBFS = "usbfs"
"""The driver of an interface that a program has claimed (drivers/usb/core/devio.c)."""
PLUMBING = frozenset({"usb", "hub", USBFS})
"""Drivers that make an interface nobody's device."""

_PORT = re.compile(r"[1-9]\d*-[1-9]\d*(?:\.[1-9]\d*)*", re.ASCII)
_INTERFACE = re.compile(rf"({_PORT.pattern}):\d+\.(\d+)", re.ASCII)
_HEX_ID = re.compile(r"[0-9a-f]{4}")
_ALIAS = re.compile(
    r"usb:v[0-9A-F]{4}p[0-9A-F]{4}d[0-9A-F]{4}dc..dsc..dp.."
    r"ic([0-9A-F]{2})isc([0-9A-F]{2})ip([0-9A-F]{2})in[0-9A-F]{2}"
)


@dataclass(frozen=True)
class Interface:
    """One interface, as far as it matters here."""

    entry: Entry
    address: str
    """``1-4.2:1.0``."""
    number: int
    modalias: str
    driver: str
    class_code: str
    subclass: str
    protocol: str
    authorized: bool
    nodes: tuple[DeviceNode, ...] = ()
    """Nodes of its driver, without those of devices on a bus of their own below it."""

    @property
    def driven(self) -> bool:
        """Say whether a kernel driver makes something of it."""
        return bool(self.driver) and self.driver not in PLUMBING

    @property
    def has_network(self) -> bool:
        """Say whether its driver made a network interface, which has no node."""
        return self.driven and self.entry.has("net")

    @cached_property
    def label(self) -> str:
        """The interface's own string, where its maker gave it one."""
        return self.entry.get("interface")


@dataclass(frozen=True)
class Port:
    """A device in a port."""

    entry: Entry
    address: str
    """``1-4.2``."""
    interfaces: tuple[Interface, ...]
    vendor: str
    product: str
    serial: str
    authorized: bool

    @property
    def ids(self) -> str:
        """Vendor and product as ``lsusb`` prints them."""
        return f"{self.vendor}:{self.product}"

    @property
    def bus(self) -> str:
        """The number of its bus."""
        return self.address.partition("-")[0]

    @property
    def is_hub(self) -> bool:
        """Say whether other devices hang from it."""
        if not self.interfaces:
            return self.entry.get("bDeviceClass") == HUB
        return any(one.class_code == HUB or one.driver == "hub" for one in self.interfaces)

    @property
    def undriven(self) -> tuple[Interface, ...]:
        """Interfaces that a driver might still bind to."""
        return tuple(one for one in self.interfaces if not one.driver and one.authorized)

    @cached_property
    def name(self) -> str:
        """Its maker's words for it."""
        return f"{self.entry.get('manufacturer')} {self.entry.get('product')}".strip()

    @cached_property
    def usbfs(self) -> DeviceNode | None:
        """The node of the whole device; whoever has it can reset it and claim every interface."""
        node = self.entry.device_node()
        return node and replace(node, takes=(exclusive(f"usb:{self.address}"),))

    @cached_property
    def age(self) -> float | None:
        """Seconds since it was plugged in (ABI/testing/sysfs-bus-usb); None without power
        management in the kernel."""
        milliseconds = self.entry.number("power/connected_duration")
        return None if milliseconds is None else milliseconds / 1000

    def hubs(self) -> Iterator[str]:
        """Yield the addresses of what it hangs from: hubs, nearest first, and the root hub."""
        above = self.address.rpartition(".")[0]
        while above:
            yield above
            above = above.rpartition(".")[0]
        yield f"usb{self.bus}"


def is_port(name: str) -> bool:
    """Say whether a name on the bus is a device in a port: no root hub, no interface."""
    return bool(_PORT.fullmatch(name))


def port_of(name: str) -> str:
    """Return the port that an interface belongs to; ``""`` for what is no interface."""
    found = _INTERFACE.fullmatch(name)
    return found[1] if found else ""


def read_port(entry: Entry, interfaces: Iterable[Entry]) -> Port:
    """Read a device with its interfaces. Raises ``OSError`` where an attribute cannot be read."""
    read = (_read_interface(one) for one in interfaces)
    return Port(
        entry=entry,
        address=entry.name,
        interfaces=tuple(sorted((i for i in read if i), key=lambda i: (i.number, i.address))),
        vendor=_hex_id(entry.text("idVendor")),
        product=_hex_id(entry.text("idProduct")),
        serial=entry.text("serial"),
        authorized=entry.text("authorized") != "0",
    )


def _hex_id(text: str) -> str:
    lower = text.lower()
    return lower if _HEX_ID.fullmatch(lower) else ""


def _read_interface(entry: Entry) -> Interface | None:
    """Read an interface; None for one without a modalias: it is on its way in or out."""
    modalias = entry.text("modalias")
    found = _INTERFACE.fullmatch(entry.name)
    if not modalias or found is None:
        return None
    driver = entry.driver
    code, subclass, protocol = _class_codes(entry, modalias)
    return Interface(
        entry=entry,
        address=entry.name,
        number=int(found[2]),
        modalias=modalias,
        driver=driver,
        class_code=code,
        subclass=subclass,
        protocol=protocol,
        authorized=bool(driver) or entry.text("authorized") != "0",
        nodes=entry.nodes() if driver and driver not in PLUMBING else (),
    )


def _class_codes(entry: Entry, modalias: str) -> tuple[str, str, str]:
    """Return class, subclass and protocol, which the modalias repeats (usb_if_uevent)."""
    found = _ALIAS.fullmatch(modalias)
    if found:
        return found[1].lower(), found[2].lower(), found[3].lower()
    names = ("bInterfaceClass", "bInterfaceSubClass", "bInterfaceProtocol")
    code, subclass, protocol = (entry.text(name).lower() for name in names)
    return code, subclass, protocol
