"""What is asked of sources of grants, believed of them and written down, one step at a time."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from broker_world import claim
from lending_world import lending

from hardpoint._core.grants.conditions import Conditions
from hardpoint._core.grants.granting import Granting
from hardpoint._core.grants.lost import Lost
from hardpoint._core.ledger.grantrows import READ, Book, forget_release, withdraw
from hardpoint._core.ledger.ledger import Ledger
from hardpoint._core.ledger.records import Record, Want
from hardpoint._core.offer.inventory import ABSENT, Built
from hardpoint._core.plugins.discovery import Plugin
from hardpoint._core.plugins.relay import Relay
from hardpoint.contract import hookimpl
from hardpoint.errors import HoldDenied, HoldFailed, LedgerUnwritable
from hardpoint.grants import Grant, GrantedDevice, Outcome
from hardpoint.model import Device, Domain, Offered, Withheld
from hardpoint.node import Node
from hardpoint.testing.clock import ManualClock

DOMAIN = Domain.named("hardpoint.dev")
P0, P1 = "policy/p0", "policy/p1"


class Source:
    """A source of grants that says what a test says, when it lets go."""

    kinds: Any = ("radio",)

    def __init__(self, node: Node, settings: Any) -> None:
        self.grants: tuple[Grant, ...] = ()
        self.unread: Any = ""
        self.unreadable = False
        self.readings = 0
        self.go = anyio.Event()
        self.go.set()

    @hookimpl
    async def grant_devices(self) -> tuple[Grant, ...]:
        self.readings += 1
        await self.go.wait()
        if self.unreadable:
            raise OSError("the directory is not there")
        return self.grants


class Gpus(Source):
    kinds = ("gpu",)


class World:
    """Sources, a ledger, and an offer in the making."""

    def __init__(self, ledger: Ledger, relay: Relay, state: Path) -> None:
        self.ledger, self.relay = ledger, relay
        self.wall, self.ticks = ManualClock(5000.0), ManualClock(100.0)
        self.writing = True
        self.touched = 0
        self.conditions = Conditions(lambda: None)
        self.lost = Lost(state, self.conditions)
        self.devices = [offered("r0"), offered("r1")]
        self.withheld: list[Withheld] = []
        self.granting = self.begin()

    def begin(self) -> Granting:
        """Begin anew, as an agent does that has just started."""
        return Granting(
            self.relay,
            self.ledger,
            agent=None,
            lost=self.lost,
            conditions=self.conditions,
            writing=lambda: self.writing,
            touch=self._touch,
            clock=self.wall.now,
            ticks=self.ticks.now,
        )

    def _touch(self) -> None:
        self.touched += 1

    def source(self, number: int = 0) -> Any:
        return self.relay.plugins.all[number].instance

    def says(self, *grants: Grant, number: int = 0) -> None:
        self.source(number).grants = grants

    async def apply(self, *, complete: bool = True) -> dict[str, str]:
        """Make an offer; return its devices and what each is granted under."""
        built = Built(devices=tuple(self.devices), withheld=tuple(self.withheld), problems=())
        made = await self.granting.apply(built, complete=complete)
        return {one.name: one.allocation for one in made.devices}

    async def offers(self) -> dict[str, str]:
        """Ask anew and make an offer."""
        await self.granting.ask()
        return await self.apply()

    def outcomes(self) -> dict[str, Outcome]:
        return {one.grant.allocation: one.outcome.outcome for one in self.granting.book.grants}

    def said(self) -> list[str]:
        return [one.message for one in self.conditions.all]

    async def holds(self, name: str, allocation: str) -> Record:
        """Let a claim hold a device, as the broker writes it down."""
        made = claim(f"u-{name}", name, allocation=allocation)
        want = Want(
            allotment=made.allotments[0],
            device=offered(name).device,
            cdi_vendor="hardpoint.dev",
            cdi_name=name,
            parts=(),
            undo=False,
        )
        (record,) = await self.ledger.take(made, [want], "boot")
        return record


def offered(name: str, kind: str = "radio", **more: Any) -> Offered:
    return Offered(device=Device(name=name, kind=kind), domain=DOMAIN, **more)


def grant(allocation: str, *names: str) -> Grant:
    return Grant(allocation=allocation, devices=tuple(GrantedDevice(name=one) for one in names))


@asynccontextmanager
async def world_of(root: Path, *policies: type) -> AsyncIterator[World]:
    async with lending(root, *policies) as (ledger, relay):
        yield World(ledger, relay, root / "state")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path, Source) as made:
        yield made


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path, Source, Gpus) as made:
        yield made


# -- what is known --------------------------------------------------------------------------------


async def test_nothing_is_known_before_every_source_has_answered_well(two: World) -> None:
    """One that fails is enough: whom it granted what is not known, and nobody may be reaped."""
    assert (two.granting.known, two.granting.in_force()) == (False, ())
    await two.granting.ask()
    assert two.granting.known
    two.source(1).unreadable = True
    await two.granting.ask()

    assert not two.granting.known
    assert (two.granting.answers(P0), two.granting.answers(P1)) == (True, False)
    assert two.granting.answers("policy/stranger")
    two.source(1).unreadable = False
    await two.granting.ask()
    assert two.granting.known


async def test_a_source_that_has_read_a_part_says_so_and_nobody_is_reaped(two: World) -> None:
    """What it grants is taken up all the same: who is bad costs no other."""
    await two.offers()
    two.source().unread = "file a: it is empty"
    two.says(grant("a-1", "r0"))

    assert await two.offers() == {"r0": "a-1"}
    assert (two.granting.known, two.granting.answers(P0)) == (False, True)
    assert not await two.granting.settle()
    assert two.said() == [], "it may be being written"
    two.ticks.advance(5.0)
    await two.granting.ask()
    (message,) = two.said()
    assert "p0: file a: it is empty" in message

    two.source().unread = ""
    await two.granting.ask()
    assert (two.granting.known, two.said()) == (True, [])
    two.source().unread = "file b: it is empty"
    await two.granting.ask()
    assert two.said() == [], "each has its time"


@pytest.mark.parametrize("said", [3, None, ("a", "b")])
async def test_what_a_source_cannot_read_is_something_whatever_it_says_of_it(
    world: World, said: Any
) -> None:
    world.source().unread = said
    await world.granting.ask()

    assert not world.granting.known


async def test_a_source_that_cannot_say_what_it_cannot_read_has_not_read_all(
    tmp_path: Path,
) -> None:
    class Odd(Source):
        @property
        def unread(self) -> str:
            raise RuntimeError("no idea")

        @unread.setter
        def unread(self, value: Any) -> None: ...

    async with world_of(tmp_path, Odd) as world:
        await world.granting.ask()
        assert not world.granting.known


async def test_nothing_is_known_while_a_policy_that_is_wanted_does_not_run(world: World) -> None:
    await world.granting.ask()
    absent = Plugin("policy", "absent")
    world.relay.plugins.all.append(absent)
    absent.refuse("no such policy")
    await world.apply()

    assert (world.granting.known, world.granting.settled) == (False, True)
    assert not await world.granting.settle()


async def test_a_source_governs_its_kinds_and_one_that_does_not_run_governs_none(
    two: World,
) -> None:
    assert two.granting.sources == {P0: ("radio",), P1: ("gpu",)}
    assert [two.granting.governs(kind) for kind in ("radio", "gpu", "disk")] == [True, True, False]


async def test_one_whose_kinds_cannot_be_told_governs_everything_until_they_can(
    world: World,
) -> None:
    world.source().kinds = ()
    world.granting = world.begin()
    assert world.granting.governs("disk")
    assert await world.offers() == {}
    assert not world.granting.known

    world.source().kinds = ("gpu",)
    assert await world.offers() == {"r0": "", "r1": ""}


# -- readings -------------------------------------------------------------------------------------


async def test_who_asks_while_a_reading_runs_shares_the_next_one(world: World) -> None:
    """That one may have begun before what they ask about."""
    source = world.source()
    source.go = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.granting.ask)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(world.granting.ask)
        tasks.start_soon(world.granting.ask)
        await anyio.wait_all_tasks_blocked()
        assert source.readings == 1
        source.go.set()

    assert source.readings == 2


async def test_all_sources_are_asked_at_once(two: World) -> None:
    for number in (0, 1):
        two.source(number).go = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(two.granting.ask)
        while not all(two.source(number).readings for number in (0, 1)):
            await anyio.lowlevel.checkpoint()
        for number in (0, 1):
            two.source(number).go.set()


async def test_the_first_offer_is_made_of_what_sources_say_and_later_ones_of_what_they_said(
    world: World,
) -> None:
    world.says(grant("a-1", "r0"))
    assert await world.apply() == {"r0": "a-1"}
    assert await world.apply() == {"r0": "a-1"}

    assert world.source().readings == 1


async def test_the_first_offer_does_not_wait_long_for_a_source_and_it_is_asked_soon_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hardpoint._core.grants.granting.FIRST", 0.05)
    world.source().go = anyio.Event()
    world.devices.append(offered("d0", "disk"))

    assert await world.apply() == {"d0": ""}
    assert await world.apply() == {"d0": ""}
    assert world.granting._wake.is_set()
    assert not world.granting.known


async def test_grants_that_are_all_gone_at_once_are_believed_of_a_second_look(
    world: World,
) -> None:
    world.says(grant("a-1", "r0"))
    await world.offers()
    world.says()
    assert await world.offers() == {"r0": "a-1"}
    assert not world.granting.known
    assert world.said() == [], "it is no fault yet"
    world.ticks.advance(9.9)
    assert await world.offers() == {"r0": "a-1"}
    world.ticks.advance(0.1)

    assert await world.offers() == {}
    assert world.granting.known
    assert [one.grant.allocation for one in world.granting.book.releases] == ["a-1"]


@pytest.mark.parametrize("between", ["again", "unreadable"])
async def test_a_look_that_finds_something_else_begins_the_waiting_anew(
    world: World, between: str
) -> None:
    world.says(grant("a-1", "r0"))
    await world.offers()
    world.says()
    await world.offers()
    if between == "again":
        world.says(grant("a-1", "r0"))
    else:
        world.source().unreadable = True
    await world.offers()
    world.source().unreadable = False
    world.says()
    world.ticks.advance(20)
    assert await world.offers() == {"r0": "a-1"}
    world.ticks.advance(10)
    assert await world.offers() == {}


async def test_after_a_restart_too_all_grants_gone_at_once_are_not_believed(
    tmp_path: Path,
) -> None:
    async with world_of(tmp_path, Source) as world:
        world.says(grant("a-1", "r0"))
        await world.offers()
    async with world_of(tmp_path, Source) as world:
        assert await world.offers() == {"r0": "a-1"}
        assert not world.granting.known


async def test_while_the_ledger_cannot_be_read_a_source_without_grants_is_not_believed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have had some: nobody can say."""

    async def unreadable(sql: str, *values: object) -> None:
        raise LedgerUnwritable("ledger.db", "an error of the disk")

    monkeypatch.setattr(world.ledger, "query", unreadable)
    await world.granting.ask()

    assert not world.granting.known
    assert not await world.granting.is_rewritten(), "nor is that known"


