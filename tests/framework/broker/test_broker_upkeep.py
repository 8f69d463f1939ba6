from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from broker_world import MAJOR, World, claim, prepare

from hardpoint._core.ledger.ledger import Want
from hardpoint._core.ledger.rows import open_hold
from hardpoint.errors import HoldConflict, HoldDenied, HoldFailed, LedgerUnwritable, TryAgain
from hardpoint.model import Device, DeviceNode, HoldState, Withheld


def nodes_of(world: World, uid: str) -> list[str]:
    return [
        node["path"]
        for device in json.loads(world.file(uid))["devices"]
        for node in device["containerEdits"]["deviceNodes"]
    ]


# -- restart and reboot ---------------------------------------------------------------------------


async def test_a_restart_finds_its_holds_and_prepares_nothing_again(world: World) -> None:
    async with world.broker() as broker:
        answer = await prepare(broker, claim("u1", "card-a"))
    async with world.broker() as broker:
        await broker.restore()
        assert await prepare(broker, claim("u1", "card-a")) == answer
        assert world.cards.calls == ["prepare card-a"]
        with pytest.raises(HoldConflict):
            await prepare(broker, claim("u2", "card-a"))


@pytest.mark.field_case("D04")
async def test_a_lost_cdi_file_is_back_before_anything_is_registered(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        good = world.file("u1")
    (world.cdi / "hardpoint.dev-u1.json").unlink()
    async with world.broker() as broker:
        await broker.restore()
        assert world.file("u1") == good
        assert world.cards.calls == ["prepare card-a"]


@pytest.mark.field_case("C06", "C13", "D04")
async def test_a_reboot_makes_every_hold_true_again(world: World) -> None:
    """kubernetes-sigs/dra-driver-nvidia-gpu#951: a reboot is not a restart of the plugin."""
    async with world.broker() as broker:
        answer = await prepare(broker, claim("u1", "card-a"))
        await prepare(broker, claim("u2", "card-b"))
    world.reboot()
    world.node.put("/dev/card-a", 61)
    world.card("card-a", 61)
    async with world.broker() as broker:
        await broker.restore()
        assert sorted(world.cards.calls[2:]) == ["prepare card-a", "prepare card-b"]
        assert world.files() == ["hardpoint.dev-u1.json", "hardpoint.dev-u2.json"]
        assert '"minor": 61' in world.file("u1")
        assert await prepare(broker, claim("u1", "card-a")) == answer
        assert len(world.cards.calls) == 4


async def test_a_device_that_comes_late_after_a_reboot_is_prepared_when_it_comes(
    world: World,
) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
    world.reboot()
    world.unplug("card-a")
    async with world.broker() as broker:
        await broker.restore()
        assert nodes_of(world, "u1") == ["/dev/hardpoint.dev/device-absent"]
        with pytest.raises(HoldConflict):
            await prepare(broker, claim("u2", "card-a"))
        world.card("card-a", 1)
        await broker.refresh(world.offer())
        assert nodes_of(world, "u1") == ["/dev/card-a"]
        assert world.cards.calls == ["prepare card-a", "prepare card-a"]


async def test_a_driver_that_fails_after_a_reboot_is_asked_again(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        await prepare(broker, claim("u2", "card-b"))
    world.reboot()
    world.cards.faults["prepare card-a"] = RuntimeError("firmware")
    async with world.broker() as broker:
        await broker.restore()
        assert world.files() == ["hardpoint.dev-u2.json"]
        await broker.attend()
        assert len(world.told("hold-not-renewed")) == 1  # said once, not with every try
        world.cards.faults = {}
        await broker.attend()
        assert world.files() == ["hardpoint.dev-u1.json", "hardpoint.dev-u2.json"]


@pytest.mark.field_case("B25")
async def test_a_half_done_hold_is_undone_at_start(world: World) -> None:
    world.hooks.hanging = {"prepare_device"}
    async with world.broker() as broker:
        with pytest.raises(Exception, match="still running"):
            await prepare(broker, claim("u1", "card-a"))
    world.hooks.hanging.clear()
    world.hooks.under_way.clear()
    async with world.broker() as broker:
        await broker.restore()
        assert (broker.holds(), world.cards.calls) == ((), ["unprepare card-a"])


async def test_a_release_that_was_begun_is_finished_at_start(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        world.cards.faults["unprepare"] = RuntimeError("stuck")
        with pytest.raises(HoldFailed):
            await broker.unprepare(claim("u1").key)
    world.cards.faults = {}
    async with world.broker() as broker:
        await broker.restore()
        assert (broker.holds(), world.files()) == ((), [])


async def test_an_agent_that_starts_leaves_alone_what_the_other_is_doing(world: World) -> None:
    entered, go = anyio.Event(), anyio.Event()

    class Slow:
        async def prepare_device(self, device: Device) -> None:
            entered.set()
            await go.wait()

    world.hooks.drivers["slow"] = Slow()
    world.add(Device(name="slow-0", kind="x", driver="slow"))
    async with world.broker() as old, world.broker() as new:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(prepare, old, claim("u1", "slow-0"))
            await entered.wait()
            await new.restore()
            assert [hold.state for hold in old.holds()] == [HoldState.PREPARING]
            go.set()
        await new.attend()
        assert await prepare(new, claim("u1", "slow-0"))
        assert world.files() == ["hardpoint.dev-u1.json"]


async def test_a_driver_that_has_not_answered_yet_loses_nothing(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        before = world.file("u1")
    offered = world.devices.pop("card-a")
    world.complete = False
    async with world.broker() as broker:
        await broker.restore()
        await broker.refresh(world.offer())
        assert world.file("u1") == before
        world.devices["card-a"], world.complete = offered, True
        await broker.refresh(world.offer())
        assert world.file("u1") == before


async def test_temporary_files_of_a_process_that_died_are_removed_and_no_others(
    world: World,
) -> None:
    for name in (".hardpoint.dev-u9.tmp", ".other.dev-u9.tmp", "hardpoint.dev.tmp", "x.yaml"):
        (world.cdi / name).write_text("{")
    async with world.broker() as broker:
        await broker.restore()
    assert world.files() == [".other.dev-u9.tmp", "hardpoint.dev.tmp", "x.yaml"]


# -- refresh --------------------------------------------------------------------------------------


@pytest.mark.field_case("D05")
async def test_a_refresh_follows_new_node_numbers(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        world.card("card-a", 33)
        await broker.refresh(world.offer())
        assert '"minor": 33' in world.file("u1")
        assert len(world.told("claim-refreshed")) == 1


def written(path: Path) -> tuple[int, int, int]:
    """Return what tells that a file was written: it is read, so its times are not all the same."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


async def test_a_refresh_without_a_change_writes_nothing(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        files = (world.cdi / "hardpoint.dev-u1.json", world.state / "ledger.db-wal")
        before = [written(path) for path in files]
        await broker.refresh(world.offer())
        assert [written(path) for path in files] == before
        assert world.told("claim-refreshed") == []


async def test_a_device_that_is_gone_is_refused_by_the_runtime_until_it_is_back(
    world: World,
) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        good = world.file("u1")
        world.unplug("card-a")
        await broker.refresh(world.offer())
        assert nodes_of(world, "u1") == ["/dev/hardpoint.dev/device-absent"]
        with pytest.raises(HoldFailed, match="not on the node"):
            await prepare(broker, claim("u1", "card-a"))
        world.card("card-a", 1)
        await broker.refresh(world.offer())
        assert world.file("u1") == good


async def test_a_device_that_left_the_offer_without_a_word_is_gone(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        del world.devices["card-a"]
        await broker.refresh(world.offer())
        assert nodes_of(world, "u1") == ["/dev/hardpoint.dev/device-absent"]


async def test_a_vetoed_device_is_withheld_from_its_claim_and_the_prepare_refused(
    world: World,
) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        good = world.file("u1")
        world.veto("card-a")
        with pytest.raises(HoldDenied, match="may not be used") as refused:
            await prepare(broker, claim("u1", "card-a"))
        assert refused.value.reason == "revoked"
        assert nodes_of(world, "u1") == ["/dev/hardpoint.dev/device-withheld"]
        await broker.refresh(world.offer())
        assert nodes_of(world, "u1") == ["/dev/hardpoint.dev/device-withheld"]
        world.withheld.clear()
        world.card("card-a", 1)
        await broker.refresh(world.offer())
        assert world.file("u1") == good


async def test_hardware_withheld_under_its_address_is_withheld_from_its_claim(
    world: World,
) -> None:
    async with world.broker() as broker:
        world.card("card-c", 3)
        await prepare(broker, claim("u1", "card-c"))
        del world.devices["card-c"]
        world.withheld.append(Withheld("card-c", "disk-in-use", "it is mounted"))
        await broker.refresh(world.offer())
        assert nodes_of(world, "u1") == ["/dev/hardpoint.dev/device-withheld"]


async def test_numbers_that_now_name_another_device_are_not_left_in_the_file(
    world: World,
) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        world.node.put("/dev/card-a", 99)  # the scan has not seen it yet
        await broker.refresh(world.offer())
        assert nodes_of(world, "u1") == ["/dev/hardpoint.dev/device-absent"]
        world.node.put("/dev/card-a", 1)
        await broker.attend()
        await broker.refresh(world.offer())
        assert nodes_of(world, "u1") == ["/dev/card-a"]


async def test_a_quarantine_for_one_claim_leaves_the_others_of_a_shared_device(
    world: World,
) -> None:
    world.card("shared-0", 9, shareable=True)
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "shared-0"))
        await prepare(broker, claim("u2", "shared-0"))
        good = world.file("u2")
        del world.devices["shared-0"]
        world.withheld.append(Withheld("shared-0", "quarantined", "stuck"))
        await broker.refresh(world.offer())
        assert world.file("u2") == good


async def test_one_claim_that_cannot_be_refreshed_holds_up_no_other(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        await prepare(broker, claim("u2", "card-b"))
        world.cards.faults["deliver"] = RuntimeError("bug")
        await broker.refresh(world.offer())
        world.cards.faults = {}
        world.card("card-b", 44)
        (world.cdi / "hardpoint.dev-u1.json").write_text("{torn")
        await broker.refresh(world.offer())
        assert '"minor": 44' in world.file("u2")
        assert nodes_of(world, "u1") == ["/dev/card-a"]


async def test_a_node_not_there_for_a_moment_is_not_a_fault(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        world.cards.faults["deliver"] = TryAgain("renumbering")
        await broker.refresh(world.offer())
        assert nodes_of(world, "u1") == ["/dev/hardpoint.dev/device-absent"]
        assert world.told("hold-not-renewed") == []


async def test_a_node_that_comes_late_is_delivered_without_a_new_offer(world: World) -> None:
    """sysfs has a device before /dev has its node (drivers/base/core.c, device_add), and a scan
    that looked in between sees no difference afterwards."""
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        late = world.node.nodes.pop("/dev/card-a")
        await broker.refresh(world.offer())
        assert nodes_of(world, "u1") == ["/dev/hardpoint.dev/device-absent"]
        await broker.attend()
        assert nodes_of(world, "u1") == ["/dev/hardpoint.dev/device-absent"]

        world.node.nodes["/dev/card-a"] = late
        await broker.attend()

        assert nodes_of(world, "u1") == ["/dev/card-a"]
        assert world.told("hold-not-renewed") == []


# -- CDI files without holds, holds without a ledger ----------------------------------------------


def lose_ledger(world: World) -> None:
    for file in world.state.glob("ledger.db*"):
        file.unlink()


@pytest.mark.field_case("C02")
async def test_a_lost_ledger_is_found_again_in_the_cdi_files(world: World) -> None:
    """kubernetes-sigs/dra-example-driver#248: the kubelet does not prepare again by itself."""
    async with world.broker() as broker:
        answer = await prepare(broker, claim("u1", "card-a"))
    lose_ledger(world)
    async with world.broker() as broker:
        await broker.restore()
        with pytest.raises(HoldConflict, match="claim u1"):
            await prepare(broker, claim("u2", "card-a"))
        await prepare(broker, claim("u3", "card-b"))
        assert world.files() == ["hardpoint.dev-u1.json", "hardpoint.dev-u3.json"]
        assert await prepare(broker, claim("u1", "card-a")) == answer
        await broker.unprepare(claim("u1").key)
        await prepare(broker, claim("u2", "card-a"))


async def test_a_claim_found_again_may_end_without_ever_being_prepared_anew(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
    lose_ledger(world)
    async with world.broker() as broker:
        await broker.restore()
        await broker.unprepare(claim("u1").key)
        assert (broker.holds(), world.files(), list((world.root / "hw").iterdir())) == ((), [], [])


@pytest.mark.field_case("C01", "C02")
async def test_a_damaged_ledger_is_kept_aside_and_devices_in_use_stay_held(world: World) -> None:
    """kubernetes-sigs/dra-driver-nvidia-gpu#1100: a bad file must not stop the node."""
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
    (world.state / "ledger.db").write_bytes(b"\0" * 8192)
    async with world.broker() as broker:
        await broker.restore()
        assert len(world.told("ledger-damaged")) == 1
        assert len(list(world.state.glob("ledger.db.damaged-*"))) == 1
        with pytest.raises(HoldConflict):
            await prepare(broker, claim("u2", "card-a"))
    async with world.broker() as broker:
        await broker.restore()
        assert len(world.told("ledger-damaged")) == 1  # the new one is good
        assert [hold.device.name for hold in broker.holds()] == ["card-a"]


@pytest.mark.parametrize("now", ["card-b", ""])
async def test_a_device_found_again_that_its_claim_does_not_have_any_more_is_undone(
    world: World, now: str
) -> None:
    """A claim that was allocated anew while nobody was there to end it."""
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
    lose_ledger(world)
    async with world.broker() as broker:
        await broker.restore()

        await prepare(broker, claim("u1", *filter(None, [now])))

        assert [hold.device.name for hold in broker.holds()] == list(filter(None, [now]))
        assert "unprepare card-a" in world.cards.calls
        assert not world.files() or "card-a" not in world.file("u1")
        await prepare(broker, claim("u2", "card-a"))


async def test_a_device_found_again_that_its_claim_does_not_have_any_more_is_scrubbed(
    world: World,
) -> None:
    world.cards.releases = True
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
    lose_ledger(world)
    async with world.broker() as broker:
        await broker.restore()

        await prepare(broker, claim("u1", "card-b"))

        with pytest.raises(HoldConflict, match="the release after"):
            await prepare(broker, claim("u2", "card-a"))
        await broker.attend()
        assert world.cards.calls[-1] == "release card-a"
        await prepare(broker, claim("u2", "card-a"))


async def test_a_claims_devices_are_found_again_together_or_not_at_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held alone is in the claim's file when it is written, and the rest would be free."""
    async with world.broker() as broker:
        answers = await prepare(broker, claim("u1", "card-a", "card-b"))
        good = world.file("u1")
    lose_ledger(world)
    opened: list[str] = []

    def full(db: object, key: object, want: Want, *more: Any) -> int:
        opened.append(want.device.name)
        if len(opened) == 2:
            raise LedgerUnwritable("ledger.db", "full")
        return open_hold(db, key, want, *more)  # type: ignore[arg-type]

    monkeypatch.setattr("hardpoint._core.ledger.ledger.open_hold", full)
    async with world.broker() as broker:
        await broker.restore()
        assert (opened, broker.holds(), world.file("u1")) == (["card-a", "card-b"], (), good)

        await broker.attend()

        for device in ("card-a", "card-b"):
            with pytest.raises(HoldConflict, match="claim u1"):
                await prepare(broker, claim("u2", device))
        assert await prepare(broker, claim("u1", "card-a", "card-b")) == answers


async def test_a_device_that_nobody_publishes_any_more_is_held_by_its_nodes(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
    lose_ledger(world)
    device = world.devices.pop("card-a").device
    async with world.broker() as broker:
        await broker.restore()
        world.add(Device(name="other", kind="x", nodes=device.nodes, driver="plain"))
        with pytest.raises(HoldConflict, match=f"char:{MAJOR}:1"):
            await prepare(broker, claim("u2", "other"))


async def test_holds_found_again_that_share_an_unknown_node_are_both_kept(world: World) -> None:
    for name in ("pad-a", "pad-b"):
        node = DeviceNode(path="/dev/uhid", major=MAJOR, minor=90, shared=True)
        world.add(Device(name=name, kind="x", nodes=(node,), driver="plain"))
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "pad-a"))
        await prepare(broker, claim("u2", "pad-b"))
    lose_ledger(world)
    world.devices.clear()
    async with world.broker() as broker:
        await broker.restore()
        assert {hold.claim.uid for hold in broker.holds()} == {"u1", "u2"}


async def test_a_device_found_again_before_its_driver_answered_is_delivered_once_it_has(
    world: World,
) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        good = world.file("u1")
    lose_ledger(world)
    offered, world.complete = world.devices.pop("card-a"), False
    async with world.broker() as broker:
        await broker.restore()
        assert world.file("u1") == good
        world.devices["card-a"], world.complete = offered, True
        await broker.refresh(world.offer())
        assert world.file("u1") == good


async def test_the_longest_name_that_fits_is_the_device_that_a_file_means(world: World) -> None:
    world.card("card-a-1", 7)
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a-1"))
    lose_ledger(world)
    async with world.broker() as broker:
        await broker.restore()
        assert [hold.device.name for hold in broker.holds()] == ["card-a-1"]
        await prepare(broker, claim("u2", "card-a"))


async def test_a_corrupt_file_of_ours_is_told_and_the_others_are_found(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        await prepare(broker, claim("u2", "card-b"))
    lose_ledger(world)
    (world.cdi / "hardpoint.dev-u1.json").write_text('{"cdiVersion": "0.5.0"')
    async with world.broker() as broker:
        await broker.restore()
        assert [hold.claim.uid for hold in broker.holds()] == ["u2"]
        (event,) = world.told("cdi-unreadable")
        assert "hardpoint.dev-u1.json" in event.message
        assert "hardpoint.dev-u1.json" in world.files()


@pytest.mark.field_case("B17")
async def test_an_orphan_is_removed_after_a_minute_and_strangers_files_never(
    world: World,
) -> None:
    """google/dranet#232: what is younger than this process is no orphan."""
    async with world.broker() as broker:
        await broker.restore()
        await prepare(broker, claim("u1", "card-a"))
        content = world.file("u1")
    for name in ("hardpoint.dev-u2.json", "hardpoint.dev-u3.json"):
        (world.cdi / name).write_text(content.replace("u1-", f"{name[14:16]}-"))
    (world.cdi / "hardpoint.dev-gpus.json").write_text(content.replace("u1-", "all-"))
    (world.cdi / "nvidia.com-u2.json").write_text(content)
    for name in world.files():
        os.utime(world.cdi / name, (world.now - 500, world.now - 500))
    os.utime(world.cdi / "hardpoint.dev-u3.json", (world.now + 1, world.now + 1))
    async with world.broker() as broker:
        await broker.restore()
        await broker.attend()
        assert "hardpoint.dev-u2.json" in world.files()
        world.now += 61
        await broker.attend()
        assert world.files() == [
            "hardpoint.dev-gpus.json",
            "hardpoint.dev-u1.json",
            "hardpoint.dev-u3.json",
            "nvidia.com-u2.json",
        ]


async def test_tend_does_what_is_due_and_ends_when_it_is_cancelled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hardpoint._core.claims.upkeep._PAUSE", 600.0)
    world.cards.releases = True
    async with world.broker() as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(broker.tend)
        await prepare(broker, claim("u1", "card-a"))
        await broker.unprepare(claim("u1").key)
        with anyio.fail_after(10):
            while broker.quarantined():  # noqa: ASYNC110 - the ledger sets no event
                await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    assert world.cards.calls[-1] == "release card-a"


@pytest.mark.field_case("B18")
async def test_files_that_somebody_removed_are_written_again_and_it_is_said_once(
    world: World,
) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        good = world.file("u1")
        for there in (False, True):
            shutil.rmtree(world.cdi)
            if there:
                world.cdi.mkdir()
            await broker.attend()
            assert world.file("u1") == good
        assert len(world.told("cdi-missing")) == 2

        shutil.rmtree(world.cdi)
        world.cdi.write_text("not a directory")
        for _ in range(3):
            await broker.attend()
        assert len(world.told("upkeep-failed")) == 1
        world.cdi.unlink()
        await broker.attend()
        assert world.file("u1") == good


async def test_a_claim_ends_though_the_cdi_directory_is_a_file(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        shutil.rmtree(world.cdi)
        world.cdi.write_text("not a directory")

        await broker.unprepare(claim("u1").key)
        await broker.unprepare(claim("unknown").key)

        assert not broker.holds()


async def test_a_file_nested_without_end_does_not_keep_a_lost_ledger_from_being_found_again(
    world: World,
) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
    (world.state / "ledger.db").unlink()
    (world.cdi / "hardpoint.dev-u2.json").write_text("[" * 100_000)

    async with world.broker() as broker:
        await broker.restore()

        assert [hold.claim.uid for hold in broker.holds()] == ["u1"]
        assert "u2.json" in world.told("cdi-unreadable")[0].message


async def test_a_refresh_that_fails_twice_is_tried_a_third_time(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        world.card("card-a", 7)
        good, world.cdi = world.cdi, world.root / "moved"
        good.rename(world.cdi)
        good.write_text("not a directory")
        await broker.refresh(world.offer())
        await broker.attend()
        await broker.attend()
        good.unlink()
        world.cdi.rename(good)
        world.cdi = good

        await broker.attend()

        assert '"minor": 7' in world.file("u1")


@pytest.mark.field_case("I05")
@pytest.mark.parametrize("jump", [-10 * 365 * 86400.0, 3600.0])
async def test_a_clock_that_jumps_does_not_stop_what_is_retried(world: World, jump: float) -> None:
    world.cards.releases = True
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        world.cards.faults["release"] = OSError("not yet")
        await broker.unprepare(claim("u1").key)
        await broker.attend()
        assert broker.quarantined()

        world.cards.faults.clear()
        world.now += jump
        await broker.attend()

        assert not broker.quarantined()


# -- what cannot be read or written now -----------------------------------------------------------


@contextmanager
def _loop_in_place_of(world: World) -> Iterator[None]:
    """A directory that is there and cannot be read (ELOOP), as with EIO or a mount that is gone."""
    kept = world.cdi.rename(world.root / "kept")
    world.cdi.symlink_to(world.cdi)
    try:
        yield
    finally:
        world.cdi.unlink()
        kept.rename(world.cdi)


@contextmanager
def _full_disk() -> Iterator[None]:
    """The size limit makes write(2) fail as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.field_case("C01", "C10")
async def test_a_cdi_directory_that_cannot_be_read_ends_nothing_but_what_needs_it(
    world: World,
) -> None:
    async with world.broker() as broker:
        await broker.restore()
        answer = await prepare(broker, claim("u1", "card-a"))
    with _loop_in_place_of(world):
        async with world.broker() as broker:
            await broker.restore()
            world.now += 61
            for _ in range(3):
                await broker.attend()
            said = [event.message for event in world.told("upkeep-failed")]
            assert len(said) == len(set(said)) == 3  # to look, to tidy up, to write u1's file
            with pytest.raises(HoldFailed, match="CDI file cannot be written"):
                await prepare(broker, claim("u2", "card-b"))
    async with world.broker() as broker:
        await broker.restore()
        assert await prepare(broker, claim("u1", "card-a")) == answer


@pytest.mark.field_case("C02")
async def test_nothing_new_is_held_until_what_a_lost_ledger_held_is_known(world: World) -> None:
    async with world.broker() as broker:
        answer = await prepare(broker, claim("u1", "card-a"))
    lose_ledger(world)
    async with world.broker() as broker:
        with _loop_in_place_of(world):
            await broker.restore()
            await broker.attend()
            for device in ("card-a", "card-b"):
                with pytest.raises(HoldFailed, match="is not known yet") as refused:
                    await prepare(broker, claim("u2", device))
                assert refused.value.retry
            await broker.unprepare(claim("unknown").key)
        await broker.attend()

        with pytest.raises(HoldConflict, match="claim u1"):
            await prepare(broker, claim("u2", "card-a"))
        await prepare(broker, claim("u2", "card-b"))
        assert await prepare(broker, claim("u1", "card-a")) == answer


@pytest.mark.field_case("C06", "C10")
async def test_a_disk_that_is_full_after_a_reboot_delays_holds_and_ends_nothing(
    world: World,
) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
    world.reboot()
    world.card("card-a", 2)  # what was the other card's number
    world.card("card-b", 1)
    async with world.broker() as broker:
        with _full_disk():
            await broker.restore()
            await broker.attend()
            with pytest.raises(HoldFailed, match="is not known yet"):
                await prepare(broker, claim("u2", "card-b"))
        await broker.attend()

        assert nodes_of(world, "u1") == ["/dev/card-a"]
        assert '"minor": 2' in world.file("u1")
        await prepare(broker, claim("u2", "card-b"))
