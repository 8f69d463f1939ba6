from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from e2e_node import EndToEnd, end_to_end


@pytest.fixture
async def node(short_path: Path) -> AsyncIterator[EndToEnd]:
    async with end_to_end(short_path) as node:
        yield node
