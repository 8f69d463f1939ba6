"""Both frontends on one node, and a node that is moved from one to the other while pods run."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster import pods
from cluster.plugged import BOARD, BOARDS, RENDER, USB, Plugged, boards_of, lives, pod, wants
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import ADAPTER, HOME, WHOLE

KIND = [{"kind": "acme.board"}]
BESIDE = {
    "frontends": "dra,deviceplugin",
    "frontend__deviceplugin__only": KIND,
    "frontend__dra__without": KIND,
}
"""Boards through the device plugin API, everything else through DRA."""
MOVED = {"frontends": "dra,deviceplugin", "frontend__deviceplugin__only": []}
"""All devices through DRA; the other frontend lists its names empty until nothing is held there."""


def beside(plugged: Plugged) -> None:
    plugged.configure(BESIDE)
    until("the rest is in slices", lambda: set(plugged.published()) == WHOLE)
    plugged.until_listed()
    plugged.until_allocatable(BOARD, 3)


def test_each_frontend_offers_its_own_hardware_and_a_pod_has_of_both(
    plugged: Plugged, namespace: Namespace
) -> None:
    beside(plugged)
    plugged.until_allocatable(RENDER, 0)
    plugged.until_allocatable(USB, 0)
    namespace.create(pods.claim("adapter", adapter="home-adapter"))
    both = wants(pods.container())
    both["resources"]["claims"] = [{"name": "adapter"}]
    namespace.create(pods.pod("p", {"adapter": "adapter"}, both))
    namespace.until_running("p")

    board, seen = boards_of(namespace, "p")

    assert board == seen
    assert "188,   0" in namespace.run("p", "ls", "-l", "/dev/ttyUSB0")
    assert {board: board, "adapter": ADAPTER}.items() <= plugged.held().items()
    until("the pod is named", lambda: plugged.pods_with(board) == [f"{namespace.name}/p"])
    until("of the claim too", lambda: plugged.pods_with(ADAPTER) == [f"{namespace.name}/p"])
    namespace.delete_pods("p")
    until("the claim's hold ends at once", lambda: ADAPTER not in plugged.held().values())


def test_a_pod_of_each_frontend_keeps_its_device_when_the_agent_and_the_kubelet_start_anew(
    plugged: Plugged, namespace: Namespace
) -> None:
    beside(plugged)
    namespace.create(pods.claim("adapter", adapter="home-adapter"))
    namespace.create(pods.pod("claims", {"adapter": "adapter"}))
    namespace.create(pod("limits"))
    namespace.until_running("claims", "limits")
    [board] = set(boards_of(namespace, "limits"))
    holds = {board: board, "adapter": ADAPTER}.items()
    assert holds <= plugged.held().items()

    plugged.agent.kill()
    plugged.agent.start()
    plugged.until_listed()
    plugged.restart_kubelet()
    plugged.until_allocatable(BOARD, 3)

    namespace.until_running("claims", "limits")
    assert holds <= plugged.held().items()
    assert set(boards_of(namespace, "limits")) == {board}
    assert (lives(namespace, "claims"), lives(namespace, "limits")) == (0, 0)
    namespace.delete_pods("claims", "limits")


def test_what_two_frontends_would_offer_is_offered_through_neither(
    plugged: Plugged, namespace: Namespace
) -> None:
    rest = [{"plugin": "pci_drm"}, {"plugin": "usb"}]
    both = {"only": [*KIND, {"device": ADAPTER}]}
    plugged.configure(
        frontends="dra,deviceplugin",
        frontend__deviceplugin__only=both["only"],
        frontend__dra__only=rest,
    )
    until("the rest is in slices", lambda: set(plugged.published()) == WHOLE - {ADAPTER})
    plugged.until_allocatable(BOARD, 3)

    def said() -> list[str]:
        reasons = plugged.agent.says("status")["not_offered"]
        return [one["reason"] for one in reasons if one["subject"] == ADAPTER]

    [reason] = until("it says why", said)
    assert "both [frontend.deviceplugin] and [frontend.dra]" in reason
    assert plugged.allocatable(USB) == 0
    namespace.create(pod("p", USB))
    namespace.until_says("p", f"Insufficient {USB}")


# -- from one to the other ------------------------------------------------------------------------


@contextmanager
def extended(plugged: Plugged) -> Iterator[None]:
    """A class under which the scheduler finds by DRA what pods ask for as before."""
    wanted = pods.device_class(
        "home-board",
        f"device.driver == '{HOME}' && device.attributes['{HOME}'].kind == 'acme.board'",
    )
    wanted["spec"]["extendedResourceName"] = BOARD
    plugged.witness.create(wanted)
    try:
        yield
    finally:
        plugged.witness.delete("DeviceClass", "home-board")


@pytest.fixture
def extended_class(plugged: Plugged) -> Iterator[None]:
    with extended(plugged):
        yield


class Ward:
    """A directory that all pods of a test write to: two that have one board at once tell."""

    SCRIPT = """
        trap 'rmdir /ward/$ACME_BOARD; exit 0' TERM
        mkdir /ward/$ACME_BOARD || echo "$ACME_BOARD $HOSTNAME" >> /ward/twice
        while :; do sleep 1000 & wait; done"""

    def __init__(self, root: Path) -> None:
        self.root = root

    def container(self) -> dict[str, Any]:
        mounted = {"volumeMounts": [{"name": "ward", "mountPath": "/ward"}]}
        return wants(pods.container(script=self.SCRIPT)) | mounted

    def volumes(self) -> list[dict[str, Any]]:
        return [{"name": "ward", "hostPath": {"path": str(self.root)}}]

    def taken(self) -> list[str]:
        return sorted(one.name for one in self.root.iterdir())


class Load:
    """Deletes the pods of a Deployment, one after the other, for as long as it runs."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace, self._ends = namespace, threading.Event()
        self.deleted = 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ends.wait(0.5):
            running = [p for p in self._namespace.pods("load") if _is_up(p)]
            if len(running) > 1:
                self._namespace.delete("Pod", running[0]["metadata"]["name"])
                self.deleted += 1
                self._ends.wait(2)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


