"""The fake kubelet's device plugin side, with a plugin of a few lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plain_plugin import GPU, Plugin

from hardpoint.errors import CallFailed
from hardpoint.kubelet import deviceplugin_v1beta1_pb2 as pb
from hardpoint.kubelet.pod_resources import PodResources
from hardpoint.kubelet.services import Status
from hardpoint.testing import Container, FakeKubelet, Pod
from hardpoint.testing.clock import ManualClock
from hardpoint.testing.kubelet import Behaviour, PodFailed


class World:
    def __init__(self, root: Path, version: str = "1.37") -> None:
        self.root, self.plugins = root / "kubelet", root / "device-plugins"
        self.cdi = root / "cdi"
        self.cdi.mkdir()
        self.clock = ManualClock()
        self.behaviour = Behaviour(version=version, clock=self.clock)

    def kubelet(self) -> FakeKubelet:
        return FakeKubelet(
            self.root, device_plugins=self.plugins, cdi=[self.cdi], behaviour=self.behaviour
        )

    def cdi_file(self, *ids: str) -> None:
        devices = ",".join(
            f'{{"name": "{id_}", "containerEdits": {{"env": ["HAS_{id_.upper()}=1"]}}}}'
            for id_ in ids
        )
        text = f'{{"cdiVersion": "0.5.0", "kind": "acme.dev/device", "devices": [{devices}]}}'
        (self.cdi / "acme.json").write_text(text)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.cdi_file("a", "b", "c")
    return made


def pod(name: str, count: int = 1, **changes: Any) -> Pod:
    main = Container(name="main", resources={GPU: count})
    return Pod(name=name, **({"containers": (main,)} | changes))


# -- registration ---------------------------------------------------------------------------------


async def test_a_registered_plugin_is_counted_and_a_container_gets_what_it_answered(
    world: World,
) -> None:
    async with world.kubelet() as kubelet, Plugin(world.plugins, "a", "b").serving():
        assert kubelet.capacity(GPU) in (0, 2)
        await kubelet.until_allocatable(GPU, 2)
        (got,) = await kubelet.admit(pod("one"))
        seen = await kubelet.run(pod("one"))

        assert seen.env == (f"HAS_{got.ids[0].upper()}=1",)
        assert kubelet.plugins.complaints == []
        assert [r.error for r in kubelet.plugins.registrations] == [""]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": "v1"}, "version"),
        ({"resource": "gpu"}, "resource name"),
        ({"resource": "kubernetes.io/gpu"}, "resource name"),
        ({"resource": "x.kubernetes.io/gpu"}, "resource name"),
        ({"resource": "requests.acme.dev/gpu"}, "resource name"),
        ({"resource": f"{'a' * 60}.{'b' * 60}.{'c' * 60}.{'d' * 63}/gpu"}, "resource name"),
        ({"resource": "acme.dev/-gpu"}, "resource name"),
        ({"resource": "acme.dev/g" + "p" * 63}, "resource name"),
        ({"resource": "acme.dev/a/b"}, "resource name"),
        ({"endpoint": "../elsewhere.sock"}, "no file name"),
        ({"endpoint": "nobody.sock"}, "failed to dial"),
    ],
)
async def test_what_the_kubelet_does_not_register_is_refused_with_the_rule(
    world: World, changes: dict[str, str], why: str
) -> None:
    world.behaviour.dial_timeout = 0.2
    async with world.kubelet() as kubelet:
        plugin = Plugin(world.plugins, "a")
        async with plugin.server:
            with pytest.raises(CallFailed, match=why):
                await plugin.register(**changes)

        assert kubelet.capacity(changes.get("resource", GPU)) is None
        assert [why in r.error for r in kubelet.plugins.registrations] == [True]


async def test_names_with_capitals_dots_and_underscores_are_taken(world: World) -> None:
    name = "acme.dev/GPU_v1.2-big"
    async with (
        world.kubelet() as kubelet,
        Plugin(world.plugins, "a", resource=name).serving(),
    ):
        await kubelet.until_allocatable(name, 1)


async def test_what_a_plugin_should_not_list_is_complained_of(world: World) -> None:
    plugin = Plugin(world.plugins)
    plugin.devices = [
        pb.Device(ID="a", health="Healthy"),
        pb.Device(ID="a", health="Fine", topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=-1)])),
        pb.Device(ID="x" * 64, health="Unhealthy"),
    ]
    async with world.kubelet() as kubelet, plugin.serving():
        await kubelet.until(lambda: kubelet.capacity(GPU) == 2)
        said = " ".join(kubelet.plugins.complaints)

    assert "twice" in said
    assert "'Fine'" in said
    assert "-1" in said
    assert "64 characters" in said


async def test_a_list_is_the_whole_truth(world: World) -> None:
    plugin = Plugin(world.plugins, "a", "b")
    async with world.kubelet() as kubelet, plugin.serving():
        await kubelet.until_allocatable(GPU, 2)
        plugin.tell(pb.Device(ID="a", health="Unhealthy"), pb.Device(ID="c", health="Healthy"))
        await kubelet.until_allocatable(GPU, 1)

        assert kubelet.capacity(GPU) == 2
        assert sorted(kubelet.listed(GPU)) == ["a", "c"]


# -- loss -----------------------------------------------------------------------------------------


async def test_an_ended_stream_makes_all_unhealthy_and_forgets_them_after_the_grace_period(
    world: World,
) -> None:
    plugin = Plugin(world.plugins, "a", "b")
    async with world.kubelet() as kubelet, plugin.serving():
        await kubelet.until_allocatable(GPU, 2)
        plugin.hang_up()
        await kubelet.until_allocatable(GPU, 0)

        assert kubelet.capacity(GPU) == 2
        world.clock.advance(299)
        assert kubelet.capacity(GPU) == 2
        world.clock.advance(1)
        assert kubelet.capacity(GPU) is None
        await plugin.register()
        await kubelet.until_allocatable(GPU, 2)


async def test_a_list_of_more_than_four_mebibytes_ends_the_stream(world: World) -> None:
    plugin = Plugin(world.plugins, "a")
    async with world.kubelet() as kubelet, plugin.serving():
        await kubelet.until_allocatable(GPU, 1)
        plugin.tell(*(pb.Device(ID=f"{n:0500}", health="Healthy") for n in range(9000)))
        await kubelet.until_allocatable(GPU, 0)


async def test_a_restart_empties_the_directory_and_keeps_what_pods_have(world: World) -> None:
    plugin = Plugin(world.plugins, "a", "b")
    (world.plugins / "somebody").mkdir(parents=True)
    async with world.kubelet() as kubelet, plugin.serving():
        await kubelet.until_allocatable(GPU, 2)
        before = await kubelet.admit(pod("one"))
        identity = kubelet.plugins.identity()
        await kubelet.restart()

        assert not plugin.server.path.exists()
        assert (world.plugins / "somebody").is_dir()
        assert kubelet.plugins.identity() != identity
        assert (kubelet.capacity(GPU), kubelet.allocatable(GPU)) == (0, 0)
        assert (await kubelet.run(pod("one"))).env == (f"HAS_{before[0].ids[0].upper()}=1",)
        with pytest.raises(PodFailed, match="no healthy devices present"):
            await kubelet.admit(pod("two"))
        await plugin.server.renew()
        await plugin.register()
        await kubelet.until_allocatable(GPU, 2)
        (other,) = await kubelet.admit(pod("two"))
        assert not {*other.ids} & {*before[0].ids}
        assert [call for call in kubelet.devices.calls if call[2] == before[0].ids] == [
            ("Allocate", GPU, before[0].ids)
        ]


async def test_a_kubelet_that_was_killed_leaves_a_socket_that_nobody_serves(world: World) -> None:
    async with world.kubelet() as kubelet:
        await kubelet.stop(killed=True)
        assert kubelet.plugins.socket.is_socket()
        with pytest.raises(CallFailed) as failed:
            await Plugin(world.plugins).register()
        assert failed.value.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
        await kubelet.start()
        async with Plugin(world.plugins, "a").serving():
            await kubelet.until_allocatable(GPU, 1)


# -- two instances --------------------------------------------------------------------------------


async def test_two_instances_overlap_and_the_end_of_the_old_costs_nothing(world: World) -> None:
    old = Plugin(world.plugins, "a", name="old.sock")
    new = Plugin(world.plugins, "a", name="new.sock")
    async with world.kubelet() as kubelet, old.serving():
        await kubelet.until_allocatable(GPU, 1)
        async with new.serving():
            await kubelet.until(lambda: len(kubelet.plugins.resources[GPU].instances) == 2)
            old.hang_up()
            await kubelet.until(lambda: len(kubelet.plugins.resources[GPU].instances) == 1)
            assert kubelet.allocatable(GPU) == 1
            await kubelet.admit(pod("one"))
            assert (len(old.asked), len(new.asked)) == (0, 1)


async def test_an_old_kubelet_drops_the_new_instance_when_the_old_one_ends(tmp_path: Path) -> None:
    world = World(tmp_path, "1.35")
    old = Plugin(world.plugins, "a", name="old.sock")
    new = Plugin(world.plugins, "a", name="new.sock")
    async with world.kubelet() as kubelet, old.serving():
        await kubelet.until_allocatable(GPU, 1)
        async with new.serving():
            await kubelet.until(lambda: len(kubelet.plugins.resources[GPU].instances) == 2)
            old.hang_up()
            await kubelet.until_allocatable(GPU, 0)
            assert kubelet.plugins.newest(GPU) is None
            await new.register()
            await kubelet.until_allocatable(GPU, 1)


# -- admission ------------------------------------------------------------------------------------


async def test_a_pod_is_not_admitted_without_devices_and_leaves_nothing_taken(
    world: World,
) -> None:
    plugin = Plugin(world.plugins, "a")
    async with world.kubelet() as kubelet:
        with pytest.raises(PodFailed, match=r"OutOfacme\.dev/gpu"):
            await kubelet.admit(pod("early"))
        async with plugin.serving():
            await kubelet.until_allocatable(GPU, 1)
            with pytest.raises(PodFailed, match=r"unavailable for acme\.dev/gpu\. Requested: 2"):
                await kubelet.admit(pod("greedy", 2))
            plugin.refusal = "not now"
            with pytest.raises(PodFailed, match=r"UnexpectedAdmissionError: .*not now"):
                await kubelet.admit(pod("refused"))
            plugin.refusal, plugin.empty = "", True
            with pytest.raises(PodFailed, match="no containers return"):
                await kubelet.admit(pod("unanswered"))
            plugin.empty = False
            await kubelet.admit(pod("one"))
            with pytest.raises(PodFailed, match="Available: 0"):
                await kubelet.admit(pod("two"))
            kubelet.end(pod("one"))
            await kubelet.admit(pod("two"))


async def test_an_init_containers_ids_are_used_again_and_a_sidecar_keeps_its_own(
    world: World,
) -> None:
    containers = (
        Container(name="load", resources={GPU: 1}, init=True),
        Container(name="proxy", resources={GPU: 1}, init=True, restartable=True),
        Container(name="main", resources={GPU: 1}),
    )
    wanted = pod("one", containers=containers)
    async with world.kubelet() as kubelet, Plugin(world.plugins, "a", "b").serving():
        await kubelet.until_allocatable(GPU, 2)
        load, proxy, main = await kubelet.admit(wanted)

        assert load.ids == proxy.ids
        assert main.ids != proxy.ids


async def test_after_a_reboot_what_a_pod_had_must_be_healthy(world: World) -> None:
    plugin = Plugin(world.plugins, "a", "b")
    async with world.kubelet() as kubelet, plugin.serving():
        await kubelet.until_allocatable(GPU, 2)
        (got,) = await kubelet.admit(pod("one"))
        calls = len(plugin.asked)
        assert await kubelet.admit(pod("one")) == (got,)
        assert len(plugin.asked) == calls
        plugin.tell(*(d for d in plugin.devices if d.ID not in got.ids))
        await kubelet.until_allocatable(GPU, 1)
        with pytest.raises(PodFailed, match="no longer healthy"):
            await kubelet.admit(pod("one"))


async def test_preference_is_asked_for_only_if_offered_and_is_advice(world: World) -> None:
    plugin = Plugin(world.plugins, "a", "b", "c")
    plugin.prefer = ["b", "nothing"]
    plugin.options.get_preferred_allocation_available = True
    async with world.kubelet() as kubelet, plugin.serving():
        await kubelet.until_allocatable(GPU, 3)
        (got,) = await kubelet.admit(pod("one", 2))

        assert "b" in got.ids
        request = plugin.asked[0].container_requests[0]
        assert sorted(request.available_deviceIDs) == ["a", "b", "c"]
        assert (list(request.must_include_deviceIDs), request.allocation_size) == ([], 2)
    assert [call[0] for call in kubelet.devices.calls] == ["GetPreferredAllocation", "Allocate"]


async def test_what_is_on_the_wanted_numa_node_goes_first(world: World) -> None:
    plugin = Plugin(world.plugins)
    plugin.devices = [
        pb.Device(ID=id_, health="Healthy", topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=node)]))
        for id_, node in (("a", 0), ("b", 1), ("c", 1))
    ]
    async with world.kubelet() as kubelet, plugin.serving():
        await kubelet.until_allocatable(GPU, 3)
        (got,) = await kubelet.admit(pod("one", 2), numa={1})
        assert got.ids == ("b", "c")


# -- containers -----------------------------------------------------------------------------------


async def test_a_container_restarts_with_what_it_was_given_and_asks_before_if_wanted(
    world: World,
) -> None:
    plugin = Plugin(world.plugins, "a")
    plugin.options.pre_start_required = True
    async with world.kubelet() as kubelet, plugin.serving():
        await kubelet.until_allocatable(GPU, 1)
        await kubelet.admit(pod("one"))
        for _ in range(2):
            await kubelet.run(pod("one"))
        plugin.refusal = "it does not reset"
        with pytest.raises(PodFailed, match="it does not reset"):
            await kubelet.run(pod("one"))

    assert [call[0] for call in kubelet.devices.calls] == ["Allocate", *["PreStartContainer"] * 3]


async def test_specs_mounts_and_variables_reach_the_container_without_cdi(world: World) -> None:
    plugin = Plugin(world.plugins, "a")
    plugin.specs = True
    async with world.kubelet() as kubelet, plugin.serving():
        await kubelet.until_allocatable(GPU, 1)
        await kubelet.admit(pod("one"))
        seen = await kubelet.run(pod("one"))

    assert seen.env == ("GPUS=a",)
    assert seen.nodes == ({"path": "/dev/null", "hostPath": "/dev/null", "permissions": "r"},)
    assert [mount["containerPath"] for mount in seen.mounts] == ["/lib/x"]


# -- pod-resources --------------------------------------------------------------------------------


async def test_pod_resources_agree_with_what_pods_have(world: World) -> None:
    async with world.kubelet() as kubelet, Plugin(world.plugins, "a").serving():
        await kubelet.until_allocatable(GPU, 1)
        await kubelet.admit(pod("one"))
        async with PodResources(world.root) as asking:
            (use,) = await asking.list()
            assert (use.namespace, use.name) == ("default", "one")
            assert [(one.resource, one.ids) for one in use.resources] == [(GPU, ("a",))]
            assert await asking.get("default", "one") == use
            assert await asking.get("default", "two") is None
            kubelet.end(pod("one"))
            assert await asking.list() == ()


async def test_after_a_start_without_the_api_server_no_pod_is_listed_nor_freed(
    world: World,
) -> None:
    plugin = Plugin(world.plugins, "a")
    async with world.kubelet() as kubelet, plugin.serving():
        await kubelet.until_allocatable(GPU, 1)
        await kubelet.admit(pod("one"))
        await kubelet.restart(api=False)
        await plugin.server.renew()
        await plugin.register()
        await kubelet.until_allocatable(GPU, 1)
        async with PodResources(world.root) as asking:
            assert await asking.list() == ()
            with pytest.raises(PodFailed, match="Available: 0"):
                await kubelet.admit(pod("two"))
            kubelet.hear()
            assert [use.name for use in await asking.list()] == ["one"]


async def test_an_answer_can_be_refused_or_changed_by_a_test(world: World) -> None:
    async def refuse(answer: Any) -> Any:
        raise Status("INTERNAL", "no")

    async with world.kubelet() as kubelet:
        kubelet.answer_pods(refuse)
        async with PodResources(world.root) as asking:
            with pytest.raises(CallFailed, match="INTERNAL"):
                await asking.list()
