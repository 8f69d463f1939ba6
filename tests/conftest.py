"""Fixtures for every test: one event loop, and directories short enough for unix sockets."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import profiles
import pytest
from anyio._backends._asyncio import TestRunner

profiles.register()  # --hypothesis-profile=nightly: see there


@pytest.fixture(scope="session", autouse=True)
def _late_events() -> Iterator[None]:
    """What is late for one test's event loop is no fault of the test after it.

    grpc.aio has one completion queue for all loops of a process (``PollerCompletionQueue``): on a
    busy machine an event of a loop that is closed is handed on by the next one, which fails.
    """
    tell = TestRunner._exception_handler

    def handler(
        runner: TestRunner, loop: asyncio.AbstractEventLoop, context: dict[str, Any]
    ) -> None:
        late = str(context.get("exception")) == "Event loop is closed"
        if not (late and "PollerCompletionQueue" in str(context.get("message"))):
            tell(runner, loop, context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TestRunner, "_exception_handler", handler)
        yield


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