def _is_up(one: dict[str, Any]) -> bool:
    return one["status"].get("phase") == "Running" and not one["metadata"].get("deletionTimestamp")


@pytest.mark.usefixtures("modern", "extended_class")
def test_a_node_moves_to_dra_under_load_and_no_board_is_given_twice(
    plugged: Plugged, namespace: Namespace, tmp_path: Path
) -> None:
    ward = Ward(tmp_path)
    tmp_path.chmod(0o777)
    namespace.create(pod("old"))
    namespace.until_running("old")
    [kept] = set(boards_of(namespace, "old"))
    body = pods.deployment("load", {}, ward.container())
    body["spec"]["replicas"] = 2
    body["spec"]["template"]["spec"]["volumes"] = ward.volumes()
    namespace.create(body)
    until("two pods of the load", lambda: len(ward.taken()) == 2)

    with Load(namespace) as load:
        until("some were replaced", lambda: load.deleted >= 2)
        plugged.configure(MOVED)
        until("boards are in slices", lambda: set(BOARDS) <= set(plugged.published()) | {kept})
        plugged.until_allocatable(BOARD, 0)
        seen: set[str] = set()
        until("pods follow each other through claims", lambda: _more(seen, claimed(namespace), 4))
    until("two pods of the load", lambda: len(up(namespace)) == 2)

    assert "twice" not in ward.taken()
    assert kept not in ward.taken()
    assert boards_of(namespace, "old") == [kept, kept]
    assert lives(namespace, "old") == 0
    held = until("claims and the old pod", lambda: whole(plugged))
    assert plugged.held()[kept] == kept, held
    namespace.delete_pods("old")
    namespace.create(pod("new"))
    namespace.until_running("new")
    assert boards_of(namespace, "new") == [kept, kept]
    assert "extendedResourceClaimStatus" in namespace.pod("new")["status"]


def _more(seen: set[str], found: list[str], count: int) -> bool:
    seen.update(found)
    return len(seen) >= count


def claimed(namespace: Namespace) -> list[str]:
    """Return the pods of the load that run with a claim that the scheduler made."""
    return [
        one["metadata"]["name"]
        for one in up(namespace)
        if one["status"].get("extendedResourceClaimStatus")
    ]


def up(namespace: Namespace) -> list[dict[str, Any]]:
    return [one for one in namespace.pods("load") if _is_up(one)]


def whole(plugged: Plugged) -> Counter[str] | None:
    """Return how often each board is held, once each is held exactly once."""
    found = Counter(one["device"] for one in plugged.holds())
    return found if found == Counter(BOARDS) else None
