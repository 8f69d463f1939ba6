"""Device plugin allocations: what a frontend asks the agent to hold, and what comes of it.

The kubelet's device plugin API names neither pod nor claim, and has no end. So a hold of this kind
is known by the resource and the id that the kubelet chose, and ends once the kubelet's own list of
pods (pod-resources) has been read twice without them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b

from hardpoint.attributes import LONGEST_NAME, fit_name
from hardpoint.model import ClaimKey, Delivery, Domain, HoldState
from hardpoint.reading import decimal

_UID = re.compile(r"dp-[0-9a-f]{32}")
_DIGEST = 16
_GRANT, _REPLICA = "@", "::"
_LEAST = 8
"""Characters that are left of a device's name at least, before the grant that it is tied to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A device under one of the ids that a frontend lists to the kubelet."""

    resource: str
    """The extended resource's full name: ``hardpoint.dev/gpu``."""
    id: str
    """As it is listed to the kubelet, whole: ``gpu0``, or ``gpu0@allocation`` under a grant."""
    device: str
    """The name that the device is published under."""
    domain: Domain
    allocation: str = ""
    """The grant that it is offered under; empty where no source governs its kind."""

    @property
    def key(self) -> ClaimKey:
        """Who holds the device: the resource and the id, in place of a claim."""
        return allocation_key(self.resource, self.id, self.domain.dra_driver)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A device that is held under an id, and what its holder receives."""

    assignment: Assignment
    cdi_ids: tuple[str, ...]
    """Qualified CDI names: ours first, then what the driver adds of other vendors. The same for
    one resource, id and device, always."""
    delivery: Delivery
    """What its holder receives. ``env`` is the frontend's to pass, merged with that of what else
    the container has: the CDI file does not say it. The rest the file says too; for runtimes
    without CDI there are ``nodes`` with their numbers, ``mounts`` and ``annotations``, while
    ``hooks``, ``gids`` and ``cdi_devices`` need CDI."""


@dataclass(frozen=True, slots=True, order=True)
class PodUser:
    """A container that has a device, as pod-resources names it: the kubelet says no UID."""

    namespace: str
    pod: str
    container: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What is held under a resource and an id."""

    resource: str
    id: str
    device: str
    dra_driver: str
    """The domain's name that the device is published under."""
    state: HoldState
    users: tuple[PodUser, ...] | None
    """Who has it: empty if no pod that is listed does, None while that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRequest:
    """What a container asks for out of the devices of one driver that it may get."""

    count: int
    """How many devices it gets."""
    available: tuple[str, ...]
    """Names to choose from, each once."""
    required: tuple[str, ...] = ()
    """Those among them that it gets in any case."""


def allocation_key(resource: str, id_: str, dra_driver: str) -> ClaimKey:
    """Return what the ledger, the CDI file and the CDI names of an allocation go by.

    The UID is a digest of both words, which may hold what no file name can.
    """
    words = f"{len(resource)}:{resource}{id_}".encode("utf-8", "surrogatepass")
    digest = blake2b(words, digest_size=_DIGEST).hexdigest()
    return ClaimKey(f"dp-{digest}", resource, id_, dra_driver)


def device_id(device: str, allocation: str = "", replica: int | None = None) -> str:
    """Return what the kubelet knows a device by: ``gpu0``, ``gpu0::2``, ``gpu0@allocation``.

    The kubelet's API says 63 characters. Only the device's half is shortened, and with a hash of
    the whole: whoever looks for the pods of a grant goes by what stands behind the ``@``.
    """
    tail = "" if replica is None else f"{_REPLICA}{replica}"
    tail += f"{_GRANT}{allocation}" if allocation else ""
    return fit_name(device, room=min(len(tail), LONGEST_NAME - _LEAST)) + tail


def grant_of_id(id_: str) -> str:
    """Return the allocation in an id; empty where it has none."""
    return id_.partition(_GRANT)[2]


def is_id_of(id_: str, device: str) -> bool:
    """Say whether an id is one of a device's, under whatever grant."""
    head, at, allocation = id_.partition(_GRANT)
    name, colons, number = head.partition(_REPLICA)
    if not name or (at and not allocation) or (colons and decimal(number) is None):
        return False
    return id_ == device_id(device, allocation, decimal(number) if colons else None)


def is_allocation(key: ClaimKey) -> bool:
    """Say whether a hold's key is of a device plugin allocation, and of no ResourceClaim.

    Its ``namespace`` is then the resource and its ``name`` the id; both are empty for one that was
    found again in a CDI file alone and that no pod-resources answer has named yet.
    """
    return _UID.fullmatch(key.uid) is not None
