"""The fake kubelet's view of device health: the last report, and how long it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hardpoint.errors import CallFailed
from hardpoint.kubelet import dra_health_v1_pb2, dra_health_v1alpha1_pb2
from hardpoint.kubelet.services import service_of
from hardpoint.testing._kubelet_drivers import DriverInstance

if TYPE_CHECKING:
    from hardpoint.testing.kubelet import Behaviour

MESSAGES = {
    "v1.DRAResourceHealth": dra_health_v1_pb2,
    "v1alpha1.DRAResourceHealth": dra_health_v1alpha1_pb2,
}
_WORDS = ("Unknown", "Healthy", "Unhealthy")
_STALE_AFTER = 30.0
_REOPEN_AFTER = 5.0
_LONGEST_MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class Report:
    """What a pod's status would show of a device: ``Healthy``, ``Unhealthy`` or ``Unknown``."""

    health: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class _Received:
    report: Report
    expires: float


class HealthCache:
    """Health by driver, pool and device, as the drivers' streams told it."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.received = 0
        """How many messages have come."""
        self._behaviour = behaviour
        self._known: dict[str, dict[tuple[str, str], _Received]] = {}

    def get(self, driver: str, pool: str, device: str) -> Report:
        """Return the last report that still holds."""
        found = self._known.get(driver, {}).get((pool, device))
        if found is None or self._behaviour.clock.now() >= found.expires:
            return Report("Unknown")
        return found.report

    async def watch(self, instance: DriverInstance) -> None:
        """Follow an instance's stream; opened again 5 s after it ends, unless not implemented."""
        messages = MESSAGES[instance.health_service]
        service = service_of(messages, "DRAResourceHealth")
        while True:
            try:
                async for response in instance.client.stream(
                    service, "NodeWatchResources", messages.NodeWatchResourcesRequest()
                ):
                    self._receive(instance.driver, response)
            except CallFailed as error:
                if error.code == "UNIMPLEMENTED":
                    return
            self._known.pop(instance.driver, None)
            self._behaviour.changed()
            await self._behaviour.clock.sleep(_REOPEN_AFTER)

    def _receive(self, driver: str, response: Any) -> None:
        now = self._behaviour.clock.now()
        known = self._known.setdefault(driver, {})
        for device in response.devices:
            holds = device.health_check_timeout_seconds or _STALE_AFTER
            key = (device.device.pool_name, device.device.device_name)
            report = Report(_WORDS[device.health], _cut(device.message))
            known[key] = _Received(report, now + holds)
        self.received += 1
        self._behaviour.changed()


def _cut(message: str) -> str:
    if len(message) <= _LONGEST_MESSAGE:
        return message
    return message[: _LONGEST_MESSAGE - 3] + "..."
