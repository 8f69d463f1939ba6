"""A hold's nodes, held against what its devices have now.

Numbers are dealt out anew at a boot, and a node's name may be another device's then. A hold says
what was so when it was written; what the devices' drivers say now is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from hardpoint.cdi import node_entry, resolve
from hardpoint.model import Delivery, Device, DeviceNode
from hardpoint.node import Node
from hardpoint.policies.cdi_grants.documents import nodes_of

_PLACEHOLDER = "HARDPOINT_GRANTED"
_Numbers: TypeAlias = "tuple[str, int, int] | None"


def mended(
    document: Mapping[str, Any],
    before: Mapping[str, Any],
    devices: Mapping[str, Device],
    node: Node,
) -> dict[str, Any]:
    """Return a hold's spec with the nodes that its devices have now; the same where all are right.

    ``devices`` are what the spec's entries mean, by name; of an entry whose device is not known now
    ``before`` stands, which is the spec itself or its last correction. Nodes that a hold lacks are
    added only beside a correction: a claim's own file has them. Raises ``BadValue``.
    """
    owned = {name: found for name, one in devices.items() if (found := _owned(one, node))}
    entries = {entry["name"]: entry for entry in before["devices"]}
    common, seen = nodes_of(document), _Host(node)
    needs = [
        _Need(
            owned.get(entry["name"], ()),
            nodes_of(entry) if entry["name"] in owned else (),
            common,
            seen,
        )
        for entry in document["devices"]
    ]
    wrong = any(need.wrong for need in needs)
    spread = _common(needs, common, seen)
    judged = [need for need in needs if need.owned]
    if not wrong and spread is None and len(judged) == len(needs):
        return dict(document)
    made = [
        _with_nodes(entry, need.right(complete=wrong or spread is not None))
        if need.owned
        else entries.get(entry["name"], entry)
        for entry, need in zip(document["devices"], needs, strict=True)
    ]
    known = document if len(judged) == len(needs) else before  # whose common edits are right
    whole = {**_with_edits(document, known.get("containerEdits")), "devices": made}
    return whole if spread is None else _with_edits(whole, _edits(document, spread))


def _owned(device: Device, node: Node) -> tuple[DeviceNode, ...]:
    """Return a device's nodes with their numbers; none where not all of them are known."""
    nodes = resolve(Delivery(nodes=device.nodes), node).nodes
    return nodes if all(one.part for one in nodes) else ()


class _Host:
    """What the host has under the names that a spec uses."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def numbers(self, one: DeviceNode) -> _Numbers:
        """Return the numbers of a node on the host; None where there is no such node."""
        info = self._node.info(one.source)
        return None if info is None else (str(info.type), info.major, info.minor)

    def delivered(self, one: DeviceNode) -> _Numbers:
        """Return the numbers that a container gets: what is stated, else what the host has."""
        return _stated(one) or self.numbers(one)


def _stated(one: DeviceNode) -> _Numbers:
    if one.major is None or one.minor is None:
        return None
    return str(one.type), one.major, one.minor


@dataclass(frozen=True, slots=True)
class _Need:
    """One device: what it has, and what its entry and the common edits deliver."""

    owned: tuple[DeviceNode, ...]
    entry: tuple[DeviceNode, ...]
    common: tuple[DeviceNode, ...]
    host: _Host

    @property
    def missing(self) -> list[DeviceNode]:
        """Its own nodes that nobody delivers; one that may appear later counts for nothing."""
        given = {self.host.delivered(one) for one in (*self.entry, *self.common)}
        return [one for one in self.owned if _stated(one) not in given and not one.absent_ok]

    @property
    def kept(self) -> list[DeviceNode | None]:
        """The entry's nodes, mended; None in the place of one that must not be delivered."""
        stale = _majors(self.missing)
        return [_right(one, self.owned, stale, self.host) for one in self.entry]

    @property
    def wrong(self) -> bool:
        """Whether the entry delivers what it should not."""
        return self.kept != list(self.entry)

    @property
    def unexplained(self) -> list[DeviceNode]:
        """What is missing, and of which the entry has no old node that stood for it."""
        dropped = {
            (one.type, one.major)
            for one, kept in zip(self.entry, self.kept, strict=True)
            if kept != one
        }
        return [one for one in self.missing if (one.type, one.major) not in dropped]

    def right(self, *, complete: bool) -> list[DeviceNode]:
        """Return the entry's nodes as they should be; ``complete``, with those it lacks."""
        nodes = [one for one in self.kept if one is not None]
        paths = {one.path for one in nodes}
        lacks = self.missing if complete else ()
        return [*nodes, *(one for one in lacks if one.path not in paths)]


