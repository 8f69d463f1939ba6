"""A list that is said again though nothing has changed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
from plugin_world import RADIO, radio

from hardpoint.allocation import PodUser
from hardpoint.kubelet import deviceplugin_v1beta1_pb2 as pb
from hardpoint.testing.agent import FakeAgent
from hardpoint_deviceplugin.resources import Entry, Resource
from hardpoint_deviceplugin.service import ResourceService

NO_CALLS: Any = None


def serving(agent: FakeAgent, **times: Any) -> ResourceService:
    agent.show(radio("radio-0"))
    service = ResourceService(agent, RADIO, NO_CALLS, **times)
    (offered,) = agent.offer.devices
    service.show(Resource(name=RADIO, entries=(Entry(id="radio-0", offered=offered),)), frozenset())
    return service


async def lists(stream: AsyncGenerator[Any, None], within: float) -> int:
    """Return how many lists come, of three at most."""
    count = 0
    with anyio.move_on_after(within):
        async for _ in stream:
            count += 1
            if count == 3:
                break
    return count


async def test_a_list_is_said_again_after_a_while(tmp_path: Path) -> None:
    service = serving(FakeAgent(tmp_path), resend=0.01)
    async with aclosing(service._list_and_watch(pb.Empty())) as stream:
        assert await lists(stream, 10) == 3


async def test_a_list_is_said_again_soon_while_a_device_waits_for_its_end(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path)
    service = serving(agent, resend=60, resend_soon=0.01)
    (entry,) = service.resource.entries
    await agent.allocate([entry.assignment(RADIO)])
    agent.users[RADIO, "radio-0"] = ()
    async with aclosing(service._list_and_watch(pb.Empty())) as stream:
        assert await lists(stream, 10) == 3


async def test_a_pod_that_has_its_device_costs_the_kubelet_no_lists(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path)
    service = serving(agent, resend=60, resend_soon=0.01)
    (entry,) = service.resource.entries
    await agent.allocate([entry.assignment(RADIO)])
    agent.users[RADIO, "radio-0"] = (PodUser("default", "train", "main"),)
    async with aclosing(service._list_and_watch(pb.Empty())) as stream:
        assert await lists(stream, 0.3) == 1
