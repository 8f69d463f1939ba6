"""Whatever happens to the kubelet, its directory or our socket: registered again, by itself."""

from __future__ import annotations

import shutil
import socket
import stat
from typing import Any

import anyio
import pytest
from plugin_world import RADIO, World, radio

from hardpoint.errors import CallFailed
from hardpoint.kubelet.client import Client
from hardpoint.kubelet.services import Status
from hardpoint.testing.agent import FakeAgent


def deafen(world: World) -> None:
    """Let the kubelet register plugins and not listen to them, until ``hear``."""

    async def follow(instance: Any) -> None:
        await instance.client.close()

    world.kubelet.plugins._follow = follow  # type: ignore[method-assign]


def hear(world: World) -> None:
    del world.kubelet.plugins.__dict__["_follow"]


@pytest.fixture
def agent(world: World) -> FakeAgent:
    world.agent.show(radio("radio-0"))
    return world.agent


async def test_a_resource_is_registered_as_the_kubelet_wants_it(
    world: World, agent: FakeAgent
) -> None:
    async with world.serving():
        known = await world.until_listed(RADIO, "radio-0")

        (registration,) = world.kubelet.plugins.registrations
        assert (registration.version, registration.resource) == ("v1beta1", RADIO)
        assert registration.endpoint == known.path.name
        assert (known.preferred, known.pre_start) == (True, False)


# -- the kubelet comes and goes -------------------------------------------------------------------


@pytest.mark.field_case("A02")
async def test_a_kubelet_that_was_restarted_has_every_resource_again(
    world: World, agent: FakeAgent
) -> None:
    agent.show(radio("radio-0"), radio("radio-1"))
    async with world.serving():
        for times in range(2, 5):
            await world.kubelet.restart()
            with anyio.fail_after(2):
                await world.until_listed(RADIO, "radio-0", "radio-1")

            assert world.registered == [RADIO] * times


@pytest.mark.field_case("A02")
async def test_a_kubelet_whose_new_socket_has_the_old_inode_is_noticed(
    world: World, agent: FakeAgent
) -> None:
    path = world.kubelet.plugins.socket
    async with world.serving():
        before = path.lstat()
        path.chmod(stat.S_IMODE(before.st_mode) ^ 0o040)  # the same inode, changed at another time
        await world.until_registered(2)

        assert path.lstat().st_ino == before.st_ino


@pytest.mark.field_case("A03")
async def test_a_directory_that_was_replaced_is_followed(world: World, agent: FakeAgent) -> None:
    directory = world.directory
    async with world.serving():
        await world.kubelet.stop()
        directory.rename(directory.with_name("old"))
        await agent.until(lambda: bool(agent.faults))
        await world.kubelet.start()
        with anyio.fail_after(2):
            await world.until_listed(RADIO, "radio-0")
        await agent.until(lambda: not agent.faults)

        shutil.rmtree(directory)
        await world.kubelet.restart()
        await world.until_listed(RADIO, "radio-0")


@pytest.mark.field_case("A03")
async def test_a_kubelet_that_dies_while_it_registers_is_told_again(
    world: World, agent: FakeAgent
) -> None:
    asked = anyio.Event()
    admit = world.kubelet.plugins._admit

    async def hang(request: Any) -> None:
        asked.set()
        await anyio.sleep_forever()

    world.kubelet.plugins._admit = hang  # type: ignore[method-assign]
    async with world.serving(wait=False):
        await asked.wait()
        world.kubelet.plugins._admit = admit  # type: ignore[method-assign]
        with anyio.fail_after(3):
            await world.kubelet.restart()
            await world.until_listed(RADIO, "radio-0")


@pytest.mark.field_case("A03")
async def test_our_socket_lost_before_the_kubelet_listens_is_made_again(
    world: World, agent: FakeAgent
) -> None:
    deafen(world)
    async with world.serving(wait=False):
        await world.until_registered(1)
        hear(world)
        (path,) = world.sockets - {"kubelet.sock"}
        (world.directory / path).unlink()
        await world.until_listed(RADIO, "radio-0")


@pytest.mark.field_case("A03")
async def test_a_kubelet_that_dies_while_it_allocates_costs_that_pod_alone(
    world: World, agent: FakeAgent
) -> None:
    async with world.serving():
        await world.until_listed(RADIO, "radio-0")
        agent.gate = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def admit() -> None:
                with pytest.raises(CallFailed):
                    await world.allocate(RADIO, ["radio-0"])

            tasks.start_soon(admit)
            await agent.until(lambda: bool(agent.allocated))
            await world.kubelet.restart()
            agent.gate.set()
        await world.until_listed(RADIO, "radio-0")

        answer = await world.allocate(RADIO, ["radio-0"])
        assert len(answer.container_responses[0].cdi_devices) == 1


@pytest.mark.field_case("A04")
async def test_a_socket_file_that_nobody_serves_is_said_and_left_alone(
    world: World, agent: FakeAgent
) -> None:
    await world.kubelet.stop(killed=True)
    path = world.kubelet.plugins.socket
    async with world.serving(wait=False) as ready:
        await agent.until(lambda: bool(agent.faults))
        ((source, messages),) = agent.faults.items()
        assert source == f"frontend/deviceplugin registration of {RADIO}"
        assert "did not take" in messages[0]
        assert path.is_socket()
        assert not ready.is_set()

        await world.kubelet.start()
        await world.until_listed(RADIO, "radio-0")
        await agent.until(lambda: not agent.faults)


