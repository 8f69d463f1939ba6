"""Grants and releases, replayed with a fault at every durable step of their life.

Of each life: nothing is reported released that somebody has, no end of a grant is forgotten, no
device goes to two, and all of it goes on by itself once the fault is over. ``make test`` takes some
steps, the same every time; ``make test-durable`` takes all.
"""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest
from grant_files_runs import HoldFiles
from grant_runs import Beside, ComesBack, Damaged, Drained, Ends, Gone, GrantRun

from hardpoint.testing.durable import Fail, Fault, Kill, Overlap, Reboot, unsupported, walk

WHOLE = bool(os.environ.get("HARDPOINT_TEST_DURABLE"))
SAMPLE = 1

pytestmark = [
    pytest.mark.durable,
    pytest.mark.skipif(bool(unsupported()), reason=unsupported()),
    pytest.mark.timeout(14_400 if WHOLE else 120),
]

LIVES = (Ends, ComesBack, Drained, Damaged, Gone, HoldFiles)
FULL = Fail(errno.ENOSPC, lasts=True)
FAULTS = (
    *(Kill(), Reboot(), Reboot(lost=False), FULL, Fail(errno.EROFS, lasts=True)),
    *(Fail(errno.ENOSPC), Fail(errno.EIO), Fail(errno.EMFILE)),
)
SOME: tuple[tuple[type[GrantRun], Fault], ...] = (
    (Ends, Kill()),
    (Ends, FULL),
    (Damaged, Kill()),
    (HoldFiles, Reboot()),
)
WALKS = tuple(itertools.product(LIVES, FAULTS)) if WHOLE else SOME


@pytest.mark.parametrize(("life", "fault"), WALKS, ids=str)
async def test_no_release_is_early_and_none_is_lost_whatever_happens_when(
    tmp_path: Path, life: type[GrantRun], fault: Fault
) -> None:
    check(life, tmp_path, fault)


async def test_of_two_agents_one_writes_and_the_survivor_finishes_what_is_pending(
    tmp_path: Path,
) -> None:
    check(Beside, tmp_path, Overlap())


def check(life: type[GrantRun], directory: Path, fault: Fault) -> None:
    walked = walk(life, directory, fault, sample=None if WHOLE else SAMPLE)

    print(f"{life.__name__} {fault}: {len(walked.steps)} steps, {walked.rounds} walked")  # noqa: T201
    assert not walked.problems, "\n\n".join(walked.problems)
    assert len(walked.steps) > 60
    assert walked.rounds >= SAMPLE
