"""Our kubelet does what the real one does: the cases that ``tests/cluster`` runs too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from conformance import kubelet_cases
from conformance.nodes import FakeNode, fake_node


@pytest.fixture
async def node(short_path: Path) -> AsyncIterator[FakeNode]:
    async with fake_node(short_path) as node:
        yield node


class TestRegistration(kubelet_cases.Registration):
    pass


class TestWiping(kubelet_cases.Wiping):
    pass


class TestClaims(kubelet_cases.Claims):
    pass
