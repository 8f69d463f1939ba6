"""An API server that refuses ResourceSlices, as an administrator's admission policy makes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cluster.waiting import until
from cluster.witness import Json, Witness
from kubernetes.client.exceptions import ApiException

_ADMISSION = "admissionregistration.k8s.io/v1"
_PROBE = "refusal-probe.example.com"
"""The driver of a slice that every policy here refuses: whether it does, is whether it works."""


@contextmanager
def refused(witness: Witness, allowed: str, why: str, reason: str = "Invalid") -> Iterator[None]:
    """Refuse every slice of ours for which ``allowed``, in CEL, is not true, for a while.

    ``reason`` decides the HTTP status: Invalid is 422, Forbidden 403, RequestEntityTooLarge 413.
    """
    name = "refuse-slices"
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["resourceslices"],
    }
    expression = f"object.spec.driver != '{_PROBE}' && ({allowed})"
    said = {"expression": expression, "message": why, "reason": reason}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [said]}
    binding = {"policyName": name, "validationActions": ["Deny"]}
    witness.create(_body("ValidatingAdmissionPolicy", name, spec))
    witness.create(_body("ValidatingAdmissionPolicyBinding", name, binding))
    try:
        until("the policy is in force", lambda: _refuses(witness))
        yield
    finally:
        for kind in ("ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"):
            witness.kind(kind, _ADMISSION).delete(name=name)
        until("the policy is gone", lambda: not _refuses(witness))


def _refuses(witness: Witness) -> bool:
    body: dict[str, Any] = _body("ResourceSlice", "refusal-probe", {"driver": _PROBE})
    body["apiVersion"] = "resource.k8s.io/v1"
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    body["spec"] |= {"pool": pool, "allNodes": True, "devices": []}
    try:
        witness.kind("ResourceSlice").create(body=body, query_params=[("dryRun", "All")])
    except ApiException:
        return True
    return False


def _body(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": _ADMISSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
