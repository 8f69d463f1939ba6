"""A kubelet for tests: DRA drivers and device plugins register with it as with the real one.

It refuses what the real one refuses, at the deadlines of the real one, on real sockets below a root
directory of the test's. What a test does not reach over a socket it gets through two callables:
``get_claim`` reads a ResourceClaim from an API server, ``wipe`` deletes ResourceSlices there.

    async with FakeKubelet(root, get_claim=api.claim, wipe=api.wipe) as kubelet:
        await kubelet.until_registered("hardpoint.dev")
        prepared = await kubelet.prepare(pod)
        seen = kubelet.inject(pod)
        await kubelet.restart()
        await kubelet.unprepare(pod)

With ``device_plugins``, the directory where they register, it serves that too, and pod-resources:

    async with FakeKubelet(root, device_plugins=plugins, cdi=[cdi]) as kubelet:
        await kubelet.until_allocatable("hardpoint.dev/gpu", 2)
        main = Container(name="main", resources={"hardpoint.dev/gpu": 1})
        pod = Pod(name="train", containers=(main,))
        await kubelet.admit(pod)
        seen = await kubelet.run(pod)
        await kubelet.restart()
        kubelet.end(pod)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.abc

from hardpoint.testing._kubelet_claims import (
    Claims,
    Container,
    GetClaim,
    Pod,
    PodFailed,
    Prepared,
)
from hardpoint.testing._kubelet_devices import Allocated, Devices
from hardpoint.testing._kubelet_drivers import DriverInstance, Drivers, Wipe
from hardpoint.testing._kubelet_health import HealthCache, Report
from hardpoint.testing._kubelet_plugins import DevicePlugins, ListedDevice, Registration
from hardpoint.testing._kubelet_pods import AllocatableChange, Change, Pods
from hardpoint.testing._kubelet_watcher import Attempt, Watcher
from hardpoint.testing.cdi import CdiRegistry, Injected
from hardpoint.testing.clock import Clock, RealClock

__all__ = [
    "Allocated",
    "Attempt",
    "Behaviour",
    "Container",
    "FakeKubelet",
    "ListedDevice",
    "Pod",
    "PodFailed",
    "Prepared",
    "Registration",
    "Report",
]

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
    """For the rules that wait: back-off, slice wipe, stale health, a lost plugin's grace period.
    Deadlines of calls are real."""
    get_info_timeout: float = 1.0
    notify_timeout: float = 5.0
    call_timeout: float = 45.0
    wipe_after: float = 30.0
    dial_timeout: float = 10.0
    """How long a device plugin that registers may take to be dialled back."""
    allocate_timeout: float = 30.0
    """The real one waits for ``Allocate`` for ever, which a test must not."""
    plugin_grace: float = 300.0
    """How long a resource is there after its device plugin was lost."""
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
    def tells_plugins_apart(self) -> bool:
        """Since 1.36 several instances of a device plugin may overlap."""
        return _minor(self.version) >= 36

    @property
    def serves_get(self) -> bool:
        """Since 1.36 pod-resources answers for single pods."""
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
        device_plugins: Path | None = None,
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
        self._serves_plugins = device_plugins is not None
        self.plugins = DevicePlugins(device_plugins or root / "device-plugins", self.behaviour)
        """Its device plugins: every registration, and complaints about what they list."""
        self.devices = Devices(self.behaviour, self.plugins, self.runtime)
        """Which container has which ids, and every call for them."""
        self.pods = Pods(root, self.behaviour, self.devices, self._claims)
        """Pods that are not over, and what pod-resources says of them."""
        self._woken = anyio.Event()
        self._outer: anyio.abc.TaskGroup | None = None
        self._running: anyio.CancelScope | None = None
        self._leaves_socket = False
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

    async def stop(self, *, killed: bool = False) -> None:
        """Stop: connections end, nothing is registered; what was prepared is remembered.

        One that is ``killed`` leaves the socket that device plugins register at, without a server.
        """
        if self._running is not None:
            self._leaves_socket = killed
            self._running.cancel()
            await self._stopped.wait()

    async def restart(self, *, forget: bool = False, api: bool = True) -> None:
        """Stop and start; with ``forget`` the checkpoints are lost too.

        The directory of device plugins is emptied of every socket. Without ``api`` the API server
        is away, and no pod is known until ``hear``.
        """
        await self.stop()
        if forget:
            self._claims.forget()
            self.devices.forget()
        self.pods.known = api
        await self.start()

    def hear(self) -> None:
        """Hear of the pods from the API server, which was away when the kubelet started."""
        self.pods.known = True

    async def _run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        self._stopped = anyio.Event()
        try:
            async with anyio.create_task_group() as tasks:
                self._running = tasks.cancel_scope
                self._watcher.reset()
                self._drivers.start(tasks)
                if self._serves_plugins:
                    await self.plugins.start(tasks, self.devices.load())
                    await self.pods.start()
                task_status.started()
                await self._watcher.run()
        finally:
            self._running = None
            with anyio.CancelScope(shield=True):
                await self.plugins.stop(leave_socket=self._leaves_socket)
                await self.pods.stop()
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

    async def until_allocatable(self, resource: str, count: int) -> None:
        """Wait until so many of a resource may be given out."""
        await self.until(lambda: self.allocatable(resource) == count)

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
        self.pods.active[pod.identity] = pod
        return await self._claims.prepare(pod)

    async def unprepare(self, pod: Pod) -> None:
        """End a pod: unprepare what it used last. Raises ``PodFailed``; call it again then."""
        await self._claims.unprepare(pod)
        self.pods.active.pop(pod.identity, None)

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

    # -- device plugins ---------------------------------------------------------------------------

    def capacity(self, resource: str) -> int | None:
        """Return how many of a resource the node's status says there are; None for no such one."""
        self.plugins.expire()
        found = self.plugins.resources.get(resource)
        return None if found is None else len(found.devices)

    def allocatable(self, resource: str) -> int | None:
        """Return how many of a resource the node's status says may be used."""
        self.plugins.expire()
        found = self.plugins.resources.get(resource)
        return None if found is None else len(found.healthy)

    def listed(self, resource: str) -> dict[str, ListedDevice]:
        """Return what a resource's plugin listed last, by id."""
        found = self.plugins.resources.get(resource)
        return dict(found.devices) if found else {}

    async def admit(
        self, pod: Pod, *, numa: Collection[int] | None = None
    ) -> tuple[Allocated, ...]:
        """Admit a pod: allocate what its containers ask of device plugins.

        A pod that was admitted before keeps what it has, and is checked as after a reboot of the
        node. Raises ``PodFailed``, and the pod is over then. ``numa`` are the nodes that the
        topology manager has chosen.
        """
        self.pods.active[pod.identity] = pod
        try:
            await self.devices.admit(pod, self.pods.uids(), numa)
        except BaseException:
            self.pods.active.pop(pod.identity, None)
            raise
        return tuple(one for c in pod.containers for one in self.devices.of(pod, c.name))

    async def run(self, pod: Pod, container: str = "") -> Injected:
        """Start a container, or start it again; the pod's last, where none is named."""
        return await self.devices.start(pod, container or pod.containers[-1].name)

    def end(self, pod: Pod) -> None:
        """End a pod: no plugin is told, and its ids are free at the next admission."""
        self.pods.active.pop(pod.identity, None)

    def answer_pods(self, change: Change | None) -> None:
        """Let a test change what pod-resources lists, hold it back, or fail it with ``Status``."""
        self.pods.change = change

    def answer_allocatable(self, change: AllocatableChange | None) -> None:
        """The same for what pod-resources says may be given out."""
        self.pods.change_allocatable = change
