"""Grants and releases, replayed with a fault at every durable step of their life.

``make test`` takes a sample of the steps, the same every time; ``make test-durable`` takes all.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from grant_runs import Beside, ComesBack, Damaged, Drained, Ends, Gone, GrantRun

from hardpoint.testing.durable import Fail, Fault, Kill, Overlap, Reboot, unsupported, walk

WHOLE = bool(os.environ.get("HARDPOINT_TEST_DURABLE"))

pytestmark = [
    pytest.mark.durable,
    pytest.mark.skipif(bool(unsupported()), reason=unsupported()),
    pytest.mark.timeout(14_400 if WHOLE else 120),
]

DISK = (
    Fail(errno.ENOSPC, lasts=True),
    Fail(errno.EROFS, lasts=True),
    Fail(errno.EIO),
    Fail(errno.ENOSPC),
)
CUTS = (Kill(), Reboot(), Reboot(lost=False))


def check(run: type[GrantRun], directory: Path, fault: Fault, sample: int) -> None:
    walked = walk(run, directory, fault, sample=None if WHOLE else sample)

    print(f"{run.__name__} {fault}: {len(walked.steps)} steps, {walked.rounds} walked")  # noqa: T201
    assert not walked.problems, "\n\n".join(walked.problems)
    assert len(walked.steps) > 60
    assert walked.rounds >= sample - 1


def some(*faults: Fault) -> tuple[Fault, ...]:
    """Return all of them where whole walks are asked for, else the first."""
    return faults if WHOLE else faults[:1]


@pytest.mark.parametrize("fault", some(*CUTS), ids=str)
async def test_a_grant_that_ends_is_released_once_nobody_has_it_whoever_is_killed_when(
    tmp_path: Path, fault: Fault
) -> None:
    check(Ends, tmp_path, fault, 2)


@pytest.mark.parametrize("fault", some(*DISK), ids=str)
async def test_a_full_disk_neither_releases_what_is_held_nor_loses_a_release(
    tmp_path: Path, fault: Fault
) -> None:
    check(Ends, tmp_path, fault, 2)


@pytest.mark.parametrize("fault", some(*CUTS, *DISK), ids=str)
async def test_a_grant_that_comes_back_is_never_reported_released(
    tmp_path: Path, fault: Fault
) -> None:
    check(ComesBack, tmp_path, fault, 1)


@pytest.mark.parametrize("fault", some(*CUTS, *DISK), ids=str)
async def test_a_node_that_is_handed_back_stays_so_until_it_is_taken_again(
    tmp_path: Path, fault: Fault
) -> None:
    check(Drained, tmp_path, fault, 1)


@pytest.mark.parametrize("fault", some(*CUTS, *DISK), ids=str)
@pytest.mark.parametrize("run", [Damaged, Gone])
async def test_releases_that_were_lost_with_the_ledger_are_waited_for_whoever_is_killed_when(
    tmp_path: Path, run: type[GrantRun], fault: Fault
) -> None:
    check(run, tmp_path, fault, 1)


async def test_of_two_agents_one_writes_and_the_survivor_finishes_what_is_pending(
    tmp_path: Path,
) -> None:
    check(Beside, tmp_path, Overlap(), 2)
