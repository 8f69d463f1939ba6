"""The agent as a process: memory when idle, start to first publish, event to slice, prepare.

The agent is the real one with both drivers and the DRA frontend, over a machine of 100 devices made
of files: 64 GPUs and 36 USB serial adapters. API server and kubelet are the test kit's; where the
agent runs in this process, what they do counts too. ``BENCH_IDLE`` is how many seconds it
is watched doing nothing (20).
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from bench.rows import Row, Told, percentile

import hardpoint
from hardpoint._core.agent import HardpointAgent
from hardpoint.model import Allotment, Claim, ClaimKey
from hardpoint.settings import AgentSettings, KubeSettings, PathSettings
from hardpoint.testing.api_server import FakeApiServer
from hardpoint.testing.kubelet import Behaviour, FakeKubelet, Pod
from hardpoint.testing.sysfs import FakeMachine

NODE = "bench"
DOMAIN = "hardpoint.dev"
GPUS, ADAPTERS = 64, 36
DEVICES = GPUS + ADAPTERS
IDLE = float(os.environ.get("BENCH_IDLE", "20"))


class World:
    """A machine of 100 devices, directories, and the fakes around them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machine = FakeMachine(root / "machine")
        for number in range(GPUS):
            card = self.machine.pci(
                _address(number), vendor="1002", klass="030200", driver="amdgpu"
            )
            card.drm(render=128 + number)
        for number in range(ADAPTERS):
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


def published(server: FakeApiServer) -> int:
    """Count the devices in the slices."""
    return sum(len(s["spec"].get("devices", ())) for s in server.items("resourceslices"))


def shows(server: FakeApiServer, devices: int) -> bool:
    """Say whether so many devices are in the slices."""
    return published(server) == devices


async def process(world: World, server: FakeApiServer) -> AsyncIterator[Row]:
    """Start ``hardpoint run`` and look at it from outside."""
    counted = _instructions(world)
    if counted is not None:
        yield Row("instructions of `hardpoint devices`", counted, "million")
    took, ended = [], []
    for last in (False, False, True):
        started = time.perf_counter()
        async with _started(world, server) as agent:
            await server.until(partial(shows, server, DEVICES), seconds=60)
            took.append(_ms(started))
            if last:
                async for row in _idle(agent.pid, server):
                    yield row
            stop = time.perf_counter()
            agent.terminate()
            await agent.wait()
            ended.append(_ms(stop))
        for each in server.items("resourceslices"):
            server.remove("resourceslices", each["metadata"]["name"])
    yield Row(
        "start to first publish, process start included, p50 of 3", percentile(took, 50), "ms"
    )
    yield Row("SIGTERM to exit, p50 of 3", percentile(ended, 50), "ms")


@asynccontextmanager
async def _started(world: World, server: FakeApiServer) -> AsyncIterator[anyio.abc.Process]:
    command = [sys.executable, "-m", "hardpoint.cli", "run"]
    async with await anyio.open_process(
        command, env=world.environment(server.url), stdout=None, stderr=None
    ) as agent:
        yield agent


async def _idle(pid: int, server: FakeApiServer) -> AsyncIterator[Row]:
    """Watch an agent that has nothing to do."""
    await anyio.sleep(3)
    yield Row("resident memory, idle", _status(pid, "VmRSS") / 1024, "MiB", 64)
    yield Row("proportional set size, idle", _pss(pid) / 1024, "MiB")
    yield Row("threads", _status(pid, "Threads"))
    writes, cpu, wakes = len(server.writes()), _cpu(pid), _wakes(pid)
    await anyio.sleep(IDLE)
    yield Row(f"API writes in {IDLE:.0f} s idle", len(server.writes()) - writes, "", 0)
    yield Row("processor, idle", (_cpu(pid) - cpu) / IDLE * 100, "% of a core", 0.2)
    yield Row("wake-ups, idle", (_wakes(pid) - wakes) / IDLE, "/s")


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
        await server.until(partial(shows, server, DEVICES))
        yield Row("agent's start to first publish", _ms(started), "ms", 1000)
        await anyio.sleep(2)
        took = []
        for number in range(ADAPTERS, ADAPTERS + 5):
            world.plug(number)
            event = time.perf_counter()
            agent._scanner.wake.set()
            await server.until(partial(shows, server, DEVICES + number - ADAPTERS + 1))
            took.append(_ms(event))
        yield Row("event to slice written, 100 devices (p50 of 5)", percentile(took, 50), "ms", 250)
        await anyio.sleep(2)
        disk = [_disk(world.root, number) for number in range(20)]
        yield Row("three durable writes of this disk, p50", percentile(disk, 50), "ms")
        bound = percentile(disk, 99) + 5
        key = list[ClaimKey]()
        alone = [await _prepare(agent, number, key) for number in range(GPUS)]
        yield Row("prepare, one at a time, p50", percentile(alone, 50), "ms")
        yield Row("prepare, one at a time, p99 of 64", percentile(alone, 99), "ms", bound)
        back = []
        for one in key:
            began = time.perf_counter()
            await agent.unprepare(one)
            back.append(_ms(began))
        yield Row("unprepare, one at a time, p50", percentile(back, 50), "ms")
        many, cpu = time.perf_counter(), time.process_time()
        async with anyio.create_task_group() as tasks:
            for number in range(GPUS):
                tasks.start_soon(_prepare, agent, number, key)
        yield Row("64 claims at once, all of them", _ms(many), "ms")
        yield Row("processor time of each of them", (time.process_time() - cpu) * 1000 / GPUS, "ms")


