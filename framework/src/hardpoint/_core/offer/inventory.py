"""What the drivers list, kept through failures, and the offer that is made of it.

A walk that failed is not an empty walk: the last good list stands, marked stale. Everything here
is pure: listings and facts go in, an ``Offer`` comes out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hardpoint._core.offer.judging import BAD_DEVICE, Facts, Judgement, judgement_of
from hardpoint._core.offer.rules import idle_rules
from hardpoint._core.offer.shares import Shares
from hardpoint._core.offer.subjects import concerns
from hardpoint.attributes import publishable, with_hash
from hardpoint.errors import BadValue
from hardpoint.model import (
    Condition,
    Device,
    Domain,
    Health,
    HoldState,
    Listed,
    Offer,
    Offered,
    Part,
    Taint,
    Unread,
    Withheld,
    slug,
)

STALE_AFTER = 60.0
"""Seconds after which a device that could not be read again takes no new claim."""

STALE = Taint("stale")
ABSENT = Taint("absent")
UNHEALTHY = Taint("unhealthy")
RIVAL = Taint("in-use")
QUARANTINED = "quarantined"
"""The rule of a device that is withheld for its last holder's sake."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What one driver said last. ``stale`` maps a device's name to when it was last not read."""

    driver: str
    devices: tuple[Device, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    stale: Mapping[str, float] = field(default_factory=dict)
    answered: bool = False
    """False while the driver has not answered since the agent started."""

    def after(self, listed: Iterable[Listed], now: float) -> Listing:
        """Return the listing after a walk: unread entries keep what was last read from them."""
        devices, withheld, unread = [], [], list[Unread]()
        for item in listed:
            if isinstance(item, Device):
                devices.append(replace(item, driver=self.driver))
            elif isinstance(item, Withheld):
                withheld.append(replace(item, driver=self.driver))
            else:
                unread.append(item)
        lost = {item.entry for item in unread}
        kept = [d for d in self.devices if d.entry in lost]
        seen = {d.entry for d in kept}
        withheld += [_not_read(item, self.driver) for item in unread if item.entry not in seen]
        stale = {d.name: self.stale.get(d.name, now) for d in kept}
        return Listing(self.driver, (*devices, *kept), tuple(withheld), stale, answered=True)

    def failed(self, now: float) -> Listing:
        """Return the listing after a walk that failed: all of it stands, marked stale."""
        stale = {d.name: self.stale.get(d.name, now) for d in self.devices}
        return replace(self, stale=stale, answered=True)


def _not_read(item: Unread, driver: str) -> Withheld:
    return Withheld(
        item.entry,
        "unread",
        f"could not be read ({item.reason}); it is tried again with every event and on a timer",
        driver,
    )


@dataclass(frozen=True, slots=True)
class Built:
    """An offer in the making, and what had to be mended in what the drivers said."""

    devices: tuple[Offered, ...]
    withheld: tuple[Withheld, ...]
    problems: tuple[tuple[str, str, BadValue], ...]
    """Driver, device and what was wrong."""
    used: frozenset[int] = frozenset()
    """Which of the admin's rules matched a device."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A listing after the validator, the platform and the admin's rules."""

    listing: Listing
    domain: Domain
    held: frozenset[str] = frozenset()
    """Names that somebody held when it was judged."""
    judgements: tuple[Judgement, ...] = ()


def judge(listing: Listing, facts: Facts, last: Judged | None = None) -> Judged:
    """Judge every device of a listing by itself.

    Of the last judgement of the same listing, only what somebody holds or held meanwhile is judged
    again.
    """
    domain = facts.domain_of(listing.driver)
    held = held_names(domain, facts)
    known = dict[int, Judgement]()
    if last is not None and last.listing is listing:
        moved = held ^ last.held
        known = {id(v.listed): v for v in last.judgements if v.name not in moved}
    judgements = tuple(known.get(id(d)) or judgement_of(d, domain, facts) for d in listing.devices)
    return Judged(listing, domain, held, judgements)


def held_names(domain: Domain, facts: Facts) -> frozenset[str]:
    """Return the names of a domain's devices that are held."""
    return frozenset(h.device.name for h in facts.holds if h.claim.dra_driver == domain.dra_driver)


def build(listings: Iterable[Listing], facts: Facts) -> Built:
    """Make the offer of what drivers list, before policies are asked."""
    return assemble([judge(listing, facts) for listing in listings], facts)


def assemble(listings: Iterable[Judged], facts: Facts) -> Built:
    """Put listings together: names, quarantine, holds, health, rivals. Looks at nothing."""
    ordered = sorted(listings, key=lambda one: one.listing.driver)
    withheld = [withheld for judged in ordered for withheld in _withheld_of(judged)]
    seen: dict[tuple[str, str], str] = {}
    offered: list[tuple[Offered, tuple[Part, ...]]] = []
    for judged in ordered:
        held = held_names(judged.domain, facts)
        for judgement in judged.judgements:
            device = judgement.answer
            if isinstance(device, Withheld):
                continue
            key = (judged.domain.dra_driver, device.name)
            if key in facts.quarantined:
                why = facts.quarantined[key]
                withheld.append(Withheld(device.name, QUARANTINED, why, device.driver))
            elif key in seen:
                withheld.append(_second(device, seen[key]))
                continue
            else:
                one = _as_offered(device, judgement, judged, facts)
                offered.append((replace(one, held=device.name in held), judgement.parts))
            seen[key] = judged.listing.driver
    absent = list(_held_but_absent(facts, seen, withheld))
    offered.extend((one, one.device.all_parts) for one in absent)
    devices = tuple(sorted(_rivals(offered), key=lambda one: one.name))
    judgements = [judgement for judged in ordered for judgement in judged.judgements]
    problems = tuple(problem for judgement in judgements for problem in judgement.problems)
    used = frozenset(number for judgement in judgements for number in judgement.used)
    return Built(devices, tuple(withheld), problems, used)


