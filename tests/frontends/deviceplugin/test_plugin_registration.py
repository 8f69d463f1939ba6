"""Whatever happens to the kubelet, its directory or our socket: registered again, by itself."""

from __future__ import annotations

import shutil
import socket
import stat

import anyio
import pytest
from plugin_world import RADIO, World, radio

from hardpoint.errors import CallFailed
from hardpoint.kubelet.client import Client
from hardpoint.testing.agent import FakeAgent

field_case = pytest.mark.field_case


@pytest.fixture
def agent(world: World) -> FakeAgent:
    world.agent.show(radio("radio-0"))
    return world.agent


async def test_a_resource_is_registered_as_the_kubelet_wants_it(
    world: World, agent: FakeAgent
) -> None:
    async with world.serving():
        known = await world.kubelet.until_listed(RADIO, "radio-0")

        request = known.request
        assert (request.version, request.resource_name) == ("v1beta1", RADIO)
        assert "/" not in request.endpoint
        assert request.options == known.options
        assert known.options.get_preferred_allocation_available
        assert not known.options.pre_start_required


# -- the kubelet comes and goes -------------------------------------------------------------------


@field_case("A02")
@pytest.mark.parametrize("wipe", [True, False])
async def test_a_kubelet_that_was_restarted_has_every_resource_again(
    world: World, agent: FakeAgent, wipe: bool
) -> None:
    agent.show(radio("radio-0"), radio("radio-1"))
    async with world.serving():
        await world.kubelet.restart(wipe=wipe)
        with anyio.fail_after(2):
            await world.kubelet.until_listed(RADIO, "radio-0", "radio-1")

        assert world.kubelet.registered == [RADIO, RADIO]


@field_case("A02")
async def test_a_kubelet_whose_new_socket_has_the_old_inode_is_noticed(
    world: World, agent: FakeAgent
) -> None:
    path = world.kubelet.directory / "kubelet.sock"
    async with world.serving():
        before = path.lstat()
        world.kubelet.known.clear()
        path.chmod(stat.S_IMODE(before.st_mode) ^ 0o040)  # the same inode, changed at another time
        await world.kubelet.until(lambda: len(world.kubelet.registered) == 2)

        assert path.lstat().st_ino == before.st_ino


@field_case("A03")
async def test_a_directory_that_was_replaced_is_followed(world: World, agent: FakeAgent) -> None:
    directory = world.kubelet.directory
    async with world.serving():
        await world.kubelet.stop()
        directory.rename(directory.with_name("old"))
        await agent.until(lambda: bool(agent.faults))
        await world.kubelet.start()
        with anyio.fail_after(2):
            await world.kubelet.until_listed(RADIO, "radio-0")
        await agent.until(lambda: not agent.faults)

        shutil.rmtree(directory)
        await world.kubelet.stop()
        await world.kubelet.start()
        await world.kubelet.until_listed(RADIO, "radio-0")


@field_case("A03")
async def test_a_kubelet_that_dies_while_it_registers_is_told_again(
    world: World, agent: FakeAgent
) -> None:
    kubelet = world.kubelet
    kubelet.gate = anyio.Event()
    async with world.serving(wait=False):
        await kubelet.until(lambda: kubelet.asked)
        await kubelet.restart()
        kubelet.gate.set()
        await kubelet.until_listed(RADIO, "radio-0")


@field_case("A03")
async def test_our_socket_lost_before_the_kubelet_listens_is_made_again(
    world: World, agent: FakeAgent
) -> None:
    kubelet = world.kubelet
    kubelet.deaf = True
    async with world.serving(wait=False):
        await kubelet.until(lambda: kubelet.registered)
        kubelet.deaf = False
        (kubelet.directory / kubelet.known[RADIO].request.endpoint).unlink()
        await kubelet.until_listed(RADIO, "radio-0")


@field_case("A03")
async def test_a_kubelet_that_dies_while_it_allocates_costs_that_pod_alone(
    world: World, agent: FakeAgent
) -> None:
    async with world.serving():
        await world.kubelet.until_listed(RADIO, "radio-0")
        agent.gate = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def admit() -> None:
                with pytest.raises(CallFailed):
                    await world.kubelet.allocate(RADIO, ["radio-0"])

            tasks.start_soon(admit)
            await agent.until(lambda: bool(agent.allocated))
            await world.kubelet.restart()
            agent.gate.set()
        await world.kubelet.until_listed(RADIO, "radio-0")

        answer = await world.kubelet.allocate(RADIO, ["radio-0"])
        assert len(answer.container_responses[0].cdi_devices) == 1


@field_case("A04")
async def test_a_socket_file_that_nobody_serves_is_said_and_left_alone(
    world: World, agent: FakeAgent
) -> None:
    await world.kubelet.stop()
    path = world.kubelet.directory / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with world.serving(wait=False) as ready:
        await agent.until(lambda: bool(agent.faults))
        ((source, messages),) = agent.faults.items()
        assert source == f"frontend/deviceplugin registration of {RADIO}"
        assert "did not take" in messages[0]
        assert path.is_socket()
        assert not ready.is_set()

        await world.kubelet.start()
        await world.kubelet.until_listed(RADIO, "radio-0")
        await agent.until(lambda: not agent.faults)


