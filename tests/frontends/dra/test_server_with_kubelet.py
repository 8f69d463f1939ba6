"""The whole frontend between a kubelet and an API server: one claim through, and back, whatever
happens in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from dra_node import DRIVER, NODE, device, result, running

from hardpoint.errors import HoldDenied
from hardpoint.kube import Kube, Resource
from hardpoint.kubelet import pluginregistration_v1_pb2 as registration_pb
from hardpoint.kubelet.client import Client
from hardpoint.kubelet.services import service_of
from hardpoint.model import Condition, Domain, Health, Offered, Version
from hardpoint.testing.agent import FakeAgent
from hardpoint.testing.api_server import FakeApiServer
from hardpoint.testing.kubelet import FakeKubelet, Pod, PodFailed
from hardpoint_dra import Dra
from hardpoint_dra.frontend import DraSettings

POD = Pod(name="train", claims=("gpu",))


class World:
    """A node with a kubelet and a runtime, and an API server."""

    def __init__(self, root: Path, server: FakeApiServer, kubelet: FakeKubelet) -> None:
        self.root, self.server, self.kubelet = root, server, kubelet
        self.agent = self.new_agent()

    def new_agent(self, **options: Any) -> FakeAgent:
        agent = FakeAgent(self.root, kube=lambda: Kube.at(self.server.url), **options)
        agent.show(device("pci-0", attributes={"model": "A1", "version": Version("1.0.0")}))
        return agent

    @asynccontextmanager
    async def frontend(
        self, agent: FakeAgent | None = None, **settings: Any
    ) -> AsyncIterator[None]:
        """Serve until the block ends; begins once it is ready."""
        ready = anyio.Event()
        agent = agent or self.agent
        dra = Dra(agent.node, DraSettings(**settings))
        async with running(lambda: dra.serve_frontend(agent, ready.set)):
            with anyio.fail_after(10):
                await ready.wait()
            yield

    def allocate(
        self,
        *results: dict[str, Any],
        name: str = "gpu",
        pod: Pod = POD,
        config: list[dict[str, Any]] | None = None,
        **metadata: Any,
    ) -> str:
        """Make a claim, allocate it, reserve it for a pod; return its UID."""
        request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
        added = self.server.add(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default", **metadata},
                "spec": {"devices": {"requests": [request]}},
            }
        )
        reserved = [{"resource": "pods", "name": pod.name, "uid": pod.identity}]
        self.server.allocate(
            "default", name, list(results or (result(),)), config=config, reserved_for=reserved
        )
        return str(added["metadata"]["uid"])

    async def say(self, name: str, condition: str) -> None:
        """Write a condition of a device into the claim's status, as a controller would."""
        resource = Resource("resource.k8s.io", "v1", "resourceclaims")
        said = {
            "type": condition,
            "status": "True",
            "reason": "Said",
            "message": "",
            "lastTransitionTime": "2026-11-30T00:00:00Z",
        }
        entry = {"driver": DRIVER, "pool": NODE, "device": name, "conditions": [said]}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "gpu", "namespace": "default"},
            "status": {"devices": [entry]},
        }
        async with Kube.at(self.server.url) as kube:
            await kube.apply(
                resource, body, namespace="default", subresource="status", manager="controller"
            )

    def status(self) -> list[dict[str, Any]]:
        claim = self.server.get("resourceclaims", "gpu", "default")
        return list(claim["status"].get("devices") or [])


@pytest.fixture
async def world(short_path: Path) -> AsyncIterator[World]:
    async def get_claim(namespace: str, name: str) -> dict[str, Any] | None:
        found = [one for one in server.items("resourceclaims") if one["metadata"]["name"] == name]
        return found[0] if found else None

    async def wipe(driver: str | None) -> None:
        server.wipe(NODE, driver or "")

    async with FakeApiServer() as server:
        server.add_node(NODE)
        kubelet = FakeKubelet(
            short_path / "kubelet", get_claim=get_claim, wipe=wipe, cdi=[short_path / "cdi"]
        )
        async with kubelet:
            yield World(short_path, server, kubelet)


# -- one claim ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.33", "1.37"])
async def test_a_pod_gets_the_device_it_was_allocated_and_gives_it_back(
    world: World, version: str
) -> None:
    world.kubelet.behaviour.version = version
    uid = world.allocate()
    async with world.frontend():
        await world.kubelet.until_registered(DRIVER)
        (prepared,) = await world.kubelet.prepare(POD)
        injected = world.kubelet.inject(POD)
        await world.kubelet.unprepare(POD)

    assert (prepared.pool, prepared.device, prepared.requests) == (NODE, "pci-0", ("r",))
    assert injected.env == (f"HARDPOINT_PCI_0={uid}",)
    assert [key.uid for key in world.agent.prepared + world.agent.unprepared] == [uid, uid]
    assert list((world.root / "cdi").iterdir()) == []


