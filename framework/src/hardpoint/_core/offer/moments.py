"""What of one moment the next is compared with: so that what did not change costs nothing."""

from __future__ import annotations

from collections.abc import Iterable

from hardpoint._core.ledger.records import Record
from hardpoint._core.offer.inventory import ABSENT
from hardpoint._core.offer.shares import TWO_FRONTENDS
from hardpoint._core.plugins.faults import FaultBoard
from hardpoint.model import HoldState, Offer


def what_is_held(records: Iterable[Record]) -> frozenset[object]:
    """Return what the offer follows: which holds there are, and which of them are over.

    Each step of a claim is a change of the ledger, and an offer of all devices is no small thing.
    """
    return frozenset(
        (r.id, (r.retired or r.state is HoldState.QUARANTINED) and (r.state, r.why))
        for r in records
    )


def standing_of(offer: Offer) -> object:
    """Return what CDI files follow: which devices there are, as they are, and which are withheld.

    That a device is held now, or somebody's rival, changes nobody's file.
    """
    devices = {
        (o.domain.dra_driver, o.name): (o.device, o.allocation, ABSENT in o.taints)
        for o in offer.devices
    }
    return devices, frozenset(offer.withheld)


def say_disputes(board: FaultBoard, old: Offer, new: Offer) -> None:
    """Put on the board what two frontends would offer, and take off what they no longer do."""
    before, after = _disputes(old), _disputes(new)
    for device in before.keys() - after.keys():
        board.clear(f"settings: frontends of {device}")
    for device, why in after.items() - before.items():
        source = f"settings: frontends of {device}"
        board.record(source, f"{device}: {why}", cost="it is offered through neither")


def _disputes(offer: Offer) -> dict[str, str]:
    return {one.subject: one.reason for one in offer.withheld if one.rule == TWO_FRONTENDS}