async def test_it_is_looked_again_once_grants_that_are_all_gone_may_be_believed_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.says(grant("a-1", "r0"))
    await world.offers()
    monkeypatch.setattr("hardpoint._core.grants.sources.CONFIRM_AFTER", 0.01)
    world.says()
    await world.granting.ask()
    with anyio.fail_after(5):
        await world.granting._wake.wait()


async def test_what_a_policy_that_does_not_run_has_granted_stands(tmp_path: Path) -> None:
    async with world_of(tmp_path, Source) as world:
        world.says(grant("a-1", "r0"))
        await world.offers()
    async with world_of(tmp_path) as world:
        absent = Plugin("policy", "p0")
        world.relay.plugins.all.append(absent)
        absent.refuse("it cannot be imported")

        await world.offers()
        assert [one.allocation for one in world.granting.in_force()] == ["a-1"]
        assert world.granting.book.releases == ()
        await world.granting.confirm([offered("r0", allocation="a-1")])


async def test_a_source_that_never_had_a_grant_is_believed_to_have_none(two: World) -> None:
    two.says(grant("a-1", "r0"))
    await two.offers()
    await two.granting.ask()

    assert two.granting.known


# -- what is said ---------------------------------------------------------------------------------


async def test_a_source_that_cannot_be_read_is_a_condition_and_what_is_known_stands(
    two: World,
) -> None:
    two.says(grant("a-1", "r0"))
    await two.offers()
    two.source().unreadable = True

    assert await two.offers() == {"r0": "a-1"}
    (condition,) = two.conditions.all
    assert (condition.type, condition.reason) == ("GrantsUnreadable", "SourceUnreadable")
    assert "p0: " in condition.message
    assert "the directory is not there" in condition.message
    assert "p1" not in condition.message
    two.source().unreadable = False
    await two.offers()
    assert two.conditions.all == ()


