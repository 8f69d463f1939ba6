from __future__ import annotations

from pathlib import Path

import pytest
from shell import Shell


@pytest.fixture
def shell(short_path: Path) -> Shell:
    return Shell(short_path)
