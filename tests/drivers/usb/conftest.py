from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from recorded_machines import recorded
from recorded_steps import scratch
from usb_seen import Seen, see

from hardpoint import Device
from hardpoint.testing import FakeMachine

__all__ = ["look", "recorded", "scratch"]


@pytest.fixture
def look(machine: FakeMachine) -> Callable[..., Seen]:
    """Return a function that lists the fake machine as it is now."""

    def now(held: Mapping[str, Device] | None = None, **settings: Any) -> Seen:
        node = machine.node()
        if held is not None:
            node.held = lambda: held
        return see(node, **settings)

    return now
