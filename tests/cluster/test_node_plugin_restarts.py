"""Pods with extended resources, while every program below them ends and is started again."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from cluster import pods
from cluster.plugged import BOARD, BOARDS, NODE, Plugged, boards_of, lives, pod, wants
from cluster.waiting import until
from cluster.witness import Namespace


def running(plugged: Plugged, namespace: Namespace) -> str:
    """Start a pod; return the board that it has."""
    namespace.create(pod("p"))
    namespace.until_running("p")
    [board] = set(boards_of(namespace, "p"))
    assert plugged.held()[board] == board
    return board


def still_has(namespace: Namespace, name: str, board: str) -> None:
    """Check that a pod goes on with its board, in the container that it has."""
    namespace.until_running(name)
    seen = until("exec", lambda: quietly(namespace, name))
    assert seen == [board, board]
    assert lives(namespace, name) == 0


def quietly(namespace: Namespace, name: str) -> list[str]:
    try:
        return boards_of(namespace, name)
    except Exception:  # noqa: BLE001 - the kubelet is not back yet
        return []


def others_get_others(plugged: Plugged, namespace: Namespace, board: str) -> None:
    """Check that the boards that are left are given out, and none of them twice."""
    plugged.until_listed()
    plugged.until_allocatable(BOARD, 3)
    namespace.create(pod("others", amount=2))
    namespace.until_running("others")
    got = boards_of(namespace, "others")
    assert sorted({*got, board}) == list(BOARDS)
    namespace.create(pod("last"))
    namespace.until_says("last", f"Insufficient {BOARD}")
    assert set(plugged.held()) >= set(BOARDS)


@pytest.mark.parametrize(
    ("how", "part"),
    [
        ("restart", "n3-kubelet"),
        ("crash", "n3-kubelet"),
        ("restart", "n3-containerd"),
        ("crash", "n3-containerd"),
    ],
)
@pytest.mark.field_case("A02", "J03")
def test_a_pod_keeps_its_device_and_no_other_gets_it_when_a_program_restarts(
    plugged: Plugged, namespace: Namespace, how: str, part: str
) -> None:
    board = running(plugged, namespace)

    if part == f"{NODE}-kubelet":
        plugged.restart_kubelet(how)
    else:
        getattr(plugged.cluster, how)(part)

    still_has(namespace, "p", board)
    others_get_others(plugged, namespace, board)


@pytest.mark.field_case("A02", "J03")
def test_a_pod_keeps_its_device_and_no_other_gets_it_when_the_agent_is_killed(
    plugged: Plugged, namespace: Namespace
) -> None:
    board = running(plugged, namespace)

    plugged.agent.kill()
    plugged.until_allocatable(BOARD, 0)
    assert plugged.capacity(BOARD) == 3
    namespace.run("p", "kill", "1")  # the CDI file is enough for the next life
    until("a second life", lambda: lives(namespace, "p") == 1)
    namespace.until_running("p")
    assert boards_of(namespace, "p") == [board, board]
    plugged.agent.start()

    others_get_others(plugged, namespace, board)


@pytest.mark.field_case("A02", "J03")
def test_the_agent_and_the_kubelet_come_back_in_either_order(
    plugged: Plugged, namespace: Namespace
) -> None:
    board = running(plugged, namespace)

    plugged.agent.kill()
    plugged.cluster.restart(f"{NODE}-kubelet")
    still_has(namespace, "p", board)
    plugged.agent.start()
    plugged.until_listed()
    plugged.cluster.kill(f"{NODE}-kubelet")
    plugged.agent.kill()
    plugged.agent.start()
    until("the hold is known", lambda: plugged.held().get(board) == board)
    plugged.cluster.start(f"{NODE}-kubelet")

    still_has(namespace, "p", board)
    others_get_others(plugged, namespace, board)


@pytest.mark.field_case("A01", "C06")
def test_after_a_reboot_pods_have_devices_again_and_no_device_two_pods(
    plugged: Plugged, namespace: Namespace
) -> None:
    """A kubelet refuses the old pods while our resource is unknown to it; their owner makes new
    ones."""
    namespace.create(deployment(2))
    until("two pods", lambda: len(living(namespace)) == 2)

    plugged.reboot()
    assert plugged.cdi_files() == []
    plugged.agent.start()

    def look() -> Counter[str]:
        found = living(namespace)
        return Counter(found) if len(found) == 2 else Counter()

    until("two pods", look)
    plugged.until_allocatable(BOARD, 3)
    owners = until("two boards", look)
    assert set(owners.values()) == {1}, owners
    assert set(owners) <= set(plugged.held())
    until("those of nobody are free", lambda: set(plugged.held()) & set(BOARDS) == set(owners))


def test_a_hold_ends_some_while_after_its_pod_and_the_board_is_told(
    plugged: Plugged, namespace: Namespace
) -> None:
    board = running(plugged, namespace)

    namespace.delete_pods("p")

    plugged.until_free(board)
    assert plugged.freed(board) == "alone"
    assert not [file for file in plugged.cdi_files() if board in plugged.cdi_text(file)]
    others = pod("next", amount=3)
    namespace.create(others)
    namespace.until_running("next")
    assert set(plugged.held()) >= set(BOARDS)


@pytest.mark.field_case("A02")
def test_a_kubelet_that_comes_back_under_the_same_inode_number_is_noticed(
    plugged: Plugged, namespace: Namespace
) -> None:
    """File systems give a freed inode number to the next file, so that it may tell nothing."""
    path = plugged.cluster.paths(NODE)["device_plugins"] / "kubelet.sock"
    seen = set()
    for _ in range(3):
        seen.add(os.lstat(path).st_ino)
        plugged.restart_kubelet()
    plugged.until_allocatable(BOARD, 3)
    namespace.create(pod("p"))
    namespace.until_running("p")
    print(f"inode numbers of three kubelets' sockets: {sorted(seen)}")  # noqa: T201


def deployment(replicas: int) -> dict[str, object]:
    body = pods.deployment("app", {}, wants(pods.container()))
    body["spec"]["replicas"] = replicas
    return body


def living(namespace: Namespace) -> list[str]:
    """Return the boards of the Deployment's pods that run."""
    found = []
    for one in namespace.pods("app"):
        if one["status"].get("phase") == "Running" and not one["metadata"].get("deletionTimestamp"):
            found += quietly(namespace, one["metadata"]["name"])[:1]
    return found
