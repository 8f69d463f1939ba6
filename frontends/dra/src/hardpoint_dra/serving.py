"""Everything that one driver name needs, put together and kept running.

A part that fails is said on the fault board and started again; it costs no other part and no other
driver name.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio

from hardpoint.agent import Agent
from hardpoint.attributes import is_subdomain
from hardpoint.errors import BadSettings, BadValue, HardpointError
from hardpoint.kube import Backoff
from hardpoint.kubelet import (
    dra_health_v1_pb2,
    dra_health_v1alpha1_pb2,
    dra_v1_pb2,
    dra_v1beta1_pb2,
)
from hardpoint.kubelet.services import serve, service_of
from hardpoint.kubelet.work import Workshop
from hardpoint.model import Domain
from hardpoint_dra.binding import bound_by
from hardpoint_dra.claims import ClaimReader
from hardpoint_dra.handler import ClaimHandler
from hardpoint_dra.health import HealthService
from hardpoint_dra.metadata import MetadataFiles
from hardpoint_dra.names import Directories
from hardpoint_dra.registration import HEALTH_VERSIONS, NODE_VERSIONS, Registration
from hardpoint_dra.server import NodeService
from hardpoint_dra.slices import SlicePublisher
from hardpoint_dra.status import StatusWriter

if TYPE_CHECKING:
    from hardpoint.kube import Kube
    from hardpoint_dra.frontend import DraSettings

log = logging.getLogger(__name__)

LONGEST_NAME = 63
_TRUSTED_AFTER = 30.0
"""Seconds that a part has to run before its last failure is forgotten."""
_KUBELETS_TURN = 5.0
"""Seconds that the first slice of an empty pool waits for the kubelet to register the driver.

A pod that waits for a device is bound within milliseconds of its slice. A kubelet that does not
know the driver by then fails the pod and comes back to it 8 to 10 s later, so a slice that is
earlier helps nobody. The kubelet looks at new sockets once a second (pkg/kubelet/pluginmanager,
loopSleepDuration): it had registered us 0.6 to 1.4 s after we served, and 1.7 to 2.7 s with ten
processes waiting for two processors; the slice was there 0.07 s later. A pool that has slices, as
after a restart, waits for nothing: what is gone is withdrawn at once.
"""


class DriverServer:
    """Serves one domain's driver name, from ``run`` until that is cancelled.

    ``registered`` is called each time the kubelet has registered it.
    """

    def __init__(
        self,
        agent: Agent,
        domain: Domain,
        settings: DraSettings,
        *,
        connect: Callable[[], Kube],
        registered: Callable[[], None],
    ) -> None:
        self._agent, self._domain, self._settings = agent, domain, settings
        self._connect, self._tell = connect, registered
        self._known = anyio.Event()
        self._name = domain.dra_driver

    async def run(self) -> None:
        """Serve for ever."""
        await self._keep("serving", self._serve)

    async def _serve(self) -> None:
        self._check_name()
        workshop = Workshop()
        reader = ClaimReader(
            self._connect,
            pool=self._agent.node.name,
            bound=bound_by(lambda: self._agent.offer),
            offer=lambda: self._agent.offer,
        )
        status = StatusWriter(self._agent, self._name, self._connect, reader.version)
        handler = ClaimHandler(
            self._agent,
            self._name,
            reader,
            metadata=self._metadata(),
            status=status if self._settings.device_status else None,
        )
        health = HealthService(self._agent, self._name)
        await handler.restore_metadata()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(workshop.run)
            for what, part in {
                "registration": self._registration(handler, workshop, health).run,
                "slices": self._publish,
                "health": health.run,
                "claim status": status.run,
                "metadata": handler.refresh_metadata,
            }.items():
                tasks.start_soon(self._keep, what, part)

    def _registered(self) -> None:
        self._known.set()
        self._tell()

    # -- parts ------------------------------------------------------------------------------------

    def _check_name(self) -> None:
        if not is_subdomain(self._name) or len(self._name) > LONGEST_NAME:
            raise BadSettings(
                "dra_driver",
                f"{self._name!r} is no name for a DRA driver",
                f"want a lower-case DNS subdomain of at most {LONGEST_NAME} characters",
            )

    def _registration(
        self, handler: ClaimHandler, workshop: Workshop, health: HealthService
    ) -> Registration:
        """Put the services on gRPC, each in both of its versions."""
        settings = self._settings
        node = NodeService(self._name, handler, workshop, deadline=settings.answer_within)
        handlers: list[Any] = [
            serve(service_of(messages, "DRAPlugin"), node.methods(messages))
            for messages in (dra_v1_pb2, dra_v1beta1_pb2)
        ]
        if settings.health:
            handlers += [
                serve(service_of(messages, "DRAResourceHealth"), health.methods(messages))
                for messages in (dra_health_v1_pb2, dra_health_v1alpha1_pb2)
            ]
        return Registration(
            self._agent,
            self._name,
            handlers,
            registered=self._registered,
            silence=settings.registration_silence,
            versions=NODE_VERSIONS + (HEALTH_VERSIONS if settings.health else ()),
        )

    def _metadata(self) -> MetadataFiles | None:
        if not self._settings.metadata:
            return None
        paths = self._agent.paths
        plugin = Directories(paths.kubelet, self._name).plugin
        try:
            return MetadataFiles(self._name, plugin, paths.cdi, self._settings.metadata)
        except BadValue as error:
            self._agent.on_fault(f"dra metadata of {self._name}", f"no metadata files: {error}")
            return None

    async def _publish(self) -> None:
        publisher = SlicePublisher(
            self._agent,
            self._domain,
            self._connect(),
            withdraw_unhealthy=self._settings.unhealthy == "withdraw",
            begin=self._kubelets_turn,
        )
        await publisher.run()

    async def _kubelets_turn(self) -> None:
        with anyio.move_on_after(_KUBELETS_TURN):
            await self._known.wait()

    # -- kept running -----------------------------------------------------------------------------

    async def _keep(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run something that never ends, again and again if it does."""
        backoff = Backoff(first=1.0, most=60.0)
        source = f"frontend/dra {what} of {self._name}"
        failed = False
        while True:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._trust, source if failed else "", backoff)
                    await work()
                    tasks.cancel_scope.cancel()
            except Exception as error:  # noqa: BLE001 -- one part's failure is not the others'
                failed = True
                self._agent.on_fault(source, self._said(what, _cause(error)))
            await anyio.sleep(backoff.next())

    async def _trust(self, source: str, backoff: Backoff) -> None:
        """What failed and has run for a while since works again; its own faults are its own."""
        await anyio.sleep(_TRUSTED_AFTER)
        backoff.reset()
        if source:
            self._agent.clear_fault(source)

    def _said(self, what: str, error: Exception) -> str:
        if isinstance(error, HardpointError):
            return str(error)
        log.error("failed part=%r driver=%s", what, self._name, exc_info=error)
        return repr(error)


def _cause(error: Exception) -> Exception:
    """Return the first real error of a task group's."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