async def test_rows_that_cannot_be_read_are_a_condition_and_nobody_is_reaped(
    world: World,
) -> None:
    world.says(grant("a-1", "r0"))
    await world.offers()
    await world.ledger.write(lambda db: db.execute("UPDATE grants SET grant_json = '{'"))
    await world.granting.refresh()
    await world.granting.ask()

    (condition,) = world.conditions.all
    assert (condition.type, condition.reason) == ("GrantsUnreadable", "LedgerUnreadable")
    world.writing = False
    assert await world.apply() == {}, "whose devices they are is not known"
    assert not await world.granting.settle()
    world.source().kinds = ("gpu",)
    await world.granting.ask()
    assert await world.apply() == {"r1": ""}, "r0 may be somebody's, whatever is governed by now"


# -- what is written down -------------------------------------------------------------------------


async def test_it_is_settled_once_what_sources_say_now_is_written_down(world: World) -> None:
    await world.offers()
    assert world.granting.settled
    world.says(grant("a-1", "r0"))
    await world.granting.ask()
    assert not world.granting.settled

    await world.apply()
    assert world.granting.settled
    assert world.outcomes() == {"a-1": Outcome.IN_FORCE}
    world.says(grant("a-1", "r0"), grant("a-2", "nothing"))
    await world.offers()
    assert [one.allocation for one in world.granting.in_force()] == ["a-1"]


