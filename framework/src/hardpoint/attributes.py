"""The one place where names and values are made fit for the Kubernetes API.

An odd device must never make the API server refuse a slice, so every attribute passes here: what
can be mended is mended (cut on a UTF-8 border, control characters removed), what cannot is left
out, and both are said. Limits: k8s.io/api/resource/v1 types.go and apimachinery's validation.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from hardpoint.errors import BadValue
from hardpoint.model import AttributeValue, Capacity, Device, DeviceNode, Taint, Version
from hardpoint.quantity import canonical
from hardpoint.reading import printable

LONGEST_STRING = 64
"""Bytes of a string or version attribute (ResourceSliceMaxAttributeValueLength)."""
LONGEST_ID = 32
LONGEST_DOMAIN = 63
MOST_ENTRIES = 32
"""Attributes and capacities of one device together."""
MOST_TAINTS = 16
MOST_CONDITIONS = 4
"""Binding conditions of a device, and as many of their failures."""
LONGEST_NAME = 63

STANDARD = "resource.kubernetes.io"
"""Domain of the attributes that Kubernetes itself defines."""

_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_KIND = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?"
)
_LOOSE = re.compile(r"[vV]?(\d+)(?:\.(\d+))?(?:\.(\d+))?([-+][0-9A-Za-z.+-]+)?")


def publishable(device: Device, dra_driver: str) -> tuple[Device, tuple[BadValue, ...]]:
    """Return the device as it can be published, and what had to be mended or left out.

    Adds ``kind``, and the node's place as ``resource.kubernetes.io/numaNode`` and ``pcieRoot``,
    where there is room. Raises ``BadValue`` for a device without a usable name or kind, and for one
    whose binding conditions the API would refuse: without them pods would start too early.
    """
    _need(is_label(device.name), "name", device.name)
    _need(_KIND.fullmatch(device.kind) and len(device.kind) <= LONGEST_NAME, "kind", device.kind)
    _need_conditions(device.binding_conditions, device.binding_failure_conditions)
    problems: list[BadValue] = []
    attributes = dict(_attributes(_with_place(device), dra_driver, problems))
    capacity = dict(_capacities(device.capacity, dra_driver, problems))
    for name in list(attributes)[max(0, MOST_ENTRIES - len(capacity)) :]:
        del attributes[name]
        problems.append(BadValue(f"attribute {name}", "too many", f"at most {MOST_ENTRIES}"))
    return (
        replace(
            device,
            shareable=_shareable(device, problems),
            attributes=attributes,
            capacity=capacity,
            nodes=tuple(_nodes(device.nodes, problems)),
            taints=tuple(_taints(device.taints, problems))[:MOST_TAINTS],
        ),
        tuple(problems),
    )


def _need(valid: object, field: str, found: str) -> None:
    if not valid:
        raise BadValue(field, printable(found), "lower-case letters, digits and dashes")


def _shareable(device: Device, problems: list[BadValue]) -> bool:
    """Say whether several claims may have a device: not one that takes a part alone.

    The scheduler would give it to a second claim, which the ledger refuses for ever.
    """
    if not device.shareable:
        return False
    alone = next((part for part in device.all_parts if part.exclusive), None)
    if alone is not None:
        want = "shared parts only; it goes to one claim"
        problems.append(BadValue("shareable", str(alone), want))
    return alone is None


def _need_conditions(good: tuple[str, ...], bad: tuple[str, ...]) -> None:
    for field, names in (("binding_conditions", good), ("binding_failure_conditions", bad)):
        wrong = next((name for name in names if not _is_qualified(name)), None)
        if wrong is not None:
            raise BadValue(field, printable(wrong), "condition types such as acme.dev/attached")
        if len(names) > MOST_CONDITIONS:
            raise BadValue(field, len(names), f"at most {MOST_CONDITIONS}")
    if bool(good) != bool(bad):
        raise BadValue("binding_conditions", "alone", "conditions and failure conditions, or none")
    if len({*good, *bad}) < len(good) + len(bad):
        raise BadValue("binding_conditions", "one twice", "each condition once")


def _is_qualified(name: str) -> bool:
    domain, slash, word = name.rpartition("/")
    fits = 0 < len(word) <= LONGEST_NAME and _LABEL_VALUE.fullmatch(word) is not None
    return fits and (not slash or is_subdomain(domain))


def _with_place(device: Device) -> Mapping[str, AttributeValue]:
    """Say kind, NUMA node and PCIe root beside the driver's own attributes."""
    added: dict[str, AttributeValue] = {"kind": device.kind}
    if device.topology.numa_node is not None:
        added[f"{STANDARD}/numaNode"] = device.topology.numa_node
    if device.topology.pcie_root is not None:
        added[f"{STANDARD}/pcieRoot"] = device.topology.pcie_root
    return {**added, **device.attributes}


def _attributes(
    attributes: Mapping[str, AttributeValue], dra_driver: str, problems: list[BadValue]
) -> Iterator[tuple[str, AttributeValue]]:
    seen: set[str] = set()
    for name, value in attributes.items():
        try:
            canonical, usable = attribute_name(name, dra_driver), attribute_value(name, value)
        except BadValue as problem:
            problems.append(problem)
            continue
        if canonical in seen:
            problems.append(BadValue(f"attribute {canonical}", "twice", "each name once"))
        elif usable is not None:
            seen.add(canonical)
            yield canonical, usable


