from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

import anyio
import pytest
from broker_world import MAJOR, World, claim, prepare, reading

from hardpoint.errors import (
    HoldBusy,
    HoldConflict,
    HoldDenied,
    HoldError,
    HoldFailed,
    HoldOvertaken,
    KubeUnreachable,
    Refuse,
    TryAgain,
    WrongClaim,
)
from hardpoint.model import (
    Addition,
    Allotment,
    Claim,
    Delivery,
    Device,
    DeviceNode,
    Domain,
    Hold,
    HoldState,
    Verdict,
    exclusive,
    shared,
)
from hardpoint.platform import Platform, Suspected


def devices_of(text: str) -> dict[str, Any]:
    return {entry["name"]: entry["containerEdits"] for entry in json.loads(text)["devices"]}


async def test_a_claim_receives_its_device_by_a_name_that_its_own_file_resolves(
    world: World,
) -> None:
    async with world.broker() as broker:
        (answer,) = await prepare(broker, claim("u1", "card-a"))

        assert (answer.request, answer.pool, answer.device) == ("r0", "node-1", "card-a")
        assert answer.cdi_ids == ("hardpoint.dev/device=u1-card-a",)
        assert devices_of(world.file("u1")) == {
            "u1-card-a": {
                "env": ["IMAGE=plain"],
                "deviceNodes": [
                    {
                        "path": "/dev/card-a",
                        "type": "c",
                        "major": MAJOR,
                        "minor": 1,
                        "fileMode": 0o660,
                        "permissions": "rw",
                        "gid": 44,
                    }
                ],
                "additionalGids": [44],
            }
        }
        (hold,) = broker.holds()
        assert (hold.state, str(hold.claim)) == (HoldState.HELD, "ns/claim-u1")


@pytest.mark.field_case("B11")
async def test_a_second_prepare_answers_the_same_and_touches_nothing(world: World) -> None:
    async with world.broker() as broker:
        first = await prepare(broker, claim("u1", "card-a"))
        before = (world.cdi / "hardpoint.dev-u1.json").stat().st_mtime_ns
        again = await broker.prepare(claim("u1").key, reading(KubeUnreachable("down")))

        assert again == first
        assert world.cards.calls == ["prepare card-a"]
        assert (world.cdi / "hardpoint.dev-u1.json").stat().st_mtime_ns == before


@pytest.mark.field_case("B18", "C11")
async def test_a_second_prepare_puts_a_lost_or_damaged_file_back(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        good = world.file("u1")
        for damage in ("", "\0" * 400, good + "}", good[:50]):
            (world.cdi / "hardpoint.dev-u1.json").write_text(damage)
            await prepare(broker, claim("u1", "card-a"))
            assert world.file("u1") == good
        (world.cdi / "hardpoint.dev-u1.json").unlink()
        await prepare(broker, claim("u1", "card-a"))
        assert world.file("u1") == good


async def test_prepare_of_a_device_that_another_claim_holds_names_the_holder(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("old", "card-a", name="winner"))
        with pytest.raises(HoldConflict, match="ns/winner holds"):
            await prepare(broker, claim("new", "card-a"))

        assert world.files() == ["hardpoint.dev-old.json"]
        assert world.cards.calls == ["prepare card-a"]


@pytest.mark.field_case("B09")
async def test_the_old_claim_going_after_the_new_one_came_leaves_the_new_one_whole(
    world: World,
) -> None:
    """kubernetes-sigs/dra-driver-nvidia-gpu#641: prepare(new) arrives before unprepare(old)."""
    async with world.broker() as broker:
        await prepare(broker, claim("old", "card-a"))
        with pytest.raises(HoldConflict):
            await prepare(broker, claim("new", "card-a"))
        await broker.unprepare(claim("old").key)
        await prepare(broker, claim("new", "card-a"))
        await broker.unprepare(claim("old").key)

        assert [str(hold.claim) for hold in broker.holds()] == ["ns/claim-new"]
        assert (world.root / "hw" / "card-a").read_text() == "new"


async def test_a_claim_gets_all_of_its_devices_or_none(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("old", "card-b"))
        with pytest.raises(HoldConflict):
            await prepare(broker, claim("new", "card-a", "card-b"))
        await prepare(broker, claim("other", "card-a"))

        assert world.files() == ["hardpoint.dev-old.json", "hardpoint.dev-other.json"]


async def test_a_device_of_which_another_claim_has_a_part_is_not_even_prepared(
    world: World,
) -> None:
    rival = world.card("rival", 3)
    world.add(replace(rival, parts=(exclusive("slot:card-a"),)))
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        with pytest.raises(HoldConflict, match="slot:card-a"):
            await prepare(broker, claim("u2", "rival"))

        assert world.cards.calls == ["prepare card-a"]


async def test_two_devices_that_deliver_one_node_are_not_held_at_once(world: World) -> None:
    node = DeviceNode(path="/dev/hidraw0", major=MAJOR, minor=9)
    world.add(Device(name="left", kind="x", nodes=(node,), driver="plain"))
    world.add(Device(name="right", kind="x", nodes=(node,), driver="plain"))
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "left"))
        with pytest.raises(HoldConflict, match=f"char:{MAJOR}:9"):
            await prepare(broker, claim("u2", "right"))


