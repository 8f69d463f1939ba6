"""What else hands out hardware on this node: other device plugins, and other DRA drivers."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hardpoint.allocation import is_id_of
from hardpoint.errors import KubeUnreachable
from hardpoint.kube import Kube, Resource
from hardpoint.kubelet.podsource import PodSource

_GROUP = "resource.k8s.io"
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Say whether a name fits one of the patterns."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(slots=True)
class Known:
    """What one source said last: rivals by name, each with what it does, in words."""

    linger: float
    """Seconds that a rival counts after it was last seen: a plugin that restarts is away."""
    answered: bool = False
    """It has answered once; what it said then stands while it fails."""
    failure: str = ""
    """Why it does not answer now; empty where it does."""
    read_at: float | None = None
    """When it was last asked."""
    rivals: dict[str, str] = field(default_factory=dict)
    _seen: dict[str, float] = field(default_factory=dict)

    def heard(self, found: Mapping[str, str], now: float) -> None:
        """Learn an answer."""
        self.answered, self.failure, self.read_at = True, "", now
        self._seen |= dict.fromkeys(found, now)
        self._seen = {n: at for n, at in self._seen.items() if n in found or self._lingers(at, now)}
        self.rivals = {name: found.get(name) or self.rivals[name] for name in sorted(self._seen)}

    def _lingers(self, seen: float, now: float) -> bool:
        return now - seen < self.linger

    def failed(self, why: str, now: float) -> None:
        """Learn that there is no answer."""
        self.failure, self.read_at = why, now

    def is_due(self, now: float, after: float) -> bool:
        """Say whether it was not asked for so many seconds."""
        return self.read_at is None or now - self.read_at >= after


# -- device plugins -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Own:
    """By what our own resources are known: they may have any name, also one like a rival's."""

    prefixes: Collection[str]
    resources: Collection[str]
    """Those of which somebody holds something."""
    devices: Collection[str]
    """Names of all devices that were ever offered here."""

    def has(self, resource: str, ids: Collection[str]) -> bool:
        """Say whether a resource is ours; ids of a rival's are no names of our devices."""
        known = (any(is_id_of(id_, name) for name in self.devices) for id_ in ids)
        if resource in self.resources or resource.partition("/")[0] in self.prefixes:
            return not ids or any(known)
        return bool(ids) and all(known)


async def other_resources(
    source: PodSource, patterns: Iterable[str], own: Own
) -> Mapping[str, str]:
    """Return the resources of other plugins that can be given out, or that pods have.

    After a reboot a plugin may register long after ours: the checkpoint still has it from before.
    Raises ``HardpointError``.
    """
    patterns = tuple(patterns)
    ids: dict[str, set[str]] = {}
    for resource, id_ in (await source.checkpoint()).registered:
        ids.setdefault(resource, set()).add(id_)
    for held in await source.allocatable():
        ids.setdefault(held.resource, set()).update(held.ids)
    found = {name: f"another device plugin of this node offers {name}" for name in ids}
    for pod in await source.list():
        for held in pod.resources:
            ids.setdefault(held.resource, set()).update(held.ids)
            has = f"pod {pod.namespace}/{pod.name} has {held.resource} of another device plugin"
            found.setdefault(held.resource, has)
    return {
        name: what
        for name, what in found.items()
        if matches(name, patterns) and not own.has(name, ids[name])
    }


# -- DRA drivers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slice:
    """What another driver publishes of this node in one ResourceSlice."""

    driver: str
    addresses: tuple[str, ...]
    """PCI addresses of its devices."""
    count: int
    """How many devices it has."""


async def other_slices(
    connect: Callable[[], Kube], node: str, own: Collection[str]
) -> tuple[Slice, ...]:
    """Return the slices of other drivers on a node, in the newest version that is served.

    None where the API is not served: there is no such rival then. Raises ``KubeError``.
    """
    async with connect() as kube:
        versions = await kube.versions(_GROUP)
        if not versions:
            return ()
        slices = Resource(_GROUP, versions[0], "resourceslices")
        listing = await kube.list(slices, fields={"spec.nodeName": node})
    try:
        found = [_slice(item["spec"]) for item in listing.items]
    except (LookupError, TypeError, AttributeError) as error:
        raise KubeUnreachable("a ResourceSlice is not as the API has it") from error
    return tuple(one for one in found if one.driver not in own)


def _slice(spec: Mapping[str, Any]) -> Slice:
    devices = spec.get("devices") or ()
    return Slice(str(spec["driver"]), tuple(_addresses(devices)), len(devices))


def _addresses(devices: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for device in devices:
        attributes = (device.get("basic") or device).get("attributes") or {}  # v1beta1's wrapper
        address = (attributes.get(PCI_BUS_ID) or {}).get("string")
        if address:
            yield str(address)


def other_drivers(slices: Iterable[Slice], patterns: Iterable[str]) -> Mapping[str, str]:
    """Return the named drivers that offer devices of this node."""
    patterns = tuple(patterns)
    return {
        one.driver: f"DRA driver {one.driver} offers devices of this node"
        for one in slices
        if one.count and matches(one.driver, patterns)
    }
