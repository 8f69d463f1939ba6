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
}
_SETS = {("metadata", "finalizers")}
"""Lists of texts that have an owner each."""
_ATOMIC = {("status", "devices", "*", "data"), ("involvedObject",)}
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
    elif isinstance(value, list) and _pattern(path) in _SETS:
        found |= {(*path, (("", item),)): item for item in value}
    elif path and not (value in ({}, "") and len(path) == 1):
        found[path] = value
    return found


def assembled(found: Leaves) -> Json:
    """Return the object that has these leaves."""
    root: Json = {}
    for path, value in found.items():
        place: Any = root
        for index, step in enumerate(path):
            last = index == len(path) - 1
            if isinstance(step, tuple) and _pattern(path[:index]) in _SETS:
                place.append(value)
            elif isinstance(step, tuple):
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
    found = leaves(body).items()
    return {path: value for path, value in found if value is not None and _ownable(path)}


def _ownable(path: Path) -> bool:
    return path[0] not in _IDENTITY and not (path[0] == "metadata" and path[1] in _NOT_OWNED)


# -- writing --------------------------------------------------------------------------------------


def updated(owners: Owners, old: Json | None, new: Json, manager: Manager) -> Owners:
    """Return who owns what after a write that was no apply: the writer owns what it changed."""
    before, after = owned(old or {}), owned(new)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    nulls = {path for path, value in leaves(new).items() if value is None}
    changed |= nulls & before.keys()  # what is shown as null is still there
    gone = before.keys() - after.keys()
    result = {who: paths - changed - gone for who, paths in owners.items()}
    result[manager] = frozenset(result.get(manager, frozenset()) | changed)
    return {who: paths for who, paths in result.items() if paths}


def applied(
    owners: Owners, live: Json, config: Json, manager: Manager, *, force: bool, version: str
) -> tuple[Json, Owners]:
    """Merge an apply into the live object. Raises 409 where another owns what would change."""
    now = {path: value for path, value in leaves(live).items() if value is not None}
    wanted = {path: v for path, v in owned(config).items() if v != {} or not _below(path, now)}
    rivals = _rivals(owners, now, wanted, manager)
    if rivals and not force:
        raise _conflict(rivals, version)
    taken = {path for path, value in wanted.items() if now.get(path) != value}
    others = {who: paths - taken for who, paths in owners.items() if who != manager}
    kept = frozenset().union(*others.values())
    for path in owners.get(manager, frozenset()) - wanted.keys() - kept:
        now.pop(path, None)
    result = {who: paths for who, paths in others.items() if paths}
    if wanted:
        result[manager] = frozenset(wanted)
    return assembled({**now, **wanted}), result


def _below(path: Path, now: Leaves) -> bool:
    """Say whether there is something below a path: an empty map does not replace it."""
    return any(len(other) > len(path) and other[: len(path)] == path for other in now)


def _rivals(
    owners: Owners, now: Leaves, wanted: Leaves, manager: Manager
) -> list[tuple[Manager, Path]]:
    return [
        (who, path)
        for who, paths in sorted(owners.items())
        for path in paths
        if who != manager and path in wanted and now.get(path) != wanted[path]
    ]


def _conflict(rivals: list[tuple[Manager, Path]], version: str) -> ApiProblem:
    """Return the refusal: every field, by whose it is."""
    by_owner: dict[str, list[str]] = {}
    for who, path in rivals:
        by_owner.setdefault(_named(who, version), []).append(_shown(path))
    causes = [
        Cause("FieldManagerConflict", f"conflict with {who}", path)
        for who, paths in by_owner.items()
        for path in sorted(paths)
    ]
    if len(causes) == 1:
        said = f"1 conflict: {causes[0].message}: {causes[0].field}"
    else:
        listed = (
            f"conflicts with {who}:" + "".join(f"\n- {path}" for path in sorted(paths))
            for who, paths in by_owner.items()
        )
        said = f"{len(causes)} conflicts: " + "\n".join(listed)
    return ApiProblem(409, f"Apply failed with {said}", causes=causes)


def _named(who: Manager, version: str) -> str:
    below = f' with subresource "{who.subresource}"' if who.subresource else ""
    return f'"{who.name}"{below}' + (f" using {version}" if who.operation == "Update" else "")


def _shown(path: Path) -> str:
    steps = (f".{s}" if isinstance(s, str) else f"[{_dumped(s)}]" for s in path)
    return "".join(steps)


def _dumped(step: tuple[tuple[str, Any], ...]) -> str:
    return json.dumps(dict(step), separators=(",", ":"), sort_keys=True)


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
            place = place.setdefault(_field(step), {})
        last = path[-1]
        if isinstance(last, tuple) and last[0][0]:
            place.setdefault(".", {})
    return root


def _field(step: Step) -> str:
    if isinstance(step, str):
        return f"f:{step}"
    return f"k:{_dumped(step)}" if step[0][0] else f"v:{json.dumps(step[0][1])}"
