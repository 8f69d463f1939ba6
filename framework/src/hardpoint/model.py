"""The values that drivers, policies and frontends exchange: frozen, and free of I/O.

``Device`` and ``Withheld`` come from drivers; ``Offer`` goes to frontends; ``Claim`` comes back,
and ``Hold`` and ``Delivery`` are its answer. Sequences are tuples and mappings are read-only,
whatever iterable or mapping a plugin passes in.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from hardpoint.parts import Part as Part
from hardpoint.parts import exclusive as exclusive
from hardpoint.parts import shared as shared

_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A strict semantic version 2.0.0 without a leading ``v``: what the API calls ``version``."""

    text: str

    def __str__(self) -> str:
        return self.text


AttributeValue: TypeAlias = "bool | int | str | Version"
"""The four scalar members of the API's ``DeviceAttribute``."""


def freeze(mapping: Mapping[_K, _V] | None) -> Mapping[_K, _V]:
    """Return a read-only copy."""
    return MappingProxyType(dict(mapping or {}))


def _set(instance: object, **values: object) -> None:
    """Normalise fields of a frozen instance; for ``__post_init__`` alone."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


# -- devices --------------------------------------------------------------------------------------


class NodeType(enum.StrEnum):
    """The type of a device node, in CDI's letters."""

    CHAR = "c"
    BLOCK = "b"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A node of /dev that a container receives."""

    path: str
    """Where the container sees it."""
    type: NodeType = NodeType.CHAR
    major: int | None = None
    """As sysfs states it (attribute ``dev``); None is looked up on the host."""
    minor: int | None = None
    """As sysfs states it; None is looked up on the host."""
    host_path: str = ""
    """The node on the host where it is another path; empty is ``path``."""
    subsystem: str = ""
    """The kernel's subsystem: ``drm``, ``tty``, ``i2c-dev`` …"""
    permissions: str = "rw"
    """A subset of ``rwm``."""
    mode: int | None = None
    """Permission bits to create the node with; None copies the host's."""
    gid: int | None = None
    """Group of the host's node, when it is not root: a container without root needs it (H01)."""
    shared: bool = False
    """True for a node that several exclusive devices deliver: ``/dev/uhid``, ``/dev/snd/timer``."""
    absent_ok: bool = False
    """True for a node that may appear later and is given by its numbers alone (evdev 0 to 31)."""
    takes: tuple[Part, ...] = ()
    """Parts that delivering this node takes: usbfs takes the whole USB device."""

    def __post_init__(self) -> None:
        _set(self, takes=tuple(self.takes))

    @property
    def source(self) -> str:
        """The node on the host."""
        return self.host_path or self.path

    @property
    def part(self) -> str | None:
        """The part that this node is: ``char:226:128``; None while its numbers are unknown."""
        if self.major is None or self.minor is None:
            return None
        word = "char" if self.type is NodeType.CHAR else "block"
        return f"{word}:{self.major}:{self.minor}"


class Effect(enum.StrEnum):
    """What a taint does, as the API spells it."""

    NONE = "None"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    """Why a device should not be used now. ``key`` without a domain is in the device's own."""

    key: str
    effect: Effect = Effect.NO_SCHEDULE
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """An amount that a device has, as a Kubernetes quantity (``16Gi``).

    With a policy, claims consume it: ``default`` where a claim names no amount, and either the
    ascending ``valid`` amounts or a range ``minimum``, ``maximum``, ``step``.
    """

    value: str
    default: str | None = None
    valid: tuple[str, ...] = ()
    minimum: str | None = None
    maximum: str | None = None
    step: str | None = None

    def __post_init__(self) -> None:
        _set(self, value=str(self.value), valid=tuple(str(amount) for amount in self.valid))


