from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from plugin_world import World

from hardpoint.testing.kubelet import FakeKubelet


@pytest.fixture
async def world(short_path: Path, anyio_backend: str) -> AsyncIterator[World]:
    directories = {"device_plugins": short_path / "device-plugins", "cdi": [short_path / "cdi"]}
    async with FakeKubelet(short_path / "kubelet", **directories) as kubelet:  # type: ignore[arg-type]
        yield World(short_path, kubelet)
        assert kubelet.plugins.complaints == []
