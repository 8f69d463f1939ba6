"""The device plugin frontend with the real agent: allocation, preference, registration, lists, RSS.

The machine is the one of ``bench_agent``: 64 GPUs and 36 USB serial adapters. The kubelet is the
test kit's, and in this process; what it does counts too.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from bench.bench_agent import DEVICES, GPUS, NODE, World
from bench.rows import Row, Told, percentile

from hardpoint._core.agent import HardpointAgent
from hardpoint.kubelet import deviceplugin_v1beta1_pb2 as pb
from hardpoint.model import Device, Domain, Offered, Topology
from hardpoint.settings import AgentSettings
from hardpoint.testing.api_server import FakeApiServer
from hardpoint.testing.kubelet import Behaviour, FakeKubelet
from hardpoint_deviceplugin.preferred import Wanted, preferred
from hardpoint_deviceplugin.resources import Entry

GPU = "hardpoint.dev/drm.render"
USB = "hardpoint.dev/usb"
ROUNDS = 32


def _settings(world: World) -> AgentSettings:
    settings = world.settings("")
    paths = settings.paths.model_copy(update={"device_plugins": world.root / "plugins"})
    return settings.model_copy(update={"paths": paths, "frontends": ("deviceplugin",)})


@asynccontextmanager
async def running(world: World, kubelet: FakeKubelet) -> AsyncIterator[HardpointAgent]:
    """Run the agent here, until its block ends; begins once the kubelet has every device."""
    node = world.machine.node()
    node.name = NODE
    agent = HardpointAgent(_settings(world), node, events=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.run)
        await kubelet.until_allocatable(GPU, GPUS)
        await kubelet.until_allocatable(USB, DEVICES - GPUS)
        yield agent
        tasks.cancel_scope.cancel()


async def calls(kubelet: FakeKubelet) -> AsyncIterator[Row]:
    """Measure Allocate and GetPreferredAllocation over the socket."""
    ids = sorted(kubelet.listed(GPU))
    plugin = kubelet.plugins.newest(GPU)
    assert plugin is not None
    took = []
    for id_ in ids[:ROUNDS]:
        request = pb.AllocateRequest(
            container_requests=[pb.ContainerAllocateRequest(devices_ids=[id_])]
        )
        took.append(await _timed(plugin.call("Allocate", request, 10)))
    yield Row("Allocate over the socket, p50", percentile(took, 50), "ms")
    yield Row(f"Allocate over the socket, p99 of {ROUNDS}", percentile(took, 99), "ms")
    again = [await _timed(plugin.call("Allocate", request, 10)) for _ in range(ROUNDS)]
    yield Row("Allocate of a held id, p50", percentile(again, 50), "ms")
    asked = pb.PreferredAllocationRequest(
        container_requests=[
            pb.ContainerPreferredAllocationRequest(available_deviceIDs=ids[:16], allocation_size=8)
        ]
    )
    took = [await _timed(plugin.call("GetPreferredAllocation", asked, 10)) for _ in range(ROUNDS)]
    yield Row("preferred, 8 of 16 over the socket, p50", percentile(took, 50), "ms")
    yield Row("preferred, 8 of 16 over the socket, p99", percentile(took, 99), "ms", 5)


def choices() -> list[Row]:
    """Measure the choice alone."""
    rows = []
    for devices, replicas in ((16, 1), (64, 1), (16, 100)):
        known = {
            one.id: one
            for one in (_entry(n, share) for n in range(devices) for share in range(replicas))
        }
        took = []
        for _ in range(50):
            began = time.perf_counter()
            preferred(Wanted.of(known, known, (), 8))
            took.append(_ms(began))
        what = f"choose 8 of {devices} devices" + (f" x {replicas} replicas" * (replicas > 1))
        bound = 5.0 if (devices, replicas) == (16, 1) else None
        rows.append(Row(f"{what}, p50", percentile(took, 50), "ms", bound))
    return rows


def _entry(number: int, share: int) -> Entry:
    device = Device(name=f"gpu-{number}", kind="gpu", topology=Topology(number % 4))
    offered = Offered(device=device, domain=Domain.named("hardpoint.dev"))
    return Entry(id=f"gpu-{number}::{share}", offered=offered)


async def restarts(kubelet: FakeKubelet) -> AsyncIterator[Row]:
    """Measure from the kubelet's socket to the first list, and to all of them."""
    first, every = [], []
    for _ in range(10):
        await kubelet.stop()
        await anyio.sleep(0.3)
        await kubelet.start()
        began = time.perf_counter()
        await kubelet.until(lambda: any(kubelet.allocatable(name) for name in (GPU, USB)))
        first.append(_ms(began))
        await kubelet.until_allocatable(GPU, GPUS)
        await kubelet.until_allocatable(USB, DEVICES - GPUS)
        every.append(_ms(began))
    yield Row("kubelet's socket back to first list, p50 of 10", percentile(first, 50), "ms")
    yield Row("kubelet's socket back to every list, worst of 10", max(every), "ms", 1000)


