"""The verbs of the fake API server: decode, prepare, validate and store, as a real one does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hardpoint.testing._api_apply import Manager, applied, updated
from hardpoint.testing._api_claims import ClaimRules
from hardpoint.testing._api_decode import decoded, pruned
from hardpoint.testing._api_event_rules import check_event
from hardpoint.testing._api_gates import drop_disabled
from hardpoint.testing._api_kinds import (
    CLAIMS,
    EVENTS,
    KINDS,
    NAMESPACES,
    NODES,
    PODS,
    SLICES,
    TAINT_RULES,
)
from hardpoint.testing._api_lists import Lists
from hardpoint.testing._api_metadata import check_metadata, check_metadata_update
from hardpoint.testing._api_node_rules import check_node
from hardpoint.testing._api_options import check_write, is_dry, is_strict
from hardpoint.testing._api_patches import APPLY, check_type, patched, undecodable
from hardpoint.testing._api_pods import pod_grace, said_gone
from hardpoint.testing._api_rules import SliceRules
from hardpoint.testing._api_schema import SCHEMAS
from hardpoint.testing._api_status import ApiProblem, Causes, Json, conflict, invalid
from hardpoint.testing._api_store import (
    Kind,
    Store,
    Stored,
    check_current,
    check_preconditions,
    generated,
    now,
)
from hardpoint.testing._api_taint_rules import check_rule, check_rule_status
from hardpoint.testing._api_watch import Target, shown


@dataclass(frozen=True, slots=True)
class Asked:
    """How a write was asked for; ``unknown`` collects fields that nobody knows."""

    query: Mapping[str, str]
    who: str
    unknown: list[str] = field(default_factory=list)

    @property
    def dry(self) -> bool:
        return is_dry(self.query)

    def manager(self, operation: str, subresource: str = "") -> Manager:
        return Manager(self.query.get("fieldManager") or self.who, operation, subresource)


class Verbs:
    """One store behind the API's verbs; ``on`` says which feature gates are."""

    def __init__(self, store: Store, minor: int, on: Callable[[str], bool]) -> None:
        self.store, self.minor, self.on = store, minor, on
        self.lists = Lists(store, minor)

    # -- writing ----------------------------------------------------------------------------------

    def create(self, target: Target, body: Json, asked: Asked) -> Json:
        """Create an object. Raises 400, 404 for its namespace, 409, 422 or 500."""
        check_write("CreateOptions", asked.query)
        new = self._decode(target, body, asked)
        metadata = new["metadata"]
        if metadata.get("resourceVersion"):
            message = "resourceVersion should not be set on objects to be created"
            raise ApiProblem(500, message, reason=None)
        if metadata.get("generateName") and not metadata.get("name"):
            metadata["name"] = generated(metadata["generateName"])
        metadata.pop("uid", None)
        return self._create(target, new, asked.manager("Update"), asked)

    def _create(self, target: Target, new: Json, manager: Manager, asked: Asked) -> Json:
        if target.kind.namespaced:
            self.store.get(NAMESPACES, "", target.namespace)
        self._settle(target, new, None)
        return self.store.create(target.kind, new, manager, asked.dry)

    def replace(self, target: Target, body: Json, asked: Asked) -> Json:
        """Replace an object, or its status. Raises 400, 404, 409 or 422."""
        check_write("UpdateOptions", asked.query)
        new = self._decode(target, body, asked)
        _check_name(target, new)
        old = self.store.get(target.kind, target.namespace, target.name)
        check_current(target.kind, new, old.body)
        return self._update(target, old, new, asked)

    def _update(self, target: Target, old: Stored, new: Json, asked: Asked) -> Json:
        new["metadata"]["resourceVersion"] = old.body["metadata"]["resourceVersion"]
        self._settle(target, new, old.body)
        manager = asked.manager("Update", target.subresource)
        owners = updated(old.owners, old.body, new, manager)
        return self.store.update(target.kind, old, new, owners, asked.dry)

    def patch(self, target: Target, body: Any, content_type: str, asked: Asked) -> tuple[int, Json]:
        """Apply or merge; return 201 where that created it. Raises 400, 404, 409, 415 or 422."""
        check_type(content_type)
        check_write("PatchOptions", asked.query, apply=content_type == APPLY)
        if content_type == APPLY:
            return self._apply(target, body, asked)
        old = self.store.get(target.kind, target.namespace, target.name)
        changed = patched(shown(target, old.body), body, content_type)
        try:
            new = self._decode(target, changed, asked)
        except ApiProblem as problem:
            raise undecodable(problem.message) from problem
        _check_name(target, new)
        check_current(target.kind, new, old.body, patch=True)
        return 200, self._update(target, old, new, asked)

    def _apply(self, target: Target, body: Any, asked: Asked) -> tuple[int, Json]:
        if not isinstance(body, dict):
            raise ApiProblem(400, "error decoding patch: error unmarshaling JSON")
        if not body.get("kind") or not body.get("apiVersion"):
            raise ApiProblem(400, f"invalid object type: /, Kind={body.get('kind', '')}")
        if (body.get("metadata") or {}).get("managedFields"):
            raise ApiProblem(400, "metadata.managedFields must be nil")
        config = self._decode(target, body, asked)
        config["metadata"].setdefault("name", target.name)
        _check_name(target, config)
        self._check_typed(target, config, asked)
        manager = asked.manager("Apply", target.subresource)
        old = self.store.all(target.kind).get((target.namespace, target.name))
        if old is None:
            if target.subresource:
                self.store.get(target.kind, target.namespace, target.name)
            _check_no_uid(target, config)
            return 201, self._create(target, config, manager, asked)
        check_current(target.kind, config, old.body, patch=True)
        kept = "status" if target.subresource else "spec"
        part = {key: config[key] for key in ("metadata", kept) if key in config}
        force, version = asked.query.get("force") == "true", f"{target.kind.group}/v1".lstrip("/")
        live = copy.deepcopy(old.body)
        merged, owners = applied(old.owners, live, part, manager, force=force, version=version)
        merged["metadata"]["resourceVersion"] = old.body["metadata"]["resourceVersion"]
        self._settle(target, merged, old.body)
        return 200, self.store.update(target.kind, old, merged, owners, asked.dry)

    def _check_typed(self, target: Target, config: Json, asked: Asked) -> None:
        """Raise 500, as the server does, for a field that the schema has not."""
        if asked.unknown:
            kind = f"{target.kind.group}/{target.version}, Kind={target.kind.name}"
            where = f"{target.namespace}/{config['metadata']['name']}; {kind}"
            message = (
                f"failed to create typed patch object ({where}): .{asked.unknown[0]}: "
                "field not declared in schema"
            )
            raise ApiProblem(500, message, reason=None)

    def evict(self, target: Target, body: Json, asked: Asked) -> Json:
        """Delete a pod as its Eviction says; this server has no disruption budgets."""
        check_write("CreateOptions", asked.query)
        self.delete(target, body.get("deleteOptions") or {}, asked)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def delete(self, target: Target, options: Json, asked: Asked) -> Json:
        """Delete an object, at once or when its pod's grace or its finalizers end."""
        old = self.store.get(target.kind, target.namespace, target.name)
        check_preconditions(target.kind, options.get("preconditions") or {}, old.body)
        grace = options.get("gracePeriodSeconds", asked.query.get("gracePeriodSeconds"))
        dry = is_dry(asked.query, options)
        return self._delete(target.kind, old, None if grace is None else int(grace), dry)

    def _delete(self, kind: Kind, old: Stored, grace: int | None, dry: bool) -> Json:
        metadata = old.body["metadata"]
        seconds = pod_grace(old.body, grace) if kind is PODS else 0
        if not seconds and not metadata.get("finalizers"):
            gone = self.store.remove(kind, old, dry)
            return said_gone(gone) if kind is PODS else gone
        going = copy.deepcopy(old.body)
        if not metadata.get("deletionTimestamp") and metadata.get("generation"):
            going["metadata"]["generation"] += 1
        going["metadata"].setdefault("deletionTimestamp", now())
        going["metadata"]["deletionGracePeriodSeconds"] = seconds
        return self.store.mark(kind, old, going, dry)

    def delete_collection(self, target: Target, query: Mapping[str, str]) -> list[Stored]:
        """Delete all that is selected, one by one; return what was."""
        chosen = self.lists.select(target, query)
        return [Stored(self._delete(target.kind, stored, None, is_dry(query))) for stored in chosen]

    # -- preparing --------------------------------------------------------------------------------

    def _decode(self, target: Target, body: Json, asked: Asked) -> Json:
        kind = target.kind
        expected = f"{kind.group}/{target.version}" if kind.group else target.version
        _check_type_of(kind, expected, body)
        new = decoded(kind.name, body, target.version, asked.unknown, is_strict(asked.query))
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
        kind, schema = target.kind, SCHEMAS.get(target.kind.name)
        if kind is not SLICES:
            _keep_other_part(target, new, old)
        if schema and "spec" in schema:
            new.setdefault("spec", {})
        causes = check_metadata(new["metadata"], self.minor, kind.namespaced)
        if old is not None:
            causes += check_metadata_update(new["metadata"], old["metadata"])
        causes += self._judged(target, new, old)
        if causes:
            raise invalid(kind.group, kind.name, new["metadata"].get("name", ""), causes)
        if schema:
            metadata = new.pop("metadata")
            stored = pruned(new, schema)
            new.clear()
            new.update(metadata=metadata, **stored)
        _show_nothing(kind, new, self.minor)

    def _judged(self, target: Target, new: Json, old: Json | None) -> Causes:
        """Drop and default what the kind drops and defaults; return what is wrong then."""
        kind = target.kind
        if kind is SLICES:
            drop_disabled(new, old, self.on)
            _default_taints((new.get("spec") or {}).get("devices") or ())
            return SliceRules(self.minor).check(new, old)
        if kind is CLAIMS:
            return self._claim(target, new, old)
        if kind is EVENTS:
            return check_event(new)
        if kind is NODES:
            return check_node(new)
        if kind is not TAINT_RULES:
            return Causes()
        if target.subresource:
            return check_rule_status(new, self.minor)
        taint = new["spec"].setdefault("taint", {})
        _default_taints([{"taints": [taint]}])
        _renew_taint(taint, ((old or {}).get("spec") or {}).get("taint") or taint)
        return check_rule(new, self.minor)

    def _claim(self, target: Target, new: Json, old: Json | None) -> Causes:
        status = new.get("status") or {}
        if not self.on("DRAResourceClaimDeviceStatus") or not status.get("allocation"):
            status.pop("devices", None)
        if target.subresource and old is not None:
            return ClaimRules(self.minor).check_status(new, old)
        for request in (new.get("spec") or {}).get("devices", {}).get("requests") or ():
            for asked in (request.get("exactly"), *(request.get("firstAvailable") or ())):
                if asked is not None and not self.on("DRAConsumableCapacity"):
                    asked.pop("capacity", None)
                if asked is not None:
                    _default_request(asked)
        return ClaimRules(self.minor).check(new, old)


