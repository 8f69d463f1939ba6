"""The collections that the fake API server serves."""

from __future__ import annotations

from hardpoint.testing._api_store import Kind

GROUP = "resource.k8s.io"

SLICES = Kind(
    GROUP,
    "resourceslices",
    "ResourceSlice",
    False,
    ("spec.nodeName", "spec.driver", "spec.pool.name"),
    counted=True,
)
CLAIMS = Kind(GROUP, "resourceclaims", "ResourceClaim", True, status=True)
TAINT_RULES = Kind(
    GROUP, "devicetaintrules", "DeviceTaintRule", False, counted=True, status=True, returned=False
)
"""Served in v1, from 1.37."""
PODS = Kind(
    "",
    "pods",
    "Pod",
    True,
    (
        *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
        *("spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName"),
    ),
    status=True,
)
NODES = Kind("", "nodes", "Node", False, ("spec.unschedulable",), status=True, returned=False)
NAMESPACES = Kind("", "namespaces", "Namespace", False, ("status.phase",), status=True)
EVENTS = Kind(
    "",
    "events",
    "Event",
    True,
    (
        *(f"involvedObject.{key}" for key in ("kind", "namespace", "name", "uid", "apiVersion")),
        *(f"involvedObject.{key}" for key in ("resourceVersion", "fieldPath")),
        *("reason", "reportingComponent", "source", "type"),
    ),
    returned=False,
)
KINDS = (
    SLICES,
    CLAIMS,
    Kind(GROUP, "resourceclaimtemplates", "ResourceClaimTemplate", True),
    Kind(GROUP, "deviceclasses", "DeviceClass", False, counted=True),
    TAINT_RULES,
    NODES,
    NAMESPACES,
    EVENTS,
    PODS,
)
BEGINNING = ("default", "kube-node-lease", "kube-public", "kube-system")
"""Namespaces that are there from the first."""


def serves(kind: Kind, version: str, minor: int) -> bool:
    """Say whether a release serves a kind in a version of its group."""
    return kind is not TAINT_RULES or (version == "v1" and minor >= 37)
