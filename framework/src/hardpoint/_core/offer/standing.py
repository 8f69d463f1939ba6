"""Where a held device stands in the offer of this moment."""

from __future__ import annotations

import enum

from hardpoint._core.ledger.records import Record
from hardpoint._core.offer.inventory import ABSENT, QUARANTINED
from hardpoint._core.offer.subjects import concerns
from hardpoint.model import Device, Offer

_NOBODY = ""
"""The driver of a device that was found in a CDI file alone: whoever publishes it by now."""


class Standing(enum.Enum):
    """What may become of a hold on a device."""

    PRESENT = "present"
    ABSENT = "absent"
    """Gone from the node."""
    WITHHELD = "withheld"
    """On the node, and not to be used: a veto, a grant that ended, an admin's rule."""
    UNKNOWN = "unknown"
    """Not to be said now: its driver has not answered yet, or it is quarantined for another."""


def standing(record: Record, offer: Offer) -> tuple[Standing, Device]:
    """Return where a held device stands, and the device as it is known best."""
    held = record.device
    offered = offer.find(held.name, record.claim.dra_driver)
    if offered is not None and held.driver in (offered.device.driver, _NOBODY):
        if ABSENT not in offered.taints:
            return _granted(record, offered.allocation), offered.device
        return (Standing.ABSENT if offer.complete else Standing.UNKNOWN), held
    for withheld in offer.withheld:
        if concerns(withheld, held):
            kept = withheld.rule == QUARANTINED
            return (Standing.UNKNOWN if kept else Standing.WITHHELD), held
    return (Standing.ABSENT if offer.complete else Standing.UNKNOWN), held


def _granted(record: Record, allocation: str) -> Standing:
    """Say whether what a device was taken under is what it is offered under.

    One that is offered under none is of a kind that no source governs, or governs any more.
    Of a claim that was found in a CDI file alone nobody knows the grant before it is prepared anew.
    """
    if allocation in ("", record.allotment.allocation):
        return Standing.PRESENT
    unknown = record.rebuilt and not record.allotment.allocation
    return Standing.UNKNOWN if unknown else Standing.WITHHELD
