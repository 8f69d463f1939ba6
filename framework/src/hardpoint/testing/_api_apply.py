"""Field ownership and server-side apply for the fake API server (structured-merge-diff, in small).

An object is seen as its leaves: a path to each value that has one owner. Lists of the schema's
"map" kind are keyed by some of their items' fields; every other list is one value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hardpoint.testing._api_status import ApiProblem, Cause, Json

Step: TypeAlias = "str | tuple[tuple[str, Any], ...]"
Path: TypeAlias = "tuple[Step, ...]"
Leaves: TypeAlias = "dict[Path, Any]"

ITEM = object()
"""The value of a keyed item's own path: that it is in the list."""

_KEYED: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("metadata", "ownerReferences"): ("uid",),
    ("status", "conditions"): ("type",),
    ("status", "devices"): ("driver", "device", "pool", "shareID"),
    ("status", "devices", "*", "conditions"): ("type",),
    ("status", "reservedFor"): ("uid",),
    ("spec", "taints"): ("key", "effect"),
}
_ATOMIC = {("status", "devices", "*", "data")}
_IDENTITY = {"apiVersion", "kind"}
_NOT_OWNED = {
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generateName",
    "managedFields",
    "selfLink",
}


@dataclass(frozen=True, slots=True, order=True)
class Manager:
    """Who owns fields: a name, how it wrote them, and through which subresource."""

    name: str
    operation: str
    subresource: str = ""


Owners: TypeAlias = "dict[Manager, frozenset[Path]]"


def leaves(value: Any, path: Path = ()) -> Leaves:
    """Return every value of an object that has an owner of its own, by path."""
    found: Leaves = {}
    keys = _KEYED.get(_pattern(path))
    if isinstance(value, dict) and value and _pattern(path) not in _ATOMIC:
        for name, item in value.items():
            found |= leaves(item, (*path, name))
    elif isinstance(value, list) and keys is not None:
        for item in value:
            key = _key(item, keys)
            found[(*path, key)] = ITEM
            for name, part in item.items():
                found |= leaves(part, (*path, key, name))
    elif path:
        found[path] = value
    return found


def assembled(found: Leaves) -> Json:
    """Return the object that has these leaves."""
    root: Json = {}
    for path, value in found.items():
        place: Any = root
        for index, step in enumerate(path):
            last = index == len(path) - 1
            if isinstance(step, tuple):
                place = _item(place, _KEYED[_pattern(path[:index])], step)
            elif last:
                place[step] = value
            else:
                keyed = isinstance(path[index + 1], tuple)
                place = place.setdefault(step, [] if keyed else {})
    return root


def _item(items: list[Json], names: tuple[str, ...], key: Step) -> Json:
    for item in items:
        if _key(item, names) == key:
            return item
    items.append(dict(key))  # type: ignore[arg-type]
    return items[-1]


def _key(item: Json, names: tuple[str, ...]) -> Step:
    return tuple((name, item[name]) for name in names if name in item)


def _pattern(path: Path) -> tuple[str, ...]:
    return tuple(step if isinstance(step, str) else "*" for step in path)


def owned(body: Json) -> Leaves:
    """Return the leaves of an object that somebody can own."""
    return {path: value for path, value in leaves(body).items() if _ownable(path)}


def _ownable(path: Path) -> bool:
    return path[0] not in _IDENTITY and not (path[0] == "metadata" and path[1] in _NOT_OWNED)


# -- writing --------------------------------------------------------------------------------------


def updated(owners: Owners, old: Json | None, new: Json, manager: Manager) -> Owners:
    """Return who owns what after a write that was no apply: the writer owns what it changed."""
    before, after = owned(old or {}), owned(new)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    gone = before.keys() - after.keys()
    result = {who: paths - changed - gone for who, paths in owners.items()}
    result[manager] = frozenset(result.get(manager, frozenset()) | changed)
    return {who: paths for who, paths in result.items() if paths}


def applied(
    owners: Owners, live: Json, config: Json, manager: Manager, force: bool
) -> tuple[Json, Owners]:
    """Merge an apply into the live object. Raises 409 where another owns what would change."""
    wanted, now = owned(config), leaves(live)
    rivals = _rivals(owners, now, wanted, manager)
    if rivals and not force:
        raise _conflict(rivals)
    taken = {path for path, value in wanted.items() if now.get(path) != value}
    others = {who: paths - taken for who, paths in owners.items() if who != manager}
    kept = frozenset().union(*others.values())
    for path in owners.get(manager, frozenset()) - wanted.keys() - kept:
        now.pop(path, None)
    result = {who: paths for who, paths in others.items() if paths}
    result[manager] = frozenset(wanted)
    return assembled({**now, **wanted}), result


def _rivals(
    owners: Owners, now: Leaves, wanted: Leaves, manager: Manager
) -> list[tuple[Manager, Path]]:
    return [
        (who, path)
        for who, paths in sorted(owners.items())
        for path in paths
        if who != manager and path in wanted and now.get(path) != wanted[path]
    ]


def _conflict(rivals: list[tuple[Manager, Path]]) -> ApiProblem:
    causes = [
        Cause("FieldManagerConflict", f'conflict with "{who.name}"', _shown(path))
        for who, path in rivals
    ]
    word = "conflict" if len(causes) == 1 else "conflicts"
    listed = "; ".join(f"{cause.message}: {cause.field}" for cause in causes)
    message = f"Apply failed with {len(causes)} {word}: {listed}"
    return ApiProblem(409, message, causes=causes)


def _shown(path: Path) -> str:
    steps = (f".{s}" if isinstance(s, str) else f"[{json.dumps(dict(s))}]" for s in path)
    return "".join(steps)


# -- managedFields --------------------------------------------------------------------------------


def managed_fields(owners: Owners, api_version: str, time: str) -> list[Json]:
    """Return ``metadata.managedFields``."""
    return list(_entries(owners, api_version, time))


def _entries(owners: Owners, api_version: str, time: str) -> Iterator[Json]:
    for who, paths in sorted(owners.items()):
        entry: Json = {
            "manager": who.name,
            "operation": who.operation,
            "apiVersion": api_version,
            "time": time,
            "fieldsType": "FieldsV1",
            "fieldsV1": _fields(paths),
        }
        if who.subresource:
            entry["subresource"] = who.subresource
        yield entry


def _fields(paths: frozenset[Path]) -> Json:
    root: Json = {}
    for path in sorted(paths, key=_shown):
        place = root
        for step in path:
            key = f"f:{step}" if isinstance(step, str) else f"k:{json.dumps(dict(step))}"
            place = place.setdefault(key, {})
        if isinstance(path[-1], tuple):
            place.setdefault(".", {})
    return root
