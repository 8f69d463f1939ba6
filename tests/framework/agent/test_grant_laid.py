"""What is offered of a node's devices, by what is written down and what sources state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hardpoint._core.grants.grantlaid import laid_over
from hardpoint._core.grants.grantplan import Stated
from hardpoint._core.ledger.grantrows import Book, DeviceKey, KnownGrant, KnownRelease, Meant
from hardpoint._core.offer.inventory import Built
from hardpoint.grants import Grant, GrantedDevice, GrantOutcome, Outcome
from hardpoint.model import Device, Domain, Offered, Part, Withheld

DOMAIN, OTHER = Domain.named("hardpoint.dev"), Domain.named("other.dev")
SOURCE = "policy/source"


def offered(name: str, *parts: Part, kind: str = "radio", **more: Any) -> Offered:
    device = Device(name=name, kind=kind, parts=parts, driver="radios")
    return Offered(device=device, domain=DOMAIN, **more)


def meant(one: Offered) -> Meant:
    return Meant(one.domain.dra_driver, one.device)


def known(allocation: str, *devices: Offered, source: str = SOURCE) -> KnownGrant:
    return KnownGrant(
        grant=stated(allocation, *devices, source=source),
        devices=tuple(map(meant, devices)),
        outcome=GrantOutcome(Outcome.IN_FORCE),
    )


def stated(allocation: str, *devices: Offered, source: str = SOURCE) -> Grant:
    named = tuple(GrantedDevice(name=one.name) for one in devices)
    return Grant(allocation=allocation, devices=named, source=source)


def release(allocation: str, *devices: Offered, **more: Any) -> KnownRelease:
    grant = Grant(allocation=allocation, source=SOURCE)
    return KnownRelease(
        id=f"r-{allocation}", grant=grant, devices=tuple(map(meant, devices)), since=1.0, **more
    )


def says(*grants: Grant, source: str = SOURCE, kinds: tuple[str, ...] = ("radio",)) -> Stated:
    return Stated(source=source, kinds=kinds, grants=grants)


def silent(source: str = SOURCE) -> Stated:
    return Stated(source=source, kinds=("radio",), grants=None)


def laid(
    *devices: Offered, book: Book | None = None, by: tuple[Stated, ...] = (), lost: bool = False
) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Return what is offered under which allocation, and by which rule the rest is kept back."""
    built = Built(devices=devices, withheld=(), problems=())
    made = laid_over(built, book or Book(), {one.source: one for one in by}, lost)
    return (
        {one.name: one.allocation for one in made.devices},
        {one.subject: (one.rule, one.reason) for one in made.withheld},
    )


R0, R1, CARD = offered("radio0"), offered("radio1"), offered("card0", kind="gpu")


def test_what_no_source_governs_is_offered_under_no_grant() -> None:
    book = Book((known("a-1", R0, CARD),))

    assert laid(R0, CARD, book=book, by=(says(stated("a-1", R0, CARD)),))[0] == {
        "radio0": "a-1",
        "card0": "",
    }
    assert laid(R0)[0] == {"radio0": ""}


def test_what_is_governed_and_not_granted_is_kept_back_and_said_by_whom() -> None:
    shown, kept = laid(R0, R1, book=Book((known("a-1", R0),)), by=(says(stated("a-1", R0)),))

    assert shown == {"radio0": "a-1"}
    assert kept == {"radio1": ("not-granted", "no grant of source that is in force names it")}


def test_what_other_rules_keep_back_stays_kept_back_and_the_driver_is_said() -> None:
    before = Withheld("radio9", "rule", "so", "radios")
    built = Built(devices=(R0,), withheld=(before,), problems=())

    made = laid_over(built, Book(), {SOURCE: says()}, lost=False)

    assert made.withheld[0] == before
    assert [(one.subject, one.driver) for one in made.withheld[1:]] == [("radio0", "radios")]


def test_a_source_that_has_said_nothing_yet_is_said_to_have_not() -> None:
    other = says(source="policy/other")

    assert "source has not said yet" in laid(R0, by=(silent(),))[1]["radio0"][1]
    assert "no grant of source, other" in laid(R0, by=(silent(), other))[1]["radio0"][1]


def test_after_a_loss_it_is_said_that_something_may_not_be_over() -> None:
    assert "may not be over" in laid(R0, by=(says(),), lost=True)[1]["radio0"][1]
    assert "may not be over" not in laid(R0, by=(says(),))[1]["radio0"][1]


def test_a_grant_of_another_domains_namesake_grants_nothing() -> None:
    twin = replace(R0, domain=OTHER)

    assert laid(twin, book=Book((known("a-1", R0),)), by=(says(stated("a-1", R0)),))[0] == {}


