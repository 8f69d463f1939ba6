"""Grants and releases in an agent that runs."""

from __future__ import annotations

import json
import threading

import pytest

from hardpoint import Device, GrantedDevice, Node, hookimpl
from hardpoint._core.agent import HardpointAgent
from hardpoint._core.grants import releases as releases_module
from hardpoint._core.ledger.ledger import Ledger
from hardpoint._core.plugins.discovery import Plugin
from hardpoint._core.pods import reaper as reaper_module
from hardpoint.allocation import Assignment
from hardpoint.errors import HoldDenied, HoldFailed
from hardpoint.grants import Grant, NodeCondition
from hardpoint.model import DeviceNode, Part

from .conftest import World, claim, reading
from .grant_world import Played, grant, granting, under, until_so, why


def offered(agent: HardpointAgent) -> dict[str, str]:
    return {one.name: one.allocation for one in agent.offer.devices}


def play(played: Played, *grants: Grant) -> None:
    played.grants = list(grants)
    played.hint()


async def test_only_granted_devices_of_a_governed_kind_are_offered(world: World) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})

        assert "no grant of source" in why(agent, "radio1")
        await until_so(agent, lambda: played.told == [("a-1", "in-force")])


async def test_what_no_source_governs_is_granted(world: World) -> None:
    played = Played()
    async with world.agent() as agent:
        assert offered(agent) == {"radio0": "", "radio1": ""}
    assert not played.told


async def test_a_claim_says_under_which_grant_and_gets_nothing_under_another(world: World) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        for wrong in (claim("radio0"), under("a-2", "radio0")):
            with pytest.raises(HoldDenied):
                await agent.prepare(wrong.key, reading(wrong))

        right = under("a-1", "radio0")
        await agent.prepare(right.key, reading(right))

        assert [hold.allocation for hold in agent.holds()] == ["a-1"]


async def test_a_grant_that_ended_is_withdrawn_at_once_and_released_when_nobody_uses_it(
    world: World,
) -> None:
    played = Played()
    played.grants, played.users = [grant("a-1", "radio0"), grant("b-1", "radio1")], ["pod x/y"]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)

        play(played, grant("b-1", "radio1"))

        await until_so(agent, lambda: offered(agent) == {"radio1": "b-1"})
        await until_so(agent, lambda: bool(played.asked))
        (pending,) = agent.releases()
        assert (pending.allocation, pending.names) == ("a-1", ("radio0",))
        assert "has ended" in why(agent, "radio0")
        assert ("a-1", "released") not in played.told

        played.users = []
        played.hint()

        await until_so(agent, lambda: ("a-1", "released") in played.told)
        await until_so(agent, lambda: not agent.releases())


@pytest.mark.parametrize("what", ["users", "unknown", "no source"])
async def test_nothing_is_released_while_it_cannot_be_said_that_nobody_uses_it(
    world: World, what: str
) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0"), grant("b-1", "radio1")]
    played.users = ["pod x/y"] if what == "users" else []
    played.unknown = "the socket is gone" if what == "unknown" else ""
    async with granting(world, played, evident=what != "no source") as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        play(played, grant("b-1", "radio1"))
        await until_so(agent, lambda: bool(agent.releases()))
        for _ in range(3):
            await agent.policies.releases.look()

        assert [one.allocation for one in agent.releases()] == ["a-1"]
        assert ("a-1", "released") not in played.told
        assert agent.policies.releases.users[agent.releases()[0].id]


async def test_a_hold_in_the_ledger_is_a_user_whatever_the_evidence_says(world: World) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0"), grant("b-1", "radio1")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        held = under("a-1", "radio0")
        await agent.prepare(held.key, reading(held))
        play(played, grant("b-1", "radio1"))
        await until_so(agent, lambda: bool(played.asked))
        for _ in range(3):
            await agent.policies.releases.look()
        assert [one.allocation for one in agent.releases()] == ["a-1"]
        (file,) = world.paths.cdi.glob("*.json")
        await until_so(agent, lambda: "device-withheld" in file.read_text())

        await agent.unprepare(held.key)

        await until_so(agent, lambda: ("a-1", "released") in played.told)


