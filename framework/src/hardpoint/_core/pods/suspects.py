"""What is known of a pod that has what it must not have: since when, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hardpoint._core.pods.holding import Overstay
from hardpoint.grants import Reaped, ReapResult

_MOST_SAID = 8
"""Reasons that one pod is spared for, each of them told: one with a time in it may never end."""


@dataclass(slots=True)
class Suspect:
    """A pod that has had something since a moment, and when something is done about it."""

    first: float
    since: float
    """The same moment, in seconds since 1970."""
    due: float
    attempt: int = 1
    _devices: frozenset[str] = frozenset()
    _allocations: frozenset[str] = frozenset()
    _uids: frozenset[str] = frozenset()
    _said: set[str] = field(default_factory=set)
    _gone: bool = False

    def is_another(self, overstay: Overstay) -> bool:
        """Say whether its name is another pod's by now, which has time of its own to let go.

        That one has other UIDs, where claims tell them, other devices, or has them of another
        allocation. A drain has none: by that a pod becomes no other one.
        """
        return (
            _other(self._uids, overstay.uids)
            or _other(self._devices, overstay.devices)
            or _other(self._allocations, _allocations(overstay))
        )

    def see(self, overstay: Overstay) -> None:
        """Note what it has."""
        self._devices = frozenset(overstay.devices)
        self._allocations = _allocations(overstay) or self._allocations
        self._uids = frozenset(overstay.uids) or self._uids

    def is_news(self, result: ReapResult) -> bool:
        """Say whether why it is not deleted is to be told: each reason once, and few of them."""
        word = result.what if result.what is Reaped.LATER else f"{result.what} {result.reason}"
        if word in self._said or len(self._said) == _MOST_SAID:
            return False
        self._said.add(word)
        return True

    def hinders(self, result: ReapResult) -> str:
        """Return what keeps it from being deleted, that somebody has to see to; else nothing."""
        again, self._gone = self._gone, result.what is Reaped.GONE
        if result.what is Reaped.LATER:
            return result.reason
        if self._gone and again:
            return f"{result.reason}, and the kubelet says that it still has its devices"
        return ""


def _allocations(overstay: Overstay) -> frozenset[str]:
    return frozenset(one.allocation for one in overstay.releases if one.allocation)


def _other(before: frozenset[str], now: Iterable[str]) -> bool:
    """Say whether nothing is left of what was known, where something is known now."""
    new = frozenset(now)
    return bool(before and new) and not before & new