async def test_a_pod_waits_for_the_binding_conditions_that_its_server_drops(world: World) -> None:
    fabric = device("fabric-0", binding_conditions=("up",), binding_failure_conditions=("failed",))
    world.agent.show(fabric)
    world.allocate(result("fabric-0"))
    async with world.frontend():
        await world.kubelet.until_registered(DRIVER)
        with pytest.raises(PodFailed, match="waits for up in the claim's status"):
            await world.kubelet.prepare(POD)
        assert world.agent.holds() == ()

        await world.say("fabric-0", "up")

        (prepared,) = await world.kubelet.prepare(POD)
        assert prepared.device == "fabric-0"


@pytest.mark.field_case("B03", "K04")
async def test_devices_are_published_and_come_back_when_the_kubelet_wiped_them(
    world: World,
) -> None:
    async with world.frontend():
        await world.server.until(lambda: len(world.server.items("resourceslices")) == 1)
        await world.kubelet.restart()
        await world.kubelet.until_registered(DRIVER)

        await world.server.until(lambda: len(world.server.items("resourceslices")) == 1)


@pytest.mark.field_case("K04")
async def test_nothing_is_published_before_the_kubelet_can_prepare_it(world: World) -> None:
    """A pod bound to a kubelet that does not know the driver waits 8 s for another try."""
    await world.kubelet.stop()
    written: list[int] = []

    def ready() -> None:
        written.append(len(world.server.writes("resourceslices")))

    dra = Dra(world.agent.node, DraSettings())
    async with running(lambda: dra.serve_frontend(world.agent, ready)):
        async with Kube.at(world.server.url) as kube:
            for _ in range(50):  # many more round trips than publishing takes
                await kube.server_version()
        await world.kubelet.start()
        await world.server.until(lambda: world.server.items("resourceslices"))

    assert written == [0]


async def test_a_kubelet_that_is_away_does_not_keep_devices_from_being_seen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hardpoint_dra.serving._KUBELETS_TURN", 0.1)
    world.kubelet.behaviour.asks_info = False
    dra = Dra(world.agent.node, DraSettings())

    async with running(lambda: dra.serve_frontend(world.agent, lambda: None)):
        await world.server.until(lambda: world.server.items("resourceslices"))

    assert world.kubelet.instances(DRIVER) == ()


async def test_sub_requests_and_share_ids_go_through(world: World) -> None:
    share = "5d2e4f0c-3f64-4b0e-9a5e-0d6b1f0f6a51"
    world.allocate(result(request="r/sub", shareID=share))
    async with world.frontend():
        await world.kubelet.until_registered(DRIVER)
        (prepared,) = await world.kubelet.prepare(POD)

    assert (prepared.requests, prepared.share_id) == (("r",), share)


async def test_a_claim_of_two_drivers_is_prepared_by_each_for_its_part(world: World) -> None:
    gpu = Domain.named("gpu.hardpoint.dev")
    agent = world.new_agent(domains=[Domain.named(DRIVER), gpu])
    agent.show(device("pci-0"), Offered(device=device("gpu-0"), domain=gpu))
    world.allocate(result(), result("gpu-0", driver=gpu.dra_driver))
    async with world.frontend(agent):
        for driver in (DRIVER, gpu.dra_driver):
            await world.kubelet.until_registered(driver)
        prepared = await world.kubelet.prepare(POD)
        env = world.kubelet.inject(POD).env
        await world.kubelet.unprepare(POD)

    assert sorted((one.driver, one.device) for one in prepared) == [
        ("gpu.hardpoint.dev", "gpu-0"),
        (DRIVER, "pci-0"),
    ]
    assert len(env) == 2


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([result("pci-9")], "device pci-9 is not offered"),
        ([result(pool="node-2")], "is of pool node-2, this node's pool is node-1"),
    ],
)
async def test_a_refusal_reaches_the_pod_in_words(
    world: World, results: list[dict[str, Any]], said: str
) -> None:
    world.allocate(*results)
    async with world.frontend():
        await world.kubelet.until_registered(DRIVER)
        with pytest.raises(PodFailed, match=said):
            await world.kubelet.prepare(POD)
        await world.kubelet.unprepare(POD)


