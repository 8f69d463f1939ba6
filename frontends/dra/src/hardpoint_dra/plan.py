"""What to write so that a pool becomes what it should be: pure, and nothing when nothing differs.

The scheduler takes only the highest generation of a pool, and only while it sees as many slices of
it as each says there are (``resourceSliceCount``). So a change of one slice is written in place,
and anything more under a new generation in every slice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hardpoint.errors import BadValue
from hardpoint.quantity import canonical
from hardpoint_dra.translate import Json, Wanted, owner, slice_body

Same = Callable[[str, Json, Json], bool]
"""Says whether what is wanted under a name is what is stored; both as ``content`` gives them."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Whose slices these are: a driver on a node, and the node's UID as long as it exists."""

    driver: str
    node: str
    node_uid: str

    @property
    def home(self) -> tuple[str, str]:
        """Node and driver."""
        return self.node, self.driver


@dataclass(frozen=True, slots=True)
class Plan:
    """Writes, in the order they are made; bodies in the shape of v1."""

    generation: int
    deletes: tuple[Json, ...] = ()
    replaces: tuple[Json, ...] = ()
    creates: tuple[Json, ...] = ()

    @property
    def empty(self) -> bool:
        """True when the pool is what it should be."""
        return not (self.deletes or self.replaces or self.creates)


def plan(
    stored: Mapping[str, Json],
    wanted: Sequence[Wanted],
    pool: Pool,
    generation: int,
    same: Same,
) -> Plan:
    """Return the writes that make the stored slices the wanted ones.

    ``stored`` are all slices of our driver on our node, by name. ``generation`` is the highest that
    this process has written: one that was wiped is not used again.
    """
    names = {found.name for found in wanted}
    keep = {name: body for name, body in stored.items() if name in names and _ours(body, pool)}
    deletes = tuple(body for name, body in sorted(stored.items()) if name not in keep)
    if not wanted:
        return Plan(generation, deletes)
    current = max([generation, *(_pool(body).get("generation", 0) for body in stored.values())])
    missing = [found for found in wanted if found.name not in keep]
    changed = [w for w in wanted if w.name in keep and _differs(w, keep[w.name], pool, same)]
    stale = [w for w in wanted if w.name in keep and not _stamped(keep[w.name], current, wanted)]
    touched = {found.name for found in (*changed, *stale)}
    if missing or len(touched) > 1:
        current, touched = current + 1, set(keep)

    def made(found: Wanted) -> Json:
        return slice_body(found, pool.home, pool.node_uid, current, len(wanted))

    return Plan(
        current,
        deletes,
        tuple(_over(keep[w.name], made(w), pool) for w in wanted if w.name in touched),
        tuple(made(found) for found in missing),
    )


def _pool(body: Json) -> Json:
    found = (body.get("spec") or {}).get("pool")
    return found if isinstance(found, dict) else {}


def _ours(body: Json, pool: Pool) -> bool:
    """Say whether a slice can be updated: of this pool, and not of a node that is gone.

    A node made again under the same name has another UID, and the old one's slices go with it:
    they are replaced (kubernetes issue 123692).
    """
    spec = body.get("spec") or {}
    uids = {found.get("uid") for found in _owners(body) if found.get("kind") == "Node"}
    mine = spec.get("driver") == pool.driver and spec.get("nodeName") == pool.node
    going = (body.get("metadata") or {}).get("deletionTimestamp")
    return mine and _pool(body).get("name") == pool.node and uids <= {pool.node_uid} and not going


def _owners(body: Json) -> list[Json]:
    return [f for f in (body.get("metadata") or {}).get("ownerReferences") or () if f]


def _stamped(body: Json, generation: int, wanted: Sequence[Wanted]) -> bool:
    found = _pool(body)
    count = found.get("resourceSliceCount")
    return found.get("generation") == generation and count == len(wanted)


def _differs(wanted: Wanted, body: Json, pool: Pool, same: Same) -> bool:
    if owner(pool.node, pool.node_uid) not in _owners(body):
        return True
    return not same(wanted.name, content(wanted.content), content(body.get("spec") or {}))


def _over(old: Json, new: Json, pool: Pool) -> Json:
    """Return the replacement for a stored slice; others' labels and owners stay as they are."""
    mine = owner(pool.node, pool.node_uid)
    others = [found for found in _owners(old) if found.get("uid") != pool.node_uid]
    kept = {k: v for k, v in old["metadata"].items() if k not in ("managedFields", "generation")}
    metadata = {**kept, "ownerReferences": [*others, mine]}
    return {**new, "metadata": metadata, "spec": _with_times(old["spec"], new["spec"])}


def _with_times(old: Json, new: Json) -> Json:
    """Keep the time at which a taint was added: without one, the server takes this very moment."""
    times = {
        (device.get("name"), *_words(taint)): taint["timeAdded"]
        for device in old.get("devices") or ()
        for taint in device.get("taints") or ()
        if taint.get("timeAdded")
    }
    if not times:
        return new
    return {**new, "devices": [_timed(device, times) for device in new.get("devices") or ()]}


def _timed(device: Json, times: Mapping[tuple[str, str, str, str], str]) -> Json:
    if not device.get("taints"):
        return device
    added = [times.get((device["name"], *_words(taint))) for taint in device["taints"]]
    taints = [
        {**taint, "timeAdded": at} if at else taint
        for taint, at in zip(device["taints"], added, strict=True)
    ]
    return {**device, "taints": taints}


def _words(taint: Json) -> tuple[str, str, str]:
    return taint.get("key", ""), taint.get("value", ""), taint.get("effect", "")


# -- comparing ------------------------------------------------------------------------------------

_STAMPS = {"driver", "pool", "nodeName"}


def content(spec: Json) -> Json:
    """Return what a slice says, in a form in which equal slices are equal.

    Empty and absent are the same, quantities have one spelling, and the time that the server gives
    a taint is not ours to say.
    """
    return {k: v for k, v in (_plain(spec) or {}).items() if k not in _STAMPS}


def _plain(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        plain = {k: _plain(v, k) for k, v in value.items() if k != "timeAdded"}
        return {k: v for k, v in plain.items() if not _absent(k, v)} or None
    if isinstance(value, list):
        return [_plain(item, key) for item in value]
    return _amount(value) if key in ("value", "default", "min", "max", "step") else value


def _absent(key: str, value: Any) -> bool:
    """Say whether a value is the same as none; an attribute may well be 0, or False."""
    return value is None or value in ([], {}, "") or (value is False and key != "bool")


def _amount(value: Any) -> Any:
    try:
        return canonical(value) if isinstance(value, str) else value
    except BadValue:
        return value  # a taint has a ``value`` too, and it is no quantity
