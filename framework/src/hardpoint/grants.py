"""Grants and releases: which devices Kubernetes may have, for how long, and who still has them.

A *grant source* names the kinds that it governs. Devices of those kinds are offered only under a
grant, and when a grant ends its devices stay withheld until nobody can be using them any more: that
time is a *release*. What no source governs is granted.
"""

from __future__ import annotations

import enum
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from hardpoint.attributes import LONGEST_STRING, MOST_ENTRIES, fit_name, text
from hardpoint.model import AttributeValue, Device, DeviceNode

ALLOCATION = "allocation"
"""The attribute by which a device says its grant, in the driver's own domain."""

_TAG = 4
"""Bytes, two letters each."""
_TAIL = 1 + 2 * _TAG
"""Characters that a tag adds to a name, its dash included."""
_TAGGED = re.compile(r"-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedDevice:
    """One device as a grant names it; the agent looks for what is meant, and never guesses.

    It is the device of this ``name``, else the one whose attribute ``uuid`` this is.
    """

    name: str
    """As it is called in CDI: a ``/`` of the source's own name is a ``_``."""
    uuid: str = ""
    cdi_id: str = ""
    """What a CDI file of the source's calls it, ``bcd.dev/gpu=gpu-0``: what claims are answered.
    Empty where the source writes none."""
    nodes: tuple[DeviceNode, ...] = ()
    """What that file delivers already, so that a claim's own file does not repeat it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Devices that Kubernetes may have under an allocation."""

    allocation: str
    """The source's id of it: 1 to 128 letters, digits and ``-._``."""
    devices: tuple[GrantedDevice, ...] = ()
    unsupported: str = ""
    """What the source asks for and nobody here can honour, in a sentence: the whole grant is
    refused then, never half of it kept."""
    source: str = ""
    """The plugin that says so; the framework writes it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))


class Outcome(enum.StrEnum):
    """What became of a grant."""

    IN_FORCE = "in-force"
    OVERLAP = "overlap"
    """Another grant, or a release that is not over, has one of its devices."""
    UNKNOWN_DEVICE = "unknown-device"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True)
class GrantOutcome:
    """What its source is told of a grant; ``reason`` is a sentence, empty for one in force."""

    outcome: Outcome
    reason: str = ""

    @property
    def in_force(self) -> bool:
        """Whether its devices are offered."""
        return self.outcome is Outcome.IN_FORCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The time between the end of a grant and the moment nobody can be using its devices.

    Also that of a drain, and of what pods have outside every grant (``allocation`` is then what
    their ids say, or empty).
    """

    id: str
    """Unlike any other release's; the same after a restart."""
    allocation: str
    source: str
    """The grant source: ``policy/cdi_grants``; ``drain`` for a node that is handed back, ``orphan``
    for what was found outside the grants, ``lost`` for what nobody knows any more."""
    devices: tuple[Device, ...]
    """As they were when they were last known."""
    since: float
    """When it began, in seconds since 1970."""
    left: float = 0.0
    """When the devices had left the offer, by ``time.monotonic`` of this process: evidence that
    nobody has them is worth something only if it was read after that."""
    nodes: tuple[DeviceNode, ...] = ()
    """Those of the devices' nodes that no live grant shares: who has another open may well be
    allowed to."""
    dra_drivers: tuple[str, ...] = ()
    """The DRA drivers' names that the devices are published under."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        object.__setattr__(self, "nodes", tuple(self.nodes))

    @property
    def names(self) -> tuple[str, ...]:
        """The devices' names."""
        return tuple(device.name for device in self.devices)

    def __str__(self) -> str:
        return f"release of {self.allocation or self.source}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a source of evidence found. Made with ``none``, ``used_by`` or ``unknown``."""

    began: float
    """When the reading began, by ``time.monotonic``."""
    users: tuple[str, ...] = ()
    """Who uses one of the devices, for people: ``pod media/player``."""
    why: str = ""
    """Why it cannot be said; empty where it can. What cannot be said is in use."""

    @classmethod
    def none(cls, began: float) -> Evidence:
        """Nobody uses any of them."""
        return cls(began=began)

    @classmethod
    def used_by(cls, began: float, *users: str) -> Evidence:
        """Somebody does."""
        return cls(began=began, users=tuple(users))

    @classmethod
    def unknown(cls, why: str) -> Evidence:
        """It could not be found out. Raising says the same."""
        return cls(began=time.monotonic(), why=why or "it gave no reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingPod:
    """A pod that has a device it must not have any more."""

    namespace: str
    name: str
    devices: tuple[str, ...]
    """Names, for people."""
    since: float
    """When it was first seen with one, in seconds since 1970."""
    uids: tuple[str, ...] = ()
    """UIDs of the pods that a claim was reserved for; empty where the kubelet alone knows the pod,
    which names no UID."""
    still_holds: Callable[[], Awaitable[bool]] = field(compare=False, repr=False)
    """Looks again, now. Raises ``HardpointError`` where that cannot be said."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Reaped(enum.StrEnum):
    """What the reaper did to a pod."""

    DELETED = "deleted"
    GONE = "gone"
    """There is no such pod, it has ended, or it does not hold the device any more."""
    SPARED = "spared"
    """It must not be deleted, for the reason given."""
    WOULD_DELETE = "would-delete"
    """A dry run."""
    LATER = "later"
    """Not now: the rate limit, or an API server that does not answer."""


@dataclass(frozen=True, slots=True)
class ReapResult:
    """The reaper's answer; ``reason`` is a sentence."""

    what: Reaped
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCondition:
    """Something that is so of the node, for people and schedulers; it exists only while it is."""

    type: str
    """In CamelCase, ``ReleaseStuck``: what it is called unless the settings call it otherwise."""
    reason: str
    message: str
    trouble: bool = True
    """False for what was asked for, as ``Released``: ``hardpoint doctor`` does not fail by it."""


def tag(allocation: str) -> str:
    """Return the eight letters by which a device's DRA name tells its allocation."""
    return blake2b(allocation.encode("utf-8", "surrogatepass"), digest_size=_TAG).hexdigest()


def published_name(device: str, allocation: str) -> str:
    """Return what a device is called in DRA: ``gpu0``, or ``gpu0-1a2b3c4d`` under a grant.

    The same device under another allocation is another device to the scheduler. At most 63
    characters: only the device's half is cut, and ends in a hash of the whole then.
    """
    if not allocation:
        return device
    return f"{fit_name(device, room=_TAIL)}-{tag(allocation)}"


def is_name_of(published: str, device: str) -> bool:
    """Say whether a name is what a device is called in DRA under whatever grant, or under none.

    A device may have such a name of its own, ``gpu0-1a2b3c4d``: look for that first.
    """
    half, end = fit_name(device, room=_TAIL), published[-_TAIL:]
    return published == device or (
        published[:-_TAIL] == half and _TAGGED.fullmatch(end) is not None
    )


def attributes_of(device: Device, allocation: str) -> Mapping[str, AttributeValue]:
    """Return what is published of a device under a grant: its attributes, and ``allocation``.

    Where the API has no room for one more, the device's last makes it.
    """
    room = MOST_ENTRIES - len(device.capacity)
    if not allocation or room < 1:
        return device.attributes
    own = [(name, value) for name, value in device.attributes.items() if name != ALLOCATION]
    return {ALLOCATION: _value(allocation), **dict(own[: room - 1])}


def _value(allocation: str) -> str:
    """Return an allocation as far as an attribute has room; a longer one ends in its tag."""
    if len(allocation.encode("utf-8", "replace")) <= LONGEST_STRING:
        return text(allocation)
    return f"{text(allocation, LONGEST_STRING - _TAIL)}-{tag(allocation)}"
