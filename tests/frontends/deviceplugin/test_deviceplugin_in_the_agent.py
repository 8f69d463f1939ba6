"""The real agent with this frontend, a kubelet, and pods that come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from hardpoint import Delivery, Device, Hold, RankRequest, hookimpl
from hardpoint._core.agent import HardpointAgent
from hardpoint._core.offline import sections
from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint._core.pods.absence import Pace
from hardpoint.allocation import PodUser
from hardpoint.node import Node
from hardpoint.settings import AgentSettings, PathSettings
from hardpoint.testing import Container, FakeKubelet, Pod
from hardpoint.testing.kubelet import PodFailed
from hardpoint.testing.sysfs import FakeMachine
from hardpoint_deviceplugin import DevicePlugin

RADIO = "hardpoint.dev/radio"
QUICK = Pace(every=0.02, apart=0.02, margin=0.1, settle=0.1)


class Radios:
    """A driver of radios; it wants those with the highest numbers together."""

    def __init__(self, node: Node, settings: None) -> None:
        self.node = node

    @hookimpl
    def publish_devices(self) -> Iterator[Device]:
        for radio in self.node.each("class/radio"):
            facts = {"channel": int(radio.name[-1])}
            yield Device(
                name=radio.name,
                kind="radio",
                nodes=radio.nodes(),
                parts=radio.whole(),
                attributes=facts,
            )

    @hookimpl
    def deliver_device(self, device: Device) -> Delivery:
        return Delivery(nodes=device.nodes, env={"RADIOS": device.name})

    @hookimpl
    def rank_devices(self, request: RankRequest) -> list[str]:
        return sorted(request.available, reverse=True)


class Tidy(Radios):
    """A driver that leaves nothing of one pod's to the next."""

    def __init__(self, node: Node, settings: None) -> None:
        super().__init__(node, settings)
        self.calls: list[str] = []

    @hookimpl
    def prepare_device(self, device: Device) -> None:
        self.calls.append(f"prepare {device.name}")

    @hookimpl
    def unprepare_device(self, hold: Hold) -> None:
        self.calls.append(f"unprepare {hold.device.name}")

    @hookimpl
    def release_device(self, device: Device) -> None:
        self.calls.append(f"release {device.name}")


class Site:
    """One node with four radios; agents are started on it one after the other."""

    def __init__(self, root: Path, kubelet: FakeKubelet) -> None:
        self.root, self.kubelet = root, kubelet
        self.driver: type[Radios] = Radios
        self.radios: Any = None
        """The driver of the agent that was started last."""
        self.machine = FakeMachine(root / "machine")
        for number in range(4):
            self.machine.platform(f"acme-{number}").node("radio", f"radio{number}", 240, number)

    @asynccontextmanager
    async def agent(self, **section: Any) -> AsyncIterator[HardpointAgent]:
        paths = PathSettings(
            state=self.root / "state",
            cdi=self.root / "cdi",
            kubelet=self.root / "kubelet",
            device_plugins=self.root / "plugins",
        )
        tables: dict[str, Any] = {"frontend": {"deviceplugin": section}}
        settings = AgentSettings(paths=paths, node_name="node-1", **tables)
        node = self.machine.node()
        self.kubelet.runtime._info = node.info
        plugins = Plugins(
            [
                Plugin("driver", "radios", loaded=self.driver),
                Plugin("frontend", "deviceplugin", loaded=DevicePlugin),
            ]
        )
        for plugin in plugins.all:
            plugins.start(plugin, node, sections(settings, plugin.role).get(plugin.name, {}))
            assert plugin.state == "running", plugin.reason
        self.radios = plugins.all[0].instance
        agent = HardpointAgent(settings, node, instance="", plugins=plugins, pace=QUICK)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run)
            with anyio.fail_after(10):
                await agent.started.wait()
            await until(lambda: agent.ready)
            yield agent
            tasks.cancel_scope.cancel()


@pytest.fixture
async def site(
    short_path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Site]:
    monkeypatch.setattr("hardpoint_deviceplugin.service.RESEND_SOON", 0.2)
    kubelet = FakeKubelet(
        short_path / "kubelet", device_plugins=short_path / "plugins", cdi=[short_path / "cdi"]
    )
    async with kubelet:
        await kubelet.admit(Pod(name="bystander"))
        yield Site(short_path, kubelet)
        assert kubelet.plugins.complaints == []


def pod(name: str, count: int = 1, resource: str = RADIO) -> Pod:
    return Pod(name=name, containers=(Container(name="main", resources={resource: count}),))


async def until(true: Any, within: float = 10) -> None:
    with anyio.fail_after(within):
        while not true():  # noqa: ASYNC110 - files and a process's own clock set no Event
            await anyio.sleep(0.01)


@pytest.mark.field_case("J04")
async def test_a_pod_has_its_device_from_its_admission_to_its_end(site: Site) -> None:
    async with site.agent() as agent:
        await site.kubelet.until_allocatable(RADIO, 4)
        (given,) = await site.kubelet.admit(pod("train"))
        seen = await site.kubelet.run(pod("train"))

        assert [node["path"] for node in seen.nodes] == [f"/dev/{given.ids[0]}"]
        assert f"RADIOS={given.ids[0]}" in seen.env
        users = (PodUser("default", "train", "main"),)
        await until(lambda: [one.users for one in agent.allocations()] == [users])

        site.kubelet.end(pod("train"))
        await until(lambda: agent.allocations() == ())
        assert list(agent.paths.cdi.glob("*.json")) == []


