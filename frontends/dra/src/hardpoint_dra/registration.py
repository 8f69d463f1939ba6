"""One driver's sockets, and its registration with the kubelet, kept up whatever happens to them.

The service is up before the registrar, since the kubelet dials at once. What goes wrong is said in
the words of who can mend it, and meanwhile tried again with a socket made anew: a kubelet before
1.36 gives up on a socket after one failure, and one that was restarted at the wrong moment may have
missed it (kubernetes-sigs/dranet issue 19).
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from typing import Any

import anyio

from hardpoint.agent import Agent
from hardpoint.errors import SocketError
from hardpoint.kube import Backoff
from hardpoint.kubelet import pluginregistration_v1_pb2 as pb
from hardpoint.kubelet.server import SocketServer
from hardpoint.kubelet.services import serve, service_of
from hardpoint.model import Event
from hardpoint_dra.names import Directories

log = logging.getLogger(__name__)

NODE_VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
HEALTH_VERSIONS = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Services, newest first: the kubelet takes the first of each list that it knows."""

_LONGEST_WAIT = 300.0


class State(enum.StrEnum):
    """How far the kubelet has come with our registrar's socket."""

    WAITING = "waiting"
    ASKED = "asked"
    REFUSED = "refused"
    REGISTERED = "registered"


class Registration:
    """Serves a driver's service and registrar, from ``run`` until that is cancelled.

    ``silence`` is how many seconds the kubelet may take before a registration counts as stuck;
    ``tick`` how often the sockets' files are looked at.
    """

    def __init__(
        self,
        agent: Agent,
        driver: str,
        handlers: Sequence[Any],
        *,
        versions: Sequence[str] = NODE_VERSIONS + HEALTH_VERSIONS,
        registered: Callable[[], None] = lambda: None,
        silence: float = 30.0,
        tick: float = 1.0,
    ) -> None:
        self._agent, self._driver = agent, driver
        self._silence, self._tick = silence, tick
        self._versions, self._registered = tuple(versions), registered
        self._directories = Directories(agent.paths.kubelet, driver)
        self._source = f"frontend/dra registration of {driver}"
        self.state = State.WAITING
        self._refusal = ""
        self._since = 0.0
        self._wait = silence
        self._news = anyio.Event()
        self._service = SocketServer(self._directories.service(agent.instance), handlers)
        self._registrar = SocketServer(
            self._directories.registrar(agent.instance),
            [
                serve(
                    service_of(pb, "Registration"),
                    {"GetInfo": self._get_info, "NotifyRegistrationStatus": self._notify},
                )
            ],
        )

    # -- what the kubelet calls; answered from memory, never waiting for anything -----------------

    async def _get_info(self, request: pb.InfoRequest) -> pb.PluginInfo:
        if self.state is State.WAITING:
            self._enter(State.ASKED)
        return pb.PluginInfo(
            type="DRAPlugin",
            name=self._driver,
            endpoint=str(self._service.path),
            supported_versions=self._versions,
        )

    async def _notify(self, status: pb.RegistrationStatus) -> pb.RegistrationStatusResponse:
        if status.plugin_registered:
            self._enter(State.REGISTERED)
            self._wait = self._silence
            self._agent.clear_fault(self._source)
            self._registered()
            log.info("registered driver=%s endpoint=%s", self._driver, self._service.path)
        else:
            self._refusal = status.error
            self._enter(State.REFUSED)
            self._fault(f"the kubelet refused to register {self._driver}: {status.error}")
        return pb.RegistrationStatusResponse()

    def _enter(self, state: State) -> None:
        before, self.state = self.state, state
        self._since = anyio.current_time()
        news, self._news = self._news, anyio.Event()
        news.set()
        self._note()
        if before is not state and State.REGISTERED in (before, state):
            self._report()

    # -- telling ----------------------------------------------------------------------------------

    def _note(self) -> None:
        self._agent.note(
            self._source,
            {
                "state": str(self.state),
                "refusal": self._refusal if self.state is State.REFUSED else "",
                "endpoint": str(self._service.path),
                "socket": str(self._registrar.path),
            },
        )

    def _report(self) -> None:
        registered = self.state is State.REGISTERED
        name = "driver-registered" if registered else "driver-unregistered"
        word = "is" if registered else "is no longer"
        message = f"DRA driver {self._driver} {word} registered with the kubelet"
        facts = {"driver": self._driver}
        self._agent.report(Event(name=name, message=message, facts=facts, warning=not registered))

    def _fault(self, message: str) -> None:
        self._agent.on_fault(self._source, message)

    # -- running ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve for ever; both sockets are gone when this is cancelled."""
        backoff = Backoff(first=self._tick, most=30.0)
        while True:
            try:
                await self._start()
                backoff.reset()
                await self._tend()
            except (SocketError, OSError) as error:
                self._fault(str(error))
            finally:
                await self._registrar.close()
                await self._service.close()
            await anyio.sleep(backoff.next())

    async def _start(self) -> None:
        self._prepare_directories()
        for path in self._directories.remove_stale(self._agent.instance):
            log.info("removed a killed instance's socket path=%s", path)
        await self._service.start()
        await self._registrar.start()
        self._enter(State.WAITING)

    def _prepare_directories(self) -> None:
        registry = self._directories.registry
        if not registry.is_dir():
            raise SocketError(
                f"there is no {registry}: is {self._directories.root} the kubelet's root-dir, "
                "and mounted at the same path?"
            )
        self._directories.plugin.mkdir(mode=0o750, parents=True, exist_ok=True)

    async def _tend(self) -> None:
        """Look after the registration until the service's own socket is lost."""
        alone = self._agent.writing()
        while self._service.is_ours():
            news = self._news
            if not self._registrar.is_ours():
                await self._renew("its socket was removed")
            elif self.state is not State.REGISTERED and self._overdue() <= 0:
                self._say_overdue()
                self._wait = min(self._wait * 2, _LONGEST_WAIT)
                await self._renew(f"the kubelet left it {self.state}")
            elif not alone and self._agent.writing():
                alone = True  # the kubelet may still think of the other one: say it anew
                await self._renew("the other agent of this node is gone")
            with anyio.move_on_after(self._pause()):
                await news.wait()
        log.warning("the service's socket was removed driver=%s", self._driver)

    def _overdue(self) -> float:
        return self._since + self._wait - anyio.current_time()

    def _pause(self) -> float:
        if self.state is State.REGISTERED:
            return self._tick
        return min(self._tick, max(self._overdue(), 0.0))

    def _say_overdue(self) -> None:
        waited = f"{anyio.current_time() - self._since:.0f} s"
        if self.state is State.WAITING:
            self._fault(
                f"kubelet has not called GetInfo on {self._registrar.path} for {waited}; "
                f"is its root-dir {self._directories.root}?"
            )
        elif self.state is State.ASKED:
            self._fault(
                f"kubelet called GetInfo on {self._registrar.path} {waited} ago and has not said "
                f"whether {self._driver} is registered"
            )

    async def _renew(self, why: str) -> None:
        """Make the registrar's socket anew, so that the kubelet sees a new plugin."""
        log.info("registering again driver=%s because=%s", self._driver, why)
        await self._registrar.close()
        self._enter(State.WAITING)
        await self._registrar.start()