def _withheld_of(judged: Judged) -> Iterator[Withheld]:
    yield from judged.listing.withheld
    for judgement in judged.judgements:
        if isinstance(judgement.answer, Withheld):
            yield judgement.answer


def _second(device: Device, first: str) -> Withheld:
    return Withheld(
        device.name,
        "same-name",
        f"driver {first} publishes a device of this name in the same domain; this one was read "
        f"from {device.entry or 'elsewhere'}",
        device.driver,
    )


def _as_offered(device: Device, judgement: Judgement, judged: Judged, facts: Facts) -> Offered:
    stale = judged.listing.stale.get(judgement.listed.name)
    health = facts.health.get((device.driver, device.name), Health(Condition.HEALTHY))
    taints = list(device.taints)
    old = stale is not None and facts.now - stale >= STALE_AFTER
    if old:
        taints.append(STALE)
    if health.condition is Condition.UNHEALTHY:
        taints.append(UNHEALTHY)
    return Offered(
        device=device,
        domain=judged.domain,
        health=health,
        taints=tuple(dict.fromkeys(taints)),
        claimable=not old and health.condition is not Condition.UNHEALTHY,
        vouched=judgement.vouched,
    )


def _held_but_absent(
    facts: Facts, seen: Mapping[tuple[str, str], str], withheld: Sequence[Withheld]
) -> Iterator[Offered]:
    """Keep a device that somebody holds, tainted, when no driver lists it any more.

    One that is withheld is there all the same, and it is said why it is not offered.
    """
    shown: set[tuple[str, str]] = set()
    for hold in facts.holds:
        key = (hold.claim.dra_driver, hold.device.name)
        if key in seen or key in shown or any(concerns(w, hold.device) for w in withheld):
            continue
        if hold.state is HoldState.QUARANTINED or key in facts.quarantined:
            continue
        shown.add(key)
        domain = facts.domain_of(hold.device.driver)  # it may be another than when it was taken
        yield Offered(
            device=_as_shown(hold.device, key[0]),
            domain=replace(domain, dra_driver=hold.claim.dra_driver),
            health=Health(Condition.UNHEALTHY, "the device is not there any more"),
            taints=(*hold.device.taints, ABSENT),
            held=True,
            claimable=False,
        )


def _as_shown(device: Device, dra_driver: str) -> Device:
    """Return a held device as it can be published.

    One that was found in a file, or in a ledger of another release, may be called anything; its
    nodes stay as they are, since they say which others contend with it.
    """
    try:
        fit, _ = publishable(device, dra_driver)
    except BadValue:
        name = with_hash(slug(device.name) or "held", device.name)
        fit, _ = publishable(replace(device, name=name, kind="unknown"), dra_driver)
    return replace(fit, nodes=device.nodes)


def _rivals(offered: Sequence[tuple[Offered, tuple[Part, ...]]]) -> Iterator[Offered]:
    """Taint what cannot be had while somebody holds another device with the same part."""
    takers: dict[str, list[Part]] = defaultdict(list)
    for one, parts in offered:
        if one.held:
            for part in parts:
                takers[part.name].append(part)
    for one, parts in offered:
        taken = (
            not one.held
            and RIVAL not in one.taints
            and any(part.contends(other) for part in parts for other in takers.get(part.name, ()))
        )
        yield replace(one, taints=(*one.taints, RIVAL)) if taken else one


def undisputed(built: Built, shares: Shares) -> Built:
    """Withhold what two frontends would offer."""
    devices, withheld = shares.judge(built.devices)
    return replace(built, devices=devices, withheld=(*built.withheld, *withheld))


def vetoed(built: Built, reasons: Mapping[str, str]) -> Built:
    """Withhold what policies veto; reasons by device name."""
    withheld = [
        Withheld(o.name, "vetoed", reasons[o.name], o.device.driver)
        for o in built.devices
        if o.name in reasons
    ]
    devices = tuple(o for o in built.devices if o.name not in reasons)
    return replace(built, devices=devices, withheld=(*built.withheld, *withheld))


def as_offer(built: Built, last: Offer, *, complete: bool) -> Offer:
    """Return the next offer; the last one itself when nothing changed."""
    new = Offer(
        generation=last.generation,
        devices=built.devices,
        withheld=built.withheld,
        complete=complete,
    )
    return last if new == last else replace(new, generation=last.generation + 1)


def difference(old: Offer, new: Offer) -> Iterator[tuple[str, str]]:
    """Yield what happened to each device: ``added``, ``removed`` or ``changed``, and its name.

    That a claim holds it now is no change of the device.
    """
    before = {(o.domain.dra_driver, o.name): o for o in old.devices}
    after = {(o.domain.dra_driver, o.name): o for o in new.devices}
    for key in sorted(before.keys() | after.keys()):
        if key not in before:
            yield "added", key[1]
        elif key not in after:
            yield "removed", key[1]
        elif replace(before[key], held=after[key].held) != after[key]:
            yield "changed", key[1]


__all__ = [
    "ABSENT",
    "BAD_DEVICE",
    "QUARANTINED",
    "Built",
    "Facts",
    "Judged",
    "Listing",
    "as_offer",
    "assemble",
    "build",
    "difference",
    "idle_rules",
    "judge",
    "undisputed",
    "vetoed",
]
