"""Steps that are done again until they succeed, each with its own delays and its own failure."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from hardpoint.errors import HardpointError, KubeDenied
from hardpoint.kube import Backoff
from hardpoint.policies._own_node import Faults

if TYPE_CHECKING:
    from hardpoint.agent import Agent

_log = logging.getLogger("hardpoint.drain")

NEVER, AT_ONCE = math.inf, 0.0
"""What a step returns that is done for good, or is to be done whenever it is asked for."""


class Steps:
    """What there is to do, by name; a failure is on the fault board until it works."""

    def __init__(
        self, agent: Agent, source: str, *, first: float, clock: Callable[[], float]
    ) -> None:
        self._faults, self._source, self._first, self._clock = Faults(agent), source, first, clock
        self._due: dict[str, float] = {}
        self._waits: dict[tuple[str, bool], Backoff] = {}

    def again(self) -> None:
        """Everything is due at once: something else is wanted now."""
        for name in self._due:
            self._faults.clear(self._of(name))
        self._due.clear()
        self._waits.clear()

    def wait(self, most: float) -> float:
        """Return for how many seconds to do nothing, ``most`` at most.

        Never for none: a step that is due may have to wait for another.
        """
        now = self._clock()
        return max(self._first, min([most, *(due - now for due in self._due.values())]))

    async def do(self, name: str, act: Callable[[], Awaitable[float]]) -> None:
        """Do a step if it is due; ``act`` returns after how many seconds it is again.

        What is forbidden is tried again slowly.
        """
        if self._due.get(name, 0.0) > self._clock():
            return
        try:
            seconds = await act()
        except HardpointError as error:
            denied = isinstance(error, KubeDenied)
            most = 300.0 if denied else 30.0
            wait = self._waits.setdefault((name, denied), Backoff(self._first, most))
            self._due[name] = self._clock() + wait.next()
            self._faults.say(self._of(name), str(error))
            _log.debug("step failed step=%s why=%r", name, str(error))
            return
        self._waits.pop((name, False), None)
        self._waits.pop((name, True), None)
        self._due.pop(name, None)
        if seconds > AT_ONCE:
            self._due[name] = self._clock() + seconds
        self._faults.clear(self._of(name))

    def _of(self, name: str) -> str:
        return f"{self._source}: {name}"