async def test_a_node_known_by_path_alone_is_a_part_all_the_same(world: World) -> None:
    world.node.put("/dev/late", 77)
    bare = DeviceNode(path="/dev/late")
    for name in ("left", "right"):
        world.devices[name] = replace(
            world.devices["card-a"],
            device=Device(name=name, kind="x", nodes=(bare,), driver="plain"),
        )
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "left"))
        with pytest.raises(HoldConflict, match=f"char:{MAJOR}:77"):
            await prepare(broker, claim("u2", "right"))


async def test_a_device_that_names_no_part_is_still_held_by_one_claim(world: World) -> None:
    world.add(Device(name="socket", kind="x", driver="plain"))
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "socket"))
        with pytest.raises(HoldConflict):
            await prepare(broker, claim("u2", "socket"))
        assert devices_of(world.file("u1"))["u1-socket"]["env"] == [
            "HARDPOINT_DEVICE_U1_SOCKET=u1-socket"
        ]


async def test_a_shareable_device_is_held_by_several_claims(world: World) -> None:
    world.add(
        Device(
            name="render",
            kind="drm.render",
            shareable=True,
            nodes=(DeviceNode(path="/dev/dri/renderD128", major=226, minor=128),),
            parts=(shared("pci:1"),),
            driver="plain",
        )
    )
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "render"))
        await prepare(broker, claim("u2", "render"))
        await broker.unprepare(claim("u1").key)

        assert world.files() == ["hardpoint.dev-u2.json"]
        assert [hold.claim.uid for hold in broker.holds()] == ["u2"]


async def test_shares_of_one_device_in_one_claim_keep_their_ids(world: World) -> None:
    world.add(Device(name="nic", kind="net", shareable=True, driver="plain"))
    one, two = (
        Allotment(request="net", device="nic", pool="p", share_id=share) for share in ("s1", "s2")
    )
    async with world.broker() as broker:
        answers = await prepare(broker, Claim(key=claim("u1").key, allotments=(one, two)))

        assert [(a.share_id, a.cdi_ids) for a in answers] == [
            ("s1", ("hardpoint.dev/device=u1-nic-s1",)),
            ("s2", ("hardpoint.dev/device=u1-nic-s2",)),
        ]
        assert [hold.share_id for hold in broker.holds()] == ["s1", "s2"]


async def test_two_requests_of_one_claim_for_one_device_get_names_of_their_own(
    world: World,
) -> None:
    async with world.broker() as broker:
        answers = await prepare(broker, claim("u1", "card-a", "card-a"))
        assert [a.cdi_ids[0].partition("=")[2] for a in answers] == [
            "u1-card-a:r0",
            "u1-card-a:r1",
        ]
        assert set(devices_of(world.file("u1"))) == {"u1-card-a:r0", "u1-card-a:r1"}
        await broker.unprepare(claim("u1").key)
        assert (broker.holds(), world.files()) == ((), [])


async def test_rivals_may_be_held_by_one_claim_but_not_by_two(world: World) -> None:
    for name in ("whole", "part"):
        world.add(Device(name=name, kind="x", parts=(exclusive("usb:1-2"),), driver="plain"))
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "whole", "part"))
        with pytest.raises(HoldConflict):
            await prepare(broker, claim("u2", "part"))


