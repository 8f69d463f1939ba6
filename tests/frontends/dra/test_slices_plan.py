"""The plan of writes, the mirror of the server, and the refusals: each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hardpoint.errors import KubeInvalid
from hardpoint.kube import Change, Listing
from hardpoint_dra.mirror import Mirror
from hardpoint_dra.plan import Plan, Pool, content, plan
from hardpoint_dra.refusals import Refusals, named_devices, quiet, tried
from hardpoint_dra.translate import Wanted, slice_body

Json = dict[str, Any]
POOL = Pool("hardpoint.dev", "node-a", "uid-1")


def wanted(**slices: list[str]) -> list[Wanted]:
    return [
        Wanted(name, {"devices": [{"name": device} for device in devices]})
        for name, devices in slices.items()
    ]


def stored(
    found: Sequence[Wanted], generation: int = 3, count: int | None = None
) -> dict[str, Json]:
    bodies = {}
    for number, one in enumerate(found):
        many = len(found) if count is None else count
        body = slice_body(one, POOL.home, POOL.node_uid, generation, many)
        body["metadata"] |= {"uid": f"u{number}", "resourceVersion": str(10 + number)}
        bodies[one.name] = body
    return bodies


def same(name: str, one: Json, other: Json) -> bool:
    return one == other


def planned(there: dict[str, Json], wish: list[Wanted], generation: int = 0) -> Plan:
    return plan(there, wish, POOL, generation, same)


def named(bodies: Sequence[Json]) -> list[str]:
    return [body["metadata"]["name"] for body in bodies]


def test_what_is_right_is_left_alone() -> None:
    wish = wanted(a=["x"], b=["y"])

    assert planned(stored(wish), wish) == Plan(3)


def test_one_changed_slice_keeps_the_generation() -> None:
    there = stored(wanted(a=["x"], b=["y"]))

    made = planned(there, wanted(a=["x"], b=["z"]))

    assert (made.generation, named(made.replaces)) == (3, ["b"])
    assert made.replaces[0]["metadata"]["resourceVersion"] == "11"


def test_two_changed_slices_rewrite_the_pool_under_a_new_generation() -> None:
    there = stored(wanted(a=["x"], b=["y"], c=["z"]))

    made = planned(there, wanted(a=["1"], b=["2"], c=["z"]))

    assert (made.generation, named(made.replaces)) == (4, ["a", "b", "c"])
    assert {body["spec"]["pool"]["generation"] for body in made.replaces} == {4}


def test_a_new_slice_rewrites_the_others_since_they_count() -> None:
    made = planned(stored(wanted(a=["x"])), wanted(a=["x"], b=["y"]))

    assert (named(made.replaces), named(made.creates)) == (["a"], ["b"])
    counts = {b["spec"]["pool"]["resourceSliceCount"] for b in (*made.replaces, *made.creates)}
    assert counts == {2}


def test_a_slice_too_many_is_deleted_first_and_the_rest_count_again() -> None:
    made = planned(stored(wanted(a=["x"], b=["y"])), wanted(a=["x"]))

    assert (named(made.deletes), named(made.replaces)) == (["b"], ["a"])
    assert made.replaces[0]["spec"]["pool"]["resourceSliceCount"] == 1


def test_a_write_that_was_interrupted_is_finished() -> None:
    wish = wanted(a=["x"], b=["y"])
    there = stored(wish)
    there["a"]["spec"]["pool"]["generation"] = 4

    made = planned(there, wish)

    assert (made.generation, named(made.replaces)) == (4, ["b"])


def test_a_generation_that_was_wiped_is_not_used_again() -> None:
    assert planned({}, wanted(a=["x"]), generation=7).generation == 8
    assert planned({}, wanted(a=["x"])).generation == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["spec"].update(nodeName="node-b"),
        lambda body: body["spec"].update(driver="other.dev"),
        lambda body: body["spec"]["pool"].update(name="other"),
        lambda body: body["metadata"]["ownerReferences"][0].update(uid="uid-0"),
        lambda body: body["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
    ],
)
def test_what_cannot_be_updated_is_replaced(change: Any) -> None:
    wish = wanted(a=["x"])
    there = stored(wish)
    change(there["a"])

    made = planned(there, wish)

    assert (named(made.deletes), named(made.creates), made.replaces) == (["a"], ["a"], ())


def test_an_owner_that_was_taken_away_is_put_back() -> None:
    wish = wanted(a=["x"])
    there = stored(wish)
    del there["a"]["metadata"]["ownerReferences"]

    (body,) = planned(there, wish).replaces

    assert body["metadata"]["ownerReferences"][0]["uid"] == "uid-1"


@pytest.mark.parametrize("spec", [None, {}, {"pool": None}, {"pool": 3}])
def test_a_slice_of_any_shape_can_be_removed(spec: Any) -> None:
    there = {"odd": {"metadata": {"name": "odd", "uid": "u"}, "spec": spec}}

    assert named(planned(there, []).deletes) == ["odd"]
    assert named(planned(there, wanted(a=["x"])).deletes) == ["odd"]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"devices": []}, {}, True),
        ({"a": {"value": "1024Mi"}}, {"a": {"value": "1Gi"}}, True),
        ({"t": [{"key": "x", "timeAdded": "now"}]}, {"t": [{"key": "x"}]}, True),
        ({"shared": False}, {}, True),
        ({"numa": {"int": 0}}, {}, False),
        ({"numa": {"int": 0}}, {"numa": {"int": 1}}, False),
        ({"on": {"bool": False}}, {}, False),
        ({"allNodes": True}, {}, False),
        ({"d": [{"name": "a"}, {"name": "b"}]}, {"d": [{"name": "b"}, {"name": "a"}]}, False),
    ],
)
def test_equal_is_what_the_api_takes_for_equal(one: Json, other: Json, equal: bool) -> None:
    assert (content(one) == content(other)) is equal


# -- the mirror -----------------------------------------------------------------------------------


def item(name: str, version: int) -> Json:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def test_an_echo_is_no_news() -> None:
    mirror = Mirror()
    mirror.wrote(item("a", 5))

    assert mirror.changed(Change("MODIFIED", item("a", 5))) is False
    assert mirror.changed(Change("MODIFIED", item("a", 6))) is True


def test_a_reply_later_than_the_deletion_it_missed_brings_nothing_back() -> None:
    mirror = Mirror()
    mirror.listed(Listing((item("a", 3),), "3"))
    mirror.changed(Change("MODIFIED", item("a", 5)))
    mirror.changed(Change("DELETED", item("a", 6)))
    mirror.wrote(item("a", 5))

    assert mirror.slices == {}


def test_an_older_listing_does_not_undo_a_later_write() -> None:
    mirror = Mirror()
    mirror.listed(Listing((), "3"))
    mirror.wrote(item("a", 5))
    mirror.listed(Listing((), "4"))

    assert set(mirror.slices) == {"a"}


def test_a_newer_listing_does() -> None:
    mirror = Mirror()
    mirror.wrote(item("a", 5))

    assert mirror.listed(Listing((), "6")) is True
    assert mirror.slices == {}
    assert mirror.listed(Listing((), "7")) is False


def test_a_server_that_was_restored_from_a_backup_is_believed() -> None:
    mirror = Mirror()
    mirror.listed(Listing((item("a", 50), item("b", 60)), "60"))
    mirror.changed(Change("MODIFIED", item("b", 70)))

    assert mirror.listed(Listing((item("b", 20),), "30")) is True
    assert mirror.slices == {"b": item("b", 20)}
    assert mirror.changed(Change("MODIFIED", item("b", 31))) is True


def test_a_look_of_its_own_finds_that_out_too() -> None:
    mirror = Mirror()
    mirror.listed(Listing((item("a", 50),), "60"))

    assert mirror.listed(Listing((), "30"), since=mirror.heard) is True
    assert mirror.slices == {}
    assert mirror.listed(Listing((), "31"), since=mirror.heard) is False


def test_a_look_of_its_own_that_was_overtaken_is_no_backup() -> None:
    mirror = Mirror()
    mirror.listed(Listing((item("a", 5),), "5"))
    asked = mirror.heard
    mirror.changed(Change("ADDED", item("b", 7)))

    mirror.listed(Listing((item("a", 5),), "6"), since=asked)

    assert set(mirror.slices) == {"a", "b"}


def test_a_deletion_of_ours_is_no_news_when_it_is_heard() -> None:
    mirror = Mirror()
    mirror.listed(Listing((item("a", 5),), "5"))
    mirror.deleted(item("a", 5))

    assert mirror.changed(Change("DELETED", item("a", 6))) is False


def test_an_old_deletion_does_not_hide_what_was_made_since() -> None:
    mirror = Mirror()
    mirror.wrote(item("a", 7))

    assert mirror.changed(Change("DELETED", item("a", 6))) is False
    assert set(mirror.slices) == {"a"}


# -- refusals -------------------------------------------------------------------------------------


def test_a_cause_names_its_device() -> None:
    causes = (
        ("spec.devices[1].attributes[bad].string", 'Too long: "secret" may not be'),
        ("spec.devices[1].name", "Invalid"),
        ("spec.devices[0].basic.attributes", "Invalid"),
        ("spec.devices[9].name", "not one of ours"),
        ("spec.devices[2].consumesCounters[0]", "no device's fault"),
        ("spec.devices", "Too many"),
    )
    devices = [{"name": "a"}, {"name": "b"}, {"name": "c"}]

    found = named_devices(KubeInvalid("refused", causes), devices)

    assert found == {
        "b": "attributes[bad].string: Too long: … may not be",
        "a": "basic.attributes: Invalid",
    }


async def test_halving_finds_every_culprit_with_few_questions() -> None:
    asked = 0

    async def trial(some: Sequence[Json]) -> str:
        nonlocal asked
        asked += 1
        return "no" if any(device["name"] in ("d-3", "d-100") for device in some) else ""

    found = await tried([{"name": f"d-{n}"} for n in range(128)], trial)

    assert set(found) == {"d-3", "d-100"}
    assert asked < 32


async def test_devices_that_are_refused_only_together_are_nobodys_fault() -> None:
    async def trial(some: Sequence[Json]) -> str:
        return "too large" if len(some) > 3 else ""

    assert await tried([{"name": f"d-{n}"} for n in range(8)], trial) == {}


def test_a_refused_device_is_forgiven_when_it_changes_but_not_for_its_neighbours() -> None:
    refusals = Refusals()
    body = {"name": "a", "attributes": {"x": {"int": 1}}}
    refusals.add({**body, "consumesCounters": [{"counterSet": "s"}]}, "why")

    withheld, none = refusals.sift([body])
    passed, forgiven = refusals.sift([{**body, "attributes": {}}])

    assert (withheld, none) == ([], [])
    assert (passed, forgiven) == ([{**body, "attributes": {}}], ["a"])


def test_what_the_server_quotes_is_not_said_again() -> None:
    assert quiet('Invalid value: "Serial 1234": must be "short"') == "Invalid value: …: must be …"
