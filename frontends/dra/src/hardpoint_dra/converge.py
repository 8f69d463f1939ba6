"""One pass over a pool: compare what is wanted with what the server has, and write the difference.

Learns on the way: fields that this server drops, devices that it refuses, the UID of the node.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from hardpoint.agent import Agent
from hardpoint.errors import (
    KubeConflict,
    KubeDenied,
    KubeError,
    KubeInvalid,
    KubeNotFound,
    KubeUnreachable,
)
from hardpoint.kube import NODES, Json, Kube, Listing, Resource, dropped
from hardpoint.model import Domain, Event, Offer
from hardpoint_dra.mirror import Mirror
from hardpoint_dra.placement import place
from hardpoint_dra.plan import Plan, Pool, content, plan
from hardpoint_dra.refusals import (
    Refusals,
    any_passes,
    causes,
    counters_refused,
    named_devices,
    tried,
)
from hardpoint_dra.translate import (
    GROUP,
    VERSIONS,
    Profile,
    Wanted,
    alike,
    bodies_of,
    device_body,
    is_advanced,
    shown,
    slice_body,
    slice_name,
    wanted_slices,
)

_MOST_ROUNDS = 8
"""Rounds of writes that changed nothing we can see, before it is left for later."""

log = logging.getLogger(__name__)


class Convergence:
    """What is known of one domain's pool on one server.

    ``pause`` is awaited before what others did is repaired, ``begin`` before the first slice of a
    pool that has none; ``wrote`` is called after a write.
    """

    def __init__(
        self,
        agent: Agent,
        domain: Domain,
        kube: Kube,
        whole: Profile,
        *,
        pause: Callable[[], Awaitable[None]],
        begin: Callable[[], Awaitable[None]],
        wrote: Callable[[], None],
    ) -> None:
        self.mirror, self.refusals = Mirror(), Refusals()
        self.resource = Resource(GROUP, "v1", "resourceslices")
        self.profile = whole
        self.generation = 0
        self.wanted: list[Wanted] = []
        self.disturbed = False
        """True when somebody else may have changed something: look closely."""
        self._agent, self._domain, self._kube, self._whole = agent, domain, kube, whole
        self._pause, self._begin, self._wrote = pause, begin, wrote
        self._begun = False
        self._places: dict[str, int] = {}
        self._kept: dict[str, tuple[Json, Json]] = {}
        self._node_uid = ""
        self._server = ""

    # -- the server -------------------------------------------------------------------------------

    @property
    def fields(self) -> dict[str, str]:
        """What selects our slices."""
        return {"spec.nodeName": self._agent.node.name, "spec.driver": self._domain.dra_driver}

    async def discover(self) -> bool:
        """Learn which version to write; True for another server, which may keep other fields.

        Raises ``KubeNotFound`` where it serves none that we know.
        """
        served, release = await self._asked()
        version = next((known for known in VERSIONS if known in served), None)
        if version is None:
            raise KubeNotFound(f"the API server serves no {GROUP} that can be written: {served}")
        server = f"{release} {' '.join(served)}"
        if server == self._server:
            return False
        self._server, self.profile = server, self._whole
        self.resource = Resource(GROUP, version, "resourceslices")
        self._kept.clear()
        self._forgive(self.refusals.clear())
        self.mirror.forget()
        log.info("publishing driver=%s api=%s", self._domain.dra_driver, version)
        return True

    async def _asked(self) -> tuple[tuple[str, ...], str]:
        """Return the versions served, and the release; a role need not allow asking for either."""
        try:
            return await self._kube.versions(GROUP), await self._kube.server_version()
        except KubeDenied:
            return ("v1",), ""

    def decoded(self, item: Json) -> Json:
        """Return an object of the server in the shape of v1."""
        return VERSIONS[self.resource.version].decode(item)

    async def list_afresh(self) -> None:
        """Compare with the server's list, which trusts nothing that we believe."""
        heard = self.mirror.heard
        found = await self._kube.list(self.resource, fields=self.fields)
        listing = Listing(tuple(self.decoded(item) for item in found.items), found.version)
        self.disturbed = self.mirror.listed(listing, heard) or self.disturbed
        self._node_uid = ""

    async def _pool(self) -> Pool:
        """Return whose slices these are; ask for the node again when anything was odd."""
        name = self._agent.node.name
        if self.disturbed or not self._node_uid:
            try:
                node = await self._kube.get(NODES, name)
            except KubeNotFound as error:
                raise KubeUnreachable(f"there is no node {name}: nothing is published") from error
            self._node_uid = str(node["metadata"]["uid"])
        return Pool(self._domain.dra_driver, name, self._node_uid)

    # -- one pass ---------------------------------------------------------------------------------

    async def once(self, offer: Callable[[], Offer | None]) -> bool:
        """Make the server have what is offered; False while that cannot be said yet.

        Writes only while this process is the one that may. Raises ``KubeError``; what was written
        until then stands, and another pass goes on.
        """
        rounds = 0
        while rounds < _MOST_ROUNDS:
            now = offer()
            if now is None or not now.complete or not self.mirror.ready:
                return False
            pool = await self._pool()
            planned = self._plan(now, pool)
            if planned.empty:
                self.generation, self.disturbed = planned.generation, False
                self._forgive(self.refusals.accepted())
                return True
            if self.disturbed:
                await self._pause()
                self.disturbed = False
            elif not (self._begun or self.mirror.slices):
                await self._begin()
                self._begun = True
            else:
                known = self._known
                await self._carry_out(planned, pool)
                rounds = rounds + 1 if self._known == known else 0
        raise KubeConflict("the API server does not keep what is written; trying again later")

    @property
    def _known(self) -> tuple[Profile, tuple[str, ...]]:
        """What was learnt about the server: each lesson is worth another round."""
        return self.profile, tuple(self.refusals.reasons)

    def alike(self, old: Offer, new: Offer) -> bool:
        """Say whether a new offer asks for nothing else than the old one."""
        return alike(old, new, self._domain, self.profile)

    def _plan(self, offer: Offer, pool: Pool) -> Plan:
        offered = shown(offer, self._domain, self.profile)
        alone = [device_body(found, self.profile) for found in offered]
        passed, forgiven = self.refusals.sift(alone)
        self._forgive(forgiven)
        names = {body["name"] for body in passed}
        bodies, counters = bodies_of((o for o in offered if o.name in names), self.profile)
        advanced = {str(body["name"]): is_advanced(body) for body in bodies}
        layout = place(advanced, self._places or self._adopted(pool), self.profile.most)
        self._places = {name: i for i, members in enumerate(layout) for name in members}
        self.wanted = wanted_slices(bodies, counters, pool.home, layout)
        return plan(self.mirror.slices, self.wanted, pool, self.generation, self._same)

    def _adopted(self, pool: Pool) -> dict[str, int]:
        """Return where devices stand on the server, so that a restart moves none."""
        stored = self.mirror.slices
        found: dict[str, int] = {}
        for index in range(2 * len(stored)):
            body = stored.get(slice_name(*pool.home, index), {})
            for device in (body.get("spec") or {}).get("devices") or ():
                found.setdefault(str(device.get("name")), index)
        return found

    def _same(self, name: str, wanted: Json, stored: Json) -> bool:
        return wanted == stored or self._kept.get(name) == (wanted, stored)

    # -- writing ----------------------------------------------------------------------------------

    async def _carry_out(self, planned: Plan, pool: Pool) -> None:
        """Write, until something is learnt that changes the plan."""
        for body in planned.deletes:
            self._need_to_be_writing()
            metadata = body["metadata"]
            uid, version = metadata["uid"], metadata["resourceVersion"]
            await self._kube.delete(self.resource, metadata["name"], uid=uid, version=version)
            self.mirror.deleted(body)
            self._wrote()
        for body in (*planned.replaces, *planned.creates):
            self._need_to_be_writing()
            try:
                stored = await self._write(body)
            except (KubeInvalid, KubeDenied) as error:
                await self._learn_refusal(body, error, pool)
                return
            if self._learn_dropped(body, stored):
                return
        self._tell(planned)

    def _need_to_be_writing(self) -> None:
        if not self._agent.writing():
            raise KubeConflict("another process writes now")

    async def _write(self, body: Json) -> Json:
        sent = VERSIONS[self.resource.version].encode(body)
        if body["metadata"].get("resourceVersion"):
            stored = await self._kube.replace(self.resource, sent)
        else:
            stored = await self._kube.create(self.resource, sent)
        found = self.decoded(stored)
        self.generation = max(self.generation, body["spec"]["pool"]["generation"])
        self.mirror.wrote(found)
        self._wrote()
        return found

    def _tell(self, planned: Plan) -> None:
        devices = sum(len(found.devices) for found in self.wanted)
        facts = {
            "driver": self._domain.dra_driver,
            "generation": str(planned.generation),
            "slices": str(len(self.wanted)),
            "devices": str(devices),
        }
        log.info("published %s", " ".join(f"{key}={value}" for key, value in facts.items()))
        message = f"published {devices} devices of {self._domain.dra_driver}"
        self._agent.report(Event(name="slices-written", message=message, facts=facts))

    # -- learning ---------------------------------------------------------------------------------

    def _learn_dropped(self, body: Json, stored: Json) -> bool:
        """Note what the server made of a slice; True if that changes what is wanted."""
        name = str(body["metadata"]["name"])
        sent, kept = content(body["spec"]), content(stored["spec"])
        self._kept.pop(name, None)
        if sent == kept:
            return False
        self._kept[name] = (sent, kept)
        before, paths = self.profile, dropped(body["spec"], stored["spec"])
        self.profile = before.without(paths)
        log.warning(
            "the API server keeps not all of a slice driver=%s slice=%s dropped=%s",
            self._domain.dra_driver,
            name,
            ",".join(paths[:5]) or "changed",
        )
        return self.profile != before

    async def _learn_refusal(self, body: Json, error: KubeInvalid | KubeDenied, pool: Pool) -> None:
        """Find what the server dislikes and withhold just that. Raises it where it is nothing.

        A policy's or a webhook's refusal names no field, and may be any of the client errors.
        """
        devices: Sequence[Json] = body["spec"].get("devices") or ()
        paths = [path for path, _ in causes(error) if path]
        if self.profile.counters and counters_refused(paths):
            self._do_without_counters()
            return
        if paths and not any(path.startswith("spec.devices") for path in paths):
            raise error
        if devices:
            guilty = named_devices(error, devices) or await self._by_trial(devices, error, pool)
            self._withhold(guilty, len(devices), error)
        elif not self.profile.counters or await self._trial((), pool):
            raise error
        else:
            self._do_without_counters()

    def _do_without_counters(self) -> None:
        self.profile = replace(self.profile, counters=False)
        log.warning("the API server refuses counters driver=%s", self._domain.dra_driver)

    def _withhold(self, guilty: Mapping[str, str], count: int, error: KubeError) -> None:
        """Withhold refused devices; where none is, so many are too many for one slice."""
        for device in (device for found in self.wanted for device in found.devices):
            reason = guilty.get(str(device["name"]))
            if reason is not None:
                self.refusals.add(device, reason)
                log.warning("the API server refuses a device device=%s", device["name"])
                self._agent.on_fault(
                    _fault_of(device["name"]), f"the API server refuses the device: {reason}"
                )
        if not guilty:
            if count < 2:
                raise error
            self.profile = replace(self.profile, most=count // 2)

    async def _by_trial(
        self, devices: Sequence[Json], error: KubeError, pool: Pool
    ) -> dict[str, str]:
        """Return the devices that are refused alone; raises the error if it is all slices."""

        async def trial(some: Sequence[Json]) -> str:
            return await self._trial(some, pool)

        if await trial(()) and not await any_passes(devices, trial):
            raise error
        return await tried(devices, trial)

    async def _trial(self, some: Sequence[Json], pool: Pool) -> str:
        """Ask whether a slice of these devices would be stored; answers why not."""
        probe = Wanted(slice_name(*pool.home, kind="probe"), {"devices": list(some)})
        body = slice_body(probe, pool.home, pool.node_uid, 1, 1)
        sent = VERSIONS[self.resource.version].encode(body)
        try:
            await self._kube.create(self.resource, sent, dry_run=True)
        except (KubeInvalid, KubeDenied) as refused:
            return str(refused)
        return ""

    def _forgive(self, names: Sequence[str]) -> None:
        for name in names:
            self._agent.clear_fault(_fault_of(name))


def _fault_of(device: str) -> str:
    return f"slice of device {device}"
