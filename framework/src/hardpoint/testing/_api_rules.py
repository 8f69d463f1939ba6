"""What the real API server refuses in ResourceSlices, limit by limit.

Numbers: k8s.io/api/resource/v1/types.go; which release brought which: kubernetes-api facts, 4.1.
"""

from __future__ import annotations

import re
from typing import Any

from hardpoint.quantity import amount
from hardpoint.testing._api_status import Causes, Json
from hardpoint.testing._names import is_dns_subdomain

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)
_KIND_OF_NODES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_SCALARS = ("int", "bool", "string", "version")
_LISTS = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}


SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"
)
LABEL = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'"


def is_label(text: str) -> bool:
    """Say whether this is a DNS label."""
    return bool(_LABEL.fullmatch(text))


def is_subdomain(text: str, most: int = 253) -> bool:
    """Say whether this is a DNS subdomain; the API does not limit its labels alone."""
    return len(text) <= most and is_dns_subdomain(text)


class SliceRules:
    """Validation of one ResourceSlice, as the given minor release does it."""

    def __init__(self, minor: int) -> None:
        self.minor = minor
        self.causes = Causes()

    def check(self, body: Json, old: Json | None) -> Causes:
        """Return what is wrong with a slice; ``old`` is what it replaces."""
        spec = body.get("spec") or {}
        self._driver_and_pool(spec)
        self._nodes(spec)
        self._counts(spec)
        self._counter_sets(spec)
        names: set[str] = set()
        for index, device in enumerate(spec.get("devices") or ()):
            self._device(f"spec.devices[{index}]", device, names)
        if old is not None:
            self._immutable(spec, old.get("spec") or {})
        return self.causes

    def _driver_and_pool(self, spec: Json) -> None:
        driver, pool = spec.get("driver", ""), spec.get("pool") or {}
        self._name("spec.driver", driver, 63, is_subdomain(driver))
        name = pool.get("name", "")
        segments = name.split("/")
        self._name("spec.pool.name", name, 253, all(is_subdomain(part) for part in segments))
        if pool.get("generation", 0) < 0:
            self.causes.invalid(
                "spec.pool.generation", pool["generation"], "must be greater than or equal to zero"
            )
        count = pool.get("resourceSliceCount", 0)
        if count <= 0:
            self.causes.invalid("spec.pool.resourceSliceCount", count, "must be greater than zero")

    def _name(self, path: str, name: str, most: int, valid: bool) -> None:
        if not name:
            self.causes.required(path)
        elif len(name) > most:
            self.causes.too_long(path, most)
        elif not valid:
            self.causes.invalid(path, name, SUBDOMAIN)

    def _nodes(self, spec: Json) -> None:
        given = [name for name in _KIND_OF_NODES if spec.get(name)]
        if len(given) != 1:
            word = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection`"
            self.causes.invalid("spec", "{" + ", ".join(given) + "}", f"{word} is required")
        if spec.get("nodeName") and not is_subdomain(spec["nodeName"]):
            self.causes.invalid("spec.nodeName", spec["nodeName"], "not a node name")
        terms = (spec.get("nodeSelector") or {}).get("nodeSelectorTerms") or ()
        if spec.get("nodeSelector") and len(terms) != 1:
            self.causes.invalid(
                "spec.nodeSelector.nodeSelectorTerms", len(terms), "must have exactly one term"
            )

    def _counts(self, spec: Json) -> None:
        devices = spec.get("devices") or ()
        advanced = any(d.get("taints") or d.get("consumesCounters") for d in devices)
        if self.minor >= 36:
            values = (v for d in devices for v in (d.get("attributes") or {}).values())
            advanced = advanced or any(name in value for value in values for name in _LISTS)
        most = 64 if advanced and self.minor >= 35 else 128
        if len(devices) > most:
            self.causes.too_many("spec.devices", len(devices), most)
        if devices and spec.get("sharedCounters") and self.minor >= 35:
            self.causes.invalid(
                "spec", "{}", "only one of `sharedCounters` or `devices` is allowed"
            )

    def _counter_sets(self, spec: Json) -> None:
        sets = spec.get("sharedCounters") or ()
        if len(sets) > 8:
            self.causes.too_many("spec.sharedCounters", len(sets), 8)
        total = sum(len(found.get("counters") or {}) for found in sets)
        if self.minor < 35 and total > 32:
            self.causes.invalid(
                "spec.sharedCounters", total, "the total number of counters must not exceed 32"
            )
        seen: set[str] = set()
        for index, found in enumerate(sets):
            path = f"spec.sharedCounters[{index}]"
            self._label(f"{path}.name", found.get("name", ""), seen)
            self._counters(f"{path}.counters", found.get("counters") or {})

    def _label(self, path: str, name: str, seen: set[str]) -> None:
        if not name:
            self.causes.required(path)
        elif not is_label(name):
            self.causes.invalid(path, name, LABEL)
        elif name in seen:
            self.causes.duplicate(path, name)
        seen.add(name)

    def _counters(self, path: str, counters: Json) -> None:
        if not counters:
            self.causes.required(path)
        elif len(counters) > 32:
            self.causes.too_many(path, len(counters), 32)
        for key in counters:
            if not is_label(key):
                self.causes.invalid(path, key, LABEL)

    def _device(self, path: str, device: Json, names: set[str]) -> None:
        self._label(f"{path}.name", device.get("name", ""), names)
        attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
        entries = len(attributes) + len(capacity)
        if entries > 32:
            detail = "the total number of attributes and capacities must not exceed 32"
            self.causes.invalid(path, entries, detail)
        values = sum(
            len(v[name]) if name in _LISTS else 1 for v in attributes.values() for name in v
        )
        if self.minor >= 36 and values > 48:
            detail = "the total number of attribute values must not exceed 48"
            self.causes.invalid(f"{path}.attributes", values, detail)
        for name, value in attributes.items():
            self._attribute(f"{path}.attributes", name, value)
        for name, found in capacity.items():
            self._capacity(f"{path}.capacity", name, found, device)
        self._taints(f"{path}.taints", device.get("taints") or [])
        self._consumed(f"{path}.consumesCounters", device.get("consumesCounters") or [])
        self._conditions(path, device)

    def _attribute(self, path: str, name: str, value: Json) -> None:
        self._qualified(path, name)
        path = f"{path}[{name}]"
        if not value:
            self.causes.required(path, "exactly one value must be specified")
        elif len(value) > 1:
            self.causes.invalid(path, ", ".join(value), "exactly one value must be specified")
        for kind, found in value.items():
            if kind in _SCALARS:
                self._scalar(f"{path}.{kind}", kind, found)
            elif not found:
                self.causes.required(f"{path}.{kind}", "must contain at least one item")
            else:
                for index, item in enumerate(found):
                    self._scalar(f"{path}.{kind}[{index}]", _LISTS[kind], item)

    def _scalar(self, path: str, kind: str, value: Any) -> None:
        if kind not in ("string", "version"):
            return
        if len(value.encode()) > 64:
            self.causes.too_long(path, 64)
        elif kind == "version" and not _SEMVER.fullmatch(value):
            self.causes.invalid(
                path, value, "must be a string compatible with semver.org spec 2.0.0"
            )

    def _qualified(self, path: str, name: str) -> None:
        domain, slash, identifier = name.rpartition("/")
        if slash and not is_subdomain(domain, 63):
            self.causes.invalid(
                path, name, "the domain must be a DNS subdomain of at most 63 bytes"
            )
        if not _IDENTIFIER.fullmatch(identifier) or len(identifier) > 32:
            self.causes.invalid(path, name, "the name must be a C identifier of at most 32 bytes")

    def _capacity(self, path: str, name: str, found: Json, device: Json) -> None:
        self._qualified(path, name)
        path = f"{path}[{name}]"
        if "value" not in found:
            self.causes.required(f"{path}.value")
            return
        policy = found.get("requestPolicy")
        if policy is None:
            return
        if not device.get("allowMultipleAllocations"):
            detail = "requestPolicy must not be specified when allowMultipleAllocations is not true"
            self.causes.forbidden(f"{path}.requestPolicy", detail)
        _policy(self.causes, f"{path}.requestPolicy", policy, found["value"])

    def _taints(self, path: str, taints: list[Json]) -> None:
        most = 16 if self.minor >= 35 else 4
        if len(taints) > most:
            self.causes.too_many(path, len(taints), most)
        effects = ("NoSchedule", "NoExecute", *(("None",) if self.minor >= 35 else ()))
        for index, taint in enumerate(taints):
            key, value = taint.get("key", ""), taint.get("value", "")
            domain, slash, word = key.rpartition("/")
            if not key:
                self.causes.required(f"{path}[{index}].key")
            elif not _WORD.fullmatch(word) or (slash and not is_subdomain(domain)):
                self.causes.invalid(
                    f"{path}[{index}].key",
                    key,
                    "not a label name",
                )
            if value and not _WORD.fullmatch(value):
                self.causes.invalid(f"{path}[{index}].value", value, "not a label value")
            if not taint.get("effect"):
                self.causes.required(f"{path}[{index}].effect")
            elif taint["effect"] not in effects:
                self.causes.unsupported(f"{path}[{index}].effect", taint["effect"], effects)

    def _consumed(self, path: str, consumed: list[Json]) -> None:
        if self.minor >= 35 and len(consumed) > 2:
            self.causes.too_many(path, len(consumed), 2)
        seen: set[str] = set()
        for index, found in enumerate(consumed):
            self._label(f"{path}[{index}].counterSet", found.get("counterSet", ""), seen)
            self._counters(f"{path}[{index}].counters", found.get("counters") or {})

    def _conditions(self, path: str, device: Json) -> None:
        good, bad = (
            device.get(name) or [] for name in ("bindingConditions", "bindingFailureConditions")
        )
        for name, found in (("bindingConditions", good), ("bindingFailureConditions", bad)):
            if len(found) > 4:
                self.causes.too_many(f"{path}.{name}", len(found), 4)
        if bool(good) != bool(bad):
            missing = "bindingFailureConditions" if good else "bindingConditions"
            self.causes.required(f"{path}.{missing}", "both or neither must be set")
        for word in sorted(set(good) & set(bad)):
            self.causes.invalid(f"{path}.bindingFailureConditions", word, "must not be in both")

    def _immutable(self, spec: Json, old: Json) -> None:
        pairs = (
            ("spec.driver", spec.get("driver"), old.get("driver")),
            ("spec.pool.name", spec["pool"].get("name"), old["pool"].get("name")),
            ("spec.nodeName", spec.get("nodeName"), old.get("nodeName")),
        )
        for path, now, was in pairs:
            if now != was:
                self.causes.invalid(path, now, "field is immutable")


def _policy(causes: Causes, path: str, policy: Json, value: str) -> None:
    """Check a capacity's requestPolicy: default, and either values or a range around it."""
    values, span, default = (policy.get(key) for key in ("validValues", "validRange", "default"))
    if values and span:
        causes.forbidden(f"{path}.validRange", "only one of validValues and validRange is allowed")
    if default is None:
        if values or span:
            causes.required(f"{path}.default")
        return
    if values:
        _values(causes, path, values, default, value)
    elif span:
        _span(causes, path, span, default, value)
    elif amount(default) > amount(value):
        causes.invalid(f"{path}.default", default, "must not be more than the capacity")


def _values(causes: Causes, path: str, values: list[str], default: str, value: str) -> None:
    amounts = [amount(item) for item in values]
    if len(values) > 10:
        causes.too_many(f"{path}.validValues", len(values), 10)
    if amounts != sorted(set(amounts)):
        causes.invalid(f"{path}.validValues", values, "must be sorted in ascending order, unique")
    if amount(default) not in amounts:
        causes.invalid(f"{path}.default", default, "must be one of validValues")
    if amounts[-1] > amount(value):
        causes.invalid(f"{path}.validValues", values[-1], "must not be more than the capacity")


def _span(causes: Causes, path: str, span: Json, default: str, value: str) -> None:
    if "min" not in span:
        causes.required(f"{path}.validRange.min")
        return
    least, whole, usual = amount(span["min"]), amount(value), amount(default)
    most = amount(span["max"]) if "max" in span else whole
    if not 0 <= least <= usual <= most <= whole:
        causes.invalid(f"{path}.default", default, "min <= default <= max <= capacity must hold")
    if "step" in span:
        step = amount(span["step"])
        if step <= 0 or (usual - least) % step or ("max" in span and (most - least) % step):
            causes.invalid(f"{path}.validRange.step", span["step"], "default and max must be steps")
        elif least + step > whole:
            causes.invalid(f"{path}.validRange.step", span["step"], "one step must fit")
