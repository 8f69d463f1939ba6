"""Binding conditions: what must be true of a device before a pod has it (KEP-5007).

The scheduler waits for them before it binds the pod. A server that drops the fields (before 1.36)
has it bound at once; the prepare waits then: it is refused, and the kubelet asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from hardpoint.errors import HoldDenied, HoldFailed
from hardpoint.model import Allotment, Claim, Device, Offer

_Place: TypeAlias = "tuple[str, str, str]"
"""Pool, device as it is published, and share."""


class _Condition(msgspec.Struct):
    type: str
    status: str
    message: str = ""


class _Entry(msgspec.Struct, rename="camel"):
    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(default=None, name="shareID")
    conditions: tuple[_Condition, ...] | None = None


class _Status(msgspec.Struct):
    devices: tuple[_Entry, ...] | None = None


class _Found(msgspec.Struct):
    status: _Status | None = None


def bound_by(
    offer: Callable[[], Offer],
) -> Callable[[Claim, Mapping[str, Any]], None]:
    """Return what refuses a claim until every condition of its devices is true.

    It raises ``HoldFailed``; admin access only looks, and waits for nothing.
    """

    def check(claim: Claim, found: Mapping[str, Any]) -> None:
        driver, now = claim.key.dra_driver, offer()
        for allotment in claim.allotments:
            offered = now.find(allotment.device, driver)
            if offered is None or allotment.admin_access:
                continue
            if offered.device.binding_conditions:
                _check(claim, allotment, offered.device, _conditions(claim, found))

    return check


def _conditions(
    claim: Claim, found: Mapping[str, Any]
) -> Mapping[_Place, Mapping[str, _Condition]]:
    """Return what is said of a claim's devices of this driver, by device and condition."""
    try:
        status = msgspec.convert(found, _Found).status
    except msgspec.ValidationError as error:
        raise HoldDenied(f"claim {claim.key}: status.devices: {error}", "bad-claim") from error
    entries = (status.devices or ()) if status else ()
    return {
        (entry.pool, entry.device, entry.share_id or ""): {
            c.type: c for c in entry.conditions or ()
        }
        for entry in entries
        if entry.driver == claim.key.dra_driver
    }


def _check(
    claim: Claim,
    allotment: Allotment,
    device: Device,
    said: Mapping[_Place, Mapping[str, _Condition]],
) -> None:
    name = allotment.published or allotment.device
    known = said.get((allotment.pool, name, allotment.share_id), {})
    true = {name for name, condition in known.items() if condition.status == "True"}
    for name in device.binding_failure_conditions:
        if name in true:
            why = f": {known[name].message[:200]}" if known[name].message else ""
            raise HoldFailed(f"device {device.name} failed: {name}{why}", "not-bound")
    missing = [name for name in device.binding_conditions if name not in true]
    if missing:
        raise HoldFailed(
            f"device {device.name} is not ready for {claim.key} yet: it waits for "
            f"{', '.join(missing)} in the claim's status",
            "not-bound",
        )