@pytest.mark.parametrize(
    ("by", "still"),
    [
        ((silent(),), True),
        ((says(stated("a-1", R0)),), True),
        ((says(stated("a-1", R0, R1)),), True),
        ((says(stated("a-1", R1)),), False),
        ((says(stated("a-2", R0)),), False),
        ((says(),), False),
        ((says(stated("a-1", R0), source="policy/other"),), False),
    ],
)
def test_what_a_source_states_no_more_is_withdrawn_before_that_is_written_down(
    by: tuple[Stated, ...], still: bool
) -> None:
    assert laid(R0, book=Book((known("a-1", R0),)), by=by)[0] == (
        {"radio0": "a-1"} if still else {}
    )


def test_what_is_being_released_is_kept_back_whoever_has_a_grant_of_it() -> None:
    book = Book((known("a-2", R0),), (release("a-1", R0),))

    shown, kept = laid(R0, R1, book=book, by=(says(stated("a-2", R0)), silent("policy/other")))
    over = laid(R0, book=replace(book, releases=(release("a-1", R0, over=True),)))

    assert shown == {}
    assert kept["radio0"] == (
        "releasing",
        "allocation a-1 has ended, and it is not certain yet that nobody uses the device",
    )
    assert over[1]["radio0"][1] == "allocation a-1 is over, and its source has not heard of it yet"


def test_a_drain_keeps_back_what_no_source_governs_and_goes_by_its_own_name() -> None:
    drain = KnownRelease(
        id="drain",
        grant=Grant(allocation="", source="drain"),
        devices=(meant(CARD),),
        since=1.0,
    )

    assert laid(CARD, book=Book(releases=(drain,)))[1]["card0"][1].startswith("allocation drain ")


def test_nothing_is_offered_on_a_node_that_is_handed_back_and_it_is_said_why() -> None:
    book = Book((known("a-1", R0),), (release("a-2", R1),), withdrawn="service")

    shown, kept = laid(R0, R1, CARD, book=book, by=(says(stated("a-1", R0)),))

    assert shown == {}
    assert set(kept.values()) == {("withdrawn", "nothing is offered on this node: service")}


WHOLE = offered("whole", Part("usb:1", True))
FACE = offered("face", Part("usb:2", False), Part("usb:1", False), kind="gpu")


def test_what_wants_no_grant_is_kept_back_while_it_is_one_with_what_is_being_released() -> None:
    book = Book(releases=(release("a-1", WHOLE),))

    shown, kept = laid(FACE, CARD, book=book, by=(says(),))

    assert shown == {"card0": ""}
    assert kept["face"][0] == "releasing"
    assert kept["face"][1].startswith("it is one with a device of which allocation a-1 has ended")


def test_but_not_where_both_share_the_part_or_somebody_has_it_already() -> None:
    shared = offered("shared", Part("usb:1", False))

    assert laid(FACE, book=Book(releases=(release("a-1", shared),)))[0] == {"face": ""}
    held = replace(FACE, held=True)
    assert laid(held, book=Book(releases=(release("a-1", WHOLE),)))[0] == {"face": ""}


def test_of_devices_with_grants_the_plan_has_seen_to_that() -> None:
    face = replace(FACE, device=replace(FACE.device, kind="radio"))
    book = Book((known("a-2", face),), (release("a-1", WHOLE),))

    assert laid(face, book=book, by=(says(stated("a-2", face)),))[0] == {"face": "a-2"}


def test_what_nobody_can_read_the_last_grant_of_is_kept_back_until_it_has_another() -> None:
    key = DeviceKey(DOMAIN.dra_driver, "radio0")
    book = Book(blocked={key: (SOURCE, "a-1")})

    shown, kept = laid(R0, R1, book=book)
    assert shown == {"radio1": ""}
    assert kept["radio0"][0] == "releasing"
    granted = replace(book, grants=(known("a-2", R0),))
    assert laid(R0, book=granted, by=(says(stated("a-2", R0)),))[0] == {"radio0": "a-2"}


def test_a_device_in_quarantine_whose_grant_has_ended_is_said_to_be_released_too() -> None:
    """A quarantine by itself keeps back what others may go on with."""
    quarantined = Withheld("radio0", "quarantined", "its driver could not undo it", "radios")
    absent, other = replace(quarantined, rule="absent"), replace(quarantined, subject="radio1")
    book = Book(releases=(release("a-1", R0),))

    def said(one: Withheld, known: Book) -> Withheld:
        built = Built(devices=(), withheld=(one,), problems=())
        (made,) = laid_over(built, known, {}, lost=False).withheld
        return made

    made = said(quarantined, book)
    assert (made.rule, made.subject) == ("releasing", "radio0")
    assert made.reason.startswith("allocation a-1 has ended")
    assert made.reason.endswith("; and its driver could not undo it")
    assert said(absent, book) == absent
    assert said(other, book) == other
    assert said(quarantined, Book()) == quarantined
