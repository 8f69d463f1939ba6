"""When a release is over, by what is held, what is offered and what the evidence says."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from lending_world import lending

from hardpoint._core.grants import releases as releases_module
from hardpoint._core.grants.conditions import Conditions
from hardpoint._core.grants.granting import Granting
from hardpoint._core.grants.grantplan import Stated
from hardpoint._core.grants.lost import Lost
from hardpoint._core.grants.releases import Releases
from hardpoint._core.ledger.grantrows import (
    READ,
    Book,
    KnownGrant,
    KnownRelease,
    Meant,
    book_of,
    keep_grant,
    keep_release,
)
from hardpoint._core.ledger.ledger import Ledger, Want
from hardpoint._core.ledger.rows import open_claim, open_hold
from hardpoint._core.plugins.relay import Relay
from hardpoint.allocation import allocation_key
from hardpoint.contract import hookimpl
from hardpoint.errors import LedgerUnwritable
from hardpoint.grants import Evidence, Grant, GrantOutcome, Outcome, Release
from hardpoint.model import Allotment, ClaimKey, Device, DeviceNode, Domain, Event, Offer, Offered
from hardpoint.node import Node
from hardpoint.testing.clock import ManualClock

DOMAIN, OTHER = Domain.named("hardpoint.dev"), Domain.named("other.dev")
SOURCE = "policy/s"


class Looks:
    """A source of evidence; ``users`` is what it finds."""

    kinds: Any = ("gpu",)
    not_applicable = ""

    def __init__(self, node: Node, settings: Any) -> None:
        self.users: tuple[str, ...] = ()
        self.began = 0.0
        self.asked: list[Release] = []

    @hookimpl
    def find_users(self, release: Release) -> Evidence:
        self.asked.append(release)
        return Evidence(began=self.began, users=self.users)


class Books:
    """What is written down, read when it is asked for; every source's word is in it."""

    settled = True

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.book = Book()
        self.failing: set[str] = set()

    def answers(self, source: str) -> bool:
        return source not in self.failing

    async def read(self) -> Book:
        return book_of(await self._ledger.query(READ))

    async def refresh(self) -> None:
        self.book = await self.read()

    async def is_rewritten(self) -> bool:
        return await self.read() != self.book


class World:
    """A ledger with releases, and what is told of them."""

    def __init__(self, ledger: Ledger, relay: Relay, state: Path) -> None:
        self.ledger, self.relay, self.books = ledger, relay, Books(ledger)
        self.clock, self.wall = ManualClock(100.0), ManualClock(5000.0)
        self.conditions = Conditions(lambda: None)
        self.events: list[Event] = []
        self.touched = self.shown = 0
        self.releases = Releases(
            relay,
            ledger,
            cast("Granting", self.books),
            Lost(state, self.conditions),
            agent=None,
            conditions=self.conditions,
            writing=lambda: True,
            touch=self._touch,
            report=self.events.append,
            show=self._show,
            clock=self.wall.now,
            ticks=self.clock.now,
        )

    def _touch(self) -> None:
        self.touched += 1

    def _show(self) -> None:
        self.shown += 1

    @property
    def looks(self) -> Any:
        return self.relay.plugins.all[0].instance

    async def has(self, *releases: KnownRelease, grants: tuple[KnownGrant, ...] = ()) -> None:
        for one in releases:
            await self.ledger.write(partial(_keep, one))
        for grant in grants:
            await self.ledger.write(partial(_grant, grant))
        await self.books.refresh()

    def offers(self, *devices: Offered) -> None:
        self.releases.on_offer(Offer(devices=devices, withheld=(), generation=1))

    async def users(self) -> tuple[str, ...]:
        """Look at once after the devices have left; return who is found."""
        self.offers()
        self.looks_now()
        await self.releases.look()
        return self.releases.users.get("r-1", ())

    def looks_now(self) -> None:
        for plugin in self.relay.plugins.all:
            if hasattr(plugin.instance, "began"):
                plugin.instance.began = self.clock.now()


def _keep(one: KnownRelease, db: Any) -> None:
    keep_release(db, one)


def _grant(one: KnownGrant, db: Any) -> None:
    keep_grant(db, one)


