"""DRAResourceHealth: how every device of a driver is, told whole, on change and every 10 seconds.

The kubelet forgets what it was told after 30 seconds by its own clock, and what a stream said as
soon as that stream ends.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from types import ModuleType
from typing import Any

import anyio

from hardpoint.agent import Agent
from hardpoint.model import Condition, Offer
from hardpoint_dra.published import as_published

RESEND = 10.0
LONGEST_MESSAGE = 1024
"""Characters; a longer message is cut by the kubelet, and since 1.36 only."""

_WORDS = {
    Condition.HEALTHY: "HEALTHY",
    Condition.UNHEALTHY: "UNHEALTHY",
    Condition.UNKNOWN: "UNKNOWN",
}


class HealthService:
    """The health of one driver's devices; ``run`` follows the offer for every open stream."""

    def __init__(
        self,
        agent: Agent,
        driver: str,
        *,
        resend: float = RESEND,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._agent, self._driver = agent, driver
        self._resend, self._now = resend, now
        self._known: tuple[Any, ...] | None = None
        self._changed = anyio.Event()

    async def run(self) -> None:
        """Follow the offer for ever."""
        async for offer in self._agent.offers():
            known = self._health(offer)
            if known != self._known:
                self._known = known
                changed, self._changed = self._changed, anyio.Event()
                changed.set()

    def _health(self, offer: Offer) -> tuple[Any, ...]:
        return tuple(
            (one.name, one.health)
            for one in as_published(offer).devices
            if one.domain.dra_driver == self._driver
        )

    def methods(
        self, messages: ModuleType
    ) -> dict[str, Callable[[Any], AsyncGenerator[Any, None]]]:
        """Return the handler for ``dra_health_v1_pb2`` or ``dra_health_v1alpha1_pb2``."""

        async def watch(request: Any) -> AsyncGenerator[Any, None]:
            while True:
                changed = self._changed
                if self._known is not None:
                    yield self._message(messages)
                with anyio.move_on_after(self._resend):
                    await changed.wait()

        return {"NodeWatchResources": watch}

    def _message(self, messages: ModuleType) -> Any:
        now = int(self._now())
        return messages.NodeWatchResourcesResponse(
            devices=[
                messages.DeviceHealth(
                    device=messages.DeviceIdentifier(
                        pool_name=self._agent.node.name, device_name=name
                    ),
                    health=_WORDS[health.condition],
                    last_updated_time=now,
                    message=cut(health.message),
                )
                for name, health in self._known or ()
            ]
        )


def cut(message: str) -> str:
    """Return a message that the kubelet keeps whole."""
    if len(message) <= LONGEST_MESSAGE:
        return message
    return message[: LONGEST_MESSAGE - 3] + "..."
