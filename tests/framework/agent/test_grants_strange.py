"""Sources of grants and of evidence that answer what is no answer: nothing is given away by it."""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import anyio
import msgspec
import pytest

from hardpoint import (
    Evidence,
    Grant,
    GrantedDevice,
    GrantOutcome,
    NodeCondition,
    Release,
    hookimpl,
    hookspecs,
)
from hardpoint._core.agent import HardpointAgent
from hardpoint._core.grants import releases as releases_module
from hardpoint._core.ledger.grantrows import forget_grant, forget_release
from hardpoint._core.plugins.discovery import Plugin
from hardpoint._core.plugins.stating import MOST_DEVICES
from hardpoint.contract import spec_of

from .conftest import World
from .grant_world import Played, evidence, grant, granting, source, until_so, why


def offered(agent: HardpointAgent) -> dict[str, str]:
    return {one.name: one.allocation for one in agent.offer.devices}


def play(played: Played, *grants: Grant) -> None:
    played.grants = list(grants)
    played.hint()


@pytest.mark.parametrize("kinds", ["radio", None, 7, (1,), ("",), (), iter(["radio"])])
async def test_a_source_whose_kinds_are_none_does_not_run_and_nothing_is_granted(
    world: World, kinds: Any
) -> None:
    """It would govern nothing, and everything would be offered without a grant."""

    class Odd(source(Played())):  # type: ignore[misc]
        def __init__(self, node: object, settings: object) -> None:
            self.kinds = kinds

    plugin = Plugin("policy", "odd", loaded=Odd)
    async with world.agent(plugin) as agent:
        assert offered(agent) == {}
        assert "kinds" in plugin.reason
        assert "does not run" in why(agent, "radio0")


async def test_a_set_of_kinds_is_as_good_as_a_tuple(world: World) -> None:
    class Sets(source(Played())):  # type: ignore[misc]
        def __init__(self, node: object, settings: object) -> None:
            self.kinds = {"radio"}

    async with world.agent(Plugin("policy", "sets", loaded=Sets)) as agent:
        await until_so(agent, lambda: "no grant of sets" in why(agent, "radio0"))


@pytest.mark.parametrize("later", [RuntimeError("gone"), (), "radio"])
async def test_kinds_that_are_none_later_leave_what_is_known_as_it_is(
    world: World, later: Any
) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0")]
    now: list[Any] = [("radio",)]

    class Odd(source(played)):  # type: ignore[misc]
        def __init__(self, node: object, settings: object) -> None: ...

        @property
        def kinds(self) -> Any:
            if isinstance(now[0], Exception):
                raise now[0]
            return now[0]

    async with world.agent(Plugin("policy", "odd", loaded=Odd)) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        now[0] = later
        played.hint()
        await until_so(agent, lambda: bool(agent.conditions()))

        assert "kinds" in agent.conditions()[0].message
        assert not agent.policies.granting.known
        agent._offering.touch()
        await agent.policies.granting.settle()
        assert offered(agent) == {"radio0": "a-1"}

        now[0] = ("radio",)
        played.hint()
        await until_so(agent, lambda: not agent.conditions())


_ODD = [
    ("a name", Grant(allocation="x-1", devices=(GrantedDevice(name="\ud800"),))),
    ("a uuid", Grant(allocation="x-1", devices=(GrantedDevice(name="x", uuid="\ud800"),))),
    ("a CDI name", Grant(allocation="x-1", devices=(GrantedDevice(name="x", cdi_id="\ud800"),))),
    ("a long name", Grant(allocation="x-1", devices=(GrantedDevice(name="x" * 10_000),))),
    ("many", Grant(allocation="x-1", devices=(GrantedDevice(name="x"),) * (MOST_DEVICES + 1))),
]


@pytest.mark.parametrize("odd", [one for _, one in _ODD], ids=[name for name, _ in _ODD])
async def test_a_source_that_states_what_cannot_be_written_down_is_one_that_cannot_be_read(
    world: World, odd: Grant
) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0"), grant("b-1", "radio1")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        play(played, grant("a-1", "radio0"), odd)
        await until_so(agent, lambda: bool(agent.conditions()))

        assert [one.type for one in agent.conditions()] == ["GrantsUnreadable"]
        assert len(agent.conditions()[0].message) < 1000
        assert offered(agent) == {"radio0": "a-1", "radio1": "b-1"}

        play(played, grant("a-1", "radio0"))
        await until_so(agent, lambda: ("b-1", "released") in played.told)
        assert not agent.conditions()


async def test_a_sentence_that_is_no_text_or_long_is_told_as_far_as_it_goes(world: World) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0"), grant("b-1", "radio1", unsupported="\ud800" * 10**6)]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: ("b-1", "unsupported") in played.told)
        assert offered(agent) == {"radio0": "a-1"}
        refused = [one for one in agent.policies.status()["grants"] if one["allocation"] == "b-1"]
        assert len(refused[0]["reason"]) <= 1000


