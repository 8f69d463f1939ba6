"""Devices under a grant in DRA: each grant gives a name of its own, and it is taken off again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from dra_node import claim as claim_object
from dra_node import result

from hardpoint.allocation import allocation_key
from hardpoint.attributes import is_label
from hardpoint.errors import HoldDenied, HoldFailed
from hardpoint.grants import attributes_of, is_name_of, published_name, tag
from hardpoint.model import (
    Capacity,
    Claim,
    ClaimKey,
    Condition,
    Device,
    Domain,
    Health,
    Hold,
    Offer,
    Offered,
    Part,
)
from hardpoint.node import Node
from hardpoint.testing._frontend_node import DOMAIN, NODE, FrontendNode, frontend_node
from hardpoint.testing.kubelet import Pod, PodFailed
from hardpoint_dra import Dra
from hardpoint_dra.beside import beside_allocations
from hardpoint_dra.binding import bound_by
from hardpoint_dra.claims import to_claim
from hardpoint_dra.frontend import DraSettings
from hardpoint_dra.published import allotted, as_published, twins

DRIVER = DOMAIN.dra_driver
OLD, NEW = "alloc-1", "alloc-2"
KEY = ClaimKey("uid-1", "default", "gpu", DRIVER)
POD = Pod(name="train", claims=("gpu",))


def granted(name: str, allocation: str = "", **facts: Any) -> Offered:
    device = Device(
        name=name, kind="gpu", driver="acme", **{"attributes": {"model": "A1"}, **facts}
    )
    return Offered(device=device, domain=DOMAIN, allocation=allocation)


def offer(*devices: Offered) -> Offer:
    return Offer(generation=1, devices=devices)


def read(*names: str) -> Claim:
    results = [result(name, request=f"r{i}", driver=DRIVER) for i, name in enumerate(names)]
    return to_claim(KEY, claim_object(*results), NODE)


# -- names -----------------------------------------------------------------------------------------


def test_a_device_under_a_grant_has_its_tag_in_its_name_and_its_allocation_as_attribute() -> None:
    shown = as_published(offer(granted("gpu-0", OLD), granted("gpu-1")))

    names = [one.name for one in shown.devices]
    assert names == [f"gpu-0-{tag(OLD)}", "gpu-1"]
    assert len(tag(OLD)) == 8
    assert dict(shown.devices[0].device.attributes) == {"model": "A1", "allocation": OLD}
    assert "allocation" not in shown.devices[1].device.attributes


def test_without_grants_an_offer_is_published_as_it_is() -> None:
    plain = offer(granted("gpu-0"), granted("gpu-1"))

    assert as_published(plain) is plain


@pytest.mark.parametrize("length", [54, 55, 62, 63])
def test_a_long_name_is_cut_before_the_tag_and_stays_one_of_its_own(length: int) -> None:
    names = [("x" * length)[:-1] + end for end in "ab"]

    found = [published_name(name, OLD) for name in names]

    assert len({*found}) == 2
    for name, published in zip(names, found, strict=True):
        assert is_label(published)
        assert published.endswith(f"-{tag(OLD)}")
        assert is_name_of(published, name)
        assert is_name_of(name, name)
    assert not is_name_of(found[0], names[1])


@pytest.mark.parametrize("allocation", ["a", "a" * 64, "a" * 65, "a" * 63 + "b" * 65, "ü" * 100])
def test_an_allocation_fits_into_an_attribute_and_two_long_ones_differ(allocation: str) -> None:
    device = granted("gpu-0").device
    one, other = (
        attributes_of(device, each)["allocation"] for each in (allocation, f"{allocation}-2")
    )

    assert 0 < len(str(one).encode()) <= 64
    assert one != other


def test_a_device_that_is_full_of_attributes_makes_room_for_its_allocation() -> None:
    full = granted(
        "gpu-0",
        OLD,
        attributes={f"a{i:02}": i for i in range(30)},
        capacity={"memory": Capacity(value="1Gi"), "slots": Capacity(value="4")},
    )

    (shown,) = as_published(offer(full)).devices

    assert len(shown.device.attributes) + len(shown.device.capacity) == 32
    assert shown.device.attributes["allocation"] == OLD
    assert "a29" not in shown.device.attributes


def test_what_a_driver_calls_an_allocation_does_not_pass_for_the_grants() -> None:
    (shown,) = as_published(offer(granted("gpu-0", OLD, attributes={"allocation": "mine"}))).devices

    assert shown.device.attributes["allocation"] == OLD


def test_a_device_that_is_called_like_another_under_its_grant_costs_both_and_is_never_guessed() -> (
    None
):
    taken = offer(granted("gpu-0", OLD), granted(published_name("gpu-0", OLD)), granted("gpu-1"))

    assert [one.name for one in as_published(taken).devices] == ["gpu-1"]
    assert twins(taken) == {(DRIVER, published_name("gpu-0", OLD))}
    with pytest.raises(HoldDenied, match="neither is offered"):
        allotted(read(published_name("gpu-0", OLD)), taken)


def test_slices_and_counters_speak_of_devices_as_they_are_published() -> None:
    part = Part("gpu:0", True)
    node = Node(name=NODE, recorded=True)
    rivals = offer(granted("gpu-0", OLD, parts=(part,)), granted("mig-0", NEW, parts=(part,)))

    bodies = Dra(node, DraSettings()).preview_offer(rivals, "v1")

    devices = [one for body in bodies for one in body["spec"].get("devices", ())]
    assert [one["name"] for one in devices] == [
        published_name("gpu-0", OLD),
        published_name("mig-0", NEW),
    ]
    assert all(one["consumesCounters"] for one in devices)
    assert [one["attributes"]["allocation"] for one in devices] == [
        {"string": OLD},
        {"string": NEW},
    ]


def test_what_a_pod_has_through_the_device_plugin_is_tainted_under_its_new_name() -> None:
    key = allocation_key("hardpoint.dev/gpu", f"gpu-0@{OLD}", DRIVER)
    now = offer(granted("gpu-0", NEW), granted("gpu-1", NEW))
    hold = Hold(claim=key, device=now.devices[0].device, request="", allocation=OLD)

    shown = as_published(beside_allocations(now, [hold]))

    assert {one.name: [t.key for t in one.taints] for one in shown.devices} == {
        published_name("gpu-0", NEW): ["in-use"],
        published_name("gpu-1", NEW): [],
    }


# -- the way back ----------------------------------------------------------------------------------


def test_a_result_is_taken_back_to_its_device_and_grant() -> None:
    now = offer(granted("gpu-0", OLD), granted("gpu-1"))

    first, second = allotted(read(published_name("gpu-0", OLD), "gpu-1"), now).allotments

    assert (first.device, first.allocation, first.published) == (
        "gpu-0",
        OLD,
        published_name("gpu-0", OLD),
    )
    assert (second.device, second.allocation, second.published) == ("gpu-1", "", "")


@pytest.mark.parametrize("name", ["gpu-0", published_name("gpu-0", OLD), "gpu-0-00000000"])
def test_a_name_that_nothing_is_offered_under_now_means_no_device(name: str) -> None:
    (allotment,) = allotted(read(name), offer(granted("gpu-0", NEW))).allotments

    assert (allotment.device, allotment.allocation) == (name, "")


def test_a_device_of_another_domain_is_not_meant() -> None:
    other = replace(granted("gpu-0", OLD), domain=Domain.named("other.test"))

    (allotment,) = allotted(read(published_name("gpu-0", OLD)), offer(other)).allotments

    assert allotment.allocation == ""


def test_binding_conditions_are_read_under_the_schedulers_name() -> None:
    fabric = granted(
        "fabric-0", OLD, binding_conditions=("up",), binding_failure_conditions=("no",)
    )
    name = published_name("fabric-0", OLD)
    found = claim_object(result(name, driver=DRIVER))
    claim = allotted(to_claim(KEY, found, NODE), offer(fabric))
    check = bound_by(lambda: offer(fabric))

    with pytest.raises(HoldFailed, match="fabric-0 is not ready"):
        check(claim, found)
    true = [{"type": "up", "status": "True"}]
    entry = {"driver": DRIVER, "pool": NODE, "device": name, "conditions": true}
    found["status"]["devices"] = [entry]
    check(claim, found)


# -- with a kubelet and an API server --------------------------------------------------------------


@pytest.fixture
async def node(anyio_backend: str) -> AsyncIterator[FrontendNode]:
    async with frontend_node(Dra, {"metadata": ("v1beta1",)}) as node:
        yield node


def published(node: FrontendNode) -> list[str]:
    slices = node.server.items("resourceslices")
    return [one["name"] for found in slices for one in found["spec"].get("devices", ())]


def status_of(node: FrontendNode) -> list[dict[str, Any]]:
    claim = node.server.get("resourceclaims", "gpu", "default")
    return list(claim["status"].get("devices") or ())


def allocate(node: FrontendNode, *devices: str, name: str = "gpu") -> str:
    request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    made = node.server.add(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [request]}},
        }
    )
    results = [result(one, driver=DRIVER) for one in devices]
    reserved = [{"resource": "pods", "name": POD.name, "uid": POD.identity}]
    node.server.allocate("default", name, results, reserved_for=reserved)
    return str(made["metadata"]["uid"])


async def test_a_claim_under_a_grant_goes_through_and_back_by_the_schedulers_name(
    node: FrontendNode,
) -> None:
    agent, name = node.agent(granted("gpu-0", OLD)), published_name("gpu-0", OLD)
    async with node.serving(agent):
        await node.until(lambda: published(node) == [name])
        uid = allocate(node, name)
        (prepared,) = await node.kubelet.prepare(POD)
        await node.until(lambda: status_of(node))
        (status,) = status_of(node)
        agent.set_health("gpu-0", Health(Condition.UNHEALTHY, "too hot"))
        await node.kubelet.until(
            lambda: node.kubelet.health(DRIVER, NODE, name).message == "too hot"
        )
        (document,) = node.root.glob(f"kubelet/plugins/{DRIVER}/**/{uid}/*/metadata.json")
        metadata = json.loads(document.read_text().splitlines()[0])
        env = node.kubelet.inject(POD).env
        await node.kubelet.unprepare(POD)

    assert [key.uid for key in agent.prepared] == [uid]
    assert prepared.device == name
    assert (status["device"], status["data"]["attributes"]["allocation"]) == (name, OLD)
    (described,) = metadata["requests"][0]["devices"]
    assert described["name"] == name
    assert described["attributes"]["allocation"] == {"string": OLD}
    assert env == (f"HARDPOINT_GPU_0={uid}",)
    assert agent.claims == {}


async def test_the_agent_is_asked_for_the_device_itself_under_its_grant(node: FrontendNode) -> None:
    agent, name = node.agent(granted("gpu-0", OLD)), published_name("gpu-0", OLD)
    async with node.serving(agent):
        await node.until(lambda: published(node) == [name])
        allocate(node, name)
        await node.kubelet.prepare(POD)

        ((allotment,),) = [claim.allotments for claim in agent.claims.values()]
        assert (allotment.device, allotment.allocation, allotment.published) == ("gpu-0", OLD, name)
        assert [(h.device.name, h.allocation) for h in agent.holds()] == [("gpu-0", OLD)]


async def test_a_device_under_the_next_grant_is_another_one_and_the_old_name_is_refused(
    node: FrontendNode,
) -> None:
    agent = node.agent(granted("gpu-0", OLD))
    old, new = published_name("gpu-0", OLD), published_name("gpu-0", NEW)
    async with node.serving(agent):
        await node.until(lambda: published(node) == [old])
        agent.show(granted("gpu-0", NEW))
        await node.until(lambda: published(node) == [new])
        allocate(node, old)
        with pytest.raises(PodFailed, match=f"{old} is not offered"):
            await node.kubelet.prepare(POD)
        assert agent.holds() == ()
        allocate(node, "gpu-0", name="plain")
        with pytest.raises(PodFailed, match="gpu-0 is granted to another"):
            await node.kubelet.prepare(Pod(name=POD.name, uid=POD.uid, claims=("plain",)))
        assert agent.holds() == ()


async def test_a_held_claim_is_answered_by_its_name_with_the_api_server_away(
    node: FrontendNode,
) -> None:
    agent, name = node.agent(granted("gpu-0", OLD)), published_name("gpu-0", OLD)
    async with node.serving(agent):
        await node.until(lambda: published(node) == [name])
        uid = allocate(node, name)
        await node.kubelet.prepare(POD)
        node.server.down = True
        wire = [{"namespace": "default", "name": "gpu", "uid": uid}]
        answer = (await node.kubelet.call(DRIVER, "NodePrepareResources", wire)).claims[uid]

    assert (answer.error, [one.device_name for one in answer.devices]) == ("", [name])


async def test_a_name_that_two_devices_would_have_is_on_the_fault_board(node: FrontendNode) -> None:
    name = published_name("gpu-0", OLD)
    agent = node.agent(granted("gpu-0", OLD), granted(name), granted("gpu-1", OLD))
    async with node.serving(agent):
        await node.until(lambda: published(node) == [published_name("gpu-1", OLD)])
        assert f"name of device {name}" in agent.faults

        agent.show(granted("gpu-0", OLD))
        await node.until(lambda: published(node) == [name])
        assert agent.faults == {}
