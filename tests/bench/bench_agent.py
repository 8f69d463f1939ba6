"""The agent as a process: memory when idle, start to first publish, event to slice, prepare.

The agent is the real one with both drivers and the DRA frontend, over a machine of 100 devices made
of files; the API server and kubelet are the test kit's, in this process.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from hardpoint._core.agent import HardpointAgent
from hardpoint.model import Allotment, Claim, ClaimKey
from hardpoint.settings import AgentSettings, KubeSettings, PathSettings
from hardpoint.testing.api_server import FakeApiServer
from hardpoint.testing.kubelet import FakeKubelet
from hardpoint.testing.sysfs import FakeMachine

NODE = "bench"
DOMAIN = "hardpoint.dev"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure; ``bound`` is the most it may be."""

    name: str
    value: float
    unit: str
    bound: float | None = None

    @property
    def kept(self) -> bool:
        """Say whether the bound is kept, where there is one."""
        return self.bound is None or self.value <= self.bound


class World:
    """A machine of 100 USB devices, directories, and the fakes around them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machine = FakeMachine(root / "machine")
        for number in range(100):
            self.plug(number)

    def plug(self, number: int) -> None:
        """Add a serial adapter."""
        port = f"{number // 14 + 1}-{number % 14 + 1}"
        stick = self.machine.usb(port, vendor="0403", product="6001", serial=f"S{number}")
        adapter = stick.interface(0, klass="ff", driver="ftdi_sio")
        adapter.node("tty", f"ttyUSB{number}", 188, number)
        self.machine.save()

    def settings(self, url: str) -> AgentSettings:
        """The agent's settings."""
        paths = PathSettings(
            state=self.root / "state",
            cdi=self.root / "cdi",
            kubelet=self.root / "kubelet",
            sys=self.machine.sys,
            dev=self.machine.dev,
            proc=self.machine.proc,
            run=self.machine.run,
        )
        return AgentSettings(paths=paths, kube=KubeSettings(url=url), node_name=NODE)

    def environment(self, url: str) -> dict[str, str]:
        """The same, as variables for a process of its own."""
        paths = self.settings(url).paths.model_dump()
        variables = {f"HARDPOINT_PATHS__{key.upper()}": str(value) for key, value in paths.items()}
        named = {"HARDPOINT_KUBE__URL": url, "HARDPOINT_NODE_NAME": NODE}
        return {**os.environ, **variables, **named, "HARDPOINT_LOG__LEVEL": "warning"}


def shows(server: FakeApiServer, devices: int) -> bool:
    """Say whether so many devices are in the slices."""
    return published(server) == devices


def published(server: FakeApiServer) -> int:
    """Count the devices in the slices."""
    return sum(len(s["spec"].get("devices", ())) for s in server.items("resourceslices"))


async def process(world: World, server: FakeApiServer) -> AsyncIterator[Row]:
    """Start ``hardpoint run`` and look at it from outside."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "hardpoint.cli", "run"]
    async with await anyio.open_process(
        command, env=world.environment(server.url), stdout=None, stderr=None
    ) as agent:
        await server.until(lambda: published(server) == 100, seconds=30)
        yield Row("start to first publish, process start included", _ms(started), "ms")
        await anyio.sleep(3)
        yield Row("resident memory, idle", _status(agent.pid, "VmRSS") / 1024, "MiB", 64)
        yield Row("threads", _status(agent.pid, "Threads"), "")
        writes, cpu = len(server.writes()), _cpu(agent.pid)
        await anyio.sleep(10)
        yield Row("API writes in 10 s idle", len(server.writes()) - writes, "", 0)
        yield Row("processor, idle", (_cpu(agent.pid) - cpu) / 10 * 100, "% of a core", 0.2)
        stop = time.perf_counter()
        agent.terminate()
        await agent.wait()
        yield Row("SIGTERM to exit", _ms(stop), "ms")
    for each in server.items("resourceslices"):
        server.remove("resourceslices", each["metadata"]["name"])


@asynccontextmanager
async def running(world: World, server: FakeApiServer) -> AsyncIterator[HardpointAgent]:
    """Run the agent in this process."""
    node = world.machine.node()
    node.name = NODE
    agent = HardpointAgent(world.settings(server.url), node, events=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.run)
        await agent.started.wait()
        yield agent
        tasks.cancel_scope.cancel()


async def inside(world: World, server: FakeApiServer) -> AsyncIterator[Row]:
    """Measure what takes milliseconds, without another process's noise."""
    started = time.perf_counter()
    async with running(world, server) as agent:
        await server.until(lambda: published(server) == 100)
        yield Row("agent's start to first publish", _ms(started), "ms", 1000)
        await anyio.sleep(1)
        took = []
        for number in range(100, 105):
            world.plug(number)
            event = time.perf_counter()
            agent._scanner.wake.set()
            await server.until(partial(shows, server, number + 1))
            took.append(_ms(event))
        yield Row("event to slice written, 100 devices (median of 5)", _median(took), "ms", 250)
        alone = [await _prepare(agent, number) for number in range(30)]
        yield Row("prepare, one at a time, p50", _median(alone), "ms")
        yield Row("prepare, one at a time, slowest of 30", max(alone), "ms")
        yield Row("three durable writes of this disk", _disk(world.root), "ms")
        many = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for number in range(30, 94):
                tasks.start_soon(_prepare, agent, number)
        yield Row("64 claims at once, all of them", _ms(many), "ms")


async def _prepare(agent: HardpointAgent, number: int) -> float:
    name = f"usb-{number // 14 + 1}-{number % 14 + 1}-1-0"
    key = ClaimKey(str(uuid.uuid4()), "bench", f"claim-{number}", DOMAIN)
    claim = Claim(key=key, allotments=(Allotment(request="r", device=name, pool=NODE),))

    async def read() -> Claim:
        return claim

    began = time.perf_counter()
    await agent.prepare(key, read)
    return _ms(began)


def _disk(root: Path) -> float:
    took = []
    for number in range(20):
        began = time.perf_counter()
        for step in range(3):
            path = root / f"disk-{number}-{step}"
            descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
            os.write(descriptor, b"x" * 4096)
            os.fsync(descriptor)
            os.close(descriptor)
        took.append(_ms(began))
    return _median(took)


def _ms(since: float) -> float:
    return (time.perf_counter() - since) * 1000


def _median(values: list[float]) -> float:
    return statistics.median(values)


def _status(pid: int, field: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(field)).split()[1])


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def main() -> int:
    """Measure and print; 1 where a bound is missed."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="hp-") as scratch:
        async with FakeApiServer() as server, FakeKubelet(Path(scratch) / "kubelet"):
            server.add_node(NODE)
            world = World(Path(scratch))
            measures: tuple[Any, ...] = (process, inside)
            for measure in measures:
                async for row in measure(world, server):
                    rows.append(row)
                    bound = f"  bound {row.bound:g}" if row.bound is not None else ""
                    missed = "" if row.kept else "  MISSED"
                    sys.stdout.write(
                        f"  {row.name:<52}{row.value:9.1f} {row.unit}{bound}{missed}\n"
                    )
                    sys.stdout.flush()
    return 0 if all(row.kept for row in rows) else 1


if __name__ == "__main__":
    sys.exit(anyio.run(main))
