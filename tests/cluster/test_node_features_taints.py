"""Taints: of a driver on its own devices, and of an administrator by DeviceTaintRule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cluster import pods
from cluster.boards import NODE, Boards
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import ACME, World

CANNOT = "cannot allocate all claims"
KEY = f"{ACME}/maintenance"
BOARDS = ("board-0", "board-1")


def tolerating(effect: str, **more: Any) -> dict[str, Any]:
    """Return a request for a board that tolerates the taint."""
    toleration = {"key": KEY, "operator": "Exists", "effect": effect} | more
    return {"deviceClassName": "acme-board", "tolerations": [toleration]}


def pod_with(namespace: Namespace, name: str, request: Any = "acme-board") -> None:
    namespace.create(pods.claim(name, board=request))
    namespace.create(pods.pod(name, {"board": name}))


def own_board(namespace: Namespace, pod: str) -> str:
    return namespace.run(pod, "/bin/sh", "-c", "echo $ACME_BOARD").strip()


def taint_all(boards: Boards, effect: str, of: tuple[str, ...] = BOARDS) -> None:
    for board in of:
        boards.set(board, taint="maintenance", effect=effect)
    for board in of:
        boards.until_tainted(board, KEY)


@pytest.fixture
def rules(world: World) -> Iterator[Any]:
    """Make DeviceTaintRules, and take them away after."""
    if world.version < (1, 37):
        pytest.skip("DeviceTaintRule is GA, and on, from 1.37")
    made = []

    def make(device: str, effect: str) -> str:
        name = f"rule-{next(world.fresh)}"
        selector = {"driver": ACME, "pool": NODE, "device": device}
        spec = {"deviceSelector": selector, "taint": {"key": KEY, "effect": effect}}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "spec": spec}
        world.witness.create(body | {"metadata": {"name": name}})
        made.append(name)
        return name

    yield make
    for name in made:
        world.witness.delete("DeviceTaintRule", name)


# -- a driver's own -------------------------------------------------------------------------------


@pytest.mark.usefixtures("modern")
def test_a_tainted_device_goes_only_to_a_claim_that_tolerates_it(
    boards: Boards, namespace: Namespace
) -> None:
    taint_all(boards, "NoSchedule")
    pod_with(namespace, "plain")
    namespace.until_says("plain", CANNOT)
    pod_with(namespace, "tolerant", tolerating("NoSchedule"))

    namespace.until_running("tolerant")

    assert own_board(namespace, "tolerant") in BOARDS
    assert namespace.allocated("plain") == []
    boards.set()
    namespace.until_running("plain")
    assert {own_board(namespace, name) for name in ("plain", "tolerant")} == set(BOARDS)


@pytest.mark.usefixtures("modern")
def test_a_pod_is_evicted_from_a_device_that_its_driver_taints_and_the_hold_ends(
    boards: Boards, namespace: Namespace
) -> None:
    pod_with(namespace, "p")
    namespace.until_running("p")
    [board] = namespace.allocated("p")

    boards.set(board, taint="maintenance", effect="NoExecute")

    namespace.until_gone("p")
    assert boards.holds() == []
    assert boards.told(board, "freed") == "alone"
    until("deallocated", lambda: namespace.allocated("p") == [])


@pytest.mark.usefixtures("modern")
def test_a_claim_keeps_a_tainted_device_for_as_long_as_it_tolerates_it(
    boards: Boards, namespace: Namespace
) -> None:
    pod_with(namespace, "short", tolerating("NoExecute", tolerationSeconds=1))
    pod_with(namespace, "long", tolerating("NoExecute", tolerationSeconds=3600))
    namespace.until_running("short", "long")

    taint_all(boards, "NoExecute")

    namespace.until_gone("short")
    namespace.until_running("long")
    assert boards.held() == namespace.allocated("long")


@pytest.mark.usefixtures("modern")
def test_a_taint_keeps_its_time_while_other_devices_of_the_slice_change(
    boards: Boards, namespace: Namespace
) -> None:
    """Else every change of a neighbour would grant ``tolerationSeconds`` anew."""
    taint_all(boards, "NoExecute", ("board-0",))
    before = boards.published()["board-0"]["taints"]

    taint_all(boards, "NoSchedule", ("board-1",))

    assert boards.published()["board-0"]["taints"] == before
    assert before[0]["timeAdded"]


def test_where_taints_are_dropped_a_tainted_device_that_nobody_holds_leaves(
    world: World, boards: Boards, namespace: Namespace
) -> None:
    if world.modern:
        pytest.skip("this server keeps taints: KUBERNETES=1.34 does not")
    pod_with(namespace, "p")
    namespace.until_running("p")
    [held] = namespace.allocated("p")

    for board in BOARDS:
        boards.set(board, taint="maintenance")

    until("one is left", lambda: {*BOARDS} & {*boards.published()} == {held})


# -- an administrator's ---------------------------------------------------------------------------


def test_an_administrators_rule_keeps_claims_off_a_device_until_it_is_deleted(
    world: World, boards: Boards, namespace: Namespace, rules: Any
) -> None:
    before = world.witness.slices(ACME, NODE)
    made = [rules(board, "NoSchedule") for board in BOARDS]
    pod_with(namespace, "p")
    namespace.until_says("p", CANNOT)

    world.witness.delete("DeviceTaintRule", made[1])

    namespace.until_running("p")
    assert namespace.allocated("p") == ["board-1"]
    assert world.witness.slices(ACME, NODE) == before  # such a taint is in no slice


def test_a_rule_that_evicts_moves_a_deployment_to_another_device_and_frees_the_first(
    world: World, boards: Boards, namespace: Namespace, rules: Any
) -> None:
    template = {"spec": pods.claim_spec(board="acme-board")}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "spec": template}
    namespace.create(body | {"metadata": {"name": "board"}})
    namespace.create(pods.deployment("app", {"board": "template:board"}))
    [old] = namespace.until_app_runs("app")
    board = own_board(namespace, old)

    rule = rules(board, "NoExecute")

    namespace.until_gone(old)
    [new] = namespace.until_app_runs("app")
    [other] = {*BOARDS} - {board}
    assert own_board(namespace, new) == other
    assert boards.held() == [other]
    assert boards.told(board, "freed") == "alone"
    until("the rule says that it is done", lambda: not evicting(world, rule))


def test_a_rule_without_effect_says_how_many_pods_it_would_evict_and_evicts_none(
    world: World, boards: Boards, namespace: Namespace, rules: Any
) -> None:
    pod_with(namespace, "p")
    namespace.until_running("p")
    [board] = namespace.allocated("p")

    rule = rules(board, "None")

    said = until("it says", lambda: [c["message"] for c in conditions(world, rule)])
    assert said[0].startswith("1 published device selected. 1 allocated device selected. 1 pod")
    namespace.until_running("p")
    assert boards.held() == [board]


def conditions(world: World, rule: str) -> list[dict[str, Any]]:
    found = world.witness.get("DeviceTaintRule", rule)
    assert found is not None
    said: list[dict[str, Any]] = found.get("status", {}).get("conditions") or []
    return said


def evicting(world: World, rule: str) -> bool:
    said = {one["type"]: one["status"] for one in conditions(world, rule)}
    return bool(said["EvictionInProgress"] == "True")