@dataclass(frozen=True, slots=True)
class Topology:
    """Where a device sits: its NUMA node (None: unknown, the kernel's -1) and PCIe root."""

    numa_node: int | None = None
    pcie_root: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a driver states that the node has.

    A driver gives ``name`` (a DNS label, unique on the node, naming the slot rather than the unit),
    ``kind`` (a dotted word), and what it knows of the rest. ``driver`` is stamped by the framework.
    """

    name: str
    """At most 63 of ``a-z``, ``0-9`` and ``-``: ``slug`` and ``entry.slug`` make pieces of it."""
    kind: str
    """What sort of thing it is, ``sound.card``; published as the attribute ``kind``."""
    nodes: tuple[DeviceNode, ...] = ()
    """What a container receives, if the driver has no ``deliver_device``."""
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    """Facts, absent rather than empty or false; None is left out (``entry.number(…)``). A name
    without a domain is in the domain that the device is published under."""
    capacity: Mapping[str, Capacity] = field(default_factory=dict)
    """Amounts by name, ``{"size": "16Gi"}``; a plain value becomes a ``Capacity``."""
    shareable: bool = False
    """True only where the kernel itself keeps several users apart (DRM render nodes). Its parts are
    shared ones then (``entry.beside()``); with a part that it takes alone it goes to one claim."""
    parts: tuple[Part, ...] = ()
    """The hardware that a holder takes, mostly ``entry.whole()``; that of its nodes is added."""
    taints: tuple[Taint, ...] = ()
    """Why it should not be used now, though it is there."""
    binding_conditions: tuple[str, ...] = ()
    """What a controller must say is ``True`` of the device, in the claim's ``status.devices``,
    before a pod has it: ``acme.dev/attached``, for what is cabled per claim."""
    binding_failure_conditions: tuple[str, ...] = ()
    """Conditions of which one that is ``True`` ends the waiting: another device is looked for. Both
    are given, or neither."""
    topology: Topology = Topology()
    origin: Mapping[str, str] = field(default_factory=dict)
    """Unpublished facts by which the driver finds the device again; kept in the ledger."""
    entry: str = ""
    """The sysfs path, below the root, that the device was read from. ``Node.each`` fills it."""
    driver: str = ""
    """Name of the driver that published it; the framework writes it, a driver cannot."""

    def __post_init__(self) -> None:
        capacity = {
            name: value if isinstance(value, Capacity) else Capacity(value=str(value))
            for name, value in self.capacity.items()
        }
        _set(
            self,
            nodes=tuple(self.nodes),
            attributes=freeze({k: v for k, v in self.attributes.items() if v is not None}),
            capacity=freeze(capacity),
            parts=tuple(self.parts),
            taints=tuple(self.taints),
            binding_conditions=tuple(self.binding_conditions),
            binding_failure_conditions=tuple(self.binding_failure_conditions),
            origin=freeze(self.origin),
        )

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """What a hold on this device takes: its parts and those of every node it delivers."""
        return parts_of(self, self.nodes)

    def __str__(self) -> str:
        return self.name


def parts_of(device: Device, nodes: Iterable[DeviceNode]) -> tuple[Part, ...]:
    """Return the parts that delivering ``nodes`` of ``device`` takes, each once.

    The framework adds the part of every node, so that two drivers can never deliver one exclusive
    node. What is taken both shared and exclusively is taken exclusively.
    """
    strongest: dict[str, bool] = {}

    def take(part: Part) -> None:
        strongest[part.name] = strongest.get(part.name, False) or part.exclusive

    for part in device.parts:
        take(part)
    for node in nodes:
        for part in node.takes:
            take(part)
        if node.part:
            take(Part(node.part, not (device.shareable or node.shared)))
    return tuple(Part(name, alone) for name, alone in sorted(strongest.items()))


@dataclass(frozen=True, slots=True)
class Withheld:
    """Hardware that is seen and not offered, and why.

    ``subject`` is the sysfs address or device name, ``rule`` one word, ``reason`` a sentence a
    person can act on.
    """

    subject: str
    rule: str
    reason: str
    driver: str = ""


@dataclass(frozen=True, slots=True)
class Unread:
    """A sysfs entry that could not be read: what was last published from it stands, as stale."""

    entry: str
    reason: str
    driver: str = ""


Listed: TypeAlias = "Device | Withheld | Unread"
"""What ``publish_devices`` may yield. Drivers seldom make an ``Unread``: ``Node.each`` does."""


class Condition(enum.StrEnum):
    """Whether a device works."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Health:
    """A driver's answer to ``check_device``; ``message`` is for people."""

    condition: Condition
    message: str = ""


