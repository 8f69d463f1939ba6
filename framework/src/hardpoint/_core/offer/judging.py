"""What is made of one device that a driver lists: the validator, the platform, the admin's rules.

This looks into sysfs, so a judgement is kept until the driver lists anew, or the device's holder
comes or goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from hardpoint._core.offer.rules import facts_of, is_named, rule_for
from hardpoint.attributes import publishable
from hardpoint.errors import BadValue
from hardpoint.model import (
    Device,
    DeviceNode,
    Domain,
    Health,
    Hold,
    NodeType,
    Part,
    Withheld,
)
from hardpoint.platform import Suspected
from hardpoint.settings import Rule

BAD_DEVICE = "bad-device"
"""The rule of a device that is not as the contract says."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A device as it may be offered, or why it may not; ``listed`` is what the driver said."""

    listed: Device
    answer: Device | Withheld
    name: str
    """What it is published as: claims hold it by that."""
    parts: tuple[Part, ...] = ()
    """What a hold on it takes."""
    vouched: bool = False
    """A rule names it, so that the mere signature of a storage system does not keep it back."""
    problems: tuple[tuple[str, str, BadValue], ...] = ()
    """Driver, device and what was mended."""
    used: frozenset[int] = frozenset()
    """Which of the admin's rules matched it."""


@dataclass(slots=True)
class Notes:
    """What is noted on the way to a judgement."""

    problems: list[tuple[str, str, BadValue]] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    name: str = ""
    named: bool = False
    """A rule allows it by its very name."""


def judgement_of(device: Device, domain: Domain, facts: Facts) -> Judgement:
    """Judge one device by itself."""
    notes = Notes(name=device.name)
    answer = _judge(device, domain, facts, notes)
    return Judgement(
        listed=device,
        answer=answer,
        name=notes.name,
        parts=answer.all_parts if isinstance(answer, Device) else (),
        vouched=notes.named and isinstance(answer, Device) and answer.name == notes.name,
        problems=tuple(notes.problems),
        used=frozenset(notes.used),
    )


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
    notes.name = _published_name(fit, facts)
    notes.named = is_named(fit, facts.rules)
    held = [hold.device for hold in facts.holds if holds(hold, notes.name, domain)]
    kept, reasons = _without_kept_nodes(fit, facts.node_reason, held)
    if held:
        return _ruled(replace(fit, nodes=kept), domain, facts, notes)
    used = [reason for reason in reasons if not isinstance(reason, Suspected)]
    if reasons and not used and notes.named:
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


def holds(hold: Hold, name: str, domain: Domain) -> bool:
    """Say whether a hold is on the device of a name, published under a domain."""
    return hold.device.name == name and hold.claim.dra_driver == domain.dra_driver
