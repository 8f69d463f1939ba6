"""Feature gates of the fake API server: which are on in a release, and what is dropped without one.

A real server removes the fields of a gate that is off from what is created, and keeps on update
what the stored object already uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hardpoint.testing._api_status import Json
from hardpoint.testing._api_versions import each

GATES: Mapping[str, int] = {
    "DRAAdminAccess": 34,
    "DRAPrioritizedList": 34,
    "DRAResourceClaimDeviceStatus": 33,
    "DRADeviceTaints": 36,
    "DRAPartitionableDevices": 36,
    "DRAConsumableCapacity": 36,
    "DRADeviceBindingConditions": 36,
    "DRAListTypeAttributes": 99,
}
"""The minor release from which a gate is on by default."""

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "DRADeviceTaints": ("taints",),
    "DRAPartitionableDevices": ("consumesCounters", "nodeName", "nodeSelector", "allNodes"),
    "DRAConsumableCapacity": ("allowMultipleAllocations",),
    "DRADeviceBindingConditions": (
        "bindsToNode",
        "bindingConditions",
        "bindingFailureConditions",
    ),
}
_LISTS = ("ints", "bools", "strings", "versions")


def drop_disabled(body: Json, old: Json | None, on: Callable[[str], bool]) -> None:
    """Remove the fields of a slice whose gate is off; an update keeps what the old object used."""
    for gate, remove in _REMOVERS.items():
        if not on(gate) and not (old is not None and _uses(old, gate)):
            remove(body.get("spec") or {})
            for device in each(body, "spec", "devices"):
                for name in _FIELDS.get(gate, ()):
                    device.pop(name, None)


def _drop_nothing_more(spec: Json) -> None:
    """The gate has fields of the device alone."""


def _drop_counters(spec: Json) -> None:
    spec.pop("sharedCounters", None)
    spec.pop("perDeviceNodeSelection", None)


def _drop_policies(spec: Json) -> None:
    for device in each(spec, "devices"):
        for amount in (device.get("capacity") or {}).values():
            amount.pop("requestPolicy", None)


def _drop_lists(spec: Json) -> None:
    for device in each(spec, "devices"):
        for value in (device.get("attributes") or {}).values():
            for name in _LISTS:
                value.pop(name, None)


_REMOVERS: Mapping[str, Callable[[Json], None]] = {
    "DRADeviceTaints": _drop_nothing_more,
    "DRAPartitionableDevices": _drop_counters,
    "DRAConsumableCapacity": _drop_policies,
    "DRADeviceBindingConditions": _drop_nothing_more,
    "DRAListTypeAttributes": _drop_lists,
}


def _uses(body: Json, gate: str) -> bool:
    spec = body.get("spec") or {}
    if gate == "DRAPartitionableDevices" and (
        spec.get("sharedCounters") or spec.get("perDeviceNodeSelection")
    ):
        return True
    devices = spec.get("devices") or ()
    if gate == "DRAListTypeAttributes":
        values = (v for d in devices for v in (d.get("attributes") or {}).values())
        return any(name in value for value in values for name in _LISTS)
    return any(device.get(name) for device in devices for name in _FIELDS.get(gate, ()))
