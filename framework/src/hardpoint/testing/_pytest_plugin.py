"""Fixtures for the tests of driver packages, through pytest's ``pytest11`` entry point.

Everything is imported inside the fixtures, so that coverage still sees a package's import lines.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hardpoint.testing.sysfs import FakeMachine


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    """A machine made of files, empty at first: see ``hardpoint.testing.sysfs``."""
    from hardpoint.testing.sysfs import FakeMachine

    return FakeMachine(tmp_path / "machine")
