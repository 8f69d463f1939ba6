"""The verbs of the fake API server: decode, prepare, validate and store, as a real one does."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from hardpoint.testing._api_apply import Manager, applied, updated
from hardpoint.testing._api_claims import ClaimRules
from hardpoint.testing._api_decode import decoded, pruned
from hardpoint.testing._api_gates import drop_disabled
from hardpoint.testing._api_metadata import check_metadata
from hardpoint.testing._api_rules import SliceRules
from hardpoint.testing._api_schema import SCHEMAS
from hardpoint.testing._api_status import ApiProblem, Causes, Json, invalid
from hardpoint.testing._api_store import (
    Kind,
    Store,
    Stored,
    check_current,
    check_preconditions,
    generated,
    now,
    selector,
)
from hardpoint.testing._api_taint_rules import check_rule, check_rule_status
from hardpoint.testing._api_watch import Target, Watching, WatchSwitches, resumes, shown

GROUP = "resource.k8s.io"
SLICES = Kind(
    GROUP,
    "resourceslices",
    "ResourceSlice",
    False,
    ("spec.nodeName", "spec.driver", "spec.pool.name"),
    counted=True,
)
CLAIMS = Kind(GROUP, "resourceclaims", "ResourceClaim", True)
TAINT_RULES = Kind(GROUP, "devicetaintrules", "DeviceTaintRule", False, counted=True)
"""Served in v1, from 1.37."""
PODS = Kind("", "pods", "Pod", True, ("spec.nodeName", "status.phase"))
KINDS = (
    SLICES,
    CLAIMS,
    Kind(GROUP, "resourceclaimtemplates", "ResourceClaimTemplate", True),
    Kind(GROUP, "deviceclasses", "DeviceClass", False, counted=True),
    TAINT_RULES,
    Kind("", "nodes", "Node", False),
    Kind("", "namespaces", "Namespace", False),
    Kind("", "events", "Event", True),
    PODS,
)
_APPLY = "application/apply-patch+yaml"
_MERGE = ("application/merge-patch+json", "application/strategic-merge-patch+json")


class Verbs:
    """One store behind the API's verbs; ``on`` says which feature gates are."""

    def __init__(self, store: Store, minor: int, on: Callable[[str], bool]) -> None:
        self.store, self.minor, self.on = store, minor, on
        self.switches = WatchSwitches()

    # -- writing ----------------------------------------------------------------------------------

    def create(self, target: Target, body: Json, query: Mapping[str, str], who: str) -> Json:
        """Create an object. Raises 400, 409 or 422."""
        new = self._decode(target, body, _strict(query))
        metadata = new["metadata"]
        if metadata.get("resourceVersion"):
            raise ApiProblem(500, "resourceVersion should not be set on objects to be created")
        if metadata.get("generateName") and not metadata.get("name"):
            metadata["name"] = generated(metadata["generateName"])
        metadata.pop("uid", None)
        self._settle(target, new, None)
        manager = Manager(query.get("fieldManager") or who, "Update")
        return self.store.create(target.kind, new, manager, _dry(query))

    def replace(self, target: Target, body: Json, query: Mapping[str, str], who: str) -> Json:
        """Replace an object, or its status. Raises 400, 404, 409 or 422."""
        new = self._decode(target, body, _strict(query))
        if new["metadata"].get("name") != target.name:
            message = (
                f"the name of the object ({new['metadata'].get('name', '')}) does not match the "
                f"name on the URL ({target.name})"
            )
            raise ApiProblem(400, message)
        old = self.store.get(target.kind, target.namespace, target.name)
        check_current(target.kind, new, old.body)
        return self._update(target, old, new, query, who)

    def _update(
        self, target: Target, old: Stored, new: Json, query: Mapping[str, str], who: str
    ) -> Json:
        new["metadata"]["resourceVersion"] = old.body["metadata"]["resourceVersion"]
        self._settle(target, new, old.body)
        manager = Manager(query.get("fieldManager") or who, "Update", target.subresource)
        owners = updated(old.owners, old.body, new, manager)
        return self.store.update(target.kind, old, new, owners, _dry(query))

    def patch(
        self, target: Target, body: Json, content_type: str, query: Mapping[str, str], who: str
    ) -> Json:
        """Apply or merge. Raises 400, 404, 409, 415 or 422."""
        if content_type == _APPLY:
            return self._apply(target, body, query)
        if content_type not in _MERGE:
            raise ApiProblem(
                415, f"the body of the request was in an unknown format: {content_type}"
            )
        old = self.store.get(target.kind, target.namespace, target.name)
        merged = self._decode(target, _merged(shown(target, old.body), body))
        check_current(target.kind, merged, old.body)
        return self._update(target, old, merged, query, who)

    def _apply(self, target: Target, body: Json, query: Mapping[str, str]) -> Json:
        if not query.get("fieldManager"):
            raise ApiProblem(400, "fieldManager is required for apply patch")
        if (body.get("metadata") or {}).get("managedFields"):
            raise ApiProblem(400, "metadata.managedFields must be nil")
        manager = Manager(query["fieldManager"], "Apply", target.subresource)
        config = self._decode(target, body)
        config["metadata"].setdefault("name", target.name)
        force = query.get("force") == "true"
        old = self.store.all(target.kind).get((target.namespace, target.name))
        if old is None:
            if target.subresource:
                self.store.get(target.kind, target.namespace, target.name)
            self._settle(target, config, None)
            return self.store.create(target.kind, config, manager, _dry(query))
        check_current(target.kind, config, old.body)
        kept = "status" if target.subresource else "spec"
        part = {key: config[key] for key in ("metadata", kept) if key in config}
        merged, owners = applied(old.owners, copy.deepcopy(old.body), part, manager, force)
        merged["metadata"]["resourceVersion"] = old.body["metadata"]["resourceVersion"]
        self._settle(target, merged, old.body)
        return self.store.update(target.kind, old, merged, owners, _dry(query))

    def delete(self, target: Target, options: Json, query: Mapping[str, str]) -> Json:
        """Delete an object, at once or when its pod's grace or its finalizers end."""
        old = self.store.get(target.kind, target.namespace, target.name)
        check_preconditions(target.kind, options.get("preconditions") or {}, old.body)
        grace = options.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        return self._delete(target.kind, old, None if grace is None else int(grace), _dry(query))

    def _delete(self, kind: Kind, old: Stored, grace: int | None, dry: bool) -> Json:
        metadata = old.body["metadata"]
        seconds = _pod_grace(old.body, grace) if kind is PODS else 0
        if not seconds and not metadata.get("finalizers"):
            return self.store.remove(kind, old, dry)
        going = copy.deepcopy(old.body)
        going["metadata"].setdefault("deletionTimestamp", now())
        going["metadata"]["deletionGracePeriodSeconds"] = seconds
        return self.store.mark(kind, old, going, dry)

    def delete_collection(self, target: Target, query: Mapping[str, str]) -> int:
        """Delete all that is selected, one by one; return how many went."""
        chosen = self._select(target, query)
        for stored in chosen:
            self._delete(target.kind, stored, None, _dry(query))
        return len(chosen)

    # -- preparing --------------------------------------------------------------------------------

    def _decode(self, target: Target, body: Json, strict: bool = False) -> Json:
        kind = target.kind
        expected = f"{kind.group}/{target.version}" if kind.group else target.version
        _check_type(kind, expected, body)
        new = decoded(kind.name, body, target.version, strict)
        metadata = new["metadata"]
        if kind.namespaced and (
            metadata.setdefault("namespace", target.namespace) != target.namespace
        ):
            message = (
                "the namespace of the provided object does not match the namespace sent on the "
                "request"
            )
            raise ApiProblem(400, message)
        if not kind.namespaced:
            metadata.pop("namespace", None)
        metadata.pop("managedFields", None)
        new.pop("apiVersion", None)
        new.pop("kind", None)
        return new

    def _settle(self, target: Target, new: Json, old: Json | None) -> None:
        """Keep what this request may not change, default, drop, validate, prune. Raises 422."""
        kind = target.kind
        if kind is not SLICES:
            _keep_other_part(target, new, old)
        causes = check_metadata(new["metadata"], self.minor, kind.namespaced)
        causes += self._judged(target, new, old)
        if causes:
            raise invalid(kind.group, kind.name, new["metadata"].get("name", ""), causes)
        for part, schema in SCHEMAS.get(kind.name, {}).items():
            if new.get(part) is not None:
                new[part] = pruned(new[part], schema)
        if kind is SLICES and self.minor < 35:
            new["spec"].setdefault("devices", None)

    def _judged(self, target: Target, new: Json, old: Json | None) -> Causes:
        """Drop and default what the kind drops and defaults; return what is wrong then."""
        if target.kind is SLICES:
            drop_disabled(new, old, self.on)
            _default_taints((new.get("spec") or {}).get("devices") or ())
            return SliceRules(self.minor).check(new, old)
        if target.kind is CLAIMS:
            return self._claim(target, new, old)
        if target.kind is not TAINT_RULES:
            return Causes()
        if target.subresource:
            return check_rule_status(new)
        _default_taints([{"taints": [new["spec"].setdefault("taint", {})]}])
        return check_rule(new, self.minor)

    def _claim(self, target: Target, new: Json, old: Json | None) -> Causes:
        status = new.get("status") or {}
        if not self.on("DRAResourceClaimDeviceStatus") or not status.get("allocation"):
            status.pop("devices", None)
        if target.subresource and old is not None:
            return ClaimRules(self.minor).check_status(new, old)
        for request in (new.get("spec") or {}).get("devices", {}).get("requests") or ():
            for asked in (request.get("exactly"), *(request.get("firstAvailable") or ())):
                if asked is not None:
                    _default_request(asked)
        return ClaimRules(self.minor).check(new, old)

    # -- reading ----------------------------------------------------------------------------------

    def _select(self, target: Target, query: Mapping[str, str]) -> list[Stored]:
        matches = selector(target.kind, query)
        if "spec.pool.name" in query.get("fieldSelector", "") and self.minor < 37:
            raise ApiProblem(400, "field label not supported: spec.pool.name")
        return [
            stored
            for (namespace, _), stored in sorted(self.store.all(target.kind).items())
            if target.namespace in ("", namespace) and matches(stored.body)
        ]

    def list(self, target: Target, query: Mapping[str, str]) -> Json:
        """Return a collection, or one page of it. Raises 400, or 410 for a page long past."""
        chosen, revision = self._select(target, query), self.store.revision
        if query.get("continue"):
            revision, after = _token(query["continue"])
            if revision < self.store.compacted:
                raise ApiProblem(410, "The provided continue parameter is too old")
            chosen = [stored for stored in chosen if _place(stored) > after]
        limit = int(query.get("limit") or 0) or len(chosen)
        metadata: Json = {"resourceVersion": str(revision)}
        if len(chosen) > limit:
            raw = json.dumps([revision, *_place(chosen[limit - 1])]).encode()
            metadata["continue"] = base64.urlsafe_b64encode(raw).decode()
            metadata["remainingItemCount"] = len(chosen) - limit
        items = [shown(target, stored.body) for stored in chosen[:limit]]
        for item in items:
            del item["apiVersion"], item["kind"]  # as the items of a typed list are
        group = target.kind.group
        return {
            "kind": f"{target.kind.name}List",
            "apiVersion": f"{group}/{target.version}" if group else target.version,
            "metadata": metadata,
            "items": items,
        }

    def watch(self, target: Target, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Return the lines of a watch. Raises 400 or 504 for a version that cannot be."""
        present = [] if resumes(query, self.store) else self._select(target, query)
        return Watching(self.store, self.switches, target, query).lines(present)


def _check_type(kind: Kind, expected: str, body: Json) -> None:
    """Raise 400 where the body says that it is something else than the URL."""
    version, name = body.get("apiVersion") or expected, body.get("kind") or kind.name
    what = f'{name} in version "{version.rpartition("/")[2]}" cannot be handled as a {kind.name}'
    known = {found.name for found in KINDS if found.group == version.rpartition("/")[0]}
    if name not in known:
        message = f'{what}: no kind "{name}" is registered for version "{version}" in scheme'
        raise ApiProblem(400, message)
    if version != expected:
        message = (
            f"the API version in the data ({version}) does not match the expected API version "
            f"({expected})"
        )
        raise ApiProblem(400, message)
    if name != kind.name:
        raise ApiProblem(400, f"{what}: unknown conversion")


def _token(text: str) -> tuple[int, tuple[str, str]]:
    try:
        revision, namespace, name = json.loads(base64.urlsafe_b64decode(text.encode()))
        return int(revision), (str(namespace), str(name))
    except ValueError as error:
        raise ApiProblem(400, "continue key is not valid") from error


def _place(stored: Stored) -> tuple[str, str]:
    metadata = stored.body["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _strict(query: Mapping[str, str]) -> bool:
    return query.get("fieldValidation") == "Strict"


def _dry(query: Mapping[str, str]) -> bool:
    return query.get("dryRun") == "All"


def _merged(live: Any, patch: Any) -> Any:
    """Return a JSON merge patch's result (RFC 7386)."""
    if not isinstance(patch, dict) or not isinstance(live, dict):
        return patch
    result = {key: value for key, value in live.items() if patch.get(key, ...) is not None}
    for key, value in patch.items():
        if value is not None:
            result[key] = _merged(live.get(key, {}), value)
    return result


def _keep_other_part(target: Target, new: Json, old: Json | None) -> None:
    """Let ``status`` be written through its subresource alone, and nothing else through that."""
    if target.subresource and old is not None:
        status = new.get("status")
        metadata = {**copy.deepcopy(old["metadata"])}
        new.clear()
        new.update({**copy.deepcopy(old), "metadata": metadata})
        new.pop("status", None)
        if status is not None:
            new["status"] = status
    elif old is not None and "status" in old:
        new["status"] = copy.deepcopy(old["status"])
    elif target.kind is CLAIMS:
        new.pop("status", None)


def _default_taints(devices: Iterable[Json]) -> None:
    for device in devices:
        for taint in device.get("taints") or ():
            taint.setdefault("timeAdded", now())


def _default_request(asked: Json) -> None:
    """Ask for one device where a request does not say for how many."""
    if not asked.get("allocationMode"):
        asked["allocationMode"] = "ExactCount"
    if asked["allocationMode"] == "ExactCount" and not asked.get("count"):
        asked["count"] = 1


def _pod_grace(pod: Json, asked: int | None) -> int:
    """Return the seconds that a pod's containers get; none for one that runs nowhere."""
    spec, phase = pod.get("spec") or {}, (pod.get("status") or {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    return int(spec.get("terminationGracePeriodSeconds", 30)) if asked is None else asked
