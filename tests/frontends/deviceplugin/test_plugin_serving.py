"""One resource after the other towards the kubelet: what is listed, given, refused and told."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from plugin_world import RADIO, World, radio

from hardpoint.allocation import PodUser
from hardpoint.errors import CallFailed, HoldConflict, HoldFailed, TryAgain
from hardpoint.kubelet import deviceplugin_v1beta1_pb2 as pb
from hardpoint.model import Condition, DeviceNode, Domain, Effect, Health, Offered, Taint, Topology
from hardpoint.testing.cdi import CdiRegistry
from hardpoint.testing.kubelet import Container, Pod, PodFailed
from hardpoint_deviceplugin.kept import FILE

DOMAIN = Domain.named("hardpoint.dev")
LAMP = "hardpoint.dev/lamp"
SHARED = {"name": "example.com/render", "selector": "device.allowMultipleAllocations"}


# -- the list -------------------------------------------------------------------------------------


async def test_the_list_follows_the_offer_whole_each_time(world: World) -> None:
    world.agent.show(radio("radio-0"))
    async with world.serving():
        world.agent.show(radio("radio-0"), radio("radio-1"))
        await world.until_listed(RADIO, "radio-0", "radio-1")
        world.agent.show(radio("radio-1"))
        await world.until_listed(RADIO, "radio-1")

        assert [sorted(one) for one in world.lists[RADIO]] == [
            ["radio-0"],
            ["radio-0", "radio-1"],
            ["radio-1"],
        ]
        assert world.registered == [RADIO]


async def test_nothing_is_sent_while_nothing_changes_for_the_kubelet(world: World) -> None:
    world.agent.show(radio("radio-0"))
    async with world.serving():
        world.agent.show(radio("radio-0", attributes={"channel": 8}))
        world.agent.show(radio("radio-0"), radio("radio-1"))
        await world.until_listed(RADIO, "radio-0", "radio-1")

        assert len(world.lists[RADIO]) == 2


async def test_a_device_that_falls_ill_is_unhealthy_and_healthy_when_it_is_well(
    world: World,
) -> None:
    world.agent.show(radio("radio-0"), radio("radio-1"))
    async with world.serving():
        world.agent.set_health("radio-0", Health(Condition.UNHEALTHY, "no carrier"))
        await world.kubelet.until(
            lambda: world.health() == {"radio-0": "Unhealthy", "radio-1": "Healthy"}
        )
        world.agent.set_health("radio-0", Health(Condition.HEALTHY))
        await world.kubelet.until(lambda: set(world.health().values()) == {"Healthy"})


@pytest.mark.field_case("A16")
async def test_a_device_that_left_its_holder_stays_listed_and_is_not_healthy(world: World) -> None:
    world.agent.show(radio("radio-0"))
    async with world.serving():
        await world.allocate(RADIO, ["radio-0"])
        absent = Taint("absent", Effect.NO_EXECUTE)
        world.agent.show(
            Offered(
                device=radio("radio-0"), domain=DOMAIN, taints=(absent,), held=True, claimable=False
            )
        )
        await world.kubelet.until(lambda: world.health() == {"radio-0": "Unhealthy"})


async def test_numa_nodes_are_those_of_the_machine(world: World) -> None:
    world.agent.node.sys = world.root / "sys"
    (world.root / "sys/devices/system/node/node1").mkdir(parents=True)
    here, elsewhere = radio("radio-0", topology=Topology(1)), radio("radio-1", topology=Topology(2))
    world.agent.show(here, elsewhere)
    async with world.serving():
        await world.until_listed(RADIO, "radio-0", "radio-1")

        listed = world.kubelet.listed(RADIO)
        assert (listed["radio-0"].numa, listed["radio-1"].numa) == ((1,), ())


async def test_ids_are_the_same_after_a_restart(world: World) -> None:
    grants = [
        Offered(device=radio(f"radio-{n}"), domain=DOMAIN, allocation="a1" * n) for n in range(3)
    ]
    world.agent.show(*grants)
    for _ in range(2):
        async with world.serving():
            await world.until_listed(RADIO, "radio-0", "radio-1@a1", "radio-2@a1a1")

    assert world.lists[RADIO][0] == world.lists[RADIO][-1]


# -- allocations ----------------------------------------------------------------------------------


async def test_a_pod_gets_the_cdi_names_of_what_it_was_given(world: World) -> None:
    world.agent.show(radio("radio-0"), radio("radio-1"))
    async with world.serving():
        answer = await world.allocate(RADIO, ["radio-1"])

        (container,) = answer.container_responses
        names = [one.name for one in container.cdi_devices]
        assert CdiRegistry(world.agent.paths.cdi).inject(names).env == (
            "HARDPOINT_RADIO_1=radio-1",
        )
        (assignment,) = world.agent.allocated[0]
        assert (assignment.resource, assignment.id, assignment.device) == (
            RADIO,
            "radio-1",
            "radio-1",
        )


async def test_containers_of_one_call_are_held_together_and_answered_in_order(world: World) -> None:
    world.agent.show(*(radio(f"radio-{n}") for n in range(3)))
    async with world.serving():
        answer = await world.allocate(RADIO, ["radio-2", "radio-0"], ["radio-1"], [])

        assert [dict(one.envs) for one in answer.container_responses] == [
            {"HARDPOINT_RADIO_2": "radio-2", "HARDPOINT_RADIO_0": "radio-0"},
            {"HARDPOINT_RADIO_1": "radio-1"},
            {},
        ]
        assert len(world.agent.allocated) == 1


async def test_where_one_device_is_not_to_be_had_none_is_held(world: World) -> None:
    world.agent.show(radio("radio-0"))
    async with world.serving():
        with pytest.raises(CallFailed, match="has no device radio-9"):
            await world.allocate(RADIO, ["radio-0"], ["radio-9"])

        assert world.agent.allocations() == ()


@pytest.mark.field_case("A08")
async def test_what_is_held_is_answered_again_as_before(world: World) -> None:
    world.agent.show(radio("radio-0"))
    async with world.serving():
        first = await world.allocate(RADIO, ["radio-0"])
        await world.kubelet.restart()
        await world.until_listed(RADIO, "radio-0")

        assert await world.allocate(RADIO, ["radio-0"]) == first


@pytest.mark.field_case("A09")
@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"health": Health(Condition.UNHEALTHY, "its fan stopped")}, "its fan stopped"),
        ({"taints": (Taint("in-use"),)}, "tainted: in-use"),
        ({"claimable": False}, "takes no new claims"),
    ],
)
async def test_what_the_list_says_is_not_healthy_is_refused_with_the_reason(
    world: World, facts: dict[str, Any], said: str
) -> None:
    world.agent.show(Offered(device=radio("radio-0"), domain=DOMAIN, **facts))
    async with world.serving():
        await world.until_listed(RADIO, "radio-0")
        assert world.health() == {"radio-0": "Unhealthy"}
        with pytest.raises(CallFailed, match=said):
            await world.allocate(RADIO, ["radio-0"])

        assert world.agent.allocated == []


@pytest.mark.field_case("A09")
async def test_a_device_that_another_resource_still_holds_is_not_listed_as_healthy(
    world: World,
) -> None:
    world.agent.show(radio("radio-0"))
    async with world.serving():
        await world.allocate(RADIO, ["radio-0"])
        assert world.health() == {"radio-0": "Healthy"}
    renamed = "example.com/radio"
    async with world.serving(names={"radio": renamed}):
        await world.until_listed(renamed, "radio-0")
        assert world.health(renamed) == {"radio-0": "Unhealthy"}

        world.agent.end(RADIO, "radio-0")
        world.agent.show(radio("radio-0"))
        await world.kubelet.until(lambda: world.health(renamed) == {"radio-0": "Healthy"})


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (HoldConflict("radio-0", "usb:1-2", "default/other"), "FAILED_PRECONDITION", "holds usb"),
        (HoldFailed("the disk is full"), "FAILED_PRECONDITION", "the disk is full"),
        (TryAgain("the agent is stopping"), "UNAVAILABLE", "stopping"),
    ],
)
async def test_what_the_agent_refuses_is_refused_in_its_words(
    world: World, error: Exception, code: str, said: str
) -> None:
    world.agent.show(radio("radio-0"))
    async with world.serving():
        world.agent.refuse = error
        with pytest.raises(CallFailed, match=said) as raised:
            await world.allocate(RADIO, ["radio-0"])

        assert raised.value.code == code


async def test_shares_of_one_device_go_to_as_many_containers(world: World) -> None:
    world.agent.show(radio("radio-0", shareable=True))
    async with world.serving(resources=[SHARED | {"replicas": 2}]):
        await world.until_listed(SHARED["name"], "radio-0::0", "radio-0::1")
        for share in ("radio-0::0", "radio-0::1"):
            await world.allocate(SHARED["name"], [share])

        assert [one.device for one in world.agent.allocations()] == ["radio-0", "radio-0"]


async def test_without_cdi_a_pod_gets_nodes(world: World) -> None:
    node = DeviceNode(path="/dev/ttyUSB0", major=188, minor=0)
    world.agent.show(radio("radio-0", nodes=(node,)))
    async with world.serving(devices="specs"):
        answer = await world.allocate(RADIO, ["radio-0"])

        (container,) = answer.container_responses
        assert [one.host_path for one in container.devices] == ["/dev/ttyUSB0"]
        assert not container.cdi_devices
        assert "without CDI" in str(world.agent.notes["frontend/deviceplugin"]["devices"])


# -- pods -----------------------------------------------------------------------------------------


def pod(name: str, count: int = 1, **more: Any) -> Pod:
    return Pod(name=name, containers=(Container(name="main", resources={RADIO: count}, **more),))


async def test_a_pod_keeps_what_it_has_through_every_restart(world: World) -> None:
    world.agent.show(radio("radio-0"), radio("radio-1"))
    async with world.serving():
        await world.kubelet.until_allocatable(RADIO, 2)
        (had,) = await world.kubelet.admit(pod("train"))
        before = await world.kubelet.run(pod("train"))
        await world.kubelet.restart()
        await world.kubelet.until_allocatable(RADIO, 2)
    async with world.serving():
        await world.kubelet.until_allocatable(RADIO, 2)

        assert await world.kubelet.run(pod("train")) == before
        (other,) = await world.kubelet.admit(pod("other"))
        assert set(other.ids).isdisjoint(had.ids)
        assert len(world.agent.allocated) == 2


async def test_an_init_container_and_the_main_one_share_a_device(world: World) -> None:
    world.agent.show(radio("radio-0"))
    both = Pod(
        name="both",
        containers=(
            Container(name="init", resources={RADIO: 1}, init=True),
            Container(name="main", resources={RADIO: 1}),
        ),
    )
    async with world.serving():
        await world.kubelet.until_allocatable(RADIO, 1)
        init, main = await world.kubelet.admit(both)

        assert init.ids == main.ids == ("radio-0",)
        assert init.cdi_ids == main.cdi_ids


@pytest.mark.field_case("A01")
async def test_pods_are_admitted_as_soon_as_the_first_list_is_there(world: World) -> None:
    world.agent.show(radio("radio-0"))
    with pytest.raises(PodFailed):
        await world.kubelet.admit(pod("early"))
    async with world.serving():  # ready once the kubelet listens
        await world.kubelet.until_allocatable(RADIO, 1)
        (one,) = await world.kubelet.admit(pod("later"))

        assert one.ids == ("radio-0",)


async def test_a_pod_that_needs_more_than_there_is_fails_alone(world: World) -> None:
    world.agent.show(radio("radio-0"), radio("radio-1"))
    async with world.serving():
        await world.kubelet.until_allocatable(RADIO, 2)
        with pytest.raises(PodFailed, match="Requested: 3, Available: 2"):
            await world.kubelet.admit(pod("greedy", 3))
        (one,) = await world.kubelet.admit(pod("modest", 2))

        assert one.ids == ("radio-0", "radio-1")


async def test_the_kubelet_takes_what_goes_together(world: World) -> None:
    world.agent.show(*(radio(f"radio-{n}", topology=Topology(n % 2)) for n in range(6)))
    async with world.serving():
        await world.kubelet.until_allocatable(RADIO, 6)
        (one,) = await world.kubelet.admit(pod("pair", 3))

        assert len({int(id_[-1]) % 2 for id_ in one.ids}) == 1


# -- what the agent hears -------------------------------------------------------------------------


@pytest.mark.field_case("J04")
async def test_the_agent_hears_of_every_id_before_the_kubelet_does(world: World) -> None:
    world.agent.show(Offered(device=radio("radio-0"), domain=DOMAIN, allocation="a1"))
    world.agent.users[RADIO, "radio-0@a1"] = (PodUser("default", "pod", "main"),)
    async with world.serving():
        (announced,) = world.agent.announced[RADIO]
        assert (announced.id, announced.device) == ("radio-0@a1", "radio-0")

        await world.allocate(RADIO, ["radio-0@a1"])
        (allocation,) = world.agent.allocations()
        assert allocation.id == "radio-0@a1"


async def test_what_is_offered_and_registered_is_noted_for_each_resource(world: World) -> None:
    world.agent.show(radio("radio-0"), radio("radio-1"))
    world.agent.set_health("radio-1", Health(Condition.UNHEALTHY))
    async with world.serving():
        note = str(world.agent.notes["frontend/deviceplugin"][RADIO])

        assert note.startswith("2 offered, 1 usable; listed, socket hardpoint-radio-")
        assert [event.name for event in world.agent.events] == ["resource-registered"]


async def test_a_selector_that_fails_is_said_until_it_does_not(world: World) -> None:
    selector = 'device.attributes["hardpoint.dev"].channel == 7'
    world.agent.show(radio("radio-0"))
    async with world.serving(resources=[{"name": "example.com/seven", "selector": selector}]):
        await world.agent.until(lambda: bool(world.agent.faults))
        assert list(world.agent.faults) == ["settings of resource example.com/seven"]

        world.agent.show(radio("radio-0", attributes={"channel": 7}))
        await world.until_listed("example.com/seven", "radio-0")
        assert world.agent.faults == {}


# -- names that go --------------------------------------------------------------------------------


@pytest.mark.field_case("A15")
async def test_before_a_name_goes_its_list_is_empty_for_a_while(world: World) -> None:
    world.agent.show(radio("radio-0"))
    async with world.serving(linger=0.3):
        await world.until_listed(RADIO, "radio-0")
        world.agent.show()
        await world.until_listed(RADIO)
        await world.kubelet.until(lambda: world.kubelet.plugins.newest(RADIO) is None)

        assert world.lists[RADIO] == [{"radio-0": "Healthy"}, {}]
        assert world.kubelet.capacity(RADIO) == 0
        world.agent.show(radio("radio-0"))
        await world.until_listed(RADIO, "radio-0")


@pytest.mark.field_case("A15")
async def test_a_name_that_the_settings_no_longer_have_is_emptied_after_a_restart(
    world: World,
) -> None:
    world.agent.show(radio("radio-0"))
    kept = world.agent.paths.state / FILE
    async with world.serving():
        await world.until_listed(RADIO, "radio-0")
    async with world.serving(linger=0.3, names={"radio": "example.com/radio"}):
        await world.until_listed("example.com/radio", "radio-0")
        await world.until_listed(RADIO)
        await world.kubelet.until(lambda: world.kubelet.plugins.newest(RADIO) is None)
        await world.agent.until(lambda: RADIO not in world.agent.notes["frontend/deviceplugin"])

    assert json.loads(kept.read_text()) == ["example.com/radio"]


async def test_a_name_stays_while_something_is_held_under_it(world: World) -> None:
    """At each list the kubelet writes down which pods are over; without one nobody learns it."""
    world.agent.show(radio("radio-0"), replace(radio("lamp-0"), kind="lamp"))
    async with world.serving():
        await world.until_listed(RADIO, "radio-0")
        await world.until_listed(LAMP, "lamp-0")
        await world.allocate(RADIO, ["radio-0"])
    async with world.serving(linger=0.3, kinds=[]):
        await world.kubelet.until(lambda: world.kubelet.plugins.newest(LAMP) is None)
        await world.until_listed(RADIO)
        assert RADIO in world.agent.notes["frontend/deviceplugin"]

        world.agent.end(RADIO, "radio-0")
        await world.kubelet.until(lambda: world.kubelet.plugins.newest(RADIO) is None)


async def test_a_device_that_is_back_in_time_keeps_its_name(world: World) -> None:
    world.agent.show(radio("radio-0"))
    async with world.serving():
        world.agent.show()
        await world.until_listed(RADIO)
        world.agent.show(radio("radio-0"))
        await world.until_listed(RADIO, "radio-0")

        assert world.registered == [RADIO]


@pytest.mark.parametrize("text", ["", "{}", '[1, null, "kubernetes.io/x"]', "\xff", "[" * 5000])
async def test_a_file_of_names_that_is_not_ours_costs_nothing(world: World, text: str) -> None:
    world.agent.paths.state.mkdir()
    (world.agent.paths.state / FILE).write_bytes(text.encode("latin-1"))
    world.agent.show(radio("radio-0"))
    async with world.serving():
        await world.until_listed(RADIO, "radio-0")

        assert world.registered == [RADIO]


# -- preference -----------------------------------------------------------------------------------


async def test_the_kubelet_hears_which_ids_go_together(world: World) -> None:
    near = [radio(f"radio-{n}", topology=Topology(n % 2)) for n in range(4)]
    world.agent.show(*near)
    ids = [one.name for one in near]
    async with world.serving():
        assert await world.prefer(RADIO, ids, 2) == ["radio-0", "radio-2"]
        assert await world.prefer(RADIO, ids, 2, ["radio-3"]) == ["radio-3", "radio-1"]

        world.agent.advice = ("radio-2", "radio-3")
        assert await world.prefer(RADIO, ids, 2) == ["radio-2", "radio-3"]
        assert world.agent.allocated == []


async def test_an_old_kubelet_may_ask_before_it_starts_a_container(world: World) -> None:
    world.agent.show(radio("radio-0"))
    async with world.serving():
        request = pb.PreStartContainerRequest(devices_ids=["radio-0"])

        assert await world.call(RADIO, "PreStartContainer", request) == (
            pb.PreStartContainerResponse()
        )
