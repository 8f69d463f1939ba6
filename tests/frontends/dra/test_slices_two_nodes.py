"""Two nodes under one driver's name."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from slice_pool import DOMAIN, OfferingAgent, offer

from hardpoint.kube import Kube
from hardpoint.node import Node
from hardpoint.testing.api_server import FakeApiServer
from hardpoint.testing.clock import ManualClock
from hardpoint_dra.slices import SlicePublisher


@pytest.mark.field_case("K01")
async def test_each_node_has_a_pool_of_its_own_whose_generation_rises_alone() -> None:
    async with FakeApiServer() as server, Kube.at(server.url) as kube:
        agents, publishers = {}, {}
        async with anyio.create_task_group() as tasks:
            for name in ("node-a", "node-b"):
                server.add_node(name)
                agent: Any = OfferingAgent(offer("gpu-0", "gpu-1"))
                agent.node = Node(name=name)
                agents[name] = agent
                publishers[name] = SlicePublisher(agent, DOMAIN, kube, sleep=ManualClock().sleep)
                tasks.start_soon(publishers[name].run)
            for publisher in publishers.values():
                with anyio.fail_after(10):
                    await publisher.settled()
            first = _pools(server)
            agents["node-b"].set(*(f"gpu-{n}" for n in range(200)))
            with anyio.fail_after(10):
                await publishers["node-b"].settled()
            tasks.cancel_scope.cancel()

    assert first == {"node-a": (1, 1, 2), "node-b": (1, 1, 2)}
    assert _pools(server) == {"node-a": (1, 1, 2), "node-b": (2, 2, 200)}


def _pools(server: FakeApiServer) -> dict[str, tuple[int, int, int]]:
    """Return generation, number of slices and number of devices of each pool, by its node."""
    found: dict[str, tuple[int, int, int]] = {}
    for body in server.items("resourceslices"):
        spec, pool = body["spec"], body["spec"]["pool"]
        assert pool["name"] == spec["nodeName"]
        before = found.get(pool["name"], (pool["generation"], pool["resourceSliceCount"], 0))
        assert before[:2] == (pool["generation"], pool["resourceSliceCount"])
        found[pool["name"]] = (*before[:2], before[2] + len(spec["devices"]))
    return found
