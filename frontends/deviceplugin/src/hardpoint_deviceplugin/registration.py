"""One resource's socket, and its registration with the kubelet, kept up whatever happens to them.

The kubelet keeps no connection alive and never dials again: whatever is lost, it is the plugin that
has to register once more. So there is one way to recover, from every stage: look at what is so, and
do what is missing. What is wrong is said in the words of who can mend it.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable

import anyio
from anyio.abc import TaskGroup

from hardpoint.agent import Agent
from hardpoint.errors import CallFailed, SocketError
from hardpoint.kube import Backoff
from hardpoint.kubelet import deviceplugin_v1beta1_pb2 as pb
from hardpoint.kubelet.client import Client
from hardpoint.kubelet.server import SocketServer
from hardpoint.kubelet.services import service_of
from hardpoint.model import Event
from hardpoint_deviceplugin.names import socket_path
from hardpoint_deviceplugin.service import OPTIONS, ResourceService
from hardpoint_deviceplugin.watching import Directory, Seen

log = logging.getLogger(__name__)

API_VERSION = "v1beta1"
_REGISTRATION = service_of(pb, "Registration")
_CALL_WITHIN = 30.0
"""Seconds: the kubelet dials back, for at most 10, before it answers."""


class State(enum.StrEnum):
    """How far the kubelet has come with a resource."""

    WAITING = "waiting"
    REFUSED = "refused"
    REGISTERED = "registered"
    """The kubelet said yes; it has yet to ask for the list."""
    LISTED = "listed"


class Registration:
    """Serves a resource and keeps it registered, from ``run`` until that is cancelled.

    ``silence`` is how many seconds the kubelet may be away before that is said, ``listens_within``
    how long it may be without a stream of ours before it is registered again.
    """

    def __init__(
        self,
        agent: Agent,
        service: ResourceService,
        directory: Directory,
        *,
        changed: Callable[[], None] = lambda: None,
        silence: float = 30.0,
        listens_within: float = 2.0,
    ) -> None:
        self._agent, self._service, self._directory = agent, service, directory
        self._changed, self._silence, self._listens_within = changed, silence, listens_within
        self._name = service.name
        self._source = f"frontend/deviceplugin registration of {self._name}"
        self.path = socket_path(directory.path, self._name, agent.instance)
        self.state = State.WAITING
        self._news = anyio.Event()
        self._backoff = Backoff(first=0.5, most=30.0)
        self._tried: Seen | None = None
        """The kubelet that was last told of us."""
        self._since = 0.0
        self._next = 0.0
        """When to try again."""

    def wake(self) -> None:
        """Look again: something has changed."""
        self._news.set()

    # -- telling ----------------------------------------------------------------------------------

    def _enter(self, state: State) -> None:
        before, self.state = self.state, state
        if before is state:
            return
        self._since = anyio.current_time()
        self._changed()
        if State.LISTED in (before, state):
            self._report(listed=state is State.LISTED)

    def _report(self, *, listed: bool) -> None:
        word = "is" if listed else "is no longer"
        self._agent.report(
            Event(
                name="resource-registered" if listed else "resource-unregistered",
                message=f"resource {self._name} {word} registered with the kubelet",
                facts={"resource": self._name},
                warning=not listed,
            )
        )

    def _fault(self, message: str) -> None:
        self._agent.on_fault(self._source, message)

    # -- running ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve for ever; the socket is gone when this is cancelled."""
        self._since = anyio.current_time()
        try:
            while True:
                await self._serve_once()
        finally:
            self._agent.clear_fault(self._source)

    async def _serve_once(self) -> None:
        """Serve under one socket until that is lost.

        Streams end before the next socket is registered. An end that comes later would cost that
        one: kubelets take it for the end of whatever has the same resource, or the same path
        (kubernetes/kubernetes#121994).
        """
        server = SocketServer(self.path, self._service.handlers(), grace=0.5)
        self._directory.guard(server, self.wake)
        self._tried = None
        try:
            await server.start()
            self._directory.guard(server, self.wake)
            await self._tend(server)
        except (SocketError, OSError) as error:
            self._fault(str(error))
            self._enter(State.WAITING)
            await self._pause()
        finally:
            self._directory.forget(server)
            self._service.hang_up()
            await server.close()

    async def _tend(self, server: SocketServer) -> None:
        """Look after the registration until the socket is lost."""
        while server.is_ours():
            self._news = anyio.Event()
            self._directory.look()
            self._judge()
            if self._is_due():
                await self._register(server)
                continue
            with anyio.move_on_after(self._until_due()):
                await self._news.wait()
        log.info("the socket was removed resource=%s path=%s", self._name, self.path)

    def _judge(self) -> None:
        """See what has become of the registration."""
        kubelet = self._directory.kubelet
        if kubelet is None or kubelet != self._tried:
            self._enter(State.WAITING)
        elif self._service.streams and self.state in (State.REGISTERED, State.LISTED):
            self._listed()
        elif self.state is State.LISTED:
            self._enter(State.REGISTERED)  # its stream has ended: it may come back by itself
            self._next = anyio.current_time() + self._listens_within
        if kubelet is None and anyio.current_time() - self._since >= self._silence:
            self._fault(
                f"there is no kubelet at {self._directory.kubelet_socket}: is the directory "
                "mounted at the same path, and the kubelet up?"
            )
            self._since = anyio.current_time()

    def _listed(self) -> None:
        if self.state is not State.LISTED:
            self._backoff.reset()
            self._agent.clear_fault(self._source)
            log.info("registered resource=%s socket=%s", self._name, self.path)
        self._enter(State.LISTED)

    def _is_due(self) -> bool:
        kubelet = self._directory.kubelet
        if kubelet is None or self.state is State.LISTED:
            return False
        return kubelet != self._tried or anyio.current_time() >= self._next

    def _until_due(self) -> float | None:
        now = anyio.current_time()
        if self._directory.kubelet is None:
            return max(self._since + self._silence - now, 0.01)
        return None if self.state is State.LISTED else max(self._next - now, 0.01)

    # -- registering ------------------------------------------------------------------------------

    async def _register(self, server: SocketServer) -> None:
        """Tell the kubelet of this resource; it dials back at once.

        Given up as soon as that kubelet, or our own socket, is gone.
        """
        if self._tried != self._directory.kubelet:
            self._tried = self._directory.kubelet
            self._backoff.reset()
        elif self.state is State.REGISTERED and self._backoff.failures:
            self._fault(f"the kubelet does not listen to {self._name}; it is registered again")
        try:
            with anyio.fail_after(_CALL_WITHIN):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._give_up, server, tasks)
                    await self._call()
                    tasks.cancel_scope.cancel()
        except* (CallFailed, SocketError, TimeoutError) as errors:
            self._failed(_first(errors.exceptions))

    async def _call(self) -> None:
        request = pb.RegisterRequest(
            version=API_VERSION,
            endpoint=self.path.name,
            resource_name=self._name,
            options=OPTIONS,
        )
        async with Client(self._directory.kubelet_socket) as client:
            await client.call(_REGISTRATION, "Register", request)
        self._next = anyio.current_time() + max(self._listens_within, self._backoff.next())
        self._enter(State.REGISTERED)

    async def _give_up(self, server: SocketServer, tasks: TaskGroup) -> None:
        while server.is_ours() and self._directory.kubelet == self._tried:
            self._news = anyio.Event()
            await self._news.wait()
        tasks.cancel_scope.cancel()

    def _failed(self, error: Exception) -> None:
        refused = isinstance(error, CallFailed) and error.code not in ("UNAVAILABLE", "CANCELLED")
        said = error.details if isinstance(error, CallFailed) and refused else str(error)
        what = "refused" if refused else "did not take"
        self._fault(f"the kubelet {what} {self._name}: {said or type(error).__name__}")
        self._enter(State.REFUSED if refused else State.WAITING)
        self._next = anyio.current_time() + self._backoff.next()

    async def _pause(self) -> None:
        """Wait before a socket is tried again, shortened by whatever changes in the directory."""
        with anyio.move_on_after(self._backoff.next()):
            self._news = anyio.Event()
            await self._news.wait()


def _first(errors: Iterable[BaseException]) -> Exception:
    """Return the first plain error of a group's."""
    for error in errors:
        if isinstance(error, ExceptionGroup):
            return _first(error.exceptions)
        if isinstance(error, Exception):
            return error
    raise AssertionError("a group of nothing")