async def test_one_bad_claim_of_a_pod_does_not_lose_the_other(world: World) -> None:
    pod = Pod(name="two", claims=("good", "bad"))
    world.allocate(name="good", pod=pod)
    world.allocate(result("pci-9"), name="bad", pod=pod)
    async with world.frontend():
        await world.kubelet.until_registered(DRIVER)
        with pytest.raises(PodFailed, match="ResourceClaim bad: device pci-9 is not offered"):
            await world.kubelet.prepare(pod)

    assert [claim.key.name for claim in world.agent.claims.values()] == ["good"]


async def test_a_claim_made_anew_under_its_name_is_told_from_the_old_one(world: World) -> None:
    world.allocate()
    async with world.frontend():
        await world.kubelet.until_registered(DRIVER)
        claims = [{"namespace": "default", "name": "gpu", "uid": "uid-of-the-old-one"}]
        answer = await world.kubelet.call(DRIVER, "NodePrepareResources", claims)

    assert "it was deleted and created again" in answer.claims["uid-of-the-old-one"].error


# -- without an API server ------------------------------------------------------------------------


@pytest.mark.field_case("B16", "I05")
async def test_a_known_claim_is_answered_and_ended_while_the_api_server_is_down(
    world: World,
) -> None:
    uid = world.allocate()
    wire = [{"namespace": "default", "name": "gpu", "uid": uid}]
    async with world.frontend(metadata=("v1beta1",)):
        await world.kubelet.until_registered(DRIVER)
        first = await world.kubelet.call(DRIVER, "NodePrepareResources", wire)
        world.server.down = True
        again = await world.kubelet.call(DRIVER, "NodePrepareResources", wire)
        ended = await world.kubelet.call(DRIVER, "NodeUnprepareResources", wire)
        unknown = await world.kubelet.call(DRIVER, "NodePrepareResources", wire)

    assert first.claims[uid].error == ""
    assert again == first
    assert ended.claims[uid].error == ""
    assert "resourceclaims/gpu" in unknown.claims[uid].error


@pytest.mark.field_case("B15")
async def test_an_unknown_claim_is_unprepared_at_once(world: World) -> None:
    async with world.frontend():
        await world.kubelet.until_registered(DRIVER)
        world.server.down = True
        wire = [{"namespace": "gone", "name": "gone", "uid": "unknown"}]
        answer = await world.kubelet.call(DRIVER, "NodeUnprepareResources", wire)

    assert answer.claims["unknown"].error == ""


@pytest.mark.field_case("A01", "I05")
async def test_without_any_api_server_the_kubelet_is_served_and_the_fault_named(
    world: World,
) -> None:
    agent = FakeAgent(world.root)
    source = f"frontend/dra slices of {DRIVER}"
    async with world.frontend(agent):
        await agent.until(lambda: source in agent.faults)
        wire = [{"namespace": "a", "name": "a", "uid": "a"}]
        answer = await world.kubelet.call(DRIVER, "NodePrepareResources", wire)

    assert "this test has no API server" in answer.claims["a"].error
    assert "this test has no API server" in agent.faults[source][0]


# -- restarts at every step -----------------------------------------------------------------------


@pytest.mark.parametrize("forget", [False, True])
async def test_a_kubelet_that_restarts_while_a_pod_runs_gets_the_same_answer(
    world: World, forget: bool
) -> None:
    world.allocate()
    async with world.frontend():
        await world.kubelet.until_registered(DRIVER)
        first = await world.kubelet.prepare(POD)
        await world.kubelet.restart(forget=forget)
        await world.kubelet.until_registered(DRIVER)

        assert await world.kubelet.prepare(POD) == first
        await world.kubelet.unprepare(POD)
        assert world.agent.claims == {}


@pytest.mark.field_case("A03")
async def test_a_kubelet_that_restarts_during_a_prepare_asks_again(world: World) -> None:
    world.allocate()
    world.agent.gate = anyio.Event()
    async with world.frontend(), anyio.create_task_group() as tasks:
        await world.kubelet.until_registered(DRIVER)
        tasks.start_soon(_fails, world.kubelet)
        await world.agent.until(lambda: len(world.agent.prepared) == 1)
        await world.kubelet.restart()
        await world.kubelet.until_registered(DRIVER)
        world.agent.gate.set()

        assert await world.kubelet.prepare(POD)


async def _fails(kubelet: FakeKubelet) -> None:
    with pytest.raises(PodFailed):
        await kubelet.prepare(POD)


