"""Nothing is offered while something else on a real node could hand out the same GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cluster import pods
from cluster.agent import AgentProcess
from cluster.granted import DRA, NODE, PLUGIN, POLICIES, Granted, claiming, pod, seen
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import GPUS

GUARDED = {
    "policies": ",".join((*POLICIES, "exclusive_source", "node_status")),
    "policy__node_status__prefix": "bcd.dev",
    "policy__node_status__conditions": '{"ForeignGpuExposure": "ForeignGpuExposure"}',
    "policy__node_status__no_schedule_taint": "true",
    "policy__exclusive_source__return_after": "5",
    "policy__exclusive_source__condition": '["ForeignGpuExposure", "OtherGpuPath"]',
}


@contextmanager
def another_plugin(granted: Granted) -> Iterator[AgentProcess]:
    """Run somebody else's device plugin on the node, with resources of its own name."""
    own = {
        "HARDPOINT_PATHS__STATE": str(granted.cluster.state / "another-plugin"),
        "HARDPOINT_PATHS__CDI": str(granted.cluster.state / "another-cdi"),
        "HARDPOINT_DOMAIN": "nvidia.com",
        "HARDPOINT_FRONTENDS": "deviceplugin",
        "HARDPOINT_POLICIES": "",
        "HARDPOINT_DRIVER__ACME_GPU__FULL_NAMES": "true",  # it has ids of its own
    }
    kept = {k: v for k, v in granted.agent.environment.items() if "POLICY__" not in k}
    other = AgentProcess(granted.cluster.logs / "another-plugin.log", kept | own, ())
    other.environment.pop("HARDPOINT_DRA_DRIVER")
    other.start()
    try:
        yield other
    finally:
        other.stop()


def a_slice(driver: str) -> dict[str, object]:
    spec = {
        "driver": driver,
        "nodeName": NODE,
        "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
    }
    meta = {"name": f"{NODE}-{driver}"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": meta,
        "spec": spec,
    }


def test_another_device_plugin_appears_and_everything_is_withdrawn_with_the_reason(
    granted: Granted, namespace: Namespace
) -> None:
    granted.begin(PLUGIN, **GUARDED)
    granted.grant("iso-1", *granted.names)
    granted.until_allocatable(2)
    namespace.create(pod("p"))
    namespace.until_running("p")

    with another_plugin(granted):
        granted.until_allocatable(0)

        message = until("said", lambda: granted.condition("ForeignGpuExposure"))
        assert "nvidia.com/gpu" in message
        assert "devicePlugin.enabled=false" in message
        until("on the Node", lambda: granted.of_node("ForeignGpuExposure") == message)
        until("an Event", lambda: any(message in one for one in granted.told("ForeignGpuExposure")))
        until("no new pods", lambda: "bcd.dev/unusable" in granted.taints())
        assert any(message in line for line in granted.lines("vetoed"))
        reasons = {one["subject"]: one["reason"] for one in granted.status()["not_offered"]}
        assert all("nvidia.com/gpu" in reasons[name] for name in granted.names)
        assert seen(namespace, "p")[1] == "iso-1"  # what runs goes on: its grant is in force
        assert granted.pending() == []

    granted.until_allocatable(2)
    until("not so any more", lambda: not granted.condition("ForeignGpuExposure"))
    until("nor on the Node", lambda: not granted.of_node("ForeignGpuExposure"))
    until("new pods", lambda: "bcd.dev/unusable" not in granted.taints())
    assert granted.deletions("p") == []
    namespace.delete_pods("p")
    granted.revoke("iso-1")
    granted.until_released("iso-1")


@pytest.mark.usefixtures("modern")
def test_another_dra_driver_appears_and_everything_is_withdrawn_with_the_reason(
    granted: Granted, namespace: Namespace
) -> None:
    granted.begin(DRA, **GUARDED)
    granted.grant("iso-2", granted.names[0])
    granted.until_published(**{granted.names[0].replace("-", "_"): "iso-2"})
    namespace.create(pods.claim("p", gpu="bcd-gpu"))
    namespace.create(claiming("p", "p"))
    namespace.until_running("p")

    granted.witness.create(a_slice("gpu.nvidia.com"))
    try:
        until("no slice", lambda: not granted.witness.devices(GPUS, NODE))
        message = until("said", lambda: granted.condition("ForeignGpuExposure"))
        assert "gpu.nvidia.com" in message
        assert granted.deletions("p") == []
    finally:
        granted.witness.delete("ResourceSlice", f"{NODE}-gpu.nvidia.com")

    granted.until_published(**{granted.names[0].replace("-", "_"): "iso-2"})
    assert seen(namespace, "p")[1] == "iso-2"
