"""Pods and extended resources on a real node: who receives what, and what of a pod goes wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cluster import pods
from cluster.plugged import BOARD, BOARDS, NODE, RENDER, USB, Plugged, boards_of, lives, pod, wants
from cluster.waiting import until
from cluster.witness import Namespace

ZIGBEE, TRANSCODER = "example.com/zigbee", "example.com/transcoder"
SELECTED = [
    {
        "name": ZIGBEE,
        "selector": 'device.attributes["home.example.com"].?vendor.orValue("") == "10c4" && '
        'device.attributes["home.example.com"].?product.orValue("") == "ea60"',
    },
    {
        "name": TRANSCODER,
        "selector": 'has(device.attributes["home.example.com"].renderNode)',
        "limit": 1,
        "replicas": 2,
    },
]


def failed(namespace: Namespace, name: str) -> dict[str, Any]:
    """Wait until the kubelet will not have a pod; return the status that a user reads."""
    status: dict[str, Any] = until(
        f"{name} failed",
        lambda: (s := namespace.pod(name)["status"]).get("phase") == "Failed" and s,
    )
    return status


def test_every_kind_is_a_resource_of_the_node(plugged: Plugged) -> None:
    plugged.until_allocatable(RENDER, 2)

    assert plugged.allocatable(BOARD) == plugged.capacity(BOARD) == 3
    assert plugged.allocatable(USB) == 1
    until("no slices, also of a run before", lambda: plugged.published() == {})
    until("no fault", lambda: plugged.agent.says("status")["faults"] == [])


@pytest.mark.parametrize("way", ["cdi", "specs"])
def test_a_pod_has_the_one_device_that_it_asked_for(
    plugged: Plugged, namespace: Namespace, way: str
) -> None:
    plugged.configure(frontend__deviceplugin__devices=way)
    plugged.until_listed()
    plugged.until_allocatable(BOARD, 3)
    namespace.create(pod("p"))
    namespace.until_running("p")

    board, *seen = boards_of(namespace, "p")

    assert [board] == seen
    assert board in BOARDS
    listed = namespace.run("p", "ls", "-l", f"/dev/acme/{board}")
    assert f"249,   {BOARDS.index(board)}" in listed
    assert plugged.held()[board] == board
    assert plugged.told(board) == "alone"
    until("the pod is named", lambda: plugged.pods_with(board) == [f"{namespace.name}/p"])


def test_containers_of_a_pod_have_different_devices_and_one_that_asks_for_none_has_none(
    plugged: Plugged, namespace: Namespace
) -> None:
    both = [wants(pods.container("a")), wants(pods.container("b"), 2)]
    namespace.create(pods.pod("p", {}, *both, pods.container("none")))
    namespace.until_running("p")

    a, b = (boards_of(namespace, "p", name) for name in ("a", "b"))

    assert (len(a), len(b)) == (2, 4)
    assert sorted({*a, *b}) == list(BOARDS)
    assert sorted(b[:2]) == b[2:]
    assert "No such file" in namespace.run("p", "ls", "/dev/acme", container="none")
    assert set(plugged.held()) >= set(BOARDS)


@pytest.mark.field_case("A08")
def test_an_init_containers_device_goes_on_to_the_next_and_a_sidecar_keeps_its_own(
    plugged: Plugged, namespace: Namespace
) -> None:
    tell = "echo $ACME_BOARD; ls /dev/acme"
    first = [
        wants(pods.container("sidecar")) | {"restartPolicy": "Always"},
        wants(pods.container("once", script=tell)),
    ]
    namespace.create(pods.pod("p", {}, wants(pods.container()), initContainers=first))
    namespace.until_running("p")

    once = namespace.log("p", "once").split()
    sidecar, main = boards_of(namespace, "p", "sidecar"), boards_of(namespace, "p")

    assert once == main
    assert once[0] == once[1]
    assert sidecar[0] == sidecar[1] != main[0]
    assert {main[0], sidecar[0]} <= set(plugged.held())
    namespace.run("p", "kill", "1", container="sidecar")
    until("a second life", lambda: lives(namespace, "p", "sidecar") == 1)
    namespace.until_running("p")
    assert boards_of(namespace, "p", "sidecar") == sidecar
    assert boards_of(namespace, "p") == main


def test_a_second_pod_waits_until_the_first_has_given_the_device_back(
    plugged: Plugged, namespace: Namespace
) -> None:
    namespace.create(pod("first", USB))
    namespace.until_running("first")
    namespace.create(pod("second", USB))
    namespace.until_says("second", f"Insufficient {USB}")

    namespace.delete_pods("first")

    namespace.until_running("second")
    assert "188,   0" in namespace.run("second", "ls", "-l", "/dev/ttyUSB0")


@pytest.mark.field_case("A01")
def test_a_pod_that_cannot_have_its_device_fails_with_the_reason_and_costs_no_other(
    plugged: Plugged, namespace: Namespace
) -> None:
    plugged.until_free(*BOARDS)  # an id that is held still is given again as it is
    namespace.create(pod("well"))
    namespace.until_running("well")
    well = boards_of(namespace, "well")
    for board in set(BOARDS) - set(well):
        plugged.set(board, taken=None)  # its driver cannot prepare it any more

    namespace.create(pod("ill"))
    status = failed(namespace, "ill")

    assert status["reason"] == "UnexpectedAdmissionError"
    assert "prepare_device of plugin 'driver/boards' failed" in status["message"]
    namespace.until_running("well")
    assert boards_of(namespace, "well") == well
    assert sorted(set(plugged.holders()) & set(BOARDS)) == well[:1]
    for board in set(BOARDS) - set(well):
        plugged.set(board, taken="")
    plugged.until_allocatable(BOARD, 3)
    namespace.create(pod("again"))
    namespace.until_running("again")
    assert boards_of(namespace, "again")[0] not in well


@pytest.mark.field_case("A01")
def test_a_pod_that_is_put_on_the_node_while_the_agent_is_away_fails_and_the_next_one_runs(
    plugged: Plugged, namespace: Namespace
) -> None:
    plugged.agent.kill()
    plugged.until_allocatable(BOARD, 0)

    namespace.create(pod("early", nodeName=NODE))
    status = failed(namespace, "early")
    namespace.create(pod("patient"))
    namespace.until_says("patient", f"Insufficient {BOARD}")
    plugged.agent.start()

    assert BOARD in status["message"]
    assert plugged.capacity(BOARD) == 3
    namespace.until_running("patient")


def test_resources_that_an_admin_defines_by_selectors_hold_what_they_select(
    plugged: Plugged, namespace: Namespace
) -> None:
    plugged.configure(frontend__deviceplugin__resources=SELECTED)
    plugged.until_allocatable(ZIGBEE, 1)
    plugged.until_allocatable(TRANSCODER, 2)
    plugged.until_allocatable(RENDER, 1)  # the card that is in no resource of the admin's
    plugged.until_allocatable(USB, 0)

    limits = {"resources": {"limits": {ZIGBEE: "1", TRANSCODER: "1"}}}
    for name, asked in (("p", limits), ("q", {"resources": {"limits": {TRANSCODER: "1"}}})):
        namespace.create(pods.pod(name, {}, pods.container() | asked))
        namespace.until_running(name)

    assert "188,   0" in namespace.run("p", "ls", "-l", "/dev/ttyUSB0")
    assert namespace.run("p", "ls", "/dev/dri") == namespace.run("q", "ls", "/dev/dri")
    assert "No such file" in namespace.run("q", "ls", "/dev/ttyUSB0")


def test_the_agent_asks_the_api_server_for_its_node_at_most(
    plugged: Plugged, namespace: Namespace
) -> None:
    """Of the role in deploy/rbac.yaml the device plugin API needs nothing."""
    begun = len(asked(plugged))
    plugged.configure(log__level="debug")  # it starts anew
    plugged.until_listed()
    plugged.until_allocatable(BOARD, 3)
    namespace.create(pod("p"))
    namespace.until_running("p")
    namespace.delete_pods("p")

    assert set(asked(plugged)[begun:]) <= {"get nodes"}


def asked(plugged: Plugged) -> list[str]:
    """Return what the node's agent has asked the API server for, as verb and resource."""
    calls = []
    for line in (plugged.cluster.logs / "audit.log").read_text().splitlines():
        entry = json.loads(line)
        whose = entry["user"].get("extra", {}).get("authentication.kubernetes.io/node-name", [])
        if whose == [NODE] and "objectRef" in entry:
            calls.append(f"{entry['verb']} {entry['objectRef']['resource']}")
    return calls
