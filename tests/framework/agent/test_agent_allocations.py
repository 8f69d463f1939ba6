"""Devices held under a resource and an id by an agent, with a kubelet that lists its pods."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from plain_plugin import Plugin

from hardpoint._core.agent import HardpointAgent
from hardpoint._core.pods.absence import Pace
from hardpoint._core.pods.podwatch import SOURCE
from hardpoint._core.state import read_status
from hardpoint.allocation import Assignment, PodUser
from hardpoint.errors import HoldConflict, HoldError
from hardpoint.kubelet import deviceplugin_v1beta1_pb2 as pb
from hardpoint.kubelet.services import Status
from hardpoint.model import Domain, Event
from hardpoint.testing import Container, FakeKubelet, Pod

from .conftest import World, claim, reading

RADIO = "hardpoint.dev/radio"
QUICK = Pace(every=0.02, apart=0.02, margin=0.1, settle=0.2)


def assignment(device: str) -> Assignment:
    domain = Domain.named("hardpoint.dev")
    return Assignment(resource=RADIO, id=device, device=device, domain=domain)


class Radios(Plugin):
    """A device plugin that asks an agent, as a frontend does."""

    agent: HardpointAgent
    again = 0.05

    async def _allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        self.asked.append(request)
        ids = request.container_requests[0].devices_ids
        try:
            got = await self.agent.allocate([assignment(id_) for id_ in ids])
        except HoldError as error:
            raise Status("FAILED_PRECONDITION", str(error)) from error
        names = [pb.CDIDevice(name=name) for one in got for name in one.cdi_ids]
        return pb.AllocateResponse(
            container_responses=[pb.ContainerAllocateResponse(cdi_devices=names)]
        )


class Node:
    """An agent and a kubelet, joined by a device plugin."""

    def __init__(self, world: World, kubelet: FakeKubelet, plugin: Radios) -> None:
        self.world, self.kubelet, self.plugin = world, kubelet, plugin

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[HardpointAgent]:
        async with self.world.agent(pace=QUICK) as agent:
            agent.announce(RADIO, [assignment("radio0"), assignment("radio1")])
            self.plugin.agent = agent
            yield agent


@pytest.fixture
async def node(world: World, short_path: Path) -> AsyncIterator[Node]:
    plugins = short_path / "plugins"
    world.paths = world.paths.model_copy(update={"device_plugins": plugins})
    kubelet = FakeKubelet(world.root / "kubelet", device_plugins=plugins, cdi=[world.paths.cdi])
    kubelet.runtime._info = world.machine.node().info
    plugin = Radios(plugins, "radio0", "radio1", resource=RADIO)
    async with kubelet, plugin.serving():
        await kubelet.until_allocatable(RADIO, 2)
        await kubelet.admit(Pod(name="bystander"))
        yield Node(world, kubelet, plugin)


def pod(name: str, count: int = 1) -> Pod:
    return Pod(name=name, containers=(Container(name="main", resources={RADIO: count}),))


async def until(true: Callable[[], bool], within: float = 10) -> None:
    with anyio.fail_after(within):
        while not true():  # noqa: ASYNC110 - a file and a process's own clock set no Event
            await anyio.sleep(0.01)


async def test_a_pods_device_is_held_shown_and_free_again_when_the_pod_is_over(node: Node) -> None:
    async with node.agent() as agent:
        (got,) = await node.kubelet.admit(pod("train"))
        await node.kubelet.run(pod("train"))
        (device,) = got.ids
        wanted = claim(device)
        with pytest.raises(HoldConflict, match=f"hardpoint.dev/radio/{device} holds"):
            await agent.prepare(wanted.key, reading(wanted))
        users = (PodUser("default", "train", "main"),)
        await until(lambda: [one.users for one in agent.allocations()] == [users])
        await until(lambda: _held(node.world) == [(f"{RADIO}/{device}", ["default/train"])])

        await node.kubelet.admit(pod("other"))
        node.kubelet.end(pod("train"))
        await until(lambda: len(agent.allocations()) == 1)
        assert device not in [one.id for one in agent.allocations()]
        await agent.prepare(wanted.key, reading(wanted))


async def test_an_init_containers_device_is_held_while_its_pod_lives(node: Node) -> None:
    first = Container(name="load", resources={RADIO: 1}, init=True)
    loading = Pod(name="train", containers=(first, Container(name="main")))
    async with node.agent() as agent:
        (got,) = await node.kubelet.admit(loading)
        (device,) = got.ids
        before = node.kubelet.pods.lists
        await until(lambda: node.kubelet.pods.lists > before + 40)
        assert [one.id for one in agent.allocations()] == [device]

        node.kubelet.end(loading)
        await until(lambda: not agent.allocations())


async def test_a_pod_keeps_its_device_through_restarts_of_kubelet_and_agent(node: Node) -> None:
    async with node.agent():
        (got,) = await node.kubelet.admit(pod("train"))
        before = await node.kubelet.run(pod("train"))
    await node.kubelet.restart(api=False)
    async with node.agent() as agent:
        await until(lambda: node.kubelet.pods.lists > 5)
        assert [one.id for one in agent.allocations()] == list(got.ids)
        assert any(entry.source == SOURCE for entry in agent.board.entries)
        assert await node.kubelet.run(pod("train")) == before
        node.kubelet.hear()
        await until(lambda: not agent.board.entries)
        assert [one.id for one in agent.allocations()] == list(got.ids)
    assert len(node.plugin.asked) == 1


async def test_a_lost_state_directory_costs_no_pod_its_device(node: Node) -> None:
    async with node.agent():
        (got,) = await node.kubelet.admit(pod("train"))
        before = await node.kubelet.run(pod("train"))
    for path in (*node.world.paths.state.iterdir(), *node.world.paths.cdi.iterdir()):
        path.unlink()

    async with node.agent() as agent:
        assert [(one.resource, one.id) for one in agent.allocations()] == [(RADIO, got.ids[0])]
        assert await node.kubelet.run(pod("train")) == before


async def test_pods_that_cannot_be_read_are_said_and_end_nothing(node: Node) -> None:
    async def lie(answer: object) -> object:
        raise Status("INTERNAL", "out of order")

    async with node.agent() as agent:
        await node.kubelet.admit(pod("train"))
        node.kubelet.answer_pods(lie)  # type: ignore[arg-type]
        node.kubelet.end(pod("train"))
        await until(lambda: any("out of order" in e.message for e in agent.board.entries))
        seen = node.kubelet.pods.lists
        await until(lambda: node.kubelet.pods.lists > seen + 3)
        assert len(agent.allocations()) == 1
        await until(lambda: "out of order" in _note(node.world).get("read", ""))
        node.kubelet.answer_pods(None)
        await until(lambda: agent.allocations() == () and not agent.board.entries)


async def test_two_agents_answer_for_one_device_and_one_of_them_ends_it(node: Node) -> None:
    async with node.agent() as old, node.agent() as new:
        assert (old.writing(), new.writing()) == (True, False)
        (got,) = await node.kubelet.admit(pod("train"))
        assert [one.id for one in new.allocations()] == list(got.ids)
        (again,) = await old.allocate([assignment(got.ids[0])])
        assert again.cdi_ids == got.cdi_ids
        node.kubelet.end(pod("train"))
        await until(lambda: new.allocations() == ())
        assert old.allocations() == ()


async def test_a_domain_is_not_served_for_an_allocations_sake(node: Node) -> None:
    """The kubelet ends claims through their driver's name; allocations it ends nowhere."""
    odd = Assignment(
        resource="old.dev/radio", id="r", device="radio0", domain=Domain.named("hardpoint.dev")
    )
    async with node.agent() as agent:
        await agent.allocate([odd])
        agent.report(Event(name="looked", message="looked"))
        assert [domain.dra_driver for domain in agent.domains] == ["hardpoint.dev"]


def _held(world: World) -> list[tuple[str, list[str]]]:
    holds = read_status(world.paths.state).get("holds", ())
    return [(one["claim"], one["pods"]) for one in holds]


def _note(world: World) -> dict[str, str]:
    note: dict[str, str] = read_status(world.paths.state).get("notes", {}).get(SOURCE, {})
    return note