def device(name: str, *nodes: DeviceNode, kind: str = "gpu") -> Meant:
    return Meant(DOMAIN.dra_driver, Device(name=name, kind=kind, nodes=nodes))


def node(path: str, minor: int, **more: Any) -> DeviceNode:
    return DeviceNode(path=path, major=240, minor=minor, **more)


def release(*devices: Meant, **more: Any) -> KnownRelease:
    facts = {"id": "r-1", "since": 4990.0, "report": False, **more}
    return KnownRelease(grant=Grant(allocation="a-1", source=SOURCE), devices=devices, **facts)


def granted(allocation: str, *devices: Meant) -> KnownGrant:
    return KnownGrant(
        grant=Grant(allocation=allocation, source=SOURCE),
        devices=devices,
        outcome=GrantOutcome(Outcome.IN_FORCE),
    )


def offered(name: str, allocation: str = "", domain: Domain = DOMAIN) -> Offered:
    one = device(name).device
    return Offered(device=one, domain=domain, allocation=allocation)


@asynccontextmanager
async def world_of(root: Path, *policies: type) -> AsyncIterator[World]:
    async with lending(root, *policies) as (ledger, relay):
        yield World(ledger, relay, root / "state")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path, Looks) as made:
        yield made


GPU0, GPU1 = device("gpu0", node("/dev/gpu0", 0)), device("gpu1", node("/dev/gpu1", 1))


# -- the devices leave the offer ------------------------------------------------------------------


async def test_nothing_is_free_before_all_its_devices_have_left_the_offer(world: World) -> None:
    await world.has(release(GPU0, GPU1))
    world.looks_now()
    await world.releases.look()
    assert world.looks.asked == []

    world.offers(offered("gpu1", "a-1"))
    await world.releases.look()
    assert world.looks.asked == []

    world.offers(offered("gpu1", "a-2"), offered("gpu0", domain=OTHER))
    await world.releases.look()
    assert [one.left for one in world.looks.asked] == [100.0]
    assert world.releases.pending() == ()


async def test_a_drain_waits_for_its_devices_to_leave_under_every_grant(world: World) -> None:
    drain = replace(release(GPU0), grant=Grant(allocation="", source="drain"))
    await world.has(drain)

    world.offers(offered("gpu0", "a-7"))
    await world.releases.look()
    assert world.looks.asked == []

    world.offers()
    world.looks_now()
    await world.releases.look()
    assert world.releases.pending() == ()


async def test_what_comes_back_into_the_offer_has_to_leave_it_again(world: World) -> None:
    await world.has(release(GPU0))
    world.offers()
    world.looks_now()
    world.clock.advance(10)
    world.offers(offered("gpu0", "a-1"))
    world.clock.advance(10)
    world.offers()

    await world.releases.look()

    assert world.releases.users["r-1"] == ("p0 looked before the devices had left the offer",)
    assert [one.left for one in world.releases.pending()] == [120.0]


async def test_a_release_of_the_same_id_begins_anew_after_one_that_is_over(world: World) -> None:
    await world.has(release(GPU0))
    assert await world.users() == ()
    world.offers()
    world.clock.advance(50)
    await world.has(release(GPU0))
    world.offers()

    assert [one.left for one in world.releases.pending()] == [150.0]


# -- what the evidence is about -------------------------------------------------------------------


async def test_only_nodes_that_no_live_grant_shares_are_looked_for(world: World) -> None:
    card = device(
        "gpu0",
        node("/dev/gpu0", 0),
        node("/dev/ctl", 255, shared=True),
        node("/dev/bus", 7),
    )
    half = device("half", node("/dev/gpu0", 0))
    rest = device("rest", node("/dev/bus", 7))

    async def nodes(*grants: KnownGrant) -> list[str]:
        await world.has(release(card), grants=grants)
        (seen,) = world.releases.pending()
        return sorted(one.path for one in seen.nodes)

    assert await nodes() == ["/dev/bus", "/dev/gpu0"]
    assert await nodes(granted("a-2", rest)) == ["/dev/gpu0"]
    assert await nodes(granted("a-1", half)) == [], "what is left of the grant itself is its own"
    assert await nodes(granted("a-1", card), granted("a-2")) == ["/dev/bus", "/dev/gpu0"]


