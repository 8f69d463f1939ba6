"""A kubelet for tests: finds DRA drivers, registers them, and prepares claims as the real one does.

It refuses what the real one refuses, at the deadlines of the real one, on real sockets below a root
directory of the test's. What a test does not reach over a socket it gets through two callables:
``get_claim`` reads a ResourceClaim from an API server, ``wipe`` deletes ResourceSlices there.

    async with FakeKubelet(root, get_claim=api.claim, wipe=api.wipe) as kubelet:
        await kubelet.until_registered("hardpoint.dev")
        prepared = await kubelet.prepare(pod)
        seen = kubelet.inject(pod)
        await kubelet.restart()
        await kubelet.unprepare(pod)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.abc

from hardpoint.testing._kubelet_claims import Claims, GetClaim, Pod, PodFailed, Prepared
from hardpoint.testing._kubelet_drivers import DriverInstance, Drivers, Wipe
from hardpoint.testing._kubelet_health import HealthCache, Report
from hardpoint.testing._kubelet_watcher import Attempt, Watcher
from hardpoint.testing.cdi import CdiRegistry, Injected
from hardpoint.testing.clock import Clock, RealClock

__all__ = ["Attempt", "Behaviour", "FakeKubelet", "Pod", "PodFailed", "Prepared", "Report"]

_SERVICES = {
    "1.33": ("v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"),
    "1.34": ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"),
    "1.37": (
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ),
}


def _minor(version: str) -> int:
    return int(version.partition(".")[2])


@dataclass(kw_only=True)
class Behaviour:
    """How this kubelet differs from another; the times are the real one's, in seconds."""

    version: str = "1.37"
    """``1.33`` to ``1.37``: which services it knows, and whether it retries a registration."""
    asks_info: bool = True
    """False: sockets are not asked, as by a kubelet that watches another directory."""
    clock: Clock = field(default_factory=RealClock)
    """For the rules that wait: back-off, slice wipe, stale health. Deadlines of calls are real."""
    get_info_timeout: float = 1.0
    notify_timeout: float = 5.0
    call_timeout: float = 45.0
    wipe_after: float = 30.0
    poll: float = 0.01
    """How often the directory is looked at, where the real one uses inotify."""
    changed: Callable[[], None] = lambda: None
    """Called when anything that a test may wait for has changed."""

    @property
    def services(self) -> tuple[str, ...]:
        """The services that this version knows."""
        minor = _minor(self.version)
        known = max(version for version in _SERVICES if _minor(version) <= minor)
        return _SERVICES[known]

    @property
    def retries_registration(self) -> bool:
        """Since 1.36 a registration that failed is tried again without a new socket."""
        return _minor(self.version) >= 36

    @property
    def knows_share_ids(self) -> bool:
        """Since 1.35."""
        return _minor(self.version) >= 35


async def _no_claims(namespace: str, name: str) -> None:
    return None


async def _no_slices(driver: str | None) -> None:
    return None


