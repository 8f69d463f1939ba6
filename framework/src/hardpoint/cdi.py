"""CDI: what a container receives, written as a file for the runtime.

One file per vendor and claim, ``<vendor>-<claim uid>.json``, of kind ``<vendor>/device``. A stale
file can then spoil no other claim, and a name is never used twice. The format's own rules are in
``hardpoint.cdi_rules``, the files in ``hardpoint.cdi_files``.

Environment variables stand on each device, since a container may receive one device of a claim and
not the other. Where a container receives two that set one variable, the runtime applies devices in
the order of the claim's results, and the last one wins.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hardpoint.cdi_rules import check, check_name, check_vendor, needed_version, number
from hardpoint.errors import BadValue
from hardpoint.model import Delivery, DeviceNode, Hook, Mount, NodeType
from hardpoint.node import Node

NEWEST = "0.7.0"
"""The newest format that anything here needs; containerd 1.7 reads 0.6.0 at most."""

ABSENT, WITHHELD = "device-absent", "device-withheld"
"""Names of the sentinels: the device is gone; it is there and may not be used."""


# -- names ----------------------------------------------------------------------------------------


def kind(vendor: str) -> str:
    """Return the kind of a vendor's devices. Raises ``BadValue`` if CDI would refuse it."""
    check_vendor(vendor)
    return f"{vendor}/device"


def device_name(uid: str, device: str, share_id: str = "", request: str = "") -> str:
    """Return a device's name in its claim's file: ``<uid>-<device>``.

    A share id is added with a dash; a request, for a device that two requests of one claim have,
    with a colon, which no device's own name contains.
    """
    share = f"-{share_id}" if share_id else ""
    of_request = ":" + request.replace("/", ":") if request else ""
    name = f"{uid}-{device}{share}{of_request}"
    check_name("device name", name)
    return name


def qualified(vendor: str, name: str) -> str:
    """Return the name that the kubelet passes to the runtime: ``vendor/device=name``."""
    return f"{kind(vendor)}={name}"


# -- sentinels ------------------------------------------------------------------------------------


def sentinel(vendor: str, word: str) -> Delivery:
    """Return what a device's holder receives while the device must not be injected.

    Its only node is a path that never exists, so the runtime refuses to create the container,
    loudly, and tries again; an empty delivery would start the container without the device.
    """
    return Delivery(nodes=(DeviceNode(path=f"/dev/{vendor}/{word}"),))


def is_sentinel(delivery: Delivery) -> bool:
    """Say whether a delivery is one of the sentinels."""
    return any(_is_sentinel_node(node) for node in delivery.nodes)


def _is_sentinel_node(node: DeviceNode) -> bool:
    return node.major is None and os.path.basename(node.path) in (ABSENT, WITHHELD)


# -- deliveries -----------------------------------------------------------------------------------


def resolve(delivery: Delivery, node: Node) -> Delivery:
    """Fill in what only the host knows of a delivery's nodes: numbers, mode and group.

    With numbers in the spec the runtime need not look, and systemd's device rules survive a
    ``daemon-reload`` (NVIDIA/nvidia-container-toolkit#48). A node that the host lacks keeps what it
    has.
    """
    return replace(delivery, nodes=tuple(_resolved(one, node) for one in delivery.nodes))


def _resolved(one: DeviceNode, node: Node) -> DeviceNode:
    if _is_sentinel_node(one):
        return one
    info = node.info(one.source)
    if info is None:
        return one if one.mode is not None else replace(one, mode=0o660)
    return replace(
        one,
        type=one.type if one.major is not None else info.type,
        major=one.major if one.major is not None else info.major,
        minor=one.minor if one.minor is not None else info.minor,
        mode=one.mode if one.mode is not None else info.mode & 0o777,
        gid=one.gid if one.gid is not None else info.gid or None,
    )


def spec(
    vendor: str, devices: Iterable[tuple[str, Delivery]], newest: str = NEWEST
) -> dict[str, Any]:
    """Return the spec of a claim's devices, by name, in the order of the claim's results.

    ``newest`` is the newest format that the runtime reads; what only a later one can say (groups of
    nodes, annotations) is left out. Raises ``BadValue`` for what the runtime would refuse.
    """
    entries = [_device(name, delivery, number(newest)) for name, delivery in devices]
    document: dict[str, Any] = {"cdiVersion": "", "kind": kind(vendor), "devices": entries}
    document["cdiVersion"] = needed_version(document)
    check(document)
    return document