async def _prepare(agent: HardpointAgent, number: int, keys: list[ClaimKey]) -> float:
    key = ClaimKey(str(uuid.uuid4()), "bench", f"claim-{number}", DOMAIN)
    keys.append(key)
    device = _name(number)
    claim = Claim(key=key, allotments=(Allotment(request="r", device=device, pool=NODE),))

    async def read() -> Claim:
        return claim

    began = time.perf_counter()
    await agent.prepare(key, read)
    return _ms(began)


async def called(world: World, server: FakeApiServer, kubelet: FakeKubelet) -> AsyncIterator[Row]:
    """Measure a claim as the kubelet sees it: over the socket, with the API server's GET."""
    async with running(world, server):
        await kubelet.until_registered(DOMAIN)
        took = []
        for number in range(32):
            pod = Pod(name=f"pod-{number}", claims=(f"claim-{number}",))
            _allocate(server, pod, number)
            began = time.perf_counter()
            await kubelet.prepare(pod)
            took.append(_ms(began))
        yield Row(
            "prepare over the kubelet's socket, GET included, p50", percentile(took, 50), "ms"
        )
        yield Row("prepare over the kubelet's socket, p99 of 32", percentile(took, 99), "ms")


def _allocate(server: FakeApiServer, pod: Pod, number: int) -> None:
    """Let the API server have a claim that is allocated to a pod."""
    (name,) = pod.claims
    request = {"name": "r", "exactly": {"deviceClassName": "any"}}
    server.add(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": pod.namespace},
            "spec": {"devices": {"requests": [request]}},
        }
    )
    result = {"request": "r", "driver": DOMAIN, "pool": NODE, "device": _name(number)}
    reserved = {"resource": "pods", "name": pod.name, "uid": pod.identity}
    server.allocate(pod.namespace, name, [result], reserved_for=[reserved])


# -- looking --------------------------------------------------------------------------------------


def _address(number: int) -> str:
    return f"0000:{number + 1:02x}:00.0"


def _name(number: int) -> str:
    return f"pci-0000-{number + 1:02x}-00-0"


def _instructions(world: World) -> float | None:
    """Count what one look takes; None where there is no counter, as on most virtual machines."""
    command = ["perf", "stat", "-x,", "-e", "instructions:u", sys.executable, "-m", "hardpoint.cli"]
    try:
        done = subprocess.run(
            [*command, "devices"], env=world.environment(""), capture_output=True, check=True
        )
        return int(done.stderr.splitlines()[-1].split(b",")[0]) / 1e6
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


def _disk(root: Path, number: int) -> float:
    began = time.perf_counter()
    for step in range(3):
        descriptor = os.open(root / f"disk-{number}-{step}", os.O_CREAT | os.O_WRONLY)
        os.write(descriptor, b"x" * 4096)
        os.fsync(descriptor)
        os.close(descriptor)
    return _ms(began)


def _ms(since: float) -> float:
    return (time.perf_counter() - since) * 1000


def _status(pid: int, field: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(field)).split()[1])


def _pss(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1])


def _wakes(pid: int) -> int:
    """Count how often its threads went to sleep."""
    found = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        lines = status.read_text().splitlines()
        found += int(next(li for li in lines if li.startswith("voluntary")).split()[1])
    return found


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def main() -> int:
    """Measure and print; 1 where a bound is missed."""
    compileall.compile_dir(Path(hardpoint.__file__).parent, quiet=2)  # as in an image
    tell = Told()
    with tempfile.TemporaryDirectory(prefix="hp-") as scratch:
        root = Path(scratch)
        async with FakeApiServer() as server:

            async def get_claim(namespace: str, name: str) -> dict[str, Any] | None:
                return server.get("resourceclaims", name, namespace)

            behaviour = Behaviour(poll=0.25)
            async with FakeKubelet(
                root / "kubelet", get_claim=get_claim, behaviour=behaviour
            ) as kubelet:
                server.add_node(NODE)
                world = World(root)
                for rows in (
                    process(world, server),
                    called(world, server, kubelet),
                    inside(world, server),
                ):
                    async for row in rows:
                        tell(row)
    return 1 if tell.missed else 0


if __name__ == "__main__":
    sys.exit(anyio.run(main))
