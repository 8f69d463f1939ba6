"""The fake kubelet's claims: read, prepared once, kept, and unprepared with their last pod."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hardpoint.errors import CallFailed
from hardpoint.testing._kubelet_drivers import Drivers

if TYPE_CHECKING:
    from hardpoint.testing.kubelet import Behaviour

GetClaim = Callable[[str, str], Awaitable[Mapping[str, Any] | None]]
"""Reads a ResourceClaim by namespace and name, as JSON; None where there is none."""


class PodFailed(Exception):
    """Why the kubelet does not start, or cannot end, a pod: what its events would say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container, with how many it wants of which extended resources."""

    name: str
    resources: Mapping[str, int] = field(default_factory=dict)
    init: bool = False
    restartable: bool = False
    """True, with ``init``, for a sidecar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod: its containers, and the names of the ResourceClaims it uses."""

    name: str
    claims: tuple[str, ...] = ()
    namespace: str = "default"
    uid: str = ""
    containers: tuple[Container, ...] = ()

    @property
    def identity(self) -> str:
        """The UID, which is made up from the name where none is given."""
        return self.uid or f"uid-of-{self.namespace}-{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A device as a driver answered it."""

    claim: str
    driver: str
    pool: str
    device: str
    requests: tuple[str, ...]
    cdi_ids: tuple[str, ...]
    share_id: str = ""

    def is_for(self, request: str | None) -> bool:
        """Say whether a container that names this request (None: the whole claim) gets it."""
        return request is None or not self.requests or request in self.requests


@dataclass(eq=False, slots=True)
class _Claim:
    """A claim that this node knows; survives a restart of the kubelet."""

    uid: str
    namespace: str
    name: str
    drivers: tuple[str, ...]
    """All that have a device in it: each is told of its end, also one that never answered."""
    pods: set[str] = field(default_factory=set)
    prepared: dict[str, tuple[Prepared, ...]] = field(default_factory=dict)
    """By driver, once it has answered."""

    @property
    def wire(self) -> dict[str, str]:
        """The claim as a request names it."""
        return {"namespace": self.namespace, "name": self.name, "uid": self.uid}


