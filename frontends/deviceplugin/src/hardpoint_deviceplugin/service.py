"""What the kubelet calls for one resource: its list, allocations, and which ids go well together.

All of it answers from one state, ``resource``, which is replaced whole: what the list says is what
Allocate takes (project-akri/akri#849).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any

import anyio

from hardpoint.agent import Agent
from hardpoint.allocation import Assigned, Assignment
from hardpoint.errors import HardpointError, TryAgain
from hardpoint.kubelet import deviceplugin_v1beta1_pb2 as pb
from hardpoint.kubelet.services import Status, serve, service_of
from hardpoint.kubelet.work import Workshop
from hardpoint_deviceplugin import translate
from hardpoint_deviceplugin.preferred import Wanted, preferred
from hardpoint_deviceplugin.resources import Entry, Resource, announce, why_gone

log = logging.getLogger(__name__)

OPTIONS = pb.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=True)
RESEND = 60.0
"""Seconds until a list is said again: a first one was lost to a kubelet that took it for no change
(kubernetes/kubernetes#62773)."""
RESEND_SOON = 10.0
"""Seconds the same, while a device is held that no pod is listed with: the kubelet notes in its
checkpoint at a list alone that a pod is over, and the agent waits for that."""
SAY_AGAIN, SAY_AGAIN_AT_MOST = 0.02, 0.5
"""Seconds the same, while an Allocate waits: the first time, and doubled up to the last."""
ANSWER_WITHIN = 60.0
"""Seconds until Allocate is answered with "try again": the kubelet itself would wait for ever, and
admit no other pod meanwhile."""
LONGEST_ERROR = 1000
"""Characters: it ends in a pod's events, which hold 1024."""


class ResourceService:
    """One resource towards the kubelet. ``changed`` is called when streams begin and end."""

    def __init__(
        self,
        agent: Agent,
        name: str,
        workshop: Workshop,
        *,
        cdi: bool = True,
        resend: float | None = None,
        resend_soon: float | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._agent, self.name, self._workshop = agent, name, workshop
        self._cdi, self._changed = cdi, changed
        self._resend = RESEND if resend is None else resend
        self._resend_soon = RESEND_SOON if resend_soon is None else resend_soon
        self.resource = Resource(name=name)
        self._known: Mapping[str, Entry] = {}
        self.streams = 0
        """Kubelets that listen: one, or for a moment two."""
        self._message = pb.ListAndWatchResponse()
        self._news = anyio.Event()
        self._ends = anyio.Event()

    def hang_up(self) -> None:
        """End every stream: their server is about to close, and would wait for them."""
        ends, self._ends = self._ends, anyio.Event()
        ends.set()
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()

    def show(self, resource: Resource, numa_nodes: frozenset[int]) -> None:
        """Offer this from now on."""
        announce(self._agent, resource)
        self.resource, self._known = resource, resource.by_id()
        message = translate.listing(resource, numa_nodes)
        if message != self._message:
            self._message = message
            self._wake()

    def handlers(self) -> list[Any]:
        """Return the service for gRPC."""
        methods: dict[str, Callable[[Any], Any]] = {
            "GetDevicePluginOptions": self._options,
            "ListAndWatch": self._list_and_watch,
            "GetPreferredAllocation": self._prefer,
            "Allocate": self._allocate,
            "PreStartContainer": self._pre_start,
        }
        return [serve(service_of(pb, "DevicePlugin"), methods)]

    async def _options(self, request: pb.Empty) -> pb.DevicePluginOptions:
        return OPTIONS

    async def _pre_start(
        self, request: pb.PreStartContainerRequest
    ) -> pb.PreStartContainerResponse:
        return pb.PreStartContainerResponse()  # an old kubelet may ask though we said no

    # -- the list ---------------------------------------------------------------------------------

    async def _list_and_watch(
        self, request: pb.Empty
    ) -> AsyncGenerator[pb.ListAndWatchResponse, None]:
        self.streams += 1
        self._changed()
        ends = self._ends
        try:
            while not ends.is_set():
                news = self._news
                yield self._message
                await self._until_due(news)
        finally:
            self.streams -= 1
            self._changed()

    async def _until_due(self, news: anyio.Event) -> None:
        """Wait until the list is another, or is to be said again."""
        with anyio.move_on_after(self._resend):
            while not news.is_set():
                with anyio.move_on_after(self._resend_soon):
                    await news.wait()
                if self._may_be_over():
                    return

    def _may_be_over(self) -> bool:
        """Say whether a device of this resource is held that no pod is listed with."""
        held = self._agent.allocations()
        return any(one.resource == self.name and one.users == () for one in held)

    # -- allocations ------------------------------------------------------------------------------

    async def _allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        """Hold what a pod's containers are given, all or none, and say how it is delivered."""
        containers = [self._entries(one.devices_ids) for one in request.container_requests]
        wanted = {entry.id: entry for container in containers for entry in container}
        assigned = await self._held(tuple(wanted.values()))
        try:
            return pb.AllocateResponse(
                container_responses=[
                    self._answer([assigned[entry.id] for entry in container])
                    for container in containers
                ]
            )
        except HardpointError as error:
            raise self._refused(str(error)) from error

    def _entries(self, ids: Iterable[str]) -> list[Entry]:
        known = self._known
        for id_ in ids:
            if id_ not in known:
                why = why_gone(id_, self._agent.offer)
                raise self._refused(f"{self.name} has no device {id_:.200} now{why}")
            if known[id_].refusal:
                raise self._refused(f"{self.name}: {known[id_].refusal}")
        return [known[id_] for id_ in ids]

    async def _held(self, entries: Sequence[Entry]) -> dict[str, Assigned]:
        """Have the agent hold devices; what it began goes on when the kubelet hangs up."""
        wanted = [entry.assignment(self.name) for entry in entries]
        if not wanted:
            return {}
        try:
            held = await self._workshop.do(lambda: self._ask(wanted), ANSWER_WITHIN)
        except TimeoutError:
            raise self._refused("the devices are still being prepared; try again") from None
        except TryAgain as error:
            raise self._refused(str(error), code="UNAVAILABLE") from error
        except HardpointError as error:
            raise self._refused(str(error)) from error
        return {one.assignment.id: one for one in held}

    async def _ask(self, wanted: Sequence[Assignment]) -> tuple[Assigned, ...]:
        """Have devices held, and say the list again for as long as that takes longer than usual.

        It may be the agent that waits for it: whether a pod is over, whose id is asked for again,
        the kubelet writes down at a list alone.
        """
        held: tuple[Assigned, ...] = ()
        failed: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._say_again)
            try:
                held = await self._agent.allocate(wanted)
            except Exception as error:  # noqa: BLE001 - raised below: the group would wrap it
                failed = error
            tasks.cancel_scope.cancel()
        if failed is not None:
            raise failed
        return held

    async def _say_again(self) -> None:
        wait = SAY_AGAIN
        while True:
            await anyio.sleep(wait)
            self._wake()
            wait = min(2 * wait, SAY_AGAIN_AT_MOST)

    def _answer(self, assigned: Sequence[Assigned]) -> pb.ContainerAllocateResponse:
        if self._cdi:
            return translate.by_cdi(assigned)
        return translate.by_specs(assigned, self._agent.node.dev)

    def _refused(self, why: str, code: str = "FAILED_PRECONDITION") -> Status:
        log.warning("allocation refused resource=%s why=%r", self.name, why)
        return Status(code, why[:LONGEST_ERROR])

    # -- preference -------------------------------------------------------------------------------

    async def _prefer(
        self, request: pb.PreferredAllocationRequest
    ) -> pb.PreferredAllocationResponse:
        return pb.PreferredAllocationResponse(
            container_responses=[
                pb.ContainerPreferredAllocationResponse(deviceIDs=await self._preferred(one))
                for one in request.container_requests
            ]
        )

    async def _preferred(self, asked: pb.ContainerPreferredAllocationRequest) -> list[str]:
        wanted = Wanted.of(
            self._known,
            asked.available_deviceIDs,
            asked.must_include_deviceIDs,
            asked.allocation_size,
        )
        advice: tuple[str, ...] = ()
        if len(wanted.drivers) == 1:
            (driver,) = wanted.drivers
            advice = await self._agent.rank(driver, wanted.request())
        return preferred(wanted, advice)
