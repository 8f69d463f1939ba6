"""What the real API server refuses in ResourceClaims, and in what drivers write of them."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hardpoint.testing import _api_text as text
from hardpoint.testing._api_metadata import check_conditions
from hardpoint.testing._api_names import Names
from hardpoint.testing._api_status import Causes, Json

_MOST: Mapping[str, int] = {"requests": 32, "constraints": 32, "config": 32}
_EFFECTS = ("NoExecute", "NoSchedule", "None")
_LARGEST_OBJECT = 10 << 10
_NO_REQUEST = (
    "must be the name of a request in the claim or the name of a request and a subrequest "
    "separated by '/'"
)
_ONE_KIND = "exactly one of `exactly` or `firstAvailable` is required"
_ONE_ATTRIBUTE = (
    'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are '
    "set"
)


class ClaimRules:
    """Validation of one ResourceClaim or its status, as the given minor release does it."""

    def __init__(self, minor: int) -> None:
        self.minor = minor
        self.causes = Causes()
        self._names = Names(self.causes, minor)
        self._requests: dict[str, set[str]] = {}

    # -- what is asked for ------------------------------------------------------------------------

    def check(self, body: Json, old: Json | None) -> Causes:
        """Return what is wrong with a claim's spec, which never changes."""
        if old is not None:
            if body.get("spec") != old.get("spec"):
                self.causes.invalid("spec", body.get("spec"), "field is immutable")
            return self.causes
        devices = (body.get("spec") or {}).get("devices") or {}
        self._requests = _requests(devices)
        for name, check in (
            ("requests", self._request),
            ("constraints", self._constraint),
            ("config", self._config),
        ):
            path, found = f"spec.devices.{name}", devices.get(name) or []
            if len(found) > _MOST[name]:
                self.causes.too_many(path, len(found), _MOST[name])
                continue
            for index, item in enumerate(found):
                check(f"{path}[{index}]", item)
        names = [request.get("name", "") for request in devices.get("requests") or ()]
        if len(names) <= _MOST["requests"]:
            self._names.unique(
                "spec.devices.requests", names, "name", devices.get("requests") or ()
            )
        return self.causes

    def _request(self, path: str, request: Json) -> None:
        self.causes.say(f"{path}.name", request.get("name", ""), text.of_label)
        exactly, first = request.get("exactly"), request.get("firstAvailable") or []
        if exactly is None and not first:
            self.causes.required(path, _ONE_KIND)
        elif exactly is not None and first:
            self.causes.invalid(path, None, f"{_ONE_KIND}, but multiple fields are set")
        elif exactly is not None:
            self._asked(f"{path}.exactly", exactly)
        elif len(first) > 8:
            self.causes.too_many(f"{path}.firstAvailable", len(first), 8)
        else:
            for index, asked in enumerate(first):
                below = f"{path}.firstAvailable[{index}]"
                self.causes.say(f"{below}.name", asked.get("name", ""), text.of_label)
                self._asked(below, asked)
            names = [asked.get("name", "") for asked in first]
            self._names.unique(f"{path}.firstAvailable", names, "name", first)

    def _asked(self, path: str, asked: Json) -> None:
        if asked.get("deviceClassName"):
            self.causes.say(f"{path}.deviceClassName", asked["deviceClassName"], text.of_subdomain)
        else:
            self.causes.required(f"{path}.deviceClassName")
        mode, count = asked.get("allocationMode", ""), asked.get("count", 0)
        if mode not in ("All", "ExactCount"):
            self.causes.unsupported(f"{path}.allocationMode", mode, ("All", "ExactCount"))
        elif mode == "All" and count:
            detail = "must not be specified when allocationMode is 'All'"
            self.causes.invalid(f"{path}.count", count, detail)
        elif mode == "ExactCount" and count <= 0:
            self.causes.invalid(f"{path}.count", count, "must be greater than zero")
        self._selectors(f"{path}.selectors", asked.get("selectors") or [])
        for index, toleration in enumerate(asked.get("tolerations") or ()):
            self._toleration(f"{path}.tolerations[{index}]", toleration)

    def _selectors(self, path: str, selectors: list[Json]) -> None:
        if len(selectors) > 32:
            self.causes.too_many(path, len(selectors), 32)
            return
        for index, found in enumerate(selectors):
            if found.get("cel") is None:
                self.causes.required(f"{path}[{index}].cel")

    def _toleration(self, path: str, found: Json) -> None:
        operator, value = found.get("operator", ""), found.get("value", "")
        if found.get("key"):
            self.causes.say(f"{path}.key", found["key"], text.of_key)
        if not operator:
            self.causes.required(f"{path}.operator")
        elif operator not in ("Equal", "Exists"):
            self.causes.unsupported(f"{path}.operator", operator, ("Equal", "Exists"))
        elif operator == "Exists" and value:
            self.causes.invalid(f"{path}.value", value, "must be empty for operator `Exists`")
        elif operator == "Equal":
            self.causes.say(f"{path}.value", value, text.of_value)
        if found.get("effect", "") not in ("", *_EFFECTS):
            self.causes.unsupported(f"{path}.effect", found["effect"], _EFFECTS)

    def _constraint(self, path: str, constraint: Json) -> None:
        self._references(f"{path}.requests", constraint.get("requests") or [])
        for name in ("matchAttribute", "distinctAttribute"):
            if constraint.get(name) is not None:
                self._attribute(f"{path}.{name}", constraint[name])
                return
        if self.minor < 36:
            self.causes.required(f"{path}.matchAttribute")
        else:
            self.causes.required(path, _ONE_ATTRIBUTE)

    def _attribute(self, path: str, name: str) -> None:
        self._names.qualified(path, name)
        if "/" not in name:
            detail = "a fully qualified name must be a domain and a name separated by a slash"
            self.causes.invalid(path, name, detail)

    def _references(self, path: str, names: list[str]) -> None:
        for index, name in enumerate(names):
            self._reference(f"{path}[{index}]", name)
        self._names.unique(path, names)

    def _reference(self, path: str, name: str) -> None:
        steps = name.split("/")
        if len(steps) <= 2:
            for step in steps:
                self.causes.say(path, step, text.of_label)
        below = self._requests.get(steps[0])
        if len(steps) > 2 or below is None or not set(steps[1:]) <= below:
            self.causes.invalid(path, name, _NO_REQUEST)

    def _config(self, path: str, config: Json) -> None:
        self._references(f"{path}.requests", config.get("requests") or [])
        opaque, path = config.get("opaque"), f"{path}.opaque"
        if opaque is None:
            self.causes.required(path)
            return
        self._names.driver(f"{path}.driver", opaque.get("driver", ""), caseless=True)
        self._object(f"{path}.parameters", opaque.get("parameters"))

    def _object(self, path: str, found: Any) -> None:
        """Check a JSON object of the driver's own."""
        if found is None:
            self.causes.required(path)
        elif not isinstance(found, dict):
            self.causes.invalid(path, "<value omitted>", "must be a valid JSON object")
        elif len(json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()) > (
            _LARGEST_OBJECT
        ):
            self.causes.too_long(path, _LARGEST_OBJECT)

    # -- what was allocated -----------------------------------------------------------------------

    def check_status(self, body: Json, old: Json) -> Causes:
        """Return what is wrong with a claim's new status."""
        status, was = body.get("status") or {}, old.get("status") or {}
        self._requests = _requests((body.get("spec") or {}).get("devices") or {})
        allocation = status.get("allocation")
        self._consumers(status, allocation)
        self._reports(status, (allocation or {}).get("devices") or {})
        if allocation is not None and was.get("allocation") is not None:
            if allocation != was["allocation"]:
                self.causes.invalid("status.allocation", allocation, "field is immutable")
        elif allocation is not None:
            self._results((allocation.get("devices") or {}).get("results") or [])
        return self.causes

    def _consumers(self, status: Json, allocation: Json | None) -> None:
        path, consumers = "status.reservedFor", status.get("reservedFor") or []
        if consumers and allocation is None:
            detail = "may not be specified when `allocated` is not set"
            self.causes.forbidden(path, detail)
        if len(consumers) > 256:
            self.causes.too_many(path, len(consumers), 256)
        else:
            for index, consumer in enumerate(consumers):
                for key in ("resource", "name", "uid"):
                    if not consumer.get(key):
                        self.causes.required(f"{path}[{index}].{key}")
            uids = [consumer.get("uid", "") for consumer in consumers]
            self._names.unique(path, uids, "uid", consumers)

    def _results(self, results: list[Json]) -> None:
        path = "status.allocation.devices.results"
        if len(results) > 32:
            self.causes.too_many(path, len(results), 32)
            return
        for index, result in enumerate(results):
            below = f"{path}[{index}]"
            self._reference(f"{below}.request", result.get("request", ""))
            self._names.driver(f"{below}.driver", result.get("driver", ""), caseless=True)
            self._names.pool(f"{below}.pool", result.get("pool", ""))
            self.causes.say(f"{below}.device", result.get("device", ""), text.of_label)

    # -- what drivers report ----------------------------------------------------------------------

    def _reports(self, status: Json, allocated: Json) -> None:
        known = set(_identities(allocated.get("results") or ()))
        devices = status.get("devices") or ()
        identities = list(_identities(devices))
        for index, (device, identity) in enumerate(zip(devices, identities, strict=True)):
            path = f"status.devices[{index}]"
            self._names.driver(f"{path}.driver", device.get("driver", ""))
            self._names.pool(f"{path}.pool", device.get("pool", ""))
            self.causes.say(f"{path}.device", device.get("device", ""), text.of_label)
            if identity not in known:
                self.causes.invalid(path, device, "must be an allocated device in the claim")
            self._report(path, device)
            if identity in identities[:index]:
                self.causes.duplicate(path, device)

    def _report(self, path: str, device: Json) -> None:
        conditions = device.get("conditions") or []
        if len(conditions) > 8:
            self.causes.too_many(f"{path}.conditions", len(conditions), 8)
        check_conditions(self.causes, f"{path}.conditions", conditions, self.minor)
        if device.get("data") is not None:
            self._object(f"{path}.data", device["data"])
        network, path = device.get("networkData") or {}, f"{path}.networkData"
        for key, most in (("interfaceName", 256), ("hardwareAddress", 128)):
            if len(network.get(key, "").encode()) > most:
                self.causes.too_long(f"{path}.{key}", most)
        self._addresses(f"{path}.ips", network.get("ips") or [])

    def _addresses(self, path: str, addresses: list[str]) -> None:
        if len(addresses) > 16:
            self.causes.too_many(path, len(addresses), 16)
            return
        for index, address in enumerate(addresses):
            for why in _address_faults(address):
                self.causes.invalid(f"{path}[{index}]", address, why)
        self._names.unique(path, addresses)


def _requests(devices: Json) -> dict[str, set[str]]:
    """Return the claim's requests, with the names of what may be available for each."""
    return {
        request.get("name", ""): {
            one.get("name", "") for one in request.get("firstAvailable") or ()
        }
        for request in devices.get("requests") or ()
    }


def _identities(entries: Any) -> Iterator[tuple[str, ...]]:
    for entry in entries:
        yield tuple(entry.get(key) or "" for key in ("driver", "pool", "device", "shareID"))


def _address_faults(address: str) -> list[str]:
    """Return what is wrong with an address of an interface, with the length of its prefix."""
    try:
        found = ipaddress.ip_interface(address)
    except ValueError:
        found = None
    if found is None or not re.fullmatch(r"[^/]+/\d+", address):
        return ["must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)"]
    if str(found) != address:
        return [f'must be in canonical form ("{found}")']
    return []