async def test_admin_access_is_refused_unless_a_policy_admits_it(world: World) -> None:
    class Admits:
        def admit_claim(self, claim: Claim) -> Verdict | None:
            return Verdict.allow() if claim.key.name == "probe" else None

    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-b"))
        admin = claim("u2", "card-b", name="probe", admin_access=True)
        with pytest.raises(HoldDenied, match="admin access") as refused:
            await prepare(broker, admin)
        assert refused.value.reason == "admin-access"

        world.hooks.policies["admits"] = Admits()
        await prepare(broker, admin)
        assert {hold.claim.uid for hold in broker.holds()} == {"u1", "u2"}


async def test_admin_access_changes_nothing_under_the_claim_that_has_the_device(
    world: World,
) -> None:
    class Admits:
        def admit_claim(self) -> Verdict:
            return Verdict.allow()

    world.hooks.policies["admits"] = Admits()
    world.cards.releases = True
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-b"))
        admin = claim("u2", "card-b", admin_access=True)
        (answer,) = await prepare(broker, admin)
        assert answer.device == "card-b"
        assert "/dev/card-b" in world.file("u2")

        await broker.unprepare(admin.key)
        await broker.attend()

        assert world.cards.calls == ["prepare card-b"]
        assert not broker.quarantined()


async def test_any_denial_wins_and_its_reason_is_told(world: World) -> None:
    class Yes:
        def admit_claim(self, claim: Claim) -> Verdict:
            return Verdict.allow()

    class No:
        def admit_claim(self, claim: Claim, holds: tuple[Hold, ...]) -> Verdict:
            return Verdict.deny("this namespace may not have cards")

    class Indifferent:
        def admit_claim(self, claim: Claim) -> None:
            return None

    world.hooks.policies = {"indifferent": Indifferent(), "yes": Yes()}
    async with world.broker() as broker:
        await prepare(broker, claim("u2", "card-b"))
        await broker.unprepare(claim("u2").key)
        world.cards.calls.clear()
        world.hooks.policies |= {"no": No()}
        with pytest.raises(HoldDenied, match="this namespace may not have cards"):
            await prepare(broker, claim("u1", "card-a"))
        assert (broker.holds(), world.cards.calls, world.files()) == ((), [], [])


async def test_a_policy_that_fails_refuses_the_claim(world: World) -> None:
    class Broken:
        def admit_claim(self, claim: Claim) -> Verdict:
            raise RuntimeError("lost")

    world.hooks.policies["broken"] = Broken()
    async with world.broker() as broker:
        with pytest.raises(HoldFailed, match="lost"):
            await prepare(broker, claim("u1", "card-a"))
        assert broker.holds() == ()


@pytest.mark.field_case("A09")
async def test_a_device_is_judged_by_the_offer_of_this_moment(world: World) -> None:
    async with world.broker() as broker:
        with pytest.raises(HoldDenied, match="not offered"):
            await prepare(broker, claim("u1", "no-such"))
        with pytest.raises(HoldDenied, match="not offered"):
            await prepare(broker, claim("u1", "card-a", driver="gpu.hardpoint.dev"))
        world.devices["card-a"] = replace(world.devices["card-a"], claimable=False)
        with pytest.raises(HoldDenied, match=r"takes no new claims now \(its driver does not"):
            await prepare(broker, claim("u1", "card-a"))
        world.veto("card-b")
        with pytest.raises(HoldDenied, match="another plugin offers it"):
            await prepare(broker, claim("u1", "card-b"))


async def test_parameters_are_typed_and_a_wrong_key_is_named(world: World) -> None:
    block = {"apiVersion": "hardpoint.dev/v1", "kind": "CardParameters"}
    async with world.broker() as broker:
        good = claim("u1", "card-a", parameters=({**block, "image": "fft"},))
        await prepare(broker, good)
        assert devices_of(world.file("u1"))["u1-card-a"]["env"] == ["IMAGE=fft"]
        with pytest.raises(HoldDenied, match="unknown key imagee") as refused:
            await prepare(broker, claim("u2", "card-b", parameters=({**block, "imagee": "fft"},)))
        assert refused.value.reason == "bad-parameters"


async def test_a_claim_of_another_uid_is_refused(world: World) -> None:
    async with world.broker() as broker:
        with pytest.raises(WrongClaim):
            await broker.prepare(claim("u1").key, reading(claim("u2", "card-a")))
        assert broker.holds() == ()


