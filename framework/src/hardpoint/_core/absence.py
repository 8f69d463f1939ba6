"""When it may be believed that no pod has an allocation: what the kubelet does not say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hardpoint._core.podlist import PodList
from hardpoint._core.podsource import Checkpoint, Kubelet
from hardpoint._core.records import Record

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
    alone: float = 3600.0
    """After which a kubelet that lists nothing but static pods is believed to have no others, and
    a checkpoint that was not written any more is believed no longer."""


class Absence:
    """Counts reads that miss a hold, and forgets them when the hold is asked for again."""

    def __init__(self, pace: Pace, node: str, itself: tuple[str, str] | None) -> None:
        self._pace, self._node, self._itself = pace, node, itself
        self._kubelet: Kubelet | None = None
        self._kubelet_since = 0.0
        self._knows_since: float | None = None
        self._first: dict[_Version, float] = {}
        self._missed: dict[_Version, list[float]] = {}
        self._written: tuple[object, float] = (None, 0.0)
        """The checkpoint that was seen last, and since when it is that one."""
        self.doubt = ""
        """Why nothing follows from what is not listed; empty where it does, or soon will."""

    def stamp(self, records: Iterable[Record], now: float) -> None:
        """Know which holds there are, before a read begins.

        By this process's own clock: when they were written is another's, and may have been set.
        """
        versions = {(record.id, record.rev) for record in records}
        self._first = {v: self._first.get(v, now) for v in versions}
        self._missed = {v: times for v, times in self._missed.items() if v in versions}

    def heard(self, listed: PodList, kubelet: Kubelet | None, begun: float) -> None:
        """Judge whether a kubelet knows its pods yet."""
        if kubelet != self._kubelet:
            self._kubelet, self._kubelet_since, self._knows_since = kubelet, begun, None
            self._missed.clear()
        if self._knows_since is None:
            self.doubt = self._why_not(listed, begun)
            if not self.doubt:
                self._knows_since = begun

    def _why_not(self, listed: PodList, begun: float) -> str:
        if self._itself is not None:
            if self._itself in listed.pods:
                return ""
            return f"the kubelet does not list this agent's own pod {'/'.join(self._itself)}"
        static = f"-{self._node}"  # the kubelet adds it to the name of a pod from a file
        if any(not name.endswith(static) for _, name in listed.pods):
            return ""
        if begun - self._kubelet_since >= self._pace.alone:
            return ""
        return "the kubelet lists no pod of the API server's"

    def settled(self, begun: float) -> bool:
        """Say whether something may follow from what a read does not list."""
        return self._knows_since is not None and begun - self._knows_since >= self._pace.settle

    def believes(self, found: Checkpoint, now: float) -> bool:
        """Say whether what a checkpoint names is somebody's.

        The kubelet writes it anew at each list of a plugin's, ours once a minute at least. Where
        no plugin lists any more nothing is written, and pods that are over stay in it for ever.
        """
        if found.written != self._written[0]:
            self._written = found.written, now
        return now - self._written[1] < self._pace.alone

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
