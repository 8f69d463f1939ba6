"""Decoding for the fake API server, as Go does it: what is unknown is dropped, null is nothing.

A wrong type is refused with 400 and no field path; quantities and times are stored in the server's
spelling; empty lists and maps are not stored at all.
"""

from __future__ import annotations

import copy
import datetime
import re
from collections.abc import Mapping
from typing import Any

from hardpoint.testing._api_quantity import stored
from hardpoint.testing._api_schema import METADATA, SCHEMAS, Schema
from hardpoint.testing._api_status import ApiProblem, Json
from hardpoint.testing._api_versions import upgraded

_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("str", "text", "shown str"), str),
    **dict.fromkeys(("bool", "flag"), bool),
    "raw": dict,
}
_UNSAID = ("text", "flag")
"""Words that are left out where they say nothing."""
_ABSENT: Mapping[str, Any] = {
    "amount": "0",
    **dict.fromkeys(("pointer", "shown time", "shown micro time"), None),
    "shown str": "",
}
"""What is shown of fields that nobody set."""
_NAMES: Mapping[type, str] = {str: "string", bool: "bool", dict: "object", list: "array"}


def decoded(kind: str, body: Json, version: str, unknown: list[str], strict: bool = False) -> Json:
    """Return the object with known fields only, in the shape of v1. Raises a 400.

    ``unknown`` takes the paths of fields that nobody knows; ``strict`` refuses them
    (``fieldValidation=Strict``).
    """
    schema = SCHEMAS.get(kind)
    shaped = upgraded(kind, body, version) if schema else copy.deepcopy(body)
    try:
        kept = _Go(unknown).whole(shaped, schema)
    except (ValueError, TypeError) as error:
        message = f'{kind} in version "{version}" cannot be handled as a {kind}: {error}'
        raise ApiProblem(400, message) from error
    if strict and unknown:
        listed = ", ".join(f'unknown field "{path}"' for path in unknown)
        message = (
            f'{kind} in version "{version}" cannot be handled as a {kind}: '
            f"strict decoding error: {listed}"
        )
        raise ApiProblem(400, message)
    return kept


class _Go:
    """One decoding; notes the paths of fields that nobody knows."""

    def __init__(self, unknown: list[str]) -> None:
        self._unknown = unknown

    def whole(self, body: Json, parts: Mapping[str, Schema] | None) -> Json:
        typed = {key: body.pop(key) for key in ("apiVersion", "kind") if key in body}
        metadata = self._read(body.pop("metadata", None), METADATA, "metadata")
        # Kinds without a schema are taken as they come.
        kept = body if parts is None else self._read(body, parts, "")
        return {**typed, "metadata": metadata, **kept}

    def _read(self, value: Any, schema: Schema, path: str) -> Any:
        if isinstance(schema, str):
            return _word(value, schema)
        if isinstance(schema, list):
            items = _typed([] if value is None else value, list)
            return [self._read(item, schema[0], f"{path}[{i}]") for i, item in enumerate(items)]
        found = _typed({} if value is None else value, dict)
        if isinstance(schema, tuple):
            return {k: self._read(v, schema[1], f"{path}.{k}") for k, v in found.items()}
        kept = {name: _absent(shape) for name, shape in schema.items() if _is_shown(shape)}
        for name, item in found.items():
            below = f"{path}.{name}".lstrip(".")
            if name not in schema:
                self._unknown.append(below)
            elif item is not None:
                kept[name] = self._read(item, schema[name], below)
        return kept


def _is_shown(shape: Schema) -> bool:
    return isinstance(shape, str) and shape in _ABSENT


def _absent(shape: str) -> Any:
    return _ABSENT[shape]


def _word(value: Any, word: str) -> Any:
    if value is None:
        return _ABSENT.get(word, "")
    if word in ("quantity", "amount", "pointer"):
        return stored(value)
    if word == "any":
        return value
    if word.endswith("time"):
        return _time(_typed(value, str), micro="micro" in word)
    if word != "int":
        return _typed(value, _TYPES[word])
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise TypeError(f"json: cannot unmarshal {_named(value)} into Go value of type int64")
    return value


def _typed(value: Any, wanted: type) -> Any:
    if not isinstance(value, wanted):
        name = {"object": "map", "array": "slice"}.get(_NAMES[wanted], _NAMES[wanted])
        raise TypeError(f"json: cannot unmarshal {_named(value)} into Go value of type {name}")
    return value


def _named(value: Any) -> str:
    return next((name for kind, name in _NAMES.items() if type(value) is kind), "number")


def _time(text: str, micro: bool = False) -> str:
    """Return a time (RFC 3339) in UTC, to the second or microsecond."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        found = datetime.datetime.min
    whole = re.fullmatch(r".*T.*\d\.\d{6}\D.*" if micro else r".*T.*", text)
    if found.tzinfo is None or whole is None:
        raise ValueError(f'parsing time "{text}" as "2006-01-02T15:04:05Z07:00": cannot parse')
    form = "%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ"
    return found.astimezone(datetime.UTC).strftime(form)


def pruned(value: Any, schema: Schema) -> Any:
    """Return what is stored of a decoded value: empty lists, maps and texts are left out."""
    if isinstance(schema, list):
        return [pruned(item, schema[0]) for item in value]
    if isinstance(schema, tuple):
        return {key: pruned(item, schema[1]) for key, item in value.items()}
    if not isinstance(schema, Mapping):
        return value
    return {
        name: pruned(item, schema[name])
        for name, item in value.items()
        if not (isinstance(schema[name], (list, tuple)) or schema[name] in _UNSAID) or item
    }