async def test_a_hundred_thousand_grants_are_not_read(world: World) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        one = grant("x-1", "radio1")
        play(played, *[one] * 100_000)
        await until_so(agent, lambda: bool(agent.conditions()))

        assert "more than" in agent.conditions()[0].message
        assert offered(agent) == {"radio0": "a-1"}


@pytest.mark.parametrize("began", [math.nan, math.inf, -math.inf, time.time() * 2])
async def test_evidence_of_no_time_or_of_one_that_has_not_come_is_none(
    world: World, began: float
) -> None:
    """A source that takes the wrong clock would always have looked after the devices had left."""
    played = Played()
    played.grants = [grant("a-1", "radio0"), grant("b-1", "radio1")]

    class Odd:
        def __init__(self, node: object, settings: object) -> None: ...

        @hookimpl
        def find_users(self) -> Evidence:
            return Evidence.none(began)

    odd = Plugin("policy", "odd", loaded=Odd)
    async with granting(world, played, odd, evident=False) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        play(played, grant("b-1", "radio1"))
        await until_so(agent, lambda: bool(agent.releases()))
        await until_so(agent, lambda: bool(agent.policies.releases.users))
        for _ in range(3):
            await agent.policies.releases.look()

        assert [one.allocation for one in agent.releases()] == ["a-1"]
        (users,) = agent.policies.releases.users.values()
        assert "monotonic" in users[0] or "before" in users[0]


class _Remotes:
    """A driver of another kind than radios."""

    def __init__(self, node: object, settings: object) -> None: ...

    @hookimpl
    def publish_devices(self) -> list[Any]:
        from hardpoint import Device

        return [Device(name="remote0", kind="remote")]


async def test_evidence_about_some_kinds_frees_no_device_of_another(world: World) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0", "remote0"), grant("b-1", "radio1")]

    class OfRadios(evidence(played)):  # type: ignore[misc]
        kinds = ("radio",)

    plugins = (
        Plugin("driver", "remotes", loaded=_Remotes),
        Plugin("policy", "source", loaded=source(played, "radio", "remote")),
        Plugin("policy", "of_radios", loaded=OfRadios),
    )
    async with world.agent(*plugins) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 3)
        play(played, grant("b-1", "radio1"))
        await until_so(agent, lambda: bool(agent.releases()))
        for _ in range(3):
            await agent.policies.releases.look()

        assert [one.allocation for one in agent.releases()] == ["a-1"]
        (users,) = agent.policies.releases.users.values()
        assert "remote0" in users[0]


@pytest.mark.parametrize("what", ["kinds", "not_applicable"])
async def test_evidence_that_cannot_say_what_it_is_about_is_asked_about_everything(
    world: World, what: str
) -> None:
    played = Played()
    played.grants, played.users = [grant("a-1", "radio0"), grant("b-1", "radio1")], ["pod x/y"]
    now: list[Any] = [()]

    def said(self: object) -> Any:
        if now[0] is None:
            raise RuntimeError("gone")
        return now[0]

    odd = type("Odd", (evidence(played),), {what: property(said)})
    async with granting(world, played, Plugin("policy", "odd", loaded=odd), evident=False) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        now[0] = None
        play(played, grant("b-1", "radio1"))
        await until_so(agent, lambda: bool(agent.policies.releases.users))

        assert list(agent.policies.releases.users.values()) == [("pod x/y",)]


async def test_a_source_that_hangs_at_the_start_holds_up_nothing_that_it_does_not_govern(
    world: World,
) -> None:
    let = threading.Event()
    played = Played()
    played.grants = [grant("a-1", "radio0")]

    class Hangs(source(played)):  # type: ignore[misc]
        @hookimpl
        def grant_devices(self) -> tuple[Grant, ...]:
            let.wait(15)
            return played.state()

    plugins = (
        Plugin("driver", "remotes", loaded=_Remotes),
        Plugin("policy", "hangs", loaded=Hangs),
    )
    async with world.agent(*plugins) as agent:
        assert not let.is_set()
        assert offered(agent) == {"remote0": ""}
        assert "has not said yet" in why(agent, "radio0")
        assert not agent.policies.granting.known

        let.set()

        await until_so(agent, lambda: offered(agent) == {"remote0": "", "radio0": "a-1"})


@pytest.mark.parametrize("what", ["releases", "grants"])
async def test_a_device_of_a_row_that_nobody_can_read_is_granted_to_nobody_else_and_that_is_said(
    world: World, what: str
) -> None:
    """The ledger itself would refuse a claim on it: what is in force must not be told of it."""
    played = Played()
    played.grants, played.users = [grant("a-1", "radio0"), grant("b-1", "radio1")], ["pod x/y"]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        if what == "releases":
            play(played, grant("b-1", "radio1"))
            await until_so(agent, lambda: bool(agent.releases()))
    with closing(sqlite3.connect(world.paths.state / "ledger.db", isolation_level=None)) as db:
        db.execute(f"UPDATE {what} SET grant_json = '{{' WHERE allocation = 'a-1'")
    played.users, played.grants = [], [grant("b-1", "radio1"), grant("c-1", "radio0")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: ("c-1", "overlap") in played.told)
        await until_so(agent, lambda: bool(agent.conditions()))

        assert agent.conditions()[0].reason == "LedgerUnreadable"
        assert "hardpoint release" in agent.conditions()[0].message
        assert "hardpoint release" in why(agent, "radio0")
        assert offered(agent) == {"radio1": "b-1"}

        await agent._ledger.write(lambda db: _forget(db, what))
        played.hint()
        await until_so(agent, lambda: offered(agent) == {"radio0": "c-1", "radio1": "b-1"})
        await until_so(agent, lambda: not agent.conditions())