class Claims:
    """Prepares the claims of pods and remembers them."""

    def __init__(self, behaviour: Behaviour, drivers: Drivers, get: GetClaim) -> None:
        self._behaviour, self._drivers, self._get = behaviour, drivers, get
        self._known: dict[tuple[str, str], _Claim] = {}

    def forget(self) -> None:
        """Lose the checkpoint: everything is prepared anew, and nothing is unprepared."""
        self._known.clear()

    def prepared(self, pod: Pod) -> tuple[Prepared, ...]:
        """Return what a pod's claims were prepared with."""
        return tuple(
            device
            for name in pod.claims
            if (claim := self._known.get((pod.namespace, name))) is not None
            for devices in claim.prepared.values()
            for device in devices
        )

    # -- prepare ----------------------------------------------------------------------------------

    async def prepare(self, pod: Pod) -> tuple[Prepared, ...]:
        """Prepare what is not prepared yet: one call for each driver. Raises ``PodFailed``."""
        batches: dict[str, list[_Claim]] = {}
        for name in pod.claims:
            claim = await self._resolve(pod, name)
            claim.pods.add(pod.identity)
            for driver in claim.drivers:
                self._registered(driver)
                if driver not in claim.prepared:
                    batches.setdefault(driver, []).append(claim)
        for driver in random.sample(sorted(batches), len(batches)):
            await self._prepare(driver, batches[driver])
        return self.prepared(pod)

    async def _resolve(self, pod: Pod, name: str) -> _Claim:
        found = await self._get(pod.namespace, name)
        if found is None:
            raise PodFailed(f"resourceclaim {pod.namespace}/{name} not found")
        status = found.get("status", {})
        reserved = {entry["uid"] for entry in status.get("reservedFor", ())}
        allocation = status.get("allocation")
        if allocation is None:
            raise PodFailed(f"ResourceClaim {name} is not allocated")
        if pod.identity not in reserved:
            raise PodFailed(f"ResourceClaim {name} is not reserved for pod {pod.name}")
        results = allocation.get("devices", {}).get("results", ())
        drivers = tuple(dict.fromkeys(result["driver"] for result in results))
        return self._remember(_Claim(found["metadata"]["uid"], pod.namespace, name, drivers))

    def _remember(self, found: _Claim) -> _Claim:
        name = found.name
        claim = self._known.setdefault((found.namespace, name), found)
        if claim.uid != found.uid:
            raise PodFailed(
                f"old ResourceClaim with same name {name} and different UID {claim.uid} still "
                "exists on this node"
            )
        return claim

    def _registered(self, driver: str) -> Any:
        instance = self._drivers.get(driver)
        if instance is None:
            raise PodFailed(f"DRA driver {driver} is not registered")
        return instance

    async def _prepare(self, driver: str, claims: list[_Claim]) -> None:
        answers = await self._call("NodePrepareResources", driver, claims)
        failed = []
        for claim in claims:
            answer = answers[claim.uid]
            if answer.error:
                failed.append(f"claim {claim.name}: {answer.error}")
            else:
                claim.prepared[driver] = tuple(
                    self._device(claim, driver, device) for device in answer.devices
                )
        if failed:
            raise PodFailed(f"NodePrepareResources of {driver} failed: {'; '.join(failed)}")

    def _device(self, claim: _Claim, driver: str, device: Any) -> Prepared:
        share_id = getattr(device, "share_id", "") if self._behaviour.knows_share_ids else ""
        return Prepared(
            claim=claim.name,
            driver=driver,
            pool=device.pool_name,
            device=device.device_name,
            requests=tuple(device.request_names),
            cdi_ids=tuple(device.cdi_device_ids),
            share_id=share_id,
        )

    # -- unprepare --------------------------------------------------------------------------------

    async def unprepare(self, pod: Pod) -> None:
        """Unprepare the claims that no other pod of this node uses. Raises ``PodFailed``."""
        ending: list[_Claim] = []
        for name in pod.claims:
            claim = self._known.get((pod.namespace, name))
            if claim is None or pod.identity not in claim.pods:
                continue
            if claim.pods == {pod.identity}:
                ending.append(claim)
            else:
                claim.pods.discard(pod.identity)
        for driver in _drivers_of(ending):
            await self._unprepare(driver, [claim for claim in ending if driver in claim.drivers])
        for claim in ending:
            self._known.pop((claim.namespace, claim.name), None)

    async def _unprepare(self, driver: str, claims: list[_Claim]) -> None:
        self._registered(driver)
        answers = await self._call("NodeUnprepareResources", driver, claims)
        for claim in claims:
            if answers[claim.uid].error:
                raise PodFailed(
                    f"NodeUnprepareResources of {driver} failed: claim {claim.name}: "
                    f"{answers[claim.uid].error}"
                )

    # -- calls ------------------------------------------------------------------------------------

    async def _call(self, method: str, driver: str, claims: list[_Claim]) -> Mapping[str, Any]:
        """Call a driver and hold it to one answer for each claim, and no other."""
        instance = self._registered(driver)
        wire = [claim.wire for claim in claims]
        try:
            response = await instance.call(method, wire, self._behaviour.call_timeout)
        except CallFailed as error:
            raise PodFailed(
                f"{method} of {driver} failed: {error.code}: {error.details}"
            ) from error
        asked = {claim.uid for claim in claims}
        unknown = sorted(set(response.claims) - asked)
        if unknown:
            raise PodFailed(f"{method} of {driver} answered for unknown claim UIDs {unknown}")
        if skipped := len(asked - set(response.claims)):
            raise PodFailed(f"{method} of {driver} skipped {skipped} ResourceClaims")
        return dict(response.claims)


def _drivers_of(claims: Iterable[_Claim]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(driver for claim in claims for driver in claim.drivers))
