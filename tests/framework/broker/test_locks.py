from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from hardpoint._core.ledger.locks import ClaimLocks, WriterLock
from hardpoint.errors import HoldBusy, HoldOvertaken


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def locks(path: Path) -> Iterator[ClaimLocks]:
    made = ClaimLocks(path, patience=5)
    yield made
    made.close()


async def test_calls_for_one_claim_run_in_the_order_they_came(locks: ClaimLocks) -> None:
    order: list[int] = []

    async def call(number: int) -> None:
        async with locks.turn("u1", "ns/c"):
            await anyio.lowlevel.checkpoint()
            order.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(call, number)
    assert order == list(range(20))


async def test_different_claims_have_their_turns_at_once(locks: ClaimLocks) -> None:
    with anyio.fail_after(5):
        async with locks.turn("u1", "a"), locks.turn("u2", "b"):
            pass


async def test_an_unprepare_overtakes_only_the_prepares_before_it(locks: ClaimLocks) -> None:
    async with anyio.create_task_group() as tasks, locks.turn("u1", "ns/c", "d") as before:
        tasks.start_soon(_end, locks)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(HoldOvertaken):
            before.check()
    async with locks.turn("u1", "ns/c", "d") as after:
        after.check()


async def _end(locks: ClaimLocks) -> None:
    async with locks.turn("u1", "ns/c", "d", ends=True) as own:
        own.check()


async def test_an_unprepare_of_another_driver_overtakes_nothing(locks: ClaimLocks) -> None:
    async with anyio.create_task_group() as tasks, locks.turn("u1", "ns/c", "e") as turn:
        tasks.start_soon(_end, locks)
        await anyio.wait_all_tasks_blocked()
        turn.check()


async def wait_briefly(locks: ClaimLocks) -> None:
    with anyio.move_on_after(0.01):
        async with locks.turn("u1", "ns/c"):
            pass


async def lose_patience(locks: ClaimLocks) -> None:
    with pytest.raises(HoldBusy):
        async with locks.turn("u1", "ns/c", patience=0.01):
            pass


async def test_whoever_waits_too_long_is_told_to_come_again(locks: ClaimLocks) -> None:
    async with locks.turn("u1", "ns/c"), anyio.create_task_group() as tasks:
        tasks.start_soon(lose_patience, locks)
    async with locks.turn("u1", "ns/c", patience=0.01):
        pass


async def test_a_call_that_is_cancelled_while_it_waits_leaves_the_queue(locks: ClaimLocks) -> None:
    async with locks.turn("u1", "ns/c"), anyio.create_task_group() as tasks:
        tasks.start_soon(wait_briefly, locks)
    with anyio.fail_after(5):
        async with locks.turn("u1", "ns/c"):
            pass
    assert locks._queues == {}


async def test_two_agents_take_turns_with_a_claim(path: Path, locks: ClaimLocks) -> None:
    other = ClaimLocks(path, patience=0.01)
    async with locks.turn("u1", "ns/c"):
        with pytest.raises(HoldBusy, match="another agent"):
            async with other.turn("u1", "ns/c"):
                pass
        async with other.turn("u2", "ns/d"):
            pass
    async with other.turn("u1", "ns/c"):
        pass
    other.close()


async def test_a_kept_claim_is_open_to_its_own_agent_and_closed_to_another(
    path: Path, locks: ClaimLocks
) -> None:
    other = ClaimLocks(path, patience=0.01)
    async with locks.turn("u1", "ns/c") as turn:
        turn.keep()
    assert locks.kept() == ("u1",)
    with pytest.raises(HoldBusy):
        async with other.turn("u1", "ns/c"):
            pass
    async with locks.turn("u1", "ns/c"):
        pass
    assert locks.kept() == ()
    async with other.turn("u1", "ns/c"):
        pass
    other.close()


HOLDER = """
import sys, anyio
from pathlib import Path
from hardpoint._core.ledger.locks import ClaimLocks, WriterLock
async def main():
    writer = WriterLock(Path(sys.argv[1] + ".writer"))
    assert writer.writing()
    async with ClaimLocks(Path(sys.argv[1])).turn("u1", "ns/c"):
        print("held", flush=True)
        sys.stdin.read()
anyio.run(main)
"""


async def test_a_process_that_is_killed_gives_everything_back(path: Path) -> None:
    locks, writer = ClaimLocks(path, patience=5), WriterLock(Path(f"{path}.writer"))
    async with await anyio.open_process([sys.executable, "-c", HOLDER, str(path)]) as holder:
        assert holder.stdout is not None
        assert (await holder.stdout.receive()).startswith(b"held")
        assert not writer.writing()
        with pytest.raises(HoldBusy):
            async with locks.turn("u1", "ns/c", patience=0.01):
                pass
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.until_writing)
            holder.kill()
            async with locks.turn("u1", "ns/c"):
                pass
        assert writer.writing()
    locks.close()
    writer.close()


async def test_one_of_two_agents_writes_and_the_other_takes_over(path: Path) -> None:
    one, two = WriterLock(path), WriterLock(path)
    assert one.writing()
    assert one.writing()
    assert not two.writing()
    one.close()
    with anyio.fail_after(5):
        await two.until_writing()
    assert not one.writing()
    two.close()


def test_locks_are_for_root_alone(path: Path) -> None:
    WriterLock(path).writing()
    assert path.stat().st_mode & 0o777 == 0o600