async def test_a_claim_that_cannot_be_read_is_not_prepared(world: World) -> None:
    async with world.broker() as broker:
        with pytest.raises(KubeUnreachable):
            await broker.prepare(claim("u1").key, reading(KubeUnreachable("down")))
        await prepare(broker, claim("u1", "card-a"))


async def test_a_claim_with_none_of_our_devices_is_prepared_with_nothing(world: World) -> None:
    async with world.broker() as broker:
        assert await prepare(broker, claim("u1")) == ()
        assert (world.files(), broker.holds()) == ([], ())


@pytest.mark.field_case("D10")
async def test_two_drivers_of_one_vendor_share_a_claims_file(world: World) -> None:
    gpu = Domain("gpu.hardpoint.dev", "hardpoint.dev", "hardpoint.dev")
    world.add(Device(name="gpu-0", kind="gpu", driver="plain"), gpu)
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        await prepare(broker, claim("u1", "gpu-0", driver="gpu.hardpoint.dev"))
        assert set(devices_of(world.file("u1"))) == {"u1-card-a", "u1-gpu-0"}
        await broker.unprepare(claim("u1").key)
        assert set(devices_of(world.file("u1"))) == {"u1-gpu-0"}


async def test_other_peoples_cdi_names_are_passed_on(world: World) -> None:
    class Toolkit:
        def deliver_device(self, device: Device) -> Delivery:
            return Delivery(cdi_devices=("nvidia.com/gpu=GPU-1",))

    world.hooks.drivers["toolkit"] = Toolkit()
    world.add(Device(name="gpu-0", kind="gpu", driver="toolkit"))
    async with world.broker() as broker:
        (answer,) = await prepare(broker, claim("u1", "gpu-0"))
        assert answer.cdi_ids == ("hardpoint.dev/device=u1-gpu-0", "nvidia.com/gpu=GPU-1")


# -- failures on the way --------------------------------------------------------------------------


@pytest.mark.field_case("B21")
async def test_a_node_that_is_not_there_yet_is_tried_again_and_nothing_is_left(
    world: World,
) -> None:
    """kubernetes-sigs/dra-driver-nvidia-gpu#1380: an incomplete spec must not be kept."""
    del world.node.nodes["/dev/card-a"]
    async with world.broker() as broker:
        with pytest.raises(HoldFailed, match="/dev/card-a is not there yet") as failed:
            await prepare(broker, claim("u1", "card-a"))
        assert (failed.value.reason, failed.value.retry) == ("try-again", True)
        assert (world.files(), broker.holds(), list((world.root / "hw").iterdir())) == ([], (), [])
        world.node.put("/dev/card-a", 1)
        await prepare(broker, claim("u1", "card-a"))


async def test_a_driver_that_prepares_nothing_is_not_asked_to_undo_what_it_could_not_deliver(
    world: World,
) -> None:
    undone: list[str] = []

    class Later:
        def deliver_device(self, device: Device) -> Delivery:
            raise TryAgain("it is not there yet")

        def unprepare_device(self, hold: Hold) -> None:
            undone.append(hold.device.name)

    world.hooks.drivers["later"] = Later()
    world.add(Device(name="later-0", kind="x", driver="later"))
    async with world.broker() as broker:
        with pytest.raises(HoldFailed, match="it is not there yet") as failed:
            await prepare(broker, claim("u1", "later-0"))
        assert (failed.value.reason, undone, broker.holds()) == ("try-again", [], ())


@pytest.mark.parametrize(
    ("vouched", "uses", "given"),
    [
        (True, {"/dev/sdb": Suspected("a signature")}, True),
        (False, {"/dev/sdb": Suspected("a signature")}, False),
        (True, {"/dev/sdb": "it is mounted at /"}, False),
        (True, {"/dev/sdb": Suspected("a signature"), "/dev/sdb1": "it is mounted at /"}, False),
    ],
)
async def test_what_the_machine_uses_by_now_is_given_to_nobody_whatever_was_offered(
    world: World, monkeypatch: pytest.MonkeyPatch, vouched: bool, uses: dict[str, str], given: bool
) -> None:
    """A rule that names a disk knows better than a signature on it, and than nothing else."""
    monkeypatch.setattr(Platform, "reason", lambda self, node: uses.get(node.path))
    nodes = tuple(
        DeviceNode(path=path, major=MAJOR, minor=minor)
        for minor, path in enumerate(("/dev/sdb", "/dev/sdb1"))
    )
    world.add(Device(name="disk", kind="x", nodes=nodes, driver="plain"))
    world.devices["disk"] = replace(world.devices["disk"], vouched=vouched)
    async with world.broker() as broker:
        if given:
            assert await prepare(broker, claim("u1", "disk"))
            return
        with pytest.raises(HoldDenied, match="device disk cannot be given") as refused:
            await prepare(broker, claim("u1", "disk"))
        assert (refused.value.reason, broker.holds()) == ("platform", ())


