"""The fake kubelet's claims: read, prepared once, kept, and unprepared with their last pod.

As in the kubelet's DRA manager (pkg/kubelet/cm/dra/manager.go), which this is held to: nothing is
remembered of a pod one of whose claims cannot be; a claim counts as prepared once every driver of
every claim of the call has answered well, and until then all are called again; a restarted kubelet
knows its claims and asks for each again; a claim whose end has begun takes no new pod.
"""

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
    devices: dict[str, tuple[Prepared, ...]] = field(default_factory=dict)
    """By driver, as it answered last."""
    prepared: bool = False
    ending: bool = False

    @property
    def wire(self) -> dict[str, str]:
        """The claim as a request names it."""
        return {"namespace": self.namespace, "name": self.name, "uid": self.uid}


class Claims:
    """Prepares the claims of pods and remembers them."""

    def __init__(self, behaviour: Behaviour, drivers: Drivers, get: GetClaim) -> None:
        self._behaviour, self._drivers, self._get = behaviour, drivers, get
        self._known: dict[tuple[str, str], _Claim] = {}
        self._started = 0

    def forget(self) -> None:
        """Lose the checkpoint: everything is prepared anew, and nothing is unprepared."""
        self._known.clear()

    def _since_the_start(self) -> None:
        """Know what the checkpoint says: not whether a claim was prepared, nor what is ending."""
        started, self._started = self._started, self._drivers.starts
        if started != self._started:
            for claim in self._known.values():
                claim.prepared = claim.ending = False

    def prepared(self, pod: Pod) -> tuple[Prepared, ...]:
        """Return what a pod's claims were prepared with."""
        return tuple(
            device
            for name in pod.claims
            if (claim := self._known.get((pod.namespace, name))) is not None
            for devices in claim.devices.values()
            for device in devices
        )

    # -- prepare ----------------------------------------------------------------------------------

    async def prepare(self, pod: Pod) -> tuple[Prepared, ...]:
        """Prepare what is not prepared yet: one call for each driver. Raises ``PodFailed``."""
        try:
            await self._prepare(pod)
        except PodFailed as error:
            raise PodFailed(f"prepare dynamic resources: {error}") from error
        return self.prepared(pod)

    async def _prepare(self, pod: Pod) -> None:
        self._since_the_start()
        found = [await self._read(pod, name) for name in pod.claims]
        for claim in found:
            for driver in claim.drivers:
                self._registered(driver)
        unfinished = [claim for claim in map(self._remembered(pod), found) if not claim.prepared]
        batches = _by_driver(unfinished)
        for driver in random.sample(sorted(batches), len(batches)):
            answers = await self._call("NodePrepareResources", driver, batches[driver])
            for claim in batches[driver]:
                claim.devices[driver] = tuple(
                    self._device(claim, driver, device) for device in answers[claim.uid].devices
                )
        for claim in unfinished:
            claim.prepared = True

    async def _read(self, pod: Pod, name: str) -> _Claim:
        found = await self._get(pod.namespace, name)
        if found is None:
            raise PodFailed(
                f'fetch ResourceClaim {name}: resourceclaims.resource.k8s.io "{name}" not found'
            )
        uid, status = found["metadata"]["uid"], found.get("status") or {}
        if pod.identity not in {entry["uid"] for entry in status.get("reservedFor") or ()}:
            who = f"pod {pod.name} ({pod.identity})"
            raise PodFailed(f"{who} is not allowed to use ResourceClaim {name} ({uid})")
        allocation = status.get("allocation")
        if allocation is None:
            raise PodFailed(f"ResourceClaim {name}: not allocated")
        results = (allocation.get("devices") or {}).get("results") or ()
        drivers = tuple(dict.fromkeys(result["driver"] for result in results))
        return _Claim(uid, pod.namespace, name, drivers)

    def _remembered(self, pod: Pod) -> Callable[[_Claim], _Claim]:
        def remember(found: _Claim) -> _Claim:
            name = found.name
            claim = self._known.setdefault((found.namespace, name), found)
            if claim.uid != found.uid:
                raise PodFailed(
                    f"old ResourceClaim with same name {name} and different UID {claim.uid} still "
                    "exists (previous pod force-deleted?!)"
                )
            if claim.ending:
                raise PodFailed(f"ResourceClaim {name} is being unprepared")
            claim.pods.add(pod.identity)
            return claim

        return remember

    def _registered(self, driver: str) -> Any:
        instance = self._drivers.get(driver)
        if instance is None:
            raise PodFailed(f"DRA driver {driver} is not registered")
        return instance

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
        try:
            await self._unprepare(pod)
        except PodFailed as error:
            raise PodFailed(f"unprepare dynamic resources: {error}") from error

    async def _unprepare(self, pod: Pod) -> None:
        self._since_the_start()
        ending: list[_Claim] = []
        for claim in self._known.values():
            if claim.namespace != pod.namespace or pod.identity not in claim.pods:
                continue
            if len(claim.pods) > 1:
                claim.pods.discard(pod.identity)
            else:
                claim.ending = True
                ending.append(claim)
        batches = _by_driver(ending)
        for driver in random.sample(sorted(batches), len(batches)):
            self._registered(driver)
            await self._call("NodeUnprepareResources", driver, batches[driver])
        for claim in ending:
            del self._known[claim.namespace, claim.name]

    # -- calls ------------------------------------------------------------------------------------

    async def _call(self, method: str, driver: str, claims: list[_Claim]) -> Mapping[str, Any]:
        """Call a driver and hold it to one good answer for each claim, and no other."""
        instance = self._registered(driver)
        wire = [claim.wire for claim in claims]
        try:
            response = await instance.call(method, wire, self._behaviour.call_timeout)
        except CallFailed as error:
            code = _go_code(error.code)
            raise PodFailed(f"{method}: rpc error: code = {code} desc = {error.details}") from error
        names = {claim.uid: claim.name for claim in claims}
        for uid, answer in response.claims.items():
            if uid not in names:
                raise PodFailed(f"{method} returned result for unknown claim UID {uid}")
            if answer.error:
                raise PodFailed(f"{method} failed for ResourceClaim {names[uid]}: {answer.error}")
        if skipped := len(claims) - len(response.claims):
            raise PodFailed(f"{method} skipped {skipped} ResourceClaims")
        return dict(response.claims)


def _by_driver(claims: Iterable[_Claim]) -> dict[str, list[_Claim]]:
    batches: dict[str, list[_Claim]] = {}
    for claim in claims:
        for driver in claim.drivers:
            batches.setdefault(driver, []).append(claim)
    return batches


def _go_code(code: str) -> str:
    """Return a status as Go writes it: ``DeadlineExceeded``."""
    return "".join(word.capitalize() for word in code.split("_"))
