"""What devices are called in DRA: the name that a grant gives them, put on and taken off again.

The agent knows a device by its driver's name. Under a grant the scheduler knows it by another one,
so that a claim that was allocated it under the grant before can never have it under the next. Here
is where the two names meet: everything that is told to the API server and the kubelet is made of an
offer that has passed ``as_published``, and what they say comes back through ``allotted``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from hardpoint.errors import HoldDenied
from hardpoint.grants import attributes_of, published_name
from hardpoint.model import Allotment, Claim, Device, Offer, Offered


def as_published(offer: Offer) -> Offer:
    """Return an offer in which each device under a grant has its name and attribute in DRA.

    Two devices that would have one name are left out both: a claim could mean either.
    """
    if not any(one.allocation for one in offer.devices):
        return offer
    twice = twins(offer)
    named = (_named(one) for one in offer.devices)
    kept = tuple(one for one in named if (one.domain.dra_driver, one.name) not in twice)
    return replace(offer, devices=kept)


def given(device: Device, allocation: str) -> Device:
    """Return a device as it is known in DRA under a grant."""
    name, attributes = published_name(device.name, allocation), attributes_of(device, allocation)
    return replace(device, name=name, attributes=attributes) if allocation else device


def allotted(claim: Claim, offer: Offer) -> Claim:
    """Return a claim in the agent's own words: which device, under which grant.

    A name that nothing is offered under now stays as it is, for the agent to refuse. Raises
    ``HoldDenied`` for one that two devices have.
    """
    driver = claim.key.dra_driver
    return replace(
        claim, allotments=tuple(_allotted(one, offer, driver) for one in claim.allotments)
    )


def _allotted(allotment: Allotment, offer: Offer, driver: str) -> Allotment:
    found = find(allotment.device, offer, driver)
    if len(found) > 1:
        both = " and ".join(one.name for one in found)
        why = f"device {allotment.device} may be {both}: neither is offered"
        raise HoldDenied(why, reason="not-offered")
    if not found or not found[0].allocation:
        return allotment
    (one,) = found
    return replace(
        allotment, device=one.name, allocation=one.allocation, published=allotment.device
    )


def find(published: str, offer: Offer, driver: str) -> list[Offered]:
    """Return what is offered under a name now: nothing, or one device; two that share it."""
    own = (one for one in offer.devices if one.domain.dra_driver == driver)
    return [one for one in own if published_name(one.name, one.allocation) == published]


def _named(offered: Offered) -> Offered:
    return replace(offered, device=given(offered.device, offered.allocation))


def twins(offer: Offer) -> frozenset[tuple[str, str]]:
    """Return DRA driver and name of what two devices would be published under."""
    counts = Counter(_names(offer.devices))
    return frozenset(name for name, count in counts.items() if count > 1)


def _names(devices: Iterable[Offered]) -> Iterable[tuple[str, str]]:
    for one in devices:
        yield one.domain.dra_driver, published_name(one.name, one.allocation)
