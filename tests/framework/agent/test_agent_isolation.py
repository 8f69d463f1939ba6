"""In a whole agent a rival takes everything that is guarded off the node, and it comes back."""

from __future__ import annotations

from pathlib import Path

import anyio
from plain_plugin import Plugin as DevicePlugin

from hardpoint._core.agent import HardpointAgent
from hardpoint._core.discovery import Plugin
from hardpoint.node import Node
from hardpoint.policies.exclusive_source import ExclusiveSource, ExclusiveSourceSettings
from hardpoint.testing import FakeKubelet

from .conftest import World, until

RIVAL = "rival.example.com/radio"


class Guarded(ExclusiveSource):
    """The policy, with a guard for radios."""

    def __init__(self, node: Node, settings: ExclusiveSourceSettings) -> None:
        guard = {"kinds": ["radio"], "resources": ["rival.example.com/*"], "remedy": "remove it"}
        given = {"guards": [guard], "every": 1, "return_after": 0}
        super().__init__(node, ExclusiveSourceSettings.model_validate(given))


async def _until(agent: HardpointAgent, conditions: list[str]) -> None:
    with anyio.fail_after(10):
        async for _ in agent.changes():
            if [one.type for one in agent.conditions()] == conditions:
                return


async def test_a_rival_withdraws_all_that_is_guarded_until_it_is_gone(short_path: Path) -> None:
    world = World(short_path)
    world.radio("radio0", 0)
    rival = DevicePlugin(short_path / "dp", "r1", resource=RIVAL)
    policy = Plugin("policy", "exclusive_source", loaded=Guarded)
    async with (
        FakeKubelet(short_path / "kubelet", device_plugins=short_path / "dp") as kubelet,
        world.agent(policy, policies=("exclusive_source",)) as agent,
    ):
        await until(agent, lambda offer: offer.find("radio0") is not None)
        assert agent.conditions() == ()
        async with rival.serving():
            gone = await until(agent, lambda offer: not offer.devices)
            await _until(agent, ["ForeignExposure"])
            (condition,) = agent.conditions()
            rival.tell()
            await until(agent, lambda offer: offer.find("radio0") is not None)
            await _until(agent, [])
        assert kubelet.plugins.registrations

    (withheld,) = gone.withheld
    assert withheld.rule == "vetoed"
    assert withheld.reason == (f"another device plugin of this node offers {RIVAL}: remove it")
    assert (condition.reason, RIVAL in condition.message) == ("OtherDevicePath", True)


async def test_a_kubelet_that_never_answered_keeps_back_what_is_guarded_and_says_so(
    short_path: Path,
) -> None:
    world = World(short_path)
    world.radio("radio0", 0)
    policy = Plugin("policy", "exclusive_source", loaded=Guarded)
    async with world.agent(policy, policies=("exclusive_source",)) as agent:
        await _until(agent, ["PodResourcesUnavailable"])
        offer = await until(agent, lambda offer: bool(offer.withheld))
        assert not offer.devices
        async with FakeKubelet(short_path / "kubelet", device_plugins=short_path / "dp"):
            await until(agent, lambda offer: offer.find("radio0") is not None)
            await _until(agent, [])