async def test_what_is_over_is_not_pending(world: World) -> None:
    await world.has(release(GPU0), release(GPU1, id="r-2", over=True))

    assert [one.id for one in world.releases.pending()] == ["r-1"]
    assert world.releases.ids == {"r-1"}


async def test_a_release_without_devices_is_over_without_a_question(world: World) -> None:
    await world.has(release())
    assert await world.users() == ()
    assert (world.looks.asked, world.releases.pending()) == ([], ())


async def test_a_device_of_a_kind_that_nobody_asks_about_is_in_use(world: World) -> None:
    await world.has(release(GPU0, device("radio0", kind="radio")))

    assert await world.users() == ("no source of evidence that runs is about the kind of radio0",)
    assert world.looks.asked == []


@pytest.mark.parametrize("kinds", [(), ("gpu",), ("radio", "g*")])
async def test_a_source_is_asked_about_its_kinds_or_all_where_it_does_not_say(
    tmp_path: Path, kinds: Any
) -> None:
    about = type("About", (Looks,), {"kinds": kinds})
    async with world_of(tmp_path, about) as world:
        await world.has(release(GPU0))
        await world.users()
        assert len(world.looks.asked) == 1


async def test_a_source_whose_kinds_cannot_be_told_any_more_is_asked_about_everything(
    world: World,
) -> None:
    await world.has(release(GPU0))
    world.looks.kinds = 7
    world.looks.users = ("pod a",)
    assert await world.users() == ("pod a",)


@pytest.mark.parametrize("what", [{"kinds": ("radio",)}, {"not_applicable": "no kubelet here"}])
async def test_without_a_source_that_can_say_a_device_is_in_use(
    tmp_path: Path, what: dict[str, Any]
) -> None:
    async with world_of(tmp_path, type("Other", (Looks,), what)) as world:
        await world.has(release(GPU0))
        assert "no source of evidence runs" in (await world.users())[0]
        assert world.looks.asked == []


async def test_sources_of_other_kinds_are_not_asked_and_keep_nothing(tmp_path: Path) -> None:
    other = type("Other", (Looks,), {"kinds": ("radio",)})
    async with world_of(tmp_path, Looks, other) as world:
        await world.has(release(GPU0))
        assert await world.users() == ()
        assert world.relay.plugins.all[1].instance.asked == []
        assert world.releases.pending() == ()


async def test_while_a_policy_that_is_named_does_not_run_all_is_in_use(tmp_path: Path) -> None:
    class Fails:
        def __init__(self, node: Node, settings: Any) -> None:
            raise OSError("no")

    async with world_of(tmp_path, Looks, Fails) as world:
        await world.has(release(GPU0))
        assert await world.users() == ("policy p1 is named in the settings and does not run",)
        assert len(world.releases.pending()) == 1


# -- what it says ---------------------------------------------------------------------------------


async def test_who_is_found_is_shown_once_and_keeps_the_release(world: World) -> None:
    await world.has(release(GPU0))
    world.looks.users = ("pod a", "pod a", "pod b")
    assert await world.users() == ("pod a", "pod b")
    await world.releases.look()

    assert world.shown == 1
    assert len(world.releases.pending()) == 1


@pytest.mark.parametrize("began", [99.9, 100.1, math.nan, math.inf])
async def test_a_look_that_began_too_early_or_at_no_time_is_no_proof(
    world: World, began: float
) -> None:
    await world.has(release(GPU0))
    world.offers()
    world.looks.began = began
    await world.releases.look()

    assert len(world.releases.users["r-1"]) == 1
    assert len(world.releases.pending()) == 1


async def test_a_release_is_told_with_its_devices_and_forgotten(world: World) -> None:
    await world.has(release(GPU0, GPU1))
    assert await world.users() == ()

    (event,) = world.events
    assert (event.name, event.facts) == (
        "devices-released",
        {"allocation": "a-1", "devices": "gpu0, gpu1"},
    )
    assert (await world.books.read()).releases == ()
    assert world.releases.users == {}
    assert world.touched > 0


# -- too long -------------------------------------------------------------------------------------


