"""A node that was moved to DRA while pods had its devices through the device plugin API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from slice_pool import DOMAIN, NODE, ManualClock, OfferingAgent, device, offered

from hardpoint.allocation import allocation_key
from hardpoint.kube import Kube
from hardpoint.model import ClaimKey, Hold
from hardpoint.testing.api_server import FakeApiServer
from hardpoint_dra.slices import SlicePublisher

MODERN, WITHOUT_TAINTS = 37, 35


class Moved:
    """A publisher, and who holds what."""

    def __init__(self, server: FakeApiServer, publisher: SlicePublisher, agent: OfferingAgent):
        self._server, self._publisher, self._agent = server, publisher, agent

    async def shows(self, *holders: ClaimKey, **facts: Any) -> dict[str, list[str]]:
        """Return what is published, and with which taints, while these hold ``gpu-0``."""
        self._agent.held = tuple(
            Hold(claim=key, device=device("gpu-0"), request="") for key in holders
        )
        self._agent.set(offered("gpu-0", held=bool(holders), **facts), "gpu-1")
        with anyio.fail_after(10):
            await self._publisher.settled()
        return {
            one["name"]: [taint["key"] for taint in one.get("taints", ())]
            for item in self._server.items("resourceslices")
            for one in item["spec"]["devices"]
        }


@pytest.fixture(params=[MODERN, WITHOUT_TAINTS])
def minor(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
async def moved(minor: int) -> AsyncIterator[Moved]:
    agent: Any = OfferingAgent()
    clock = ManualClock()
    async with (
        FakeApiServer(minor=minor) as server,
        Kube.at(server.url, sleep=clock.sleep) as kube,
        anyio.create_task_group() as tasks,
    ):
        server.add_node(NODE)
        publisher = SlicePublisher(agent, DOMAIN, kube, sleep=clock.sleep)
        tasks.start_soon(publisher.run)
        yield Moved(server, publisher, agent)
        tasks.cancel_scope.cancel()


POD = allocation_key("hardpoint.dev/gpu", "gpu-0", DOMAIN.dra_driver)
CLAIM = ClaimKey("uid-1", "default", "train", DOMAIN.dra_driver)
FREE: dict[str, list[str]] = {"gpu-0": [], "gpu-1": []}


async def test_a_claim_is_never_allocated_what_a_pod_has_through_the_device_plugin(
    moved: Moved, minor: int
) -> None:
    assert await moved.shows(POD) == (
        {"gpu-0": ["hardpoint.dev/in-use"], "gpu-1": []} if minor == MODERN else {"gpu-1": []}
    )

    assert await moved.shows() == FREE
    assert await moved.shows(CLAIM) == FREE


async def test_what_several_may_have_is_free_beside_such_a_pod(moved: Moved) -> None:
    assert await moved.shows(POD, shareable=True) == FREE


async def test_a_device_of_another_driver_under_the_same_name_is_free(moved: Moved) -> None:
    other = allocation_key("other.example.com/gpu", "gpu-0", "other.example.com")

    assert await moved.shows(other) == FREE
