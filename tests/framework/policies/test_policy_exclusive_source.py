"""Nothing is offered while something else on the node can hand out the same hardware."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from plain_plugin import Plugin
from pydantic import ValidationError

from hardpoint.grants import NodeCondition
from hardpoint.kube import Kube, Resource
from hardpoint.kubelet import deviceplugin_v1beta1_pb2 as dpb
from hardpoint.kubelet import podresources_v1_pb2 as pb
from hardpoint.kubelet.services import Status
from hardpoint.model import Device, Domain, Offer, Offered, Veto
from hardpoint.node import Node
from hardpoint.policies.exclusive_source import (
    ExclusiveSource,
    ExclusiveSourceSettings,
    Guard,
)
from hardpoint.testing import Container, FakeAgent, FakeKubelet, Pod
from hardpoint.testing.api_server import FakeApiServer
from hardpoint.testing.clock import ManualClock

DOMAIN = Domain.named("hardpoint.dev")
RIVAL = "nvidia.com/gpu"
ADDRESS = "0000:0a:00.0"

WHERE = {"limit": "500", "fieldSelector": "spec.nodeName=node-1"}


def offered(name: str = "gpu0", kind: str = "gpu") -> Offered:
    attributes = {"resource.kubernetes.io/pciBusID": ADDRESS}
    device = Device(name=name, kind=kind, attributes=attributes)
    return Offered(device=device, domain=DOMAIN, allocation="a1")


OFFER = Offer(generation=1, devices=(offered(), offered("pci-1", "drm.render")))


@pytest.fixture
async def kubelet(short_path: Path) -> AsyncIterator[FakeKubelet]:
    plugins = short_path / "device-plugins"
    async with FakeKubelet(short_path / "kubelet", device_plugins=plugins) as made:
        yield made


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as made:
        made.add_node("node-1")
        made.add_node("node-2")
        yield made


@pytest.fixture
def agent(short_path: Path, server: FakeApiServer) -> FakeAgent:
    return FakeAgent(short_path, kube=lambda: Kube.at(server.url))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def policy(agent: FakeAgent, clock: ManualClock) -> ExclusiveSource:
    return made(agent, clock)


def made(agent: FakeAgent, clock: ManualClock, **settings: object) -> ExclusiveSource:
    node = Node(name="node-1", device_plugins=agent.paths.device_plugins)
    policy = ExclusiveSource(node, ExclusiveSourceSettings.model_validate(settings))
    policy.clock = clock.now
    return policy


async def asked(policy: ExclusiveSource, agent: FakeAgent) -> tuple[Veto, ...]:
    """What is vetoed after everybody who is due was asked anew."""
    await policy.veto_devices(OFFER, agent)
    await policy._read(agent)
    return await policy.veto_devices(OFFER, agent)


async def publish(
    server: FakeApiServer,
    driver: str,
    *,
    node: str = "node-1",
    devices: int = 1,
    address: str = "",
    version: str = "v1",
) -> None:
    facts = {"attributes": {"resource.kubernetes.io/pciBusID": {"string": address}}}
    said = facts if address else {}
    body = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {"name": f"gpu-{n}", **({"basic": said} if version == "v1beta1" else said)}
                for n in range(devices)
            ],
        },
    }
    async with Kube.at(server.url) as kube:
        await kube.create(Resource("resource.k8s.io", version, "resourceslices"), body)


async def withdraw(server: FakeApiServer, driver: str, node: str = "node-1") -> None:
    async with Kube.at(server.url) as kube:
        slices = Resource("resource.k8s.io", "v1", "resourceslices")
        await kube.delete(slices, f"{node}-{driver}")


# -- device plugins -------------------------------------------------------------------------------


async def test_without_a_rival_everything_is_offered(
    kubelet: FakeKubelet, agent: FakeAgent, policy: ExclusiveSource
) -> None:
    assert await asked(policy, agent) == ()
    assert not agent.raised


async def test_another_plugins_resource_keeps_the_guarded_devices_back_with_the_remedy(
    kubelet: FakeKubelet, agent: FakeAgent, policy: ExclusiveSource
) -> None:
    async with Plugin(agent.paths.device_plugins, "GPU-1", resource=RIVAL).serving():
        await kubelet.until_allocatable(RIVAL, 1)
        (veto,) = await asked(policy, agent)

    assert veto.device == "gpu0"
    assert "another device plugin of this node offers nvidia.com/gpu" in veto.reason
    assert "devicePlugin.enabled=false" in veto.reason
    (condition,) = agent.conditions()
    assert (condition.type, condition.reason) == ("ForeignExposure", "OtherDevicePath")
    assert condition.message == veto.reason


async def test_the_conditions_type_and_reason_are_the_settings(
    kubelet: FakeKubelet, agent: FakeAgent, clock: ManualClock
) -> None:
    seeds = made(agent, clock, condition=("ForeignGpuExposure", "OtherGpuPath"))
    async with Plugin(agent.paths.device_plugins, "GPU-1", resource=RIVAL).serving():
        await kubelet.until_allocatable(RIVAL, 1)
        assert await asked(seeds, agent)

    (condition,) = agent.conditions()
    assert (condition.type, condition.reason) == ("ForeignGpuExposure", "OtherGpuPath")


async def test_a_resource_that_nobody_named_is_no_rival(
    kubelet: FakeKubelet, agent: FakeAgent, policy: ExclusiveSource
) -> None:
    async with Plugin(agent.paths.device_plugins, "x", resource="example.com/nic").serving():
        await kubelet.until_allocatable("example.com/nic", 1)
        assert await asked(policy, agent) == ()


async def test_what_we_registered_ourselves_is_no_rival_whatever_it_is_called(
    kubelet: FakeKubelet, agent: FakeAgent, policy: ExclusiveSource
) -> None:
    async with Plugin(agent.paths.device_plugins, "gpu0@a1", resource=RIVAL).serving():
        await kubelet.until_allocatable(RIVAL, 1)
        assert await asked(policy, agent) == ()


async def test_our_own_prefix_with_ids_that_are_not_ours_is_a_rival(
    kubelet: FakeKubelet, agent: FakeAgent, clock: ManualClock
) -> None:
    agent.domains = (Domain("hardpoint.dev", "nvidia.com", "hardpoint.dev"),)
    theirs = Plugin(agent.paths.device_plugins, "GPU-1", resource=RIVAL)
    async with theirs.serving():
        await kubelet.until_allocatable(RIVAL, 1)
        assert await asked(made(agent, clock), agent)
        theirs.tell(
            dpb.Device(ID="gpu0@a1", health="Healthy"), dpb.Device(ID="old@a1", health="Healthy")
        )
        await kubelet.until_allocatable(RIVAL, 2)
        assert await asked(made(agent, clock), agent) == ()


async def test_a_pod_that_still_has_another_plugins_device_keeps_it_back(
    kubelet: FakeKubelet, agent: FakeAgent, policy: ExclusiveSource
) -> None:
    pod = Pod(name="old", containers=(Container(name="main", resources={RIVAL: 1}),))
    theirs = Plugin(agent.paths.device_plugins, "GPU-1", resource=RIVAL)
    async with theirs.serving():
        await kubelet.until_allocatable(RIVAL, 1)
        await kubelet.admit(pod)
        theirs.tell()
        await kubelet.until_allocatable(RIVAL, 0)
        (veto,) = await asked(policy, agent)

    assert f"pod default/old has {RIVAL}" in veto.reason


async def test_after_a_reboot_a_rival_is_known_before_it_has_registered_again(
    kubelet: FakeKubelet, agent: FakeAgent, clock: ManualClock
) -> None:
    async with Plugin(agent.paths.device_plugins, "GPU-1", resource=RIVAL).serving():
        await kubelet.until_allocatable(RIVAL, 1)
        kubelet.devices.save()
        await kubelet.stop()
    await kubelet.start()
    restarted = made(agent, clock)
    (veto,) = await restarted.veto_devices(OFFER, agent)

    assert RIVAL in veto.reason
    kubelet.devices.save()  # as at the next list of any plugin's: it has nothing healthy by now
    clock.advance(60)
    assert await asked(restarted, agent) == ()


async def test_a_rival_that_restarts_is_not_gone(
    kubelet: FakeKubelet, agent: FakeAgent, policy: ExclusiveSource, clock: ManualClock
) -> None:
    theirs = Plugin(agent.paths.device_plugins, "GPU-1", resource=RIVAL)
    async with theirs.serving():
        await kubelet.until_allocatable(RIVAL, 1)
        assert await asked(policy, agent)
        theirs.tell()
        await kubelet.until_allocatable(RIVAL, 0)
        clock.advance(59)
        assert await asked(policy, agent)
        clock.advance(1)
        assert await asked(policy, agent) == ()


async def test_a_kubelet_that_never_answered_keeps_back_what_is_guarded_and_no_more(
    agent: FakeAgent, policy: ExclusiveSource
) -> None:
    (veto,) = await asked(policy, agent)

    assert veto.device == "gpu0"
    assert "is not known" in veto.reason
    assert "ForeignExposure" not in agent.raised
    assert agent.raised["PodResourcesUnavailable"].reason == "AllocatableUnknown"


@pytest.mark.parametrize("exposed", [True, False])
async def test_while_the_kubelet_fails_the_last_verdict_stands(
    kubelet: FakeKubelet,
    agent: FakeAgent,
    policy: ExclusiveSource,
    clock: ManualClock,
    exposed: bool,
) -> None:
    async def fail(answer: pb.AllocatableResourcesResponse) -> pb.AllocatableResourcesResponse:
        raise Status("INTERNAL", "no")

    ids = ("GPU-1",) if exposed else ()
    async with Plugin(agent.paths.device_plugins, *ids, resource=RIVAL).serving():
        await kubelet.until_allocatable(RIVAL, len(ids))
        before = await asked(policy, agent)
        kubelet.answer_allocatable(fail)
        clock.advance(600)
        assert await asked(policy, agent) == before
        assert bool(before) is exposed
        assert "INTERNAL" in agent.raised["PodResourcesUnavailable"].message

        kubelet.answer_allocatable(None)
        assert await asked(policy, agent) == before
        assert "PodResourcesUnavailable" not in agent.raised


async def test_a_kubelet_that_hangs_does_not_hold_up_the_offer(
    kubelet: FakeKubelet,
    agent: FakeAgent,
    policy: ExclusiveSource,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hang(answer: pb.AllocatableResourcesResponse) -> pb.AllocatableResourcesResponse:
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr("hardpoint.policies.exclusive_source._PATIENCE", 0.05)
    kubelet.answer_allocatable(hang)
    (veto,) = await policy.veto_devices(OFFER, agent)

    assert "no answer within" in veto.reason


# -- DRA drivers ----------------------------------------------------------------------------------


async def test_a_named_driver_that_offers_devices_of_this_node_is_a_rival(
    kubelet: FakeKubelet, agent: FakeAgent, policy: ExclusiveSource, server: FakeApiServer
) -> None:
    await publish(server, "gpu.nvidia.com")
    (veto,) = await asked(policy, agent)

    assert "DRA driver gpu.nvidia.com offers devices of this node" in veto.reason
    assert "resources.gpus.enabled=false" in veto.reason


@pytest.mark.parametrize(
    ("driver", "node", "devices"),
    [
        ("gpu.nvidia.com", "node-2", 1),
        ("gpu.nvidia.com", "node-1", 0),
        ("nic.example.com", "node-1", 1),
    ],
)
async def test_other_nodes_empty_slices_and_unnamed_drivers_are_no_rivals(
    kubelet: FakeKubelet,
    agent: FakeAgent,
    policy: ExclusiveSource,
    server: FakeApiServer,
    driver: str,
    node: str,
    devices: int,
) -> None:
    await publish(server, driver, node=node, devices=devices)
    assert await asked(policy, agent) == ()


async def test_our_own_slices_are_no_rivals_whatever_our_driver_is_called(
    kubelet: FakeKubelet, agent: FakeAgent, clock: ManualClock, server: FakeApiServer
) -> None:
    agent.domains = (Domain.named("gpu.nvidia.com"),)
    await publish(server, "gpu.nvidia.com", address=ADDRESS)
    assert await asked(made(agent, clock), agent) == ()
    assert not agent.events


async def test_slices_are_read_at_most_once_a_minute(
    kubelet: FakeKubelet,
    agent: FakeAgent,
    policy: ExclusiveSource,
    server: FakeApiServer,
    clock: ManualClock,
) -> None:
    assert await asked(policy, agent) == ()
    await publish(server, "gpu.nvidia.com")
    clock.advance(59)
    assert await asked(policy, agent) == ()
    clock.advance(1)
    assert await asked(policy, agent)
    reads = [one for one in server.requests if (one.method, one.query) == ("GET", WHERE)]
    assert len(reads) == 2


async def test_the_newest_version_that_is_served_is_read(
    kubelet: FakeKubelet, short_path: Path, clock: ManualClock
) -> None:
    async with FakeApiServer(minor=32) as old:
        old.add_node("node-1")
        agent = FakeAgent(short_path, kube=lambda: Kube.at(old.url))
        await publish(old, "gpu.nvidia.com", address=ADDRESS, version="v1beta1")
        assert await asked(made(agent, clock), agent)
        assert agent.events


async def test_an_api_that_is_not_served_has_no_rival(
    kubelet: FakeKubelet, short_path: Path, clock: ManualClock
) -> None:
    async with FakeApiServer(versions=()) as old:
        agent = FakeAgent(short_path, kube=lambda: Kube.at(old.url))
        assert await asked(made(agent, clock), agent) == ()


@pytest.mark.parametrize("odd", [{"status": 404}, {"body": b"{}"}, {"body": b'{"items": []}'}])
@pytest.mark.parametrize("path", ["/", "/apis/resource.k8s.io", "/resourceslices"])
async def test_a_proxy_that_finds_no_server_says_nothing_of_rivals(
    kubelet: FakeKubelet, short_path: Path, clock: ManualClock, path: str, odd: dict[str, Any]
) -> None:
    """It answers 404 to all, or that it is well itself; the rival is there all the same."""
    async with FakeApiServer() as server:
        server.add_node("node-1")
        await publish(server, "gpu.nvidia.com", address=ADDRESS)
        agent = FakeAgent(short_path, kube=lambda: Kube.at(server.url))
        policy = made(agent, clock)
        assert await asked(policy, agent)

        lost = server.trouble(path=path, **odd)
        for _ in range(5):
            clock.advance(60)
            assert await asked(policy, agent)
        assert lost.met
        assert "ResourceSlicesUnavailable" in agent.raised


async def test_an_api_server_that_never_answered_keeps_back_what_is_guarded(
    kubelet: FakeKubelet, short_path: Path, clock: ManualClock
) -> None:
    agent = FakeAgent(short_path)
    (veto,) = await asked(made(agent, clock), agent)

    assert "gpu.nvidia.com can hand it out too is not known" in veto.reason
    assert agent.raised["ResourceSlicesUnavailable"].reason == "SlicesUnknown"


async def test_while_the_api_server_is_away_the_last_verdict_stands_and_new_rivals_are_seen(
    kubelet: FakeKubelet,
    agent: FakeAgent,
    policy: ExclusiveSource,
    server: FakeApiServer,
    clock: ManualClock,
) -> None:
    assert await asked(policy, agent) == ()
    server.down = True
    clock.advance(3600)
    assert await asked(policy, agent) == ()
    assert "ResourceSlicesUnavailable" in agent.raised
    async with Plugin(agent.paths.device_plugins, "GPU-1", resource=RIVAL).serving():
        await kubelet.until_allocatable(RIVAL, 1)
        assert await asked(policy, agent)


async def test_without_named_drivers_the_api_server_is_not_asked(
    kubelet: FakeKubelet, agent: FakeAgent, clock: ManualClock, server: FakeApiServer
) -> None:
    guard = Guard(kinds=("gpu",), resources=("nvidia.com/*",))
    assert await asked(made(agent, clock, guards=(guard,)), agent) == ()
    assert not server.requests


async def test_without_named_resources_the_kubelet_is_not_asked(
    agent: FakeAgent, clock: ManualClock, server: FakeApiServer
) -> None:
    guard = Guard(kinds=("gpu",), drivers=("gpu.nvidia.com",))
    assert await asked(made(agent, clock, guards=(guard,)), agent) == ()


async def test_one_pci_address_under_another_name_is_told_once_and_keeps_nothing_back(
    kubelet: FakeKubelet,
    agent: FakeAgent,
    policy: ExclusiveSource,
    server: FakeApiServer,
    clock: ManualClock,
) -> None:
    await publish(server, "describes.example.com", address=ADDRESS)
    assert await asked(policy, agent) == ()
    clock.advance(60)
    assert await asked(policy, agent) == ()

    (event,) = agent.events
    assert event.name == "published-twice"
    assert dict(event.facts) == {"device": "gpu0", "driver": "describes.example.com"}


# -- when it is asked -----------------------------------------------------------------------------


async def test_a_node_that_offers_nothing_guarded_asks_nobody(
    agent: FakeAgent, policy: ExclusiveSource, server: FakeApiServer
) -> None:
    agent.raise_condition(
        NodeCondition(type="PodResourcesUnavailable", reason="AllocatableUnknown", message="m")
    )
    disks = Offer(generation=1, devices=(offered("pci-1", "drm.render"),))
    assert await policy.veto_devices(disks, agent) == ()
    assert not server.requests
    assert not agent.raised


NOTHING = Offer(generation=1)


async def test_a_rival_is_a_condition_also_while_nothing_is_granted(
    kubelet: FakeKubelet, agent: FakeAgent, policy: ExclusiveSource, clock: ManualClock
) -> None:
    """Who grants devices has to know before: a GPU that is booked here would be nobody's alone."""
    agent.set_state(governed=[Device(name="gpu0", kind="gpu"), Device(name="d", kind="display")])
    theirs = Plugin(agent.paths.device_plugins, "GPU-1", resource=RIVAL)
    async with theirs.serving(), anyio.create_task_group() as tasks:
        await kubelet.until_allocatable(RIVAL, 1)
        hinted = anyio.Event()
        assert await policy.veto_devices(NOTHING, agent) == ()  # it is not waited for
        tasks.start_soon(policy.watch_devices, hinted.set)
        await hinted.wait()
        assert await policy.veto_devices(NOTHING, agent) == ()
        tasks.cancel_scope.cancel()
        (condition,) = agent.conditions()
        assert (condition.type, condition.reason) == ("ForeignExposure", "OtherDevicePath")
        assert "devicePlugin.enabled=false" in condition.message

        (veto,) = await policy.veto_devices(OFFER, agent)
        assert [condition.message] == [veto.reason]
        await policy.veto_devices(NOTHING, agent)  # the grant has ended, and the rival is there
        assert agent.conditions() == (condition,)
        theirs.tell()
        await kubelet.until_allocatable(RIVAL, 0)
        clock.advance(60)
        await policy._read(agent)
        await policy.veto_devices(NOTHING, agent)
        assert agent.conditions() == ()