async def test_five_minutes_make_it_a_condition_and_it_is_named_who_has_it(world: World) -> None:
    await world.has(release(GPU0, since=5000.0), release(GPU1, id="r-2", over=True, since=1.0))
    world.looks.users = ("pod a", "pod b", "pod c", "pod d")
    world.books.settled = False  # the source of the other is told later
    await world.users()
    said = []
    for seconds in (299.0, 1.0):
        world.clock.advance(seconds)
        await world.releases.look()
        said.append(world.conditions.all)
    assert [len(one) for one in said] == [0, 1]
    condition = said[1][0]
    assert condition.type == "ReleaseStuck"
    assert condition.message == (
        "allocation a-1 (gpu0) has not been free since it ended: pod a; pod b; pod c"
    )


# -- by itself ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [LedgerUnwritable("ledger.db", "full"), OSError("full")])
async def test_it_looks_by_itself_at_each_wake_also_after_a_failure(
    world: World, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0

    async def look() -> None:
        nonlocal looked
        looked += 1
        if looked == 1:
            raise error

    world.releases.look = look  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.releases.run)
        for times in (0, 1, 2):
            await anyio.wait_all_tasks_blocked()
            assert looked == times
            world.releases.wake()
        await anyio.wait_all_tasks_blocked()
        monkeypatch.setattr("hardpoint._core.grants.releases.EVERY", 0.0)
        world.releases.wake()
        with anyio.fail_after(5):
            while looked < 6:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


def test_it_looks_again_after_half_a_minute_at_the_latest() -> None:
    assert releases_module.EVERY <= 30.0


async def test_what_an_operator_has_ended_is_taken_up(world: World) -> None:
    await world.has(release(GPU0))
    await world.releases.look()
    assert world.touched == 0
    await world.ledger.write(lambda db: _keep(release(GPU1), db))

    await world.releases.look()

    assert [one.devices for one in world.books.book.releases] == [(GPU1,)]
    assert world.touched == 1


# -- what the ledger holds ------------------------------------------------------------------------


def hold(db: Any, uid: str, name: str, allocation: str, driver: str = DOMAIN.dra_driver) -> None:
    key = ClaimKey(uid, "ns", f"{uid}-claim", driver)
    if uid == "id":
        key = allocation_key("hardpoint.dev/gpu", f"{name}@x", driver)
    open_claim(db, key, "", 1.0)
    allotment = Allotment(request="r", device=name, pool="p", allocation=allocation)
    want = Want(
        allotment=allotment,
        device=device(name).device,
        cdi_vendor="v",
        cdi_name=f"n-{uid}",
        parts=(),
        undo=True,
    )
    open_hold(db, key, want, "boot", 1.0)


@pytest.mark.parametrize(
    ("uid", "name", "allocation", "driver", "found"),
    [
        ("u", "gpu0", "a-1", "hardpoint.dev", ("claim ns/u-claim",)),
        ("u", "gpu0", "", "hardpoint.dev", ("claim ns/u-claim",)),
        ("id", "gpu0", "a-1", "hardpoint.dev", ("gpu0@x of hardpoint.dev/gpu",)),
        ("u", "gpu0", "a-2", "hardpoint.dev", ()),
        ("u", "gpu1", "a-1", "hardpoint.dev", ()),
        ("u", "gpu0", "a-1", "other.dev", ()),
    ],
)
async def test_a_hold_of_its_allocation_is_a_user_whatever_the_evidence_says(
    world: World, uid: str, name: str, allocation: str, driver: str, found: tuple[str, ...]
) -> None:
    await world.has(release(GPU0))
    await world.ledger.write(lambda db: hold(db, uid, name, allocation, driver))

    assert await world.users() == found
    assert bool(world.releases.pending()) == bool(found)


async def test_a_hold_of_any_allocation_keeps_a_drain(world: World) -> None:
    await world.has(replace(release(GPU0), grant=Grant(allocation="", source="drain")))
    await world.ledger.write(lambda db: hold(db, "u", "gpu0", "a-9"))

    assert await world.users() == ("claim ns/u-claim",)


# -- a source that cannot say ---------------------------------------------------------------------


@pytest.mark.parametrize("answer", [Evidence.unknown("the kubelet is silent"), OSError("gone")])
async def test_what_a_source_cannot_say_is_in_use(tmp_path: Path, answer: Any) -> None:
    class Mute(Looks):
        @hookimpl
        def find_users(self, release: Release) -> Evidence:
            if isinstance(answer, Exception):
                raise answer
            return cast("Evidence", answer)

    async with world_of(tmp_path, Mute) as world:
        await world.has(release(GPU0))
        (said,) = await world.users()
        assert said.startswith("p0 cannot say: ")
        assert len(world.releases.pending()) == 1


