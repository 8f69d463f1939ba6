"""A pod that gets another's device right after it, on a real node: the device is undone between.

Whether it is another pod the kubelet alone knows; what its checkpoint says and when is its own.
"""

from __future__ import annotations

import pytest
from cluster import pods
from cluster.plugged import BOARDS, Plugged, boards_of, pod, wants
from cluster.witness import Namespace

AGAIN = 4
"""Pods that follow each other: most within the time in which nobody has seen the last one's end."""


def forget(plugged: Plugged) -> None:
    """Wait until nobody has a board, and let none have been given back before."""
    plugged.until_free(*BOARDS)
    for board in BOARDS:
        plugged.set(board, freed="")


@pytest.mark.timeout(400)
def test_a_device_is_undone_before_the_next_pod_has_it(
    plugged: Plugged, namespace: Namespace
) -> None:
    forget(plugged)
    namespace.create(pod("p0", amount=3))
    namespace.until_running("p0")
    for number in range(1, AGAIN):
        for board in BOARDS:
            assert plugged.freed(board) == ""
        namespace.create(pod(f"p{number}", amount=3))
        namespace.delete_pods(f"p{number - 1}")
        namespace.until_running(f"p{number}")

        assert sorted(boards_of(namespace, f"p{number}")[:3]) == list(BOARDS)
        for board in BOARDS:
            assert plugged.freed(board) == "alone", (
                f"{board} was taken over as p{number - 1} left it"
            )
            plugged.set(board, freed="")
    assert plugged.held() == {board: board for board in BOARDS}


@pytest.mark.timeout(400)
def test_what_init_containers_had_is_not_undone_before_their_pod_has_it(
    plugged: Plugged, namespace: Namespace
) -> None:
    forget(plugged)
    first = [wants(pods.container(name, script="echo $ACME_BOARD"), 3) for name in ("i", "j")]

    namespace.create(pods.pod("p", {}, wants(pods.container(), 3), initContainers=first))
    namespace.until_running("p")

    assert sorted(boards_of(namespace, "p")[:3]) == list(BOARDS)
    assert [plugged.freed(board) for board in BOARDS] == ["", "", ""]
    assert [namespace.log("p", name).strip().count("board-") for name in ("i", "j")] == [3, 3]
