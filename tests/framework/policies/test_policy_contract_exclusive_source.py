"""The framework's isolation from rivals keeps the contract of policies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import MappingProxyType

import pytest
from plain_plugin import Plugin

from hardpoint.policies.exclusive_source import ExclusiveSource
from hardpoint.testing import PolicyContract
from hardpoint.testing.policy_contract import PolicyNode

_RIVAL = "nvidia.com/gpu"


class TestExclusiveSource(PolicyContract):
    plugin = ExclusiveSource
    settings = MappingProxyType({"every": 1, "return_after": 0})

    @pytest.fixture(autouse=True)
    async def _goes_again(self, anyio_backend: str) -> AsyncIterator[None]:
        async with AsyncExitStack() as self.going:
            yield

    async def come(self, node: PolicyNode) -> None:
        """Let a rival offer the same hardware."""
        self.rival = Plugin(node.root / "device-plugins", "GPU-1", resource=_RIVAL)
        await self.going.enter_async_context(self.rival.serving())
        await node.kubelet.until_allocatable(_RIVAL, 1)

    async def make_unreadable(self, node: PolicyNode) -> None:
        await node.kubelet.stop()
        node.server.down = True

    async def make_readable(self, node: PolicyNode) -> None:
        node.server.down = False
        await node.kubelet.start()

    async def change(self, node: PolicyNode) -> None:
        await self.come(node)


class TestExclusiveSourceBesideARival(TestExclusiveSource):
    """Everything is vetoed as it is arranged."""

    async def arrange(self, node: PolicyNode) -> None:
        await self.come(node)

    async def change(self, node: PolicyNode) -> None:
        """Let it have nothing any more; a kubelet that was started anew knows it still."""
        self.rival.tell()
