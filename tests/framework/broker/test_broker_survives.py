"""Lives of a broker, each replayed with a fault at every one of its durable steps.

``make test`` takes a sample of the steps, the same every time; ``make test-durable`` takes all.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from durable_runs import (
    Beside,
    BesideLonger,
    BrokerRun,
    Claims,
    Cleared,
    Damaged,
    FirstStart,
    Lost,
    Newcomer,
    Quarantine,
)

from hardpoint.testing.durable import Fail, Fault, Kill, Overlap, Reboot, unsupported, walk

WHOLE = bool(os.environ.get("HARDPOINT_TEST_DURABLE"))

pytestmark = [
    pytest.mark.durable,
    pytest.mark.skipif(bool(unsupported()), reason=unsupported()),
    pytest.mark.timeout(14_400 if WHOLE else 120),
]

LIVES = (Claims, Quarantine, Cleared, FirstStart, Damaged, Lost)
FAILURES = tuple(
    Fail(error, lasts=lasts)
    for error in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE)
    for lasts in (False, True)
)
SAMPLE = 4
"""Steps of each life and fault, where not all are walked."""

KILLS = [(run, Kill()) for run in LIVES]
REBOOTS = [(run, Reboot(lost=lost)) for lost in (True, False) for run in LIVES]
SOME = {
    *((run, Kill()) for run in LIVES),
    *((run, Reboot()) for run in (Claims, FirstStart, Damaged)),
    (Claims, Reboot(lost=False)),
    (Claims, Fail(errno.ENOSPC, lasts=True)),
    (FirstStart, Fail(errno.EIO)),
    (Quarantine, Fail(errno.EMFILE)),
    (Beside, Overlap()),
    (Newcomer, Overlap()),
}
"""What ``make test`` takes a sample of."""


def named(value: object) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


def check(run: type[BrokerRun], directory: Path, fault: Fault, least: int) -> None:
    walked = walk(run, directory, fault, sample=None if WHOLE else SAMPLE)

    print(f"{run.__name__} {fault}: {len(walked.steps)} steps, {walked.rounds} walked")  # noqa: T201
    assert not walked.problems, "\n\n".join(walked.problems)
    assert len(walked.steps) > least
    assert walked.rounds >= SAMPLE - 1  # the last step may not come again


def lives(*pairs: tuple[type[BrokerRun], Fault]) -> pytest.MarkDecorator:
    chosen = [pair for pair in pairs if WHOLE or pair in SOME]
    return pytest.mark.parametrize(("run", "fault"), chosen, ids=named)


@lives(*KILLS, *REBOOTS)
async def test_whoever_is_killed_at_any_step_loses_no_device_and_hands_none_out_twice(
    tmp_path: Path, run: type[BrokerRun], fault: Fault
) -> None:
    check(run, tmp_path, fault, least=100)


@lives(*((run, failure) for run in LIVES for failure in FAILURES))
async def test_a_disk_that_fails_at_any_step_costs_a_call_that_succeeds_once_it_is_mended(
    tmp_path: Path, run: type[BrokerRun], fault: Fault
) -> None:
    check(run, tmp_path, fault, least=100)


@lives((Beside, Overlap()), (BesideLonger, Overlap()), (Newcomer, Overlap()))
async def test_an_agent_stopped_at_any_step_undoes_nothing_that_another_did_meanwhile(
    tmp_path: Path, run: type[BrokerRun], fault: Fault
) -> None:
    check(run, tmp_path, fault, least=60)