async def test_a_path_that_leads_to_another_device_is_not_delivered(world: World) -> None:
    world.node.put("/dev/card-a", 200)
    async with world.broker() as broker:
        with pytest.raises(HoldFailed, match="being renumbered"):
            await prepare(broker, claim("u1", "card-a"))


async def test_a_node_that_may_come_later_is_given_by_its_numbers(world: World) -> None:
    late = DeviceNode(path="/dev/input/event5", major=13, minor=69, absent_ok=True, shared=True)
    device = Device(name="pad", kind="x", nodes=(late,), driver="plain")
    world.add(device)
    del world.node.nodes["/dev/input/event5"]
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "pad"))
        (node,) = devices_of(world.file("u1"))["u1-pad"]["deviceNodes"]
        assert (node["major"], node["minor"], node["fileMode"]) == (13, 69, 0o660)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (RuntimeError("ioctl"), "plugin"),
        (TryAgain("warming up"), "try-again"),
        (Refuse("image too large", reason="image"), "image"),
    ],
)
async def test_what_a_failed_prepare_did_is_undone_in_reverse(
    world: World, fault: Exception, reason: str
) -> None:
    world.cards.faults["prepare card-b"] = fault
    async with world.broker() as broker:
        with pytest.raises(HoldError) as failed:
            await prepare(broker, claim("u1", "card-a", "card-b"))
        assert failed.value.reason == reason
        assert world.cards.calls == [
            "prepare card-a",
            "prepare card-b",
            "unprepare card-b",
            "unprepare card-a",
        ]
        assert (world.files(), broker.holds(), list((world.root / "hw").iterdir())) == ([], (), [])


async def test_what_a_driver_remembered_is_there_when_its_failed_prepare_is_undone(
    world: World,
) -> None:
    seen: list[object] = []

    class Fpga:
        def prepare_device(self, hold: Hold) -> None:
            hold.remember(image="golden")
            raise RuntimeError("load failed")

        def unprepare_device(self, hold: Hold) -> None:
            seen.append(hold.remembered["image"])

    world.hooks.drivers["fpga"] = Fpga()
    world.add(Device(name="fpga-0", kind="x", driver="fpga"))
    async with world.broker() as broker:
        with pytest.raises(HoldFailed, match="load failed"):
            await prepare(broker, claim("u1", "fpga-0"))
        assert (seen, broker.holds()) == (["golden"], ())


async def test_a_hold_that_could_not_be_undone_goes_on_at_the_next_call(world: World) -> None:
    world.cards.faults = {"prepare": RuntimeError("a"), "unprepare": RuntimeError("b")}
    async with world.broker() as broker:
        with pytest.raises(HoldFailed, match="a"):
            await prepare(broker, claim("u1", "card-a"))
        with pytest.raises(HoldConflict):
            await prepare(broker, claim("u2", "card-a"))
        (event,) = world.told("undo-failed")
        assert event.warning
        world.cards.faults = {}
        await prepare(broker, claim("u1", "card-a"))
        assert [hold.state for hold in broker.holds()] == [HoldState.HELD]


async def test_a_late_driver_keeps_the_hold_and_the_next_call_joins_it(world: World) -> None:
    world.hooks.hanging = {"prepare_device"}
    async with world.broker() as broker:
        with pytest.raises(HoldBusy, match="prepare_device"):
            await prepare(broker, claim("u1", "card-a"))
        assert [hold.state for hold in broker.holds()] == [HoldState.PREPARING]
        with pytest.raises(HoldConflict):
            await prepare(broker, claim("u2", "card-a"))
        world.hooks.hanging = set()
        await prepare(broker, claim("u1", "card-a"))
        assert [hold.state for hold in broker.holds()] == [HoldState.HELD]
        assert world.cards.calls == []  # the call that hung was the only one


