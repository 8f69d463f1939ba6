"""The shapes of resource.k8s.io's versions: everything is kept as v1, and shown as it is asked."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from hardpoint.testing._api_status import Json

_EXACTLY = (
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
)
"""What a request for one device has beside its name."""


def _same(kind: str, body: Json) -> Json:
    return body


def _from_v1beta1(kind: str, body: Json) -> Json:
    """Take devices out of ``basic``, and put what asks for one device into ``exactly``."""
    if kind == "ResourceSlice":
        for device in each(body, "spec", "devices"):
            basic = device.pop("basic", None)
            for key in [key for key in device if key != "name"]:
                del device[key]  # v1beta1 has no such fields beside ``basic``
            device.update(basic or {})
    for request in _requests(kind, body):
        exactly = {key: request.pop(key) for key in _EXACTLY if key in request}
        if exactly:
            request["exactly"] = exactly
    return body


def _to_v1beta1(kind: str, body: Json) -> Json:
    if kind == "ResourceSlice":
        for device in each(body, "spec", "devices"):
            basic = {key: device.pop(key) for key in [k for k in device if k != "name"]}
            device["basic"] = basic
    for request in _requests(kind, body):
        request.update(request.pop("exactly", {}))
    return body


def each(body: Any, *path: str) -> list[Json]:
    """Return the objects of the list at a path; none where there is no list."""
    for step in path:
        body = body.get(step) if isinstance(body, dict) else None
    return [item for item in body if isinstance(item, dict)] if isinstance(body, list) else []


def _requests(kind: str, body: Json) -> list[Json]:
    if kind == "ResourceClaim":
        return each(body, "spec", "devices", "requests")
    if kind == "ResourceClaimTemplate":
        return each(body, "spec", "spec", "devices", "requests")
    return []


_TO_V1: Mapping[str, Callable[[str, Json], Json]] = {"v1beta1": _from_v1beta1}
_FROM_V1: Mapping[str, Callable[[str, Json], Json]] = {"v1beta1": _to_v1beta1}


def upgraded(kind: str, body: Json, version: str) -> Json:
    """Return a copy of an object of some version in the shape of v1."""
    return _TO_V1.get(version, _same)(kind, copy.deepcopy(body))


def encoded(kind: str, body: Json, group: str, version: str) -> Json:
    """Return a copy of a stored object as a version of its API shows it."""
    shown = _FROM_V1.get(version, _same)(kind, copy.deepcopy(body))
    return {**shown, "apiVersion": f"{group}/{version}" if group else version, "kind": kind}
