"""The agent that frontends' tests run against keeps what the real one promises of allocations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hardpoint.allocation import Assignment, PodUser
from hardpoint.errors import HoldConflict, HoldDenied, HoldFailed
from hardpoint.model import Condition, Device, DeviceNode, Domain, Health, HoldState
from hardpoint.testing import FakeAgent
from hardpoint.testing.cdi import CdiRegistry, UnresolvableDevice

DOMAIN = Domain.named("hardpoint.dev")
GPU = "hardpoint.dev/gpu"


def gpu(name: str, minor: int = 0) -> Device:
    node = DeviceNode(path="/dev/null", major=1, minor=3 + minor)
    return Device(name=name, kind="gpu", nodes=(node,))


def wanted(device: str, id_: str = "") -> Assignment:
    return Assignment(resource=GPU, id=id_ or device, device=device, domain=DOMAIN)


@pytest.fixture
def agent(tmp_path: Path) -> FakeAgent:
    made = FakeAgent(tmp_path)
    made.show(gpu("a"), gpu("b", 1))
    return made


async def test_an_allocation_is_held_delivered_and_shown(agent: FakeAgent) -> None:
    agent.users[GPU, "a"] = (PodUser("ns", "train", "main"),)
    (got,) = await agent.allocate([wanted("a")])
    (again,) = await agent.allocate([wanted("a")])

    assert got == again
    injected = CdiRegistry(agent.paths.cdi).inject(got.cdi_ids)
    assert (injected.env, injected.paths) == (("HARDPOINT_A=a",), ("/dev/null",))
    (shown,) = agent.allocations()
    assert (shown.id, shown.state, shown.users) == ("a", HoldState.HELD, agent.users[GPU, "a"])
    assert [str(hold.claim) for hold in agent.holds()] == ["hardpoint.dev/gpu/a"]
    assert agent.allocated == [(wanted("a"),), (wanted("a"),)]


async def test_all_are_held_or_none(agent: FakeAgent) -> None:
    with pytest.raises(HoldDenied, match="not offered"):
        await agent.allocate([wanted("a"), wanted("nothing")])

    assert agent.allocations() == ()
    assert list(agent.paths.cdi.iterdir()) == []


async def test_a_device_that_is_held_or_ill_is_refused(agent: FakeAgent) -> None:
    await agent.allocate([wanted("a")])
    with pytest.raises(HoldConflict, match=r"hardpoint\.dev/gpu/a"):
        await agent.allocate([wanted("a", "a@grant")])
    agent.set_health("b", Health(Condition.UNHEALTHY, "it fell off the bus"))
    with pytest.raises(HoldDenied, match="fell off"):
        await agent.allocate([wanted("b")])
    agent.show(replace(gpu("b", 1), shareable=True))
    assert len(await agent.allocate([wanted("b"), wanted("b", "b::2")])) == 2


async def test_a_test_refuses_ends_and_hears_what_is_announced(agent: FakeAgent) -> None:
    agent.refuse = HoldFailed("the disk is full", "ledger")
    with pytest.raises(HoldFailed):
        await agent.allocate([wanted("a")])
    agent.refuse = None
    (got,) = await agent.allocate([wanted("a")])
    agent.announce(GPU, [wanted("a"), wanted("b")])
    agent.end(GPU, "a")

    assert agent.announced == {GPU: (wanted("a"), wanted("b"))}
    assert (agent.allocations(), agent.holds()) == ((), ())
    with pytest.raises(UnresolvableDevice):
        CdiRegistry(agent.paths.cdi).inject(got.cdi_ids)