async def test_a_grant_that_nobody_can_read_is_written_anew_when_its_source_states_it(
    world: World,
) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        await agent._ledger.write(lambda db: db.execute("UPDATE grants SET grant_json = '{'"))
        played.hint()

        await until_so(agent, lambda: not agent.policies.granting.book.unreadable)
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        assert not agent.releases()


def _forget(db: sqlite3.Connection, what: str) -> None:
    """Do what ``hardpoint release --force`` does."""
    if what == "grants":
        forget_grant(db, ("policy/source", "a-1"))
    for row in db.execute("SELECT id FROM releases WHERE allocation = 'a-1'").fetchall():
        forget_release(db, row["id"])


async def test_a_grant_that_names_one_device_twice_is_refused(world: World) -> None:
    """It asks for two, and would be half honoured."""
    played = Played()
    played.grants = [grant("a-1", "radio0", "radio0"), grant("b-1", "radio1")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: ("a-1", "unknown-device") in played.told)
        assert offered(agent) == {"radio1": "b-1"}


async def test_one_release_is_looked_at_while_another_takes_long(world: World) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0"), grant("b-1", "radio1"), grant("z-1", "remote0")]
    asked: set[str] = set()
    both = anyio.Event()

    class Waits:
        def __init__(self, node: object, settings: object) -> None: ...

        @hookimpl
        async def find_users(self, release: Release) -> Evidence:
            began = time.monotonic()
            asked.add(release.allocation)
            if len(asked) == 2:
                both.set()
            await both.wait()
            return Evidence.none(began)

    plugins = (
        Plugin("driver", "remotes", loaded=_Remotes),
        Plugin("policy", "source", loaded=source(played, "radio", "remote")),
        Plugin("policy", "waits", loaded=Waits),
    )
    async with world.agent(*plugins) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 3)
        play(played, grant("z-1", "remote0"))

        await until_so(agent, lambda: {("a-1", "released"), ("b-1", "released")} <= {*played.told})


async def test_what_policies_say_is_shown_as_text_and_only_so_much_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases_module, "STUCK_AFTER", 0.0)
    played = Played()
    played.grants = [grant("a-1", "radio0"), grant("b-1", "radio1")]
    played.users = ["\ud800\x00\n" + "x" * 10**7] * 1000
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        play(played, grant("b-1", "radio1"))
        await until_so(agent, lambda: bool(agent.conditions()))
        odd = NodeCondition(type="Odd\ud800", reason="\ud800", message="\ud800\n" + "x" * 10**7)
        agent.raise_condition(odd)

        shown = msgspec.json.encode(agent.policies.status())
        assert len(shown) < 100_000
        assert [one.type for one in agent.conditions()] == ["Odd?", "ReleaseStuck"]

        agent.clear_condition(odd.type)
        assert [one.type for one in agent.conditions()] == ["ReleaseStuck"]


async def test_a_source_that_hangs_over_a_report_is_told_what_became_so_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To join the call that still runs would be to take the old word for the new one."""
    spec = spec_of(hookspecs.report_grant)
    monkeypatch.setattr(hookspecs.report_grant, "dispatched_as", replace(spec, budget=0.05))
    played, let, heard = Played(), threading.Event(), threading.Event()
    played.grants = [grant("a-1", "radio0"), grant("b-1", "radio1")]

    class Hangs(source(played)):  # type: ignore[misc]
        @hookimpl
        def report_grant(self, grant: Grant, outcome: GrantOutcome) -> None:
            if grant.allocation == "a-1":
                heard.set()
                let.wait(15)
            played.hear(grant.allocation, outcome.outcome.value)

    plugins = (
        Plugin("policy", "hangs", loaded=Hangs),
        Plugin("policy", "evident", loaded=evidence(played)),
    )
    async with world.agent(*plugins) as agent:
        await until_so(agent, heard.is_set)
        play(played, grant("a-1", "radio0", unsupported="it wants more"), grant("b-1", "radio1"))
        await until_so(agent, lambda: not agent.policies.granting.book.grants[0].outcome.in_force)
        for _ in range(2):
            await agent.policies.releases.look()
        assert played.told == [("b-1", "in-force")]

        let.set()
        await until_so(agent, lambda: ("a-1", "in-force") in played.told)
        await until_so(agent, lambda: ("a-1", "unsupported") in played.told)
        await until_so(agent, lambda: all(g.told for g in agent.policies.granting.book.grants))
