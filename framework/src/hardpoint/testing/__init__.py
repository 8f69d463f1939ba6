"""Tools for tests of plugins: fake machines, a fake kubelet and API server, contract suites.

Names are imported when they are asked for: a driver's tests need no gRPC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardpoint.testing.agent import FakeAgent
    from hardpoint.testing.api_server import FakeApiServer
    from hardpoint.testing.driver_contract import DriverContract
    from hardpoint.testing.driver_under_test import DriverUnderTest, claim_for, hold_on
    from hardpoint.testing.durable import DurableRun, walk
    from hardpoint.testing.frontend_contract import FrontendContract
    from hardpoint.testing.gpus import FakeGpus, GpuStandIn
    from hardpoint.testing.kubelet import Container, FakeKubelet, Pod
    from hardpoint.testing.policy_contract import PolicyContract
    from hardpoint.testing.sysfs import FakeMachine

_WHERE = {
    "Container": "kubelet",
    "DriverContract": "driver_contract",
    "DriverUnderTest": "driver_under_test",
    "DurableRun": "durable",
    "FakeAgent": "agent",
    "FakeApiServer": "api_server",
    "FakeGpus": "gpus",
    "FakeKubelet": "kubelet",
    "FakeMachine": "sysfs",
    "FrontendContract": "frontend_contract",
    "GpuStandIn": "gpus",
    "Pod": "kubelet",
    "PolicyContract": "policy_contract",
    "claim_for": "driver_under_test",
    "hold_on": "driver_under_test",
    "walk": "durable",
}

__all__ = [
    "Container",
    "DriverContract",
    "DriverUnderTest",
    "DurableRun",
    "FakeAgent",
    "FakeApiServer",
    "FakeGpus",
    "FakeKubelet",
    "FakeMachine",
    "FrontendContract",
    "GpuStandIn",
    "Pod",
    "PolicyContract",
    "claim_for",
    "hold_on",
    "walk",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
