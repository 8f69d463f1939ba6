"""From what is offered to what the API server is told: pure, for every served version of the API.

One pool per node and driver, named after the node. Its slices are ``<node>-<driver>``, then
``<node>-<driver>-00001`` …, and ``…-counters`` for the shared counters, which may not stand beside
devices. No device, no slice. Everything here is in the shape of v1; ``VERSIONS`` turns it into the
others and back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import msgspec

from hardpoint.errors import BadValue
from hardpoint.kube import Object, shaped
from hardpoint.model import (
    AttributeValue,
    Capacity,
    Condition,
    Device,
    Domain,
    Effect,
    Offer,
    Offered,
    Taint,
    Version,
)
from hardpoint.quantity import canonical
from hardpoint_dra.counters import Counters, count
from hardpoint_dra.placement import MOST_DEVICES, natural, place

Json: TypeAlias = "dict[str, Any]"

GROUP = "resource.k8s.io"
MOST_TAINTS = 4
"""Taints of a device in 1.34; later releases take 16, but a server may be older than it looks."""
_LONGEST_NAME = 253
_SEVERITY = {Effect.NO_EXECUTE: 0, Effect.NO_SCHEDULE: 1, Effect.NONE: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What this server keeps of a slice, as far as we know, and what the admin wants of it."""

    taints: bool = True
    counters: bool = True
    sharing: bool = True
    """``allowMultipleAllocations`` and the policies of capacities."""
    binding: bool = True
    """Binding conditions; where they are dropped, a prepare waits for them (``binding``)."""
    most: int = MOST_DEVICES
    """Devices of one slice, where the server takes fewer than the API says."""
    withdraw_unhealthy: bool = False
    """True: an unhealthy device that nobody holds leaves, instead of being tainted."""

    def without(self, paths: Iterable[str]) -> Profile:
        """Return the profile of a server that dropped these fields; itself if none is known."""
        found = self
        for path in paths:
            if ".taints" in path:
                found = replace(found, taints=False)
            elif "sharedCounters" in path or "consumesCounters" in path:
                found = replace(found, counters=False)
            elif "allowMultipleAllocations" in path or "requestPolicy" in path:
                found = replace(found, sharing=False)
            elif "bindingConditions" in path or "bindingFailureConditions" in path:
                found = replace(found, binding=False)
        return found

    @property
    def lacks(self) -> tuple[str, ...]:
        """The features that this server does not keep, by name."""
        known = ("taints", "counters", "sharing", "binding")
        return tuple(name for name in known if not getattr(self, name))


@dataclass(frozen=True, slots=True)
class Wanted:
    """One slice as it should be: its name, and its ``devices`` or ``sharedCounters``."""

    name: str
    content: Json

    @property
    def devices(self) -> list[Json]:
        """Its devices."""
        return list(self.content.get("devices", ()))


# -- devices --------------------------------------------------------------------------------------


def shown(offer: Offer, domain: Domain, profile: Profile) -> list[Offered]:
    """Return the devices of a domain that this server is to see, in order of name.

    A device that cannot be used is tainted; where taints are dropped it leaves, unless somebody
    holds it: then it stays until the holder is gone.
    """
    found = {one.name: one for one in reversed(list(_shown(offer, domain, profile)))}
    return sorted(found.values(), key=lambda one: natural(one.name))


def _shown(offer: Offer, domain: Domain, profile: Profile) -> Iterator[Offered]:
    for offered in offer.devices:
        ours = offered.domain.dra_driver == domain.dra_driver
        if ours and (offered.held or _usable(offered, profile)):
            yield offered


def alike(old: Offer, new: Offer, domain: Domain, profile: Profile) -> bool:
    """Say whether two offers are the same to the server: that a device is held now is not."""
    before, after = (list(_shown(offer, domain, profile)) for offer in (old, new))
    return len(before) == len(after) and all(map(_alike, before, after))


def _alike(old: Offered, new: Offered) -> bool:
    return old.device == new.device and _all_taints(old) == _all_taints(new)


def _usable(offered: Offered, profile: Profile) -> bool:
    if profile.withdraw_unhealthy and offered.health.condition is Condition.UNHEALTHY:
        return False
    hindered = any(taint.effect is not Effect.NONE for taint in _all_taints(offered))
    return profile.taints or not hindered


