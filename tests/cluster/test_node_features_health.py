"""How a device is, where a user looks: in the pod's status, and in the claim's."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import pods
from cluster.boards import NODE, Boards, which
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import ACME

FAULT = "memory bank 2 does not answer"


def told(namespace: Namespace, pod: str) -> dict[str, dict[str, Any]]:
    """Return what a pod's status says of its resources, by name: the first device of each."""
    statuses = namespace.pod(pod)["status"].get("containerStatuses") or ()
    return {
        allocated["name"]: allocated["resources"][0]
        for status in statuses
        for allocated in status.get("allocatedResourcesStatus") or ()
    }


def health_of(namespace: Namespace, resource: str) -> str:
    return str(told(namespace, "p").get(resource, {}).get("health"))


@pytest.mark.usefixtures("modern")
def test_a_fault_and_its_recovery_are_in_the_pods_status_with_the_drivers_words(
    boards: Boards, namespace: Namespace
) -> None:
    namespace.create(pods.claim("own", board="acme-board"))
    namespace.create(pods.pod("p", {"board": "own"}))
    namespace.until_running("p")
    [board] = namespace.allocated("own")
    until("healthy", lambda: health_of(namespace, "claim:board") == "Healthy")

    boards.set(board, fault=FAULT)

    until("unhealthy", lambda: health_of(namespace, "claim:board") == "Unhealthy", patience=20)
    assert told(namespace, "p")["claim:board"]["message"] == FAULT
    assert f"{ACME}/device=" in told(namespace, "p")["claim:board"]["resourceID"]
    boards.until_tainted(board, f"{ACME}/unhealthy")
    boards.set(board, fault=None)
    until("healthy", lambda: health_of(namespace, "claim:board") == "Healthy", patience=20)
    boards.until_tainted(board)
    assert boards.held() == [board]


@pytest.mark.usefixtures("modern")
def test_each_request_of_a_claim_has_the_health_of_its_own_device(
    boards: Boards, namespace: Namespace
) -> None:
    wanted = {f"r{n}": which(f"board-{n}", "board") for n in (0, 1)}
    namespace.create(pods.claim("both", (), **wanted))
    uses = pods.container(uses=("both/r0", "both/r1"))
    namespace.create(pods.pod("p", {"both": "both"}, uses))
    namespace.until_running("p")

    boards.set("board-1", fault=FAULT)

    until("one", lambda: health_of(namespace, "claim:both/r1") == "Unhealthy", patience=20)
    until("other", lambda: health_of(namespace, "claim:both/r0") == "Healthy", patience=20)


@pytest.mark.usefixtures("modern")
def test_health_is_unknown_while_the_agent_is_away(boards: Boards, namespace: Namespace) -> None:
    namespace.create(pods.claim("own", board="acme-board"))
    namespace.create(pods.pod("p", {"board": "own"}))
    namespace.until_running("p")
    until("healthy", lambda: health_of(namespace, "claim:board") == "Healthy")

    boards.agent.kill()

    until("unknown", lambda: health_of(namespace, "claim:board") == "Unknown")
    boards.agent.start()
    until("healthy", lambda: health_of(namespace, "claim:board") == "Healthy")


def test_a_claims_status_says_what_each_device_was_and_is_empty_when_its_pod_is_gone(
    boards: Boards, namespace: Namespace
) -> None:
    wanted = {f"r{n}": which(f"board-{n}", "board") for n in (0, 1)}
    namespace.create(pods.claim("both", (), **wanted))
    namespace.create(pods.pod("p", {"both": "both"}))
    namespace.until_running("p")

    def devices() -> list[dict[str, Any]]:
        return list(namespace.claim("both").get("status", {}).get("devices") or ())

    found = until("status.devices", devices)

    assert [(d["driver"], d["pool"], d["device"]) for d in found] == [
        (ACME, NODE, "board-0"),
        (ACME, NODE, "board-1"),
    ]
    assert [d["data"]["attributes"]["serial"] for d in found] == ["board-0", "board-1"]
    assert {c["type"] for d in found for c in d["conditions"]} == {"Ready"}
    namespace.delete_pods("p")
    until("nothing is said any more", lambda: devices() == [])
