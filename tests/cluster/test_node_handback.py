"""A node is handed back to its cluster and comes again, with a real scheduler, kubelet and pods."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import pods
from cluster.agent import HOME
from cluster.granted import DRA, NODE, PLUGIN, POLICIES, Granted, claiming, pod
from cluster.waiting import until
from cluster.witness import Namespace

MINE = {
    "policies": ",".join((*POLICIES, "drain", "node_status")),
    "policy__drain__prefix": "bcd.dev",
    "policy__node_status__prefix": "bcd.dev",
    "policy__node_status__capability_prefix": "bc.dev",
    "policy__node_status__site": "site_01k",
    "policy__node_status__conditions": '{"Released": "KubernetesReleased"}',
}
DEAF = "trap '' TERM; while :; do sleep 1000 & wait; done"


def node(granted: Granted) -> Any:
    return granted.witness.get("Node", NODE)


def marks(granted: Granted) -> dict[str, str]:
    labels = node(granted)["metadata"]["labels"]
    return {key: value for key, value in labels.items() if "bc" in key.partition("/")[0]}


def condition(granted: Granted, type_: str) -> str:
    """Return a condition's status on the Node; empty if it has none."""
    listed = node(granted)["status"]["conditions"]
    return next((str(one["status"]) for one in listed if one["type"] == type_), "")


def cordoned(granted: Granted) -> bool:
    return bool(node(granted)["spec"].get("unschedulable"))


def daemon_set(name: str) -> dict[str, Any]:
    labels = {"app": name}
    spec = pods.spec({}, nodeSelector={"kubernetes.io/hostname": NODE})
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def elsewhere(name: str) -> dict[str, Any]:
    """A pod of this node that asks for no device."""
    return pods.pod(name, {}, nodeSelector={"kubernetes.io/hostname": NODE})


@pytest.mark.parametrize("frontend", [PLUGIN, DRA], ids=["plugin", "dra"])
def test_a_node_is_handed_back_and_comes_again(
    granted: Granted, namespace: Namespace, frontend: dict[str, str]
) -> None:
    granted.begin(frontend, **MINE)
    granted.grant("a-1", granted.names[0])
    if frontend is PLUGIN:
        granted.until_allocatable(1)
        namespace.create(pod("train", script=DEAF, terminationGracePeriodSeconds=3))
    else:
        until("published", lambda: granted.witness.devices("gpu.bcd.dev", NODE))
        namespace.create(pods.claim("gpu", gpu="bcd-gpu"))
        namespace.create(claiming("train", "gpu", script=DEAF, terminationGracePeriodSeconds=3))
    namespace.create(elsewhere("web"))
    namespace.create(daemon_set("logs"))
    namespace.until_running("train", "web")
    (daemon,) = namespace.until_app_runs("logs")
    own = {"bcd.dev/site": "site_01k", "bc.dev/cap.binding.kubernetes": "true"}
    until("the Node is labelled", lambda: own.items() <= marks(granted).items())
    assert marks(granted)["bcd.dev/gpu.count"] == "2"

    granted.agent.says("drain", "--why", "it moves")

    until("the Node is cordoned", lambda: cordoned(granted))
    granted.kill("agent")
    until("released", lambda: condition(granted, "KubernetesReleased") == "True")
    left = {one["metadata"]["name"] for one in namespace.pods()}
    assert left == {daemon}
    assert [one.grace for one in granted.deletions("train")] == [3]
    assert granted.witness.get("Pod", f"agent-{NODE}", HOME)
    until("told", lambda: granted.agent.says("drain", "--status")["state"] == "released")
    assert not granted.pending()
    assert granted.witness.devices("gpu.bcd.dev", NODE) == {}

    granted.agent.says("drain", "--undo")

    until("the Node is uncordoned", lambda: not cordoned(granted))
    until("no more", lambda: condition(granted, "KubernetesReleased") == "False")
    assert "bcd.dev/cordoned" not in node(granted)["metadata"]["annotations"]
    if frontend is PLUGIN:
        granted.until_allocatable(1)
        namespace.create(pod("again"))
    else:
        namespace.create(pods.claim("more", gpu="bcd-gpu"))
        namespace.create(claiming("again", "more"))
    namespace.until_running("again")

    namespace.delete_pods("again")
    granted.revoke("a-1")
    granted.until_released("a-1")
