"""What happened since the agent started, counted from its events."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from hardpoint.model import Event
from hardpoint.policies.metrics.exposition import Family, Histogram, Sample

BOUNDS = tuple(0.005 * 2**n for n in range(14))
"""Seconds: 5 ms to 41 s, after which the kubelet has hung up."""
_MOST_WORDS = 200
_PREPARED, _REFUSED = "claim-prepared", "claim-refused"
_REAPED = {
    "pod-reaped": "deleted",
    "pod-spared": "spared",
    "pod-would-be-reaped": "would-delete",
    "pod-not-reaped-yet": "later",
}


class Counts:
    """Counters and durations; everything is 0 after a restart, as Prometheus expects."""

    def __init__(self) -> None:
        self._events: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._reaped: Counter[str] = Counter(dict.fromkeys(_REAPED.values(), 0))
        self._prepares = Histogram(BOUNDS)

    def count(self, event: Event) -> None:
        """Count an event. Any plugin may report one, called what it likes."""
        _add(self._events, str(event.name))
        if event.name == _REFUSED:
            _add(self._refused, str(event.facts.get("reason", "")))
        elif event.name in _REAPED:
            self._reaped[_REAPED[event.name]] += 1
        elif event.name == _PREPARED:
            self._observe(event.facts.get("seconds", ""))

    def _observe(self, seconds: str) -> None:
        try:
            found = float(seconds)
        except (ValueError, TypeError):
            return
        if 0 <= found < math.inf:  # no number at all would spoil the sum for ever
            self._prepares.observe(found)

    def families(self) -> Iterator[Family]:
        """Yield what was counted."""
        yield Family(
            "hardpoint_prepare_duration_seconds",
            "histogram",
            "How long claims and allocations took from their turn to their answer, those that "
            "were held anew.",
            tuple(self._prepares.samples({})),
        )
        yield _counter(
            "hardpoint_claims_refused_total",
            "Claims and allocations refused.",
            "reason",
            self._refused,
        )
        yield _counter(
            "hardpoint_pods_reaped_total",
            "What the reaper did to pods that had what they must not have.",
            "what",
            self._reaped,
        )
        yield _counter("hardpoint_events_total", "Events of the agent.", "event", self._events)


def _add(counts: Counter[str], word: str) -> None:
    """Count a word, but not ever more of them: each is a time series of whoever scrapes."""
    counts[word if word in counts or len(counts) < _MOST_WORDS else "other"] += 1


def _counter(name: str, help_: str, label: str, counts: Counter[str]) -> Family:
    samples = tuple(Sample(count, {label: value}) for value, count in sorted(counts.items()))
    return Family(name, "counter", help_, samples)
