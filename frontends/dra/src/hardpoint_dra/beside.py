"""What the device plugin API has given away, as the scheduler is to see it: pure.

A pod that runs since before its node was moved to DRA keeps its device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from hardpoint.allocation import is_allocation
from hardpoint.model import Hold, Offer, Offered, Taint

IN_USE = Taint("in-use")
"""On a device that a pod has through the device plugin API."""


def beside_allocations(offer: Offer, holds: Iterable[Hold]) -> Offer:
    """Return an offer in which what such a pod has is tainted, and held by no claim.

    The scheduler knows of claims alone. One that it allocated such a device could not be prepared
    before that pod ends. A shareable device is had by both.
    """
    taken = {(h.claim.dra_driver, h.device.name) for h in holds if is_allocation(h.claim)}
    if not taken:
        return offer
    return replace(offer, devices=tuple(_beside(one, taken) for one in offer.devices))


def _beside(offered: Offered, taken: Collection[tuple[str, str]]) -> Offered:
    if offered.device.shareable or (offered.domain.dra_driver, offered.name) not in taken:
        return offered
    return replace(offered, taints=(IN_USE, *offered.taints), held=False)