@pytest.mark.field_case("A12")
async def test_a_kubelet_that_is_not_there_is_said_with_the_path(
    world: World, agent: FakeAgent
) -> None:
    await world.kubelet.stop()
    async with world.serving(wait=False, registration_silence=0.05):
        await agent.until(lambda: bool(agent.faults))

        (messages,) = agent.faults.values()
        assert f"no kubelet at {world.kubelet.plugins.socket}" in messages[0]


async def test_a_refusal_of_the_kubelet_is_said_in_its_words_and_tried_again(
    world: World, agent: FakeAgent
) -> None:
    admit = world.kubelet.plugins._admit

    async def refuse(request: Any) -> None:
        raise Status("UNKNOWN", "the resource name is already taken")

    world.kubelet.plugins._admit = refuse  # type: ignore[method-assign]
    async with world.serving(wait=False):
        await agent.until(lambda: bool(agent.faults))
        (messages,) = agent.faults.values()
        assert messages[0] == f"the kubelet refused {RADIO}: the resource name is already taken"

        world.kubelet.plugins._admit = admit  # type: ignore[method-assign]
        await world.until_listed(RADIO, "radio-0")
        await agent.until(lambda: not agent.faults)


# -- streams --------------------------------------------------------------------------------------


@pytest.mark.field_case("A05")
async def test_a_stream_that_ended_without_a_successor_is_registered_again(
    world: World, agent: FakeAgent
) -> None:
    async with world.serving(listens_within=0.1):
        world.hang_up(RADIO)
        await world.until_registered(2)
        await world.until_listed(RADIO, "radio-0")

        assert agent.faults == {}


async def test_a_kubelet_that_registers_and_does_not_listen_is_said_and_told_again(
    world: World, agent: FakeAgent
) -> None:
    deafen(world)
    async with world.serving(wait=False, listens_within=0.1) as ready:
        await agent.until(lambda: bool(agent.faults))
        (messages,) = agent.faults.values()
        assert f"does not listen to {RADIO}" in messages[0]
        assert not ready.is_set()

        hear(world)
        await world.until_listed(RADIO, "radio-0")
        await agent.until(lambda: not agent.faults)


@pytest.mark.field_case("A06")
async def test_every_stream_begins_with_the_whole_list(world: World, agent: FakeAgent) -> None:
    async with world.serving(listens_within=0.1):
        await world.until_listed(RADIO, "radio-0")
        world.hang_up(RADIO)
        await world.until_registered(2)
        await world.until_listed(RADIO, "radio-0")

        assert world.lists[RADIO] == [{"radio-0": "Healthy"}] * 2


# -- our own socket -------------------------------------------------------------------------------


async def test_our_socket_that_was_removed_is_made_again_and_stays_registered(
    world: World, agent: FakeAgent
) -> None:
    async with world.serving(listens_within=0.1):
        old = await world.until_listed(RADIO, "radio-0")
        old.path.unlink()
        await world.until_registered(2)
        new = await world.until_listed(RADIO, "radio-0")
        agent.show(radio("radio-0"), radio("radio-1"))
        await world.until_listed(RADIO, "radio-0", "radio-1")

        assert new.path.is_socket()
        assert world.registered == [RADIO] * 2
        assert agent.faults == {}


async def test_nothing_is_left_when_the_frontend_ends(world: World, agent: FakeAgent) -> None:
    async with world.serving():
        assert len(world.sockets) == 2

    assert world.sockets == {"kubelet.sock"}


async def test_sockets_of_killed_agents_go_and_those_of_others_stay(
    world: World, agent: FakeAgent
) -> None:
    names = ("hardpoint-radio-0123456789ab.sock", "theirs.sock")
    for name in names:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(world.directory / name))
    async with world.serving():
        assert names[0] not in world.sockets
        assert names[1] in world.sockets


# -- two agents -----------------------------------------------------------------------------------


async def test_of_two_agents_only_the_one_that_writes_is_registered(
    world: World, agent: FakeAgent
) -> None:
    old = FakeAgent(world.root, instance="old")
    new = FakeAgent(world.root, instance="new", writing=False)
    for one in (old, new):
        one.show(radio("radio-0"))
    async with world.serving(agent=new):  # it is ready: an update waits for that
        assert world.registered == []
        async with world.serving(agent=old):
            first = await world.until_listed(RADIO, "radio-0")
            assert world.sockets == {first.path.name, "kubelet.sock"}
        assert world.sockets == {"kubelet.sock"}

        new.become_writer()
        await world.until_registered(2)
        second = await world.until_listed(RADIO, "radio-0")
        assert second.path != first.path


async def test_an_agent_that_takes_over_leaves_the_socket_of_a_living_one_alone(
    world: World, agent: FakeAgent
) -> None:
    old = FakeAgent(world.root, instance="old")
    new = FakeAgent(world.root, instance="new", writing=False)
    for one in (old, new):
        one.show(radio("radio-0"))
    async with world.serving(agent=new), world.serving(agent=old):
        first = await world.until_listed(RADIO, "radio-0")
        new.become_writer()  # before the old one has removed its sockets
        await world.until_registered(2)

        assert first.path.is_socket()
        async with Client(first.path) as client:
            await client.channel.channel_ready()
