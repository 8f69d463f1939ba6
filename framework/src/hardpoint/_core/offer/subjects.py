"""Which device a reason for withholding something is about."""

from __future__ import annotations

import os

from hardpoint.model import Device, Withheld


def concerns(withheld: Withheld, device: Device) -> bool:
    """Say whether what is withheld is this device, as a claim holds it.

    By its name, whoever withholds it; or by its driver, under where it was read from, or an address
    that the driver finds it again by. An address may have its bus in front: ``pci 0000:0a:00.0``.
    """
    subject = withheld.subject
    if subject == device.name:
        return True
    if device.driver and withheld.driver not in ("", device.driver):
        return False
    places = {device.entry, os.path.basename(device.entry), *device.origin.values()} - {""}
    return subject in places or subject.partition(" ")[2] in places