def attribute_name(name: str, dra_driver: str = "") -> str:
    """Return a qualified name in its one spelling: without the driver's own domain.

    ``numa-1`` becomes ``numa_1``: the API wants C identifiers (dra-driver-cpu pull request 217).
    Raises ``BadValue`` where it cannot be mended.
    """
    if not isinstance(name, str):
        raise BadValue("attribute name", type(name).__name__, "text")
    domain, slash, identifier = name.rpartition("/")
    identifier = re.sub(r"[^A-Za-z0-9_]", "_", identifier)[:LONGEST_ID]
    if identifier[:1].isdigit():
        identifier = f"_{identifier}"[:LONGEST_ID]
    if not _ID.fullmatch(identifier):
        raise BadValue("attribute name", name, "a C identifier of at most 32 characters")
    if not slash or domain == dra_driver:
        return identifier
    if not is_subdomain(domain) or len(domain) > LONGEST_DOMAIN:
        raise BadValue("attribute name", name, "a lower-case domain of at most 63 before the slash")
    return f"{domain}/{identifier}"


def attribute_value(name: str, value: object) -> AttributeValue | None:
    """Return a value that the API takes; None for one that is absent: empty text, or False.

    Raises ``BadValue`` for another type, or an integer beyond 64 bits.
    """
    if isinstance(value, bool):
        return value or None
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise BadValue(f"attribute {name}", value, "a signed 64-bit integer")
        return int(value)
    if isinstance(value, Version) and isinstance(value.text, str):
        return semver(value.text) or attribute_value(name, value.text)
    if isinstance(value, str):
        return text(value) or None
    raise BadValue(f"attribute {name}", type(value).__name__, "bool, int, str or Version")


def text(value: str, longest: int = LONGEST_STRING) -> str:
    """Return text of at most ``longest`` UTF-8 bytes, cut between characters, no control ones.

    Half surrogate pairs, which JSON cannot carry, become U+FFFD.
    """
    whole = value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    short = printable(whole).encode()[:longest]
    return short.decode("utf-8", "ignore").rstrip()


def semver(value: str) -> Version | None:
    """Return a strict semantic version 2.0.0 for what hardware says: ``v535.104.05`` too.

    None where there is none in it, or it is longer than the API takes.
    """
    loose = _LOOSE.fullmatch(value.strip())
    if loose is None or len(value) > 4 * LONGEST_STRING:
        return None
    major, minor, patch, rest = loose.groups()
    strict = f"{int(major)}.{int(minor or 0)}.{int(patch or 0)}{rest or ''}"
    if len(strict) > LONGEST_STRING or not _SEMVER.fullmatch(strict):
        return None
    return Version(strict)


def _capacities(
    capacity: Mapping[str, Capacity], dra_driver: str, problems: list[BadValue]
) -> Iterator[tuple[str, Capacity]]:
    seen: set[str] = set()
    for name, amount in list(capacity.items())[:MOST_ENTRIES]:
        try:
            canonical, usable = attribute_name(name, dra_driver), _quantity(name, amount)
        except BadValue as problem:
            problems.append(problem)
            continue
        if canonical in seen:
            problems.append(BadValue(f"capacity {canonical}", "twice", "each name once"))
            continue
        seen.add(canonical)
        yield canonical, usable


def _quantity(name: str, amount: Capacity) -> Capacity:
    """Return a capacity in the API server's own spelling, its policy too. Raises ``BadValue``."""

    def spelled(value: str | None) -> str | None:
        return None if value is None else canonical(str(value))

    try:
        return Capacity(
            value=canonical(amount.value),
            default=spelled(amount.default),
            valid=tuple(canonical(value) for value in amount.valid),
            minimum=spelled(amount.minimum),
            maximum=spelled(amount.maximum),
            step=spelled(amount.step),
        )
    except BadValue as bad:
        raise BadValue(f"capacity {name}", bad.found, bad.want) from bad


def _nodes(nodes: tuple[DeviceNode, ...], problems: list[BadValue]) -> Iterator[DeviceNode]:
    for node in nodes:
        plain = all(is_dev_path(path) for path in (node.path, node.source))
        if plain and set(node.permissions) <= set("rwm") and node.permissions:
            yield node
        else:
            problems.append(
                BadValue("device node", text(node.path), "a path below /dev and permissions of rwm")
            )


def is_dev_path(path: str) -> bool:
    """Say whether a path is a plain one below /dev."""
    parts = path.split("/")
    return parts[:2] == ["", "dev"] and len(parts) > 2 and not {"", ".", ".."} & set(parts[2:])


def _taints(taints: tuple[Taint, ...], problems: list[BadValue]) -> Iterator[Taint]:
    for taint in taints:
        if _is_qualified(taint.key) and _LABEL_VALUE.fullmatch(taint.value[:63]):
            yield replace(taint, value=taint.value[:63])
        else:
            problems.append(BadValue("taint", text(taint.key), "a label name and label value"))


def is_label(name: str) -> bool:
    """Say whether a name is a DNS label (RFC 1123), as the API wants for a device's name."""
    return len(name) <= LONGEST_NAME and _LABEL.fullmatch(name) is not None


def is_subdomain(name: str) -> bool:
    """Say whether a name is a DNS subdomain (RFC 1123), as long as the API takes one."""
    return 0 < len(name) <= 253 and all(_LABEL.fullmatch(label) for label in name.split("."))


def fit_name(name: str, room: int = 0) -> str:
    """Return a name of at most 63 less ``room`` characters; a cut one ends in a hash of the whole.

    ``room`` is what a driver will add as a suffix.
    """
    if len(name) <= LONGEST_NAME - room:
        return name
    return with_hash(name, name, room)


def with_hash(name: str, whole: str, room: int = 0) -> str:
    """Return the name with six hexadecimal digits of a hash of ``whole`` at its end.

    Tells names apart that became equal when they were cut or made a DNS label.
    """
    digest = hashlib.sha256(whole.encode()).hexdigest()[:6]
    return f"{name[: LONGEST_NAME - room - 7].rstrip('-')}-{digest}"
