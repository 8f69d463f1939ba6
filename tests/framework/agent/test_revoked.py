"""What a pod's id or claim stands for, and whether it may be had: by facts, with no agent."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from reaper_world import DOMAIN, GPU, NODE, gpu, record

from hardpoint._core.ledger.grantrows import Meant
from hardpoint._core.pods.revoked import Facts, Granted, Had, had_by, names_of, published_as
from hardpoint.allocation import Assignment, allocation_key
from hardpoint.grants import Release, published_name
from hardpoint.model import Allotment, ClaimKey, Device, Domain

OTHER = Domain.named("other.example")
OURS, THEIRS = DOMAIN.dra_driver, OTHER.dra_driver
CLAIM = ClaimKey("u-1", "ns", "claim", OURS)


def facts(**more: Any) -> Facts:
    given: dict[str, Any] = {
        "granted": frozenset(),
        "releases": (),
        "governed": lambda kind: kind == "gpu",
        "devices": tuple(Meant(OURS, gpu(name)) for name in ("gpu0", "gpu1")),
        "domains": (DOMAIN, OTHER),
        "announced": {},
        "records": (),
    }
    return Facts(**{**given, **more})


def release(
    *names: str, allocation: str = "a1", source: str = "policy/s", since: float = 5.0, **more: Any
) -> Release:
    devices = tuple(gpu(name) for name in names)
    id_ = f"r-{allocation}-{since}"
    return Release(
        id=id_, allocation=allocation, source=source, devices=devices, since=since, **more
    )


def announced(id_: str, device: str = "gpu0", **more: Any) -> dict[tuple[str, str], Assignment]:
    resource = "example.com/fast"
    made = Assignment(resource=resource, id=id_, device=device, domain=DOMAIN, **more)
    return {(resource, id_): made}


def said(had: Had | None) -> tuple[str, str, str] | None:
    return (had.dra_driver, had.device.name, had.allocation) if had else None


# -- what an id stands for ------------------------------------------------------------------------


def test_an_id_is_what_the_ledger_says_whatever_else_goes_by_it() -> None:
    key = allocation_key(GPU, "gpu0@a1", OURS)
    known = facts(records=(record(gpu("gpu1"), key, "a2"),))

    assert said(known.of_id(GPU, "gpu0@a1")) == (OURS, "gpu1", "a2")


def test_a_hold_that_does_not_say_its_grant_leaves_that_to_the_id() -> None:
    key = allocation_key(GPU, "gpu0@a1", OURS)
    known = facts(records=(record(gpu("gpu0"), key),))

    assert said(known.of_id(GPU, "gpu0@a1")) == (OURS, "gpu0", "a1")


def test_a_hold_that_cannot_be_read_says_nothing_of_its_id() -> None:
    key = allocation_key(GPU, "gpu0@a1", OURS)
    known = facts(records=(record(gpu("gpu1"), key, "a2", readable=False),))

    assert said(known.of_id(GPU, "gpu0@a1")) == (OURS, "gpu0", "a1")


def test_an_announced_id_is_had_under_what_was_announced_or_what_it_says_itself() -> None:
    told = facts(announced=announced("short", allocation="a1"))
    untold = facts(announced=announced("gpu0@a2"))

    assert said(told.of_id("example.com/fast", "short")) == (OURS, "gpu0", "a1")
    assert said(untold.of_id("example.com/fast", "gpu0@a2")) == (OURS, "gpu0", "a2")


def test_an_announced_id_of_a_device_that_nobody_knows_is_nothing() -> None:
    assert facts(announced=announced("short", "gpu9")).of_id("example.com/fast", "short") is None


def test_of_a_resource_that_was_announced_other_ids_are_known_too() -> None:
    more = {("example.com/slow", "x"): next(iter(announced("x").values()))}
    known = facts(announced={**more, **announced("gpu1@new", "gpu1")})

    assert said(known.of_id("example.com/fast", "gpu0@old")) == (OURS, "gpu0", "old")
    assert known.of_id("example.com/none", "gpu0@old") is None


def test_an_id_of_a_device_of_another_domain_is_not_ours() -> None:
    assert facts().of_id("other.example/gpu", "gpu0") is None


def test_an_id_of_a_grant_is_known_by_its_resource_though_no_driver_runs() -> None:
    known = facts(devices=())

    assert said(known.of_id(GPU, "gpu7@old")) == ("", "gpu7", "old")
    had = known.of_id("other.example/radio", "radio0@old")
    assert had is not None
    assert (had.device.kind, had.allocation) == ("radio", "old")
    assert known.of_id("nvidia.com/gpu", "gpu0@old") is None


def test_a_device_that_only_the_ledger_knows_is_known() -> None:
    held = record(gpu("gpu7"), CLAIM)

    assert said(facts(records=(held,)).of_id(GPU, "gpu7")) == (OURS, "gpu7", "")
    assert facts(records=(replace(held, readable=False),)).of_id(GPU, "gpu7") is None


def test_a_device_is_as_its_driver_says_and_not_as_it_was_when_it_was_held() -> None:
    held = record(gpu("gpu0", kind="radio"), CLAIM)

    had = facts(records=(held,)).of_id(GPU, "gpu0")

    assert had is not None
    assert had.device.kind == "gpu"


# -- what a claim's device is ---------------------------------------------------------------------


def test_a_device_of_a_claim_is_what_the_ledger_says() -> None:
    known = facts(records=(record(gpu("gpu0"), CLAIM, "a1"),))
    published = published_name("gpu0", "a1")

    assert said(known.of_claim("ns", "claim", OURS, published)) == (OURS, "gpu0", "a1")


def test_a_hold_that_cannot_be_read_or_is_of_an_id_says_nothing_of_a_claim() -> None:
    granted = frozenset({Granted(OURS, "gpu0", "a2")})
    published = published_name("gpu0", "a2")
    allotment = Allotment(request="", device="gpu0", pool=NODE, published=published)
    wrong = replace(record(gpu("gpu1"), CLAIM, "a1"), allotment=allotment)
    of_id = replace(wrong, claim=allocation_key("ns", "claim", OURS))

    for one in (replace(wrong, readable=False), of_id):
        known = facts(granted=granted, records=(one,))
        assert said(known.of_claim("ns", "claim", OURS, published)) == (OURS, "gpu0", "a2")


def test_a_claim_that_nobody_wrote_down_is_known_by_the_name_of_its_device() -> None:
    known = facts(granted=frozenset({Granted(OURS, "gpu1", "a1")}))

    of = [
        said(known.of_claim("ns", "c", OURS, name))
        for name in ("gpu0", published_name("gpu1", "a1"), published_name("gpu1", "gone"), "gpu9")
    ]

    assert of == [(OURS, "gpu0", ""), (OURS, "gpu1", "a1"), (OURS, "gpu1", ""), None]


def test_a_device_whose_own_name_reads_like_a_grant_of_another_is_itself() -> None:
    name = published_name("gpu0", "a1")
    known = facts(
        devices=(Meant(OURS, gpu("gpu0")), Meant(OURS, gpu(name))),
        granted=frozenset({Granted(OURS, "gpu0", "a1")}),
    )

    assert said(known.of_claim("ns", "c", OURS, name)) == (OURS, name, "")


@pytest.mark.parametrize(
    "name", ["gpu0-slot-one", "gpu0-1a2b3c4", "gpu0-1a2b3c4dd", "gpu0_1a2b3c4d"]
)
def test_a_part_that_vanished_is_not_taken_for_its_whole(name: str) -> None:
    """Eight letters that are no tag are a name of its own: hardware that is gone reaps nobody."""
    assert facts().of_claim("ns", "c", OURS, name) is None


def test_a_claims_device_is_one_of_its_own_driver() -> None:
    known = facts(devices=(Meant(THEIRS, gpu("gpu0")), Meant(OURS, gpu("gpu1"))))

    assert known.of_claim("ns", "c", OURS, "gpu0") is None
    assert said(known.of_claim("ns", "c", THEIRS, "gpu0")) == (THEIRS, "gpu0", "")
    assert known.of_claim("ns", "c", "gpu.nvidia.com", "gpu0") is None


def test_an_allocation_is_known_from_its_release_too() -> None:
    known = facts(releases=(release("gpu0", allocation="a1"),))

    assert known.allocation_in(published_name("gpu0", "a1"), "gpu0") == "a1"
    assert known.allocation_in("gpu0", "gpu0") == ""


def test_the_scheduler_knows_a_device_by_what_was_published_or_by_its_name() -> None:
    plain, granted = record(gpu("gpu0"), CLAIM), record(gpu("gpu0"), CLAIM, "a1")

    assert published_as(plain) == "gpu0"
    assert published_as(granted) == published_name("gpu0", "a1") != "gpu0"


# -- what a hold says of its holder ---------------------------------------------------------------


def test_the_holder_of_a_claim_has_its_device_under_the_grant_that_the_hold_says() -> None:
    assert said(had_by(record(gpu("gpu0"), CLAIM, "a1"), facts())) == (OURS, "gpu0", "a1")
    assert said(had_by(record(gpu("gpu0"), CLAIM), facts())) == (OURS, "gpu0", "")


@pytest.mark.parametrize(
    "change",
    [{"readable": False}, {"retired": True}, {"claim": allocation_key(GPU, "gpu0", OURS)}],
    ids=["unreadable", "retired", "an id"],
)
def test_a_hold_that_is_no_claims_says_nothing_of_a_holder(change: dict[str, Any]) -> None:
    assert had_by(replace(record(gpu("gpu0"), CLAIM, "a1"), **change), facts()) is None


def test_a_hold_that_was_found_again_says_its_grant_by_its_name_or_not_at_all() -> None:
    found = record(gpu("gpu0"), CLAIM, "a1", rebuilt=True)
    nameless = replace(found, allotment=replace(found.allotment, allocation=""))
    known = facts(granted=frozenset({Granted(OURS, "gpu0", "a1")}))

    assert said(had_by(found, facts())) == (OURS, "gpu0", "a1")
    assert said(had_by(nameless, known)) == (OURS, "gpu0", "a1")
    assert had_by(nameless, facts()) is None


# -- whether it may be had ------------------------------------------------------------------------


def had(device: str = "gpu0", allocation: str = "a1", driver: str = OURS, **more: Any) -> Had:
    return Had(device=gpu(device, **more), dra_driver=driver, allocation=allocation)


def ended_by(known: Facts, one: Had) -> str:
    found = known.release_of(one)
    return found.id if found else ""


def test_what_is_granted_or_what_no_source_governs_may_be_had() -> None:
    granted = frozenset({Granted(OURS, "gpu0", "a1")})
    known = facts(granted=granted, releases=(release("gpu0", "gpu1"),))

    assert known.release_of(had()) is None
    assert known.release_of(had(driver="")) is None
    assert known.release_of(had("gpu1", kind="radio")) is None
    for other in (had("gpu1"), had(allocation="a2"), had(allocation=""), had(driver=THEIRS)):
        assert known.release_of(other) is not None


def test_what_is_had_must_be_let_go_by_the_release_that_is_about_it() -> None:
    known = facts(releases=(release("gpu0", allocation="a1", dra_drivers=(OURS,)),))

    assert ended_by(known, had()) == "r-a1-5.0"
    assert ended_by(known, had(driver="")) == "r-a1-5.0"
    assert ended_by(known, had(allocation="")) == "r-a1-5.0"
    for other in (had("gpu1"), had(allocation="a2"), had(driver=THEIRS)):
        assert ended_by(known, other) == other.orphan_id


def test_a_release_that_knows_neither_driver_nor_allocation_is_about_every_such_device() -> None:
    known = facts(releases=(release("gpu0", allocation="", source="lost"),))

    assert ended_by(known, had(driver=THEIRS, allocation="a9")) == "r--5.0"


def test_of_two_releases_the_later_is_what_a_pod_may_be_the_oldest_for() -> None:
    two = (release("gpu0", since=5.0), release("gpu0", since=9.0), release("gpu0", since=7.0))

    assert ended_by(facts(releases=two), had()) == "r-a1-9.0"


def test_a_drain_comes_first_also_for_what_is_granted_or_governed_by_nobody() -> None:
    drain = release("gpu0", "radio0", allocation="", source="drain", since=1.0)
    granted = frozenset({Granted(OURS, "gpu0", "a1")})
    known = facts(granted=granted, releases=(release("gpu0"), drain))

    assert ended_by(known, had()) == drain.id
    assert ended_by(known, had("radio0", allocation="", kind="radio")) == drain.id


def test_an_orphan_goes_by_what_it_is_and_has_no_beginning() -> None:
    one = facts().release_of(had())
    nameless = facts().release_of(had(driver=""))

    assert one is not None
    assert nameless is not None
    assert re.fullmatch(r"orphan-[0-9a-f]{16}", one.id)
    assert (one.source, one.allocation, one.names, one.since) == ("orphan", "a1", ("gpu0",), 0.0)
    assert (one.dra_drivers, nameless.dra_drivers) == ((OURS,), ())
    others = [had("gpu1"), had(allocation="a2"), had(driver=THEIRS), had(driver="")]
    assert len({one.id, *(other.orphan_id for other in others)}) == 5


def test_what_a_pod_has_is_told_in_order_and_once() -> None:
    both = [had("gpu1"), had("gpu0"), Had(device=Device(name="gpu1", kind="gpu"))]

    assert names_of(both) == ("gpu0", "gpu1")