async def test_nobody_is_said_not_to_answer_while_nothing_is_granted(
    agent: FakeAgent, policy: ExclusiveSource
) -> None:
    agent.set_state(governed=[Device(name="gpu0", kind="gpu")])

    assert await policy.veto_devices(NOTHING, agent) == ()
    await policy._read(agent)
    await policy.veto_devices(NOTHING, agent)

    assert policy._plugins.failure
    assert agent.conditions() == ()


async def test_a_rival_of_what_the_node_has_not_is_no_condition(
    kubelet: FakeKubelet, agent: FakeAgent, policy: ExclusiveSource
) -> None:
    async with Plugin(agent.paths.device_plugins, "GPU-1", resource=RIVAL).serving():
        await kubelet.until_allocatable(RIVAL, 1)
        assert await asked(policy, agent)
        agent.set_state(governed=[Device(name="d", kind="display")])
        assert await policy.veto_devices(NOTHING, agent) == ()

    assert agent.conditions() == ()


async def test_a_rival_that_comes_is_hinted_at_within_the_second(
    kubelet: FakeKubelet, agent: FakeAgent, policy: ExclusiveSource
) -> None:
    hinted = anyio.Event()
    assert await policy.veto_devices(OFFER, agent) == ()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(policy.watch_devices, hinted.set)
        async with Plugin(agent.paths.device_plugins, "GPU-1", resource=RIVAL).serving():
            await hinted.wait()
            assert await policy.veto_devices(OFFER, agent)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    "settings",
    [
        {"guards": [{"kinds": []}]},
        {"guards": [{"resources": ["nvidia.com/*"]}]},
        {"guards": [{"kinds": ["gpu"], "rivals": ["x"]}]},
        {"every": 0},
        {"return_after": -1},
        {"condition": ["OnlyAType"]},
    ],
)
def test_settings_that_would_guard_nothing_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ExclusiveSourceSettings.model_validate(settings)
