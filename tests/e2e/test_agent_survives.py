"""``hardpoint run`` itself, replayed with a fault at every durable step and at every reply.

``make test`` takes a sample of the steps, the same every time; ``make test-durable`` takes all.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from agent_run import WholeAgent

from hardpoint.testing.durable import Fail, Fault, Kill, Reboot, unsupported, walk

WHOLE = bool(os.environ.get("HARDPOINT_TEST_DURABLE"))
SAMPLE = 3

pytestmark = [
    pytest.mark.durable,
    pytest.mark.skipif(bool(unsupported()), reason=unsupported()),
    pytest.mark.timeout(14_400 if WHOLE else 240),
]

FAULTS: tuple[Fault, ...] = (
    Kill(),
    Fail(errno.EIO),
    *((Reboot(), Fail(errno.ENOSPC, lasts=True), Fail(errno.EMFILE)) if WHOLE else ()),
)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_the_agent_goes_on_after_a_fault_at_any_step_of_its_life(
    short_path: Path, fault: Fault
) -> None:
    walked = walk(WholeAgent, short_path, fault, sample=None if WHOLE else SAMPLE)

    print(f"{fault}: {len(walked.steps)} steps, {walked.rounds} walked, ended by {walked.restarts}")  # noqa: T201
    assert not walked.problems, "\n\n".join(walked.problems)
    assert len(walked.steps) > 300
    assert walked.rounds >= SAMPLE - 1
    assert "reply" in {step.call for step in walked.steps}
