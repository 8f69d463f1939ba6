from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's 107 bytes; ``tmp_path`` does not."""
    path = Path(tempfile.mkdtemp(prefix="hp-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
