"""Whether what a plugin answers is what its type says, down to the last field.

The model's values are plain dataclasses: a plugin can put anything into them. A number where text
belongs would end in a traceback far from its cause, or in a record that the ledger cannot read
again, and ``shareable="no"`` would share a device. So answers are checked where they come in.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from hardpoint.model import Device

_Check: TypeAlias = Callable[[Any], str]
"""Says what is wrong with a value, ``.path: found int, want str``; ``""`` if it is as it should."""

_MENDED = {Device: {"attributes": Mapping[Any, Any], "capacity": Mapping[Any, Any]}}
"""Fields whose contents have a validator of their own, which leaves out only what is wrong."""


def flaw(value: Any, wanted: Any) -> str:
    """Say what of a value is not as its type says, ``nodes[0].path: found int, want str``.

    ``wanted`` is a class of the model, or a type made of such. Empty if all is well.
    """
    return _checker(wanted)(value).removeprefix(".")


@cache
def _checker(wanted: Any) -> _Check:
    if wanted is Any:
        return lambda value: ""
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is tuple:
        return _tuple(_checker(inner[0])) if inner[1:] == (...,) else _fields(inner)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_checker(inner[0]), _checker(inner[1]))
    if origin in (Union, types.UnionType):
        return _union(inner)
    if is_dataclass(wanted):
        return _dataclass(wanted)
    return _plain(wanted)


def _plain(wanted: type) -> _Check:
    subclasses = issubclass(wanted, Enum) or wanted is str

    def check(value: Any) -> str:
        if type(value) is wanted or (subclasses and isinstance(value, wanted)):
            return ""
        return _found(value, wanted.__name__.replace("NoneType", "None"))

    return check


def _tuple(item: _Check) -> _Check:
    def check(value: Any) -> str:
        if not isinstance(value, tuple):
            return _found(value, "tuple")
        for index, one in enumerate(value):
            if wrong := item(one):
                return f"[{index}]{wrong}"
        return ""

    return check


def _fields(members: tuple[Any, ...]) -> _Check:
    """Check a tuple of so many fields, ``tuple[str, int]``: one with fewer cannot be unpacked."""
    checks = [_checker(member) for member in members]

    def check(value: Any) -> str:
        if not isinstance(value, tuple):
            return _found(value, "tuple")
        if len(value) != len(checks):
            return f": found tuple of {len(value)}, want tuple of {len(checks)}"
        for index, (one, item) in enumerate(zip(checks, value, strict=True)):
            if wrong := one(item):
                return f"[{index}]{wrong}"
        return ""

    return check


def _mapping(of_key: _Check, of_value: _Check) -> _Check:
    def check(value: Any) -> str:
        if not isinstance(value, Mapping):
            return _found(value, "mapping")
        for key, one in value.items():
            if wrong := of_key(key):
                return f", a key{wrong}"
            if wrong := of_value(one):
                return f"[{key!r:.40}]{wrong}"
        return ""

    return check


def _union(members: tuple[Any, ...]) -> _Check:
    checks = [_checker(member) for member in members]

    def check(value: Any) -> str:
        wrongs = [one(value) for one in checks]
        return "" if "" in wrongs else max(wrongs, key=_depth)

    return check


def _depth(wrong: str) -> int:
    """Tell the member of a union that was meant: the one whose inside is wrong."""
    return len(wrong.partition(":")[0])


def _dataclass(wanted: Any) -> _Check:
    hints = {**get_type_hints(wanted), **_MENDED.get(wanted, {})}
    checks = [(field.name, _checker(hints[field.name])) for field in fields(wanted)]

    def check(value: Any) -> str:
        if type(value) is not wanted:
            return _found(value, wanted.__name__)
        for name, one in checks:
            if wrong := one(getattr(value, name)):
                return f".{name}{wrong}"
        return ""

    return check


def _found(value: Any, wanted: str) -> str:
    return f": found {type(value).__name__}, want {wanted}"
