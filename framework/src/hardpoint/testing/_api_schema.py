"""The shapes of resource.k8s.io for the fake API server: fields, versions, feature gates.

A real server decodes JSON into Go structs: unknown fields are dropped, wrong types refused with 400
and no field path, quantities stored in one spelling. It then drops fields whose gate is off.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from hardpoint.errors import BadValue
from hardpoint.quantity import canonical
from hardpoint.testing._api_status import ApiProblem, Json

Schema: TypeAlias = Any
"""A dict of fields, a list of one schema, ``("map", schema)``, or one of the words below."""

_WORDS: Mapping[str, tuple[type, ...]] = {"str": (str,), "bool": (bool,), "raw": (dict,)}

_COUNTERS = ("map", {"value": "quantity"})
_NODE_SELECTOR: Schema = {
    "nodeSelectorTerms": [
        {
            "matchExpressions": [{"key": "str", "operator": "str", "values": ["str"]}],
            "matchFields": [{"key": "str", "operator": "str", "values": ["str"]}],
        }
    ]
}
_TAINT = {"key": "str", "value": "str", "effect": "str", "timeAdded": "str"}
_TOLERATION = {
    "key": "str",
    "operator": "str",
    "value": "str",
    "effect": "str",
    "tolerationSeconds": "int",
}
_ATTRIBUTE = {
    "int": "int",
    "bool": "bool",
    "string": "str",
    "version": "str",
    "ints": ["int"],
    "bools": ["bool"],
    "strings": ["str"],
    "versions": ["str"],
}
_POLICY = {
    "default": "quantity",
    "validValues": ["quantity"],
    "validRange": {"min": "quantity", "max": "quantity", "step": "quantity"},
}
_DEVICE = {
    "name": "str",
    "attributes": ("map", _ATTRIBUTE),
    "capacity": ("map", {"value": "quantity", "requestPolicy": _POLICY}),
    "consumesCounters": [{"counterSet": "str", "counters": _COUNTERS}],
    "nodeName": "str",
    "nodeSelector": _NODE_SELECTOR,
    "allNodes": "bool",
    "taints": [_TAINT],
    "bindsToNode": "bool",
    "bindingConditions": ["str"],
    "bindingFailureConditions": ["str"],
    "allowMultipleAllocations": "bool",
}
_SLICE = {
    "driver": "str",
    "pool": {"name": "str", "generation": "int", "resourceSliceCount": "int"},
    "nodeName": "str",
    "nodeSelector": _NODE_SELECTOR,
    "allNodes": "bool",
    "perDeviceNodeSelection": "bool",
    "devices": [_DEVICE],
    "sharedCounters": [{"name": "str", "counters": _COUNTERS}],
}
_OPAQUE = {"driver": "str", "parameters": "raw"}
_CONFIG = {"requests": ["str"], "opaque": _OPAQUE}
_EXACT = {
    "deviceClassName": "str",
    "selectors": [{"cel": {"expression": "str"}}],
    "allocationMode": "str",
    "count": "int",
    "adminAccess": "bool",
    "tolerations": [_TOLERATION],
    "capacity": {"requests": ("map", "quantity")},
}
_SUB_REQUEST = {"name": "str", **{k: v for k, v in _EXACT.items() if k != "adminAccess"}}
_CLAIM = {
    "devices": {
        "requests": [{"name": "str", "exactly": _EXACT, "firstAvailable": [_SUB_REQUEST]}],
        "constraints": [{"requests": ["str"], "matchAttribute": "str", "distinctAttribute": "str"}],
        "config": [_CONFIG],
    }
}
_RESULT = {
    "request": "str",
    "driver": "str",
    "pool": "str",
    "device": "str",
    "adminAccess": "bool",
    "tolerations": [_TOLERATION],
    "bindingConditions": ["str"],
    "bindingFailureConditions": ["str"],
    "shareID": "str",
    "consumedCapacity": ("map", "quantity"),
}
_CLAIM_STATUS = {
    "allocation": {
        "devices": {"results": [_RESULT], "config": [{"source": "str", **_CONFIG}]},
        "nodeSelector": _NODE_SELECTOR,
        "allocationTimestamp": "str",
    },
    "reservedFor": [{"apiGroup": "str", "resource": "str", "name": "str", "uid": "str"}],
    "devices": [
        {
            "driver": "str",
            "pool": "str",
            "device": "str",
            "shareID": "str",
            "conditions": ["raw"],
            "data": "raw",
            "networkData": {"interfaceName": "str", "ips": ["str"], "hardwareAddress": "str"},
        }
    ],
}
_CLASS = {
    "selectors": [{"cel": {"expression": "str"}}],
    "config": [_CONFIG],
    "extendedResourceName": "str",
}
_TEMPLATE = {"metadata": "raw", "spec": _CLAIM}

SCHEMAS: Mapping[str, Mapping[str, Schema]] = {
    "ResourceSlice": {"spec": _SLICE},
    "ResourceClaim": {"spec": _CLAIM, "status": _CLAIM_STATUS},
    "ResourceClaimTemplate": {"spec": _TEMPLATE},
    "DeviceClass": {"spec": _CLASS},
}
"""The parts beside metadata, by kind. Kinds of core v1 are taken as they come."""


def decoded(kind: str, body: Json, version: str) -> Json:
    """Return the object with known fields only, in the shape of v1. Raises a 400."""
    schema = SCHEMAS.get(kind)
    if schema is None:
        return copy.deepcopy(body)
    upgraded = TO_V1.get(version, _same)(kind, copy.deepcopy(body))
    kept: Json = {
        key: upgraded[key] for key in ("apiVersion", "kind", "metadata") if key in upgraded
    }
    try:
        for part, shape in schema.items():
            if upgraded.get(part) is not None:
                kept[part] = _conform(upgraded[part], shape)
    except (BadValue, TypeError) as error:
        message = f'{kind} in version "{version}" cannot be handled as a {kind}: {error}'
        raise ApiProblem(400, message) from error
    return kept


def _conform(value: Any, schema: Schema) -> Any:
    if isinstance(schema, str):
        return _word(value, schema)
    if isinstance(schema, list):
        _need(value, list)
        return [_conform(item, schema[0]) for item in value]
    _need(value, dict)
    if isinstance(schema, tuple):
        return {key: _conform(item, schema[1]) for key, item in value.items()}
    return {
        key: _conform(value[key], shape)
        for key, shape in schema.items()
        if value.get(key) is not None
    }


def _word(value: Any, word: str) -> Any:
    if word == "quantity":
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            _need(value, str)
        return canonical(str(value).strip())
    if word == "int":
        if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
            raise TypeError(f"json: cannot unmarshal {_named(value)} into Go value of type int64")
        return value
    _need(value, *_WORDS[word])
    return value


def _need(value: Any, *types: type) -> None:
    if not isinstance(value, types):
        names = {str: "string", bool: "bool", dict: "map", list: "slice"}
        wanted = names[types[0]]
        raise TypeError(f"json: cannot unmarshal {_named(value)} into Go value of type {wanted}")


def _named(value: Any) -> str:
    names = {str: "string", bool: "bool", dict: "object", list: "array"}
    return names.get(type(value), "number")


# -- versions -------------------------------------------------------------------------------------


def _same(kind: str, body: Json) -> Json:
    return body


def _from_v1beta1(kind: str, body: Json) -> Json:
    """Take devices out of ``basic``, and put what asks for one device into ``exactly``."""
    if kind == "ResourceSlice":
        for device in _each(body, "spec", "devices"):
            basic = device.pop("basic", None)
            for key in [key for key in device if key != "name"]:
                del device[key]  # v1beta1 has no such fields beside ``basic``
            device.update(basic or {})
    for request in _requests(kind, body):
        exactly = {key: request.pop(key) for key in _EXACT if key in request}
        if exactly:
            request["exactly"] = exactly
    return body


def _to_v1beta1(kind: str, body: Json) -> Json:
    if kind == "ResourceSlice":
        for device in _each(body, "spec", "devices"):
            basic = {key: device.pop(key) for key in [k for k in device if k != "name"]}
            device["basic"] = basic
    for request in _requests(kind, body):
        request.update(request.pop("exactly", {}))
    return body


def _each(body: Any, *path: str) -> list[Json]:
    for step in path:
        body = body.get(step) if isinstance(body, dict) else None
    return [item for item in body if isinstance(item, dict)] if isinstance(body, list) else []


def _requests(kind: str, body: Json) -> list[Json]:
    if kind == "ResourceClaim":
        return _each(body, "spec", "devices", "requests")
    if kind == "ResourceClaimTemplate":
        return _each(body, "spec", "spec", "devices", "requests")
    return []


TO_V1: Mapping[str, Callable[[str, Json], Json]] = {"v1beta1": _from_v1beta1}
FROM_V1: Mapping[str, Callable[[str, Json], Json]] = {"v1beta1": _to_v1beta1}


def encoded(kind: str, body: Json, group: str, version: str) -> Json:
    """Return a copy of a stored object as a version of its API shows it."""
    shown = FROM_V1.get(version, _same)(kind, copy.deepcopy(body))
    return {**shown, "apiVersion": f"{group}/{version}" if group else version, "kind": kind}


# -- feature gates --------------------------------------------------------------------------------

GATES: Mapping[str, int] = {
    "DRAAdminAccess": 34,
    "DRAPrioritizedList": 34,
    "DRAResourceClaimDeviceStatus": 33,
    "DRADeviceTaints": 36,
    "DRAPartitionableDevices": 36,
    "DRAConsumableCapacity": 36,
    "DRADeviceBindingConditions": 36,
    "DRAListTypeAttributes": 99,
}
"""The minor release from which a gate is on by default."""

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "DRADeviceTaints": ("taints",),
    "DRAPartitionableDevices": ("consumesCounters", "nodeName", "nodeSelector", "allNodes"),
    "DRAConsumableCapacity": ("allowMultipleAllocations",),
    "DRADeviceBindingConditions": (
        "bindsToNode",
        "bindingConditions",
        "bindingFailureConditions",
    ),
}
_LISTS = ("ints", "bools", "strings", "versions")


def drop_disabled(body: Json, old: Json | None, on: Callable[[str], bool]) -> None:
    """Remove the fields of a slice whose gate is off; an update keeps what the old object used."""
    for gate, remove in _REMOVERS.items():
        if not on(gate) and not (old is not None and _uses(old, gate)):
            remove(body.get("spec") or {})
            for device in _each(body, "spec", "devices"):
                for name in _FIELDS.get(gate, ()):
                    device.pop(name, None)


def _drop_nothing_more(spec: Json) -> None:
    """The gate has fields of the device alone."""


def _drop_counters(spec: Json) -> None:
    spec.pop("sharedCounters", None)
    spec.pop("perDeviceNodeSelection", None)


def _drop_policies(spec: Json) -> None:
    for device in _each(spec, "devices"):
        for amount in (device.get("capacity") or {}).values():
            amount.pop("requestPolicy", None)


def _drop_lists(spec: Json) -> None:
    for device in _each(spec, "devices"):
        for value in (device.get("attributes") or {}).values():
            for name in _LISTS:
                value.pop(name, None)


_REMOVERS: Mapping[str, Callable[[Json], None]] = {
    "DRADeviceTaints": _drop_nothing_more,
    "DRAPartitionableDevices": _drop_counters,
    "DRAConsumableCapacity": _drop_policies,
    "DRADeviceBindingConditions": _drop_nothing_more,
    "DRAListTypeAttributes": _drop_lists,
}


def _uses(body: Json, gate: str) -> bool:
    spec = body.get("spec") or {}
    if gate == "DRAPartitionableDevices" and (
        spec.get("sharedCounters") or spec.get("perDeviceNodeSelection")
    ):
        return True
    devices = spec.get("devices") or ()
    if gate == "DRAListTypeAttributes":
        values = (v for d in devices for v in (d.get("attributes") or {}).values())
        return any(name in value for value in values for name in _LISTS)
    return any(device.get(name) for device in devices for name in _FIELDS.get(gate, ()))
