"""Who a device is: its name here, its serial number, its versions, from the kernel's text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection

from hardpoint import Version
from hardpoint.model import slug

_BCD = re.compile(r"([0-9]{1,2})\.([0-9])([0-9])")
_BLANK = re.compile(r"[0fFxX?*\s:._-]*")


def device_name(address: str, interfaces: Collection[str] = ()) -> str:
    """Return the name of what is at a port (``2-1.4``) or interface (``2-1.4:1.0``).

    It names the slot: another unit in the same port has the same name. A port may read like an
    interface of a hub above it (``2-1.4.1.1`` and ``2-1.4:1.1``): where ``interfaces`` has that
    one, the port's name gets a hash. The hub is there before what is plugged into it, so a name
    does not change while its device is there.
    """
    name = slug(f"usb-{address}")
    if ":" in address or _as_interface(address) not in interfaces:
        return name
    return f"{name}-{hashlib.sha256(address.encode()).hexdigest()[:6]}"


def _as_interface(port: str) -> str:
    """Return the interface that a port may be mistaken for: ``2-1.4.1.1`` for ``2-1.4:1.1``."""
    above, _, number = port.rpartition(".")
    hub, dot, config = above.rpartition(".")
    return f"{hub}:{config}.{number}" if dot else ""


def is_real_serial(serial: str) -> bool:
    """Say whether a serial number can tell two units apart.

    Cheap adapters have none, all zeros, or the blank pattern of an EEPROM that nobody wrote
    (serialport/node-serialport issue 329).
    """
    return not _BLANK.fullmatch(serial)


def bcd_version(text: str) -> Version | None:
    """Return ``bcdUSB`` as sysfs prints it (`` 2.10``) as a version: 2.1.0."""
    found = _BCD.fullmatch(text)
    if found is None:
        return None
    major, minor, patch = (int(digits) for digits in found.groups())
    return Version(f"{major}.{minor}.{patch}")


def megabits(text: str) -> int | None:
    """Return a speed in Mbit/s; low speed, 1.5, is 1. None for what the kernel does not know."""
    whole, _, _ = text.partition(".")
    return int(whole) if whole.isascii() and whole.isdigit() and len(whole) < 10 else None
