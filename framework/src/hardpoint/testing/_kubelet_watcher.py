"""The fake kubelet's plugin watcher: sockets in ``plugins_registry``, asked who they are."""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.abc

from hardpoint.errors import CallFailed, SocketError
from hardpoint.kubelet import pluginregistration_v1_pb2 as pb
from hardpoint.kubelet.client import Client
from hardpoint.kubelet.services import service_of
from hardpoint.testing._kubelet_drivers import DriverInstance, Drivers, Refused

if TYPE_CHECKING:
    from hardpoint.testing.kubelet import Behaviour

log = logging.getLogger(__name__)

_REGISTRATION = service_of(pb, "Registration")
_FIRST_RETRY, _LONGEST_RETRY = 0.5, 120.0
_REFUSED = "RegisterPlugin error -- "

Seen = tuple[int, int, int]
"""Device, inode and change time: a socket that was made anew differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try to register a socket, for tests to look at."""

    path: str
    driver: str = ""
    endpoint: str = ""
    versions: tuple[str, ...] = ()
    registered: bool = False
    error: str = ""


@dataclass(eq=False, slots=True)
class _Plugin:
    """A socket that is there: its registration runs in a scope of its own."""

    path: Path
    seen: Seen
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    instance: DriverInstance | None = None


class Watcher:
    """Finds sockets, registers what answers, and deregisters what is gone."""

    def __init__(self, root: Path, behaviour: Behaviour, drivers: Drivers) -> None:
        self.directory = root / "plugins_registry"
        self.attempts: list[Attempt] = []
        self._behaviour, self._drivers = behaviour, drivers
        self._plugins: dict[Path, _Plugin] = {}

    @property
    def sockets(self) -> tuple[Path, ...]:
        """The sockets that are there."""
        return tuple(self._plugins)

    def reset(self) -> None:
        """Know nothing, as after a start."""
        self._plugins.clear()

    async def run(self) -> None:
        """Watch for ever; the directory is made when it is missing."""
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        async with anyio.create_task_group() as tasks:
            while True:
                self._look(tasks)
                await anyio.sleep(self._behaviour.poll)

    def _look(self, tasks: anyio.abc.TaskGroup) -> None:
        found = _sockets(self.directory)
        for path, plugin in list(self._plugins.items()):
            if found.get(path) != plugin.seen:
                self._remove(plugin)
        for path, seen in found.items():
            if path not in self._plugins:
                self._plugins[path] = plugin = _Plugin(path, seen)
                tasks.start_soon(self._register, plugin)
                self._behaviour.changed()

    def _remove(self, plugin: _Plugin) -> None:
        del self._plugins[plugin.path]
        plugin.scope.cancel()
        if plugin.instance is not None:
            self._drivers.deregister(plugin.instance)

    async def _register(self, plugin: _Plugin) -> None:
        """Try until it is registered, with back-off; a kubelet before 1.36 gives up early."""
        wait = _FIRST_RETRY
        with plugin.scope:
            while self._behaviour.asks_info and not await self._try(plugin):
                await self._behaviour.clock.sleep(wait)
                wait = min(wait * 2, _LONGEST_RETRY)

    async def _try(self, plugin: _Plugin) -> bool:
        """Ask and register once; False is to be tried again."""
        try:
            client = Client(plugin.path)
        except SocketError as error:
            self._note(Attempt(path=str(plugin.path), error=str(error)))
            return False
        async with client:
            try:
                info = await client.call(
                    _REGISTRATION,
                    "GetInfo",
                    pb.InfoRequest(),
                    timeout_s=self._behaviour.get_info_timeout,
                )
            except CallFailed as error:
                self._note(Attempt(path=str(plugin.path), error=str(error)))
                return False
            return await self._admit(plugin, client, info)

    async def _admit(self, plugin: _Plugin, client: Client, info: pb.PluginInfo) -> bool:
        endpoint = info.endpoint or str(plugin.path)
        versions = list(info.supported_versions)
        if info.type != "DRAPlugin":
            why = f"no handler registered for plugin type: {info.type} at socket {plugin.path}"
            await self._notify(plugin, client, info, f"{_REFUSED}{why}")
            return False
        try:
            self._drivers.validate(info.name, endpoint, versions)
        except Refused as error:
            why = f"{_REFUSED}plugin validation failed with err: {error}"
            await self._notify(plugin, client, info, why)
            return False
        try:
            plugin.instance = self._drivers.register(info.name, endpoint, versions)
        except Refused as error:
            why = f"{_REFUSED}plugin registration failed with err: {error}"
            await self._notify(plugin, client, info, why)
            return not self._behaviour.retries_registration
        if await self._notify(plugin, client, info, ""):
            return True
        return self._keep_unnotified(plugin)

    def _keep_unnotified(self, plugin: _Plugin) -> bool:
        """Before 1.36 a plugin that could not be notified stays; since, it is dropped."""
        if not self._behaviour.retries_registration:
            return True
        if plugin.instance is not None:
            self._drivers.deregister(plugin.instance)
            plugin.instance = None
        return False

    async def _notify(
        self, plugin: _Plugin, client: Client, info: pb.PluginInfo, error: str
    ) -> bool:
        """Tell the plugin how it went; say whether it heard."""
        status = pb.RegistrationStatus(plugin_registered=not error, error=error)
        try:
            await client.call(
                _REGISTRATION,
                "NotifyRegistrationStatus",
                status,
                timeout_s=self._behaviour.notify_timeout,
            )
        except CallFailed as failed:
            error = error or str(failed)
        self._note(
            Attempt(
                path=str(plugin.path),
                driver=info.name,
                endpoint=info.endpoint,
                versions=tuple(info.supported_versions),
                registered=not error,
                error=error,
            )
        )
        return not error

    def _note(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        self._behaviour.changed()


def _sockets(directory: Path) -> dict[Path, Seen]:
    """Walk for sockets, also in directories below; names that begin with a dot are not seen."""
    found: dict[Path, Seen] = {}
    for base, directories, names in os.walk(directory):
        directories[:] = [name for name in directories if not name.startswith(".")]
        for name in names:
            path = Path(base, name)
            if name.startswith("."):
                continue
            try:
                status = path.lstat()
            except OSError:
                continue
            if stat.S_ISSOCK(status.st_mode):
                found[path] = (status.st_dev, status.st_ino, status.st_ctime_ns)
    return found
