"""Grants and releases whose agent ended, failed or was overtaken in between."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from hardpoint import Node, files
from hardpoint._core.agent import HardpointAgent
from hardpoint._core.grants import granting as granting_module
from hardpoint._core.grants.lost import MARKER, Lost, open_ledger
from hardpoint._core.ledger.ledger import Ledger
from hardpoint._core.plugins.discovery import Plugin
from hardpoint.errors import LedgerUnwritable
from hardpoint.grants import Grant, Release
from hardpoint.policies.cdi_grants.reports import Reports

from .conftest import World, reading
from .grant_world import Played, agents, grant, granting, under, until_so

A, B = grant("a-1", "radio0"), grant("b-1", "radio1")


def offered(agent: HardpointAgent) -> dict[str, str]:
    return {one.name: one.allocation for one in agent.offer.devices}


def play(played: Played, *grants: Grant) -> None:
    played.grants = list(grants)
    played.hint()


def pending(agent: HardpointAgent) -> list[str]:
    return [one.allocation for one in agent.releases()]


class _Refused:
    def __init__(self, node: Node, settings: None) -> None:
        raise ValueError("its section is wrong")


def refused(name: str) -> Plugin:
    """Return a policy that the settings name and that cannot be made."""
    return Plugin("policy", name, loaded=_Refused)


async def test_an_agent_that_starts_on_an_empty_directory_ends_no_grant_before_a_second_look(
    world: World,
) -> None:
    played = Played()
    played.grants = [A]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
    played.grants = []  # what holds the files is not mounted yet

    async with granting(world, played) as agent:
        assert offered(agent) == {"radio0": "a-1"}
        assert not agent.policies.granting.known
        assert not agent.releases()


async def test_while_a_source_cannot_be_started_its_grants_stand_and_nothing_is_released(
    world: World,
) -> None:
    played = Played()
    played.grants, played.deaf = [A, B], True
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        play(played, B)
        await until_so(agent, lambda: any(r.over for r in agent.policies.granting.book.releases))

    async with world.agent(refused("source")) as agent:  # a mistake in the settings
        await agent.policies.granting.settle()
        assert [one.allocation for one in agent.grants()] == ["b-1"]
        assert offered(agent) == {}
        assert not agent.policies.granting.known
        assert [r.grant.allocation for r in agent.policies.granting.book.releases] == ["a-1"]
    played.deaf = False

    async with granting(world, played) as agent:
        await until_so(agent, lambda: ("a-1", "released") in played.told)


async def test_while_evidence_that_the_settings_name_does_not_run_nothing_is_released(
    world: World,
) -> None:
    played = Played()
    played.grants = [A, B]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
    played.grants = [B]
    async with granting(world, played, refused("processes")) as agent:
        await until_so(agent, lambda: pending(agent) == ["a-1"])
        for _ in range(3):
            await agent.policies.releases.look()

        assert pending(agent) == ["a-1"]
        (users,) = agent.policies.releases.users.values()
        assert "processes" in users[0]
        assert ("a-1", "released") not in played.told


async def test_a_grant_that_ended_while_the_disk_was_full_is_released_once_there_is_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(granting_module, "EVERY", 0.05)
    played = Played()
    played.grants = [A, B]
    full: list[str] = []
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(played.told) == 2)
        await until_so(agent, lambda: agent._offering._first_second_over)
        write = Ledger.write

        async def failing(ledger: Ledger, work: object) -> object:
            if full:
                raise LedgerUnwritable("ledger.db", "database or disk is full")
            return await write(ledger, work)  # type: ignore[arg-type]

        monkeypatch.setattr(Ledger, "write", failing)
        full.append("full")
        play(played, B)
        await until_so(agent, lambda: offered(agent) == {"radio1": "b-1"})
        await until_so(agent, lambda: any("grants" in e.source for e in agent.board.entries))
        for _ in range(3):  # whatever looks again because of that has looked
            made = agent.policies.granting._made
            agent.policies.granting._touch()
            await made.wait()
        assert not agent.releases()

        full.clear()

        await until_so(agent, lambda: ("a-1", "released") in played.told)


async def test_a_device_taken_out_of_a_grant_leaves_the_offer_though_nothing_can_be_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played()
    played.grants = [grant("a-1", "radio0", "radio1")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        await until_so(agent, lambda: bool(played.told))

        async def failing(ledger: Ledger, work: object) -> None:
            raise LedgerUnwritable("ledger.db", "database or disk is full")

        monkeypatch.setattr(Ledger, "write", failing)
        play(played, A)

        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})


def spoil(world: World) -> None:
    for file in world.paths.state.glob("ledger.db*"):
        file.unlink()
    (world.paths.state / "ledger.db").write_bytes(b"not a database at all")


async def test_that_releases_were_lost_is_known_though_the_agent_that_found_out_was_killed(
    world: World,
) -> None:
    """It is written down before the ledger is begun anew: nothing would say so afterwards."""
    played = Played()
    played.grants, played.users = [A, B], ["pod x/y"]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        play(played, A)
        await until_so(agent, lambda: pending(agent) == ["b-1"])
    spoil(world)
    open_ledger(world.paths.state).close()  # killed before anything else

    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        play(played, A, grant("c-1", "radio1"))
        await until_so(agent, lambda: ("c-1", "overlap") in played.told)
        assert offered(agent) == {"radio0": "a-1"}


async def test_an_agent_that_takes_over_knows_which_grants_came_after_releases_were_lost(
    world: World,
) -> None:
    """It read the marker when it started; what is in doubt the other agent found out since."""
    played = Played()
    played.grants, played.users = [A], ["pod x/y"]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
    spoil(world)
    marker = world.paths.state / MARKER
    async with agents() as both:
        played.unreadable = True  # so that both start before anything is settled
        first = await both.start(granting(world, played))
        second = await both.start(granting(world, played))
        played.unreadable = False
        await first.policies.granting.settle()
        await until_so(first, lambda: "policy/source" in marker.read_text())

        played.grants = [A, B]
        await both.end(first)

        await until_so(second, second.writing)
        await second.policies.granting.settle()
        await until_so(second, lambda: ("b-1", "overlap") in played.told)
        assert offered(second) == {"radio0": "a-1"}


async def test_a_ledger_that_was_removed_is_one_that_was_lost(world: World) -> None:
    played = Played()
    played.grants, played.users = [A, B], ["pod x/y"]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        play(played, A)
        await until_so(agent, lambda: pending(agent) == ["b-1"])
    for file in world.paths.state.glob("ledger.db*"):
        file.unlink()

    async with granting(world, played) as agent:
        await until_so(agent, lambda: "ReleasesUnreadable" in {c.type for c in agent.conditions()})
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        play(played, A, grant("c-1", "radio1"))
        await until_so(agent, lambda: ("c-1", "overlap") in played.told)


async def test_a_grant_that_comes_back_at_the_last_moment_is_not_reported_released(
    world: World,
) -> None:
    """Nobody used it, and its source was about to be told: it states the grant again by now."""
    played = Played()
    played.grants, played.deaf = [A, B], True
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        play(played, B)
        await until_so(agent, lambda: any(r.over for r in agent.policies.granting.book.releases))
        played.grants = [A, B]
        await agent.policies.granting.ask()  # what follows is not written down yet
        played.deaf = False
        await agent.policies.releases.look()
        assert ("a-1", "released") not in played.told

        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1", "radio1": "b-1"})
        await agent.policies.releases.look()
        assert ("a-1", "released") not in played.told


async def test_a_grant_that_is_stated_again_and_refused_is_released_when_that_ends_too(
    world: World,
) -> None:
    """Its devices are free for others meanwhile; its source hears of its end when it has one."""
    played = Played()
    played.grants = [A, B]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        played.users = ["pod x/y"]
        play(played, B)
        await until_so(agent, lambda: pending(agent) == ["a-1"])
        play(played, B, grant("a-1", "radio1"))
        await until_so(agent, lambda: ("a-1", "overlap") in played.told)
        played.users = []
        play(played, B, grant("a-1", "radio1"), grant("c-1", "radio0"))

        await until_so(agent, lambda: offered(agent) == {"radio0": "c-1", "radio1": "b-1"})
        await agent.policies.releases.look()
        assert ("a-1", "released") not in played.told

        play(played, B, grant("c-1", "radio0"))

        await until_so(agent, lambda: ("a-1", "released") in played.told)
        await until_so(agent, lambda: not agent.policies.granting.book.releases)


async def test_what_is_in_doubt_after_a_loss_is_known_as_soon_as_anybody_looks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at releases between two offers must not find that nothing is in doubt."""
    played = Played()
    played.grants, played.users = [A], ["pod x/y"]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
    spoil(world)
    doubted: list[tuple[str, ...]] = []
    keys = Lost.keys

    async def seen(lost: Lost, *args: Any, **more: Any) -> Any:
        found = await keys(lost, *args, **more)
        release = lost.release()
        doubted.extend([release.release().names] if release else [])
        return found

    monkeypatch.setattr(Lost, "keys", seen)
    async with granting(world, played) as agent:
        await until_so(agent, lambda: bool(doubted))
        assert set(doubted) == {("radio1",)}


