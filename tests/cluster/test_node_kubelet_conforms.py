"""The real kubelet does what ours is held to: the cases of ``conformance.kubelet_cases``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster.world import World
from conformance import kubelet_cases
from conformance.nodes import RealNode


@pytest.fixture
def node(session_world: World) -> Iterator[RealNode]:
    if session_world.version < (1, 37):
        pytest.skip("ours is a kubelet of 1.37")
    session_world.agent.start()
    with session_world.namespace() as namespace:
        yield RealNode(session_world, namespace)


class TestRegistration(kubelet_cases.Registration):
    pass


class TestWiping(kubelet_cases.Wiping):
    pass


class TestClaims(kubelet_cases.Claims):
    pass
