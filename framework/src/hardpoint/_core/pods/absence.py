"""When it may be believed that no pod has an allocation: what the kubelet does not say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hardpoint._core.ledger.records import Record
from hardpoint._core.pods.podlist import PodList
from hardpoint.kubelet.podsource import Checkpoint, Kubelet
from hardpoint.kubelet.settling import ALONE, Settling

READS = 2
"""Good reads without an id after which no pod has it."""

_Version = tuple[int, int]
"""A hold as it was last written: its row and its revision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often pods are read, and what has to pass before something follows; in seconds."""

    every: float = 10.0
    seldom: int = 6
    """Every so many of these, where only claims are held, whose end the kubelet does tell."""
    apart: float = 1.0
    """Between two reads that are to count as two."""
    margin: float = 10.0
    """From the moment that a hold was asked for to a read that may miss it: a pod is admitted
    first and listed then."""
    settle: float = 30.0
    """From the moment that a kubelet knows its pods, as far as can be told, to a read that may miss
    one: it admits them one after the other when it starts."""
    alone: float = ALONE
    """After which a kubelet that lists nothing but static pods is believed to have no others, and
    a checkpoint that was not written any more is believed no longer."""


class Absence:
    """Counts reads that miss a hold, and forgets them when the hold is asked for again."""

    def __init__(self, pace: Pace, node: str, itself: tuple[str, str] | None) -> None:
        self._pace = pace
        self._settling = Settling(node, itself, settle=pace.settle, alone=pace.alone)
        self._first: dict[_Version, float] = {}
        self._missed: dict[_Version, list[float]] = {}

    @property
    def doubt(self) -> str:
        """Why nothing follows from what is not listed; empty where it does, or soon will."""
        return self._settling.doubt

    def stamp(self, records: Iterable[Record], now: float) -> None:
        """Know which holds there are, before a read begins.

        By this process's own clock: when they were written is another's, and may have been set.
        """
        versions = {(record.id, record.rev) for record in records}
        self._first = {v: self._first.get(v, now) for v in versions}
        self._missed = {v: times for v, times in self._missed.items() if v in versions}

    def heard(self, listed: PodList, kubelet: Kubelet | None, begun: float) -> None:
        """Judge whether a kubelet knows its pods yet."""
        if self._settling.heard(listed.pods, kubelet, begun):
            self._missed.clear()

    def settled(self, begun: float) -> bool:
        """Say whether something may follow from what a read does not list."""
        return self._settling.settled(begun)

    def believes(self, found: Checkpoint, now: float) -> bool:
        """Say whether what a checkpoint names is somebody's."""
        return self._settling.believes(found, now)

    def seen(self, record: Record) -> None:
        """A pod has it."""
        self._missed.pop((record.id, record.rev), None)

    def asked(self, record: Record, begun: float) -> None:
        """It is being asked for at this moment, with what else one call asks for."""
        self.seen(record)
        self._first[record.id, record.rev] = begun

    def missed(self, record: Record, begun: float) -> bool:
        """Count a read that does not list a hold; say whether there were enough of them."""
        version = (record.id, record.rev)
        first = self._first.get(version)
        if first is None or begun - first < self._pace.margin or not self.settled(begun):
            return False
        times = self._missed.setdefault(version, [])
        if not times or begun - times[-1] >= self._pace.apart:
            times.append(begun)
        return len(times) >= READS
