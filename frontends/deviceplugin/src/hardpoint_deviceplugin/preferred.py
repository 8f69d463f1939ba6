"""Which of the ids that are free a container had best get: what GetPreferredAllocation answers.

Pure. First what the kubelet must include, then what the driver advises, then devices of one grant
on one NUMA node, then of the grant with most that is free. Containers that share devices are spread
over them. The kubelet may choose otherwise, and tops up what is missing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hardpoint.allocation import RankRequest
from hardpoint_deviceplugin.resources import Entry, Key

_Place: TypeAlias = tuple[str, int]
"""Grant and NUMA node; -1 for a device that is near none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One container's question, in entries: ids that the resource does not have are left out."""

    count: int
    available: tuple[Entry, ...]
    required: tuple[Entry, ...] = ()

    @classmethod
    def of(
        cls, entries: Mapping[str, Entry], available: Iterable[str], required: Iterable[str], n: int
    ) -> Wanted:
        """Look ids up."""
        must = tuple(entries[i] for i in dict.fromkeys(required) if i in entries)
        free = tuple(entries[i] for i in dict.fromkeys(available) if i in entries)
        return cls(count=n, available=free, required=must[:n])

    @property
    def drivers(self) -> frozenset[str]:
        """Whose devices can be chosen."""
        return frozenset(entry.offered.device.driver for entry in self.available)

    def request(self) -> RankRequest:
        """Return the question in device names, for a driver that knows better."""
        return RankRequest(
            count=self.count,
            available=tuple(dict.fromkeys(entry.offered.name for entry in self.available)),
            required=tuple(dict.fromkeys(entry.offered.name for entry in self.required)),
        )


def preferred(wanted: Wanted, advice: Sequence[str] = ()) -> list[str]:
    """Return ids, at most as many as are wanted; ``advice`` are device names, best first."""
    choice = _Choice(wanted)
    for name in advice:
        choice.take_device(name)
    while choice.missing:
        place = choice.best_place()
        if place is None:
            break
        choice.take_from(place)
    return choice.ids


class _Choice:
    """What has been chosen so far, and which ids of which devices are left at each place."""

    def __init__(self, wanted: Wanted) -> None:
        self._count = wanted.count
        self._chosen: list[Entry] = []
        self._taken: Counter[Key] = Counter()
        self._left: defaultdict[_Place, dict[Key, list[Entry]]] = defaultdict(dict)
        for entry in wanted.required:
            self._choose(entry)
        must = set(self.ids)
        for entry in wanted.available:
            if entry.id not in must:
                self._left[_place(entry)].setdefault(entry.key, []).append(entry)
        for here in self._left.values():
            for entries in here.values():
                entries.sort(key=lambda entry: (len(entry.id), entry.id), reverse=True)

    @property
    def ids(self) -> list[str]:
        return [entry.id for entry in self._chosen]

    @property
    def missing(self) -> int:
        return self._count - len(self._chosen)

    def take_device(self, name: str) -> None:
        """Take an id of a device, unless one of it is chosen already."""
        if self.missing <= 0 or any(entry.offered.name == name for entry in self._chosen):
            return
        for place, here in self._left.items():
            key = next((key for key in here if key[1] == name), None)
            if key is not None:
                self._take(place, key)
                return

    def best_place(self) -> _Place | None:
        """Return where to go on: where the chosen are, else the smallest place that has room.

        A place that holds all of it comes before the grant with most free, and of several such
        places the fullest, so that the emptier ones stay whole for who wants more.
        """
        free = {place: sum(map(len, here.values())) for place, here in self._left.items() if here}
        at = Counter(_place(entry) for entry in self._chosen)
        grants = Counter(entry.offered.allocation for entry in self._chosen)
        of_grant: Counter[str] = Counter()
        for (grant, _), count in free.items():
            of_grant[grant] += count

        def rank(place: _Place) -> tuple[object, ...]:
            grant, room = place[0], free[place]
            fits = room >= self.missing
            whole = of_grant[grant] >= self.missing
            near = (-at[place], -grants[grant])
            return (*near, not fits, not whole, -of_grant[grant], room if fits else -room, place)

        return min(free, key=rank, default=None)

    def take_from(self, place: _Place) -> None:
        """Take what is missing from one place, or all that it has."""
        here = self._left[place]
        while here and self.missing > 0:
            roots = {entry.offered.device.topology.pcie_root for entry in self._chosen} - {None}
            self._take(place, min(here, key=lambda key: self._rank(key, here[key], roots)))

    def _rank(
        self, key: Key, entries: Sequence[Entry], roots: Collection[str | None]
    ) -> tuple[object, ...]:
        """Another device before a second share of one, near those chosen, the least shared."""
        near = entries[0].offered.device.topology.pcie_root in roots
        return self._taken[key], not near, -len(entries), key

    def _take(self, place: _Place, key: Key) -> None:
        here = self._left[place]
        self._choose(here[key].pop())
        if not here[key]:
            del here[key]

    def _choose(self, entry: Entry) -> None:
        self._chosen.append(entry)
        self._taken[entry.key] += 1


def _place(entry: Entry) -> _Place:
    node = entry.offered.device.topology.numa_node
    return entry.offered.allocation, -1 if node is None else node
