"""A DRA plugin in a few lines: it notes what a kubelet asks of it, and answers as it is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

import anyio

from hardpoint.kubelet import (
    dra_health_v1_pb2,
    dra_health_v1alpha1_pb2,
    dra_v1_pb2,
    dra_v1beta1_pb2,
)
from hardpoint.kubelet import pluginregistration_v1_pb2 as reg
from hardpoint.kubelet.server import SocketServer
from hardpoint.kubelet.services import Status, serve, service_of

SERVICES = (
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
)
_NODE = {"v1": dra_v1_pb2, "v1beta1": dra_v1beta1_pb2}
_HEALTH = (dra_health_v1_pb2, dra_health_v1alpha1_pb2)

Answer = Callable[[Any], None]
"""Changes the entries of an answer, by claim UID, before it is sent."""


class Plugin:
    """One instance of a driver. ``calls`` is the log: a word, and what it was about.

    ``info``; ``told`` with whether it is registered, and why not; ``prepare`` and ``unprepare``
    with the names of the claims.
    """

    def __init__(self, root: Path, name: str, *, tag: str = "") -> None:
        self.name = name
        self.endpoint = root / "plugins" / name / f"dra{tag}.sock"
        self.socket = root / "plugins_registry" / f"{name}{tag}-reg.sock"
        self.info = reg.PluginInfo(
            type="DRAPlugin", name=name, endpoint=str(self.endpoint), supported_versions=SERVICES
        )
        self.calls: list[tuple[Any, ...]] = []
        self.versions: list[str] = []
        """By which version of the node service each call came."""
        self.slow_info = 0.0
        """Seconds that the next answer to GetInfo takes."""
        self.bend: dict[str, Answer] = {}
        """What is done to answers: ``prepare`` or ``unprepare``."""
        self.cdi = "example.com/none="
        self.health: list[Any] = []
        """Reports to send, one after the other; the stream ends when it is emptied."""
        self._more = anyio.Event()
        self._registrar = SocketServer(self.socket, [self._registration()])
        self._service = SocketServer(self.endpoint, self._services(), grace=0.1)

    # -- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self.endpoint.parent.mkdir(parents=True, exist_ok=True)
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.stop()

    async def start(self) -> None:
        """Serve, and let the kubelet know."""
        await self._service.start()
        await self._registrar.start()

    async def stop(self) -> None:
        """Take both sockets away."""
        await self.leave()
        await self._service.close()

    async def leave(self) -> None:
        """Take the registration socket away."""
        await self._registrar.close()

    async def come_back(self) -> None:
        """Serve the registration socket again."""
        await self._registrar.start()

    # -- what was asked ---------------------------------------------------------------------------

    def of(self, *words: str) -> list[tuple[Any, ...]]:
        """Return the calls of these words."""
        return [call for call in self.calls if call[0] in words]

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait until something is true of the calls. Raises ``TimeoutError``."""
        with anyio.fail_after(seconds):
            while not condition():
                await self._more.wait()

    async def until_told(self, registered: bool = True, times: int = 1) -> None:
        """Wait until the kubelet has said so often whether it took this plugin."""
        await self.until(lambda: sum(call[1] is registered for call in self.of("told")) >= times)

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        self.changed()

    def changed(self) -> None:
        more, self._more = self._more, anyio.Event()
        more.set()

    # -- answers ----------------------------------------------------------------------------------

    def _registration(self) -> Any:
        async def info(request: Any) -> Any:
            self._note("info")
            slow, self.slow_info = self.slow_info, 0.0
            await anyio.sleep(slow)
            return self.info

        async def told(status: Any) -> Any:
            self._note("told", status.plugin_registered, status.error)
            return reg.RegistrationStatusResponse()

        handlers = {"GetInfo": info, "NotifyRegistrationStatus": told}
        return serve(service_of(reg, "Registration"), handlers)

    def _services(self) -> list[Any]:
        nodes = [
            serve(
                service_of(messages, "DRAPlugin"),
                {
                    "NodePrepareResources": self._prepare(version, messages),
                    "NodeUnprepareResources": self._unprepare(version, messages),
                },
            )
            for version, messages in _NODE.items()
        ]
        watch = {"NodeWatchResources": self._watch}
        return [*nodes, *(serve(service_of(m, "DRAResourceHealth"), watch) for m in _HEALTH)]

    def _prepare(self, version: str, messages: Any) -> Any:
        async def prepare(request: Any) -> Any:
            self.versions.append(version)
            self._note("prepare", [claim.name for claim in request.claims])
            entries = {
                claim.uid: messages.NodePrepareResourceResponse(devices=[self._device(messages)])
                for claim in request.claims
            }
            response = messages.NodePrepareResourcesResponse(claims=entries)
            self.bend.get("prepare", _as_it_is)(response.claims)
            return response

        return prepare

    def _device(self, messages: Any) -> Any:
        ids = [] if self.cdi.endswith("=") else [self.cdi]
        return messages.Device(pool_name="n0", device_name="dev-0", cdi_device_ids=ids)

    def _unprepare(self, version: str, messages: Any) -> Any:
        async def unprepare(request: Any) -> Any:
            self._note("unprepare", [claim.name for claim in request.claims])
            entries = {c.uid: messages.NodeUnprepareResourceResponse() for c in request.claims}
            response = messages.NodeUnprepareResourcesResponse(claims=entries)
            self.bend.get("unprepare", _as_it_is)(response.claims)
            return response

        return unprepare

    async def _watch(self, request: Any) -> AsyncIterator[Any]:
        sent = 0
        while True:
            more = self._more  # before a look: what changes while the kubelet reads is seen, too
            while sent < len(self.health):
                sent += 1
                yield self.health[sent - 1]
            if sent and not self.health:
                return
            await more.wait()

    def report(self, health: str, message: str = "") -> None:
        """Send a report on the device: ``HEALTHY``, ``UNHEALTHY``."""
        pb = dra_health_v1_pb2
        device = pb.DeviceIdentifier(pool_name="n0", device_name="dev-0")
        found = pb.DeviceHealth(device=device, health=health, message=message)
        self.health.append(pb.NodeWatchResourcesResponse(devices=[found]))
        self.changed()

    def end_reports(self) -> None:
        """End the stream of reports."""
        self.health = []
        self.changed()


def _as_it_is(entries: Any) -> None:
    """Change nothing."""


def failing(uid: str = "", error: str = "no such device") -> Answer:
    """Answer with an error, for one claim or for all."""

    def bend(entries: Any) -> None:
        for key in list(entries):
            if uid in ("", key):
                entries[key].error = error

    return bend


def refusing(code: str, details: str) -> Answer:
    """Answer with a status instead."""

    def bend(entries: Any) -> None:
        raise Status(code, details)

    return bend


def forgetting(entries: Any) -> None:
    """Leave the first claim out."""
    del entries[next(iter(sorted(entries)))]


def inventing(entries: Any) -> None:
    """Answer for a claim that nobody asked about."""
    entries["00000000-0000-0000-0000-00000000000f"].error = ""
