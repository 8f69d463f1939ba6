"""Fixtures for every test: one event loop, and directories short enough for unix sockets."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import profiles
import pytest

profiles.register()  # --hypothesis-profile=nightly: see there


@pytest.fixture
def anyio_backend() -> str:
    """grpc.aio runs on asyncio alone."""
    return "asyncio"


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name: 107 bytes in all."""
    path = Path(tempfile.mkdtemp(prefix="hp-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