class FakeKubelet:
    """One node's kubelet; running inside ``async with``."""

    def __init__(
        self,
        root: Path,
        *,
        get_claim: GetClaim = _no_claims,
        wipe: Wipe = _no_slices,
        cdi: Iterable[Path] = (),
        behaviour: Behaviour | None = None,
    ) -> None:
        self.root = root
        self.behaviour = behaviour or Behaviour()
        self.behaviour.changed = self._wake
        self.runtime = CdiRegistry(*cdi)
        """The container runtime beside this kubelet."""
        self.health_reports = HealthCache(self.behaviour)
        self._drivers = Drivers(self.behaviour, self._wake, self.health_reports.watch, wipe)
        self._claims = Claims(self.behaviour, self._drivers, get_claim)
        self._watcher = Watcher(root, self.behaviour, self._drivers)
        self._woken = anyio.Event()
        self._outer: anyio.abc.TaskGroup | None = None
        self._running: anyio.CancelScope | None = None
        self._stopped = anyio.Event()

    # -- running ----------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._outer = await anyio.create_task_group().__aenter__()
        await self.start()
        return self

    async def __aexit__(self, *exception: Any) -> bool | None:
        assert self._outer is not None
        with anyio.CancelScope(shield=True):
            await self.stop()
        return await self._outer.__aexit__(*exception)

    async def start(self) -> None:
        """Start, as after a crash or an update: slices are wiped and every socket is asked anew."""
        assert self._outer is not None, "use it in 'async with'"
        await self._outer.start(self._run)

    async def stop(self) -> None:
        """Stop: connections end, nothing is registered; what was prepared is remembered."""
        if self._running is not None:
            self._running.cancel()
            await self._stopped.wait()

    async def restart(self, *, forget: bool = False) -> None:
        """Stop and start; with ``forget`` the checkpoint of prepared claims is lost too."""
        await self.stop()
        if forget:
            self._claims.forget()
        await self.start()

    async def _run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        self._stopped = anyio.Event()
        try:
            async with anyio.create_task_group() as tasks:
                self._running = tasks.cancel_scope
                self._watcher.reset()
                self._drivers.start(tasks)
                task_status.started()
                await self._watcher.run()
        finally:
            self._running = None
            self._drivers.instances.clear()
            self._stopped.set()
            self._wake()

    # -- waiting ----------------------------------------------------------------------------------

    def _wake(self) -> None:
        woken, self._woken = self._woken, anyio.Event()
        woken.set()

    async def until(self, condition: Callable[[], bool], within: float = 10.0) -> None:
        """Wait until something is true, looked at after each change. Raises ``TimeoutError``."""
        with anyio.fail_after(within):
            while not condition():
                await self._woken.wait()

    async def until_registered(self, driver: str, instances: int = 1) -> None:
        """Wait until a driver has that many registered and connected instances."""
        await self.until(lambda: sum(one.connected for one in self.instances(driver)) == instances)

    async def until_gone(self, driver: str) -> None:
        """Wait until a driver has no registered instance."""
        await self.until(lambda: not self.instances(driver))

    # -- looking ----------------------------------------------------------------------------------

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Every try to register a socket, in order."""
        return tuple(self._watcher.attempts)

    @property
    def sockets(self) -> tuple[Path, ...]:
        """The sockets that are in ``plugins_registry``, asked or not."""
        return self._watcher.sockets

    def instances(self, driver: str) -> tuple[DriverInstance, ...]:
        """Return a driver's registered instances, oldest first."""
        return tuple(one for one in self._drivers.instances if one.driver == driver)

    def health(self, driver: str, pool: str, device: str) -> Report:
        """Return what a pod's status would show of a device."""
        return self.health_reports.get(driver, pool, device)

    # -- pods -------------------------------------------------------------------------------------

    async def prepare(self, pod: Pod) -> tuple[Prepared, ...]:
        """Prepare a pod's claims and return their devices. Raises ``PodFailed``."""
        return await self._claims.prepare(pod)

    async def unprepare(self, pod: Pod) -> None:
        """End a pod: unprepare what it used last. Raises ``PodFailed``; call it again then."""
        await self._claims.unprepare(pod)

    def inject(self, pod: Pod, request: str | None = None) -> Injected:
        """Create a container that uses a request of the pod's claims, or all of them.

        Raises ``hardpoint.testing.cdi.CdiError`` where the runtime would not create it.
        """
        chosen = [device for device in self._claims.prepared(pod) if device.is_for(request)]
        names = dict.fromkeys(name for device in chosen for name in device.cdi_ids)
        return self.runtime.inject(tuple(names))

    async def call(self, driver: str, method: str, claims: list[dict[str, str]]) -> Any:
        """Call a driver's node service as it is, without the cache. Raises ``CallFailed``."""
        instance = self._drivers.get(driver)
        if instance is None:
            raise PodFailed(f"DRA driver {driver} is not registered")
        return await instance.call(method, claims, self.behaviour.call_timeout)