def _all_taints(offered: Offered) -> tuple[Taint, ...]:
    if offered.health.condition is not Condition.UNHEALTHY:
        return offered.taints
    known = {taint.key.rpartition("/")[2] for taint in offered.taints}
    return offered.taints if "unhealthy" in known else (*offered.taints, Taint("unhealthy"))


def device_body(offered: Offered, profile: Profile, consumed: Json | None = None) -> Json:
    """Return one device as v1 has it; ``consumed`` is its part in the pool's counters."""
    device = offered.device
    body: Json = {"name": device.name}
    attributes = {name: attribute(value) for name, value in sorted(device.attributes.items())}
    shared = device.shareable and profile.sharing
    parts = {
        "attributes": attributes,
        "capacity": dict(_capacities(device, shared)),
        "allowMultipleAllocations": shared,
        "consumesCounters": [consumed] if consumed else [],
        "taints": _taints(offered) if profile.taints else [],
    }
    if profile.binding:
        parts["bindingConditions"] = list(device.binding_conditions)
        parts["bindingFailureConditions"] = list(device.binding_failure_conditions)
    return body | {name: value for name, value in parts.items() if value}


def attribute(value: AttributeValue) -> Json:
    """Return a value with its type, as the API's ``DeviceAttribute``."""
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    if isinstance(value, Version):
        return {"version": value.text}
    return {"string": value}


def _taints(offered: Offered) -> list[Json]:
    """Return the taints, the gravest first; a key without a domain is in the driver's own."""
    found: dict[tuple[str, Effect], Json] = {}
    for taint in sorted(_all_taints(offered), key=lambda t: (_SEVERITY[t.effect], t.key)):
        key = taint.key if "/" in taint.key else f"{offered.domain.dra_driver}/{taint.key}"
        value = {"value": taint.value} if taint.value else {}
        found.setdefault((key, taint.effect), {"key": key, **value, "effect": str(taint.effect)})
    return list(found.values())[:MOST_TAINTS]


def _capacities(device: Device, shared: bool) -> Iterator[tuple[str, Json]]:
    for name, capacity in sorted(device.capacity.items()):
        try:
            policy = {"requestPolicy": _policy(capacity)} if shared else {}
            yield name, {"value": canonical(capacity.value), **policy}
        except BadValue:
            continue  # the inventory has said so already


def _policy(capacity: Capacity) -> Json:
    """Return how claims consume a capacity.

    Without a policy the API lets the first claim that names no amount consume all of it, which
    would undo the sharing: a capacity that states none is consumed only by who asks for some.
    """
    valid = [canonical(amount) for amount in capacity.valid]
    least = canonical(capacity.minimum or "0")
    if valid:
        return {"default": canonical(capacity.default or valid[0]), "validValues": valid}
    bounds = {"min": least, "max": capacity.maximum, "step": capacity.step}
    if capacity.default and not (capacity.minimum or capacity.maximum or capacity.step):
        return {"default": canonical(capacity.default)}
    span = {name: canonical(amount) for name, amount in bounds.items() if amount}
    return {"default": canonical(capacity.default or least), "validRange": span}


# -- slices ---------------------------------------------------------------------------------------


def slice_name(node: str, driver: str, index: int = 0, kind: str = "") -> str:
    """Return the name of a pool's slice; one too long for the API is cut and gets a hash."""
    suffix = (f"-{kind}" if kind else "") + (f"-{index:05d}" if index else "")
    name = f"{node}-{driver}"
    if len(name) + len(suffix) > _LONGEST_NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        room = _LONGEST_NAME - len(suffix) - len(driver) - len(digest) - 2
        name = f"{node[:room].rstrip('.-')}-{digest}-{driver}"
    return name + suffix


def wanted_slices(
    bodies: Iterable[Json], counters: Counters, home: tuple[str, str], layout: list[list[str]]
) -> list[Wanted]:
    """Return the slices of a pool; ``home`` is node and driver, ``layout`` names by slice."""
    node, driver = home
    by_name = {body["name"]: body for body in bodies}
    wanted = [
        Wanted(slice_name(node, driver, index), {"devices": [by_name[name] for name in members]})
        for index, members in enumerate(layout)
    ]
    for index, sets in enumerate(counters.slices() if layout else ()):
        name = slice_name(node, driver, index, "counters")
        wanted.append(Wanted(name, {"sharedCounters": list(sets)}))
    return wanted


