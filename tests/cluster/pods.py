"""Pods and Deployments that hold claims, as short as they can be."""

from __future__ import annotations

from typing import Any

from cluster.images import BUSYBOX

Json = dict[str, Any]
WAIT = "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"
"""A program that does nothing and ends at once when it is told to."""


def container(name: str = "c", *, script: str = WAIT, uses: tuple[str, ...] = ()) -> Json:
    """A container that uses the named claims of its pod: ``gpu``, or ``gpu/render``."""
    words = [use.partition("/") for use in uses]
    claims = [{"name": n} | ({"request": r} if r else {}) for n, _, r in words]
    return {
        "name": name,
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "resources": {"claims": claims},
    }


def spec(claims: dict[str, str], *containers: Json, **more: Any) -> Json:
    """A pod's spec. ``claims`` names a ResourceClaim for each entry, or ``template:NAME``."""
    entries = [{"name": name} | _source(claim) for name, claim in claims.items()]
    return {
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "hostNetwork": True,
        "resourceClaims": entries,
        "containers": list(containers) or [container(uses=tuple(claims))],
    } | more


def pod(name: str, claims: dict[str, str], *containers: Json, **more: Any) -> Json:
    body = spec(claims, *containers, restartPolicy="Always", **more)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}


def deployment(name: str, claims: dict[str, str], *containers: Json, **strategy: Any) -> Json:
    template = {"metadata": {"labels": {"app": name}}, "spec": spec(claims, *containers)}
    wanted = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    if strategy:
        wanted["strategy"] = strategy
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": wanted,
    }


def claim(name: str, /, constraints: tuple[Json, ...] = (), **requests: str | Json) -> Json:
    """A ResourceClaim: each request is a DeviceClass, or what stands under ``exactly``."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": claim_spec(constraints, **requests),
    }


def claim_spec(constraints: tuple[Json, ...] = (), **requests: str | Json) -> Json:
    wanted = [
        {"name": name, "exactly": {"deviceClassName": of} if isinstance(of, str) else of}
        for name, of in requests.items()
    ]
    devices: Json = {"requests": wanted}
    return {"devices": devices | ({"constraints": list(constraints)} if constraints else {})}


def device_class(name: str, expression: str, **more: Any) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]} | more,
    }


def _source(claim_name: str) -> Json:
    kind, colon, name = claim_name.partition(":")
    if not colon:
        return {"resourceClaimName": claim_name}
    assert kind == "template"
    return {"resourceClaimTemplateName": name}