@pytest.mark.parametrize("error", [HoldDenied, HoldConflict])
async def test_what_is_half_done_is_undone_when_its_device_is_not_to_be_had_any_more(
    world: World, error: type[HoldError]
) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u2", "card-b"))
        world.hooks.hanging = {"prepare_device"}
        with pytest.raises(HoldBusy):
            await prepare(broker, claim("u1", "card-a"))
        world.hooks.hanging = set()
        world.hooks.under_way.clear()
        world.cards.calls.clear()
        if error is HoldDenied:
            world.veto("card-a")
        else:
            rival = replace(world.devices["card-a"].device, parts=(exclusive("slot:card-b"),))
            world.devices["card-a"] = replace(
                world.devices["card-a"], device=rival, claimable=False
            )

        with pytest.raises(error):
            await prepare(broker, claim("u1", "card-a"))

        assert [hold.claim.uid for hold in broker.holds()] == ["u2"]
        assert world.cards.calls == ["unprepare card-a"]


async def test_unprepare_does_not_undo_under_a_driver_that_still_prepares(world: World) -> None:
    world.hooks.hanging = {"prepare_device"}
    async with world.broker() as broker:
        with pytest.raises(HoldBusy):
            await prepare(broker, claim("u1", "card-a"))
        with pytest.raises(HoldBusy):
            await broker.unprepare(claim("u1").key)
        assert world.cards.calls == []
        world.hooks.hanging = set()
        await broker.unprepare(claim("u1").key)
        assert (world.cards.calls, broker.holds()) == (["unprepare card-a"], ())


async def test_a_claim_whose_driver_still_runs_stays_locked_against_another_agent(
    world: World,
) -> None:
    world.hooks.hanging, world.patience = {"prepare_device"}, 0.1
    async with world.broker() as first, world.broker() as second:
        with pytest.raises(HoldBusy):
            await prepare(first, claim("u1", "card-a"))
        with pytest.raises(HoldBusy, match="another agent"):
            await second.unprepare(claim("u1").key)
        world.hooks.hanging = set()
        world.hooks.under_way.clear()
        await first.attend()
        await second.unprepare(claim("u1").key)
        assert second.holds() == ()


async def test_a_driver_that_has_to_remember_first_cannot_when_the_hold_has_ended(
    world: World,
) -> None:
    kept: list[Hold] = []

    class Slow:
        def prepare_device(self, device: Device, hold: Hold) -> None:
            kept.append(hold)

    world.hooks.drivers["slow"] = Slow()
    world.add(Device(name="slow-0", kind="x", driver="slow"))
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "slow-0"))
        await broker.unprepare(claim("u1").key)
        with pytest.raises(Exception, match="has ended"):
            await anyio.to_thread.run_sync(lambda: kept[0].remember(image="x"))


async def test_a_policy_may_only_narrow_what_is_delivered(world: World) -> None:
    class Policy:
        wider = False

        def isolate_delivery(self, delivery: Delivery) -> Delivery:
            if self.wider:
                return replace(delivery, gids=(0, 27))
            nodes = tuple(replace(node, permissions="r") for node in delivery.nodes)
            return replace(delivery, nodes=nodes)

    policy = world.hooks.policies["policy"] = Policy()
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        (node,) = devices_of(world.file("u1"))["u1-card-a"]["deviceNodes"]
        assert node["permissions"] == "r"
        policy.wider = True
        with pytest.raises(HoldFailed, match="adds group"):
            await prepare(broker, claim("u2", "card-b"))
        assert world.files() == ["hardpoint.dev-u1.json"]


async def test_policies_add_environment_but_never_over_the_drivers_own(world: World) -> None:
    class Notes:
        def annotate_delivery(self, hold: Hold) -> Addition:
            return Addition(env={"IMAGE": "mine", "CLAIM": hold.claim.name})

    class Wrong:
        def annotate_delivery(self, hold: Hold) -> Addition:
            return Addition(env={"A=B": "c", "\0": "d"})

    world.hooks.policies = {"notes": Notes(), "wrong": Wrong()}
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        env = devices_of(world.file("u1"))["u1-card-a"]["env"]
        assert env == ["CLAIM=claim-u1", "IMAGE=plain"]
        assert len(world.told("annotation-refused")) == 1


