"""What the kubelet is told, in its own messages; pure.

``ListAndWatch`` says everything each time. ``Allocate`` says CDI names, which the runtime resolves
each time that a container starts; what the kubelet keeps in its checkpoint is as true after a
reboot as before. For a runtime without CDI the same is said in node paths, which are not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from hardpoint.allocation import Assigned
from hardpoint.errors import HoldDenied
from hardpoint.kubelet import deviceplugin_v1beta1_pb2 as pb
from hardpoint.model import Delivery, DeviceNode, Mount
from hardpoint.node import Node
from hardpoint_deviceplugin.resources import Entry, Resource

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
_BINDS = ("", "bind")


def listing(resource: Resource, numa_nodes: frozenset[int]) -> pb.ListAndWatchResponse:
    """Return the whole list of a resource; ``numa_nodes`` are those that the machine has."""
    return pb.ListAndWatchResponse(
        devices=[_device(entry, numa_nodes) for entry in resource.entries]
    )


def _device(entry: Entry, numa_nodes: frozenset[int]) -> pb.Device:
    device = pb.Device(ID=entry.id, health=UNHEALTHY if entry.refusal else HEALTHY)
    node = entry.offered.device.topology.numa_node
    if node in numa_nodes:  # the Topology Manager would pin a pod to what is not there
        device.topology.nodes.append(pb.NUMANode(ID=node))
    return device


def numa_nodes(node: Node) -> frozenset[int]:
    """Return the machine's NUMA nodes; none where the kernel does not tell."""
    try:
        names = os.listdir(node.sys / "devices/system/node")
    except OSError:
        return frozenset()
    numbers = (name.removeprefix("node") for name in names if name.startswith("node"))
    return frozenset(int(number) for number in numbers if number.isdecimal())


# -- answers --------------------------------------------------------------------------------------


def by_cdi(assigned: Iterable[Assigned]) -> pb.ContainerAllocateResponse:
    """Return the answer for one container: CDI names, each once, in the order of the ids."""
    given = tuple(assigned)
    names = dict.fromkeys(name for one in given for name in one.cdi_ids)
    return pb.ContainerAllocateResponse(
        cdi_devices=[pb.CDIDevice(name=name) for name in names],
        envs=_merged(one.delivery.env for one in given),
        annotations=_merged(one.delivery.annotations for one in given),
    )


def by_specs(assigned: Iterable[Assigned], dev: Path) -> pb.ContainerAllocateResponse:
    """Return the same for a runtime without CDI; ``dev`` is where the host's /dev can be looked at.

    Raises ``HoldDenied`` where a driver gives what only CDI can say.
    """
    given = tuple(assigned)
    for one in given:
        _check_sayable(one.assignment.device, one.delivery)
    nodes = {
        node.path: node for one in given for node in one.delivery.nodes if _is_there(node, dev)
    }
    mounts = {mount.container_path: mount for one in given for mount in one.delivery.mounts}
    return pb.ContainerAllocateResponse(
        devices=[
            pb.DeviceSpec(
                container_path=node.path, host_path=node.source, permissions=node.permissions
            )
            for node in nodes.values()
        ],
        mounts=[
            pb.Mount(
                container_path=mount.container_path,
                host_path=mount.host_path,
                read_only="ro" in mount.options,
            )
            for mount in mounts.values()
        ],
        envs=_merged(one.delivery.env for one in given),
        annotations=_merged(one.delivery.annotations for one in given),
    )


def _is_there(node: DeviceNode, dev: Path) -> bool:
    """Say whether a node can be given by its path: one that may come later has none yet."""
    return not node.absent_ok or os.path.lexists(dev / node.source.removeprefix("/dev/"))


def _check_sayable(device: str, delivery: Delivery) -> None:
    wants = {
        "hooks": delivery.hooks,
        "CDI devices of others": delivery.cdi_devices,
        "mounts that are no bind mounts": [one for one in delivery.mounts if not _is_bind(one)],
    }
    needs = next((what for what, found in wants.items() if found), None)
    if needs is not None:
        raise HoldDenied(
            f"device {device} is delivered with {needs}, which only CDI can say: set "
            '[frontend.deviceplugin] devices = "cdi"',
            reason="needs-cdi",
        )


def _is_bind(mount: Mount) -> bool:
    return mount.type in _BINDS


def _merged(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Merge variables of one container's devices: those of one name, with commas between.

    So a container with two devices sees both in ``ACME_UUIDS`` or ``BCD_ALLOCATION_IDS``.
    """
    merged: dict[str, list[str]] = {}
    for part in parts:
        for name, value in part.items():
            values = merged.setdefault(name, [])
            if value not in values:
                values.append(value)
    return {name: ",".join(values) for name, values in merged.items()}
