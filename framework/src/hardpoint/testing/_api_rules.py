"""What the real API server refuses in ResourceSlices, limit by limit and in its words.

Held to the real one by ``tests/conformance``. Which release brought which limit: kubernetes-api
facts, 4.1; the rules are in pkg/apis/resource/validation of Kubernetes.
"""

from __future__ import annotations

import re
from typing import Any

from hardpoint.testing import _api_text as text
from hardpoint.testing._api_capacity import check_capacity
from hardpoint.testing._api_names import Names, check_taint
from hardpoint.testing._api_status import Causes, Json

_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)
_NODES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_SCALARS = ("int", "bool", "string", "version")
_LISTS = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}
_ONE_OF_NODES = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection`"
_ONE_OF_DEVICE = (
    "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when "
    "`perDeviceNodeSelection` is set to true in the ResourceSlice spec"
)
_NO_DEVICE_NODES = (
    "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set "
    "to true in the ResourceSlice spec"
)


class SliceRules:
    """Validation of one ResourceSlice, as the given minor release does it."""

    def __init__(self, minor: int) -> None:
        self.minor = minor
        self.causes = Causes()
        self._names = Names(self.causes, minor)

    def check(self, body: Json, old: Json | None) -> Causes:
        """Return what is wrong with a slice; ``old`` is what it replaces."""
        spec = body.get("spec") or {}
        self._driver_and_pool(spec)
        if old is not None:
            self._immutable(spec, old.get("spec") or {})
        self._nodes(spec)
        self._counts(spec)
        self._counter_sets(spec)
        before = {d.get("name"): d for d in ((old or {}).get("spec") or {}).get("devices") or ()}
        devices = spec.get("devices") or ()
        if len(devices) <= self._most_devices(spec):
            for index, device in enumerate(devices):
                self._device(f"spec.devices[{index}]", device, spec, before.get(device.get("name")))
            self._names.unique("spec.devices", [d.get("name", "") for d in devices], "name")
        return self.causes

    # -- the slice --------------------------------------------------------------------------------

    def _driver_and_pool(self, spec: Json) -> None:
        pool = spec.get("pool") or {}
        self._names.driver("spec.driver", spec.get("driver", ""))
        self._names.pool("spec.pool.name", pool.get("name", ""))
        count, generation = pool.get("resourceSliceCount", 0), pool.get("generation", 0)
        if count <= 0:
            self.causes.invalid("spec.pool.resourceSliceCount", count, "must be greater than zero")
        if generation < 0:
            detail = "must be greater than or equal to zero"
            self.causes.invalid("spec.pool.generation", generation, detail)

    def _immutable(self, spec: Json, old: Json) -> None:
        pool, was = spec.get("pool") or {}, old.get("pool") or {}
        pairs = (
            ("spec.pool.name", pool.get("name", ""), was.get("name", "")),
            ("spec.driver", spec.get("driver", ""), old.get("driver", "")),
            ("spec.nodeName", spec.get("nodeName"), old.get("nodeName")),
        )
        for path, now, before in pairs:
            if now != before:
                self.causes.invalid(path, now, "field is immutable")

    def _nodes(self, spec: Json) -> None:
        given = self._ways(
            "spec", spec, _NODES, "must be either unset or set to a non-empty string"
        )
        terms = (spec.get("nodeSelector") or {}).get("nodeSelectorTerms") or []
        if "`nodeSelector`" in given and len(terms) != 1:
            path = "spec.nodeSelector.nodeSelectorTerms"
            self.causes.invalid(path, terms, "must have exactly one node selector term")
        if not given:
            self.causes.required("spec", f"{_ONE_OF_NODES} is required")
        elif len(given) > 1:
            detail = f"{_ONE_OF_NODES} is required, but multiple fields are set"
            self.causes.invalid("spec", "{" + ", ".join(given) + "}", detail)

    def _ways(self, path: str, found: Json, known: tuple[str, ...], no_name: str) -> list[str]:
        """Return in which ways nodes are named; complains of ways that name none."""
        given = []
        for name in known:
            value = found.get(name)
            if name == "nodeName" and value == "":
                self.causes.invalid(f"{path}.nodeName", "", no_name)
            elif value is False:
                self.causes.invalid(f"{path}.{name}", value, "must be either unset or set to true")
            elif value is not None:
                given.append(f"`{name}`")
        if found.get("nodeName"):
            self.causes.say(f"{path}.nodeName", found["nodeName"], text.of_subdomain)
        if found.get("nodeSelector") is not None:
            self._names.node_selector(f"{path}.nodeSelector", found["nodeSelector"])
        return given

    def _most_devices(self, spec: Json) -> int:
        devices = spec.get("devices") or ()
        advanced = any(d.get("taints") or d.get("consumesCounters") for d in devices)
        if self.minor >= 36:
            values = (v for d in devices for v in (d.get("attributes") or {}).values())
            advanced = advanced or any(name in value for value in values for name in _LISTS)
        return 64 if advanced and self.minor >= 35 else 128

    def _counts(self, spec: Json) -> None:
        devices, most = spec.get("devices") or (), self._most_devices(spec)
        if len(devices) > most:
            self.causes.too_many("spec.devices", len(devices), most)
        if self.minor >= 35 and None not in (spec.get("devices"), spec.get("sharedCounters")):
            self.causes.invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")

    # -- counters ---------------------------------------------------------------------------------

    def _counter_sets(self, spec: Json) -> None:
        sets = spec.get("sharedCounters") or ()
        if self.minor >= 35 and len(sets) > 8:
            self.causes.too_many("spec.sharedCounters", len(sets), 8)
            return
        total = sum(len(found.get("counters") or {}) for found in sets)
        if self.minor < 35 and total > 32:
            detail = "the total number of shared counters must not exceed 32"
            self.causes.invalid("spec.sharedCounters", total, detail)
        for index, found in enumerate(sets):
            path = f"spec.sharedCounters[{index}]"
            self._needed_label(f"{path}.name", found.get("name", ""))
            self._counters(f"{path}.counters", found.get("counters") or {})
        names = [found.get("name", "") for found in sets]
        self._names.unique("spec.sharedCounters", names, "name", sets)

    def _needed_label(self, path: str, name: str) -> None:
        if name:
            self.causes.say(path, name, text.of_label)
        else:
            self.causes.required(path)

    def _counters(self, path: str, counters: Json) -> None:
        if not counters:
            self.causes.required(path)
        elif self.minor >= 35 and len(counters) > 32:
            self.causes.too_many(path, len(counters), 32)
        else:
            for key in counters:
                self.causes.say(self._names.key(path, key), key, text.of_label)

    def _consumed(self, path: str, device: Json) -> None:
        consumed = device.get("consumesCounters") or []
        if self.minor >= 35 and len(consumed) > 2:
            self.causes.too_many(path, len(consumed), 2)
            return
        for index, found in enumerate(consumed):
            self._needed_label(f"{path}[{index}].counterSet", found.get("counterSet", ""))
            self._counters(f"{path}[{index}].counters", found.get("counters") or {})
        names = [found.get("counterSet", "") for found in consumed]
        self._names.unique(path, names, "counterSet", consumed)

    # -- a device ---------------------------------------------------------------------------------

    def _device(self, path: str, device: Json, spec: Json, old: Json | None) -> None:
        self.causes.say(f"{path}.name", device.get("name", ""), text.of_label)
        attributes = device.get("attributes") or {}
        self._sizes(path, device)
        for name, value in attributes.items():
            self._names.qualified(self._names.key(f"{path}.attributes", name), name)
            self._attribute(f"{path}.attributes[{name}]", value)
        if old is None or old.get("capacity") != device.get("capacity"):
            for name, found in (device.get("capacity") or {}).items():
                self._names.qualified(self._names.key(f"{path}.capacity", name), name)
                check_capacity(self.causes, f"{path}.capacity[{name}]", found, device)
        if old is None or old.get("taints") != device.get("taints"):
            self._taints(f"{path}.taints", device)
        self._consumed(f"{path}.consumesCounters", device)
        self._device_nodes(path, device, spec)
        self._conditions(path, device)

    def _sizes(self, path: str, device: Json) -> None:
        attributes = device.get("attributes") or {}
        entries = len(attributes) + len(device.get("capacity") or {})
        if entries > 32:
            detail = "the total number of attributes and capacities must not exceed 32"
            self.causes.invalid(path, entries, detail)
        values = sum(_values(value) for value in attributes.values())
        if self.minor >= 36 and values > 48:
            detail = "the total number of attribute values must not exceed 48"
            self.causes.invalid(path, values, detail)

    def _attribute(self, path: str, value: Json) -> None:
        known = (*_SCALARS, *(_LISTS if self.minor >= 36 else ()))
        listed = ", ".join(f"`{name}`" for name in known)
        given = [name for name in known if name in value]
        if not given and self.minor < 35:
            self.causes.required(path, "exactly one value must be specified")
        elif not given:
            self.causes.invalid(path, "", f"must specify one of: {listed}")
        elif len(given) > 1:
            shown = "{" + ", ".join(given) + "}"
            self.causes.invalid(path, shown, f"must specify exactly one of: {listed}")
        for kind in given:
            found = value[kind]
            if kind in _SCALARS:
                self._scalar(f"{path}.{kind}", kind, found)
            elif not found:
                self.causes.invalid(f"{path}.{kind}", [], "must not be empty if specified")
            else:
                for index, item in enumerate(found):
                    self._scalar(f"{path}.{kind}[{index}]", _LISTS[kind], item)

    def _scalar(self, path: str, kind: str, value: Any) -> None:
        if kind == "version" and not _SEMVER.fullmatch(value):
            detail = "must be a string compatible with semver.org spec 2.0.0"
            self.causes.invalid(path, value, detail)
        if kind in ("string", "version") and len(value.encode()) > 64:
            self.causes.too_long(path, 64)

    def _taints(self, path: str, device: Json) -> None:
        taints, most = device.get("taints") or [], 16 if self.minor >= 35 else 4
        if len(taints) > most:
            self.causes.too_many(path, len(taints), most)
            return
        for index, taint in enumerate(taints):
            check_taint(self.causes, f"{path}[{index}]", taint, self.minor)

    def _device_nodes(self, path: str, device: Json, spec: Json) -> None:
        known = ("nodeName", "nodeSelector", "allNodes")
        if not spec.get("perDeviceNodeSelection"):
            if any(device.get(name) is not None for name in known):
                self.causes.invalid(path, None, _NO_DEVICE_NODES)
            return
        given = self._ways(path, device, known, "must not be empty")
        if not given:
            self.causes.required(path, _ONE_OF_DEVICE)
        elif len(given) > 1:
            self.causes.invalid(path, "{" + ", ".join(given) + "}", _ONE_OF_DEVICE)

    def _conditions(self, path: str, device: Json) -> None:
        words = ("bindingConditions", "bindingFailureConditions")
        for name, other in (words, words[::-1]):
            found, others = device.get(name) or [], device.get(other) or []
            if len(found) > 4:
                self.causes.too_many(f"{path}.{name}", len(found), 4)
            else:
                for index, word in enumerate(found):
                    self.causes.say(f"{path}.{name}[{index}]", word, text.of_key)
            self._names.unique(f"{path}.{name}", found)
            if others and not found:
                self.causes.invalid(f"{path}.{name}", None, f"{name} are required to use {other}")
        for index, word in enumerate(device.get(words[1]) or ()):
            if word in (device.get(words[0]) or ()):
                detail = f"{words[1]} must not overlap with {words[0]}"
                self.causes.invalid(f"{path}.{words[1]}[{index}]", word, detail)


def _values(attribute: Json) -> int:
    """Return how many values an attribute counts as: a list is as many as it has items."""
    lists = [len(attribute[name]) for name in _LISTS if attribute.get(name)]
    return sum(lists) if lists else 1
