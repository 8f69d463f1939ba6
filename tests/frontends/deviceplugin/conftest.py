from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from plugin_kubelet import plugin_kubelet
from plugin_world import World


@pytest.fixture
async def world(short_path: Path, anyio_backend: str) -> AsyncIterator[World]:
    async with plugin_kubelet(short_path / "device-plugins") as kubelet:
        yield World(short_path, kubelet)