async def test_a_device_of_a_pending_release_is_granted_to_nobody_else(world: World) -> None:
    played = Played()
    played.grants, played.users = [grant("a-1", "radio0"), grant("b-1", "radio1")], ["pod x/y"]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)

        play(played, grant("b-1", "radio1"), grant("c-1", "radio0"))

        await until_so(agent, lambda: ("c-1", "overlap") in played.told)
        assert offered(agent) == {"radio1": "b-1"}

        played.users = []
        played.hint()

        await until_so(agent, lambda: ("c-1", "in-force") in played.told)
        assert offered(agent) == {"radio1": "b-1", "radio0": "c-1"}
        assert played.told.index(("a-1", "released")) < played.told.index(("c-1", "in-force"))


async def test_a_grant_that_comes_back_before_its_release_is_over_is_never_reported_released(
    world: World,
) -> None:
    played = Played()
    played.grants, played.users = [grant("a-1", "radio0"), grant("b-1", "radio1")], ["pod x/y"]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        play(played, grant("b-1", "radio1"))
        await until_so(agent, lambda: bool(agent.releases()))

        play(played, grant("a-1", "radio0"), grant("b-1", "radio1"))
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1", "radio1": "b-1"})
        played.users = []
        for _ in range(3):
            await agent.policies.releases.look()

        assert not agent.releases()
        assert ("a-1", "released") not in played.told


async def test_a_source_that_cannot_be_read_keeps_its_grants_also_across_a_restart(
    world: World,
) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        played.unreadable = True
        played.hint()
        await until_so(agent, lambda: bool(agent.conditions()))
        assert [one.type for one in agent.conditions()] == ["GrantsUnreadable"]
        assert offered(agent) == {"radio0": "a-1"}
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        held = under("a-1", "radio0")
        await agent.prepare(held.key, reading(held))


async def test_a_grant_whose_end_no_agent_saw_is_released_by_the_next_one(world: World) -> None:
    played = Played()
    played.grants, played.users = [grant("a-1", "radio0"), grant("b-1", "radio1")], ["pod x/y"]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
    played.grants = [grant("b-1", "radio1")]

    async with granting(world, played) as agent:
        await until_so(agent, lambda: [r.allocation for r in agent.releases()] == ["a-1"])
        assert offered(agent) == {"radio1": "b-1"}


async def test_all_grants_gone_at_once_are_believed_gone_only_at_a_second_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        now = [0.0]
        monkeypatch.setattr(agent.policies.granting._sources, "ticks", lambda: now[0])
        played.grants = []
        await agent.policies.granting.ask()
        assert not agent.policies.granting.known

        now[0] = 9.0
        await agent.policies.granting.ask()
        assert not agent.policies.granting.known
        assert offered(agent) == {"radio0": "a-1"}

        now[0] = 10.0
        played.hint()
        await until_so(agent, lambda: ("a-1", "released") in played.told)
        assert offered(agent) == {}


@pytest.mark.parametrize(
    ("stated", "outcome"),
    [
        (grant("x", "radio0", "radio9"), "unknown-device"),
        (grant("x"), "unknown-device"),
        (grant("x", "radio0", unsupported="it wants a cgroup parent"), "unsupported"),
    ],
)
async def test_a_grant_that_cannot_be_honoured_whole_is_refused_whole(
    world: World, stated: Grant, outcome: str
) -> None:
    played = Played()
    played.grants = [stated]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: played.told == [("x", outcome)])
        assert offered(agent) == {}


async def test_of_two_grants_with_one_device_the_one_in_force_stays(world: World) -> None:
    played = Played()
    played.grants = [grant("b-1", "radio0")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "b-1"})

        play(played, grant("a-1", "radio0", "radio1"), grant("b-1", "radio0"))

        await until_so(agent, lambda: ("a-1", "overlap") in played.told)
        assert offered(agent) == {"radio0": "b-1"}


async def test_a_grant_in_force_survives_a_mistake_in_its_new_wording(world: World) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})

        play(played, grant("a-1", "radio0", "radio-of-tomorrow"))

        await until_so(agent, lambda: ("a-1", "unknown-device") in played.told)
        assert offered(agent) == {"radio0": "a-1"}
        assert not agent.releases()


