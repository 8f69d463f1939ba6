"""``hardpoint devices``: what would be published, and ``--why`` the rest is not."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio

from hardpoint._core.offline import Look, look
from hardpoint._core.plugins.faults import FaultEntry
from hardpoint.cli.agent_view import with_agent
from hardpoint.cli.common import add_json, add_machine, machine, settings_of
from hardpoint.cli.extended import Resources, resources
from hardpoint.cli.output import as_json, table
from hardpoint.model import AttributeValue, Device, DeviceNode, Offer, Offered, Version, slug


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_machine(parser)
    add_json(parser)
    parser.add_argument("device", nargs="?", help="show all of one device")
    parser.add_argument(
        "--why",
        nargs="?",
        const="",
        metavar="TEXT",
        help="show what is not offered and the reason, or only what TEXT occurs in",
    )


def run(arguments: argparse.Namespace) -> int:
    """Look at the machine and print."""
    settings = settings_of(arguments)
    with machine(arguments, settings) as node:
        found = with_agent(anyio.run(look, node, settings), settings, node)
        named = anyio.run(resources, node, settings, found.offer)
    found = replace(found, faults=(*found.faults, *named.faults))
    if arguments.json:
        return _json(found, arguments.device, arguments.why or "", named)
    if arguments.device:
        return _one(found, arguments.device, named)
    if arguments.why is not None:
        _why(found, arguments.why)
    else:
        _all(found, named)
    return 0


def _json(found: Look, device: str | None, text: str, named: Resources) -> int:
    """Print the whole object, or its part about one device; 1 if that is not offered."""
    shown = document(found.offer, found.faults)
    for one in shown["devices"] if named.asked else ():
        one["resources"] = list(named.of.get(one["name"], ()))
    text = text or device or ""
    shown["not_offered"] = [one for one in shown["not_offered"] if _mentions(one, text)]
    if device:
        shown["devices"] = [one for one in shown["devices"] if one["name"] == device]
    as_json(shown)
    return 0 if shown["devices"] or not device else 1


def _mentions(withheld: Mapping[str, str], text: str) -> bool:
    """Say whether a text occurs; also the name that a device of the subject would have."""
    if text.lower() in " ".join(withheld.values()).lower():
        return True
    name = slug(text)
    return bool(name) and name in slug("{driver} {subject}".format_map(withheld))


def document(offer: Offer, faults: tuple[FaultEntry, ...]) -> dict[str, Any]:
    """Return the documented object (docs/reference/devices-json.md, devices.schema.json)."""
    return {
        "devices": [device_json(offered) for offered in offer.devices],
        "not_offered": [
            {"subject": w.subject, "driver": w.driver, "rule": w.rule, "reason": w.reason}
            for w in sorted(offer.withheld, key=lambda w: (w.driver, w.subject, w.rule))
        ],
        "faults": [{"source": f.source, "message": f.message, "cost": f.cost} for f in faults],
    }


def device_json(offered: Offered) -> dict[str, Any]:
    """Return one device as plain JSON values, attributes under their published names."""
    device = offered.device
    return {
        "name": device.name,
        "driver": device.driver,
        "kind": device.kind,
        "domain": offered.domain.dra_driver,
        "shareable": device.shareable,
        "attributes": plain(device.attributes),
        "capacity": {name: amount.value for name, amount in sorted(device.capacity.items())},
        "parts": [{"name": p.name, "exclusive": p.exclusive} for p in device.all_parts],
        "nodes": [_node_json(node) for node in device.nodes],
        "taints": [
            {"key": t.key, "effect": t.effect.value, "value": t.value} for t in offered.taints
        ],
    } | (_binding_json(device) if device.binding_conditions else {})


def _binding_json(device: Device) -> dict[str, Any]:
    return {
        "binding_conditions": list(device.binding_conditions),
        "binding_failure_conditions": list(device.binding_failure_conditions),
    }


def plain(attributes: Mapping[str, AttributeValue]) -> dict[str, bool | int | str]:
    """Return attributes as JSON values, in order of name."""
    return {
        name: value.text if isinstance(value, Version) else value
        for name, value in sorted(attributes.items())
    }


def _node_json(node: DeviceNode) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "path": node.path,
        "type": node.type.value,
        "major": node.major,
        "minor": node.minor,
        "subsystem": node.subsystem,
        "permissions": node.permissions,
    }
    return shown | ({"gid": node.gid} if node.gid else {})


def _all(found: Look, named: Resources) -> None:
    more = ("resource",) if named.asked else ()
    rows = [
        (
            o.name,
            o.device.kind,
            "yes" if o.device.shareable else "",
            " ".join(_paths(o.device)),
            _hardware(o.device.attributes),
            *(" ".join(named.of.get(o.name, ("none",))) for _ in more),
        )
        for o in found.offer.devices
    ]
    heads = ("name", "kind", "shared", "nodes", "hardware", *more)
    table(heads, rows, "This machine offers no device.")
    _faults(found)
    if found.offer.withheld:
        print(f"\n{len(found.offer.withheld)} more are not offered; --why tells the reasons.")


def _hardware(attributes: Mapping[str, AttributeValue]) -> AttributeValue:
    """Return what it is called: of a disk the drive, not the controller that it hangs from."""
    return attributes.get("model") or attributes.get("name", "")


def _paths(device: Device) -> list[str]:
    paths = [node.path for node in device.nodes]
    return paths if len(paths) <= 3 else [*paths[:3], f"+{len(paths) - 3}"]


def _faults(found: Look) -> None:
    for fault in found.faults:
        print(f"\n! {fault.source}: {fault.message} ({fault.cost})")
    for note in found.notes:
        print(f"\nnote: {note}")


def _why(found: Look, text: str) -> None:
    rows = [
        tuple(withheld.values())
        for withheld in document(found.offer, ())["not_offered"]
        if _mentions(withheld, text)
    ]
    offered = [o.name for o in found.offer.devices if text and text.lower() in o.name]
    for name in offered:
        print(f"{name} is offered{_under_grants(found, name)}.")
    under = f" under {text!r}" if text else ""
    nothing = "" if offered else f"Nothing that was seen is withheld{under}."
    table(("subject", "driver", "rule", "reason"), rows, nothing)
    _faults(found)


def _under_grants(found: Look, name: str) -> str:
    offered = found.offer.find(name)
    alone = offered is not None and offered.device.kind in found.granted_kinds
    return " while a grant names it" if alone else ""


def _one(found: Look, name: str, named: Resources) -> int:
    offered = found.offer.find(name)
    if offered is None:
        print(f"{name} is not offered.")
        _why(found, name)
        return 1
    shown = device_json(offered)
    for key in ("name", "driver", "kind", "domain", "shareable"):
        print(f"{key:<12}{shown[key]}")
    if named.asked:
        print(f"{'resource':<12}{' '.join(named.of.get(name, ('none',)))}")
    for key in ("attributes", "capacity"):
        for item, value in shown[key].items():
            print(f"{key if item == next(iter(shown[key])) else '':<12}{item} = {value!r}")
    for part in offered.device.all_parts:
        print(f"{'part':<12}{part}")
    for node in offered.device.nodes:
        print(f"{'node':<12}{node.path} ({node.type} {node.major}:{node.minor} {node.permissions})")
    _conditions(offered)
    return 0


def _conditions(offered: Offered) -> None:
    for taint in offered.taints:
        print(f"{'taint':<12}{taint.key} {taint.effect}")
    for condition in offered.device.binding_conditions:
        print(f"{'waits for':<12}{condition}")
