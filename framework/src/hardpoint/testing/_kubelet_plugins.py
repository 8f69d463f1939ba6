"""The fake kubelet's device plugins: who is registered, what they list, and when that counts.

What the real one does without a word though it is wrong of the plugin, an id twice in a list, a
NUMA node of -1, is kept in ``complaints``.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

from hardpoint.errors import CallFailed, SocketError
from hardpoint.kubelet import deviceplugin_v1beta1_pb2 as pb
from hardpoint.kubelet.client import Client
from hardpoint.kubelet.server import SocketServer
from hardpoint.kubelet.services import Status, serve, service_of
from hardpoint.testing._names import is_dns_subdomain

if TYPE_CHECKING:
    from hardpoint.testing.kubelet import Behaviour

log = logging.getLogger(__name__)

CHECKPOINT = "kubelet_internal_checkpoint"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
_PLUGIN, _REGISTRATION = service_of(pb, "DevicePlugin"), service_of(pb, "Registration")
_VERSIONS = ("v1beta1",)
_LONGEST_ID = 63
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One call of ``Register``; ``error`` is what it was answered, empty for success."""

    resource: str
    endpoint: str
    version: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """A device as a plugin lists it."""

    id: str
    health: str
    numa: tuple[int, ...] = ()


@dataclass(eq=False, slots=True, kw_only=True)
class PluginInstance:
    """One registered instance of a device plugin, and its stream."""

    resource: str
    path: Path
    client: Client
    pre_start: bool = False
    preferred: bool = False
    lists: int = 0
    """Messages of its stream so far."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    async def call(self, method: str, request: Any, timeout_s: float | None) -> Any:
        """Call the plugin. Raises ``CallFailed``."""
        return await self.client.call(_PLUGIN, method, request, timeout_s=timeout_s)


@dataclass(eq=False, slots=True)
class Resource:
    """What is known of a resource; it outlives its endpoint by the grace period."""

    devices: dict[str, ListedDevice] = field(default_factory=dict)
    instances: list[PluginInstance] = field(default_factory=list)
    """Oldest first; the newest is called."""
    stopped: float | None = None
    """When its last endpoint was lost."""

    @property
    def healthy(self) -> set[str]:
        """The ids that may be given out."""
        return {d.id for d in self.devices.values() if d.health == HEALTHY}

    def lose(self, now: float) -> None:
        """Lose the endpoint: nothing is healthy any more, at once."""
        self.stopped = now
        self.devices = {
            one.id: ListedDevice(one.id, UNHEALTHY, one.numa) for one in self.devices.values()
        }


class DevicePlugins:
    """Serves ``kubelet.sock`` and follows every plugin that registers."""

    def __init__(self, directory: Path, behaviour: Behaviour) -> None:
        self.directory = directory
        self.registrations: list[Registration] = []
        self.complaints: list[str] = []
        self.on_list: Callable[[], None] = lambda: None
        """Called after each list: what is known is written down."""
        self.resources: dict[str, Resource] = {}
        self._behaviour = behaviour
        self._tasks: anyio.abc.TaskGroup | None = None
        handlers = serve(_REGISTRATION, {"Register": self._register})
        self._server = SocketServer(directory / "kubelet.sock", [handlers])

    @property
    def socket(self) -> Path:
        """Where plugins register."""
        return self._server.path

    # -- running ----------------------------------------------------------------------------------

    async def start(self, tasks: anyio.abc.TaskGroup, known: set[str]) -> None:
        """Empty the directory of all but the checkpoint, and serve.

        Resources that the checkpoint names are there without devices until they register again.
        """
        self._tasks = tasks
        self.resources = {name: Resource(stopped=self._behaviour.clock.now()) for name in known}
        self.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        for entry in self.directory.iterdir():
            if not stat.S_ISDIR(entry.lstat().st_mode) and entry.name != CHECKPOINT:
                entry.unlink(missing_ok=True)
        (self.directory / "DEPRECATION").write_text("Deprecated; device plugins register here.\n")
        await self._server.start()

    async def stop(self, *, leave_socket: bool = False) -> None:
        """End; a kubelet that was killed leaves its socket, which nobody listens at."""
        if leave_socket:
            self._server._own = None
        await self._server.close()
        for resource in self.resources.values():
            resource.instances.clear()

    # -- registration -----------------------------------------------------------------------------

    async def _register(self, request: pb.RegisterRequest) -> pb.Empty:
        """Dial the plugin back before it has its answer."""
        try:
            await self._admit(request)
        except Status as error:
            self._note(request, str(error))
            raise
        self._note(request, "")
        return pb.Empty()

    async def _admit(self, request: pb.RegisterRequest) -> None:
        if request.version not in _VERSIONS:
            raise Status("UNKNOWN", f"version {request.version!r} is not among {_VERSIONS}")
        if not is_extended_resource(request.resource_name):
            raise Status("UNKNOWN", f"the resource name {request.resource_name!r} is invalid")
        if not request.endpoint or "/" in request.endpoint:
            raise Status("UNKNOWN", f"endpoint {request.endpoint!r} is no file name")
        instance = await self._dial(request)
        resource = self.resources.setdefault(request.resource_name, Resource())
        resource.instances.append(instance)
        resource.stopped = None
        assert self._tasks is not None
        self._tasks.start_soon(self._follow, instance)

    async def _dial(self, request: pb.RegisterRequest) -> PluginInstance:
        path = self.directory / request.endpoint
        try:
            client = Client(path)
        except SocketError as error:
            raise Status("UNKNOWN", str(error)) from error
        try:
            options = await client.call(
                _PLUGIN,
                "GetDevicePluginOptions",
                pb.Empty(),
                timeout_s=self._behaviour.dial_timeout,
            )
        except CallFailed as error:
            await client.close()
            raise Status("UNKNOWN", f"failed to dial device plugin: {error}") from error
        if options != request.options:
            self.complaints.append(f"{request.resource_name}: Register and options do not agree")
        return PluginInstance(
            resource=request.resource_name,
            path=path,
            client=client,
            pre_start=options.pre_start_required,
            preferred=options.get_preferred_allocation_available,
        )

    def _note(self, request: pb.RegisterRequest, error: str) -> None:
        self.registrations.append(
            Registration(
                resource=request.resource_name,
                endpoint=request.endpoint,
                version=request.version,
                error=error,
            )
        )
        self._behaviour.changed()

    # -- lists ------------------------------------------------------------------------------------

    async def _follow(self, instance: PluginInstance) -> None:
        """Take in lists until the stream ends; nobody dials again by itself."""
        try:
            with instance.scope:
                stream = instance.client.stream(_PLUGIN, "ListAndWatch", pb.Empty())
                try:
                    async for message in stream:
                        self._listed(instance, message)
                except CallFailed as error:
                    log.info("stream ended resource=%s why=%s", instance.resource, error)
        finally:
            with anyio.CancelScope(shield=True):
                await instance.client.close()
        self._ended(instance)

    def _listed(self, instance: PluginInstance, message: pb.ListAndWatchResponse) -> None:
        """Take a list for the whole truth, whichever instance of the resource it comes from."""
        instance.lists += 1
        found = [
            ListedDevice(one.ID, one.health, tuple(node.ID for node in one.topology.nodes))
            for one in message.devices
        ]
        self._complain(instance.resource, found)
        resource = self.resources.setdefault(instance.resource, Resource())
        resource.devices = {device.id: device for device in found}
        self.on_list()
        self._behaviour.changed()

    def _complain(self, resource: str, found: list[ListedDevice]) -> None:
        twice = [id_ for id_, count in Counter(one.id for one in found).items() if count > 1]
        self.complaints += [f"{resource}: id {id_!r} is listed twice" for id_ in twice]
        for one in found:
            if not 0 < len(one.id) <= _LONGEST_ID:
                self.complaints.append(f"{resource}: id {one.id!r} has {len(one.id)} characters")
            if one.health not in (HEALTHY, UNHEALTHY):
                self.complaints.append(f"{resource}: {one.id!r} is {one.health!r}")
            if any(node < 0 for node in one.numa):
                self.complaints.append(f"{resource}: {one.id!r} is on NUMA node {one.numa}")

    def _ended(self, instance: PluginInstance) -> None:
        """Drop an instance whose stream has ended.

        Before 1.36 the kubelet knows one endpoint for a resource: when the stream of an older
        instance ends, it closes the newest (kubernetes/kubernetes#121994, fixed by #135437). Since
        then it tells instances apart by their sockets' paths.
        """
        resource = self.resources.get(instance.resource)
        if resource is None or instance not in resource.instances:
            return
        if self._behaviour.tells_plugins_apart:
            dropped = [one for one in resource.instances if one.path == instance.path]
        else:
            dropped = list(resource.instances)
        for one in dropped:
            resource.instances.remove(one)
            one.scope.cancel()
        if not resource.instances:
            resource.lose(self._behaviour.clock.now())
        self._behaviour.changed()

    # -- looking ----------------------------------------------------------------------------------

    def expire(self) -> None:
        """Forget resources whose endpoint was lost for longer than the grace period."""
        now, grace = self._behaviour.clock.now(), self._behaviour.plugin_grace
        for name, resource in list(self.resources.items()):
            if resource.stopped is not None and now - resource.stopped >= grace:
                del self.resources[name]

    def newest(self, resource: str) -> PluginInstance | None:
        """Return the instance that is called for a resource; None while its endpoint is lost."""
        known = self.resources.get(resource)
        return known.instances[-1] if known and known.instances else None

    def identity(self) -> tuple[int, int, int] | None:
        """Return device, inode and change time of the kubelet's socket.

        After a restart its inode may have the same number: file systems give out the lowest.
        """
        try:
            found = os.lstat(self.socket)
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_ctime_ns


def is_extended_resource(name: str) -> bool:
    """Say whether the kubelet takes a name for an extended resource's."""
    prefix, slash, word = name.partition("/")
    if not slash or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    return is_dns_subdomain(f"requests.{prefix}") and _NAME.fullmatch(word) is not None
