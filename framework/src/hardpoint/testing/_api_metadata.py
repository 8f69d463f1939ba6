"""What the real API server refuses in any object's metadata, and in lists of conditions."""

from __future__ import annotations

import json
import re

from hardpoint.testing import _api_text as text
from hardpoint.testing._api_status import Causes, Json

_LARGEST_ANNOTATIONS = 256 << 10
_REASON = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"
_NO_REASON = (
    "a condition reason must start with alphabetic character, optionally followed by a string of "
    "alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' "
    "(e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', "
    f"regex used for validation is '{_REASON}')"
)


def check_metadata(metadata: Json, minor: int, namespaced: bool) -> Causes:
    """Return what is wrong with an object's metadata."""
    causes = Causes()
    name = metadata.get("name", "")
    if not name:
        causes.required("metadata.name", "name or generateName is required")
    else:
        causes.say("metadata.name", name, text.of_subdomain)
    if not namespaced and metadata.get("namespace"):
        causes.forbidden("metadata.namespace", "not allowed on this type")
    for key, value in (metadata.get("labels") or {}).items():
        causes.say("metadata.labels", key, text.of_key)
        causes.say("metadata.labels", value, text.of_value)
    _annotations(causes, metadata.get("annotations") or {})
    _owners(causes, metadata.get("ownerReferences") or [], minor)
    _finalizers(causes, metadata.get("finalizers") or [])
    return causes


def check_metadata_update(metadata: Json, old: Json) -> Causes:
    """Return what an update may not do to metadata."""
    causes = Causes()
    more = set(metadata.get("finalizers") or ()) - set(old.get("finalizers") or ())
    if old.get("deletionTimestamp") and more:
        listed = ", ".join(json.dumps(name) for name in sorted(more))
        detail = (
            "no new finalizers can be added if the object is being deleted, found new finalizers "
            f"[]string{{{listed}}}"
        )
        causes.forbidden("metadata.finalizers", detail)
    return causes


def _annotations(causes: Causes, annotations: Json) -> None:
    for key in annotations:
        for why in text.of_key(key.lower()):
            causes.invalid("metadata.annotations", key, why)
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > _LARGEST_ANNOTATIONS:
        causes.too_long("metadata.annotations", _LARGEST_ANNOTATIONS)


def _owners(causes: Causes, owners: list[Json], minor: int) -> None:
    path = "metadata.ownerReferences"
    first = ""
    for index, owner in enumerate(owners):
        _owner(causes, f"{path}[{index}]" if minor >= 37 else path, owner, minor)
        name = f"{owner.get('kind', '')}/{owner.get('name', '')}"
        if owner.get("controller") and first:
            detail = (
                'Only one reference can have Controller set to true. Found "true" in references '
                f"for {first} and {name}"
            )
            causes.invalid(path, owners, detail)
        elif owner.get("controller"):
            first = name


def _owner(causes: Causes, path: str, owner: Json, minor: int) -> None:
    for key in ("apiVersion", "kind", "name", "uid"):
        if owner.get(key):
            continue
        if minor >= 37:
            causes.required(f"{path}.{key}", "must not be empty")
        else:
            detail = "version must not be empty" if key == "apiVersion" else "must not be empty"
            causes.invalid(f"{path}.{key}", "", detail)
    version = owner.get("apiVersion", "")
    if version and not re.fullmatch(r"([^/]+/)?[^/]+", version):
        new = minor >= 37
        detail = "must be <group>/<version> or <version>" if new else "version must not be empty"
        causes.invalid(f"{path}.apiVersion", version, detail)


def _finalizers(causes: Causes, finalizers: list[str]) -> None:
    known = ("foregroundDeletion", "orphan", "kubernetes")
    for index, name in enumerate(finalizers):
        causes.say("metadata.finalizers", name, text.of_key)
        if "/" not in name and name not in known:
            detail = "name is neither a standard finalizer name nor is it fully qualified"
            causes.invalid(f"metadata.finalizers[{index}]", name, detail)


def check_conditions(causes: Causes, path: str, conditions: list[Json], minor: int) -> None:
    """Check a list of conditions (``metav1.Condition``)."""
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        kind = condition.get("type", "")
        if kind in seen:
            causes.duplicate(f"{path}[{index}]", kind)
        seen.add(kind)
        _condition(causes, f"{path}[{index}]", condition, minor)


def _condition(causes: Causes, path: str, condition: Json, minor: int) -> None:
    if condition.get("type"):
        causes.say(f"{path}.type", condition["type"], text.of_key)
    else:
        causes.required(f"{path}.type")
    known = ("False", "True", "Unknown")
    if not condition.get("status") and minor >= 35:
        causes.required(f"{path}.status")
    elif condition.get("status", "") not in known:
        causes.unsupported(f"{path}.status", condition.get("status", ""), known)
    if condition.get("observedGeneration", 0) < 0:
        detail = "must be greater than or equal to 0"
        causes.invalid(f"{path}.observedGeneration", condition["observedGeneration"], detail)
    if not condition.get("lastTransitionTime"):
        causes.required(f"{path}.lastTransitionTime")
    _reason(causes, f"{path}.reason", condition.get("reason", ""))
    if len(condition.get("message", "").encode()) > 32 << 10:
        causes.too_long(f"{path}.message", 32 << 10)


def _reason(causes: Causes, path: str, reason: str) -> None:
    if not reason:
        causes.required(path)
    elif not re.fullmatch(_REASON, reason):
        causes.invalid(path, reason, _NO_REASON)
    if len(reason.encode()) > 1 << 10:
        causes.too_long(path, 1 << 10)
