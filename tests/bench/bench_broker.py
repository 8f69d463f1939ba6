"""How long a claim takes in the broker: ``python -m bench.bench_broker [DIRECTORY]``.

The bound: p99 of a prepare within three durable writes of the disk plus 5 ms, the API server's own
GET apart; and 64 claims at once share commits. DIRECTORY chooses the disk; the CDI directory stands
on it too, where a node has it on tmpfs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from bench.rows import Row, Told, percentile
from broker_world import World, claim, prepare

from hardpoint._core.claims.broker import Broker

ROUNDS = 200
AT_ONCE = 64


def durable_write(directory: Path) -> float:
    """Return the milliseconds of one small append that is flushed, as the disk alone does it."""
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        took = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            os.pwrite(file.fileno(), b"x" * 4096, 0)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - start)
    return 1000 * sorted(took)[len(took) * 99 // 100]


async def timed(call: Callable[[], Awaitable[object]], into: list[float]) -> None:
    start = time.perf_counter()
    await call()
    into.append(1000 * (time.perf_counter() - start))


async def one_after_the_other(world: World, broker: Broker, tell: Told) -> None:
    """Time prepare, a repeated prepare, and unprepare."""
    first, again, back = list[float](), list[float](), list[float]()
    for number in range(ROUNDS):
        wanted = claim(f"uid-{number}", "card-0")
        await timed(lambda wanted=wanted: prepare(broker, wanted), first)  # type: ignore[misc]
        await timed(lambda wanted=wanted: prepare(broker, wanted), again)  # type: ignore[misc]
        await timed(lambda wanted=wanted: broker.unprepare(wanted.key), back)  # type: ignore[misc]
    disk = durable_write(world.state)
    tell(Row("one durable write of this disk, p99", disk, "ms"))
    tell(Row("broker: prepare, p50", percentile(first, 50), "ms"))
    tell(Row("broker: prepare, p99", percentile(first, 99), "ms", 3 * disk + 5))
    tell(Row("broker: prepare again, p50", percentile(again, 50), "ms"))
    tell(Row("broker: unprepare, p50", percentile(back, 50), "ms"))


async def all_at_once(world: World, broker: Broker, tell: Told) -> None:
    """Time 64 claims that arrive together, and how many commits they make."""
    commits = 0
    committed = broker._ledger._committer._committed

    def count() -> None:
        nonlocal commits
        commits += 1
        committed()

    broker._ledger._committer._committed = count
    took = list[float]()
    async with anyio.create_task_group() as tasks:
        for number in range(AT_ONCE):
            wanted = claim(f"many-{number}", f"card-{number}")
            tasks.start_soon(timed, lambda wanted=wanted: prepare(broker, wanted), took)
    tell(Row(f"broker: {AT_ONCE} claims at once, the last", max(took), "ms"))
    tell(Row(f"broker: commits of {AT_ONCE} claims at once", commits))
    refreshed = list[float]()
    await timed(lambda: broker.refresh(world.offer()), refreshed)
    tell(Row(f"broker: refresh of {AT_ONCE} holds, nothing new", refreshed[0], "ms"))


async def main() -> int:
    """Print every timing; 1 where the bound is missed."""
    tell = Told()
    base = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(dir=base) as root:
        world = World(Path(root))
        for number in range(AT_ONCE):
            world.card(f"card-{number}", number)
        del type(world.cards).prepare_device  # a driver of one's own takes its own time
        del type(world.cards).unprepare_device
        async with world.broker() as broker:
            await one_after_the_other(world, broker, tell)
            await all_at_once(world, broker, tell)
    return 1 if tell.missed else 0


if __name__ == "__main__":
    sys.exit(anyio.run(main))