async def test_a_prepare_that_is_too_slow_is_finished_by_the_next_call(world: World) -> None:
    world.allocate()
    world.agent.gate = anyio.Event()
    async with world.frontend(answer_within=0.05):
        await world.kubelet.until_registered(DRIVER)
        with pytest.raises(PodFailed, match="is still running; try again"):
            await world.kubelet.prepare(POD)
        world.agent.gate.set()

        assert await _prepared_in_the_end(world.kubelet)


async def _prepared_in_the_end(kubelet: FakeKubelet) -> object:
    """Ask again and again, as the kubelet does."""
    while True:
        with contextlib.suppress(PodFailed):
            return await kubelet.prepare(POD)


async def test_get_info_is_answered_while_many_claims_are_being_prepared(world: World) -> None:
    pods = [Pod(name=f"pod-{i}", claims=(f"claim-{i}",)) for i in range(32)]
    for pod in pods:
        world.allocate(name=pod.claims[0], pod=pod)
    world.agent.gate = anyio.Event()
    async with world.frontend(), anyio.create_task_group() as tasks:
        await world.kubelet.until_registered(DRIVER)
        for pod in pods:
            tasks.start_soon(world.kubelet.prepare, pod)
        await world.agent.until(lambda: len(world.agent.prepared) == len(pods))
        path = world.root / f"kubelet/plugins_registry/{DRIVER}-reg.sock"
        async with Client(path) as client:
            service = service_of(registration_pb, "Registration")
            request = registration_pb.InfoRequest()
            info = await client.call(service, "GetInfo", request, timeout_s=1)
        world.agent.gate.set()

    assert info.name == DRIVER
    assert len(world.agent.claims) == len(pods)


async def test_a_restarted_agent_serves_the_kubelet_again(world: World) -> None:
    world.allocate()
    for _ in range(3):
        async with world.frontend():
            await world.kubelet.until_registered(DRIVER)
            await world.kubelet.prepare(POD)
        await world.kubelet.until_gone(DRIVER)

    assert len(world.agent.prepared) == 1


async def test_in_a_rolling_update_the_new_one_answers_for_the_old_ones_claims(
    world: World,
) -> None:
    world.allocate()
    old = world.new_agent(instance="00000000-0000-4000-8000-00000000000a")
    new = world.new_agent(instance="00000000-0000-4000-8000-00000000000b", writing=False)
    new.claims = old.claims
    async with world.frontend(old):
        await world.kubelet.until_registered(DRIVER)
        await world.kubelet.prepare(POD)
        async with world.frontend(new):
            await world.kubelet.until_registered(DRIVER, 2)
            await world.kubelet.unprepare(POD)

    assert [len(old.prepared), len(new.unprepared)] == [1, 1]


async def test_one_driver_that_cannot_serve_costs_no_other(world: World) -> None:
    bad = Domain.named("Not_A_Name")
    agent = world.new_agent(domains=[Domain.named(DRIVER), bad])
    dra = Dra(agent.node, DraSettings())
    ready = anyio.Event()
    async with running(lambda: dra.serve_frontend(agent, ready.set)):
        await world.kubelet.until_registered(DRIVER)
        await agent.until(lambda: "frontend/dra serving of Not_A_Name" in agent.faults)

        assert not ready.is_set()


async def test_a_node_without_drivers_is_ready_at_once(world: World) -> None:
    async with world.frontend(FakeAgent(world.root, domains=())):
        assert world.kubelet.sockets == ()


# -- beside the claim -----------------------------------------------------------------------------


async def test_health_reaches_the_kubelet(world: World) -> None:
    async with world.frontend():
        await world.kubelet.until(
            lambda: world.kubelet.health(DRIVER, NODE, "pci-0").health == "Healthy"
        )
        world.agent.set_health("pci-0", Health(Condition.UNHEALTHY, "XID 79"))
        await world.kubelet.until(
            lambda: world.kubelet.health(DRIVER, NODE, "pci-0").message == "XID 79"
        )


async def test_without_health_the_kubelet_is_not_told_that_there_is_any(world: World) -> None:
    async with world.frontend(health=False):
        await world.kubelet.until_registered(DRIVER)

        assert world.kubelet.instances(DRIVER)[0].health_service == ""


async def test_a_container_finds_what_it_was_given(world: World) -> None:
    annotations = {"resource.kubernetes.io/pod-claim-name": "mine"}
    world.allocate(annotations=annotations)
    async with world.frontend(metadata=("v1beta1", "v1alpha1")):
        await world.kubelet.until_registered(DRIVER)
        await world.kubelet.prepare(POD)
        (mount,) = world.kubelet.inject(POD).mounts
        text = Path(mount["hostPath"]).read_text()
        await world.kubelet.unprepare(POD)

    assert "/resourceclaimtemplates/mine/r/" in mount["containerPath"]
    assert '"model": {"string": "A1"}' in text
    assert not Path(mount["hostPath"]).exists()