async def test_a_user_without_a_name_is_one(world: World) -> None:
    await world.has(release(GPU0))
    world.looks.users = ("",)

    assert await world.users() == ("p0",)


async def test_two_sources_may_share_the_kinds_of_a_release(tmp_path: Path) -> None:
    radios = type("Radios", (Looks,), {"kinds": ("radio",)})
    async with world_of(tmp_path, Looks, radios) as world:
        await world.has(release(GPU0, device("radio0", kind="radio")))
        assert await world.users() == ()
        assert world.releases.pending() == ()


# -- what its source is told ----------------------------------------------------------------------


class Source:
    """A source of grants that is told what becomes of them, and may not listen."""

    kinds = ("gpu",)

    def __init__(self, node: Node, settings: Any) -> None:
        self.told: list[tuple[str, str]] = []
        self.deaf = False

    @hookimpl
    def grant_devices(self) -> tuple[Grant, ...]:
        return ()

    @hookimpl
    def report_grant(self, grant: Grant, outcome: GrantOutcome) -> None:
        self.hear(grant.allocation, outcome.outcome.value)

    @hookimpl
    def report_release(self, grant: Grant, release: Release) -> None:
        self.hear(grant.allocation, ",".join(release.names))

    def hear(self, allocation: str, what: str) -> None:
        if self.deaf:
            raise OSError("nobody listens")
        self.told.append((allocation, what))


class Silent:
    """A source that wants to be told nothing."""

    kinds = ("gpu",)

    def __init__(self, node: Node, settings: Any) -> None: ...

    @hookimpl
    def grant_devices(self) -> tuple[Grant, ...]:
        return ()


def reported(*devices: Meant, source: str = "policy/p1", **more: Any) -> KnownRelease:
    grant = Grant(allocation="a-1", source=source)
    return replace(release(*devices, report=True, **more), grant=grant)


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path, Looks, Source) as made:
        yield made


def source_of(world: World) -> Any:
    return world.relay.plugins.all[1].instance


async def test_its_source_is_told_once_that_it_is_over(told: World) -> None:
    await told.has(reported(GPU0))
    await told.users()
    await told.releases.look()

    assert source_of(told).told == [("a-1", "gpu0")]
    assert [one.name for one in told.events] == ["allocation-released"]
    assert (await told.books.read()).releases == ()


async def test_a_source_that_does_not_listen_is_told_again_and_its_device_is_free_for_nobody(
    told: World,
) -> None:
    await told.has(reported(GPU0))
    source_of(told).deaf = True
    await told.users()
    assert [(one.over, one.devices) for one in (await told.books.read()).releases] == [
        (True, (GPU0,))
    ]
    assert (told.events, told.releases.pending()) == ([], ())

    source_of(told).deaf = False
    await told.releases.look()
    assert source_of(told).told == [("a-1", "gpu0")]
    assert (await told.books.read()).releases == ()


async def test_a_source_that_wants_no_reports_is_told_nothing(tmp_path: Path) -> None:
    async with world_of(tmp_path, Looks, Silent) as world:
        await world.has(reported(GPU0))
        await world.users()
        assert (await world.books.read()).releases == ()


async def test_a_source_that_does_not_run_is_told_when_it_does(told: World) -> None:
    await told.has(reported(GPU0, source="policy/absent"))
    await told.users()

    assert [one.over for one in (await told.books.read()).releases] == [True]


async def test_nothing_is_told_before_what_sources_say_now_is_written_down(told: World) -> None:
    await told.has(reported(GPU0))
    told.books.settled = False
    await told.users()
    assert source_of(told).told == []

    told.books.settled = True
    await told.releases.look()
    assert source_of(told).told == [("a-1", "gpu0")]


async def test_a_source_that_cannot_be_read_now_is_told_when_it_can(told: World) -> None:
    """It may state the grant again: nobody knows."""
    await told.has(reported(GPU0))
    told.books.failing = {"policy/p1"}
    await told.users()
    assert source_of(told).told == []

    told.books.failing = set()
    await told.releases.look()
    assert source_of(told).told == [("a-1", "gpu0")]