def _majors(nodes: Iterable[DeviceNode]) -> frozenset[tuple[str, int | None]]:
    return frozenset((str(one.type), one.major) for one in nodes)


def _right(
    one: DeviceNode,
    owned: Sequence[DeviceNode],
    stale: frozenset[tuple[str, int | None]],
    host: _Host,
) -> DeviceNode | None:
    """Return a hold's node as it should be; None for one that must not be delivered."""
    delivered = host.delivered(one)
    if any(_stated(own) == delivered for own in owned):
        return one
    twin = next((own for own in owned if own.path == one.path), None)
    if twin is not None:
        return replace(
            one, host_path=twin.host_path, type=twin.type, major=twin.major, minor=twin.minor
        )
    there = host.numbers(one)
    if there is None or there[:2] in stale:  # gone, or what the device was called and another is
        return None
    if delivered == there:
        return one
    return replace(one, major=there[1], minor=there[2])


def _common(
    needs: Sequence[_Need], common: Sequence[DeviceNode], host: _Host
) -> list[DeviceNode] | None:
    """Return the common nodes as they should be; None where they are right, or nobody knows."""
    if not all(need.owned for need in needs):
        return None
    owned = [one for need in needs for one in need.owned]
    stale = _majors(one for need in needs for one in need.unexplained)
    found = [_right(one, owned, stale, host) for one in common]
    return None if found == list(common) else [one for one in found if one is not None]


def _with_nodes(entry: Mapping[str, Any], nodes: Sequence[DeviceNode]) -> dict[str, Any]:
    edits = _edits(entry, nodes)
    if not edits:  # "invalid device, empty device edits": the runtime would refuse the whole file
        edits = {"env": [f"{_PLACEHOLDER}={entry['name']}"]}
    return {**entry, "containerEdits": edits}


def _with_edits(document: Mapping[str, Any], edits: Mapping[str, Any] | None) -> dict[str, Any]:
    rest = {key: value for key, value in document.items() if key != "containerEdits"}
    return {**rest, "containerEdits": edits} if edits else rest


def _edits(entry: Mapping[str, Any], nodes: Sequence[DeviceNode]) -> dict[str, Any]:
    """Return an entry's edits with these nodes; one that was right is left as it is written."""
    edits = dict(entry.get("containerEdits", {}))
    written = dict(zip(nodes_of(entry), edits.pop("deviceNodes", ()), strict=True))
    made = [written[one] if one in written else _made(one) for one in nodes]
    return {**edits, "deviceNodes": made} if made else edits


def _made(one: DeviceNode) -> dict[str, Any]:
    return node_entry(replace(one, host_path="" if one.source == one.path else one.host_path))


def same_but_nodes(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Say whether two specs differ in nothing but nodes: one is a correction of the other."""
    return bool(_bare(one) == _bare(other))


def _bare(document: Mapping[str, Any]) -> Any:
    return (
        {key: value for key, value in document.items() if key not in ("devices", "containerEdits")},
        _bare_edits(document),
        [
            ({k: v for k, v in entry.items() if k != "containerEdits"}, _bare_edits(entry))
            for entry in document["devices"]
        ],
    )


def _bare_edits(entry: Mapping[str, Any]) -> Any:
    edits = entry.get("containerEdits", {})
    found = {key: value for key, value in edits.items() if key != "deviceNodes"}
    placeholder = [f"{_PLACEHOLDER}={entry.get('name')}"]
    return {} if found == {"env": placeholder} else found