class AttributeType(enum.StrEnum):
    """The types of an attribute, as the API names its members."""

    BOOL = "bool"
    INT = "int"
    STRING = "string"
    VERSION = "version"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeInfo:
    """One line of the attribute reference: what a name means, in which unit, and who says so."""

    name: str
    type: AttributeType
    meaning: str
    source: str
    """Kernel file, ioctl or library call that the value comes from."""
    unit: str = ""
    kinds: tuple[str, ...] = ()
    """Kinds that may carry it; empty is every kind of the driver."""
    example: str = ""

    def __post_init__(self) -> None:
        _set(self, kinds=tuple(self.kinds))


# -- what is offered ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Domain:
    """The names that devices are published under; one domain sets all three."""

    dra_driver: str
    resource_prefix: str
    cdi_vendor: str

    @classmethod
    def named(cls, name: str) -> Domain:
        """Use one name for all three."""
        return cls(name, name, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A device as a frontend may show it now."""

    device: Device
    domain: Domain
    health: Health = Health(Condition.HEALTHY)
    taints: tuple[Taint, ...] = ()
    """The device's own and the framework's (stale, absent, rival in use)."""
    held: bool = False
    """True while a hold exists: such a device stays, tainted, even when it is absent."""
    claimable: bool = True
    """False: shown, since somebody holds it, but no new claim is prepared."""
    vouched: bool = False
    """True: a rule allows it by its very name, whatever signature its disk carries."""
    allocation: str = ""
    """The grant under which it is offered; empty where no source governs its kind."""

    @property
    def name(self) -> str:
        """The device's name."""
        return self.device.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What may be offered right now: the inventory after policies and the admin's rules."""

    generation: int
    devices: tuple[Offered, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    complete: bool = True
    """False until every driver has answered once, or its first second is over."""

    def find(self, name: str, dra_driver: str | None = None) -> Offered | None:
        """Return the device of that name, or None."""
        named = (one for one in self.devices if one.name == name)
        return next((o for o in named if dra_driver in (None, o.domain.dra_driver)), None)


# -- claims and holds -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimKey:
    """How a claim is addressed: by UID and, since a claim may span drivers, our driver's name."""

    uid: str
    namespace: str
    name: str
    dra_driver: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    """One device that the scheduler allocated: an allocation result of a claim."""

    request: str
    """Full name, ``main/sub`` for a sub-request."""
    device: str
    pool: str
    share_id: str = ""
    admin_access: bool = False
    parameters: tuple[Mapping[str, Any], ...] = ()
    """Opaque parameters for this result, weakest first (class before claim); later wins."""
    named: bool = False
    """True if a block of parameters names this request: then one of another kind is an error."""
    consumed: Mapping[str, str] = field(default_factory=dict)
    allocation: str = ""
    """The grant that the device is taken under; empty where no source governs its kind."""
    published: str = ""
    """The name that the scheduler knows the device by, where it is another (under a grant)."""

    def __post_init__(self) -> None:
        _set(
            self,
            parameters=tuple(freeze(block) for block in self.parameters),
            consumed=freeze(self.consumed),
        )

    @property
    def base_request(self) -> str:
        """The request's name as the kubelet wants it: ``main`` for ``main/sub``."""
        return self.request.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Who wants what: a ResourceClaim's results for one of our drivers."""

    key: ClaimKey
    allotments: tuple[Allotment, ...] = ()
    pod_claim_name: str = ""
    """Name in the pod's spec, for a claim made from a template."""

    def __post_init__(self) -> None:
        _set(self, allotments=tuple(self.allotments))


class HoldState(enum.StrEnum):
    """Where a hold stands."""

    PREPARING = "preparing"
    HELD = "held"
    RELEASING = "releasing"
    QUARANTINED = "quarantined"
    """Its driver could not undo it; the device is withheld until that works or an operator acts."""


class Hold:
    """One claim's durable grip on one device, as a driver sees it.

    ``device`` is what the driver published when it was taken, also when it is gone by now.
    """

    __slots__ = (
        "_store",
        "allocation",
        "claim",
        "consumed",
        "device",
        "remembered",
        "request",
        "share_id",
        "state",
    )

    def __init__(
        self,
        *,
        claim: ClaimKey,
        device: Device,
        request: str,
        share_id: str = "",
        consumed: Mapping[str, str] | None = None,
        state: HoldState = HoldState.PREPARING,
        remembered: Mapping[str, Any] | None = None,
        store: Any = None,
        allocation: str = "",
    ) -> None:
        self.claim, self.device, self.request = claim, device, request
        self.share_id, self.state = share_id, state
        self.consumed: Mapping[str, str] = freeze(consumed)
        """What it has of a shared device's capacity, by name: ``{"memory": "4Gi"}``."""
        self.remembered: Mapping[str, Any] = freeze(remembered)
        """What ``remember`` kept, also after a restart of the agent or of the node."""
        self.allocation = allocation
        """The grant that the device was taken under; empty without one."""
        self._store = store

    def remember(self, **facts: Any) -> None:
        """Keep JSON values on disk, added to what is remembered; durable when this returns.

        Raises ``LedgerUnwritable`` where they cannot be kept: do not change the hardware then.
        """
        merged = {**self.remembered, **facts}
        if self._store is not None:
            self._store(merged)
        self.remembered = freeze(merged)

    def __str__(self) -> str:
        return f"{self.claim} on {self.device.name}"


# -- deliveries -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or directory of the host that a container sees."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "bind")
    type: str = ""

    def __post_init__(self) -> None:
        _set(self, options=tuple(self.options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A program that the runtime runs; ``name`` is CDI's ``hookName``."""

    name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _set(self, args=tuple(self.args), env=tuple(self.env))


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What a container receives for one device."""

    nodes: tuple[DeviceNode, ...] = ()
    """The device's own, and others only where each takes a part or is ``shared``."""
    mounts: tuple[Mount, ...] = ()
    """Files and directories of the host; never a device, which is delivered as a node."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables; two devices of one container should not set the same."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the CDI device, for the runtime and its plugins."""
    hooks: tuple[Hook, ...] = ()
    gids: tuple[int, ...] = ()
    """Groups beside those of the nodes, which the framework adds."""
    cdi_devices: tuple[str, ...] = ()
    """Other people's CDI names, ``vendor/class=name``."""

    def __post_init__(self) -> None:
        _set(
            self,
            nodes=tuple(self.nodes),
            mounts=tuple(self.mounts),
            env=freeze(self.env),
            annotations=freeze(self.annotations),
            hooks=tuple(self.hooks),
            gids=tuple(sorted(set(self.gids))),
            cdi_devices=tuple(self.cdi_devices),
        )

    def with_additions(self, addition: Addition) -> Delivery:
        """Add environment and annotations; what the driver set itself is kept."""
        return replace(
            self,
            env={**addition.env, **self.env},
            annotations={**addition.annotations, **self.annotations},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """What ``annotate_delivery`` may add to a delivery."""

    env: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """What the kubelet is told about one allotment: the CDI names it passes to the runtime."""

    request: str
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str = ""


# -- policies -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Veto:
    """A device that must not be offered now, with a reason a person can act on."""

    device: str
    reason: str
    condition: tuple[str, str] | None = None
    """Type and reason of the node condition that is true meanwhile, in CamelCase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A policy's answer. ``reason`` is shown to the person it concerns."""

    allowed: bool
    reason: str = ""

    @classmethod
    def allow(cls, reason: str = "") -> Verdict:
        """Admit."""
        return cls(allowed=True, reason=reason)

    @classmethod
    def deny(cls, reason: str) -> Verdict:
        """Deny; any denial wins."""
        return cls(allowed=False, reason=reason)


# -- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that changed, for logs, metrics and Kubernetes Events.

    ``name`` is a closed word (``device-added``, ``claim-prepared`` …); ``facts`` carry no secret
    and no raw hardware string.
    """

    name: str
    message: str
    facts: Mapping[str, str] = field(default_factory=dict)
    warning: bool = False

    def __post_init__(self) -> None:
        _set(self, facts=freeze(self.facts))


_SLUG = re.compile(r"[^a-z0-9]+")


def slug(text: str) -> str:
    """Return text as a piece of a device name: lower case, everything else a dash."""
    return _SLUG.sub("-", text.lower()).strip("-")