def _check_name(target: Target, new: Json) -> None:
    """Raise 400 where an object is not the one that the URL names."""
    name = new["metadata"].get("name", "")
    if name != target.name:
        message = (
            f"the name of the object ({name}) does not match the name on the URL ({target.name})"
        )
        raise ApiProblem(400, message)


def _check_no_uid(target: Target, config: Json) -> None:
    """Raise 409 where an apply was meant for an object that is not there any more."""
    uid, kind = config["metadata"].get("uid"), target.kind
    if uid:
        why = (
            f"uid mismatch: the provided object specified uid {uid}, "
            "and no existing object was found"
        )
        raise conflict(kind.group, kind.plural, target.name, why)


def _check_type_of(kind: Kind, expected: str, body: Json) -> None:
    """Raise 400 where the body says that it is something else than the URL."""
    version, name = body.get("apiVersion") or expected, body.get("kind") or kind.name
    group, _, short = version.rpartition("/")
    what = f'{name} in version "{short}" cannot be handled as a {kind.name}'
    if name not in {found.name for found in KINDS if found.group == group}:
        message = f'{what}: no kind "{name}" is registered for version "{version}" in scheme "fake"'
        raise ApiProblem(400, message)
    if version != expected:
        message = (
            f"the API version in the data ({version}) does not match the expected API version "
            f"({expected})"
        )
        raise ApiProblem(400, message)
    if name != kind.name:
        raise ApiProblem(400, f"{what}: unknown conversion")


