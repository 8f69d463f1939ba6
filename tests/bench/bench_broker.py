"""How long a claim takes: ``python tests/bench/bench_broker.py [DIRECTORY]``.

The bound: p99 of a prepare within three durable writes of the disk plus 5 ms, the API server's own
GET apart; and 64 claims at once share commits. DIRECTORY chooses the disk; the CDI directory stands
on it too, where a node has it on tmpfs.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[1]))
from broker_world import World, claim, prepare

from hardpoint._core.broker import Broker

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


def say(name: str, took: list[float], **more: object) -> None:
    """Print one line: median, p99 and most, in milliseconds."""
    took = sorted(took)
    words = [f"{name:<22}", f"p50={statistics.median(took):.2f} ms"]
    words += [f"p99={took[len(took) * 99 // 100]:.2f} ms", f"max={took[-1]:.2f} ms"]
    words += [f"{key}={value}" for key, value in more.items()]
    sys.stdout.write(" ".join(words) + "\n")


async def one_after_the_other(world: World, broker: Broker) -> None:
    """Time prepare, a repeated prepare, and unprepare."""
    first, again, back = list[float](), list[float](), list[float]()
    for number in range(ROUNDS):
        wanted = claim(f"uid-{number}", "card-0")
        await timed(lambda wanted=wanted: prepare(broker, wanted), first)  # type: ignore[misc]
        await timed(lambda wanted=wanted: prepare(broker, wanted), again)  # type: ignore[misc]
        await timed(lambda wanted=wanted: broker.unprepare(wanted.key), back)  # type: ignore[misc]
    disk = durable_write(world.state)
    say("prepare", first, bound=f"{3 * disk + 5:.2f} ms", one_durable_write=f"{disk:.2f} ms")
    say("prepare again", again)
    say("unprepare", back)


async def all_at_once(world: World, broker: Broker) -> None:
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
    say(f"{AT_ONCE} at once", took, commits=commits)
    refreshed = list[float]()
    await timed(lambda: broker.refresh(world.offer()), refreshed)
    say(f"refresh of {AT_ONCE}, same", refreshed)


async def main() -> None:
    """Print every timing."""
    base = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(dir=base) as root:
        world = World(Path(root))
        for number in range(AT_ONCE):
            world.card(f"card-{number}", number)
        del type(world.cards).prepare_device  # a driver of one's own takes its own time
        del type(world.cards).unprepare_device
        async with world.broker() as broker:
            await one_after_the_other(world, broker)
            await all_at_once(world, broker)


if __name__ == "__main__":
    anyio.run(main)
