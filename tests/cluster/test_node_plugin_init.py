"""A device that an init container alone has, on a real node: no list of pods names it."""

from __future__ import annotations

import time

import pytest
from cluster import pods
from cluster.plugged import BOARD, Plugged, wants
from cluster.waiting import until
from cluster.witness import Namespace

LONG = 75.0
"""Seconds: pods are read six times meanwhile, and the kubelet is said the list once more."""
FREE = 120.0


def loads(namespace: Namespace) -> bool:
    """Say whether the pod's init container runs."""
    seen = namespace.pod("p")["status"].get("initContainerStatuses") or ()
    return any("running" in (one.get("state") or {}) for one in seen)


@pytest.mark.timeout(400)
def test_an_init_containers_device_is_held_as_long_as_it_runs(
    plugged: Plugged, namespace: Namespace
) -> None:
    first = wants(pods.container("load", script="echo $ACME_BOARD; exec sleep 1000"))
    namespace.create(pods.pod("p", {}, pods.container(), initContainers=[first]))
    until("it loads", lambda: loads(namespace))
    (board,) = until("its board", lambda: namespace.log("p", "load").split())

    end = time.monotonic() + LONG
    while time.monotonic() < end:
        assert plugged.held().get(board) == board
        time.sleep(1)

    assert plugged.pods_with(board) == []
    namespace.delete_pods("p")
    until("free", lambda: board not in plugged.held(), FREE)
    plugged.until_allocatable(BOARD, 3)
