"""The attributes of a USB device: what is published, and the reference of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hardpoint import AttributeInfo, AttributeType
from hardpoint.model import AttributeValue
from hardpoint_usb.classes import class_word
from hardpoint_usb.identity import bcd_version, megabits
from hardpoint_usb.ports import Interface, Port
from hardpoint_usb.settings import Successor
from hardpoint_usb.shapes import SOUND

_BOOL, _INT = AttributeType.BOOL, AttributeType.INT
_STRING, _VERSION = AttributeType.STRING, AttributeType.VERSION


@dataclass(frozen=True, slots=True)
class Ids:
    """Under which ids a device is published, and which it has now where those are others."""

    vendor: str
    product: str
    present_vendor: str = ""
    present_product: str = ""

    @property
    def published(self) -> str:
        """The published ids as ``lsusb`` prints them."""
        return f"{self.vendor}:{self.product}"


def ids_of(port: Port, successors: Iterable[Successor]) -> Ids:
    """Return the ids of a device; the first ones for what the settings call a successor."""
    for one in successors:
        if one.then == port.ids:
            vendor, _, product = one.first.partition(":")
            return Ids(vendor, product, port.vendor, port.product)
    return Ids(port.vendor, port.product)


def of_port(port: Port, ids: Ids, *, unique: bool) -> dict[str, AttributeValue | None]:
    """Return what is true of the whole device. ``unique``: nothing else has its serial number."""
    entry = port.entry
    return {
        "bus": "usb",
        "portPath": port.address,
        "vendor": ids.vendor,
        "product": ids.product,
        "presentVendor": ids.present_vendor,
        "presentProduct": ids.present_product,
        "name": port.name,
        "serial": port.serial,
        "serialUnique": unique,
        "speed": megabits(entry.get("speed")),
        "bcdUSB": bcd_version(entry.get("version")),
        "bcdDevice": entry.get("bcdDevice"),
    }


def of_interface(interface: Interface) -> dict[str, AttributeValue | None]:
    """Return what is true of one interface."""
    return {
        "address": interface.address,
        "driver": interface.driver,
        "modalias": interface.modalias,
        "interfaceNumber": interface.number,
        "interfaceName": interface.label,
        **_class(interface),
    }


def of_whole(port: Port) -> dict[str, AttributeValue | None]:
    """Return what is true of a device that programs drive: its class is its first interface's.

    The class of the device itself is 00, *see the interfaces*, for most.
    """
    return {"address": port.address, "driver": "usb", **_class(port.interfaces[0])}


def _class(interface: Interface) -> dict[str, AttributeValue | None]:
    return {
        "class": class_word(interface.class_code),
        "classCode": interface.class_code,
        "subclassCode": interface.subclass,
        "protocolCode": interface.protocol,
    }


def present(facts: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    """Leave out what is not known or not so: absent is never empty or false."""
    known = {name: value for name, value in facts.items() if value is not None and value != ""}
    return {name: value for name, value in known.items() if value is not False}


def reference() -> Iterator[AttributeInfo]:
    """Describe every attribute that this driver may publish."""
    for name, kind, example, source, meaning in _REFERENCE:
        yield AttributeInfo(
            name=name,
            type=kind,
            meaning=meaning,
            source=source,
            example=example,
            unit="Mbit/s" if name == "speed" else "",
        )


_DEVICE = "bus/usb/devices/<port>/"
_INTERFACE = "bus/usb/devices/<port>:<config>.<interface>/"
_REFERENCE: tuple[tuple[str, AttributeType, str, str, str], ...] = (
    ("bus", _STRING, "usb", "constant", "The bus."),
    (
        "address",
        _STRING,
        "1-4.2:1.0",
        "name in bus/usb/devices",
        "The interface or, for a device that programs drive through usbfs, its port.",
    ),
    (
        "portPath",
        _STRING,
        "1-4.2",
        "name in bus/usb/devices",
        "Bus and hub ports of the physical device: equal for all devices that are one of it.",
    ),
    ("driver", _STRING, "ftdi_sio", _INTERFACE + "driver", "The kernel driver that is bound."),
    (
        "class",
        _STRING,
        "hid",
        _INTERFACE + "bInterfaceClass",
        (
            "A word for the class: audio, communications, hid, imaging, printer, mass-storage, "
            "cdc-data, smart-card, video, audio-video, wireless, vendor-specific."
        ),
    ),
    ("classCode", _STRING, "03", _INTERFACE + "bInterfaceClass", "Two hexadecimal digits."),
    ("subclassCode", _STRING, "01", _INTERFACE + "bInterfaceSubClass", "Two hexadecimal digits."),
    ("protocolCode", _STRING, "02", _INTERFACE + "bInterfaceProtocol", "Two hexadecimal digits."),
    ("interfaceNumber", _INT, "0", _INTERFACE + "bInterfaceNumber", "Its number in the device."),
    ("interfaceName", _STRING, "CDC ACM", _INTERFACE + "interface", "The interface's own string."),
    (
        "subsystem",
        _STRING,
        "tty",
        "subsystem of the nodes",
        (
            "What the nodes are; absent for a mix that nobody examined. The node that a holder "
            "wants decides: block with its bsg and sg, video4linux with media and input, tty with "
            "gpio, hidraw with hiddev and input, sound with input. usb: driven through usbfs."
        ),
    ),
    ("name", _STRING, "FTDI FT232R", _DEVICE + "manufacturer, product", "Its maker's words."),
    ("modalias", _STRING, "usb:v0403p6001d0600…", _INTERFACE + "modalias", "What modules match."),
    ("serial", _STRING, "A50285BI", _DEVICE + "serial", "Serial number, as the device says it."),
    (
        "serialUnique",
        _BOOL,
        "true",
        _DEVICE + "serial",
        (
            "True where no other device of this vendor and product here has that serial number, "
            "and it is no blank one: select on it beside serial to be sure of the unit."
        ),
    ),
    (
        "vendor",
        _STRING,
        "0403",
        _DEVICE + "idVendor",
        "Vendor id; of the first identity where the settings name this one a successor.",
    ),
    ("product", _STRING, "6001", _DEVICE + "idProduct", "Product id; likewise."),
    ("presentVendor", _STRING, "18d1", _DEVICE + "idVendor", "Vendor id now, of a successor."),
    ("presentProduct", _STRING, "9302", _DEVICE + "idProduct", "Product id now, of a successor."),
    ("speed", _INT, "480", _DEVICE + "speed", "Negotiated speed; low speed, 1.5, is given as 1."),
    ("bcdUSB", _VERSION, "2.0.0", _DEVICE + "version", "USB version that the device follows."),
    ("bcdDevice", _STRING, "0600", _DEVICE + "bcdDevice", "The maker's version of the device."),
    (
        "byId",
        _STRING,
        "usb-FTDI_FT232R_USB_UART_A50285BI-if00-port0",
        "run/udev/data, dev/*/by-id",
        "Name in /dev/serial/by-id and the like, where it leads here and has at most 64 bytes.",
    ),
    ("serialNode", _BOOL, "true", "subsystem tty", "Hands over a serial line."),
    ("hidNode", _BOOL, "true", "subsystem hidraw, hiddev", "Hands over raw HID reports."),
    ("captureNode", _BOOL, "true", "subsystem video4linux", "Hands over a video device."),
    ("soundNode", _BOOL, "true", "subsystem sound", "Hands over ALSA nodes."),
    (SOUND, _BOOL, "true", "subsystem sound", "Is a sound card, with its jacks if it has any."),
    ("blockNode", _BOOL, "true", "subsystem block", "Hands over a disk."),
    ("inputNode", _BOOL, "true", "subsystem input", "Hands over input events."),
    ("printerNode", _BOOL, "true", "subsystem usbmisc, lpN", "Hands over a printer."),
    ("cecNode", _BOOL, "true", "subsystem cec", "Hands over a CEC bus."),
    ("displayNode", _BOOL, "true", "subsystem drm, cardN", "Hands over a display's card node."),
    ("renderNode", _BOOL, "true", "subsystem drm, renderDN", "Hands over a render node."),
    (
        "usbfsNode",
        _BOOL,
        "true",
        "subsystem usb",
        "Hands over the node of the whole USB device unless the claim does without it.",
    ),
)
