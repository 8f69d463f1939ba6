"""Which resource each device of an offer is in, under which ids, and whether a pod may have it.

Pure, but for one memory: a device that a limited resource has taken stays in it while it is there,
so that another one which is plugged in does not push it out.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hardpoint.agent import Agent
from hardpoint.allocation import Assignment, device_id, grant_of_id, is_allocation, is_id_of
from hardpoint.cel import Selector
from hardpoint.errors import BadValue
from hardpoint.model import Condition, Effect, Hold, Offer, Offered
from hardpoint_deviceplugin.settings import DevicePluginSettings, ResourceSettings
from hardpoint_deviceplugin.size import MOST_IDS

Key: TypeAlias = tuple[str, str]
"""DRA driver's name and device name: what a device is known by on a node."""
_KEEPS_AWAY = (Effect.NO_SCHEDULE, Effect.NO_EXECUTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One id of a resource."""

    id: str
    offered: Offered
    refusal: str = ""
    """Why no new container may have it; empty if one may."""

    @property
    def key(self) -> Key:
        """The device behind it, which other ids may share."""
        return key_of(self.offered)

    def assignment(self, resource: str) -> Assignment:
        """Return it in the agent's words."""
        return Assignment(
            resource=resource,
            id=self.id,
            device=self.offered.name,
            domain=self.offered.domain,
            allocation=self.offered.allocation,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """An extended resource and everything that is in it."""

    name: str
    entries: tuple[Entry, ...] = ()

    def by_id(self) -> Mapping[str, Entry]:
        """Return the entries by id."""
        return {entry.id: entry for entry in self.entries}


@dataclass(slots=True)
class Arranged:
    """An offer as the kubelet shall see it, and what of the settings did not come out."""

    resources: dict[str, Resource] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    """A sentence for each resource of which something was left out."""


def key_of(offered: Offered) -> Key:
    """Return what a device is known by."""
    return offered.domain.dra_driver, offered.name


class Arranger:
    """Arranges offers, one after the other, as the settings say."""

    def __init__(self, settings: DevicePluginSettings) -> None:
        self._settings = settings
        self._selectors = [(one, Selector(one.selector)) for one in settings.resources]
        self._own = frozenset(one.name for one in settings.resources)
        self._members: dict[str, frozenset[Key]] = {}

    def arrange(self, offer: Offer, holds: Sequence[Hold]) -> Arranged:
        """Put every device into the one resource that it belongs to."""
        arranged = Arranged()
        left = list(offer.devices)
        ids = _Ids(holds, arranged)
        for settings, selector in self._selectors:
            chosen = self._chosen(settings, selector, left, arranged)
            members = {key_of(one) for one in chosen}
            self._members[settings.name] = frozenset(members)
            left = [one for one in left if key_of(one) not in members]
            ids.add(settings.name, chosen, settings.replicas)
        for name, devices in self._by_kind(left).items():
            ids.add(name, devices)
        return arranged

    def _chosen(
        self,
        settings: ResourceSettings,
        selector: Selector,
        devices: Iterable[Offered],
        arranged: Arranged,
    ) -> list[Offered]:
        """Return what a selector matches, within the limit: who is in it stays."""
        matching = []
        for offered in devices:
            try:
                if selector.matches(offered):
                    matching.append(offered)
            except BadValue as error:
                arranged.problems[settings.name] = str(error)
        before = self._members.get(settings.name, frozenset())
        matching.sort(key=lambda one: (key_of(one) not in before, not one.held, key_of(one)))
        return matching[: settings.limit]

    def _by_kind(self, devices: Iterable[Offered]) -> dict[str, list[Offered]]:
        """Return the resources of kinds; a name that a selector is for holds what that says."""
        found: dict[str, list[Offered]] = {}
        for offered in devices:
            name = self._kind_name(offered)
            if name is not None and name not in self._own:
                found.setdefault(name, []).append(offered)
        return found

    def _kind_name(self, offered: Offered) -> str | None:
        kind = offered.device.kind
        if not any(fnmatch.fnmatchcase(kind, pattern) for pattern in self._settings.kinds):
            return None
        name = self._settings.names.get(kind, kind)
        return name if "/" in name else f"{offered.domain.resource_prefix}/{name}"


class _Ids:
    """Gives devices their ids, and says of each whether it may be had."""

    def __init__(self, holds: Iterable[Hold], arranged: Arranged) -> None:
        self._arranged = arranged
        self._holders: dict[Key, list[Hold]] = {}
        for hold in holds:
            key = (hold.claim.dra_driver, hold.device.name)
            self._holders.setdefault(key, []).append(hold)

    def add(self, resource: str, devices: Iterable[Offered], replicas: int = 1) -> None:
        """Add a resource with these devices; what one list cannot hold is left out, and said."""
        entries: dict[str, Entry] = {}
        for offered in sorted(devices, key=key_of):
            if replicas > 1 and not offered.device.shareable:
                self._say(resource, f"{offered.name} is not shareable: it is offered once")
            for id_ in _ids(offered, replicas):
                if id_ in entries or len(entries) == MOST_IDS:
                    self._say(resource, _left_out(offered, id_, entries))
                    break
                refusal = self._refusal(offered, resource, id_)
                entries[id_] = Entry(id=id_, offered=offered, refusal=refusal)
        self._arranged.resources[resource] = Resource(
            name=resource, entries=tuple(entries.values())
        )

    def _say(self, resource: str, problem: str) -> None:
        self._arranged.problems.setdefault(resource, problem)

    def _refusal(self, offered: Offered, resource: str, id_: str) -> str:
        """Return why no new container may have a device under an id."""
        if offered.health.condition is Condition.UNHEALTHY:
            return f"{offered.name} is unhealthy: {offered.health.message or 'its driver says so'}"
        taint = next((one for one in offered.taints if one.effect in _KEEPS_AWAY), None)
        if taint is not None:
            return f"{offered.name} is tainted: {taint.key}"
        if not offered.claimable:
            return f"{offered.name} takes no new claims now"
        holder = self._holder(offered, resource, id_)
        return f"{offered.name} is in use: {holder} holds it" if holder else ""

    def _holder(self, offered: Offered, resource: str, id_: str) -> str:
        """Return who else has an exclusive device: a claim, or an id of another name."""
        if offered.device.shareable:
            return ""
        for hold in self._holders.get(key_of(offered), ()):
            claim = hold.claim
            if not is_allocation(claim):
                return f"claim {claim}"
            unnamed = not claim.namespace  # found in a CDI file alone: it may well be this one
            if not unnamed and (claim.namespace, claim.name) != (resource, id_):
                return f"{claim.name} of {claim.namespace}"
        return ""


def _ids(offered: Offered, replicas: int) -> Iterator[str]:
    name, grant = offered.name, offered.allocation
    if replicas == 1 or not offered.device.shareable:
        yield device_id(name, grant)
        return
    for number in range(replicas):
        yield device_id(name, grant, number)


def _left_out(offered: Offered, id_: str, entries: Mapping[str, Entry]) -> str:
    if id_ in entries:
        other = entries[id_].offered.domain.dra_driver
        return (
            f"{offered.name} of {offered.domain.dra_driver} is left out: one of {other} has its "
            "id; give their kinds names of their own"
        )
    return f"{offered.name} is left out: one list to the kubelet holds {MOST_IDS} ids"


def why_gone(id_: str, offer: Offer) -> str:
    """Say why an id that was listed before is not now, as far as the offer tells; else nothing."""
    for withheld in offer.withheld:
        if is_id_of(id_, withheld.subject):
            return f": {withheld.reason}"
    for offered in offer.devices:
        if is_id_of(id_, offered.name) and grant_of_id(id_) != offered.allocation:
            how = (
                "granted under another allocation"
                if offered.allocation
                else "offered without a grant"
            )
            return f": {offered.name} is {how} now"
    return ""


def announce(agent: Agent, resource: Resource) -> None:
    """Tell the agent which ids are ours before the kubelet hears of them."""
    agent.announce(resource.name, [entry.assignment(resource.name) for entry in resource.entries])
