"""A ResourceClaim as the API server has it, and what of it concerns one of our drivers.

``to_claim`` is pure. It refuses, with a sentence for the pod's events, what must not be prepared: a
claim of the same name and another UID, one that is not allocated, a device of another node's pool.
Results and parameters of other drivers are not looked at: a claim may span drivers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from hardpoint.errors import HoldDenied, KubeNotFound, WrongClaim
from hardpoint.model import Allotment, Claim, ClaimKey, Offer
from hardpoint_dra.published import allotted

if TYPE_CHECKING:
    from hardpoint.kube import Kube

GROUP, PLURAL = "resource.k8s.io", "resourceclaims"
VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Newest first; a claim's status is the same in all of them."""
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a claim made from a template: its name in the pod's spec."""

_SOURCES = ("FromClass", "FromClaim")
"""Weakest first: what a claim says wins over its class, in whatever order they are listed."""


# -- what is read of an object, in the API's own words --------------------------------------------


class _Opaque(msgspec.Struct):
    driver: str = ""
    parameters: Any = None


class _Config(msgspec.Struct):
    source: str | None = None
    requests: tuple[str, ...] | None = None
    opaque: _Opaque | None = None


class _Result(msgspec.Struct, rename="camel"):
    request: str
    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(default=None, name="shareID")
    admin_access: bool | None = None
    consumed_capacity: dict[str, str | int | float] | None = None


class _Devices(msgspec.Struct):
    results: tuple[_Result, ...] | None = None
    config: tuple[_Config, ...] | None = None


class _Allocation(msgspec.Struct):
    devices: _Devices | None = None


class _Status(msgspec.Struct):
    allocation: _Allocation | None = None


class _Metadata(msgspec.Struct):
    uid: str = ""
    annotations: dict[str, str] | None = None


class _Found(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    status: _Status | None = None


class ClaimReader:
    """Reads claims through a connection that may only be there later."""

    def __init__(
        self,
        connect: Callable[[], Kube],
        pool: str,
        bound: Callable[[Claim, Mapping[str, Any]], None] = lambda claim, found: None,
        offer: Callable[[], Offer] | None = None,
    ) -> None:
        self._connect, self._pool, self._bound = connect, pool, bound
        self._offer = offer
        self._version = ""

    async def read(self, key: ClaimKey) -> Claim:
        """Return the claim as it is now. Raises ``HoldError`` or ``KubeError``.

        Its devices are named as the agent names them, by what ``offer`` says at this moment;
        ``bound`` is asked whether they may be had already.
        """
        found = await self._get(key)
        claim = to_claim(key, found, self._pool)
        if self._offer is not None:
            claim = allotted(claim, self._offer())
        self._bound(claim, found)
        return claim

    async def version(self) -> str:
        """Return the newest version of the API that this server serves and we know."""
        if not self._version:
            served = await self._connect().versions(GROUP)
            known = [version for version in VERSIONS if version in served]
            if not known:
                raise KubeNotFound(f"this API server does not serve {GROUP}: is DRA enabled?")
            self._version = known[0]
        return self._version

    async def _get(self, key: ClaimKey) -> dict[str, Any]:
        from hardpoint.kube import Resource

        version = await self.version()
        try:
            return await self._connect().get(
                Resource(GROUP, version, PLURAL), key.name, namespace=key.namespace
            )
        except KubeNotFound as error:
            self._version = ""  # or the server was changed, and serves another version by now
            if await self.version() != version:
                return await self._get(key)
            raise HoldDenied(f"claim {key} does not exist", reason="no-claim") from error


def to_claim(key: ClaimKey, found: Mapping[str, Any], pool: str) -> Claim:
    """Return what an API object allots to the key's driver, from the node's own ``pool``.

    Devices have the names that the scheduler knows. Raises ``WrongClaim`` and ``HoldDenied``. A
    claim with nothing for this driver is empty.
    """
    try:
        object_ = msgspec.convert(found, _Found)
    except msgspec.ValidationError as error:
        raise HoldDenied(f"claim {key} is not what the API has: {error}", "bad-claim") from error
    if object_.metadata.uid != key.uid:
        raise WrongClaim(key.uid, object_.metadata.uid)
    allocation = object_.status and object_.status.allocation
    if not allocation:
        raise HoldDenied(f"claim {key} is not allocated", reason="not-allocated")
    devices = allocation.devices or _Devices()
    blocks = tuple(_blocks(devices, key.dra_driver))
    return Claim(
        key=key,
        allotments=tuple(
            _allotment(result, blocks, key, pool)
            for result in devices.results or ()
            if result.driver == key.dra_driver
        ),
        pod_claim_name=(object_.metadata.annotations or {}).get(POD_CLAIM_NAME, ""),
    )


Block = tuple[frozenset[str], Mapping[str, Any]]
"""The requests that parameters are meant for (none: all of them), and the parameters."""


def _blocks(devices: _Devices, driver: str) -> Iterator[Block]:
    """Yield this driver's parameters, weakest first."""
    entries = [e for e in devices.config or () if e.opaque is not None]
    for entry in sorted(entries, key=_strength):
        if entry.opaque is None or entry.opaque.driver != driver:
            continue
        parameters = entry.opaque.parameters
        if not isinstance(parameters, Mapping):
            found = type(parameters).__name__
            raise HoldDenied(f"parameters for {driver} are no object: {found}", "bad-parameters")
        yield frozenset(entry.requests or ()), parameters


def _strength(entry: _Config) -> int:
    return _SOURCES.index(entry.source) if entry.source in _SOURCES else len(_SOURCES)


def _allotment(result: _Result, blocks: tuple[Block, ...], key: ClaimKey, pool: str) -> Allotment:
    if result.pool != pool:
        raise HoldDenied(
            f"claim {key}: device {result.device} is of pool {result.pool}, "
            f"this node's pool is {pool}",
            reason="wrong-pool",
        )
    names = {result.request, result.request.partition("/")[0]}
    chosen = [(meant, block) for meant, block in blocks if not meant or meant & names]
    return Allotment(
        request=result.request,
        device=result.device,
        pool=pool,
        share_id=result.share_id or "",
        admin_access=bool(result.admin_access),
        parameters=tuple(block for _, block in chosen),
        named=any(meant for meant, _ in chosen),
        consumed={name: str(n) for name, n in (result.consumed_capacity or {}).items()},
    )
