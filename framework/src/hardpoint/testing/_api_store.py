"""What the fake API server keeps: objects, one revision for all of them, and a log of changes."""

from __future__ import annotations

import bisect
import copy
import datetime
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio

from hardpoint.testing._api_apply import Manager, Owners, managed_fields, updated
from hardpoint.testing._api_status import (
    Causes,
    Json,
    already_exists,
    conflict,
    invalid,
    modified,
    not_found,
)

EVICTION = "eviction"
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
    status: bool = False
    """True if its status has a path of its own."""
    returned: bool = True
    """True if a delete answers with the object, and not with a Status."""

    @property
    def below(self) -> tuple[str, ...]:
        """The paths below an object's own."""
        own = ("status",) if self.status else ()
        return (*own, EVICTION) if self.plural == "pods" else own


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


@dataclass(frozen=True, slots=True)
class Backup:
    """All that a server has stored, as ``etcdctl snapshot save`` keeps it."""

    revision: int
    objects: dict[Kind, dict[tuple[str, str], Stored]]


class Store:
    """Objects in their stored version. Bodies that it hands out are not to be changed."""

    def __init__(self) -> None:
        self.revision = 100
        self.compacted = self.revision
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

    def backup(self) -> Backup:
        """Return all that is stored."""
        return Backup(self.revision, {kind: dict(all_) for kind, all_ in self._objects.items()})

    def restore(self, backup: Backup) -> None:
        """Be what was stored then; nothing is known of what came after it."""
        self.revision = backup.revision
        self._objects = {kind: dict(all_) for kind, all_ in backup.objects.items()}
        self.compact()

    # -- reading ----------------------------------------------------------------------------------

    def since(self, revision: int) -> list[Logged]:
        """Return the changes after a revision."""
        return self.log[bisect.bisect_right(self.log, revision, key=lambda c: c.revision) :]

    def all(self, kind: Kind) -> dict[tuple[str, str], Stored]:
        """Return a collection by namespace and name."""
        return self._objects.setdefault(kind, {})

    def at(self, kind: Kind, revision: int) -> dict[tuple[str, str], Stored]:
        """Return a collection as it was at a revision."""
        found = dict(self.all(kind))
        for change in reversed(self.since(revision)):
            if change.kind is not kind:
                continue
            metadata = change.body["metadata"]
            key = (metadata.get("namespace", ""), metadata["name"])
            if change.before is None:
                found.pop(key, None)
            else:
                found[key] = Stored(change.before)
        return found

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
        metadata.update({key: was[key] for key in _KEPT if key in was})
        return self.alter(kind, old, body, owners, dry)

    def alter(self, kind: Kind, old: Stored, body: Json, owners: Owners, dry: bool = False) -> Json:
        """Store an object in place of ``old``, whatever of its metadata is another."""
        metadata, was = body["metadata"], old.body["metadata"]
        if kind.counted and body.get("spec") != old.body.get("spec"):
            metadata["generation"] = was.get("generation", 0) + 1
        if _content(body) == _content(old.body) and owners == old.owners:
            return old.body
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            return self.remove(kind, old, dry, Stored(body, owners))
        return self._put(kind, "MODIFIED", Stored(body, owners), old.body, dry)

    def remove(self, kind: Kind, old: Stored, dry: bool = False, end: Stored | None = None) -> Json:
        """Take an object out for good; ``end`` is how it was then, if it changed."""
        metadata, last = old.body["metadata"], copy.deepcopy((end or old).body)
        if end is not None:
            last["metadata"]["managedFields"] = _managed(kind, end.owners)
        if dry:
            return old.body
        del self.all(kind)[metadata.get("namespace", ""), metadata["name"]]
        self.revision += 1
        last["metadata"]["resourceVersion"] = str(self.revision)
        self._record(Logged(self.revision, kind, "DELETED", last, old.body))
        return last

    def mark(self, kind: Kind, old: Stored, body: Json, dry: bool) -> Json:
        """Store an object that is going: its metadata says so."""
        if body == old.body:
            return old.body
        return self._put(kind, "MODIFIED", Stored(body, old.owners), old.body, dry)

    def _put(self, kind: Kind, type: str, new: Stored, before: Json | None, dry: bool) -> Json:
        metadata = new.body["metadata"]
        metadata["managedFields"] = _managed(kind, new.owners)
        if dry and before is None:
            metadata.pop("resourceVersion", None)
        if dry:
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


def _managed(kind: Kind, owners: Owners) -> list[Json]:
    return managed_fields(owners, f"{kind.group}/v1" if kind.group else "v1", now())


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


def check_current(kind: Kind, sent: Json, stored: Json, *, patch: bool = False) -> None:
    """Raise 409 where an update was made from another state, or of another object.

    A patch that says another UID is refused with 422: it tries to change what does not change.
    """
    metadata, now_ = sent["metadata"], stored["metadata"]
    asked, name = metadata.get("uid"), now_["name"]
    if asked and asked != now_["uid"] and patch:
        causes = Causes()
        causes.invalid("metadata.uid", asked, "field is immutable")
        raise invalid(kind.group, kind.name, name, causes)
    if asked and asked != now_["uid"]:
        key = "/".join(["/registry", kind.plural, *_place(now_)])
        why = (
            f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, "
            f"AdditionalErrorMsg: Precondition failed: UID in precondition: {asked}, "
            f"UID in object meta: {now_['uid']}"
        )
        raise conflict(kind.group, kind.plural, name, why)
    version = metadata.get("resourceVersion")
    if version and version != now_["resourceVersion"]:
        raise modified(kind.group, kind.plural, name)


def _place(metadata: Json) -> list[str]:
    return [word for word in (metadata.get("namespace", ""), metadata["name"]) if word]


def check_preconditions(kind: Kind, wanted: Mapping[str, str], stored: Json) -> None:
    """Raise 409 where a delete was meant for another object, or another state of it."""
    metadata = stored["metadata"]
    for key, word, end in (
        ("uid", "UID", "deleted and then recreated"),
        ("resourceVersion", "ResourceVersion", "modified"),
    ):
        asked, found = wanted.get(key), metadata[key]
        if asked and asked != found:
            why = (
                f"the {word} in the precondition ({asked}) does not match the {word} in record "
                f"({found}). The object might have been {end}"
            )
            raise conflict(kind.group, kind.name, metadata["name"], why)
