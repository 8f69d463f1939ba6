"""What is written down of grants when their sources have answered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hardpoint._core.grants.grantplan import Plan, Scene, Stated, in_force, plan
from hardpoint._core.ledger.grantrows import Book, KnownGrant, KnownRelease, Meant
from hardpoint.grants import Grant, GrantedDevice, GrantOutcome, Outcome
from hardpoint.model import Device, Part

DRIVER = "hardpoint.dev"
SOURCE, OTHER = "policy/source", "policy/other"
IN_FORCE = GrantOutcome(Outcome.IN_FORCE)


def device(name: str, *parts: Part, kind: str = "radio", **more: Any) -> Meant:
    return Meant(DRIVER, Device(name=name, kind=kind, parts=parts, **more))


R0, R1, R2 = device("radio0"), device("radio1"), device("radio2")


def grant(allocation: str, *names: str, source: str = SOURCE, **more: Any) -> Grant:
    named = tuple(GrantedDevice(name=name) for name in names)
    return Grant(allocation=allocation, devices=named, source=source, **more)


def entry(allocation: str, name: str, uuid: str) -> Grant:
    named = GrantedDevice(name=name, uuid=uuid)
    return Grant(allocation=allocation, devices=(named,), source=SOURCE)


def known(grant: Grant, *devices: Meant, told: bool = True, **more: Any) -> KnownGrant:
    facts = {"outcome": IN_FORCE, "since": 5.0, **more}
    return KnownGrant(grant=grant, devices=devices, told=told, **facts)


def release(grant: Grant, *devices: Meant, id_: str = "r-1", **more: Any) -> KnownRelease:
    return KnownRelease(id=id_, grant=grant, devices=devices, since=7.0, **more)


def says(*grants: Grant, source: str = SOURCE, kinds: tuple[str, ...] = ("radio",)) -> Stated:
    return Stated(source=source, kinds=kinds, grants=grants)


def silent(source: str = SOURCE) -> Stated:
    return Stated(source=source, kinds=("radio",), grants=None)


def planned(
    *stated: Stated,
    grants: tuple[KnownGrant, ...] = (),
    releases: tuple[KnownRelease, ...] = (),
    devices: tuple[Meant, ...] = (R0, R1, R2),
    complete: bool = True,
    **more: Any,
) -> Plan:
    return plan(
        Scene(
            book=Book(grants, releases),
            stated={one.source: one for one in stated},
            devices=devices,
            complete=complete,
            now=100.0,
            new_id=lambda: "r-new",
            **more,
        )
    )


def kept(made: Plan) -> dict[str, tuple[str, tuple[str, ...]]]:
    """By allocation: the outcome, and what is in force."""
    return {
        one.grant.allocation: (
            one.outcome.outcome.value,
            tuple(meant.device.name for meant in one.devices),
        )
        for one in made.keep
    }


def begun(made: Plan) -> list[tuple[str, list[str], bool]]:
    """Each release: its allocation, its devices, and whether its source is told."""
    return [
        (one.grant.allocation, [meant.device.name for meant in one.devices], one.report)
        for one in made.begin
    ]


# -- a grant comes and goes -----------------------------------------------------------------------


def test_a_new_grant_is_in_force_from_now_and_its_source_is_not_told_yet() -> None:
    made = planned(says(grant("a-1", "radio0")))

    (new,) = made.keep
    assert not made.empty
    assert (new.devices, new.outcome, new.told, new.since) == ((R0,), IN_FORCE, False, 100.0)


def test_nothing_is_written_where_nothing_changed() -> None:
    stated = grant("a-1", "radio0")

    assert planned(says(stated), grants=(known(stated, R0),)).empty
    assert planned(silent(), grants=(known(stated, R0),)).empty
    assert planned().empty


def test_a_grant_that_ended_is_forgotten_and_its_devices_are_released() -> None:
    made = planned(says(), grants=(known(grant("a-1", "radio0"), R0),))

    assert made.forget == [(SOURCE, "a-1")]
    (begun,) = made.begin
    assert (begun.id, begun.devices, begun.since) == ("r-new", (R0,), 100.0)
    assert begun.report
    assert not begun.over
    assert not made.empty


def test_a_grant_that_had_nothing_is_forgotten_without_a_release() -> None:
    refused = known(grant("a-1", "ghost"), outcome=GrantOutcome(Outcome.UNKNOWN_DEVICE, "x"))

    made = planned(says(), grants=(refused,))

    assert (made.forget, made.begin) == ([(SOURCE, "a-1")], [])
    assert not made.empty


def test_a_grant_that_ends_with_nothing_left_is_reported_over_when_what_was_taken_out_is() -> None:
    """The last device was taken out of it before it ended: its release told nobody."""
    stated = grant("a-1", "ghost")
    left = known(stated, outcome=GrantOutcome(Outcome.UNKNOWN_DEVICE, "no such device"))
    first, last = (
        release(stated, one, id_=i, report=False) for one, i in ((R0, "r-1"), (R1, "r-2"))
    )
    other = release(grant("a-2", "radio2"), R2, id_="r-3", report=False)

    made = planned(says(), grants=(left,), releases=(first, last, other))
    none = planned(says(), grants=(left,), releases=(other,))

    assert [(one.id, one.devices, one.report) for one in made.begin] == [("r-2", (R1,), True)]
    assert none.begin == []


def test_grants_of_a_source_that_the_settings_do_not_name_any_more_end_without_a_release() -> None:
    made = planned(grants=(known(grant("a-1", "radio0"), R0),))

    assert (made.forget, made.begin) == ([(SOURCE, "a-1")], [])


def test_what_a_source_had_that_the_settings_do_not_name_any_more_another_may_grant() -> None:
    whole, face = device("whole", Part("usb:1", True)), device("face", Part("usb:1", False))
    gone = (known(grant("a-1", "radio0", "whole"), R0, whole),)

    made = planned(
        says(grant("b-1", "radio0", "face", source=OTHER), source=OTHER),
        grants=gone,
        devices=(R0, whole, face),
    )

    assert kept(made) == {"b-1": ("in-force", ("radio0", "face"))}


def test_what_a_source_had_that_cannot_be_read_no_other_grants() -> None:
    had = known(grant("a-1", "radio0"), R0)

    made = planned(
        silent(), says(grant("b-1", "radio0", source=OTHER), source=OTHER), grants=(had,)
    )

    assert kept(made) == {"b-1": ("overlap", ())}


def test_one_grant_that_ended_takes_no_other_with_it() -> None:
    left, right = grant("a-1", "radio0"), grant("a-2", "radio1")

    made = planned(says(right), grants=(known(left, R0), known(right, R1)))

    assert made.forget == [(SOURCE, "a-1")]
    assert made.keep == []


def test_allocations_of_two_sources_are_two_though_they_are_called_alike() -> None:
    mine = grant("a-1", "radio0")
    theirs = grant("a-1", "radio1", source=OTHER)

    made = planned(says(mine), says(source=OTHER), grants=(known(mine, R0), known(theirs, R1)))

    assert made.forget == [(OTHER, "a-1")]


def test_a_release_that_only_has_to_be_told_goes_with_the_source_to_tell() -> None:
    over = release(grant("a-1", "radio0"), R0, over=True)

    assert planned(releases=(over,)).drop == ["r-1"]
    assert not planned(releases=(over,)).empty
    assert planned(says(), releases=(over,)).empty
    assert planned(silent(), releases=(over,)).empty


def test_a_release_that_is_not_over_or_tells_nobody_outlives_its_source() -> None:
    one = release(grant("a-1", "radio0"), R0)

    assert planned(releases=(one,)).empty
    assert planned(releases=(replace(one, over=True, report=False),)).empty


# -- a new wording --------------------------------------------------------------------------------


def test_a_device_taken_out_is_released_and_the_source_is_told_of_the_new_wording() -> None:
    had = known(grant("a-1", "radio0", "radio1"), R0, R1)

    made = planned(says(grant("a-1", "radio1")), grants=(had,))

    assert begun(made) == [("a-1", ["radio0"], False)]
    (new,) = made.keep
    assert (new.devices, new.told, new.since) == ((R1,), False, 5.0)
    assert made.forget == []


def test_a_device_added_is_in_force_too() -> None:
    made = planned(
        says(grant("a-1", "radio0", "radio1")), grants=(known(grant("a-1", "radio0"), R0),)
    )

    assert kept(made) == {"a-1": ("in-force", ("radio0", "radio1"))}
    assert made.begin == []


def test_a_source_that_was_not_told_yet_is_not_taken_for_one_that_was() -> None:
    stated = grant("a-1", "radio0")
    moved = device("radio0", attributes={"speed": 9})

    made = planned(says(stated), grants=(known(stated, R0, told=False),), devices=(moved,))
    again = planned(says(stated), grants=(known(stated, R0, told=True),), devices=(moved,))

    assert [one.told for one in (*made.keep, *again.keep)] == [False, True]


def test_a_mistake_in_the_new_wording_takes_nothing_that_it_names_still() -> None:
    had = known(grant("a-1", "radio0", "radio1"), R0, R1)

    made = planned(says(grant("a-1", "radio1", "ghost")), grants=(had,))

    assert kept(made) == {"a-1": ("unknown-device", ("radio1",))}
    assert begun(made) == [("a-1", ["radio0"], False)]


def test_a_mistake_in_a_new_grant_grants_nothing() -> None:
    assert kept(planned(says(grant("a-1", "radio0", "ghost")))) == {"a-1": ("unknown-device", ())}


def test_what_cannot_be_honoured_is_refused_in_the_sources_words() -> None:
    made = planned(says(grant("a-1", "radio0", unsupported="no MIG here")))

    assert kept(made) == {"a-1": ("unsupported", ())}
    assert made.keep[0].outcome.reason == "no MIG here"


def test_a_grant_of_nothing_is_a_mistake() -> None:
    (new,) = planned(says(grant("a-1"))).keep

    assert new.outcome == GrantOutcome(Outcome.UNKNOWN_DEVICE, "it names no device")


def test_a_refused_grant_that_comes_true_has_its_devices_and_its_source_is_told() -> None:
    stated = grant("a-1", "radio0")
    refused = known(stated, outcome=GrantOutcome(Outcome.UNKNOWN_DEVICE, "no such device"))

    (new,) = planned(says(stated), grants=(refused,)).keep

    assert (new.devices, new.outcome, new.told) == ((R0,), IN_FORCE, False)


# -- what is meant --------------------------------------------------------------------------------


def test_what_a_driver_has_yet_to_say_is_neither_refused_nor_granted() -> None:
    assert planned(says(grant("a-1", "radio0", "ghost")), complete=False).empty


def test_a_name_comes_before_a_uuid_and_a_uuid_finds_what_no_name_does() -> None:
    one = device("radio0", attributes={"uuid": "U-1"})
    two = device("radio1", attributes={"uuid": "U-2"})

    both = planned(says(entry("a-1", "radio0", "U-2")), devices=(one, two))
    renamed = planned(says(entry("a-1", "slot-9", "U-2")), devices=(one, two))
    neither = planned(says(entry("a-1", "slot-9", "U-3")), devices=(one, two))

    assert kept(both) == {"a-1": ("in-force", ("radio0",))}
    assert kept(renamed) == {"a-1": ("in-force", ("radio1",))}
    assert kept(neither) == {"a-1": ("unknown-device", ())}
    assert "or has its uuid" in neither.keep[0].outcome.reason


def test_a_device_without_a_uuid_is_not_the_one_of_an_entry_without_one() -> None:
    made = planned(
        says(grant("a-1", "ghost")), devices=(device("radio0", attributes={"uuid": ""}),)
    )

    assert kept(made) == {"a-1": ("unknown-device", ())}
    assert "uuid" not in made.keep[0].outcome.reason


def test_a_name_of_cdi_means_the_device_that_goes_by_it() -> None:
    part = device("radio0-p1", origin={"cdi": "radio0_1"})

    made = planned(says(grant("a-1", "radio0/1")), devices=(part,))

    assert kept(made) == {"a-1": ("in-force", ("radio0-p1",))}


def test_of_two_devices_that_go_by_one_name_none_is_guessed() -> None:
    one, two = (device(name, origin={"cdi": "slot"}) for name in ("radio0", "radio1"))
    had = known(grant("a-1", "slot"), one)

    assert kept(planned(says(grant("a-1", "slot")), devices=(one, two))) == {
        "a-1": ("unknown-device", ())
    }
    refused = planned(says(grant("a-1", "slot")), grants=(had,), devices=(one, two))
    assert kept(refused) == {"a-1": ("unknown-device", ("radio0",))}
    assert refused.begin == []


def test_a_grant_that_names_one_device_twice_is_a_mistake() -> None:
    one = device("radio0", attributes={"uuid": "U-1"})
    twice = (GrantedDevice(name="radio0"), GrantedDevice(name="slot-9", uuid="U-1"))

    made = planned(says(Grant(allocation="a-1", devices=twice, source=SOURCE)), devices=(one,))

    assert kept(made) == {"a-1": ("unknown-device", ())}
    assert made.keep[0].outcome.reason == "two of its names mean one device"


def test_what_nobody_can_read_the_last_grant_of_goes_to_no_other() -> None:
    blocked = {R0.key: (SOURCE, "a-1")}

    def of(allocation: str) -> GrantOutcome:
        book, stated = Book(blocked=blocked), says(grant(allocation, "radio0"))
        scene = Scene(book=book, stated={SOURCE: stated}, devices=(R0,), complete=True)
        return plan(scene).keep[0].outcome

    assert of("a-1") == IN_FORCE
    assert of("b-1").outcome is Outcome.OVERLAP
    assert "cannot be read" in of("b-1").reason


def test_a_source_grants_only_what_it_governs() -> None:
    card = device("card0", kind="gpu.mig")

    assert kept(planned(says(grant("a-1", "card0")), devices=(card,))) == {
        "a-1": ("unknown-device", ())
    }
    wide = says(grant("a-1", "card0"), kinds=("radio", "gpu.*"))
    assert kept(planned(wide, devices=(card,))) == {"a-1": ("in-force", ("card0",))}


def test_a_device_that_is_not_listed_now_stays_its_grants() -> None:
    stated = grant("a-1", "radio0")
    by_uuid = entry("a-2", "slot-9", "U-2")
    by_cdi = grant("a-3", "radio2/1")
    two = device("radio1", attributes={"uuid": "U-2"})
    three = device("radio2", origin={"cdi": "radio2_1"})
    had = (known(stated, R0), known(by_uuid, two), known(by_cdi, three))

    assert planned(says(stated, by_uuid, by_cdi), grants=had, devices=()).empty


def test_a_grant_does_not_get_the_missing_device_that_another_had() -> None:
    had = known(grant("a-1", "radio0"), R0)

    made = planned(says(had.grant, grant("a-2", "radio0")), grants=(had,), devices=())

    assert kept(made) == {"a-2": ("unknown-device", ())}


def test_an_entry_without_a_uuid_is_not_taken_for_a_missing_device_without_one() -> None:
    had = known(grant("a-1", "radio0"), device("radio0", attributes={"uuid": ""}))

    made = planned(says(grant("a-1", "ghost")), grants=(had,), devices=())

    assert kept(made) == {"a-1": ("unknown-device", ())}
    assert begun(made) == [("a-1", ["radio0"], False)]


def test_an_entry_is_not_taken_for_a_missing_device_of_another_uuid() -> None:
    had = known(entry("a-1", "slot-1", "U-1"), device("radio0", attributes={"uuid": "U-1"}))

    made = planned(says(entry("a-1", "slot-2", "U-2")), grants=(had,), devices=())

    assert kept(made) == {"a-1": ("unknown-device", ())}


# -- one device, one grant ------------------------------------------------------------------------


def test_who_has_a_device_keeps_it_from_a_newcomer_whose_name_comes_first() -> None:
    old = known(grant("z-9", "radio0"), R0)

    made = planned(says(grant("a-1", "radio0"), old.grant), grants=(old,))

    assert kept(made) == {"a-1": ("overlap", ())}
    assert "granted under allocation z-9" in made.keep[0].outcome.reason


def test_of_two_newcomers_the_first_by_name_has_it() -> None:
    made = planned(says(grant("b-1", "radio0"), grant("a-1", "radio0")))

    assert kept(made) == {"a-1": ("in-force", ("radio0",)), "b-1": ("overlap", ())}


def test_a_device_that_its_grant_lets_go_is_nobodys_before_its_release_is_over() -> None:
    had = known(grant("a-1", "radio0", "radio1"), R0, R1)

    made = planned(says(grant("a-1", "radio1"), grant("b-1", "radio0")), grants=(had,))

    assert kept(made)["b-1"] == ("overlap", ())
    assert "not released from allocation a-1" in made.keep[-1].outcome.reason


def test_what_a_grant_that_ended_had_is_nobodys_before_its_release_is_over() -> None:
    had = known(grant("a-1", "radio0"), R0)

    made = planned(says(grant("b-1", "radio0")), grants=(had,))

    assert kept(made) == {"b-1": ("overlap", ())}


def test_a_pending_release_keeps_its_devices_and_what_is_one_with_them_from_others() -> None:
    whole = device("whole", Part("usb:1", True))
    face = device("face", Part("usb:1", False), Part("char:1:2", True))
    aside = device("aside", Part("usb:2", True))
    pending = release(grant("a-1", "whole"), whole)

    made = planned(
        says(grant("b-1", "whole"), grant("b-2", "face"), grant("b-3", "aside")),
        releases=(pending,),
        devices=(whole, face, aside),
    )

    assert kept(made) == {
        "b-1": ("overlap", ()),
        "b-2": ("overlap", ()),
        "b-3": ("in-force", ("aside",)),
    }


def test_a_release_of_a_drain_is_named_by_what_it_is() -> None:
    drain = KnownRelease(
        id="drain", grant=Grant(allocation="", source="drain"), devices=(R0,), since=1.0
    )

    made = planned(says(grant("a-1", "radio0")), releases=(drain,))

    assert "not released from allocation drain yet" in made.keep[0].outcome.reason


def test_two_grants_may_share_a_part_that_neither_takes_alone() -> None:
    one, two = (device(name, Part("usb:1", False)) for name in ("one", "two"))

    made = planned(says(grant("a-1", "one"), grant("a-2", "two")), devices=(one, two))

    assert kept(made) == {"a-1": ("in-force", ("one",)), "a-2": ("in-force", ("two",))}


def test_of_two_devices_with_one_part_one_grant_may_have_both_but_no_two_may() -> None:
    whole, face = device("whole", Part("usb:1", True)), device("face", Part("usb:1", False))
    devices = (whole, face)

    both = planned(says(grant("a-1", "whole", "face")), devices=devices)
    two = planned(says(grant("a-1", "whole"), grant("a-2", "face")), devices=devices)
    old = known(grant("z-1", "face"), face)
    kept_from = planned(says(grant("a-1", "whole"), old.grant), grants=(old,), devices=devices)
    more = planned(says(grant("z-1", "face", "whole")), grants=(old,), devices=devices)

    assert kept(more) == {"z-1": ("in-force", ("face", "whole"))}
    assert kept(both) == {"a-1": ("in-force", ("whole", "face"))}
    assert kept(two) == {"a-1": ("in-force", ("whole",)), "a-2": ("overlap", ())}
    assert kept(kept_from) == {"a-1": ("overlap", ())}
    assert "device whole is one with face of z-1" in kept_from.keep[0].outcome.reason


def test_what_a_grant_let_go_is_no_rival_any_more_once_it_is_free() -> None:
    """The grant of the whole shrank to another device; the face of it is free after the release."""
    whole, face = device("whole", Part("usb:1", True)), device("face", Part("usb:1", False))
    had = known(grant("a-1", "whole", "radio0"), whole, R0)
    stated = (grant("a-1", "radio0"), grant("b-1", "face"))

    first = planned(says(*stated), grants=(had,), devices=(whole, face, R0))
    then = planned(says(*stated), grants=tuple(first.keep), devices=(whole, face, R0))

    assert kept(first)["b-1"] == ("overlap", ())
    assert "not released" in first.keep[-1].outcome.reason
    assert kept(then) == {"b-1": ("in-force", ("face",))}


def test_what_may_be_somebodys_after_a_loss_is_granted_to_nobody_new() -> None:
    had = known(grant("a-1", "radio0"), R0)

    made = planned(
        says(had.grant, grant("b-1", "radio1")),
        grants=(had,),
        lost=frozenset({R0.key, R1.key}),
    )

    assert kept(made) == {"b-1": ("overlap", ())}
    assert "could not be read" in made.keep[0].outcome.reason


def test_the_node_gets_no_second_holder_through_a_device_of_the_same_name() -> None:
    twin = replace(R0, dra_driver="other.dev")
    had = known(grant("a-1", "radio0"), R0)

    made = planned(says(had.grant), grants=(had,), devices=(R0, twin))

    assert kept(made) == {"a-1": ("unknown-device", ("radio0",))}


# -- granted again --------------------------------------------------------------------------------


def test_a_release_ends_without_a_word_where_its_own_allocation_is_granted_again() -> None:
    pending = release(grant("a-1", "radio0"), R0)

    made = planned(says(grant("a-1", "radio0")), releases=(pending,))

    assert kept(made) == {"a-1": ("in-force", ("radio0",))}
    assert made.drop == ["r-1"]
    assert made.begin == []


def test_of_a_release_that_is_granted_again_in_part_the_rest_stays_and_is_not_reported() -> None:
    pending = release(grant("a-1", "radio0", "radio1"), R0, R1)

    made = planned(says(grant("a-1", "radio0")), releases=(pending,))

    assert made.drop == []
    assert [(one.id, one.devices, one.report) for one in made.begin] == [("r-1", (R1,), False)]


def test_a_release_of_others_devices_is_not_reported_once_its_allocation_is_back() -> None:
    stated = grant("a-1", "radio0")
    had = known(stated, R0)
    reported = release(grant("a-1", "radio1"), R1, report=True)

    made = planned(says(stated), grants=(had,), releases=(reported,))

    assert [(one.devices, one.report) for one in made.begin] == [((R1,), False)]
    assert not made.empty
    quiet = replace(reported, report=False)
    both = replace(quiet, devices=(R0, R1))
    left = planned(says(stated), grants=(had,), releases=(both,)).begin
    assert [one.devices for one in left] == [(R1,)]
    assert planned(says(stated), grants=(had,), releases=(quiet,)).empty


def test_a_release_of_another_allocation_stays() -> None:
    other = release(grant("b-1", "radio1"), R1)
    theirs = release(grant("a-1", "radio1", source=OTHER), R1, id_="r-2")

    made = planned(says(grant("a-1", "radio0")), says(source=OTHER), releases=(other, theirs))
    assert (made.drop, made.begin) == ([], [])


def test_what_is_being_released_is_not_a_mistakes_to_take_once_its_allocation_names_it_again() -> (
    None
):
    """A file that is removed and written anew is the same as one that is changed."""
    leaving = release(grant("a-1", "radio0", "radio1"), R0, R1, report=True)

    made = planned(says(grant("a-1", "radio0", "ghost")), releases=(leaving,))

    assert kept(made) == {"a-1": ("unknown-device", ("radio0",))}
    assert made.drop == []
    assert begun(made) == [("a-1", ["radio1"], False)]


def test_a_mistake_brings_nothing_back_that_nobody_uses_any_more() -> None:
    over = release(grant("a-1", "radio0"), R0, report=True, over=True)

    made = planned(says(grant("a-1", "radio0", "ghost")), releases=(over,))

    assert kept(made) == {"a-1": ("unknown-device", ())}
    assert (made.drop, made.begin) == ([], [])


def test_a_mistake_that_names_nothing_of_a_release_leaves_it_alone() -> None:
    leaving = release(grant("a-1", "radio0"), R0, report=True)

    made = planned(says(grant("a-1", "ghost")), releases=(leaving,))

    assert kept(made) == {"a-1": ("unknown-device", ())}
    assert (made.drop, made.begin) == ([], [])


def test_every_device_in_force_is_told_with_its_grant() -> None:
    one, two = known(grant("a-1", "radio0", "radio1"), R0, R1), known(grant("a-2", "radio2"), R2)

    assert list(in_force(Book((one, two)))) == [(R0, one), (R1, one), (R2, two)]
