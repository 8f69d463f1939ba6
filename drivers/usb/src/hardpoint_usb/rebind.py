"""Giving a device back to the kernel's driver that a claim's program took it from.

libusb programs detach the driver (Network UPS Tools does so with ``usbhid``) and few attach it
again; sysfs does not remember it. So it is written down before the claim gets the device, and
bound again after: exactly that driver, and only where nobody else has decided otherwise since.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from hardpoint import Device, Entry, Hold, Node
from hardpoint_usb.deliver import takes_whole_device
from hardpoint_usb.ports import PLUMBING, port_of
from hardpoint_usb.settings import UsbParameters

_log = logging.getLogger("hardpoint.usb")

_NOT_REMEMBERED = PLUMBING | {""}


def remember(node: Node, device: Device, parameters: UsbParameters | None, hold: Hold) -> None:
    """Write down which drivers the holder could detach; once, however often it is prepared.

    Without usbfs it can detach none, and what changes is somebody else's doing. An interface
    without a driver has none to give back: an administrator may have unbound it on purpose.
    """
    if "drivers" in hold.remembered:
        return
    port = device.origin["port"]
    bound = dict(_bound(node, port)) if takes_whole_device(device, parameters) else {}
    hold.remember(drivers=bound, unit=_unit(node.usb(port)))


def _bound(node: Node, port: str) -> list[tuple[str, str]]:
    interfaces = (e for e in node.entries("bus/usb/devices") if port_of(e.name) == port)
    return [(e.name, driver) for e in interfaces if (driver := e.driver) not in _NOT_REMEMBERED]


def restore(node: Node, hold: Hold) -> None:
    """Bind the drivers again that the holder left detached. Never fails: a pod must not hang in
    Terminating for it."""
    drivers = hold.remembered.get("drivers")
    if not isinstance(drivers, Mapping):
        return
    for address, driver in sorted(drivers.items()):
        try:
            _restore_one(node, address, driver, hold.remembered.get("unit"))
        except OSError as error:
            _log.warning(
                "driver not bound again interface=%s driver=%s error=%s",
                address,
                driver,
                error.strerror,
            )


def _restore_one(node: Node, address: str, driver: str, unit: object) -> None:
    interface = node.usb(address)
    port = node.usb(port_of(address))
    if not interface.exists() or interface.driver:
        return
    reason = _hands_off(interface, port, driver, unit)
    if reason:
        _log.info("driver left unbound interface=%s driver=%s why=%s", address, driver, reason)
        return
    node.entry(f"bus/usb/drivers/{driver}").write("bind", address)
    _log.info("driver bound again interface=%s driver=%s", address, driver)


def _hands_off(interface: Entry, port: Entry, driver: str, unit: object) -> str:
    """Return why somebody wants the interface as it is, or ``""``."""
    if _unit(port) != unit:
        return "another-unit"
    if "0" in (port.text("authorized"), interface.text("authorized")):
        return "unauthorized"
    override = interface.text("driver_override")
    return "driver-override" if override not in ("", "(null)", driver) else ""


def _unit(port: Entry) -> str:
    return "/".join(port.get(name) for name in ("idVendor", "idProduct", "serial"))
