"""Devices that are parts of one thing, and devices that several claims have a share of."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import pods
from cluster.boards import NODE, Boards, which
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import ACME, World

CANNOT = "cannot allocate all claims"


def pod_with(namespace: Namespace, name: str, **requests: Any) -> None:
    namespace.create(pods.claim(name, **requests))
    namespace.create(pods.pod(name, {"own": name}))


def part(name: str) -> dict[str, Any]:
    return which(name, "part")


def memory(amount: str = "") -> dict[str, Any]:
    asked = {"capacity": {"requests": {"memory": amount}}} if amount else {}
    return which("pool", "pool", **asked)


def result(namespace: Namespace, claim: str) -> dict[str, Any]:
    [found] = namespace.claim(claim)["status"]["allocation"]["devices"]["results"]
    return dict(found)


def shell(namespace: Namespace, pod: str, words: str) -> str:
    return namespace.run(pod, "/bin/sh", "-c", words).strip()


# -- partitions -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("modern")
def test_parts_that_overlap_are_never_allocated_together(
    boards: Boards, namespace: Namespace
) -> None:
    pod_with(namespace, "half", part=part("half-0"))
    namespace.until_running("half")
    for name in ("middle", "card"):
        pod_with(namespace, name, part=part(name))
    pod_with(namespace, "beside", part=part("half-1"))

    namespace.until_running("beside")

    for name in ("middle", "card"):
        namespace.until_says(name, CANNOT)
        assert namespace.allocated(name) == []
    assert boards.held() == ["half-0", "half-1"]
    assert shell(namespace, "half", "ls /dev/acme") == "half-0"
    namespace.delete_pods("half")
    assert namespace.allocated("middle") == []  # half-1 has a quarter of it
    namespace.delete_pods("beside")
    until("one of the two", lambda: len(boards.held()) == 1)
    assert boards.held() in (["card"], ["middle"])


@pytest.mark.usefixtures("modern")
def test_while_the_whole_is_taken_no_part_of_it_is_allocated(
    boards: Boards, namespace: Namespace
) -> None:
    pod_with(namespace, "card", part=part("card"))
    namespace.until_running("card")
    pod_with(namespace, "any", part="acme-part")
    namespace.until_says("any", CANNOT)

    namespace.delete_pods("card")

    namespace.until_running("any")


@pytest.mark.usefixtures("modern")
def test_two_requests_of_one_claim_get_parts_that_do_not_overlap(
    boards: Boards, namespace: Namespace
) -> None:
    smaller = f"device.attributes['{ACME}'].size == 2"
    halves = {"deviceClassName": "acme-part", "selectors": [{"cel": {"expression": smaller}}]}
    pod_with(namespace, "p", parts=halves | {"count": 2})

    namespace.until_running("p")

    assert sorted(namespace.allocated("p")) == boards.held() == ["half-0", "half-1"]
    assert shell(namespace, "p", "ls /dev/acme").split() == ["half-0", "half-1"]


def test_the_published_counters_are_those_of_the_slices_that_parts_contend_for(
    world: World, boards: Boards
) -> None:
    if not world.modern:
        pytest.skip("before 1.36 the server drops counters")
    slices = world.witness.slices(ACME, NODE)

    sets = {s["name"]: s for one in slices for s in one["spec"].get("sharedCounters") or ()}
    consumed = {
        name: {key for use in device.get("consumesCounters") or () for key in use["counters"]}
        for name, device in boards.published().items()
    }

    assert consumed["card"] == {f"acme-card-{n}" for n in range(4)}
    assert consumed["middle"] == {"acme-card-1", "acme-card-2"}
    assert consumed["board-0"] == set()
    amounts = {k: c["value"] for one in sets.values() for k, c in one["counters"].items()}
    assert amounts == dict.fromkeys([*consumed["card"], "acme-pool"], "1")


def test_where_counters_are_dropped_a_second_part_is_refused_at_its_pod_with_the_holders_name(
    world: World, boards: Boards, namespace: Namespace
) -> None:
    if world.modern:
        pytest.skip("this server keeps counters: KUBERNETES=1.34 does not")
    namespace.create(pods.claim("half", part=part("half-0")))
    namespace.create(pods.claim("card", part=part("card")))
    for name in ("half", "card"):  # at once: a held part's rivals leave the offer
        namespace.create(pods.pod(name, {"own": name}))

    until("one of them", lambda: len(boards.held()) == 1)
    [held] = boards.held()
    loser, winner = ("half", "card") if held == "card" else ("card", "half")
    namespace.until_running(winner)
    assert len(boards.held()) == 1
    namespace.delete_pods(winner)

    namespace.until_running(loser)


# -- consumable capacity --------------------------------------------------------------------------


@pytest.mark.usefixtures("modern")
def test_two_pods_share_a_device_each_with_a_share_of_its_own_down_to_the_ledger(
    boards: Boards, namespace: Namespace
) -> None:
    pod_with(namespace, "six", memory=memory("6Gi"))
    namespace.until_running("six")
    six = result(namespace, "six")
    assert boards.told("pool", "taken") == f"{six['shareID']} 6Gi"

    pod_with(namespace, "three", memory=memory("2500Mi"))
    namespace.until_running("three")

    three = result(namespace, "three")
    assert three["consumedCapacity"] == {"memory": "3Gi"}  # rounded up to a step
    assert boards.told("pool", "taken") == f"{three['shareID']} 3Gi"
    shares = {hold["claim"]["name"]: hold["share_id"] for hold in boards.holds()}
    assert shares == {"six": six["shareID"], "three": three["shareID"]}
    for name, found, amount in (("six", six, "6Gi"), ("three", three, "3Gi")):
        seen = shell(namespace, name, "echo $ACME_SHARE; ls /dev/acme").split()
        assert seen == [found["shareID"], amount, "pool"]
    namespace.delete_pods("six")
    assert boards.told("pool", "freed") == f"{six['shareID']} 6Gi"
    assert [hold["share_id"] for hold in boards.holds()] == [three["shareID"]]
    assert shell(namespace, "three", "ls /dev/acme") == "pool"


@pytest.mark.usefixtures("modern")
def test_a_claim_that_asks_for_more_than_is_left_waits_until_it_is_there(
    boards: Boards, namespace: Namespace
) -> None:
    pod_with(namespace, "six", memory=memory("6Gi"))
    namespace.until_running("six")
    pod_with(namespace, "five", memory=memory("5Gi"))
    namespace.until_says("five", CANNOT)
    pod_with(namespace, "least", memory=memory())

    namespace.until_running("least")

    assert result(namespace, "least")["consumedCapacity"] == {"memory": "1Gi"}  # the default
    assert namespace.allocated("five") == []
    namespace.delete_pods("six")
    namespace.until_running("five")
    assert boards.held() == ["pool", "pool"]


@pytest.mark.usefixtures("modern")
def test_a_claim_that_asks_for_more_than_there_is_is_never_given_any(
    boards: Boards, namespace: Namespace
) -> None:
    pod_with(namespace, "p", memory=memory("11Gi"))

    namespace.until_says("p", CANNOT)

    assert boards.held() == []


@pytest.mark.usefixtures("modern")
def test_two_requests_of_one_claim_have_two_shares_of_one_device(
    boards: Boards, namespace: Namespace
) -> None:
    pod_with(namespace, "p", small=memory("1Gi"), large=memory("4Gi"))

    namespace.until_running("p")

    holds = {hold["request"]: hold["share_id"] for hold in boards.holds()}
    results = namespace.claim("p")["status"]["allocation"]["devices"]["results"]
    assert holds == {one["request"]: one["shareID"] for one in results}
    assert len(set(holds.values())) == 2
    written = until("status", lambda: namespace.claim("p")["status"].get("devices"))
    assert {one["shareID"] for one in written} == set(holds.values())


@pytest.mark.usefixtures("modern")
def test_a_device_whose_shares_are_taken_and_the_whole_of_it_exclude_each_other(
    boards: Boards, namespace: Namespace
) -> None:
    for name in ("one", "two"):
        pod_with(namespace, name, memory=memory("1Gi"))
    namespace.until_running("one", "two")
    pod_with(namespace, "whole", pool=which("pool-whole", "pool"))
    namespace.until_says("whole", CANNOT)

    namespace.delete_pods("one", "two")

    namespace.until_running("whole")
    pod_with(namespace, "three", memory=memory("1Gi"))
    namespace.until_says("three", CANNOT)
    assert boards.held() == ["pool-whole"]
