"""Patches of the fake API server: JSON merge, strategic merge and JSON patch."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from hardpoint.testing._api_status import ApiProblem, Cause, Json, invalid

APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"
_STEPS = "application/json-patch+json"

Path: TypeAlias = "tuple[str, ...]"

_KEYS: Mapping[Path, str] = {
    ("metadata", "ownerReferences"): "uid",
    ("status", "conditions"): "type",
    ("status", "addresses"): "type",
    ("spec", "containers"): "name",
    ("spec", "initContainers"): "name",
    ("spec", "volumes"): "name",
    ("spec", "resourceClaims"): "name",
}
"""Lists that a strategic merge merges by a key (``patchMergeKey``); it replaces the others.

The lists of resource.k8s.io have no such keys, those of core v1 that matter here do.
"""
_SETS = (("metadata", "finalizers"),)


def check_type(content_type: str) -> None:
    """Raise 415 for a patch of no known type."""
    if content_type not in (APPLY, _MERGE, _STRATEGIC, _STEPS):
        message = "415: Unsupported Media Type"
        raise ApiProblem(415, message, details={})


def patched(live: Json, patch: Any, content_type: str) -> Json:
    """Return what a patch makes of an object. Raises 400 or 422."""
    if content_type == _STEPS and isinstance(patch, list):
        return _stepped(copy.deepcopy(live), patch)
    if content_type == _STEPS or not isinstance(patch, dict):
        raise ApiProblem(400, "error decoding patch: json: cannot unmarshal into Go value")
    if content_type == _STRATEGIC:
        merged: Json = _strategic(live, patch, ())
        return merged
    result: Json = merge(live, patch)
    return result


def undecodable(why: str) -> ApiProblem:
    """Return the refusal of a patch that made something else of the object."""
    cause = Cause("FieldValueInvalid", f'Invalid value: "…": {why}', "patch")
    return invalid("", "", "", [cause])


def merge(live: Any, patch: Any) -> Any:
    """Return a JSON merge patch's result (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    live = live if isinstance(live, dict) else {}
    result = {key: value for key, value in live.items() if patch.get(key, ...) is not None}
    for key, value in patch.items():
        if value is not None:
            result[key] = merge(live.get(key), value)
    return result


# -- strategic merge ------------------------------------------------------------------------------


def _strategic(live: Any, patch: Any, path: Path) -> Any:
    if isinstance(patch, list) and path in _KEYS:
        return _by_key(live if isinstance(live, list) else [], patch, path)
    if isinstance(patch, list) and path in _SETS:
        return list(dict.fromkeys([*(live or ()), *patch]))
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    live = live if isinstance(live, dict) else {}
    result = {key: value for key, value in live.items() if patch.get(key, ...) is not None}
    for key, value in patch.items():
        if value is not None:
            result[key] = _strategic(live.get(key), value, (*path, key))
    return result


def _by_key(live: list[Any], patch: list[Any], path: Path) -> list[Any]:
    key = _KEYS[path]
    items = {item[key]: item for item in live}
    for item in patch:
        if item.get(key) is None:
            raise ApiProblem(400, f"map: {item} does not contain declared merge key: {key}")
        if item.get("$patch") == "delete":
            items.pop(item[key], None)
        else:
            items[item[key]] = _strategic(items.get(item[key]), item, ())
    return list(items.values())


# -- JSON patch (RFC 6902) ------------------------------------------------------------------------


def _stepped(body: Json, steps: list[Any]) -> Json:
    whole = [body]  # so that the root has a place too
    for step in steps:
        try:
            _OPERATIONS[step["op"]](whole, step)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            why = f"the server rejected our request due to an error in our request: {error}"
            raise ApiProblem(422, why, details={}) from error
    return whole[0]


def _place(whole: list[Any], pointer: str) -> tuple[Any, Any]:
    """Return the list or object that a pointer ends in, and the key or index there."""
    place: Any = whole
    key: Any = 0
    for word in pointer.split("/")[1:]:
        place = place[key]
        word = word.replace("~1", "/").replace("~0", "~")
        key = _index(place, word) if isinstance(place, list) else word
    return place, key


def _index(items: list[Any], word: str) -> int:
    if word == "-":
        return len(items)
    if not re.fullmatch(r"0|[1-9]\d*", word) or int(word) > len(items):
        raise IndexError(f"no item {word}")
    return int(word)


def _add(whole: list[Any], step: Json, value: Any = ...) -> None:
    place, key = _place(whole, step["path"])
    new = step["value"] if value is ... else value
    if isinstance(place, list) and place is not whole:
        place.insert(key, new)
    else:
        place[key] = new


def _take(whole: list[Any], pointer: str) -> Any:
    place, key = _place(whole, pointer)
    return place.pop(key)


def _replace(whole: list[Any], step: Json) -> None:
    place, key = _place(whole, step["path"])
    place[key]
    place[key] = step["value"]


def _copy(whole: list[Any], step: Json) -> None:
    place, key = _place(whole, step["from"])
    _add(whole, step, copy.deepcopy(place[key]))


def _test(whole: list[Any], step: Json) -> None:
    place, key = _place(whole, step["path"])
    if json.dumps(place[key], sort_keys=True) != json.dumps(step["value"], sort_keys=True):
        raise ValueError(f"testing path {step['path']} value failed")


_OPERATIONS: Mapping[str, Callable[[list[Any], Json], None]] = {
    "add": _add,
    "remove": lambda whole, step: (_take(whole, step["path"]), None)[1],
    "replace": _replace,
    "move": lambda whole, step: _add(whole, step, _take(whole, step["from"])),
    "copy": _copy,
    "test": _test,
}
