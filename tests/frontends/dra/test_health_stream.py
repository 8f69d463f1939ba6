"""The kubelet knows how every device is, at once and for as long as we live."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import anyio
import pytest
from dra_node import DRIVER, NODE, device, running

from hardpoint.kubelet import dra_health_v1_pb2, dra_health_v1alpha1_pb2
from hardpoint.model import Condition, Domain, Health, Offered
from hardpoint.testing.agent import FakeAgent
from hardpoint_dra.health import HealthService, cut

BOTH = [dra_health_v1_pb2, dra_health_v1alpha1_pb2]


@asynccontextmanager
async def _stream(
    service: HealthService, messages: ModuleType = dra_health_v1_pb2
) -> AsyncIterator[Any]:
    stream = service.methods(messages)["NodeWatchResources"](messages.NodeWatchResourcesRequest())
    async with running(service.run):
        yield stream
    await stream.aclose()


def _told(message: Any) -> dict[str, tuple[int, str]]:
    return {
        device.device.device_name: (device.health, device.message) for device in message.devices
    }


@pytest.mark.parametrize("messages", BOTH)
async def test_every_device_is_told_with_its_pool_state_and_message(
    short_path: Any, messages: ModuleType
) -> None:
    agent = FakeAgent(short_path)
    agent.show(device("a"), device("b"), device("c"))
    agent.set_health("b", Health(Condition.UNHEALTHY, "XID 79"))
    agent.set_health("c", Health(Condition.UNKNOWN))
    async with _stream(HealthService(agent, DRIVER, now=lambda: 1234.5), messages) as stream:
        message = await anext(stream)

    assert _told(message) == {"a": (1, ""), "b": (2, "XID 79"), "c": (0, "")}
    assert {one.device.pool_name for one in message.devices} == {NODE}
    assert {one.last_updated_time for one in message.devices} == {1234}


@pytest.mark.field_case("K03")
async def test_a_change_is_told_at_once_with_the_whole_list(short_path: Any) -> None:
    agent = FakeAgent(short_path)
    agent.show(device("a"), device("b"))
    async with _stream(HealthService(agent, DRIVER, resend=3600)) as stream:
        await anext(stream)
        agent.set_health("a", Health(Condition.UNHEALTHY, "fell off the bus"))

        with anyio.fail_after(5):
            message = await anext(stream)

    assert _told(message) == {"a": (2, "fell off the bus"), "b": (1, "")}


@pytest.mark.field_case("K03")
async def test_without_a_change_it_is_told_again(short_path: Any) -> None:
    agent = FakeAgent(short_path)
    agent.show(device("a"))
    async with _stream(HealthService(agent, DRIVER, resend=0.01)) as stream:
        with anyio.fail_after(5):
            messages = [await anext(stream) for _ in range(3)]

    assert [_told(message) for message in messages] == [{"a": (1, "")}] * 3


async def test_only_this_drivers_devices_are_told(short_path: Any) -> None:
    other = Domain.named("gpu.hardpoint.dev")
    agent = FakeAgent(short_path, domains=[Domain.named(DRIVER), other])
    agent.show(device("a"), Offered(device=device("b"), domain=other))
    async with _stream(HealthService(agent, "gpu.hardpoint.dev")) as stream:
        assert list(_told(await anext(stream))) == ["b"]


async def test_a_device_that_is_gone_is_left_out(short_path: Any) -> None:
    agent = FakeAgent(short_path)
    agent.show(device("a"), device("b"))
    async with _stream(HealthService(agent, DRIVER, resend=3600)) as stream:
        await anext(stream)
        agent.show(device("b"))
        with anyio.fail_after(5):
            assert list(_told(await anext(stream))) == ["b"]


async def test_several_streams_all_hear_it(short_path: Any) -> None:
    agent = FakeAgent(short_path)
    agent.show(device("a"))
    service = HealthService(agent, DRIVER, resend=3600)
    async with _stream(service) as first, _second(service) as second:
        await anext(first)
        await anext(second)
        agent.set_health("a", Health(Condition.UNHEALTHY))
        with anyio.fail_after(5):
            assert [_told(await anext(stream))["a"][0] for stream in (first, second)] == [2, 2]


@asynccontextmanager
async def _second(service: HealthService) -> AsyncIterator[Any]:
    messages = dra_health_v1alpha1_pb2
    stream = service.methods(messages)["NodeWatchResources"](messages.NodeWatchResourcesRequest())
    yield stream
    await stream.aclose()


@pytest.mark.parametrize("length", [1024, 1025, 5000])
def test_a_message_is_cut_to_what_the_kubelet_keeps(length: int) -> None:
    told = cut("x" * length)

    assert len(told) == 1024
    assert told.endswith("..." if length > 1024 else "xxx")
