"""The figures of ``cluster.bench`` that the test kit's fake servers can give, beside the real."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from cluster import bench
from cluster.agent import AgentProcess
from cluster.bench_rows import Report, memory, now
from cluster.machine import kernel_event, lay_nodes, trees

from hardpoint.testing.api_server import FakeApiServer
from hardpoint.testing.kubelet import FakeKubelet, Pod

NODE = "n0"


async def measure(state: Path, report: Report) -> None:
    """Run the agent's process between a fake API server and a fake kubelet."""

    async def get_claim(namespace: str, name: str) -> dict[str, Any] | None:
        found = (one for one in server.items("resourceclaims") if one["metadata"]["name"] == name)
        return next(found, None)

    async def wipe(driver: str | None) -> None:
        server.wipe(NODE, driver or "")

    async with FakeApiServer() as server:
        server.add_node(NODE)
        kubelet = FakeKubelet(
            state / "kubelet", get_claim=get_claim, wipe=wipe, cdi=[state / "cdi"]
        )
        async with kubelet:
            await _Fakes(state, report, server, kubelet).measure()


class _Fakes:
    def __init__(
        self, state: Path, report: Report, server: FakeApiServer, kubelet: FakeKubelet
    ) -> None:
        self.report, self.server, self.kubelet = report, server, kubelet
        self.machine = bench.machine(state / "machine")
        paths = {"STATE": "state", "CDI": "cdi", "KUBELET": "kubelet"}
        settings = {f"HARDPOINT_PATHS__{key}": str(state / name) for key, name in paths.items()}
        named = {"HARDPOINT_NODE_NAME": NODE, "HARDPOINT_DOMAIN": bench.DOMAIN}
        url = {"HARDPOINT_KUBE__URL": server.url}
        environment = trees(self.machine.root) | settings | named | url
        self.agent = AgentProcess(state / "agent.log", environment, ())

    async def measure(self) -> None:
        try:
            await self._starts()
            await self._events()
            rss, pss = memory(self.agent.pid)
            self.report.add("agent, RSS idle", rss, "MiB", 64)
            self.report.add("agent, PSS idle", pss, "MiB")
            await self._claims("8 pods one after another", 8, at_once=False)
            await self._claims("30 pods at once", 30, at_once=True)
        finally:
            await anyio.to_thread.run_sync(self.agent.stop)

    def _published(self) -> int:
        slices = self.server.items("resourceslices")
        return sum(len(one["spec"].get("devices") or ()) for one in slices)

    async def _starts(self, times: int = 5) -> None:
        registered, visible = list[float](), list[float]()
        for _ in range(times):
            await anyio.to_thread.run_sync(self.agent.kill)
            await self.kubelet.until(lambda: not self._connected())
            self.server.wipe(NODE)
            began = now()
            self.agent.start()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_clock, registered, began, partial(self._until, self._connected))
                shown = partial(self.server.until, partial(self._shows, bench.ADAPTERS), 60)
                tasks.start_soon(_clock, visible, began, shown)
        self.report.spread("start to registered, interpreter's start included", registered)
        self.report.spread("start to slice visible, all of that", visible)

    async def _until(self, true: Callable[[], bool]) -> None:
        await self.kubelet.until(true, within=60)

    def _connected(self) -> bool:
        return any(one.connected for one in self.kubelet.instances(bench.DOMAIN))

    async def _events(self, times: int = 5) -> None:
        took: list[float] = []
        for number in range(bench.ADAPTERS, bench.ADAPTERS + times):
            await anyio.sleep(1.5)
            bench.plug(self.machine, number)
            lay_nodes(self.machine)
            began = now()
            kernel_event()
            shown = partial(self.server.until, partial(self._shows, number + 1), 60)
            await _clock(took, began, shown)
        self.report.spread("uevent to slice visible, 100 ms of settling included", took, bound=250)

    def _shows(self, adapters: int) -> bool:
        return self._published() == adapters + bench.OF_THE_GPU

    # -- claims -----------------------------------------------------------------------------------

    async def _claims(self, when: str, count: int, *, at_once: bool) -> None:
        slices = self.server.items("resourceslices")
        names = [d["name"] for one in slices for d in one["spec"]["devices"]]
        chosen = [name for name in names if name.startswith("usb-")][:count]
        waiting = [self._pod(f"{name}-{count}", name) for name in chosen]
        for what, call in (
            ("prepare", self.kubelet.prepare),
            ("unprepare", self.kubelet.unprepare),
        ):
            took: list[float] = []
            async with anyio.create_task_group() as tasks:
                for pod in waiting:
                    if at_once:
                        tasks.start_soon(_clock, took, now(), partial(call, pod))
                    else:
                        await _clock(took, now(), partial(call, pod))
            self.report.add(
                f"{what}, the kubelet's mean, {when}", statistics.mean(took) * 1000, "ms"
            )
            self.report.add(f"{what}, slowest, {when}", max(took) * 1000, "ms")

    def _pod(self, name: str, device: str) -> Pod:
        asked = [{"name": "r", "exactly": {"deviceClassName": "adapter"}}]
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": asked}},
        }
        self.server.add(body)
        pod = Pod(name=f"pod-of-{name}", claims=(name,))
        result = {"request": "r", "driver": bench.DOMAIN, "pool": NODE, "device": device}
        reserved = [{"resource": "pods", "name": pod.name, "uid": pod.identity}]
        self.server.allocate("default", name, [result], reserved_for=reserved)
        return pod


async def _clock(into: list[float], began: float, work: Callable[[], Awaitable[Any]]) -> None:
    await work()
    into.append(now() - began)
