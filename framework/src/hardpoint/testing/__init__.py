"""Tools for tests of plugins: fake machines, a fake kubelet and API server, contract suites.

Names are imported when they are asked for: a driver's tests need no gRPC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardpoint.testing.driver_contract import DriverContract
    from hardpoint.testing.frontend_contract import FrontendContract
    from hardpoint.testing.sysfs import FakeMachine

_WHERE = {
    "DriverContract": "hardpoint.testing.driver_contract",
    "FakeMachine": "hardpoint.testing.sysfs",
    "FrontendContract": "hardpoint.testing.frontend_contract",
}

__all__ = ["DriverContract", "FakeMachine", "FrontendContract"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(name)