async def test_metadata_that_cannot_be_written_does_not_fail_the_pod(world: World) -> None:
    world.allocate()
    async with world.frontend(metadata=("v1beta1",)):
        await world.kubelet.until_registered(DRIVER)
        (world.root / f"kubelet/plugins/{DRIVER}/dra-device-metadata").write_text("in the way")

        assert await world.kubelet.prepare(POD)
        assert world.kubelet.inject(POD).mounts == ()
        assert f"dra metadata of {DRIVER}" in world.agent.faults


async def test_after_a_reboot_metadata_is_there_before_the_kubelet_asks(world: World) -> None:
    world.allocate()
    async with world.frontend(metadata=("v1beta1",)):
        await world.kubelet.until_registered(DRIVER)
        await world.kubelet.prepare(POD)
    (file,) = (world.root / "cdi").glob("*_metadata_*")
    file.unlink()
    async with world.frontend(metadata=("v1beta1",)):
        assert len(world.kubelet.inject(POD).mounts) == 1


async def test_the_preview_is_what_would_be_published(world: World) -> None:
    dra = Dra(world.agent.node, DraSettings())

    previewed = dra.preview_offer(world.agent.offer, "v1")

    async with world.frontend():
        await world.server.until(lambda: len(world.server.items("resourceslices")) == 1)
        (stored,) = world.server.items("resourceslices")
    assert [one["spec"]["devices"] for one in previewed] == [stored["spec"]["devices"]]


async def test_an_error_of_the_agent_is_the_pods_error(world: World) -> None:
    world.allocate()
    async with world.frontend():
        await world.kubelet.until_registered(DRIVER)
        world.agent.refuse = HoldDenied("device pci-0 is quarantined")
        with pytest.raises(PodFailed, match="device pci-0 is quarantined"):
            await world.kubelet.prepare(POD)


# -- status ---------------------------------------------------------------------------------------


async def test_a_prepared_device_shows_in_the_claims_status(world: World) -> None:
    world.allocate()
    async with world.frontend():
        await world.kubelet.until_registered(DRIVER)
        await world.kubelet.prepare(POD)
        await world.server.until(lambda: len(world.status()) == 1)
        (entry,) = world.status()
        await world.kubelet.unprepare(POD)
        await world.server.until(lambda: world.status() == [])

    assert (entry["driver"], entry["pool"], entry["device"]) == (DRIVER, NODE, "pci-0")
    assert [(c["type"], c["status"]) for c in entry["conditions"]] == [("Ready", "True")]
    assert entry["data"]["attributes"] == {"model": "A1", "version": "1.0.0"}


async def test_two_drivers_leave_each_others_status_alone(world: World) -> None:
    gpu = Domain.named("gpu.hardpoint.dev")
    agent = world.new_agent(domains=[Domain.named(DRIVER), gpu])
    agent.show(device("pci-0"), Offered(device=device("gpu-0"), domain=gpu))
    world.allocate(result(), result("gpu-0", driver=gpu.dra_driver))
    async with world.frontend(agent):
        for driver in (DRIVER, gpu.dra_driver):
            await world.kubelet.until_registered(driver)
        await world.kubelet.prepare(POD)

        await world.server.until(lambda: len(world.status()) == 2)


async def test_status_that_is_forbidden_is_said_once_and_the_pod_starts(world: World) -> None:
    world.allocate()
    world.server.deny("patch", "resourceclaims/status")
    source = f"dra claim status of {DRIVER}"
    async with world.frontend():
        await world.kubelet.until_registered(DRIVER)
        assert await world.kubelet.prepare(POD)
        await world.agent.until(lambda: source in world.agent.faults)

    assert len(world.agent.faults[source]) == 1
    assert "grant patch on resourceclaims/status" in world.agent.faults[source][0]


async def test_status_waits_out_an_api_server_that_is_away(world: World) -> None:
    world.allocate()
    async with world.frontend():
        await world.kubelet.until_registered(DRIVER)
        world.server.trouble(status=503, times=2, method="PATCH")
        await world.kubelet.prepare(POD)

        await world.server.until(lambda: len(world.status()) == 1)


async def test_without_device_status_no_claim_is_written(world: World) -> None:
    world.allocate()
    async with world.frontend(device_status=False):
        await world.kubelet.until_registered(DRIVER)
        await world.kubelet.prepare(POD)
        await world.kubelet.unprepare(POD)

    assert world.server.writes("resourceclaims") == []
