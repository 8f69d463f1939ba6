"""A new ledger is whole or not there, whatever fails while it is made."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from hardpoint._core.ledger.ledger import Ledger
from hardpoint.errors import LedgerError
from hardpoint.testing.durable import DurableRun, Fail, Fault, Kill, Reboot, unsupported, walk

WHOLE = bool(os.environ.get("HARDPOINT_TEST_DURABLE"))

pytestmark = [
    pytest.mark.durable,
    pytest.mark.skipif(bool(unsupported()), reason=unsupported()),
    pytest.mark.timeout(300),
]


class NewLedger(DurableRun):
    """An agent's first start, as far as the ledger; whoever runs it starts it again."""

    watch = ("state",)
    restarts = 1

    def work(self, root: Path) -> None:
        try:
            Ledger(root / "state").close()
        except LedgerError as error:
            sys.exit(str(error))

    def look(self, root: Path) -> None:
        ledger = Ledger(root / "state")
        ledger.close()
        assert ledger.damage is None, ledger.damage
        assert sorted(os.listdir(root / "state")) == ["ledger.db", "ledger.lock"]


@pytest.mark.parametrize("fault", [Kill(), Reboot(), Fail(errno.EIO)], ids=str)
async def test_a_fault_while_the_ledger_is_made_leaves_no_half_made_one(
    tmp_path: Path, fault: Fault
) -> None:
    walked = walk(NewLedger, tmp_path, fault, sample=None if WHOLE else 25)

    assert not walked.problems, "\n\n".join(walked.problems)