async def test_a_policy_sees_what_the_driver_remembered_at_first_as_it_does_later(
    world: World,
) -> None:
    class Notes:
        def annotate_delivery(self, hold: Hold) -> Addition:
            return Addition(env={"WAS": str(hold.remembered.get("was"))})

    world.hooks.policies = {"notes": Notes()}
    async with world.broker() as broker:
        wanted = claim("u1", "card-a")
        await prepare(broker, wanted)
        first = world.file("u1")
        assert "WAS=blank" in devices_of(first)["u1-card-a"]["env"]

        await prepare(broker, wanted)

        assert world.file("u1") == first


async def test_a_driver_and_a_policy_see_how_much_of_a_shared_device_a_hold_has(
    world: World,
) -> None:
    seen: list[tuple[str, object]] = []

    class Pool:
        def prepare_device(self, hold: Hold) -> None:
            seen.append(("prepare", dict(hold.consumed)))

        def unprepare_device(self, hold: Hold) -> None:
            seen.append(("unprepare", dict(hold.consumed)))

    class Notes:
        def annotate_delivery(self, hold: Hold) -> Addition:
            return Addition(env={"MEMORY": hold.consumed["memory"]})

    world.hooks.drivers["pool"], world.hooks.policies = Pool(), {"notes": Notes()}
    world.add(Device(name="pool", kind="x", shareable=True, driver="pool"))
    half = {"memory": "5Gi"}
    wanted = claim("u1", "pool", share_id="s1", consumed=half)
    async with world.broker() as broker:
        await prepare(broker, wanted)
        assert "MEMORY=5Gi" in devices_of(world.file("u1"))["u1-pool-s1"]["env"]
    async with world.broker() as broker:
        await broker.unprepare(wanted.key)

    assert seen == [("prepare", half), ("unprepare", half)]


async def test_nodes_that_only_preparing_makes_are_parts_of_the_hold_too(world: World) -> None:
    class Partitions:
        made = False

        def deliver_device(self, device: Device) -> Delivery:
            if not self.made:
                raise TryAgain("the partition is not there yet")
            return Delivery(nodes=(DeviceNode(path="/dev/part", major=MAJOR, minor=50),))

        def prepare_device(self, device: Device) -> None:
            self.made = True

    world.hooks.drivers["partitions"] = Partitions()
    world.node.put("/dev/part", 50)
    world.add(Device(name="slice", kind="x", driver="partitions"))
    world.add(
        Device(
            name="same-node",
            kind="x",
            driver="plain",
            nodes=(DeviceNode(path="/dev/part", major=MAJOR, minor=50),),
        )
    )
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "slice"))
        with pytest.raises(HoldConflict, match=f"char:{MAJOR}:50"):
            await prepare(broker, claim("u2", "same-node"))


@pytest.mark.field_case("C10")
async def test_a_full_cdi_directory_fails_the_claim_and_leaves_nothing(world: World) -> None:
    os.rmdir(world.cdi)
    world.cdi.write_text("a file where the directory should be")
    async with world.broker() as broker:
        with pytest.raises(HoldFailed, match=f"cannot be written: {world.cdi}") as failed:
            await prepare(broker, claim("u1", "card-a"))
        assert failed.value.reason == "cdi"
        assert [hold.state for hold in broker.holds()] in ([], [HoldState.PREPARING])
        world.cdi.unlink()
        await prepare(broker, claim("u1", "card-a"))
        assert world.files() == ["hardpoint.dev-u1.json"]


# -- order ----------------------------------------------------------------------------------------


@pytest.mark.field_case("B19", "K02")
async def test_different_claims_never_wait_for_each_other(world: World) -> None:
    """kubernetes-sigs/dra-driver-nvidia-gpu!374: prepare(A) waits for what prepare(B) does."""
    came = anyio.Event()

    class Daemons:
        async def prepare_device(self, device: Device) -> None:
            if device.name == "waits":
                await came.wait()
            came.set()

    world.hooks.drivers["daemons"] = Daemons()
    for name in ("waits", "gives"):
        world.add(Device(name=name, kind="x", driver="daemons"))
    async with world.broker() as broker:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(prepare, broker, claim("u1", "waits"))
                tasks.start_soon(prepare, broker, claim("u2", "gives"))
        assert len(broker.holds()) == 2