def bodies_of(offered: Iterable[Offered], profile: Profile) -> tuple[list[Json], Counters]:
    """Return the devices of a pool as v1 has them, and the counters they consume."""
    devices = list(offered)
    counters = count(found.device for found in devices) if profile.counters else Counters()
    bodies = [device_body(found, profile, counters.consumed.get(found.name)) for found in devices]
    return bodies, counters


def is_advanced(body: Json) -> bool:
    """Say whether a device makes its slice one of 64: it has taints or consumes counters."""
    return bool(body.get("taints") or body.get("consumesCounters"))


def slice_body(
    wanted: Wanted, home: tuple[str, str], node_uid: str | None, generation: int, count: int
) -> Json:
    """Return a whole ResourceSlice in the shape of v1."""
    node, driver = home
    metadata: Json = {"name": wanted.name}
    if node_uid:
        metadata["ownerReferences"] = [owner(node, node_uid)]
    pool = {"name": node, "generation": generation, "resourceSliceCount": count}
    spec = {"driver": driver, "nodeName": node, "pool": pool, **wanted.content}
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": spec,
    }


def owner(node: str, uid: str) -> Json:
    """Return the reference by which a slice goes when its node does (kubernetes issue 123692)."""
    return {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}


def render(
    offer: Offer,
    domain: Domain,
    node_name: str,
    node_uid: str | None = None,
    version: str = "v1",
) -> list[Json]:
    """Return the ResourceSlices that would be written for a domain on an empty server.

    Raises ``KeyError`` for a version of the API that is not one of ``VERSIONS``.
    """
    encode = VERSIONS[version].encode
    home, profile = (node_name, domain.dra_driver), Profile()
    bodies, counters = bodies_of(shown(offer, domain, profile), profile)
    layout = place({body["name"]: is_advanced(body) for body in bodies}, {})
    wanted = wanted_slices(bodies, counters, home, layout)
    return [encode(slice_body(found, home, node_uid, 1, len(wanted))) for found in wanted]


# -- versions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shape:
    """How one version of the API writes what v1 says, and how it is read back.

    What does not differ is shared between what is given and what is returned: bodies are not
    changed once they are made.

    Reading back raises ``KubeUnreachable`` for what is no slice.
    """

    encode: Callable[[Json], Json]
    decode: Callable[[Json], Json]


class _Pool(msgspec.Struct):
    name: str = ""
    generation: int = 0
    resourceSliceCount: int = 0


class _Device(msgspec.Struct):
    name: str
    taints: list[dict[str, str]] | None = None
    basic: dict[str, Any] | None = None


class _Spec(msgspec.Struct):
    driver: str
    pool: _Pool
    devices: list[_Device] | None = None


class _Slice(Object):
    """What is looked at of a stored slice; the rest is only compared."""

    spec: _Spec


def _decoded(body: Json) -> Json:
    return _named("v1", shaped(_Slice, body, "a stored slice"))


def _named(version: str, body: Json) -> Json:
    return {**body, "apiVersion": f"{GROUP}/{version}"}


def _wrapped(body: Json) -> Json:
    """Put all but a device's name into ``basic``, as v1beta1 has it."""
    return _with_devices(
        _named("v1beta1", body),
        lambda d: {"name": d["name"], "basic": {k: v for k, v in d.items() if k != "name"}},
    )


def _unwrapped(body: Json) -> Json:
    return _with_devices(
        _decoded(body), lambda d: {"name": d.get("name"), **(d.get("basic") or {})}
    )


def _with_devices(body: Json, shape: Callable[[Json], Json]) -> Json:
    spec = body.get("spec") or {}
    if not spec.get("devices"):
        return body
    return {**body, "spec": {**spec, "devices": [shape(device) for device in spec["devices"]]}}


VERSIONS: Mapping[str, Shape] = {
    "v1": Shape(lambda body: _named("v1", body), _decoded),
    "v1beta2": Shape(lambda body: _named("v1beta2", body), _decoded),
    "v1beta1": Shape(_wrapped, _unwrapped),
}
"""Every version of the API that slices can be written in, newest first."""
