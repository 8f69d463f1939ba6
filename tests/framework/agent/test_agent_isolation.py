"""In a whole agent a rival takes everything that is guarded off the node, and it comes back."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from plain_plugin import Plugin as DevicePlugin

from hardpoint import Veto, hookimpl, hookspecs
from hardpoint._core.agent import HardpointAgent
from hardpoint._core.offer import offering
from hardpoint._core.plugins.discovery import Plugin
from hardpoint.contract import spec_of
from hardpoint.model import Offer
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


class _Failing:
    """A policy that answers, raises or hangs as it is told."""

    def __init__(self, *vetoes: Veto) -> None:
        self.vetoes = vetoes
        self.fails = False
        self.hang: anyio.Event | None = None
        self.asked = 0

    def plugin(self) -> Plugin:
        played = self

        class Vetoes:
            def __init__(self, node: Node, settings: None) -> None: ...

            @hookimpl
            async def veto_devices(self) -> tuple[Veto, ...]:
                played.asked += 1
                if played.hang is not None:
                    await played.hang.wait()
                if played.fails:
                    raise OSError("the kubelet is away")
                return played.vetoes

        return Plugin("policy", "vetoes", loaded=Vetoes)


async def test_a_veto_is_in_the_log_when_it_begins_and_when_it_is_over(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hardpoint")
    remedy, condition = "a rival has it: remove the rival", ("RivalHere", "TwoDrivers")
    vetoes = (
        Veto(device="radio1", reason=remedy, condition=condition),
        Veto(device="radio0", reason=remedy, condition=condition),
    )
    played = _Failing(*vetoes)
    async with world.agent(played.plugin()) as agent:
        await until(agent, lambda offer: len(offer.withheld) == 2)
        agent._offering.touch()
        asked = played.asked
        with anyio.fail_after(5):
            while played.asked == asked:  # noqa: ASYNC110 - it is asked again, and says the same
                await anyio.sleep(0.01)
        played.vetoes = vetoes[:1]
        agent._offering.touch()
        await until(agent, lambda offer: _names(offer) == ["radio0"])
        played.vetoes = ()
        agent._offering.touch()
        await until(agent, lambda offer: len(offer.devices) == 2)
        await _until(agent, [])

    said = [
        one.getMessage()
        for one in caplog.records
        if one.name in ("hardpoint.offer", "hardpoint.conditions")
    ]
    assert said == [
        f"condition begins type=RivalHere reason=TwoDrivers what={remedy!r}",
        f"vetoed devices=radio0,radio1 why={remedy!r}",
        "no longer vetoed devices=radio0",
        "condition ends type=RivalHere reason=TwoDrivers",
        "no longer vetoed devices=radio1",
    ]


async def test_a_veto_is_the_condition_that_it_says_while_it_stands(world: World) -> None:
    rival, moved = ("RivalHere", "TwoDrivers"), ("Moved", "BeingMoved")
    played = _Failing(
        Veto(device="radio0", reason="one has it", condition=rival),
        Veto(device="radio1", reason="another has it", condition=rival),
    )
    async with world.agent(played.plugin()) as agent:
        await _until(agent, ["RivalHere"])
        (condition,) = agent.conditions()
        assert (condition.reason, condition.message) == ("TwoDrivers", "one has it another has it")

        played.vetoes = (Veto(device="radio0", reason="it is moved", condition=moved),)
        agent._offering.touch()
        await _until(agent, ["Moved"])
        played.vetoes = (Veto(device="radio0", reason="it is moved"),)
        agent._offering.touch()
        await _until(agent, [])


def _names(offer: Offer) -> list[str]:
    return [one.name for one in offer.devices]


async def test_a_policy_that_fails_lets_nothing_through_that_it_was_never_asked_about(
    world: World,
) -> None:
    played = _Failing()
    async with world.agent(played.plugin()) as agent:
        await until(agent, lambda offer: _names(offer) == ["radio0", "radio1"])
        played.fails = True
        world.radio("radio2", 2)
        agent._scanner.wake.set()

        offer = await until(agent, lambda offer: bool(offer.withheld))

        assert _names(offer) == ["radio0", "radio1"]
        assert "the kubelet is away" in offer.withheld[0].reason
        played.fails = False
        await until(agent, lambda offer: len(offer.devices) == 3)


async def test_a_policy_that_failed_once_is_asked_again_though_nothing_happens(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offering, "_AGAIN", 0.01)
    played = _Failing()
    played.fails = True
    async with world.agent(played.plugin()) as agent:
        await until(agent, lambda offer: len(offer.withheld) == 2)
        played.fails = False

        await until(agent, lambda offer: _names(offer) == ["radio0", "radio1"])


async def test_a_policy_that_hangs_holds_up_an_offer_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is unplugged while it hangs is gone at once: its last word stands without waiting."""
    played = _Failing()
    async with world.agent(played.plugin()) as agent:
        await until(agent, lambda offer: len(offer.devices) == 2)
        played.hang = anyio.Event()
        spec = spec_of(hookspecs.veto_devices)
        monkeypatch.setattr(hookspecs.veto_devices, "dispatched_as", replace(spec, budget=0.01))
        asked = played.asked
        for number in (2, 3):
            world.radio(f"radio{number}", number)
            agent._scanner.wake.set()
            offer = await until(agent, lambda o, n=number: len(o.withheld) == n - 1)  # type: ignore[misc]
            assert len(offer.devices) == 2
        assert played.asked == asked + 1

        played.hang.set()
        played.hang = None
        agent._offering.touch()

        await until(agent, lambda offer: len(offer.devices) == 4)
