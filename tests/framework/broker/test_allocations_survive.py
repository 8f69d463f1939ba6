"""Allocations, replayed with a fault at every durable step of their life."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from allocation_runs import AllocationRun, BesideRun

from hardpoint.testing.durable import Fail, Fault, Kill, Overlap, Reboot, unsupported, walk

WHOLE = bool(os.environ.get("HARDPOINT_TEST_DURABLE"))
SAMPLE = 6

pytestmark = [
    pytest.mark.durable,
    pytest.mark.skipif(bool(unsupported()), reason=unsupported()),
    pytest.mark.timeout(7200 if WHOLE else 120),
]


def check(run: type[AllocationRun], directory: Path, fault: Fault, least: int) -> None:
    walked = walk(run, directory, fault, sample=None if WHOLE else SAMPLE)

    print(f"{run.__name__} {fault}: {len(walked.steps)} steps, {walked.rounds} walked")  # noqa: T201
    assert not walked.problems, "\n\n".join(walked.problems)
    assert len(walked.steps) > least
    assert walked.rounds >= SAMPLE - 1


@pytest.mark.parametrize("fault", [Kill(), Reboot(), Reboot(lost=False)], ids=str)
async def test_no_pod_loses_its_device_and_none_is_given_twice_whoever_is_killed_when(
    tmp_path: Path, fault: Fault
) -> None:
    check(AllocationRun, tmp_path, fault, least=60)


@pytest.mark.parametrize(
    "fault", [Fail(errno.ENOSPC, lasts=True), Fail(errno.EIO), Fail(errno.EMFILE)], ids=str
)
async def test_a_disk_that_fails_costs_a_pod_that_its_controller_starts_again(
    tmp_path: Path, fault: Fault
) -> None:
    check(AllocationRun, tmp_path, fault, least=60)


async def test_an_agent_stopped_at_any_step_takes_nothing_that_another_gave_meanwhile(
    tmp_path: Path,
) -> None:
    check(BesideRun, tmp_path, Overlap(), least=40)
