"""The node is rebooted in each state of a grant and its release: nothing is early, nothing lost."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from cluster.granted import DRA, PLUGIN, Granted, run_with, seen
from cluster.waiting import until
from cluster.witness import Namespace

OPEN = "exec 3</dev/acme/gpu0; trap '' TERM; while :; do sleep 1; done"
"""A program that has the first GPU open, and does not end when it is told to."""
LONG = {"policy__pod_reaper__first_after_s": "600"}
"""For a reboot that comes before anybody is reaped."""

pytestmark = pytest.mark.parametrize("frontend", [PLUGIN, DRA], ids=["plugin", "dra"])


@pytest.fixture
def gpu(granted: Granted) -> str:
    """The first GPU's device."""
    return granted.names[0]


def begin(
    granted: Granted,
    namespace: Namespace,
    frontend: Mapping[str, str],
    allocation: str,
    **more: str,
) -> None:
    """Have a pod use the first GPU under a grant."""
    granted.begin(frontend, **more)
    granted.grant(allocation, granted.names[0])
    granted.until_offered(**{granted.names[0].replace("-", "_"): allocation})
    run_with(namespace, "p", frontend, script=OPEN)
    namespace.until_running("p")
    until("it has the GPU open", lambda: granted.users(granted.names[0]))


def end(
    granted: Granted, namespace: Namespace, frontend: Mapping[str, str], allocation: str
) -> None:
    """See a release end with nobody at the GPU, and the next one get it whole."""
    [gpu, *_] = granted.names
    granted.until_released(allocation)
    assert granted.users(gpu) == []
    until("nothing pending", lambda: not granted.pending())
    granted.grant(f"{allocation}-next", gpu)
    granted.until_offered(**{gpu.replace("-", "_"): f"{allocation}-next"})
    run_with(namespace, "q", frontend)
    namespace.until_running("q")
    assert seen(namespace, "q") == ([granted.node_of(gpu)], f"{allocation}-next")
    assert granted.users(gpu) == []


def test_a_grant_in_force_is_in_force_after_a_reboot(
    granted: Granted, namespace: Namespace, frontend: Mapping[str, str], gpu: str
) -> None:
    begin(granted, namespace, frontend, "boot-1")

    granted.reboot()
    granted.agent.start()

    granted.until_runs()
    assert granted.report("boot-1")["outcome"] == "in-force"
    assert not granted.report("boot-1").get("released")
    granted.until_offered(**{gpu.replace("-", "_"): "boot-1"})
    if frontend == DRA:  # a kubelet refuses the pod while our resource is unknown to it
        until("a second life", lambda: granted.users(gpu))
        assert seen(namespace, "p") == ([granted.node_of(gpu)], "boot-1")
    granted.revoke("boot-1")
    end(granted, namespace, frontend, "boot-1")


def test_a_pod_gets_nothing_of_a_grant_that_ended_before_the_reboot(
    granted: Granted, namespace: Namespace, frontend: Mapping[str, str], gpu: str
) -> None:
    begin(granted, namespace, frontend, "boot-2", **LONG)
    granted.revoke("boot-2")
    until("pending", lambda: granted.pending() == ["boot-2"])

    granted.reboot()
    assert granted.users(gpu) == []
    granted.configure(frontend)

    end(granted, namespace, frontend, "boot-2")


def test_a_grant_that_ends_while_the_node_is_down_is_released_by_the_next_boot(
    granted: Granted, namespace: Namespace, frontend: Mapping[str, str], gpu: str
) -> None:
    begin(granted, namespace, frontend, "boot-3")

    granted.reboot()
    granted.revoke("boot-3")
    granted.agent.start()

    granted.until_runs()
    end(granted, namespace, frontend, "boot-3")


def test_a_reboot_under_a_pod_that_is_being_reaped_ends_it(
    granted: Granted, namespace: Namespace, frontend: Mapping[str, str], gpu: str
) -> None:
    begin(granted, namespace, frontend, "boot-4", policy__pod_reaper__again_after_s="600")
    granted.revoke("boot-4")
    until("reaped", lambda: granted.lines("pod-reaped"))

    granted.reboot()
    granted.agent.start()

    granted.until_runs()
    end(granted, namespace, frontend, "boot-4")


def test_what_was_released_before_a_reboot_is_not_released_again(
    granted: Granted, namespace: Namespace, frontend: Mapping[str, str], gpu: str
) -> None:
    begin(granted, namespace, frontend, "boot-5")
    granted.revoke("boot-5")
    released = granted.until_released("boot-5")
    namespace.until_gone("p")

    granted.reboot()
    granted.agent.start()

    granted.until_runs()
    assert granted.pending() == []
    end(granted, namespace, frontend, "boot-5")
    assert granted.until_released("boot-5") == released