async def test_a_device_taken_out_of_a_grant_is_released_without_a_report(world: World) -> None:
    played = Played()
    played.grants, played.users = [grant("a-1", "radio0", "radio1")], ["pod x/y"]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)

        play(played, grant("a-1", "radio0"))
        await until_so(agent, lambda: [r.names for r in agent.releases()] == [("radio1",)])
        played.users = []
        played.hint()

        await until_so(agent, lambda: not agent.releases())
        assert ("a-1", "released") not in played.told
        assert offered(agent) == {"radio0": "a-1"}


async def test_a_source_that_does_not_take_a_report_is_told_again_after_a_restart(
    world: World,
) -> None:
    played = Played()
    played.grants, played.deaf = [grant("a-1", "radio0"), grant("b-1", "radio1")], True
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        play(played, grant("b-1", "radio1"))
        await until_so(agent, lambda: any(r.over for r in agent.policies.granting.book.releases))
        await until_so(agent, lambda: "has not heard" in why(agent, "radio0"))
    played.deaf = False

    async with granting(world, played) as agent:
        await until_so(agent, lambda: ("a-1", "released") in played.told)
        await until_so(agent, lambda: not agent.policies.granting.book.releases)


async def test_a_release_that_lasts_is_a_condition_of_the_node_that_names_who_has_what(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases_module, "STUCK_AFTER", 0.0)
    played = Played()
    played.grants, played.users = [grant("a-1", "radio0"), grant("b-1", "radio1")], ["pod x/y"]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        play(played, grant("b-1", "radio1"))

        await until_so(agent, lambda: any("pod x/y" in one.message for one in agent.conditions()))
        (condition,) = agent.conditions()
        assert (condition.type, condition.reason) == ("ReleaseStuck", "PodsHoldDevices")
        assert "a-1" in condition.message
        assert "radio0" in condition.message

        played.users = []
        played.hint()
        await until_so(agent, lambda: not agent.conditions())