async def test_who_is_overtaken_while_it_reads_prepares_nothing_and_before_its_turn_reads_nothing(
    world: World,
) -> None:
    entered, go = anyio.Event(), anyio.Event()
    reads: list[str] = []
    overtaken: list[str] = []

    async def attempt(name: str) -> None:
        async def slowly() -> Claim:
            reads.append(name)
            entered.set()
            await go.wait()
            return claim("u1", "card-a")

        try:
            await broker.prepare(claim("u1").key, slowly)
        except HoldOvertaken:
            overtaken.append(name)

    async with world.broker() as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(attempt, "first")
        await entered.wait()
        tasks.start_soon(attempt, "second")
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(broker.unprepare, claim("u1").key)
        await anyio.wait_all_tasks_blocked()
        go.set()

    assert (reads, sorted(overtaken)) == (["first"], ["first", "second"])
    assert world.cards.calls == []


async def test_a_prepare_that_is_overtaken_by_an_unprepare_fails(world: World) -> None:
    entered, go = anyio.Event(), anyio.Event()

    class Slow:
        async def prepare_device(self, device: Device) -> None:
            entered.set()
            await go.wait()

    world.hooks.drivers["slow"] = Slow()
    world.add(Device(name="slow-0", kind="x", driver="slow"))
    outcome: list[object] = []

    async def attempt() -> None:
        try:
            outcome.append(await prepare(broker, claim("u1", "slow-0")))
        except HoldError as error:
            outcome.append(error)

    async with world.broker() as broker:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt)
            await entered.wait()
            tasks.start_soon(attempt)  # waits for its turn
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(broker.unprepare, claim("u1").key)
            await anyio.wait_all_tasks_blocked()
            go.set()
        assert [type(one) for one in outcome] == [HoldOvertaken, HoldOvertaken]
        assert (broker.holds(), world.files()) == ((), [])

        await attempt()  # a claim may be prepared again under one UID
        assert outcome[2] == (await prepare(broker, claim("u1", "slow-0")))


async def test_a_call_that_waits_too_long_for_its_claim_answers_try_again(world: World) -> None:
    entered, go = anyio.Event(), anyio.Event()

    class Slow:
        async def prepare_device(self, device: Device) -> None:
            entered.set()
            await go.wait()

    world.hooks.drivers["slow"], world.patience = Slow(), 0.05
    world.add(Device(name="slow-0", kind="x", driver="slow"))
    async with world.broker() as broker, anyio.create_task_group() as tasks:
        tasks.start_soon(prepare, broker, claim("u1", "slow-0"))
        await entered.wait()
        with pytest.raises(HoldBusy):
            await prepare(broker, claim("u1", "slow-0"))
        go.set()


async def test_a_cancelled_prepare_is_taken_up_by_the_next_call(world: World) -> None:
    class Slow:
        async def prepare_device(self, device: Device) -> None:
            if not go.is_set():
                scope.cancel()
                await anyio.sleep_forever()

    go = anyio.Event()
    world.hooks.drivers["slow"] = Slow()
    world.add(Device(name="slow-0", kind="x", driver="slow"))
    async with world.broker() as broker:
        with anyio.CancelScope() as scope:
            await prepare(broker, claim("u1", "slow-0"))
        assert [hold.state for hold in broker.holds()] == [HoldState.PREPARING]
        go.set()
        await prepare(broker, claim("u1", "slow-0"))
        assert [hold.state for hold in broker.holds()] == [HoldState.HELD]


async def test_a_refusal_is_told_once_with_its_reason(world: World) -> None:
    async with world.broker() as broker:
        with pytest.raises(HoldDenied):
            await prepare(broker, claim("u1", "no-such"))
        (event,) = world.told("claim-refused")
        assert event.warning
        assert (event.facts["reason"], event.facts["claim"]) == ("not-offered", "ns/claim-u1")


async def test_a_uid_that_is_no_file_name_is_refused(world: World) -> None:
    async with world.broker() as broker:
        with pytest.raises(HoldFailed):
            await prepare(broker, claim("../../etc/x", "card-a"))
        assert world.files() == []


async def test_observers_learn_how_long_a_claim_took_that_was_held_anew(world: World) -> None:
    async with world.broker() as broker:
        for _ in range(2):
            await prepare(broker, claim("u1", "card-a"))

    (event,) = world.told("claim-prepared")
    assert float(event.facts["seconds"]) >= 0