def _keep_other_part(target: Target, new: Json, old: Json | None) -> None:
    """Let ``status`` be written through its subresource alone, and nothing else through that."""
    if target.subresource and old is not None:
        status, metadata = new.get("status"), new["metadata"]
        new.clear()
        new.update(copy.deepcopy(old))
        new.pop("status", None)
        if target.kind is NODES:  # labels and annotations go with it (nodeStatusStrategy)
            new["metadata"] = metadata
        if status is not None:
            new["status"] = status
    elif old is not None and "status" in old:
        new["status"] = copy.deepcopy(old["status"])
    elif target.kind in (CLAIMS, TAINT_RULES):
        new.pop("status", None)


def _show_nothing(kind: Kind, new: Json, minor: int) -> None:
    """Write down what is shown even where there is nothing."""
    if kind is SLICES and minor < 35:
        new["spec"].setdefault("devices", None)
    if kind is CLAIMS:
        new["spec"].setdefault("devices", {}).setdefault("requests", None)
    if kind is EVENTS:
        new.setdefault("source", {})
    if kind is NODES:
        for condition in new.get("status", {}).get("conditions", ()):
            condition.setdefault("lastHeartbeatTime", None)
            condition.setdefault("lastTransitionTime", None)
    if kind in (CLAIMS, TAINT_RULES):
        for report in new.setdefault("status", {}).get("devices") or ():
            report.setdefault("conditions", None)


def _default_taints(devices: Iterable[Json]) -> None:
    for device in devices:
        for taint in device.get("taints") or ():
            taint.setdefault("timeAdded", now())


def _renew_taint(taint: Json, old: Json) -> None:
    """Date a taint rule's taint anew when its effect has changed and its date has not."""
    if taint.get("effect") != old.get("effect") and taint["timeAdded"] == old.get("timeAdded"):
        taint["timeAdded"] = now()


def _default_request(asked: Json) -> None:
    """Ask for one device where a request does not say for how many."""
    if not asked.get("allocationMode"):
        asked["allocationMode"] = "ExactCount"
    if asked["allocationMode"] == "ExactCount" and not asked.get("count"):
        asked["count"] = 1
    for toleration in asked.get("tolerations") or ():
        if not toleration.get("operator"):
            toleration["operator"] = "Equal"