async def test_the_driver_says_which_devices_a_pod_gets_together(site: Site) -> None:
    async with site.agent():
        await site.kubelet.until_allocatable(RADIO, 4)
        (given,) = await site.kubelet.admit(pod("train", 2))

        assert given.ids == ("radio2", "radio3")


async def test_what_a_pod_left_is_scrubbed_before_the_next_one_has_its_device(site: Site) -> None:
    """It is admitted at once: no list of pods has missed the first one yet."""
    site.driver = Tidy
    async with site.agent() as agent:
        await site.kubelet.until_allocatable(RADIO, 4)
        await site.kubelet.admit(pod("train", 4))
        site.kubelet.end(pod("train"))
        (given,) = await site.kubelet.admit(pod("next", 4))
        await site.kubelet.run(pod("next"))
        held = sorted(one.id for one in agent.allocations())

    for radio in given.ids:
        calls = [call for call in site.radios.calls if call.endswith(radio)]
        assert calls == [
            f"{what} {radio}" for what in ("prepare", "unprepare", "release", "prepare")
        ]
    assert held == list(given.ids)


async def test_an_init_containers_device_goes_on_to_its_pod_as_it_is(site: Site) -> None:
    site.driver = Tidy
    containers = (
        Container(name="load", resources={RADIO: 4}, init=True),
        Container(name="more", resources={RADIO: 2}, init=True),
        Container(name="main", resources={RADIO: 4}),
    )
    both = Pod(name="train", containers=containers)
    async with site.agent():
        await site.kubelet.until_allocatable(RADIO, 4)
        load, _, main = await site.kubelet.admit(both)
        assert await site.kubelet.run(both, "load") == await site.kubelet.run(both, "main")

        assert main.cdi_ids == load.cdi_ids
        assert sorted(site.radios.calls) == [f"prepare radio{n}" for n in range(4)]
        site.kubelet.end(both)
        (again, *_) = await site.kubelet.admit(pod("next", 4))

        assert sorted(site.radios.calls) == sorted(
            f"{what} {radio}"
            for radio in again.ids
            for what in ("prepare", "unprepare", "release", "prepare")
        )


@pytest.mark.parametrize("way", ["cdi", "specs"])
async def test_a_container_with_two_devices_sees_both_in_a_variable_that_both_set(
    site: Site, way: str
) -> None:
    async with site.agent(devices=way):
        await site.kubelet.until_allocatable(RADIO, 4)
        await site.kubelet.admit(pod("train", 2))

        seen = await site.kubelet.run(pod("train"))

        assert [one for one in seen.env if one.startswith("RADIOS=")] == ["RADIOS=radio2,radio3"]


async def test_a_pod_keeps_its_device_through_restarts_of_agent_and_kubelet(site: Site) -> None:
    async with site.agent():
        await site.kubelet.until_allocatable(RADIO, 4)
        (given,) = await site.kubelet.admit(pod("train", 2))
        before = await site.kubelet.run(pod("train"))
    await site.kubelet.restart()
    async with site.agent() as agent:
        await site.kubelet.until_allocatable(RADIO, 4)
        assert await site.kubelet.run(pod("train")) == before
        assert sorted(one.id for one in agent.allocations()) == list(given.ids)

        (other,) = await site.kubelet.admit(pod("other", 2))
        assert set(other.ids) == {"radio0", "radio1"}
        with pytest.raises(PodFailed, match="Available: 0"):
            await site.kubelet.admit(pod("third"))


async def test_a_selected_resource_gives_what_its_selector_matches(site: Site) -> None:
    two = {
        "name": "example.com/low",
        "selector": 'device.attributes["hardpoint.dev"].?channel.orValue(9) < 2',
    }
    async with site.agent(resources=[two]):
        await site.kubelet.until_allocatable("example.com/low", 2)
        await site.kubelet.until_allocatable(RADIO, 2)
        (given,) = await site.kubelet.admit(pod("train", 2, "example.com/low"))

        assert given.ids == ("radio0", "radio1")


async def test_without_cdi_a_pod_gets_the_same_nodes(site: Site) -> None:
    async with site.agent(devices="specs"):
        await site.kubelet.until_allocatable(RADIO, 4)
        (given,) = await site.kubelet.admit(pod("train"))

        assert given.cdi_ids == ()
        seen = await site.kubelet.run(pod("train"))
        assert [node["path"] for node in seen.nodes] == [f"/dev/{given.ids[0]}"]


async def test_a_renamed_resource_waits_for_who_has_its_devices(site: Site) -> None:
    renamed = "example.com/radio"
    async with site.agent():
        await site.kubelet.until_allocatable(RADIO, 4)
        (given,) = await site.kubelet.admit(pod("train"))
    async with site.agent(names={"radio": renamed}):
        await site.kubelet.until_allocatable(renamed, 3)
        assert site.kubelet.capacity(renamed) == 4
        assert site.kubelet.allocatable(RADIO) == 0
        (other,) = await site.kubelet.admit(pod("other", 3, renamed))
        assert set(other.ids).isdisjoint(given.ids)

        site.kubelet.end(pod("train"))
        await site.kubelet.until_allocatable(renamed, 4)
