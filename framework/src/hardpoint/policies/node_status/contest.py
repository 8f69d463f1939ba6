"""Whether what is said of the Node stays said, or somebody changes it back again and again."""

from __future__ import annotations

from collections.abc import Callable

_OFTEN, _WITHIN = 4, 3600.0
"""Writes of the very same content in so many seconds: once somebody has erred, and a Node that is
made anew is told all of it."""


class Contest:
    """Counts how often the same had to be written.

    A webhook of the cluster may store it otherwise, another controller may change it back, and a
    second agent of this node, with a state directory of its own, says other things by our name.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._content: object = None
        self._times: list[float] = []

    def wrote(self, content: object) -> None:
        """Count a write."""
        if content != self._content:
            self._content, self._times = content, []
        self._times = [*self._times, self._clock()][-_OFTEN:]

    @property
    def lasts(self) -> bool:
        """Whether it goes on."""
        return len(self._times) == _OFTEN and self._clock() - self._times[0] < _WITHIN
