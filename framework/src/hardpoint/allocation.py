"""Device plugin allocations: what a frontend asks the agent to hold, and what comes of it.

The kubelet's device plugin API names neither pod nor claim, and has no end. So a hold of this kind
is known by the resource and the id that the kubelet chose, and ends once the kubelet's own list of
pods (pod-resources) has been read twice without them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b

from hardpoint.model import ClaimKey, Delivery, Domain, HoldState

_UID = re.compile(r"dp-[0-9a-f]{32}")
_DIGEST = 16


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


def is_allocation(key: ClaimKey) -> bool:
    """Say whether a hold's key is of a device plugin allocation, and of no ResourceClaim.

    Its ``namespace`` is then the resource and its ``name`` the id; both are empty for one that was
    found again in a CDI file alone and that no pod-resources answer has named yet.
    """
    return _UID.fullmatch(key.uid) is not None
