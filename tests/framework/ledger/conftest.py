"""A ledger, and the same one as another agent has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hardpoint._core.ledger.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "state")
    yield opened
    opened.close()


@pytest.fixture
def other(ledger: Ledger) -> Iterator[Ledger]:
    """The ledger as the other agent of a rolling update sees it."""
    opened = Ledger(ledger.path.parent)
    yield opened
    opened.close()
