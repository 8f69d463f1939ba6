"""Bytes as decisions: what a fuzzer changes a little changes what is built of it a little."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")

ODD_TEXTS = (
    "",
    "\0",
    "\x1b[31m",
    "²",
    "٣",
    "\u202e",
    "é" * 40,
    "a" * 300,
    "../..",
    "/etc/passwd",
    "None",
    "-1",
    "0x10",
    "1e309",
    "9" * 25,
    "-",
    ".",
    "a\nb",
    "name=value",
    "{}",
    "\udcff",
    "\ud800",
)
"""The last two are half characters: a name of a file that is no UTF-8, and one of JSON alone."""
ODD_NUMBERS = (0, 1, -1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30)
_DEEPEST = 6


class Choices:
    """Takes decisions from bytes; when they are used up, every decision is the first one."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def byte(self) -> int:
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1]

    def below(self, bound: int) -> int:
        """Return a number from 0 to one less than the bound, which is at most 65,536."""
        value = self.byte() if bound <= 256 else self.byte() << 8 | self.byte()
        return value % max(bound, 1)

    def flag(self) -> bool:
        return bool(self.byte() & 1)

    def pick(self, options: Sequence[_T]) -> _T:
        return options[self.below(len(options))]

    def chunk(self, most: int = 64) -> bytes:
        """Return a few bytes, as many as the next one says."""
        length = min(self.below(most + 1), self.left)
        self._at += length
        return self._data[self._at - length : self._at]

    def rest(self) -> bytes:
        self._at, start = len(self._data), self._at
        return self._data[start:]

    def text(self, most: int = 64) -> str:
        """Return text of any kind that a file or a server may hold."""
        if self.flag():
            return self.pick(ODD_TEXTS)
        return self.chunk(most).decode("utf-8", "replace")

    def value(self, depth: int = 0) -> Any:
        """Return any JSON value."""
        kind = self.below(8 if depth < _DEEPEST else 6)
        if kind == 0:
            return None
        if kind == 1:
            return self.flag()
        if kind == 2:
            return self.pick(ODD_NUMBERS)
        if kind == 3:
            return self.pick((0.5, 1e300, -1.5, math.inf, math.nan))
        if kind in (4, 5):
            return self.text()
        if kind == 6:
            return [self.value(depth + 1) for _ in range(self.below(4))]
        return {self.text(): self.value(depth + 1) for _ in range(self.below(4))}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where in a JSON value something stands: the paths of all that is in it."""
    found: list[tuple[Any, ...]] = [path] if path else []
    if isinstance(value, dict):
        for key in value:
            found += places(value[key], (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += places(item, (*path, index))
    return found


def mutated(value: Any, choices: Choices, most: int = 4) -> Any:
    """Change a JSON value, in place, in a few of its places: replace, remove, double, rename."""
    for _ in range(1 + choices.below(most)):
        known = places(value)
        if not known:
            return value
        *above, last = choices.pick(known)
        parent = value
        for step in above:
            parent = parent[step]
        _change(parent, last, choices)
    return value


def _change(parent: Any, last: Any, choices: Choices) -> None:
    how = choices.below(5)
    if how == 0:
        del parent[last]
    elif how == 1 and isinstance(parent, dict):
        parent[choices.text()] = parent.pop(last)
    elif how == 2 and isinstance(parent, list):
        parent.append(parent[last])
    elif how == 3 and isinstance(parent[last], str):
        parent[last] = choices.pick((parent[last] + choices.text(), choices.text()))
    else:
        parent[last] = choices.value()
