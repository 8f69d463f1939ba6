"""The frontend: one DRA driver towards the kubelet for every driver name that the node uses.

Each name has its sockets, its registration, its ResourceSlices and its own failures: what goes
wrong with one is said on the fault board, tried again, and costs no other.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

import anyio
import hardpoint
from hardpoint.agent import Agent
from hardpoint.attributes import is_subdomain
from hardpoint.contract import hookimpl
from hardpoint.errors import BadSettings, BadValue, HardpointError
from hardpoint.kube import Backoff
from hardpoint.model import Domain, Offer
from hardpoint.node import Node
from pydantic import Field

if TYPE_CHECKING:
    from hardpoint.kube import Kube

log = logging.getLogger(__name__)

LONGEST_NAME = 63
_TRUSTED_AFTER = 30.0
"""Seconds that a part has to run before its last failure is forgotten."""


class DraSettings(hardpoint.Settings):
    """Section ``[frontend.dra]``."""

    registration_silence: float = Field(default=30.0, gt=0)
    """Seconds that the kubelet may leave a registration unfinished before it is said and redone."""
    answer_within: float = Field(default=40.0, gt=0, lt=45)
    """Seconds until a prepare is answered with "try again"; the kubelet hangs up after 45."""
    health: bool = True
    """Tell the kubelet how devices are, for the status of pods."""
    unhealthy: Literal["taint", "withdraw"] = "taint"
    """What becomes of an unhealthy device: a taint keeps new pods away, or it leaves its slice."""
    device_status: bool = True
    """Write ``status.devices`` of prepared claims, where the API server takes it."""
    metadata: tuple[Literal["v1beta1", "v1alpha1"], ...] = ()
    """Versions of device metadata files to mount into containers, newest first; none if empty."""


class Dra:
    """Offers devices through dynamic resource allocation, and prepares what was claimed."""

    Settings = DraSettings

    def __init__(self, node: Node, settings: DraSettings) -> None:
        self.node, self.settings = node, settings

    @hookimpl
    async def serve_frontend(self, agent: Agent, ready: Callable[[], None]) -> None:
        """Serve every driver name; ready once the kubelet has registered all of them."""
        names = {domain.dra_driver: domain for domain in reversed(agent.domains)}
        missing = set(names)

        def registered(name: str) -> None:
            missing.discard(name)
            if not missing:
                ready()

        if not names:
            ready()
        connection = _Connection(agent)
        try:
            async with anyio.create_task_group() as tasks:
                for name, domain in names.items():
                    served = _Driver(agent, domain, self.settings, connection.open)
                    tasks.start_soon(served.run, lambda name=name: registered(name))
                await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await connection.close()

    @hookimpl
    def preview_offer(self, offer: Offer, version: str) -> list[dict[str, Any]]:
        """Return the ResourceSlices that would be written for an offer on an empty server."""
        from hardpoint_dra.translate import render

        domains = {one.domain.dra_driver: one.domain for one in offer.devices}
        return [
            body
            for _, domain in sorted(domains.items())
            for body in render(offer, domain, self.node.name, version=version)
        ]


class _Connection:
    """One connection to the API server for all of them, opened when it is first needed."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._kube: Kube | None = None

    def open(self) -> Kube:
        """Return it. Raises ``KubeUnreachable`` where no server is named."""
        if self._kube is None:
            self._kube = self._agent.connect()
        return self._kube

    async def close(self) -> None:
        """End it, if it was ever needed."""
        if self._kube is not None:
            await self._kube.aclose()


