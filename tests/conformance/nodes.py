"""The two kubelets, each with an API server and pods that are started until they run."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.abc
import anyio.to_thread
from conformance.plugin import Plugin

from hardpoint.testing._api_status import ApiProblem
from hardpoint.testing.api_server import FakeApiServer
from hardpoint.testing.cdi import CdiError
from hardpoint.testing.kubelet import Behaviour, FakeKubelet, Pod, PodFailed, Report

if TYPE_CHECKING:  # the official client is not needed for our kubelet
    from cluster.witness import Namespace
    from cluster.world import World

Json = dict[str, Any]
NODE = "n0"
_DEVICES = 4
_T = TypeVar("_T")


def slice_of(plugin: Plugin) -> Json:
    devices = [{"name": f"dev-{number}"} for number in range(_DEVICES)]
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": plugin.name},
        "spec": {"driver": plugin.name, "nodeName": NODE, "pool": pool, "devices": devices},
    }


def claim_of(name: str, plugins: tuple[Plugin, ...]) -> Json:
    asked = [
        {"name": f"r{index}", "exactly": {"deviceClassName": plugin.name}}
        for index, plugin in enumerate(plugins)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": asked}},
    }


class FakeNode:
    """Our kubelet beside our API server; what a scheduler and pod workers do is done here."""

    def __init__(self, root: Path, server: FakeApiServer, tasks: anyio.abc.TaskGroup) -> None:
        self.kubelet = FakeKubelet(
            root,
            get_claim=self._claim,
            wipe=self._wipe,
            cdi=[root / "cdi"],
            behaviour=Behaviour(wipe_after=1.0),
        )
        self._root, self._server, self._tasks = root, server, tasks
        self._fresh = itertools.count(1)
        self._pods: dict[str, Pod] = {}
        self._plugins: dict[str, tuple[Plugin, ...]] = {}
        self._said: dict[str, list[str]] = {}
        self._workers: dict[str, anyio.CancelScope] = {}
        self._running: set[str] = set()

    async def _claim(self, namespace: str, name: str) -> Json | None:
        with suppress(ApiProblem):
            return self._server.get("resourceclaims", name, namespace)
        return None

    async def _wipe(self, driver: str | None) -> None:
        self._server.wipe(NODE, driver or "")

    def name(self, word: str) -> str:
        return f"{word}-{next(self._fresh)}" if word else str(next(self._fresh))

    def plugin(self, name: str = "", *, tag: str = "") -> Plugin:
        return Plugin(self._root, name or f"{self.name('d')}.example.com", tag=tag)

    @asynccontextmanager
    async def offer(self, *plugins: Plugin) -> AsyncIterator[None]:
        for plugin in plugins:
            self._server.add(slice_of(plugin))
        yield

    async def has_slice(self, plugin: Plugin) -> bool:
        return self._has_slice(plugin)

    def _has_slice(self, plugin: Plugin) -> bool:
        found = self._server.items("resourceslices")
        return any(item["spec"]["driver"] == plugin.name for item in found)

    async def until_wiped(self, plugin: Plugin) -> None:
        await self._server.until(lambda: not self._has_slice(plugin))

    # -- pods -------------------------------------------------------------------------------------

    async def start(self, pod: str, *claims: str, of: tuple[Plugin, ...]) -> None:
        self._pods[pod] = started = Pod(name=pod, claims=claims)
        self._plugins[pod], self._said[pod] = of, []
        for name in claims:
            if await self._claim("default", name) is None:
                self._server.add(claim_of(name, of))
            found = self._server.get("resourceclaims", name, "default")["status"]
            results = [
                {"request": f"r{i}", "driver": plugin.name, "pool": NODE, "device": "dev-0"}
                for i, plugin in enumerate(of)
            ]
            user = {"resource": "pods", "name": pod, "uid": started.identity}
            users = [*found.get("reservedFor", ()), user]
            self._server.allocate("default", name, results, reserved_for=users)
        self._tasks.start_soon(self._run, pod)

    async def _run(self, pod: str) -> None:
        with anyio.CancelScope() as self._workers[pod]:
            while pod not in self._running:
                try:
                    await self.kubelet.prepare(self._pods[pod])
                    self.kubelet.inject(self._pods[pod])
                    self._running.add(pod)
                except (PodFailed, CdiError) as error:
                    self._said[pod].append(str(error))
                    await anyio.sleep(0.05)
                self.kubelet.behaviour.changed()

    async def uid(self, claim: str) -> str:
        return str(self._server.get("resourceclaims", claim, "default")["metadata"]["uid"])

    async def until_runs(self, pod: str) -> None:
        await self.kubelet.until(lambda: pod in self._running)

    async def until_says(self, pod: str, sentence: str) -> None:
        await self.kubelet.until(lambda: any(sentence in said for said in self._said[pod]))

    async def health(self, pod: str, word: str) -> str:
        (plugin,) = self._plugins[pod]
        await self.kubelet.until(lambda: self._report(plugin).health == word)
        return self._report(plugin).message

    def _report(self, plugin: Plugin) -> Report:
        return self.kubelet.health(plugin.name, NODE, "dev-0")

    async def end(self, pod: str) -> None:
        self._workers[pod].cancel()
        self._tasks.start_soon(self._end, pod)

    async def _end(self, pod: str) -> None:
        while pod in self._pods:
            try:
                await self.kubelet.unprepare(self._pods[pod])
                del self._pods[pod]
                self.kubelet.behaviour.changed()
            except PodFailed:
                await anyio.sleep(0.05)

    async def until_gone(self, pod: str) -> None:
        await self.kubelet.until(lambda: pod not in self._pods)

    async def is_there(self, pod: str) -> bool:
        return pod in self._pods

    async def restart(self) -> None:
        await self.kubelet.restart()


@asynccontextmanager
async def fake_node(root: Path) -> AsyncIterator[FakeNode]:
    (root / "cdi").mkdir()
    async with FakeApiServer() as server, anyio.create_task_group() as tasks:
        node = FakeNode(root, server, tasks)
        async with node.kubelet:
            yield node
        tasks.cancel_scope.cancel()


# -- the real one ---------------------------------------------------------------------------------


class RealNode:
    """A node of a cluster. Claims are allocated by its scheduler."""

    def __init__(self, world: World, namespace: Namespace) -> None:
        self._world, self._namespace, self._witness = world, namespace, world.witness
        self._root = world.cluster.paths()["kubelet"]
        self._made: set[str] = set()

    def name(self, word: str) -> str:
        number = next(self._world.fresh)
        return f"{word}-{number}" if word else number

    def plugin(self, name: str = "", *, tag: str = "") -> Plugin:
        return Plugin(self._root, name or f"{self.name('d')}.example.com", tag=tag)

    @asynccontextmanager
    async def offer(self, *plugins: Plugin) -> AsyncIterator[None]:
        for plugin in plugins:
            await _do(self._witness.create, slice_of(plugin))
            await _do(self._witness.create, _class_of(plugin))
        yield
        for plugin in plugins:
            await _do(self._witness.delete, "ResourceSlice", plugin.name)
            await _do(self._witness.delete, "DeviceClass", plugin.name)

    async def has_slice(self, plugin: Plugin) -> bool:
        return bool(await _do(self._witness.slices, plugin.name))

    async def until_wiped(self, plugin: Plugin) -> None:
        await _seen(f"no slice of {plugin.name}", lambda: not self._witness.slices(plugin.name))

    async def start(self, pod: str, *claims: str, of: tuple[Plugin, ...]) -> None:
        from cluster import pods

        for claim in claims:
            if claim not in self._made:
                self._made.add(claim)
                await _do(
                    self._namespace.create, claim_of(claim, of) | {"metadata": {"name": claim}}
                )
        await _do(self._namespace.create, pods.pod(pod, {claim: claim for claim in claims}))

    async def uid(self, claim: str) -> str:
        return str((await _do(self._namespace.claim, claim))["metadata"]["uid"])

    async def until_runs(self, pod: str) -> None:
        await _do(self._namespace.until_running, pod)

    async def until_says(self, pod: str, sentence: str) -> None:
        await _do(self._namespace.until_says, pod, sentence)

    async def health(self, pod: str, word: str) -> str:
        def look() -> Json:
            found = _health(self._namespace.pod(pod))
            return found if found.get("health") == word else {}

        return str((await _seen(f"{pod} {word}", look)).get("message", ""))

    async def end(self, pod: str) -> None:
        await _do(self._namespace.delete, "Pod", pod)

    async def until_gone(self, pod: str) -> None:
        await _do(self._namespace.until_gone, pod)

    async def is_there(self, pod: str) -> bool:
        return await _do(self._witness.get, "Pod", pod, self._namespace.name) is not None

    async def restart(self) -> None:
        await _do(self._world.cluster.restart, f"{NODE}-kubelet")


def _class_of(plugin: Plugin) -> Json:
    from cluster import pods

    return pods.device_class(plugin.name, f"device.driver == '{plugin.name}'")


def _health(pod: Json) -> Json:
    for status in pod.get("status", {}).get("containerStatuses") or ():
        for allocated in status.get("allocatedResourcesStatus") or ():
            for resource in allocated.get("resources") or ():
                return dict(resource)
    return {}


async def _do(act: Callable[..., _T], *words: Any) -> _T:
    """Do something of the harness, which blocks, in a thread."""
    return await anyio.to_thread.run_sync(act, *words)


async def _seen(what: str, look: Callable[[], _T]) -> _T:
    """Wait until what is looked at is there."""
    from cluster.waiting import until

    return await _do(until, what, look)
