"""The shapes of objects for the fake API server: which fields a kind has, and of which types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Schema: TypeAlias = Any
"""A dict of fields, a list of one schema, ``("map", schema)``, or a word.

Words: ``str``; ``text``, which is left out when empty; ``shown str``, which is not even when it is
not said; ``bool``; ``flag``, a ``bool`` that is left out when false; ``int``; ``time``; ``shown
time`` and ``shown micro time``, null when not said; ``raw`` for any object, ``any`` for any JSON;
``quantity``; ``amount``, a quantity that is 0 when it is not said; ``pointer``, one that is null
then.
"""

_COUNTERS = ("map", {"value": "amount"})
_NODE_SELECTOR: Schema = {
    "nodeSelectorTerms": [
        {
            "matchExpressions": [{"key": "str", "operator": "str", "values": ["str"]}],
            "matchFields": [{"key": "str", "operator": "str", "values": ["str"]}],
        }
    ]
}
_TAINT = {"key": "str", "value": "text", "effect": "text", "timeAdded": "time"}
_TOLERATION = {
    "key": "text",
    "operator": "text",
    "value": "text",
    "effect": "text",
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
    "default": "pointer",
    "validValues": ["quantity"],
    "validRange": {"min": "quantity", "max": "quantity", "step": "quantity"},
}
_DEVICE = {
    "name": "str",
    "attributes": ("map", _ATTRIBUTE),
    "capacity": ("map", {"value": "amount", "requestPolicy": _POLICY}),
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
_OPAQUE = {"driver": "str", "parameters": "any"}
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
_CONDITION = {
    "type": "str",
    "status": "str",
    "observedGeneration": "int",
    "lastTransitionTime": "time",
    "reason": "str",
    "message": "str",
}
_CLAIM_STATUS = {
    "allocation": {
        "devices": {"results": [_RESULT], "config": [{"source": "str", **_CONFIG}]},
        "nodeSelector": _NODE_SELECTOR,
        "allocationTimestamp": "time",
    },
    "reservedFor": [{"apiGroup": "str", "resource": "str", "name": "str", "uid": "str"}],
    "devices": [
        {
            "driver": "str",
            "pool": "str",
            "device": "str",
            "shareID": "str",
            "conditions": [_CONDITION],
            "data": "any",
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

_TAINT_RULE = {
    "deviceSelector": {"driver": "str", "pool": "str", "device": "str"},
    "taint": _TAINT,
}
_EVENT = {
    "involvedObject": dict.fromkeys(
        ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"), "text"
    ),
    **dict.fromkeys(("reason", "message", "type", "action"), "text"),
    "source": {"component": "text", "host": "text"},
    "firstTimestamp": "shown time",
    "lastTimestamp": "shown time",
    "count": "int",
    "eventTime": "shown micro time",
    "series": {"count": "int", "lastObservedTime": "shown micro time"},
    "related": dict.fromkeys(
        ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"), "text"
    ),
    "reportingComponent": "shown str",
    "reportingInstance": "shown str",
}
_NODE = {
    **dict.fromkeys(("podCIDR", "providerID", "externalID"), "text"),
    "podCIDRs": ["str"],
    "unschedulable": "flag",
    "taints": [_TAINT],
    "configSource": "any",
}
_NODE_CONDITION = {
    **dict.fromkeys(("type", "status"), "str"),
    **dict.fromkeys(("lastHeartbeatTime", "lastTransitionTime"), "shown time"),
    **dict.fromkeys(("reason", "message"), "text"),
}
_NODE_STATUS = {
    "conditions": [_NODE_CONDITION],
    **dict.fromkeys(("capacity", "allocatable"), ("map", "quantity")),
    "addresses": [{"type": "str", "address": "str"}],
    "phase": "text",
    "volumesInUse": ["str"],
    "declaredFeatures": ["str"],
    **dict.fromkeys(("daemonEndpoints", "nodeInfo", "images", "volumesAttached"), "any"),
    **dict.fromkeys(("config", "features", "runtimeHandlers"), "any"),
}
METADATA: Schema = {
    **dict.fromkeys(("name", "generateName", "namespace", "uid", "resourceVersion"), "text"),
    **dict.fromkeys(("generation", "deletionGracePeriodSeconds"), "int"),
    **dict.fromkeys(("creationTimestamp", "deletionTimestamp"), "time"),
    "labels": ("map", "str"),
    "annotations": ("map", "str"),
    "finalizers": ["str"],
    "ownerReferences": [
        {
            **dict.fromkeys(("apiVersion", "kind", "name", "uid"), "str"),
            **dict.fromkeys(("controller", "blockOwnerDeletion"), "bool"),
        }
    ],
    "managedFields": ["raw"],
}
"""Every object's; managed fields are the server's own."""

SCHEMAS: Mapping[str, Mapping[str, Schema]] = {
    "ResourceSlice": {"spec": _SLICE},
    "ResourceClaim": {"spec": _CLAIM, "status": _CLAIM_STATUS},
    "ResourceClaimTemplate": {"spec": _TEMPLATE},
    "DeviceClass": {"spec": _CLASS},
    "Event": _EVENT,
    "Node": {"spec": _NODE, "status": _NODE_STATUS},
    "DeviceTaintRule": {"spec": _TAINT_RULE, "status": {"conditions": [_CONDITION]}},
}
"""The parts beside metadata, by kind; other kinds are taken as they come."""