class _Driver:
    """Everything that one driver name needs, kept running."""

    def __init__(
        self, agent: Agent, domain: Domain, settings: DraSettings, connect: Callable[[], Kube]
    ) -> None:
        self._agent, self._domain, self._settings = agent, domain, settings
        self._connect = connect
        self._name = domain.dra_driver

    async def run(self, registered: Callable[[], None]) -> None:
        """Serve for ever."""
        await self._keep("serving", lambda: self._serve(registered))

    async def _serve(self, registered: Callable[[], None]) -> None:
        from hardpoint_dra.claims import ClaimReader
        from hardpoint_dra.handler import ClaimHandler
        from hardpoint_dra.health import HealthService
        from hardpoint_dra.registration import Registration
        from hardpoint_dra.server import NodeService
        from hardpoint_dra.status import StatusWriter
        from hardpoint_dra.work import Workshop

        self._check_name()
        agent, name, settings = self._agent, self._name, self._settings
        reader = ClaimReader(self._connect, pool=agent.node.name)
        status = StatusWriter(agent, name, self._connect, reader.version)
        handler = ClaimHandler(
            agent,
            name,
            reader,
            metadata=self._metadata(),
            status=status if settings.device_status else None,
        )
        workshop = Workshop()
        node_service = NodeService(name, handler, workshop, deadline=settings.answer_within)
        health = HealthService(agent, name) if settings.health else None
        registration = Registration(
            agent,
            name,
            _handlers(node_service, health),
            registered=registered,
            silence=settings.registration_silence,
            versions=_versions(settings.health),
        )
        await handler.restore_metadata()
        children: dict[str, Callable[[], Awaitable[None]]] = {
            "registration": registration.run,
            "slices": self._publish,
            "claim status": status.run,
            "metadata": handler.refresh_metadata,
            **({"health": health.run} if health is not None else {}),
        }
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(workshop.run)
            for what, child in children.items():
                tasks.start_soon(self._keep, what, child)

    async def _publish(self) -> None:
        from hardpoint_dra.slices import SlicePublisher

        withdraw = self._settings.unhealthy == "withdraw"
        kube = self._connect()
        await SlicePublisher(self._agent, self._domain, kube, withdraw_unhealthy=withdraw).run()

    def _check_name(self) -> None:
        if not is_subdomain(self._name) or len(self._name) > LONGEST_NAME:
            raise BadSettings(
                "dra_driver",
                f"{self._name!r} is no name for a DRA driver",
                f"want a lower-case DNS subdomain of at most {LONGEST_NAME} characters",
            )

    def _metadata(self) -> Any:
        from hardpoint_dra.metadata import MetadataFiles
        from hardpoint_dra.names import Directories

        if not self._settings.metadata:
            return None
        paths = self._agent.paths
        plugin = Directories(paths.kubelet, self._name).plugin
        try:
            return MetadataFiles(self._name, plugin, paths.cdi, self._settings.metadata)
        except BadValue as error:
            self._agent.on_fault(f"dra metadata of {self._name}", f"no metadata files: {error}")
            return None

    async def _keep(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run something that never ends, again and again if it does."""
        backoff = Backoff(first=1.0, most=60.0)
        source = f"frontend/dra {what} of {self._name}"
        while True:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._trust, source, backoff)
                    await work()
                    tasks.cancel_scope.cancel()
            except Exception as error:  # noqa: BLE001 -- one part's failure is not the others'
                self._agent.on_fault(source, self._said(what, _cause(error)))
            await anyio.sleep(backoff.next())

    async def _trust(self, source: str, backoff: Backoff) -> None:
        """What has run for a while works again."""
        await anyio.sleep(_TRUSTED_AFTER)
        backoff.reset()
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


def _handlers(node_service: Any, health: Any) -> list[Any]:
    """Put the services on gRPC: both versions of both."""
    from hardpoint.kubelet import (
        dra_health_v1_pb2,
        dra_health_v1alpha1_pb2,
        dra_v1_pb2,
        dra_v1beta1_pb2,
    )
    from hardpoint.kubelet.services import serve, service_of

    handlers = [
        serve(service_of(messages, "DRAPlugin"), node_service.methods(messages))
        for messages in (dra_v1_pb2, dra_v1beta1_pb2)
    ]
    if health is None:
        return handlers
    return handlers + [
        serve(service_of(messages, "DRAResourceHealth"), health.methods(messages))
        for messages in (dra_health_v1_pb2, dra_health_v1alpha1_pb2)
    ]


def _versions(health: bool) -> tuple[str, ...]:
    from hardpoint_dra.registration import HEALTH_VERSIONS, NODE_VERSIONS

    return NODE_VERSIONS + (HEALTH_VERSIONS if health else ())