async def test_the_end_of_a_grant_that_is_stated_again_is_not_told_and_frees_its_devices(
    told: World,
) -> None:
    again = KnownGrant(
        grant=Grant(allocation="a-1", source="policy/p1"),
        devices=(),
        outcome=GrantOutcome(Outcome.UNKNOWN_DEVICE, "no such device"),
        told=True,
    )
    await told.has(reported(GPU0), grants=(again,))
    await told.users()

    assert source_of(told).told == []
    assert [one.devices for one in (await told.books.read()).releases] == [()]
    assert told.books.book == await told.books.read()
    assert told.touched == 2, "its devices may be offered to others"


async def test_the_end_of_a_grant_is_told_once_what_was_taken_out_before_is_free_too(
    told: World,
) -> None:
    before = replace(reported(GPU1, id="r-2"), report=False)
    other = replace(
        reported(device("gpu7"), id="r-3"), grant=Grant(allocation="a-7", source="policy/p1")
    )
    await told.has(replace(reported(GPU0), over=True), before, other)
    told.looks.users = ("pod a",)
    await told.users()
    assert source_of(told).told == []

    told.looks.users = ()
    await told.releases.look()
    await told.releases.look()
    assert sorted(source_of(told).told) == [("a-1", "gpu0"), ("a-7", "gpu7")]


@pytest.mark.parametrize(
    ("outcome", "name", "words"),
    [
        (GrantOutcome(Outcome.IN_FORCE), "grant-in-force", "its devices are offered"),
        (GrantOutcome(Outcome.OVERLAP, "it is taken"), "grant-refused", "it is taken"),
    ],
)
async def test_a_source_is_told_once_what_became_of_a_grant(
    told: World, outcome: GrantOutcome, name: str, words: str
) -> None:
    grant = Grant(allocation="a-1", source="policy/p1")
    await told.has(grants=(KnownGrant(grant=grant, devices=(), outcome=outcome),))
    source_of(told).deaf = True
    await told.releases.look()
    assert told.events == []

    source_of(told).deaf = False
    await told.releases.look()
    await told.releases.look()
    assert source_of(told).told == [("a-1", outcome.outcome.value)]
    (event,) = told.events
    assert (event.name, event.warning) == (name, not outcome.in_force)
    assert event.message == f"allocation a-1: {words}"
    assert [one.told for one in told.books.book.grants] == [True]


# -- a node that is handed back -------------------------------------------------------------------


async def test_a_node_that_is_handed_back_waits_for_what_is_held_and_comes_back(
    world: World,
) -> None:
    await world.ledger.write(lambda db: hold(db, "u", "gpu0", "a-1"))
    await world.releases.withdraw("service")
    await world.releases.withdraw("service")

    book = world.books.book
    assert book.withdrawn == "service"
    assert [(one.id, one.report, one.since) for one in book.releases] == [("drain", False, 5000.0)]
    assert [(one.name, one.warning) for one in world.events] == [("node-withdrawn", True)]
    assert world.touched == 1

    await world.releases.resume()
    await world.releases.resume()
    assert (world.books.book.withdrawn, world.books.book.releases) == ("", ())
    assert [one.name for one in world.events] == ["node-withdrawn", "node-resumed"]
    assert world.touched == 2


# -- failures -------------------------------------------------------------------------------------


