"""Shared counters: so that the scheduler never allocates two devices that cannot both be held.

Two devices are rivals when they take one part and at least one of them takes it exclusively: a
whole USB device and the serial port on it. Such a part becomes a counter, worth as much as devices
share it; who takes it exclusively consumes all of it, who shares it consumes one. Devices that hang
together through rivalries share one counter set. What does not fit the API's limits is left out:
the ledger, which knows every part, then refuses the second of two rivals at prepare.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hardpoint.attributes import LONGEST_NAME, with_hash
from hardpoint.model import Device, Part, slug

Json: TypeAlias = "dict[str, Any]"

MOST_COUNTERS = 32
"""Counters of a set, of a device in it, and (in 1.34) of a whole slice."""
MOST_SETS = 8
"""Counter sets of one slice."""


@dataclass(frozen=True, slots=True)
class Counters:
    """The pool's counter sets, in order of name, and what each device consumes of them."""

    sets: tuple[Json, ...] = ()
    consumed: Mapping[str, Json] = field(default_factory=dict)
    """By device name: one entry of ``consumesCounters``."""

    def slices(self) -> list[tuple[Json, ...]]:
        """Return the sets as slices hold them: few enough for every release."""
        slices: list[list[Json]] = []
        room = 0
        for found in self.sets:
            size = len(found["counters"])
            if not slices or len(slices[-1]) == MOST_SETS or size > room:
                slices.append([])
                room = MOST_COUNTERS
            slices[-1].append(found)
            room -= size
        return [tuple(sets) for sets in slices]


@dataclass(slots=True)
class _Takers:
    alone: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)

    @property
    def contended(self) -> bool:
        return bool(self.alone) and len(self.alone) + len(self.beside) > 1

    @property
    def amount(self) -> int:
        return max(1, len(self.beside))


def count(devices: Iterable[Device]) -> Counters:
    """Return the counters of a pool's devices."""
    parts: dict[str, _Takers] = defaultdict(_Takers)
    for device in devices:
        for part in device.all_parts:
            _taken(parts[part.name], part).append(device.name)
    contended = {name: takers for name, takers in sorted(parts.items()) if takers.contended}
    sets: list[Json] = []
    consumed: dict[str, Json] = {}
    names: set[str] = set()
    for group in _groups(contended):
        if len(group) <= MOST_COUNTERS:
            found, shares = _counter_set(_label(group[0], names), group, contended)
            sets.append(found)
            consumed |= shares
    return Counters(tuple(sorted(sets, key=lambda found: str(found["name"]))), consumed)


def _taken(takers: _Takers, part: Part) -> list[str]:
    return takers.alone if part.exclusive else takers.beside


def _groups(contended: Mapping[str, _Takers]) -> list[list[str]]:
    """Return the contended parts, those together that some device takes together."""
    parts_of: dict[str, list[str]] = defaultdict(list)
    for name, takers in contended.items():
        for device in (*takers.alone, *takers.beside):
            parts_of[device].append(name)
    seen: set[str] = set()
    groups: list[list[str]] = []
    for name in contended:
        if name in seen:
            continue
        seen.add(name)
        group, waiting = [], [name]
        while waiting:
            part = waiting.pop()
            group.append(part)
            takers = contended[part]
            near = {p for d in (*takers.alone, *takers.beside) for p in parts_of[d]} - seen
            seen |= near
            waiting += near
        groups.append(sorted(group))
    return groups


def _counter_set(
    name: str, parts: list[str], contended: Mapping[str, _Takers]
) -> tuple[Json, dict[str, Json]]:
    counters: Json = {}
    shares: dict[str, Json] = {}
    taken: set[str] = set()
    for part in parts:
        key, takers = _label(part, taken), contended[part]
        counters[key] = {"value": str(takers.amount)}
        for devices, amount in ((takers.alone, takers.amount), (takers.beside, 1)):
            for device in devices:
                share = shares.setdefault(device, {"counterSet": name, "counters": {}})
                share["counters"][key] = {"value": str(amount)}
    return {"name": name, "counters": counters}, shares


def _label(part: str, taken: set[str]) -> str:
    """Return a part's name as a DNS label that none of the others has."""
    label = slug(part) or "part"
    if len(label) > LONGEST_NAME or label in taken:
        label = with_hash(label, part)
    taken.add(label)
    return label