@field_case("A12")
async def test_a_kubelet_that_is_not_there_is_said_with_the_path(
    world: World, agent: FakeAgent
) -> None:
    await world.kubelet.stop()
    async with world.serving(wait=False, registration_silence=0.05):
        await agent.until(lambda: bool(agent.faults))

        (messages,) = agent.faults.values()
        assert f"no kubelet at {world.kubelet.directory}/kubelet.sock" in messages[0]


async def test_a_refusal_of_the_kubelet_is_said_in_its_words_and_tried_again(
    world: World, agent: FakeAgent
) -> None:
    world.kubelet.refuse = "the resource name is already taken"
    async with world.serving(wait=False):
        await agent.until(lambda: bool(agent.faults))
        (messages,) = agent.faults.values()
        assert messages[0] == f"the kubelet refused {RADIO}: the resource name is already taken"

        world.kubelet.refuse = ""
        await world.kubelet.until_listed(RADIO, "radio-0")
        await agent.until(lambda: not agent.faults)


# -- streams --------------------------------------------------------------------------------------


@field_case("A05")
async def test_a_stream_that_ended_without_a_successor_is_registered_again(
    world: World, agent: FakeAgent
) -> None:
    async with world.serving(listens_within=0.1):
        world.kubelet.hang_up(RADIO)
        await world.kubelet.until(lambda: len(world.kubelet.registered) == 2)
        await world.kubelet.until_listed(RADIO, "radio-0")

        assert agent.faults == {}


async def test_a_kubelet_that_registers_and_does_not_listen_is_said_and_told_again(
    world: World, agent: FakeAgent
) -> None:
    world.kubelet.deaf = True
    async with world.serving(wait=False, listens_within=0.1) as ready:
        await agent.until(lambda: bool(agent.faults))
        (messages,) = agent.faults.values()
        assert f"does not listen to {RADIO}" in messages[0]
        assert not ready.is_set()

        world.kubelet.deaf = False
        await world.kubelet.until_listed(RADIO, "radio-0")
        await agent.until(lambda: not agent.faults)


@field_case("A06")
async def test_every_stream_begins_with_the_whole_list(world: World, agent: FakeAgent) -> None:
    async with world.serving(listens_within=0.1):
        first = await world.kubelet.until_listed(RADIO, "radio-0")
        world.kubelet.hang_up(RADIO)
        await world.kubelet.until(lambda: world.kubelet.known.get(RADIO) is not first)
        second = await world.kubelet.until_listed(RADIO, "radio-0")

        assert first.lists == second.lists == [{"radio-0": "Healthy"}]


# -- our own socket -------------------------------------------------------------------------------


async def test_our_socket_that_was_removed_is_made_again_and_no_device_is_lost_meanwhile(
    world: World, agent: FakeAgent
) -> None:
    async with world.serving():
        old = await world.kubelet.until_listed(RADIO, "radio-0")
        path = world.kubelet.directory / old.request.endpoint
        path.unlink()
        await world.kubelet.until(lambda: world.kubelet.known.get(RADIO) not in (None, old))
        await world.kubelet.until_listed(RADIO, "radio-0")

        assert path.is_socket()
        assert not old.ended  # its stream went on until the kubelet let go of it


async def test_nothing_is_left_when_the_frontend_ends(world: World, agent: FakeAgent) -> None:
    async with world.serving():
        assert len(list(world.kubelet.directory.iterdir())) == 2

    assert [path.name for path in world.kubelet.directory.iterdir()] == ["kubelet.sock"]


async def test_sockets_of_killed_agents_go_and_those_of_others_stay(
    world: World, agent: FakeAgent
) -> None:
    names = ("hardpoint-radio-0123456789ab.sock", "theirs.sock")
    for name in names:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(world.kubelet.directory / name))
    async with world.serving():
        left = {path.name for path in world.kubelet.directory.iterdir()}

    assert names[0] not in left
    assert names[1] in left


# -- two agents -----------------------------------------------------------------------------------


async def test_of_two_agents_only_the_one_that_writes_is_registered(
    world: World, agent: FakeAgent
) -> None:
    old = FakeAgent(world.root, instance="old")
    new = FakeAgent(world.root, instance="new", writing=False)
    for one in (old, new):
        one.show(radio("radio-0"))
    async with world.serving(agent=new):  # it is ready: an update waits for that
        assert world.kubelet.registered == []
        async with world.serving(agent=old):
            endpoint = world.kubelet.known[RADIO].request.endpoint
            assert {p.name for p in world.kubelet.directory.iterdir()} == {endpoint, "kubelet.sock"}
        assert {p.name for p in world.kubelet.directory.iterdir()} == {"kubelet.sock"}

        new.become_writer()
        await world.kubelet.until(lambda: len(world.kubelet.registered) == 2)
        known = await world.kubelet.until_listed(RADIO, "radio-0")
        assert known.request.endpoint != endpoint


async def test_an_agent_that_takes_over_leaves_the_socket_of_a_living_one_alone(
    world: World, agent: FakeAgent
) -> None:
    old = FakeAgent(world.root, instance="old")
    new = FakeAgent(world.root, instance="new", writing=False)
    for one in (old, new):
        one.show(radio("radio-0"))
    async with world.serving(agent=new), world.serving(agent=old):
        path = world.kubelet.directory / world.kubelet.known[RADIO].request.endpoint
        new.become_writer()  # before the old one has removed its sockets
        await world.kubelet.until(lambda: len(world.kubelet.registered) == 2)

        assert path.is_socket()
        async with Client(path) as client:
            await client.channel.channel_ready()