async def test_a_drained_nodes_devices_have_not_left_an_offer_that_shows_them_under_a_grant(
    world: World,
) -> None:
    played = Played()
    played.grants = [A]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        held = under("a-1", "radio0")
        await agent.prepare(held.key, reading(held))
        before, releases = agent.offer, agent.policies.releases
        await agent.withdraw("maintenance")

        releases.on_offer(before)  # made a moment before, shown a moment after
        assert "drain" not in releases._left

        await until_so(agent, lambda: not agent.offer.devices and "drain" in releases._left)


async def test_a_clock_that_is_set_makes_no_release_older_or_younger(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played()
    played.grants, played.users = [A, B], ["pod x/y"]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        releases = agent.policies.releases
        now, ticks = [1_000_000.0], [50.0]
        for part in (releases, agent.policies.granting):
            monkeypatch.setattr(part, "_clock", lambda: now[0])
        monkeypatch.setattr(releases, "_ticks", lambda: ticks[0])
        play(played, B)
        await until_so(agent, lambda: pending(agent) == ["a-1"])

        async def stuck_after(seconds: float, jump: float) -> bool:
            ticks[0] += seconds
            now[0] += seconds + jump
            await releases.look()
            return any(one.type == "ReleaseStuck" for one in agent.conditions())

        assert not await stuck_after(0.0, jump=0.0)
        assert not await stuck_after(0.0, jump=6 * 3600.0)
        assert not await stuck_after(299.0, jump=-12 * 3600.0)
        assert await stuck_after(1.0, jump=0.0)


async def test_a_report_that_reached_no_disk_is_written_again_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = Reports(tmp_path / "reports")
    release = Release(id="r", allocation="a-1", source="s", devices=(), since=0.0)
    synced: list[Path] = []

    def failing(directory: Path) -> None:
        if directory == reports.directory:
            raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(files, "sync_directory", failing)
    for _ in range(2):
        with pytest.raises(OSError, match="the disk fails"):
            reports.tell_release(A, release)
    monkeypatch.setattr(files, "sync_directory", synced.append)

    reports.tell_release(A, release)

    assert synced == [tmp_path, tmp_path / "reports"]
