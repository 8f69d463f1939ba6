"""How long a look at a node's processes takes, and how long an event loop beside it waits.

What is in a process's directories is the kernel's own: 20 real processes of 10 threads and 30 open
files each stand for all.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from bench.rows import Row, Told
from pod_processes import SYSTEMD, Procfs

from hardpoint.model import DeviceNode
from hardpoint.node import Node
from hardpoint.policies._processes import Processes, Wanted

PROCESSES = 5000
BUDGET = 20.0
"""Seconds: that of ``find_users``."""
REAL = 20
_HOST = "0::/system.slice/x.service"
_CODE = """
import asyncio, os, ssl, sys, threading, time
keep = [os.open("/dev/null", 0) for _ in range(30)]
for _ in range(9):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def processes() -> Iterator[list[int]]:
    """Start the real ones."""
    command = [sys.executable, "-S", "-E", "-c", _CODE]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(REAL)
    ]
    try:
        for one in started:
            assert one.stdout is not None
            one.stdout.readline()
        yield [one.pid for one in started]
    finally:
        for one in started:
            one.kill()
            one.communicate()


def node_of(root: Path, pids: list[int], of_pods: int) -> Procfs:
    """Make a procfs of 5,000 processes, so many of them of pods."""
    procfs = Procfs(root)
    for number in range(PROCESSES):
        shown = procfs.show(pids[number % REAL], SYSTEMD if number < of_pods else _HOST)
        shown.rename(root / str(100_000 + number))
    return procfs


async def _waits(look: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that a look took, and the longest that a loop beside it waited."""
    worst, done = 0.0, False

    async def tick() -> None:
        nonlocal worst
        while not done:
            before = time.perf_counter()
            await anyio.sleep(0.001)
            worst = max(worst, time.perf_counter() - before)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        began = time.perf_counter()
        await anyio.to_thread.run_sync(look)
        took, done = time.perf_counter() - began, True
    return took, worst


def main() -> int:
    """Measure and print."""
    told = Told()
    wanted = Wanted.of([DeviceNode(path="/dev/x", major=195, minor=0)], Node(name="bench"))
    for of_pods in (500, PROCESSES):
        with tempfile.TemporaryDirectory() as root, processes() as pids:
            procfs = node_of(Path(root), pids, of_pods)
            took, worst = anyio.run(_waits, partial(Processes(procfs.root).look, wanted))
        what = f"look at {PROCESSES} processes, {of_pods} of them of pods"
        told(Row(what, took, "s", BUDGET))
        told(Row(f"{what}: longest wait of a loop", worst * 1000, "ms"))
    return 1 if told.missed else 0


if __name__ == "__main__":
    sys.exit(main())