async def events(world: World, agent: HardpointAgent, kubelet: FakeKubelet) -> AsyncIterator[Row]:
    """Measure from a hint that something was plugged in to the list that has it."""
    took = []
    for number in range(DEVICES - GPUS, DEVICES - GPUS + 10):
        world.plug(number)
        began = time.perf_counter()
        agent._scanner.wake.set()
        await kubelet.until_allocatable(USB, number + 1)
        took.append(_ms(began))
    yield Row("event to list, settle included, p50 of 10", percentile(took, 50), "ms", 250)
    yield Row("event to list, settle included, worst", max(took), "ms")


async def memory(world: World, kubelet: FakeKubelet, server: FakeApiServer) -> AsyncIterator[Row]:
    """Look at agents from outside: with this frontend, with the other, and with both."""
    shared = (
        '{"dra": {"only": [{"kind": "drm.*"}]}, "deviceplugin": {"without": [{"kind": "drm.*"}]}}'
    )
    for name, frontends in (
        ("deviceplugin", "deviceplugin"),
        ("dra", "dra"),
        ("both frontends", "dra,deviceplugin"),
    ):
        more = {
            "HARDPOINT_FRONTENDS": frontends,
            "HARDPOINT_PATHS__DEVICE_PLUGINS": str(world.root / "plugins"),
        }
        if "," in frontends:
            more["HARDPOINT_FRONTEND"] = shared
        environment = world.environment(server.url) | more
        command = [sys.executable, "-m", "hardpoint.cli", "run"]
        async with await anyio.open_process(
            command, env=environment, stdout=None, stderr=None
        ) as agent:
            if frontends != "dra":
                await kubelet.until(lambda: bool(kubelet.allocatable(USB)), within=60)
            await anyio.sleep(5)
            yield Row(f"resident memory, idle, {name}", _rss(agent.pid), "MiB")
            cpu = _cpu(agent.pid)
            await anyio.sleep(10)
            yield Row(f"processor, idle, {name}", (_cpu(agent.pid) - cpu) * 10, "% of a core")
            agent.terminate()
            await agent.wait()


async def _timed(call: Any) -> float:
    began = time.perf_counter()
    await call
    return _ms(began)


def _ms(since: float) -> float:
    return (time.perf_counter() - since) * 1000


def _rss(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def main() -> int:
    """Measure and print; 1 where a bound is missed."""
    tell = Told()
    for row in choices():
        tell(row)
    with tempfile.TemporaryDirectory(prefix="hp-") as scratch:
        root = Path(scratch)
        kubelet = FakeKubelet(
            root / "kubelet", device_plugins=root / "plugins", behaviour=Behaviour(poll=0.25)
        )
        world = World(root)
        async with kubelet, FakeApiServer() as server:
            server.add_node(NODE)
            async with running(world, kubelet) as agent:
                for rows in (calls(kubelet), restarts(kubelet), events(world, agent, kubelet)):
                    async for row in rows:
                        tell(row)
            async for row in memory(world, kubelet, server):
                tell(row)
    return 1 if tell.missed else 0


if __name__ == "__main__":
    sys.exit(anyio.run(main))
