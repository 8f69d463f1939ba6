"""The frontend: one DRA driver towards the kubelet for every driver name that the node uses.

Each name has its sockets, its registration, its ResourceSlices and its own failures: what goes
wrong with one is said on the fault board, tried again, and costs no other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import anyio
from pydantic import Field

import hardpoint
from hardpoint.agent import Agent
from hardpoint.contract import hookimpl
from hardpoint.model import Offer
from hardpoint.node import Node

if TYPE_CHECKING:
    from hardpoint.kube import Kube


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
        from hardpoint_dra.serving import DriverServer

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
                    server = DriverServer(
                        agent,
                        domain,
                        self.settings,
                        connect=connection.open,
                        registered=partial(registered, name),
                    )
                    tasks.start_soon(server.run)
                await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await connection.close()

    @hookimpl
    def preview_offer(self, offer: Offer, version: str) -> list[dict[str, Any]]:
        """Return the ResourceSlices that would be written for an offer on an empty server."""
        from hardpoint_dra.published import as_published
        from hardpoint_dra.translate import render

        offer = as_published(offer)
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
