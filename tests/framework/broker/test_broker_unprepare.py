from __future__ import annotations

from typing import Any

import pytest
from broker_world import World, claim, prepare

from hardpoint._core.ledger.ledger import Ledger
from hardpoint.errors import HoldBusy, HoldConflict, HoldFailed, LedgerUnwritable
from hardpoint.model import Device, Hold, HoldState

CARD_A = ("hardpoint.dev", "card-a")


async def test_unprepare_undoes_everything_and_succeeds_twice(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a", "card-b"))
        await broker.unprepare(claim("u1").key)
        await broker.unprepare(claim("u1").key)

        assert (broker.holds(), world.files(), list((world.root / "hw").iterdir())) == ((), [], [])
        assert world.cards.calls[2:] == ["unprepare card-b", "unprepare card-a"]


async def test_the_end_of_a_claim_is_told_once(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a", "card-b"))
        await broker.unprepare(claim("u1").key)
        await broker.unprepare(claim("u1").key)

    assert [
        (one.facts["claim"], one.facts["devices"]) for one in world.told("claim-unprepared")
    ] == [("ns/claim-u1", "card-a, card-b")]


async def test_an_end_that_cannot_be_written_down_fails_for_the_frontend_to_try_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(records: object) -> None:
        raise LedgerUnwritable("ledger.db", "full")

    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        monkeypatch.setattr(broker._ledger, "release", full)
        with pytest.raises(HoldFailed, match="full") as failed:
            await broker.unprepare(claim("u1").key)
        assert (failed.value.reason, len(broker.holds())) == ("ledger", 1)


@pytest.mark.field_case("B15")
async def test_unprepare_of_an_unknown_claim_succeeds(world: World) -> None:
    """kubernetes/kubernetes#129402: a pod must not hang in Terminating for it."""
    async with world.broker() as broker:
        await broker.unprepare(claim("never-seen").key)


async def test_unprepare_of_an_unknown_claim_takes_a_file_of_its_name_along(world: World) -> None:
    (world.cdi / "hardpoint.dev-u1.json").write_text("{}")
    (world.cdi / "hardpoint.dev-u2.json").write_text("{}")
    async with world.broker() as broker:
        await broker.unprepare(claim("u1").key)
        assert world.files() == ["hardpoint.dev-u2.json"]


async def test_a_driver_undoes_a_device_that_is_gone(world: World) -> None:
    seen: list[object] = []
    undo = world.cards.unprepare_device

    def unprepare_device(device: Device | None, hold: Hold) -> None:
        seen.append((device, hold.device.origin["slot"], hold.remembered["was"]))
        undo(device, hold)

    world.cards.unprepare_device = unprepare_device  # type: ignore[method-assign]
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        world.unplug("card-a")
        await broker.unprepare(claim("u1").key)
        assert seen == [(None, "card-a", "blank")]


async def test_a_vetoed_device_is_still_there_for_its_driver(world: World) -> None:
    seen: list[Device | None] = []
    world.cards.unprepare_device = (  # type: ignore[method-assign]
        lambda device, hold: seen.append(device)
    )
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        world.veto("card-a")
        await broker.unprepare(claim("u1").key)
        assert [device.name if device else None for device in seen] == ["card-a"]


async def test_three_failures_quarantine_the_device_and_let_the_pod_end(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        world.cards.faults["unprepare"] = RuntimeError("stuck")
        for _ in range(2):
            with pytest.raises(HoldFailed, match="stuck"):
                await broker.unprepare(claim("u1").key)
            assert [hold.state for hold in broker.holds()] == [HoldState.RELEASING]
        await broker.unprepare(claim("u1").key)

        assert world.files() == []
        assert broker.quarantined().keys() == {CARD_A}
        assert len(world.told("device-quarantined")) == 1
        await broker.unprepare(claim("u1").key)
        for uid in ("u2", "u1"):
            with pytest.raises(HoldConflict, match="quarantine"):
                await prepare(broker, claim(uid, "card-a"))


async def test_a_quarantined_device_is_tried_again_later_and_then_free(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        world.cards.faults["unprepare"] = RuntimeError("stuck")
        for _ in range(2):
            with pytest.raises(HoldFailed):
                await broker.unprepare(claim("u1").key)
        await broker.unprepare(claim("u1").key)
        calls = len(world.cards.calls)
        await broker.attend()
        assert len(world.cards.calls) == calls  # not yet
        world.now += 11
        await broker.attend()
        world.now += 11
        await broker.attend()
        assert len(world.cards.calls) == calls + 1  # it backs off
        world.cards.faults = {}
        world.now += 3600
        await broker.attend()
        assert (broker.quarantined(), broker.holds()) == ({}, ())
        await prepare(broker, claim("u2", "card-a"))


@pytest.mark.field_case("B15")
async def test_a_claim_whose_driver_is_gone_ends_at_once_and_its_device_is_quarantined(
    world: World,
) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        del world.hooks.drivers["cards"]
        await broker.unprepare(claim("u1").key)
        assert (list(broker.quarantined()), world.files()) == ([CARD_A], [])
        world.hooks.drivers["cards"] = world.cards
        world.now += 3600
        await broker.attend()
        assert (broker.quarantined(), list((world.root / "hw").iterdir())) == ({}, [])


async def test_a_driver_without_effects_needs_not_be_there_for_the_end(world: World) -> None:
    world.add(Device(name="plain-0", kind="x", driver="plain"))
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "plain-0"))
        del world.hooks.drivers["plain"]
        await broker.unprepare(claim("u1").key)
        assert (broker.holds(), broker.quarantined()) == ((), {})


async def test_an_unprepare_that_hangs_for_ever_is_quarantined_too(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        world.hooks.hanging = {"unprepare_device"}
        for _ in range(2):
            with pytest.raises(HoldBusy):
                await broker.unprepare(claim("u1").key)
        await broker.unprepare(claim("u1").key)
        assert broker.quarantined().keys() == {CARD_A}


async def test_an_operator_clears_a_quarantine_and_it_is_written_down(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        del world.hooks.drivers["cards"]
        await broker.unprepare(claim("u1").key)
        assert await broker.clear_quarantine("card-b") == 0
        assert await broker.clear_quarantine("card-a", who="anna") == 1
        assert broker.quarantined() == {}
        (entry,) = await broker._ledger.audits()
        assert (entry.who, entry.what) == ("anna", "quarantine clear")
        assert entry.facts == {"device": "card-a", "claims": ["u1"]}


async def test_one_device_that_cannot_be_undone_does_not_keep_the_others(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a", "card-b"))
        world.cards.faults["unprepare card-b"] = RuntimeError("stuck")
        with pytest.raises(HoldFailed):
            await broker.unprepare(claim("u1").key)
        await prepare(broker, claim("u2", "card-a"))
        assert '"u1-card-b"' in world.file("u1")
        assert "card-a" not in world.file("u1")


async def test_a_prepare_after_a_failed_unprepare_finishes_it_first(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        world.cards.faults["unprepare"] = RuntimeError("stuck")
        with pytest.raises(HoldFailed):
            await broker.unprepare(claim("u1").key)
        world.cards.faults = {}
        await prepare(broker, claim("u1", "card-a"))
        assert world.cards.calls[-2:] == ["unprepare card-a", "prepare card-a"]
        assert [hold.state for hold in broker.holds()] == [HoldState.HELD]


# -- release --------------------------------------------------------------------------------------


async def test_a_device_is_withheld_until_its_driver_has_scrubbed_it(world: World) -> None:
    world.cards.releases = True
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        await broker.unprepare(claim("u1").key)
        assert "release card-a" not in world.cards.calls  # the kubelet has its answer first
        assert broker.quarantined().keys() == {CARD_A}
        with pytest.raises(HoldConflict, match="the release after ns/claim-u1"):
            await prepare(broker, claim("u2", "card-a"))
        with pytest.raises(HoldConflict):
            await prepare(broker, claim("u1", "card-a"))

        await broker.attend()
        assert (world.cards.calls[-1], broker.quarantined()) == ("release card-a", {})
        await prepare(broker, claim("u2", "card-a"))


async def test_a_scrub_that_fails_is_tried_again_and_survives_a_restart(world: World) -> None:
    world.cards.releases = True
    world.cards.faults["release"] = RuntimeError("timeout")
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        await broker.unprepare(claim("u1").key)
        await broker.attend()
        assert broker.quarantined() == {
            CARD_A: "release_device of plugin 'cards' failed: RuntimeError: timeout"
        }
    world.cards.faults = {}
    async with world.broker() as broker:
        await broker.restore()
        world.now += 3600
        await broker.attend()
        assert broker.quarantined() == {}


async def test_only_the_agent_that_writes_releases(world: World) -> None:
    world.cards.releases = True
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        await broker.unprepare(claim("u1").key)
        broker._upkeep._writing = lambda: False
        await broker.attend()
        assert broker.quarantined().keys() == {CARD_A}


async def test_holds_of_one_claim_that_share_a_part_are_released_one_by_one(world: World) -> None:
    """One card that two requests have: neither may be offered before both are scrubbed."""
    world.cards.releases = True
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a", "card-a"))
        await broker.unprepare(claim("u1").key)
        with pytest.raises(HoldConflict):
            await prepare(broker, claim("u2", "card-a"))
        await broker.attend()
        await prepare(broker, claim("u2", "card-a"))


async def test_a_shared_device_that_waits_to_be_scrubbed_is_not_for_the_claim_that_had_it(
    world: World,
) -> None:
    """Others share it meanwhile, and that claim may have another device."""
    world.card("shared", 3, shareable=True)
    world.cards.releases = True
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "shared"))
        await broker.unprepare(claim("u1").key)
        with pytest.raises(HoldConflict, match="the release after ns/claim-u1"):
            await prepare(broker, claim("u1", "card-a", "shared"))
        await prepare(broker, claim("u2", "shared"))
        await prepare(broker, claim("u1", "card-a"))
        await broker.unprepare(claim("u1").key)

        await broker.attend()
        await prepare(broker, claim("u1", "shared"))


# -- records nobody can read ----------------------------------------------------------------------


@pytest.mark.field_case("C09")
async def test_a_record_that_cannot_be_read_costs_its_own_device_only(world: World) -> None:
    """ROCm/k8s-gpu-dra-driver!78: one stale record took every device of the node down."""
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        await prepare(broker, claim("u2", "card-b"))

    def spoil(db: Any) -> None:
        db.execute("UPDATE holds SET device_json = '{\"name\": 3', rev = 1 WHERE uid = 'u1'")

    ledger = Ledger(world.state)
    ledger._committer.run_blocking(spoil)
    ledger.close()
    async with world.broker() as broker:
        await broker.restore()
        assert await prepare(broker, claim("u2", "card-b"))
        assert broker.quarantined().keys() == {CARD_A}
        with pytest.raises(HoldConflict):
            await prepare(broker, claim("u3", "card-a"))
        with pytest.raises(HoldFailed, match="cannot be read"):
            await prepare(broker, claim("u1", "card-a"))
        await broker.unprepare(claim("u1").key)
        assert world.files() == ["hardpoint.dev-u2.json"]
        assert broker.quarantined().keys() == {CARD_A}
        (world.root / "hw" / "card-a").unlink()  # the operator has reset the card
        await broker.clear_quarantine("card-a")
        await prepare(broker, claim("u3", "card-a"))