async def test_a_silent_kubelet_is_a_condition_while_something_is_granted_or_released(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever policies are named: what is granted cannot be had back while pods are not known."""
    monkeypatch.setattr(reaper_module, "_SILENT", 0.0)
    played = Played()
    async with granting(world, played) as agent:
        await agent.policies.reaper.sweep()
        assert agent.conditions() == ()

        play(played, grant("a-1", "radio0"))
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        await agent.policies.reaper.sweep()
        (condition,) = agent.conditions()
        assert (condition.type, condition.reason) == ("PodResourcesUnavailable", "PodsUnread")
        assert "none is reaped" in condition.message

        played.users = ["pod x/y"]
        play(played)
        await until_so(agent, lambda: bool(agent.releases()) and not agent.grants())
        await agent.policies.reaper.sweep()
        assert [one.type for one in agent.conditions()] == ["PodResourcesUnavailable"]

        played.users = []
        played.hint()
        await until_so(agent, lambda: not agent.releases())
        await agent.policies.reaper.sweep()
        assert agent.conditions() == ()


async def test_a_silent_kubelet_that_a_policy_speaks_of_is_left_to_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper_module, "_SILENT", 0.0)
    said = NodeCondition(type="PodResourcesUnavailable", reason="KubeletSilent", message="m")
    played = Played()
    played.grants = [grant("a-1", "radio0")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        agent.raise_condition(said)
        await agent.policies.reaper.sweep()
        assert agent.conditions() == (said,)

        agent.clear_condition("PodResourcesUnavailable")
        await agent.policies.reaper.sweep()
        assert [one.reason for one in agent.conditions()] == ["PodsUnread"]


async def test_a_handed_back_node_offers_nothing_also_after_a_restart(world: World) -> None:
    held = claim("radio0")
    played = Played()
    played.users = ["pod x/y"]
    async with world.agent() as agent:
        await agent.prepare(held.key, reading(held))
        await agent.withdraw("maintenance")
        await until_so(agent, lambda: offered(agent) == {})
    async with granting(world, played) as agent:
        assert agent.withdrawn == "maintenance"
        assert offered(agent) == {}
        assert [(r.source, r.names) for r in agent.releases()] == [("drain", ("radio0",))]
        assert "maintenance" in why(agent, "radio1")
        late = claim("radio1")
        with pytest.raises(HoldDenied):
            await agent.prepare(late.key, reading(late))
        await agent.unprepare(held.key)
        played.users = []
        played.hint()
        await until_so(agent, lambda: not agent.releases())
        await agent.resume()
    async with world.agent() as agent:
        assert offered(agent) == {"radio0": "", "radio1": ""}


async def test_a_claim_is_answered_with_the_grants_own_cdi_name(world: World) -> None:
    played = Played()
    node = DeviceNode(path="/dev/radio0", major=240, minor=0)
    entry = GrantedDevice(name="radio0", cdi_id="bcd.dev/radio=radio0", nodes=(node,))
    played.grants = [Grant(allocation="a-1", devices=(entry,))]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        wanted = under("a-1", "radio0")

        (answer,) = await agent.prepare(wanted.key, reading(wanted))

        assert answer.cdi_ids[-1] == "bcd.dev/radio=radio0"
        (file,) = world.paths.cdi.glob("*.json")
        edits = json.loads(file.read_text())["devices"][0]["containerEdits"]
        assert "deviceNodes" not in edits


async def test_after_the_ledger_is_lost_nothing_in_doubt_is_granted_before_nobody_has_it(
    world: World,
) -> None:
    played = Played()
    played.grants, played.users = [grant("a-1", "radio0")], ["pod x/y"]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
    ledger = world.paths.state / "ledger.db"
    for file in world.paths.state.glob("ledger.db*"):
        file.unlink()
    ledger.write_bytes(b"not a database at all")

    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        marker = world.paths.state / "releases.unreadable"
        assert marker.exists()
        assert str(marker) in agent.conditions()[0].message

        play(played, grant("a-1", "radio0"), grant("b-1", "radio1"))
        await until_so(agent, lambda: ("b-1", "overlap") in played.told)
        assert offered(agent) == {"radio0": "a-1"}

        played.users = []
        played.hint()
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1", "radio1": "b-1"})
        assert not marker.exists()
        assert not agent.conditions()


async def test_a_claim_admitted_a_moment_before_the_release_began_takes_nothing(
    world: World,
) -> None:
    """The ledger itself refuses it: the offer that the claim was judged by is not asked again."""
    played = Played()
    played.grants = [grant("a-1", "radio0"), grant("b-1", "radio1")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        wanted, offer = under("a-1", "radio0"), agent.offer
        admitted = await agent._broker._admission.admit(wanted, offer)
        play(played, grant("b-1", "radio1"))
        await until_so(agent, lambda: ("a-1", "released") in played.told)
        ledger: Ledger = agent._ledger

        with pytest.raises(HoldDenied, match="not granted under allocation a-1 any more"):
            await ledger.take(wanted, [one.want for one in admitted], "boot")


class _SlowDriver:
    """Lists nothing before a test lets it."""

    let = threading.Event()

    def __init__(self, node: Node, settings: None) -> None: ...

    @hookimpl
    def publish_devices(self) -> list[Device]:
        self.let.wait(10)
        return [Device(name="late0", kind="radio")]


async def test_a_grant_of_a_slow_drivers_device_is_not_refused_before_it_has_answered(
    world: World,
) -> None:
    played = Played()
    played.grants = [grant("a-1", "late0")]
    _SlowDriver.let.clear()
    slow = Plugin("driver", "slow", loaded=_SlowDriver)
    async with granting(world, played, slow) as agent:
        assert agent.offer.complete
        await agent.policies.granting.settle()
        assert (offered(agent), played.told) == ({}, [])

        _SlowDriver.let.set()

        await until_so(agent, lambda: offered(agent) == {"late0": "a-1"})
        await until_so(agent, lambda: played.told == [("a-1", "in-force")])


async def test_a_claim_is_not_answered_once_the_last_grant_is_gone_though_that_is_in_doubt(
    world: World,
) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        played.grants = []
        wanted = under("a-1", "radio0")

        with pytest.raises(HoldFailed, match="may have ended"):
            await agent.prepare(wanted.key, reading(wanted))

        assert offered(agent) == {"radio0": "a-1"}
        assert not agent.holds()


async def test_what_was_held_under_a_grant_stays_when_no_source_governs_its_kind_any_more(
    world: World,
) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0")]
    held = under("a-1", "radio0")
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        answer = await agent.prepare(held.key, reading(held))
    async with world.agent() as agent:
        await agent._broker.refresh(agent.offer)
        (file,) = world.paths.cdi.glob("*.json")
        assert "/dev/radio0" in file.read_text()
        assert await agent.prepare(held.key, reading(held)) == answer
        assert not agent.releases()


class _PlainDriver:
    """Nothing is done to its device, so nobody asks whether who had it is over."""

    def __init__(self, node: Node, settings: None) -> None: ...

    @hookimpl
    def publish_devices(self) -> list[Device]:
        return [Device(name="plain0", kind="radio")]


@pytest.mark.parametrize("how", ["claim", "id"])
async def test_what_is_held_is_not_answered_again_under_a_grant_that_has_ended(
    world: World, how: str
) -> None:
    """A pod may ask for it that is another than before, before the offer was made again."""
    played = Played()
    played.grants = [grant("a-1", "plain0"), grant("b-1", "radio1")]
    plain = Plugin("driver", "plain", loaded=_PlainDriver)
    async with granting(world, played, plain) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        held = under("a-1", "plain0")
        (one,) = [one for one in agent.offer.devices if one.name == "plain0"]
        wanted = Assignment(
            resource="hardpoint.dev/radio",
            id="plain0@a-1",
            device="plain0",
            domain=one.domain,
            allocation="a-1",
        )

        async def ask() -> None:
            if how == "claim":
                await agent.prepare(held.key, reading(held))
            else:
                await agent.allocate([wanted])

        await ask()
        await ask()
        played.grants = [grant("b-1", "radio1")]

        with pytest.raises(HoldDenied, match="not granted under allocation a-1 any more"):
            await ask()

        await until_so(agent, lambda: [r.allocation for r in agent.releases()] == ["a-1"])
        assert ("a-1", "released") not in played.told


async def test_a_claim_is_not_answered_for_a_device_that_was_taken_out_of_its_grant(
    world: World,
) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0", "radio1")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        played.grants = [grant("a-1", "radio1")]
        wanted = under("a-1", "radio0")

        with pytest.raises(HoldDenied, match="not granted under allocation a-1 any more"):
            await agent.prepare(wanted.key, reading(wanted))


async def test_a_grant_is_not_over_while_a_device_is_in_use_that_was_taken_out_of_it(
    world: World,
) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0", "radio1"), grant("z-1", "radio9")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        held = under("a-1", "radio0")
        await agent.prepare(held.key, reading(held))
        play(played, grant("a-1", "radio1"), grant("z-1", "radio9"))
        await until_so(agent, lambda: [r.names for r in agent.releases()] == [("radio0",)])
        play(played, grant("z-1", "radio9"))
        await until_so(agent, lambda: any(r.over for r in agent.policies.granting.book.releases))
        for _ in range(3):
            await agent.policies.releases.look()
        assert ("a-1", "released") not in played.told
        assert "has not heard" in why(agent, "radio1")

        await agent.unprepare(held.key)
        played.hint()

        await until_so(agent, lambda: ("a-1", "released") in played.told)
        assert played.told.count(("a-1", "released")) == 1
        await until_so(agent, lambda: not agent.policies.granting.book.releases)


async def test_a_grant_that_lost_its_devices_before_it_ended_is_over_when_they_are_free(
    world: World,
) -> None:
    played = Played()
    played.grants, played.users = [grant("a-1", "radio0"), grant("z-1", "radio9")], ["pod x/y"]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        play(played, grant("a-1", "radio8"), grant("z-1", "radio9"))
        await until_so(agent, lambda: [r.names for r in agent.releases()] == [("radio0",)])
        play(played, grant("z-1", "radio9"))
        await until_so(agent, lambda: len(agent.policies.granting.book.grants) == 1)
        await agent.policies.releases.look()
        assert ("a-1", "released") not in played.told

        played.users = []
        played.hint()

        await until_so(agent, lambda: ("a-1", "released") in played.told)


class _WholeAndHalf:
    """A device, and a part of it that is of another kind."""

    def __init__(self, node: Node, settings: None) -> None: ...

    @hookimpl
    def publish_devices(self) -> list[Device]:
        whole, shared = Part("pci:0000:0a:00.0", True), Part("pci:0000:0a:00.0", False)
        return [
            Device(name="whole0", kind="radio", parts=(whole,)),
            Device(name="half0", kind="radio.half", parts=(shared, Part("radio:half0", True))),
        ]


async def test_what_wants_no_grant_is_kept_back_with_the_device_it_is_one_with(
    world: World,
) -> None:
    """Who has the whole open still has the half of it too."""
    played = Played()
    played.grants, played.users = [grant("a-1", "whole0"), grant("b-1", "radio1")], ["pod x/y"]
    driver = Plugin("driver", "halves", loaded=_WholeAndHalf)
    async with granting(world, played, driver) as agent:
        await until_so(agent, lambda: offered(agent).get("whole0") == "a-1")
        assert offered(agent)["half0"] == ""
        play(played, grant("b-1", "radio1"))
        await until_so(agent, lambda: offered(agent) == {"radio1": "b-1"})
        assert "allocation a-1 has ended" in why(agent, "half0")

        played.users = []
        played.hint()
        await until_so(agent, lambda: offered(agent) == {"radio1": "b-1", "half0": ""})


async def test_who_holds_a_part_without_a_grant_keeps_it_when_that_of_the_whole_ends(
    world: World,
) -> None:
    played = Played()
    played.grants, played.users = [grant("a-1", "whole0"), grant("b-1", "radio1")], ["pod x/y"]
    driver = Plugin("driver", "halves", loaded=_WholeAndHalf)
    async with granting(world, played, driver) as agent:
        await until_so(agent, lambda: offered(agent).get("whole0") == "a-1")
        held = claim("half0")
        answer = await agent.prepare(held.key, reading(held))
        play(played, grant("b-1", "radio1"))
        await until_so(agent, lambda: "whole0" not in offered(agent))

        assert offered(agent)["half0"] == ""
        assert await agent.prepare(held.key, reading(held)) == answer


class _SharedDriver:
    """One device for many, whose driver cannot undo what it did."""

    def __init__(self, node: Node, settings: None) -> None: ...

    @hookimpl
    def publish_devices(self) -> list[Device]:
        node = DeviceNode(path="/dev/share0", major=240, minor=99)
        return [Device(name="share0", kind="radio", shareable=True, nodes=(node,))]

    @hookimpl
    def unprepare_device(self) -> None:
        raise OSError("it does not answer")


async def test_a_device_in_quarantine_is_delivered_to_nobody_once_its_grant_has_ended(
    world: World,
) -> None:
    """Another holder's container could start again on it: in quarantine alone that stays."""
    played = Played()
    played.grants, played.users = [grant("a-1", "share0"), grant("b-1", "radio1")], ["pod x/y"]
    async with granting(world, played, Plugin("driver", "shared", loaded=_SharedDriver)) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        stays, goes = under("a-1", "share0"), under("a-1", "share0")
        await agent.prepare(stays.key, reading(stays))
        await agent.prepare(goes.key, reading(goes))
        for _ in range(2):
            with pytest.raises(HoldFailed):
                await agent.unprepare(goes.key)
        await agent.unprepare(goes.key)
        await until_so(agent, lambda: "share0" not in offered(agent))
        (file,) = world.paths.cdi.glob(f"*{stays.key.uid}*")
        await agent.prepare(stays.key, reading(stays))
        assert "/dev/share0" in file.read_text()

        played.grants = [grant("b-1", "radio1"), grant("c-1", "share0")]
        with pytest.raises(HoldDenied):
            await agent.prepare(stays.key, reading(stays))

        await until_so(agent, lambda: "/dev/share0" not in file.read_text())
        assert "a-1 has ended" in why(agent, "share0")
        assert "it does not answer" in why(agent, "share0")
        await until_so(agent, lambda: ("c-1", "unknown-device") in played.told)
        (known,) = [g for g in agent.policies.granting.book.grants if g.grant.allocation == "c-1"]
        assert known.outcome.reason.startswith("device share0 is withheld: ")


async def test_a_release_is_not_reported_while_its_source_cannot_be_read(world: World) -> None:
    """The source may state the grant again by now."""
    played = Played()
    played.grants, played.users = [grant("a-1", "radio0"), grant("b-1", "radio1")], ["pod x/y"]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        play(played, grant("b-1", "radio1"))
        await until_so(agent, lambda: bool(agent.releases()))
        played.unreadable = True
        await agent.policies.granting.ask()
        played.users = []
        await until_so(agent, lambda: any(r.over for r in agent.policies.granting.book.releases))
        await agent.policies.releases.look()
        assert ("a-1", "released") not in played.told

        played.unreadable = False
        played.hint()
        await until_so(agent, lambda: ("a-1", "released") in played.told)
