"""One look at the bus: which ports are there, and what all of them together say about one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from hardpoint import Device, DeviceNode, Entry, Node, Part, Topology, shared
from hardpoint.attributes import text
from hardpoint.model import Listed
from hardpoint.node import described
from hardpoint_usb.identity import is_real_serial
from hardpoint_usb.judge import judge
from hardpoint_usb.ports import Port, is_port, port_of, read_port
from hardpoint_usb.settings import UsbSettings

BUS = "bus/usb/devices"

_SOON = 0.5

Keeps = Callable[[DeviceNode], str | None]
"""Says why the machine itself needs a node, or None."""


class Scan:
    """What is read in one call of ``publish_devices``; nothing is read twice."""

    def __init__(self, node: Node, settings: UsbSettings, keeps: Keeps) -> None:
        self.node, self.settings, self.keeps = node, settings, keeps
        self.look_again_in: float | None = None
        """Seconds until something may differ that no event tells of; None without such."""
        self._entries: dict[str, Entry] = {}
        self._interfaces: dict[str, list[Entry]] = defaultdict(list)
        self._ports: dict[str, Port] = {}
        self._above: dict[str, tuple[tuple[Part, ...], Topology]] = {}
        for entry in node.entries(BUS):
            self._entries[entry.name] = entry
            if port := port_of(entry.name):
                self._interfaces[port].append(entry)

    def listed(self) -> Iterator[Listed]:
        """Yield what every port has to offer, or why it does not.

        A port that cannot be read costs that port, as with ``node.each``, which would list the bus
        a second time.
        """
        for address in filter(is_port, self._entries):
            yield from described(self._entries[address], self._describe)

    def _describe(self, entry: Entry) -> Iterator[Listed]:
        return judge(self, self.port(entry.name))

    def port(self, address: str) -> Port:
        """Return what is in a port. Raises ``OSError`` where it cannot be read."""
        if address not in self._ports:
            entry, interfaces = self._entries[address], self._interfaces[address]
            self._ports[address] = read_port(entry, interfaces)
        return self._ports[address]

    # -- what only the whole bus tells ------------------------------------------------------------

    @property
    def interfaces(self) -> Mapping[str, Entry]:
        """Everything on the bus by its address, interfaces included."""
        return self._entries

    def serial_is_unique(self, port: Port) -> bool:
        """Say whether the serial number tells this unit from every other here."""
        return is_real_serial(port.serial) and self._units[_unit(port)] == 1

    @cached_property
    def _units(self) -> Counter[tuple[str, str, str]]:
        return Counter(_unit(port) for port in self._readable_ports())

    def _readable_ports(self) -> Iterator[Port]:
        for address in filter(is_port, self._entries):
            try:
                yield self.port(address)
            except Exception:  # noqa: BLE001, S112 - reported when it is judged itself
                continue

    def held(self, port: Port) -> dict[str, Device]:
        """Return the devices of this port that claims hold, as they were when taken.

        By interface, or ``""`` for the whole device: an admin's rule may have changed the name.
        """
        return self._held.get(port.address, {})

    @cached_property
    def _held(self) -> dict[str, dict[str, Device]]:
        by_port: dict[str, dict[str, Device]] = defaultdict(dict)
        for device in self.node.held().values():
            if {"port", "ids"} <= device.origin.keys():
                interface = device.origin.get("interface", "")
                by_port[device.origin["port"]][interface] = device
        return by_port

    # -- where it hangs ---------------------------------------------------------------------------

    def above(self, port: Port) -> tuple[Part, ...]:
        """Return the parts that a device in this port shares with others: hubs and controller."""
        hubs = tuple(shared(f"usb:{hub}") for hub in port.hubs())
        return (*hubs, *self._root(port)[0])

    def topology(self, port: Port) -> Topology:
        """Return where the port's controller sits."""
        return self._root(port)[1]

    def _root(self, port: Port) -> tuple[tuple[Part, ...], Topology]:
        if port.bus not in self._above:
            root = self._entries.get(f"usb{port.bus}", port.entry)
            pci = tuple(shared(a.part) for a in root.ancestors() if a.subsystem == "pci")
            self._above[port.bus] = (pci, root.topology())
        return self._above[port.bus]

    # -- time -------------------------------------------------------------------------------------

    def may_bind(self, port: Port) -> bool:
        """Say whether a driver may yet bind to an interface that has none.

        A module takes a moment to load. A claim that took the device in that moment would see it
        turn into another one.
        """
        left = self._settles_in(port) if port.undriven else 0.0
        if left > 0:
            self._look_again_in(left)
        return left > 0

    def waits_for_udev(self, port: Port) -> None:
        """Look again soon: what udev has to say of a device that was just plugged in is missing."""
        if self._settles_in(port) > 0:
            self._look_again_in(_SOON)

    def _settles_in(self, port: Port) -> float:
        return 0.0 if port.age is None else self.settings.settle_seconds - port.age

    def _look_again_in(self, seconds: float) -> None:
        soonest = self.look_again_in
        self.look_again_in = seconds if soonest is None else min(seconds, soonest)


def _unit(port: Port) -> tuple[str, str, str]:
    """Return what tells a unit, the serial number as it is published: cut."""
    return port.vendor, port.product, text(port.serial)