async def test_of_two_agents_the_one_that_takes_over_is_not_settled_before_it_has_written(
    world: World,
) -> None:
    world.writing = False
    world.says(grant("a-1", "r0"))
    assert await world.offers() == {}
    assert (world.granting.settled, world.outcomes()) == (True, {})
    world.writing = True
    assert not world.granting.settled

    assert await world.apply() == {"r0": "a-1"}
    assert world.granting.settled


async def test_where_nothing_can_be_written_no_grant_is_offered_and_one_that_ended_is_withdrawn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.says(grant("a-1", "r0"))
    await world.offers()

    async def full(work: object) -> None:
        raise LedgerUnwritable("ledger.db", "full")

    world.says(grant("a-2", "r1"))
    with monkeypatch.context() as patch:
        patch.setattr(world.ledger, "write", full)
        assert await world.offers() == {}
        assert not world.granting.settled
        assert [one.source for one in world.relay.board.entries] == ["ledger grants"]

    assert await world.apply() == {"r1": "a-2"}
    assert not world.relay.board.entries
    assert [one.grant.allocation for one in world.granting.book.releases] == ["a-1"]


async def test_what_an_operator_writes_meanwhile_is_not_written_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of what was so before is dropped, and made anew."""
    write, meanwhile = world.ledger.write, [True]

    async def late(work: Any) -> Any:
        if meanwhile:
            meanwhile.clear()
            await write(lambda db: withdraw(db, "service"))
        return await write(work)

    monkeypatch.setattr(world.ledger, "write", late)
    world.says(grant("a-1", "r0"))

    assert await world.offers() == {}
    assert world.granting.book.withdrawn == "service"
    assert not await world.granting.is_rewritten()


async def test_what_somebody_else_writes_shows_and_is_read(world: World) -> None:
    await world.offers()
    assert not await world.granting.is_rewritten()
    await world.ledger.write(lambda db: withdraw(db, "service"))
    assert await world.granting.is_rewritten()

    await world.granting.refresh()
    assert world.granting.book.withdrawn == "service"


async def test_what_is_read_first_does_not_come_last(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, entered, go = world.granting.read, anyio.Event(), anyio.Event()

    async def slowly() -> Book:
        book = await read()
        if not entered.is_set():
            entered.set()
            await go.wait()
        return book

    monkeypatch.setattr(world.granting, "read", slowly)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.granting.refresh)
        await entered.wait()
        await world.ledger.write(lambda db: withdraw(db, "service"))
        tasks.start_soon(world.granting.refresh)
        for _ in range(20):  # which would have read by then, did it not wait
            await world.ledger.query(READ)
        go.set()
    assert world.granting.book.withdrawn == "service"


async def test_an_agent_that_does_not_write_offers_what_the_other_has_written_down(
    world: World,
) -> None:
    world.says(grant("a-1", "r0"))
    await world.offers()
    world.writing = False
    await world.ledger.write(lambda db: withdraw(db, "service"))

    assert await world.apply() == {}


async def test_an_offer_of_what_is_written_down_already_writes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.says(grant("a-1", "r0"))
    await world.offers()
    writes: list[object] = []

    async def note(work: object) -> None:
        writes.append(work)

    monkeypatch.setattr(world.ledger, "write", note)
    assert await world.offers() == {"r0": "a-1"}
    assert writes == []


async def test_what_cannot_be_written_for_what_others_write_is_tried_with_the_next_offer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hardpoint._core.grants.granting.EVERY", 0.01)
    write, numbers = world.ledger.write, itertools.count()

    async def late(work: Any) -> Any:
        await write(partial(withdraw, why=f"service {next(numbers)}"))
        return await write(work)

    monkeypatch.setattr(world.ledger, "write", late)
    world.says(grant("a-1", "r0"))
    assert await world.offers() == {}
    with anyio.fail_after(5):
        while not world.touched:
            await anyio.wait_all_tasks_blocked()
    assert world.outcomes() == {}


async def test_a_grant_that_is_stated_again_before_it_is_free_is_no_release_any_more(
    world: World,
) -> None:
    both = grant("a-1", "r0"), grant("a-2", "r1")
    world.says(*both)
    await world.offers()
    world.says(both[1])
    assert await world.offers() == {"r1": "a-2"}
    assert [one.grant.allocation for one in world.granting.book.releases] == ["a-1"]

    world.says(*both)
    assert await world.offers() == {"r0": "a-1", "r1": "a-2"}
    assert world.granting.book.releases == ()


async def test_a_device_that_is_not_on_the_node_now_is_granted_to_nobody_anew(
    world: World,
) -> None:
    world.devices[0] = offered("r0", taints=(ABSENT,), held=True)
    world.says(grant("a-1", "r0"))
    await world.offers()

    assert world.granting.in_force() == ()


async def test_who_waits_until_it_is_settled_is_told_when_an_offer_was_made(world: World) -> None:
    await world.offers()
    world.says(grant("a-1", "r0"))
    answers: list[bool] = []

    async def settle() -> None:
        answers.append(await world.granting.settle())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(settle)
        while not world.touched:
            await anyio.lowlevel.checkpoint()
        assert answers == []
        await world.apply()

    assert answers == [True]


async def test_who_waits_in_vain_until_it_is_settled_is_told_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hardpoint._core.grants.granting.EVERY", 0.05)
    await world.offers()
    world.says(grant("a-1", "r0"))

    assert not await world.granting.settle()
    assert world.granting.known


# -- claims ---------------------------------------------------------------------------------------


async def test_a_grant_that_has_just_ended_is_refused_and_an_offer_is_made(world: World) -> None:
    world.says(grant("a-1", "r0"), grant("a-2", "r1"))
    await world.offers()
    mine = offered("r0", allocation="a-1")
    await world.granting.confirm([mine])
    readings = world.source().readings
    world.says(grant("a-2", "r1"))

    with pytest.raises(HoldDenied, match="r0 is not granted under allocation a-1") as refused:
        await world.granting.confirm([offered("r1", allocation="a-2"), mine])
    assert refused.value.reason == "revoked"
    assert (world.source().readings, world.touched) == (readings + 1, 1)


async def test_a_device_of_another_grant_or_source_is_not_confirmed(world: World) -> None:
    world.says(grant("a-1", "r0"), grant("a-2", "r1"))
    await world.offers()

    for name, allocation in (("r0", "a-2"), ("r1", "a-1"), ("r2", "a-1")):
        with pytest.raises(HoldDenied):
            await world.granting.confirm([offered(name, allocation=allocation)])


async def test_what_is_granted_by_nobody_asks_nobody(world: World) -> None:
    await world.granting.confirm([offered("r0")])
    assert world.source().readings == 0


async def test_a_grant_that_may_have_ended_is_asked_for_again(world: World) -> None:
    world.says(grant("a-1", "r0"))
    await world.offers()
    world.says()

    with pytest.raises(HoldFailed, match="may have ended") as refused:
        await world.granting.confirm([offered("r0", allocation="a-1")])
    assert (refused.value.reason, world.touched) == ("try-again", 0)


async def test_a_source_that_cannot_be_asked_is_believed_to_say_what_it_said(
    world: World,
) -> None:
    world.says(grant("a-1", "r0"))
    await world.offers()
    world.source().unreadable = True

    await world.granting.confirm([offered("r0", allocation="a-1")])


async def test_what_is_held_is_confirmed_where_it_is_governed(world: World) -> None:
    world.says(grant("a-1", "r0"), grant("a-2", "r1"))
    await world.offers()
    held = await world.holds("r0", "a-1")
    await world.granting.confirm_held([held])
    world.says(grant("a-2", "r1"))
    with pytest.raises(HoldDenied):
        await world.granting.confirm_held([held])

    world.source().kinds = ("gpu",)
    await world.granting.ask()
    await world.granting.confirm_held([held])


async def test_a_held_device_is_named_as_its_own_grant_names_it(world: World) -> None:
    first = GrantedDevice(name="r0", cdi_id="bcd.dev/radio=r0")
    second = GrantedDevice(name="r1", cdi_id="bcd.dev/radio=r1")
    world.says(Grant(allocation="a-1", devices=(first, second)))
    world.devices.append(offered("d0", "disk"))
    await world.offers()
    held = [await world.holds(name, "a-1") for name in ("r0", "r1")]

    assert [world.granting.entry(one) for one in held] == [first, second]
    assert world.granting.entry(await world.holds("d0", "")) is None
    other = replace(held[0], allotment=replace(held[0].allotment, allocation="a-9"))
    assert world.granting.entry(other) is None
    world.says(grant("a-2", "r0", "r1"))
    await world.offers()
    assert [world.granting.entry(one) for one in held] == [None, None]


# -- its life -------------------------------------------------------------------------------------


async def test_it_asks_at_each_hint_and_has_an_offer_made_of_what_is_new(world: World) -> None:
    await world.offers()
    readings = world.source().readings
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.granting.run)
        await anyio.wait_all_tasks_blocked()
        for new, touched in ((False, 0), (True, 1)):
            if new:
                world.says(grant("a-1", "r0"))
            world.granting.hint()
            readings += 1
            while world.source().readings < readings or world.touched < touched:
                await anyio.wait_all_tasks_blocked()
            assert world.touched == touched
        tasks.cancel_scope.cancel()


async def test_it_asks_again_and_again_without_a_hint(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hardpoint._core.grants.granting.EVERY", 0.01)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.granting.run)
        while world.source().readings < 3:
            await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_what_an_operator_wrote_has_an_offer_made(world: World) -> None:
    await world.offers()
    await world.ledger.write(partial(withdraw, why="service"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.granting.run)
        world.granting.hint()
        while not world.touched:
            await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_what_could_not_be_written_is_tried_again_though_nobody_states_anything_new(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device comes free on a full disk: who waits for it gets it once there is room."""
    world.says(grant("a-1", "r0"), grant("a-2", "r0"))
    await world.offers()
    world.says(grant("a-2", "r0"))
    await world.offers()
    [release] = world.granting.book.releases
    await world.ledger.write(lambda db: forget_release(db, release.id))

    async def full(work: object) -> None:
        raise LedgerUnwritable("ledger.db", "full")

    with monkeypatch.context() as patch:
        patch.setattr(world.ledger, "write", full)
        await world.apply()
        assert world.relay.board.entries
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.granting.run)
        world.granting.hint()
        with anyio.fail_after(5):
            while not world.touched:
                await anyio.wait_all_tasks_blocked()
        assert await world.apply() == {"r0": "a-2"}
        touched, readings = world.touched, world.source().readings
        world.granting.hint()
        while world.source().readings == readings:
            await anyio.wait_all_tasks_blocked()
        await anyio.wait_all_tasks_blocked()
        assert world.touched == touched
        tasks.cancel_scope.cancel()
    assert world.outcomes() == {"a-2": Outcome.IN_FORCE}


async def test_without_a_source_nobody_is_asked_for_ever(tmp_path: Path) -> None:
    async with world_of(tmp_path) as world:
        await world.granting.run()
        assert not world.granting.settled
        assert await world.apply() == {"r0": "", "r1": ""}
