"""ResourceClaims at the edge of what an API server takes, one odd thing in each."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
_ONE = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}


def claimed(requests: Any = (_ONE,), **devices: Any) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {},
        "spec": {"devices": {"requests": list(requests), **devices}},
    }


def asked(**exactly: Any) -> Json:
    whole = {"deviceClassName": "gpu"} | exactly
    return claimed([{"name": "gpu", "exactly": {k: v for k, v in whole.items() if v is not None}}])


def first(*requests: Any) -> Json:
    return claimed([{"name": "gpu", "firstAvailable": list(requests)}])


def of(name: str, **more: Any) -> Json:
    return {"name": name, "deviceClassName": "gpu"} | more


def config(parameters: Any = None, requests: Any = (), **opaque: Any) -> Json:
    whole = {"driver": "d.example.com", "parameters": parameters or {"a": 1}} | opaque
    given = {k: v for k, v in whole.items() if v is not None}
    return claimed(config=[{"requests": list(requests), "opaque": given}])


def match(name: str, *requests: str, kind: str = "matchAttribute") -> Json:
    return claimed(constraints=[{"requests": list(requests), kind: name}])


def tolerated(**toleration: Any) -> Json:
    return asked(tolerations=[toleration])


CLAIMS: dict[str, Json] = {
    "no spec": {**claimed(), "spec": None},
    "nothing asked for": claimed([]),
    "32 requests": claimed([{**_ONE, "name": f"r{n}"} for n in range(32)]),
    "33 requests": claimed([{**_ONE, "name": f"r{n}"} for n in range(33)]),
    "request without a name": claimed([{"exactly": {"deviceClassName": "gpu"}}]),
    "request in upper case": claimed([{**_ONE, "name": "GPU"}]),
    "two requests of one name": claimed([_ONE, _ONE]),
    "request for nothing": claimed([{"name": "gpu"}]),
    "request for one and for any": claimed([{**_ONE, "firstAvailable": [of("a")]}]),
    "no class": asked(deviceClassName=None),
    "class in upper case": asked(deviceClassName="GPU"),
    "all devices": asked(allocationMode="All"),
    "all devices, three of them": asked(allocationMode="All", count=3),
    "three devices": asked(count=3),
    "no devices": asked(count=0),
    "less than no devices": asked(count=-1),
    "an unknown way of allocation": asked(allocationMode="Some"),
    "33 selectors": asked(selectors=[{"cel": {"expression": "true"}}] * 33),
    "selector of no kind": asked(selectors=[{}]),
    "capacity": asked(capacity={"requests": {"memory": "1024Mi"}}),
    "first of two": first(of("a"), of("b")),
    "first of nine": first(*(of(f"a{n}") for n in range(9))),
    "first of two of one name": first(of("a"), of("a")),
    "first without a class": first({"name": "a"}),
    "tolerates a taint": tolerated(key="a", operator="Equal", value="b", effect="NoSchedule"),
    "tolerates any taint": tolerated(operator="Exists"),
    "tolerates by no operator": tolerated(key="a"),
    "tolerates by an unknown operator": tolerated(operator="Like"),
    "tolerates what exists with a value": tolerated(operator="Exists", value="a"),
    "tolerates an unknown effect": tolerated(operator="Exists", effect="Explode"),
    "tolerates a bad value": tolerated(operator="Equal", key="a", value="b c"),
    "17 tolerations": asked(tolerations=[{"operator": "Exists"}] * 17),
    "match": match("a.dev/b", "gpu"),
    "match without a domain": match("b"),
    "match of an unknown request": match("a.dev/b", "other"),
    "match of a request three deep": match("a.dev/b", "gpu/a/b"),
    "match of one request twice": match("a.dev/b", "gpu", "gpu"),
    "distinct": match("a.dev/b", kind="distinctAttribute"),
    "constraint of nothing": claimed(constraints=[{}]),
    "33 constraints": claimed(constraints=[{"matchAttribute": "a.dev/b"}] * 33),
    "configuration": config(requests=["gpu"]),
    "configuration of an unknown request": config(requests=["other"]),
    "configuration of nothing": claimed(config=[{}]),
    "configuration for no driver": config(driver=""),
    "configuration for a bad driver": config(driver="a b"),
    "configuration without parameters": claimed(config=[{"opaque": {"driver": "d.example.com"}}]),
    "parameters that are a list": config(parameters=[1]),
    "parameters that are text": config(parameters="x"),
    "empty parameters": claimed(config=[{"opaque": {"driver": "d.dev", "parameters": {}}}]),
    "parameters of null": claimed(config=[{"opaque": {"driver": "d.dev", "parameters": None}}]),
    "parameters of 10 KiB": config(parameters={"a": "b" * ((10 << 10) - 8)}),
    "parameters over 10 KiB": config(parameters={"a": "b" * ((10 << 10) - 7)}),
    "33 configurations": claimed(
        config=[{"opaque": {"driver": "d.dev", "parameters": {"a": 1}}}] * 33
    ),
    "unknown fields": claimed([{**_ONE, "invented": 1}]),
}