async def test_one_that_cannot_be_written_costs_no_other_and_is_said(
    told: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await told.has(replace(reported(GPU0), over=True), replace(reported(GPU1, id="r-2"), over=True))
    forget = told.releases._forget

    async def fails(known: KnownRelease) -> None:
        if known.id == "r-1":
            raise OSError("full")
        await forget(known)

    monkeypatch.setattr(told.releases, "_forget", fails)
    told.offers()
    with pytest.raises(OSError, match="full"):
        await told.releases.look()
    assert [one.id for one in (await told.books.read()).releases] == ["r-1"]


async def test_what_was_lost_is_over_when_nobody_uses_it(world: World) -> None:
    lost = world.releases._lost
    lost.path.write_text("{}")
    await lost.begin(say=True)
    stated = {SOURCE: Stated(source=SOURCE, kinds=("gpu",), grants=())}
    await lost.keys(Book(), (GPU0,), stated, complete=True)
    assert [one.id for one in world.releases.pending()] == ["lost"]

    await world.users()

    assert not lost.lost
    assert [one.name for one in world.events] == ["release-lost-over"]
    assert "lost: nobody uses gpu0" in world.events[0].message
    assert world.touched == 1


# -- what is easily overlooked --------------------------------------------------------------------


async def test_a_device_has_left_the_offer_since_it_first_did(world: World) -> None:
    await world.has(release(GPU0))
    assert [one.left for one in world.releases.pending()] == [0.0]
    world.releases._wake = anyio.Event()
    world.offers()
    assert world.releases._wake.is_set(), "it is looked soon"
    world.clock.advance(10)
    world.offers()

    assert [one.left for one in world.releases.pending()] == [100.0]


async def test_nodes_without_numbers_are_told_apart_by_their_paths(world: World) -> None:
    mine, theirs = DeviceNode(path="/dev/acme0"), DeviceNode(path="/dev/acme1")
    await world.has(release(device("gpu0", mine, theirs)))
    (seen,) = world.releases.pending()
    assert sorted(one.path for one in seen.nodes) == ["/dev/acme0", "/dev/acme1"]

    await world.has(grants=(granted("a-2", device("gpu5", theirs)),))
    (seen,) = world.releases.pending()
    assert [one.path for one in seen.nodes] == ["/dev/acme0"]


async def test_a_device_that_another_grant_has_is_that_ones_to_open(world: World) -> None:
    await world.has(release(GPU0), grants=(granted("a-2", GPU0),))

    assert [one.nodes for one in world.releases.pending()] == [()]


async def test_a_claim_that_takes_it_while_it_is_looked_keeps_it(tmp_path: Path) -> None:
    class Slow(Looks):
        async def find(self) -> None: ...

        @hookimpl
        async def find_users(self, release: Release) -> Evidence:  # type: ignore[override]
            await self.find()
            return Evidence(began=self.began)

    async with world_of(tmp_path, Slow) as world:
        await world.has(release(GPU0))
        world.looks.find = lambda: world.ledger.write(lambda db: hold(db, "u", "gpu0", "a-1"))
        assert await world.users() == ()
        assert len((await world.books.read()).releases) == 1
        assert world.events == []


async def test_what_was_taken_out_of_a_grant_is_forgotten_when_it_is_free(world: World) -> None:
    """Whatever else of that allocation is in use still, and though it is stated."""
    used = release(GPU1, id="r-2")
    await world.has(release(GPU0), used, grants=(granted("a-1", device("gpu9")),))
    world.offers(offered("gpu1", "a-1"))
    world.looks_now()
    await world.releases.look()

    assert (await world.books.read()).releases == (used,)
    assert world.touched == 2, "its device may be offered again"


async def test_an_allocation_that_is_in_use_keeps_no_report_of_another(told: World) -> None:
    other = replace(
        reported(device("gpu7"), id="r-3"), grant=Grant(allocation="a-7", source="policy/p1")
    )
    await told.has(reported(GPU0), other)
    told.offers(offered("gpu7", "a-7"))
    told.looks_now()
    await told.releases.look()

    assert source_of(told).told == [("a-1", "gpu0")]


async def test_a_drain_that_nobody_could_look_at_for_long_is_said_to_be_unknown(
    world: World,
) -> None:
    """It began before this process did."""
    drain = Grant(allocation="", source="drain")
    await world.has(replace(release(GPU0, since=4000.0), grant=drain))
    world.offers(offered("gpu0"))
    await world.releases.look()

    assert [one.message for one in world.conditions.all] == [
        "allocation drain (gpu0) has not been free since it ended: that is not known yet"
    ]


async def test_a_release_of_tomorrow_is_stuck_in_five_minutes(world: World) -> None:
    await world.has(release(GPU0, since=90000.0))
    world.offers(offered("gpu0", "a-1"))
    counts = []
    for seconds in (0.0, 299.0, 1.0):
        world.clock.advance(seconds)
        await world.releases.look()
        counts.append(len(world.conditions.all))
    assert counts == [0, 0, 1]


@pytest.mark.parametrize("jump", [-64800.0, 64800.0])
async def test_a_clock_that_is_set_before_the_first_look_makes_no_release_older_or_younger(
    world: World, jump: float
) -> None:
    await world.has(release(GPU0, since=5000.0))
    world.offers(offered("gpu0", "a-1"))
    world.wall.advance(jump)
    counts = []
    for seconds in (0.0, 299.0, 1.0):
        world.clock.advance(seconds)
        await world.releases.look()
        counts.append(len(world.conditions.all))
    assert counts == [0, 0, 1]


async def test_a_marker_that_an_operator_removes_is_taken_up_though_nothing_else_is_pending(
    world: World,
) -> None:
    lost = world.releases._lost
    lost.path.write_text("{}")
    await lost.begin(say=True)
    lost.path.unlink()
    await world.releases.look()

    assert (lost.lost, world.touched) == (False, 1)


async def test_a_ledger_that_cannot_be_written_for_one_is_said(
    told: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await told.has(replace(reported(GPU0), over=True), replace(reported(GPU1, id="r-2"), over=True))
    forget = told.releases._forget

    async def fails(known: KnownRelease) -> None:
        if known.id == "r-1":
            raise LedgerUnwritable("ledger.db", "full")
        await forget(known)

    monkeypatch.setattr(told.releases, "_forget", fails)
    told.offers()
    with pytest.raises(LedgerUnwritable):
        await told.releases.look()
    assert [one.id for one in (await told.books.read()).releases] == ["r-1"]


async def test_a_node_that_is_handed_back_is_looked_at_soon(world: World) -> None:
    world.releases._wake = anyio.Event()
    await world.releases.withdraw("service")
    assert world.releases._wake.is_set()


# -- a source that takes its time -----------------------------------------------------------------


class Slow(Source):
    """A source that lets whoever tells it wait."""

    def __init__(self, node: Node, settings: Any) -> None:
        super().__init__(node, settings)
        self.entered, self.go = anyio.Event(), anyio.Event()

    @hookimpl
    async def report_grant(self, grant: Grant, outcome: GrantOutcome) -> None:  # type: ignore[override]
        self.entered.set()
        await self.go.wait()
        self.hear(grant.allocation, outcome.outcome.value)


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path, Looks, Slow) as made:
        yield made


def became(outcome: Outcome) -> KnownGrant:
    grant = Grant(allocation="a-1", source="policy/p1")
    return KnownGrant(grant=grant, devices=(), outcome=GrantOutcome(outcome))


async def look_until_it_is_asked(world: World) -> None:
    """Look, and wait no longer than until the source is asked: it hears of it when it lets go."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.releases.look)
        await source_of(world).entered.wait()
        tasks.cancel_scope.cancel()


async def test_a_source_that_is_slow_to_hear_of_a_grant_hears_of_it_once(slow: World) -> None:
    await slow.has(grants=(became(Outcome.IN_FORCE),))
    await look_until_it_is_asked(slow)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slow.releases.look)
        await anyio.wait_all_tasks_blocked()
        source_of(slow).go.set()
    await slow.releases.look()

    assert source_of(slow).told == [("a-1", "in-force")]
    assert [one.name for one in slow.events] == ["grant-in-force"]


async def test_a_source_that_still_hears_what_was_so_before_is_not_taken_to_know_what_is_so_now(
    slow: World,
) -> None:
    await slow.has(grants=(became(Outcome.OVERLAP),))
    await look_until_it_is_asked(slow)
    await slow.has(grants=(became(Outcome.IN_FORCE),))
    with anyio.fail_after(5):
        await slow.releases.look()
    assert (slow.events, [one.told for one in slow.books.book.grants]) == ([], [False])

    source_of(slow).go.set()
    await anyio.wait_all_tasks_blocked()
    await slow.releases.look()

    assert [what for _, what in source_of(slow).told] == ["overlap", "in-force"]
    assert [one.name for one in slow.events] == ["grant-in-force"]
    assert [one.told for one in slow.books.book.grants] == [True]


async def test_who_looks_while_somebody_looks_does_nothing_twice(told: World) -> None:
    await told.has(replace(reported(GPU0), over=True))
    told.offers()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(told.releases.look)
        tasks.start_soon(told.releases.look)

    assert source_of(told).told == [("a-1", "gpu0")]
    assert [one.name for one in told.events] == ["allocation-released"]
