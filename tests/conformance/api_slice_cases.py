"""ResourceSlices at the edge of what an API server takes, one odd thing in each.

Each is created under a name of its own; what a real server answered is in ``answers/``.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def sliced(devices: Any = None, metadata: Json | None = None, **spec: Any) -> Json:
    """A slice of one node; None takes a field away."""
    whole: Json = {
        "driver": "conformance.example.com",
        "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
        "nodeName": "node-a",
        "devices": devices,
        **spec,
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata or {},
        "spec": {key: value for key, value in whole.items() if value is not None},
    }


def device(**fields: Any) -> Json:
    return sliced([{"name": "gpu-0", **fields}])


def named(count: int, **fields: Any) -> list[Json]:
    return [{"name": f"gpu-{number}", **fields} for number in range(count)]


def pool(**fields: Any) -> Json:
    return sliced(pool={"name": "a", "generation": 1, "resourceSliceCount": 1} | fields)


def attribute(name: str, **value: Any) -> Json:
    return device(attributes={name: value})


def taints(count: int, effect: str = "NoSchedule") -> list[Json]:
    return [{"key": f"hardpoint.dev/t{n}", "effect": effect, "timeAdded": _T} for n in range(count)]


def taint(**fields: Any) -> Json:
    return device(taints=[{"key": "a", "effect": "NoSchedule", "timeAdded": _T} | fields])


def amounts(count: int) -> Json:
    return {f"c{number}": {"value": "1"} for number in range(count)}


def consumes(*sets: str, counters: int = 1) -> list[Json]:
    return [{"counterSet": name, "counters": amounts(counters)} for name in sets]


def sets(count: int, counters: int = 1) -> list[Json]:
    return [{"name": f"set-{n}", "counters": amounts(counters)} for n in range(count)]


def shared(value: str = "8Gi", **policy: Any) -> Json:
    capacity = {"memory": {"value": value, "requestPolicy": policy}}
    return device(allowMultipleAllocations=True, capacity=capacity)


def term(key: str = "zone", operator: str = "In", values: Any = ("a",)) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def nodes(*terms: Json) -> Json:
    return sliced(nodeName=None, nodeSelector={"nodeSelectorTerms": list(terms)})


def owned(**fields: Any) -> Json:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"} | fields
    return sliced(metadata={"ownerReferences": [{k: v for k, v in owner.items() if v is not None}]})


_T = "2026-01-01T00:00:00Z"
_CONTROLLER = {"apiVersion": "v1", "kind": "Node", "uid": "u", "controller": True}

WHOLE: dict[str, Json] = {
    "empty": sliced(),
    "empty list of devices": sliced([]),
    "no spec": {**sliced(), "spec": None},
    "no driver": sliced(driver=None),
    "driver in upper case": sliced(driver="Hardpoint.dev"),
    "driver of 63 bytes": sliced(driver="a" * 63),
    "driver of 64 bytes": sliced(driver="a" * 64),
    "driver that ends with a dash": sliced(driver="a-.dev"),
    "no pool": sliced(pool=None),
    "pool without a name": pool(name=None),
    "pool with a slash": pool(name="a/b.c"),
    "pool with a bad segment": pool(name="a//b"),
    "pool in upper case": pool(name="Node"),
    "pool of 254 bytes": pool(name="a" * 254),
    "negative generation": pool(generation=-1),
    "slice count of none": pool(resourceSliceCount=None),
    "negative slice count": pool(resourceSliceCount=-1),
    "no node at all": sliced(nodeName=None),
    "all nodes": sliced(nodeName=None, allNodes=True),
    "all nodes, but not": sliced(nodeName=None, allNodes=False),
    "two ways to name nodes": sliced(allNodes=True),
    "node in upper case": sliced(nodeName="Node-A"),
    "empty node name": sliced(nodeName=""),
    "nodes by one term": nodes(term()),
    "nodes by no term": nodes(),
    "nodes by two terms": nodes(term(), term()),
    "nodes by a term of an unknown operator": nodes(term(operator="Like")),
    "nodes by a term without values": nodes(term(values=())),
    "each device its own nodes": sliced(
        [{"name": "gpu-0", "nodeName": "node-a"}, {"name": "gpu-1", "allNodes": True}],
        nodeName=None,
        perDeviceNodeSelection=True,
    ),
    "each device its own nodes, one has none": sliced(
        named(1), nodeName=None, perDeviceNodeSelection=True
    ),
    "each device its own nodes, one has two": sliced(
        [{"name": "gpu-0", "nodeName": "node-a", "allNodes": True}],
        nodeName=None,
        perDeviceNodeSelection=True,
    ),
    "device with nodes where the slice has them": device(nodeName="node-a"),
    "128 devices": sliced(named(128)),
    "129 devices": sliced(named(129)),
    "64 tainted devices": sliced(named(64, taints=taints(16, "None"))),
    "65 devices, one tainted": sliced([*named(64), {"name": "x", "taints": taints(1)}]),
    "65 devices, one with counters": sliced(
        [*named(64), {"name": "x", "consumesCounters": consumes("s")}]
    ),
    "devices beside counters": sliced(named(1), sharedCounters=sets(1)),
    "eight sets of 32 counters": sliced(sharedCounters=sets(8, counters=32)),
    "nine counter sets": sliced(sharedCounters=sets(9)),
    "33 counters in a set": sliced(sharedCounters=sets(1, counters=33)),
    "set without counters": sliced(sharedCounters=[{"name": "s"}]),
    "set without a name": sliced(sharedCounters=[{"counters": amounts(1)}]),
    "set in upper case": sliced(sharedCounters=[{"name": "S", "counters": amounts(1)}]),
    "counter in upper case": sliced(
        sharedCounters=[{"name": "s", "counters": {"C": {"value": "1"}}}]
    ),
    "counter without a value": sliced(sharedCounters=[{"name": "s", "counters": {"c": {}}}]),
    "two sets of one name": sliced(sharedCounters=sets(1) + sets(1)),
}

DEVICES: dict[str, Json] = {
    "device name in upper case": sliced([{"name": "GPU-0"}]),
    "device name with a dot": sliced([{"name": "gpu.0"}]),
    "device name of 64 bytes": sliced([{"name": "a" * 64}]),
    "device without a name": sliced([{}]),
    "device of null": sliced([None]),
    "two devices of one name": sliced(named(1) + named(1)),
    "32 attributes": device(attributes={f"a{n}": {"int": n} for n in range(32)}),
    "33 attributes": device(attributes={f"a{n}": {"int": n} for n in range(33)}),
    "attributes and capacity over 32": device(
        attributes={f"a{n}": {"int": n} for n in range(30)}, capacity=amounts(3)
    ),
    "attribute with a dash": attribute("numa-1", int=1),
    "attribute that begins with a digit": attribute("3d", int=1),
    "attribute in upper case": attribute("NUMA", int=1),
    "attribute name of 33 bytes": attribute("a" * 33, int=1),
    "attribute without a name": attribute("", int=1),
    "attribute with two slashes": attribute("a/b/c", int=1),
    "attribute without a domain": attribute("/a", int=1),
    "attribute of a domain alone": attribute("a.dev/", int=1),
    "attribute of a domain of 63 bytes": attribute("d" * 63 + "/a", int=1),
    "attribute of a domain of 64 bytes": attribute("d" * 64 + "/a", int=1),
    "attribute of a domain in upper case": attribute("A.dev/a", int=1),
    "standard attribute": attribute("resource.kubernetes.io/numaNode", int=0),
    "one attribute with and without its domain": device(
        attributes={"a": {"int": 1}, "conformance.example.com/a": {"int": 2}}
    ),
    "attribute of no value": attribute("a"),
    "attribute of two values": attribute("a", int=1, bool=True),
    "attribute of null": device(attributes={"a": None}),
    "attribute of a null value": attribute("a", int=None),
    "int of 64 bits": attribute("a", int=2**63 - 1),
    "int of 65 bits": attribute("a", int=2**63),
    "int in quotes": attribute("a", int="1"),
    "int with a point": attribute("a", int=1.0),
    "int with a fraction": attribute("a", int=1.5),
    "bool in quotes": attribute("a", bool="true"),
    "bool of 1": attribute("a", bool=1),
    "false": attribute("a", bool=False),
    "empty string": attribute("a", string=""),
    "string of 64 bytes": attribute("a", string="é" * 32),
    "string of 65 bytes": attribute("a", string="é" * 32 + "e"),
    "string of 33 characters and 66 bytes": attribute("a", string="é" * 33),
    "string with a line feed and a null": attribute("a", string="a\n\0b"),
    "string that is a number": attribute("a", string=1),
    "version": attribute("a", version="535.104.5-rc.1+b"),
    "version with a v": attribute("a", version="v1.2.3"),
    "version of two numbers": attribute("a", version="1.2"),
    "version with a leading zero": attribute("a", version="1.02.3"),
    "version of nothing": attribute("a", version=""),
    "version of 64 bytes": attribute("a", version="1.2.3-" + "a" * 58),
    "version of 65 bytes": attribute("a", version="1.2.3-" + "a" * 59),
    "list of ints": attribute("a", ints=[1]),
    "list of nothing": attribute("a", strings=[]),
    "17 taints": device(taints=taints(17)),
    "16 taints": device(taints=taints(16)),
    "five taints": device(taints=taints(5)),
    "taint without an effect": taint(effect=None),
    "taint of an unknown effect": taint(effect="Explode"),
    "taint of effect None": taint(effect="None"),
    "taint without a key": taint(key=None),
    "taint of a bad key": taint(key="a b"),
    "taint of a key with two slashes": taint(key="a/b/c"),
    "taint of a domain in upper case": taint(key="A.dev/b"),
    "taint of a key of 64 bytes": taint(key="a" * 64),
    "taint of a value": taint(value="of-a_value.1"),
    "taint of a bad value": taint(value="a b"),
    "taint of a value of 64 bytes": taint(value="a" * 64),
    "taint of a bad time": taint(timeAdded="yesterday"),
    "two taints of one key": device(taints=taints(1) + taints(1)),
    "two counter sets": device(consumesCounters=consumes("a", "b", counters=32)),
    "three counter sets on a device": device(consumesCounters=consumes("a", "b", "c")),
    "33 counters from a set": device(consumesCounters=consumes("a", counters=33)),
    "one counter set twice": device(consumesCounters=consumes("a", "a")),
    "no counters from a set": device(consumesCounters=[{"counterSet": "a"}]),
    "counters from no set": device(consumesCounters=[{"counters": amounts(1)}]),
    "binding conditions alone": device(bindingConditions=["Ready"]),
    "binding failures alone": device(bindingFailureConditions=["Bad"]),
    "binding conditions": device(
        bindsToNode=True,
        bindingConditions=["a.dev/Ready"],
        bindingFailureConditions=["Bad"],
    ),
    "five binding conditions": device(
        bindingConditions=list("abcde"), bindingFailureConditions=list("fghij")
    ),
    "one binding condition in both": device(
        bindingConditions=["Ready"], bindingFailureConditions=["Ready"]
    ),
    "one binding condition twice": device(
        bindingConditions=["Ready", "Ready"], bindingFailureConditions=["Bad"]
    ),
    "bad binding condition": device(
        bindingConditions=["not ready"], bindingFailureConditions=["Bad"]
    ),
}

AMOUNTS: dict[str, Json] = {
    **{
        f"capacity of {value!r}": device(capacity={"c": {"value": value}})
        for value in (
            *("1024Mi", "1.5Gi", "1500m", "0.5", "1e3", "1E3", "100k", "-1", "0", "+5", "01"),
            *("1n", "0.1n", "1u", "9223372036854775807", "9223372036854775808", "8Ei", "16Ei"),
            *("", " 1", "1 Gi", "lots", "1gi", "1K", ".5", "5.", "1e", "0x10", "NaN", "1000Ki"),
            *(5, 1.5, True, None, [1]),
        )
    },
    "capacity without a value": device(capacity={"c": {}}),
    "capacity of null": device(capacity={"c": None}),
    "capacity of a bad name": device(capacity={"mem-ory": {"value": "1"}}),
    "policy without sharing": device(
        capacity={"c": {"value": "1", "requestPolicy": {"default": "1"}}}
    ),
    "empty policy": shared(),
    "policy of a default": shared(default="1Gi"),
    "policy of a default over the capacity": shared(default="9Gi"),
    "policy without a default": shared(validValues=["1Gi"]),
    "range without a default": shared(validRange={"min": "1Gi"}),
    "policy of values": shared(default="1Gi", validValues=["1Gi", "8Gi"]),
    "default that is no valid value": shared(default="2Gi", validValues=["1Gi", "8Gi"]),
    "no valid values": shared(default="1Gi", validValues=[]),
    "ten valid values": shared(default="1", validValues=[str(n) for n in range(1, 11)]),
    "eleven valid values": shared(default="1", validValues=[str(n) for n in range(1, 12)]),
    "valid values out of order": shared(default="1Gi", validValues=["2Gi", "1Gi"]),
    "one valid value twice": shared(default="1Gi", validValues=["1Gi", "1024Mi"]),
    "valid value over the capacity": shared(default="1Gi", validValues=["1Gi", "9Gi"]),
    "values and a range": shared(default="1Gi", validValues=["1Gi"], validRange={"min": "1Gi"}),
    "policy of a range": shared(
        default="4Gi", validRange={"min": "0", "max": "8Gi", "step": "2Gi"}
    ),
    "range without a least": shared(default="1Gi", validRange={"max": "2Gi"}),
    "range upside down": shared(default="2Gi", validRange={"min": "3Gi", "max": "1Gi"}),
    "default below the range": shared(default="1Gi", validRange={"min": "2Gi"}),
    "default above the range": shared(default="5Gi", validRange={"min": "2Gi", "max": "4Gi"}),
    "range over the capacity": shared(default="1Gi", validRange={"min": "1Gi", "max": "9Gi"}),
    "least over the capacity": shared(default="9Gi", validRange={"min": "9Gi"}),
    "default between two steps": shared(default="3Gi", validRange={"min": "2Gi", "step": "2Gi"}),
    "most between two steps": shared(
        default="2Gi", validRange={"min": "2Gi", "max": "5Gi", "step": "2Gi"}
    ),
    "step of nothing": shared(default="2Gi", validRange={"min": "2Gi", "step": "0"}),
    "negative step": shared(default="2Gi", validRange={"min": "2Gi", "step": "-1Gi"}),
    "step over the capacity": shared(default="2Gi", validRange={"min": "2Gi", "step": "8Gi"}),
    "range of fractions": shared("1", default="500m", validRange={"min": "100m", "step": "100m"}),
}

METADATA: dict[str, Json] = {
    "name in upper case": sliced(metadata={"name": "Slice"}),
    "name of 254 bytes": sliced(metadata={"name": "a" * 254}),
    "no name": sliced(metadata={"name": None}),
    "UID that the client chose": sliced(metadata={"uid": "00000000-0000-0000-0000-000000000001"}),
    "resource version on create": sliced(metadata={"resourceVersion": "1"}),
    "creation time that the client chose": sliced(metadata={"creationTimestamp": _T}),
    "namespace where there is none": sliced(metadata={"namespace": "default"}),
    "labels and annotations": sliced(
        metadata={"labels": {"a.dev/b": "c", "d": ""}, "annotations": {"e": "any text\n"}}
    ),
    "label of a bad key": sliced(metadata={"labels": {"a b": "c"}}),
    "label of a bad value": sliced(metadata={"labels": {"a": "b c"}}),
    "label that is a number": sliced(metadata={"labels": {"a": 1}}),
    "annotation of a bad key": sliced(metadata={"annotations": {"a b": "c"}}),
    "annotations over 256 KiB": sliced(metadata={"annotations": {"a": "b" * (256 << 10)}}),
    "owner": owned(controller=True, blockOwnerDeletion=True),
    "owner without a UID": owned(uid=None),
    "owner without a name": owned(name=None),
    "owner without a kind": owned(kind=None),
    "owner without a version": owned(apiVersion=None),
    "owner of a bad version": owned(apiVersion="a/b/c"),
    "two controllers": sliced(
        metadata={"ownerReferences": [_CONTROLLER | {"name": "a"}, _CONTROLLER | {"name": "b"}]}
    ),
    "finalizer": sliced(metadata={"finalizers": ["a.dev/wait"]}),
    "bad finalizer": sliced(metadata={"finalizers": ["a b"]}),
    "finalizer without a domain": sliced(metadata={"finalizers": ["wait"]}),
    "unknown fields": {
        **sliced([{"name": "gpu-0", "invented": True}], invented=1),
        "status": {"ready": True},
        "invented": {},
    },
    "field in another case": sliced(nodeName=None, NodeName="node-a"),
    "devices that are no list": sliced({"name": "x"}),
    "device that is text": sliced(["x"]),
    "attributes that are a list": device(attributes=[]),
    "spec that is text": {**sliced(), "spec": "x"},
    "metadata that is a number": {**sliced(), "metadata": 3},
    "another kind": {**sliced(), "kind": "DeviceClass"},
    "another version": {**sliced(), "apiVersion": "resource.k8s.io/v1beta2"},
    "another group": {**sliced(), "apiVersion": "v1"},
    "no kind": {**sliced(), "kind": None},
    "no version": {**sliced(), "apiVersion": None},
}

SLICES = WHOLE | DEVICES | AMOUNTS | METADATA