def _variable(name: str, value: str) -> str:
    """Return a variable as CDI states it. ``A=B`` is no name: it would be another value of ``A``,
    which a policy may not change where the driver sets it.
    """
    if "=" in name:
        raise BadValue("environment variable", name, "a name without =")
    return f"{name}={value}"


def _device(name: str, delivery: Delivery, newest: tuple[int, ...]) -> dict[str, Any]:
    edits: dict[str, Any] = {
        "env": [_variable(key, value) for key, value in sorted(delivery.env.items())],
        "deviceNodes": [node_entry(node) for node in delivery.nodes],
        "mounts": [_mount(mount) for mount in delivery.mounts],
        "hooks": [_hook(hook) for hook in delivery.hooks],
    }
    if newest >= (0, 7, 0):
        edits["additionalGids"] = groups(delivery)
    edits = {key: value for key, value in edits.items() if value}
    if not edits:  # "invalid device, empty device edits": the runtime would refuse the whole file
        edits["env"] = [f"HARDPOINT_DEVICE_{re.sub(r'[^A-Z0-9]', '_', name.upper())}={name}"]
    entry: dict[str, Any] = {"name": name}
    if delivery.annotations and newest >= (0, 6, 0):
        entry["annotations"] = dict(sorted(delivery.annotations.items()))
    return {**entry, "containerEdits": edits}


def groups(delivery: Delivery) -> list[int]:
    """Return the groups a container without root needs to open what it is given.

    ``root:render 0660`` with the host's own number for ``render`` is the usual case
    (ROCm/k8s-device-plugin#39).
    """
    own = {node.gid for node in delivery.nodes if node.gid}
    return sorted(own | {gid for gid in delivery.gids if gid})


def node_entry(node: DeviceNode) -> dict[str, Any]:
    """Return a node as CDI states it. Raises ``BadValue`` for one whose numbers are unknown."""
    if _is_sentinel_node(node):
        return {"path": node.path}
    if node.major is None or node.minor is None:
        raise BadValue("device node", node.path, "one whose numbers are known")
    entry: dict[str, Any] = {"path": node.path}
    if node.source != node.path:
        entry["hostPath"] = node.source
    entry |= {"type": str(node.type), "major": node.major, "minor": node.minor}
    if node.mode is not None:
        entry["fileMode"] = node.mode
    entry["permissions"] = node.permissions
    if node.gid:
        entry["gid"] = node.gid
    return entry


def _mount(mount: Mount) -> dict[str, Any]:
    entry: dict[str, Any] = {"hostPath": mount.host_path, "containerPath": mount.container_path}
    if mount.type:
        entry["type"] = mount.type
    if mount.options:
        entry["options"] = list(mount.options)
    return entry


def _hook(hook: Hook) -> dict[str, Any]:
    entry: dict[str, Any] = {"hookName": hook.name, "path": hook.path}
    if hook.args:
        entry["args"] = list(hook.args)
    if hook.env:
        entry["env"] = list(hook.env)
    return entry


def delivery_of(entry: Mapping[str, Any]) -> Delivery:
    """Return the delivery that a device of a spec was written from, as far as the spec says."""
    edits = entry["containerEdits"]
    return Delivery(
        nodes=tuple(_as_node(raw) for raw in edits.get("deviceNodes", ())),
        mounts=tuple(
            Mount(
                host_path=raw["hostPath"],
                container_path=raw["containerPath"],
                options=tuple(raw.get("options", ())),
                type=raw.get("type", ""),
            )
            for raw in edits.get("mounts", ())
        ),
        env=dict(pair.split("=", 1) for pair in edits.get("env", ())),
        annotations=entry.get("annotations", {}),
        hooks=tuple(
            Hook(
                name=raw["hookName"],
                path=raw["path"],
                args=tuple(raw.get("args", ())),
                env=tuple(raw.get("env", ())),
            )
            for raw in edits.get("hooks", ())
        ),
        gids=tuple(edits.get("additionalGids", ())),
    )


def _as_node(raw: Mapping[str, Any]) -> DeviceNode:
    return DeviceNode(
        path=raw["path"],
        type=NodeType(raw.get("type", "c")),
        major=raw.get("major"),
        minor=raw.get("minor"),
        host_path=raw.get("hostPath", ""),
        permissions=raw.get("permissions", "rwm"),
        mode=raw.get("fileMode"),
        gid=raw.get("gid"),
    )
