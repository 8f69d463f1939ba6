"""The fake kubelet's DRA drivers: which instances are registered, and whether they are connected.

An instance that is unregistered or loses its connection without another connected one of the same
driver has its slices wiped after 30 s, as the real kubelet does.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

from hardpoint.errors import SocketError
from hardpoint.kubelet import dra_v1_pb2, dra_v1beta1_pb2
from hardpoint.kubelet.client import Client
from hardpoint.kubelet.services import service_of

if TYPE_CHECKING:
    from hardpoint.testing.kubelet import Behaviour

log = logging.getLogger(__name__)

MESSAGES = {"v1.DRAPlugin": dra_v1_pb2, "v1beta1.DRAPlugin": dra_v1beta1_pb2}
_FIRST_RETRY, _LONGEST_RETRY = 1.0, 300.0

Wipe = Callable[[str | None], Awaitable[None]]
"""Deletes the node's ResourceSlices of one driver, or of all of them."""


class Refused(Exception):
    """Why the kubelet does not take a plugin."""


@dataclass(eq=False, slots=True, kw_only=True)
class DriverInstance:
    """One registered instance of a DRA driver."""

    driver: str
    endpoint: str
    service: str
    """The node service that the kubelet chose: ``v1.DRAPlugin`` or ``v1beta1.DRAPlugin``."""
    health_service: str
    """``""`` for none that this kubelet knows."""
    client: Client
    connected: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    async def call(self, method: str, claims: list[dict[str, str]], timeout_s: float) -> Any:
        """Call the node service with claims of ``namespace``, ``name`` and ``uid``."""
        messages = MESSAGES[self.service]
        request = getattr(messages, f"{method}Request")(
            claims=[messages.Claim(**claim) for claim in claims]
        )
        service = service_of(messages, "DRAPlugin")
        return await self.client.call(service, method, request, timeout_s=timeout_s)


class Drivers:
    """The registered instances of every driver; the kubelet's handler for type ``DRAPlugin``."""

    def __init__(
        self,
        behaviour: Behaviour,
        changed: Callable[[], None],
        watch_health: Callable[[DriverInstance], Coroutine[Any, Any, None]],
        wipe: Wipe,
    ) -> None:
        self.instances: list[DriverInstance] = []
        """Oldest first."""
        self.starts = 0
        """How often the kubelet has started."""
        self._behaviour, self._changed = behaviour, changed
        self._watch_health, self._wipe = watch_health, wipe
        self._wipe_at: dict[str, float] = {}
        self._tasks: anyio.abc.TaskGroup | None = None

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Wipe the node's slices, of all drivers: nothing is registered yet."""
        self._tasks = tasks
        self.starts += 1
        self._wipe_at.clear()
        tasks.start_soon(self._wipe_until_done, None)

    def get(self, driver: str) -> DriverInstance | None:
        """Return the newest connected instance, or the newest; None for an unknown driver."""
        known = [instance for instance in self.instances if instance.driver == driver]
        connected = [instance for instance in known if instance.connected]
        return next(reversed(connected or known), None)

    # -- registration -----------------------------------------------------------------------------

    def validate(self, name: str, endpoint: str, versions: list[str]) -> tuple[str, str]:
        """Return the node and health service to use, or raise ``Refused``.

        Of the node services it is the first of the plugin's own list that this kubelet knows, of
        the health services the newest that both know. A name is not looked at.
        """
        known = self._behaviour.services
        service = next((v for v in versions if v in known and v in MESSAGES), "")
        if not service:
            why = "empty list of supported gRPC services (aka supported versions)"
            if versions:
                served = _go_list(v for v in known if v in MESSAGES)
                why = (
                    f"none of services supported by the plugin ({_go_list(versions)}) are "
                    f"supported by the kubelet ({served})"
                )
            raise Refused(
                f"invalid supported gRPC versions of DRA driver plugin {name} at endpoint "
                f"{endpoint}: {why}"
            )
        health = next((v for v in known if v in versions and v not in MESSAGES), "")
        return service, health

    def register(self, name: str, endpoint: str, versions: list[str]) -> DriverInstance:
        """Add an instance and watch its connection. Raises ``Refused``."""
        service, health = self.validate(name, endpoint, versions)
        if any((one.driver, one.endpoint) == (name, endpoint) for one in self.instances):
            raise Refused(f"endpoint {endpoint} already registered for DRA driver plugin {name}")
        try:
            client = Client(endpoint)
        except SocketError as error:
            raise Refused(str(error)) from error
        instance = DriverInstance(
            driver=name, endpoint=endpoint, service=service, health_service=health, client=client
        )
        self.instances.append(instance)
        self._spawn(self._serve, instance)
        return instance

    def deregister(self, instance: DriverInstance) -> None:
        """Drop an instance; without another its driver's slices are wiped later."""
        if instance in self.instances:
            self.instances.remove(instance)
            instance.scope.cancel()
            self._gone(instance.driver)
            self._changed()

    def _spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        assert self._tasks is not None, "the kubelet is not running"
        self._tasks.start_soon(work, *arguments)

    # -- an instance's life -----------------------------------------------------------------------

    async def _serve(self, instance: DriverInstance) -> None:
        """Watch an instance's connection and health until it is dropped."""
        try:
            with instance.scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._watch_connection, instance)
                    if instance.health_service:
                        tasks.start_soon(self._watch_health, instance)
        finally:
            with anyio.CancelScope(shield=True):
                await instance.client.close()

    async def _watch_connection(self, instance: DriverInstance) -> None:
        """Look, rather than wait: gRPC's own wait outlives its event loop when it is cancelled."""
        channel = instance.client.channel
        while instance in self.instances:  # else its connection is news to nobody
            connected = channel.get_state(try_to_connect=True).name == "READY"
            if connected != instance.connected:
                instance.connected = connected
                if connected:
                    self._wipe_at.pop(instance.driver, None)
                else:
                    self._gone(instance.driver)
                self._changed()
            await anyio.sleep(self._behaviour.poll)

    # -- wiping -----------------------------------------------------------------------------------

    def _is_served(self, driver: str) -> bool:
        return any(one.connected for one in self.instances if one.driver == driver)

    def _gone(self, driver: str) -> None:
        if not self._is_served(driver) and driver not in self._wipe_at:
            at = self._behaviour.clock.now() + self._behaviour.wipe_after
            self._wipe_at[driver] = at
            self._spawn(self._wipe_later, driver, at)

    async def _wipe_later(self, driver: str, at: float) -> None:
        clock = self._behaviour.clock
        await clock.sleep(at - clock.now())
        if self._wipe_at.get(driver) == at:
            await self._wipe_until_done(driver)
            self._wipe_at.pop(driver, None)

    async def _wipe_until_done(self, driver: str | None) -> None:
        wait = _FIRST_RETRY
        while driver is None or not self._is_served(driver):
            try:
                return await self._wipe(driver)
            except Exception as error:  # noqa: BLE001 -- whatever the callback does, try again
                log.warning("slices not wiped driver=%s error=%s", driver, error)
            await self._behaviour.clock.sleep(wait)
            wait = min(wait * 2, _LONGEST_RETRY)
        return None


def _go_list(words: Iterable[str]) -> str:
    return "[" + " ".join(f'"{word}"' for word in words) + "]"
