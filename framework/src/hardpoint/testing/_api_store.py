"""What the fake API server keeps: objects, one revision for all of them, and a log of changes."""

from __future__ import annotations

import bisect
import copy
import datetime
import secrets
import string
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import anyio

from hardpoint.testing._api_apply import Manager, Owners, managed_fields, updated
from hardpoint.testing._api_status import (
    ApiProblem,
    Json,
    already_exists,
    conflict,
    modified,
    not_found,
)

_LONGEST_LOG = 10_000
"""Changes that are kept for watches; etcd keeps five minutes of them."""
_LONGEST_PREFIX = 58
"""Characters of a generateName that are kept; five random ones follow."""
_KEPT = (
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
"""Metadata that no update changes."""
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True, slots=True)
class Kind:
    """One collection: where it is, and by which fields it can be selected."""

    group: str
    plural: str
    name: str
    namespaced: bool
    fields: tuple[str, ...] = ()
    counted: bool = False
    """True if ``metadata.generation`` counts the changes of its spec."""


@dataclass(slots=True)
class Stored:
    """An object and who owns its fields."""

    body: Json
    owners: Owners = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Logged:
    """One change: the object as it became, and as it was."""

    revision: int
    kind: Kind
    type: str
    body: Json
    before: Json | None


class Store:
    """Objects in their stored version. Bodies that it hands out are not to be changed."""

    def __init__(self) -> None:
        self.revision = 100
        self.compacted = 0
        self.log: list[Logged] = []
        self.changed = anyio.Event()
        self._objects: dict[Kind, dict[tuple[str, str], Stored]] = {}

    def wake(self) -> None:
        """Let every watch look again."""
        self.changed.set()
        self.changed = anyio.Event()

    def compact(self) -> None:
        """Forget what led here: older watches and pages get 410."""
        self.compacted = self.revision
        self.log.clear()

    # -- reading ----------------------------------------------------------------------------------

    def since(self, revision: int) -> list[Logged]:
        """Return the changes after a revision."""
        return self.log[bisect.bisect_right(self.log, revision, key=lambda c: c.revision) :]

    def all(self, kind: Kind) -> dict[tuple[str, str], Stored]:
        """Return a collection by namespace and name."""
        return self._objects.setdefault(kind, {})

    def get(self, kind: Kind, namespace: str, name: str) -> Stored:
        """Return one object. Raises 404."""
        try:
            return self.all(kind)[namespace, name]
        except KeyError:
            raise not_found(kind.group, kind.plural, name) from None

    # -- writing ----------------------------------------------------------------------------------

    def create(self, kind: Kind, body: Json, manager: Manager, dry: bool = False) -> Json:
        """Store a new object under a UID of its own. Raises 409 where the name is taken."""
        metadata = body["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        if (namespace, name) in self.all(kind):
            raise already_exists(kind.group, kind.plural, name)
        metadata["uid"] = metadata.get("uid") or str(uuid.uuid4())
        metadata["creationTimestamp"] = now()
        if kind.counted:
            metadata["generation"] = 1
        owners = updated({}, None, body, manager)
        return self._put(kind, "ADDED", Stored(body, owners), None, dry)

    def update(
        self, kind: Kind, old: Stored, body: Json, owners: Owners, dry: bool = False
    ) -> Json:
        """Store an object in place of ``old``; nothing happens when nothing is different."""
        metadata, was = body["metadata"], old.body["metadata"]
        for key in _KEPT:
            if key in was:
                metadata[key] = was[key]
        if kind.counted and body.get("spec") != old.body.get("spec"):
            metadata["generation"] = was.get("generation", 0) + 1
        if _content(body) == _content(old.body) and owners == old.owners:
            return old.body
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            return self.remove(kind, old, dry)
        return self._put(kind, "MODIFIED", Stored(body, owners), old.body, dry)

    def remove(self, kind: Kind, old: Stored, dry: bool = False) -> Json:
        """Take an object out for good."""
        metadata = old.body["metadata"]
        if dry:
            return old.body
        del self.all(kind)[metadata.get("namespace", ""), metadata["name"]]
        self.revision += 1
        last = copy.deepcopy(old.body)
        last["metadata"]["resourceVersion"] = str(self.revision)
        self._record(Logged(self.revision, kind, "DELETED", last, old.body))
        return last

    def mark(self, kind: Kind, old: Stored, body: Json, dry: bool) -> Json:
        """Store an object that is going: its metadata says so."""
        return self._put(kind, "MODIFIED", Stored(body, old.owners), old.body, dry)

    def _put(self, kind: Kind, type: str, new: Stored, before: Json | None, dry: bool) -> Json:
        metadata = new.body["metadata"]
        version = f"{kind.group}/v1" if kind.group else "v1"
        metadata["managedFields"] = managed_fields(new.owners, version, now())
        if dry:
            metadata.pop("resourceVersion", None)
            return new.body
        self.revision += 1
        metadata["resourceVersion"] = str(self.revision)
        self.all(kind)[metadata.get("namespace", ""), metadata["name"]] = new
        self._record(Logged(self.revision, kind, type, new.body, before))
        return new.body

    def _record(self, change: Logged) -> None:
        self.log.append(change)
        if len(self.log) > _LONGEST_LOG:
            forgotten = self.log[: _LONGEST_LOG // 2]
            self.compacted = forgotten[-1].revision
            del self.log[: len(forgotten)]
        self.wake()


def _content(body: Json) -> Json:
    metadata = {
        key: value
        for key, value in body["metadata"].items()
        if key not in ("resourceVersion", "managedFields", "generation") and value not in ({}, [])
    }
    return {**body, "metadata": metadata}


def now() -> str:
    """Return the time as the API writes it, to the second."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def generated(prefix: str) -> str:
    """Return a name for ``metadata.generateName``."""
    return prefix[:_LONGEST_PREFIX] + "".join(secrets.choice(_SUFFIX) for _ in range(5))


def check_current(kind: Kind, sent: Json, stored: Json) -> None:
    """Raise 409 where an update was made from another state, or of another object."""
    metadata, now_ = sent["metadata"], stored["metadata"]
    if metadata.get("uid") and metadata["uid"] != now_["uid"]:
        raise conflict(kind.group, kind.plural, now_["name"], _uids(metadata["uid"], now_["uid"]))
    version = metadata.get("resourceVersion")
    if version and version != now_["resourceVersion"]:
        raise modified(kind.group, kind.plural, now_["name"])


def check_preconditions(kind: Kind, wanted: Mapping[str, str], stored: Json) -> None:
    """Raise 409 where a delete was meant for another object, or another state of it."""
    metadata = stored["metadata"]
    uid, version = wanted.get("uid"), wanted.get("resourceVersion")
    if uid and uid != metadata["uid"]:
        raise conflict(kind.group, kind.plural, metadata["name"], _uids(uid, metadata["uid"]))
    if version and version != metadata["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({version}) does not match the "
            f"ResourceVersion in record ({metadata['resourceVersion']}). "
            "The object might have been modified"
        )
        raise conflict(kind.group, kind.plural, metadata["name"], why)


def _uids(asked: str, found: str) -> str:
    return f"Precondition failed: UID in precondition: {asked}, UID in object meta: {found}"


# -- selecting ------------------------------------------------------------------------------------


def selector(kind: Kind, query: Mapping[str, str]) -> Callable[[Json], bool]:
    """Return the test for ``fieldSelector`` and ``labelSelector``. Raises 400."""
    fields = [_term(term) for term in _split(query.get("fieldSelector", ""))]
    for path, _, _ in fields:
        if path not in ("metadata.name", "metadata.namespace", *kind.fields):
            raise ApiProblem(400, f"field label not supported: {path}")
    labels = [_term(term) for term in _split(query.get("labelSelector", ""))]

    def matches(body: Json) -> bool:
        owned = body["metadata"].get("labels") or {}
        return all((_at(body, path) == value) is same for path, same, value in fields) and all(
            (owned.get(key) == value) is same for key, same, value in labels
        )

    return matches


def _split(text: str) -> list[str]:
    return [term for term in text.split(",") if term]


def _term(term: str) -> tuple[str, bool, str]:
    key, operator, value = term.partition("!=")
    if operator:
        return key, False, value
    key, operator, value = term.partition("=")
    if not operator or not set(key) <= set(string.ascii_letters + string.digits + "./-_"):
        raise ApiProblem(400, f"unable to parse requirement: invalid selector {term!r}")
    return key, True, value.removeprefix("=")


def _at(body: Json, path: str) -> str:
    value: object = body
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return "" if value is None else str(value)
