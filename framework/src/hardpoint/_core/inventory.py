"""What the drivers list, kept through failures, and the offer that is made of it.

A walk that failed is not an empty walk: the last good list stands, marked stale. Everything here
is pure: listings and facts go in, an ``Offer`` comes out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hardpoint._core.rules import facts_of, idle_rules, is_named, rule_for
from hardpoint._core.subjects import concerns
from hardpoint.attributes import publishable, with_hash
from hardpoint.errors import BadValue
from hardpoint.model import (
    Condition,
    Device,
    DeviceNode,
    Domain,
    Health,
    Hold,
    HoldState,
    Listed,
    NodeType,
    Offer,
    Offered,
    Part,
    Taint,
    Unread,
    Withheld,
    slug,
)
from hardpoint.platform import Suspected
from hardpoint.settings import Rule

STALE_AFTER = 60.0
"""Seconds after which a device that could not be read again takes no new claim."""

STALE = Taint("stale")
ABSENT = Taint("absent")
UNHEALTHY = Taint("unhealthy")
RIVAL = Taint("in-use")
BAD_DEVICE = "bad-device"
"""The rule of a device that is not as the contract says."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything beside the listings that decides what may be offered."""

    domain_of: Callable[[str], Domain]
    node_reason: Callable[[DeviceNode], str | None] = lambda node: None
    """Why the node itself keeps a device node, or None."""
    rules: tuple[Rule, ...] = ()
    holds: tuple[Hold, ...] = ()
    quarantined: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """DRA driver and device name to reason: withheld whoever asks."""
    health: Mapping[tuple[str, str], Health] = field(default_factory=dict)
    """By driver and device name."""
    now: float = 0.0


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
class Fit:
    """A device as it may be offered, and since when it could not be read, or None."""

    device: Device
    stale: float | None
    vouched: bool = False
    """A rule names it, so that the mere signature of a storage system does not keep it back."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A listing after the validator, the platform and the admin's rules.

    It looks into sysfs and is worth keeping until the driver lists anew.
    """

    listing: Listing
    domain: Domain
    devices: tuple[Fit, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    problems: tuple[tuple[str, str, BadValue], ...] = ()
    used: frozenset[int] = frozenset()
    """Which of the admin's rules matched a device."""


@dataclass(slots=True)
class Notes:
    """What is noted while devices are judged: what was mended, and which rules matched."""

    problems: list[tuple[str, str, BadValue]] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    """Published names of devices that a rule allows by their very name."""


def judge(listing: Listing, facts: Facts) -> Judged:
    """Judge every device of a listing by itself."""
    domain = facts.domain_of(listing.driver)
    devices: list[Fit] = []
    withheld: list[Withheld] = list(listing.withheld)
    notes = Notes()
    for device in listing.devices:
        answer = _judge(device, domain, facts, notes)
        if isinstance(answer, Withheld):
            withheld.append(answer)
        else:
            stale = listing.stale.get(device.name)
            devices.append(Fit(answer, stale, vouched=answer.name in notes.named))
    problems, used = tuple(notes.problems), frozenset(notes.used)
    return Judged(listing, domain, tuple(devices), tuple(withheld), problems, used)


def build(listings: Iterable[Listing], facts: Facts) -> Built:
    """Make the offer of what drivers list, before policies are asked."""
    return assemble([judge(listing, facts) for listing in listings], facts)


def assemble(listings: Iterable[Judged], facts: Facts) -> Built:
    """Put listings together: names, quarantine, holds, health, rivals. Looks at nothing."""
    ordered = sorted(listings, key=lambda one: one.listing.driver)
    withheld = [withheld for judged in ordered for withheld in judged.withheld]
    seen: dict[tuple[str, str], str] = {}
    offered: list[Offered] = []
    for judged in ordered:
        for fit in judged.devices:
            device = fit.device
            key = (judged.domain.dra_driver, device.name)
            if key in facts.quarantined:
                why = facts.quarantined[key]
                withheld.append(Withheld(device.name, QUARANTINED, why, device.driver))
            elif key in seen:
                withheld.append(_second(device, seen[key]))
                continue
            else:
                offered.append(_as_offered(fit, judged.domain, facts))
            seen[key] = judged.listing.driver
    offered.extend(_held_but_absent(facts, seen, withheld))
    devices = tuple(sorted(_rivals(offered), key=lambda one: one.name))
    problems = tuple(problem for judged in ordered for problem in judged.problems)
    used = frozenset(number for judged in ordered for number in judged.used)
    return Built(devices, tuple(withheld), problems, used)


def _judge(device: Device, domain: Domain, facts: Facts, notes: Notes) -> Device | Withheld:
    """Return the device as it may be offered, or why not. The admin's rules come last.

    What a holder has already is not taken from it for being in use: it may have made a file system
    or a volume on its disk. It gets nothing more for holding the device, though.
    """
    try:
        fit, mended = publishable(device, domain.dra_driver)
    except BadValue as bad:
        return Withheld(device.name or "?", BAD_DEVICE, str(bad), device.driver)
    notes.problems += [(device.driver, fit.name, problem) for problem in mended]
    name = _published_name(fit, facts)
    if is_named(fit, facts.rules):
        notes.named.add(name)
    held = [hold.device for hold in facts.holds if _holds(hold, name, domain)]
    kept, reasons = _without_kept_nodes(fit, facts.node_reason, held)
    if held:
        return _ruled(replace(fit, nodes=kept), domain, facts, notes)
    used = [reason for reason in reasons if not isinstance(reason, Suspected)]
    if reasons and not used and name in notes.named:
        return _ruled(fit, domain, facts, notes)
    if reasons and any(node.type is NodeType.BLOCK for node in fit.nodes):
        why = used[0] if used else f"{reasons[0]}; {rule_for(fit.name)} offers it all the same"
        return Withheld(fit.name, "disk-in-use", why, device.driver)
    if fit.nodes and not kept:
        return Withheld(fit.name, "node-in-use", reasons[0], device.driver)
    return _ruled(replace(fit, nodes=kept), domain, facts, notes)


def _published_name(device: Device, facts: Facts) -> str:
    """Return the name that rules give a device: it is what claims hold it by."""
    asked, name = facts_of(device), device.name
    for rule in facts.rules:
        if rule.matches(asked):
            if rule.action != "relabel":
                break
            name = rule.name or name
    return name


def _without_kept_nodes(
    device: Device, reason_of: Callable[[DeviceNode], str | None], held: Iterable[Device]
) -> tuple[tuple[DeviceNode, ...], list[str]]:
    """Return a device's nodes without those that the machine keeps, and why it keeps them."""
    kept, reasons = [], []
    for node in device.nodes:
        reason = None if any(_has(own, node) for own in held) else reason_of(node)
        if reason is None:
            kept.append(node)
        else:
            reasons.append(reason)
    return tuple(kept), reasons


def _has(held: Device, node: DeviceNode) -> bool:
    """Say whether a holder has a node; of a disk all, under whatever number it came back."""
    return any(own.path == node.path or own.type is NodeType.BLOCK for own in held.nodes)


def _ruled(device: Device, domain: Domain, facts: Facts, notes: Notes) -> Device | Withheld:
    """Apply the admin's rules. They ask what the driver published, whatever was relabelled."""
    asked, name, labelled = facts_of(device), device.name, device
    for number, rule in enumerate(facts.rules):
        if not rule.matches(asked):
            continue
        notes.used.add(number)
        if rule.action == "deny":
            return Withheld(name, "denied", rule.reason or "the settings deny it", device.driver)
        if rule.action == "allow":
            return _refitted(labelled, device, domain, notes)
        labelled = _relabelled(labelled, rule)
    return _block_rule(_refitted(labelled, device, domain, notes), name)


def _refitted(labelled: Device, device: Device, domain: Domain, notes: Notes) -> Device:
    """Let what a rule said pass the validator too."""
    if labelled is device:
        return device
    fit, mended = publishable(labelled, domain.dra_driver)
    notes.problems += [(device.driver, fit.name, problem) for problem in mended]
    return fit


def _relabelled(device: Device, rule: Rule) -> Device:
    merged = {**device.attributes, **rule.attributes}
    attributes = {name: value for name, value in merged.items() if value != ""}
    return replace(device, name=rule.name or device.name, attributes=attributes)


def _block_rule(device: Device, name: str) -> Device | Withheld:
    """Withhold block devices that no rule allows; ``name`` is what a rule knows it by."""
    disk = next((node for node in device.nodes if node.type is NodeType.BLOCK), None)
    if disk is None:
        return device
    return Withheld(
        device.name,
        "block-device",
        f"{disk.path} is a block device, which is offered only where the settings say so, since "
        f"the disk of a storage system may look unused: add a rule, {rule_for(name)}",
        device.driver,
    )


def _second(device: Device, first: str) -> Withheld:
    return Withheld(
        device.name,
        "same-name",
        f"driver {first} publishes a device of this name in the same domain; this one was read "
        f"from {device.entry or 'elsewhere'}",
        device.driver,
    )


def _as_offered(fit: Fit, domain: Domain, facts: Facts) -> Offered:
    device, stale = fit.device, fit.stale
    health = facts.health.get((device.driver, device.name), Health(Condition.HEALTHY))
    taints = list(device.taints)
    old = stale is not None and facts.now - stale >= STALE_AFTER
    if old:
        taints.append(STALE)
    if health.condition is Condition.UNHEALTHY:
        taints.append(UNHEALTHY)
    return Offered(
        device=device,
        domain=domain,
        health=health,
        taints=tuple(dict.fromkeys(taints)),
        held=any(_holds(hold, device.name, domain) for hold in facts.holds),
        claimable=not old and health.condition is not Condition.UNHEALTHY,
        vouched=fit.vouched,
    )


def _holds(hold: Hold, name: str, domain: Domain) -> bool:
    return hold.device.name == name and hold.claim.dra_driver == domain.dra_driver


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


def _rivals(offered: list[Offered]) -> list[Offered]:
    """Taint what cannot be had while somebody holds another device with the same part."""
    takers: dict[str, list[tuple[int, Part]]] = defaultdict(list)
    for index, one in enumerate(offered):
        if one.held:
            for part in one.device.all_parts:
                takers[part.name].append((index, part))
    answer = list(offered)
    for index, one in enumerate(offered):
        if one.held or RIVAL in one.taints:
            continue
        taken = any(
            part.contends(other)
            for part in one.device.all_parts
            for _, other in takers.get(part.name, ())
        )
        if taken:
            answer[index] = replace(one, taints=(*one.taints, RIVAL))
    return answer


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
    "vetoed",
]
