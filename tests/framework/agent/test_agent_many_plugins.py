"""Several plugins side by side: what one says of its devices is never taken for another's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hardpoint import Device, DeviceNode, Event, Health, hookimpl
from hardpoint._core.plugins.discovery import Plugin
from hardpoint._core.plugins.observing import MOST_WAITING
from hardpoint.errors import HoldError
from hardpoint.model import Condition, Delivery, Part
from hardpoint.settings import Names

from .conftest import World, claim, reading, until

OTHER = "other.example"


def _plugin(name: str, role: str = "driver", /, **hooks: Callable[..., Any]) -> Plugin:
    def init(self: Any, node: Any, settings: Any) -> None:
        self.node = node

    methods = {}
    for hook, function in hooks.items():
        function.__name__ = hook
        methods[hook] = hookimpl(function)
    return Plugin(role, name, loaded=type(name, (), {"__init__": init, **methods}))


def _listing(name: str, part: str) -> Callable[..., list[Device]]:
    return lambda self: [Device(name=name, kind="k", parts=(Part(part, True),))]


async def test_the_health_of_one_drivers_device_is_not_that_of_its_namesake(world: World) -> None:
    ill = _plugin(
        "ill",
        publish_devices=_listing("x", "p:1"),
        check_device=lambda self: Health(Condition.UNHEALTHY),
    )
    well = _plugin("well", publish_devices=_listing("x", "p:2"))
    async with world.agent(ill, well, names={"well": Names(domain=OTHER)}) as agent:
        offer = await until(agent, lambda o: not o.find("x", "hardpoint.dev").claimable)  # type: ignore[union-attr]

        found = offer.find("x", OTHER)
        assert found is not None
        assert (found.claimable, found.health.condition) == (True, Condition.HEALTHY)


async def test_a_quarantined_device_takes_no_namesake_with_it(world: World) -> None:
    def fails(self: Any) -> None:
        raise RuntimeError("stuck")

    bad = _plugin("bad", publish_devices=_listing("x", "p:1"), unprepare_device=fails)
    good = _plugin("good", publish_devices=_listing("x", "p:2"))
    async with world.agent(bad, good, names={"good": Names(domain=OTHER)}) as agent:
        wanted = claim("x")
        await agent.prepare(wanted.key, reading(wanted))
        for _ in range(2):
            with pytest.raises(HoldError):
                await agent.unprepare(wanted.key)
        await agent.unprepare(wanted.key)

        offer = await until(agent, lambda o: o.find("x", "hardpoint.dev") is None)

        assert offer.find("x", OTHER)
        assert [(w.subject, w.driver) for w in offer.withheld] == [("x", "bad")]


async def test_a_claim_under_a_name_that_the_settings_no_longer_have_is_still_served(
    world: World,
) -> None:
    wanted = claim("radio0")
    async with world.agent() as agent:
        await agent.prepare(wanted.key, reading(wanted))

    async with world.agent(domain=OTHER) as agent:
        assert [d.dra_driver for d in agent.domains] == [OTHER, "hardpoint.dev"]
        old = agent.offer.find("radio0", "hardpoint.dev")
        new = agent.offer.find("radio0", OTHER)
        assert old is not None
        assert new is not None
        assert (old.claimable, [taint.key for taint in new.taints]) == (False, ["in-use"])

        await agent.unprepare(wanted.key)

        await until(agent, lambda o: o.find("radio0", "hardpoint.dev") is None)
        assert [d.dra_driver for d in agent.domains] == [OTHER]


async def test_faults_of_claims_that_have_ended_leave_the_board(world: World) -> None:
    def fails(self: Any) -> None:
        raise RuntimeError("no")

    bad = _plugin("bad", publish_devices=_listing("x", "p:1"), prepare_device=fails)
    async with world.agent(bad) as agent:
        wanted = claim("x")
        with pytest.raises(HoldError):
            await agent.prepare(wanted.key, reading(wanted))
        (fault,) = agent.board.entries
        assert fault.source.startswith("driver/bad prepare_device ")

        await agent.unprepare(wanted.key)

        assert not agent.board.entries


async def test_an_observer_sees_every_event_in_order(world: World) -> None:
    seen: list[str] = []
    done = threading.Event()

    def observe(self: Any, event: Event) -> None:
        seen.append(event.message)
        if event.message == "claim ns/claim: radio0":
            done.wait(5)

    async with world.agent(_plugin("watcher", "policy", observe=observe)) as agent:
        first, second = claim("radio0"), claim("radio1")
        await agent.prepare(first.key, reading(first))
        for _ in range(3):
            await agent.prepare(second.key, reading(second))
            await agent.unprepare(second.key)
        done.set()
        with anyio.fail_after(10):
            while len(seen) < 7:  # noqa: ASYNC110 - a list sets no Event
                await anyio.sleep(0.01)

        assert seen == ["claim ns/claim: radio0", *6 * ["claim ns/claim: radio1"]]


async def test_an_observer_that_hangs_loses_its_own_events_and_it_is_said(world: World) -> None:
    over = threading.Event()
    seen: list[str] = []

    def hangs(self: Any) -> None:
        over.wait(10)

    def sees(self: Any, event: Event) -> None:
        seen.append(event.message)

    stuck = _plugin("stuck", "policy", observe=hangs)
    async with world.agent(stuck, _plugin("well", "policy", observe=sees)) as agent:
        agent.report(Event(name="n", message="first"))
        await anyio.lowlevel.checkpoint()
        for number in range(MOST_WAITING + 5):
            agent.report(Event(name="n", message=str(number)))
        with anyio.fail_after(10):
            while len(seen) < MOST_WAITING:  # noqa: ASYNC110 - a list sets no Event
                await anyio.sleep(0.01)
        assert [f.source for f in agent.board.entries][:1] == ["policy/stuck observe queue"]
        over.set()


async def test_a_delivery_that_hangs_holds_up_no_offer(world: World) -> None:
    over, hanging = threading.Event(), threading.Event()
    minors = {"x": 0}

    def publish(self: Any) -> list[Device]:
        node = DeviceNode(path="/dev/radio0", major=240, minor=minors["x"])
        return [Device(name="x", kind="k", nodes=(node,))]

    def deliver(self: Any, device: Device) -> Delivery:
        if minors["x"]:
            hanging.set()
            over.wait(10)
        return Delivery(nodes=device.nodes)

    bad = _plugin("bad", publish_devices=publish, deliver_device=deliver)
    async with world.agent(bad) as agent:
        wanted = claim("x")
        await agent.prepare(wanted.key, reading(wanted))
        minors["x"] = 7
        agent._scanner.wake.set()
        await anyio.to_thread.run_sync(hanging.wait, 5)

        world.radio("radio2", 2)
        world.machine.node()
        agent._scanner.wake.set()
        with anyio.fail_after(3):  # deliver_device may take 5 s, again and again
            await until(agent, lambda o: o.find("radio2") is not None)
        over.set()
