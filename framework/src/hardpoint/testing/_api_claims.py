"""What the real API server refuses in ResourceClaims, their status, and any object's metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hardpoint.testing._api_rules import LABEL, SUBDOMAIN, is_label, is_subdomain
from hardpoint.testing._api_status import Causes, Json

_MOST: Mapping[str, int] = {"requests": 32, "constraints": 32, "config": 32}


def check_claim(body: Json, old: Json | None) -> Causes:
    """Return what is wrong with a ResourceClaim's spec."""
    causes = Causes()
    devices = (body.get("spec") or {}).get("devices") or {}
    for name, most in _MOST.items():
        if len(devices.get(name) or ()) > most:
            causes.too_many(f"spec.devices.{name}", len(devices[name]), most)
    seen: set[str] = set()
    for index, request in enumerate(devices.get("requests") or ()):
        _request(causes, f"spec.devices.requests[{index}]", request, seen)
    for index, config in enumerate(devices.get("config") or ()):
        _opaque(causes, f"spec.devices.config[{index}].opaque", config.get("opaque"))
    if old is not None and body.get("spec") != old.get("spec"):
        causes.invalid("spec", "{}", "field is immutable")
    return causes


def _request(causes: Causes, path: str, request: Json, seen: set[str]) -> None:
    name = request.get("name", "")
    if not is_label(name):
        causes.invalid(f"{path}.name", name, LABEL)
    elif name in seen:
        causes.duplicate(f"{path}.name", name)
    seen.add(name)
    if bool(request.get("exactly")) == bool(request.get("firstAvailable")):
        causes.invalid(path, name, "exactly one of `exactly` or `firstAvailable` is required")
    if len(request.get("firstAvailable") or ()) > 8:
        causes.too_many(f"{path}.firstAvailable", len(request["firstAvailable"]), 8)
    for asked in (request.get("exactly"), *(request.get("firstAvailable") or ())):
        if asked is not None and not asked.get("deviceClassName"):
            causes.required(f"{path}.deviceClassName")


def _opaque(causes: Causes, path: str, opaque: Json | None) -> None:
    if opaque is None:
        causes.required(path)
        return
    if not is_subdomain(opaque.get("driver", ""), 63):
        causes.invalid(f"{path}.driver", opaque.get("driver", ""), "not a driver name")
    if not opaque.get("parameters"):
        causes.required(f"{path}.parameters")
    elif len(json.dumps(opaque["parameters"])) > 10 << 10:
        causes.too_long(f"{path}.parameters", 10 << 10)


def check_claim_status(body: Json) -> Causes:
    """Return what is wrong with a ResourceClaim's status."""
    causes = Causes()
    status = body.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    allocated = set(_identities(results))
    if len(results) > 32:
        causes.too_many("status.allocation.devices.results", len(results), 32)
    if len(status.get("reservedFor") or ()) > 256:
        causes.too_many("status.reservedFor", len(status["reservedFor"]), 256)
    seen: set[tuple[str, ...]] = set()
    devices = status.get("devices") or ()
    for index, (device, identity) in enumerate(zip(devices, _identities(devices), strict=True)):
        path = f"status.devices[{index}]"
        if identity in seen:
            causes.duplicate(path, "/".join(identity))
        elif identity not in allocated:
            causes.invalid(path, "/".join(identity), "must be an allocated device in the claim")
        seen.add(identity)
        _device_status(causes, path, device)
    return causes


def _identities(entries: Any) -> Iterator[tuple[str, ...]]:
    for entry in entries:
        yield tuple(entry.get(key, "") for key in ("driver", "pool", "device", "shareID"))


def _device_status(causes: Causes, path: str, device: Json) -> None:
    conditions = device.get("conditions") or ()
    if len(conditions) > 8:
        causes.too_many(f"{path}.conditions", len(conditions), 8)
    for index, condition in enumerate(conditions):
        for name in ("type", "status", "reason", "lastTransitionTime"):
            if not condition.get(name):
                causes.required(f"{path}.conditions[{index}].{name}")
    if len(json.dumps(device.get("data") or {})) > 10 << 10:
        causes.too_long(f"{path}.data", 10 << 10)
    _network(causes, f"{path}.networkData", device.get("networkData") or {})


def _network(causes: Causes, path: str, network: Json) -> None:
    if len(network.get("interfaceName", "").encode()) > 256:
        causes.too_long(f"{path}.interfaceName", 256)
    if len(network.get("hardwareAddress", "").encode()) > 128:
        causes.too_long(f"{path}.hardwareAddress", 128)
    if len(network.get("ips") or ()) > 16:
        causes.too_many(f"{path}.ips", len(network["ips"]), 16)


# -- metadata -------------------------------------------------------------------------------------


def check_metadata(metadata: Json) -> Causes:
    """Return what is wrong with an object's metadata."""
    causes = Causes()
    name = metadata.get("name", "")
    if not name:
        causes.required("metadata.name", "name or generateName is required")
    elif not is_subdomain(name):
        causes.invalid("metadata.name", name, SUBDOMAIN)
    owners = metadata.get("ownerReferences") or ()
    for index, owner in enumerate(owners):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                causes.invalid(f"metadata.ownerReferences[{index}].{key}", "", "must not be empty")
    if sum(bool(owner.get("controller")) for owner in owners) > 1:
        causes.invalid("metadata.ownerReferences", "[]", "Only one reference can have Controller")
    return causes
