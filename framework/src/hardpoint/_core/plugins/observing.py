"""Telling plugins of events: every one, in order, whatever the others do with theirs."""

from __future__ import annotations

from collections import deque

import anyio

from hardpoint._core.plugins.relay import Relay
from hardpoint.errors import HardpointError, HookLate
from hardpoint.model import Event

HOOK = "observe"
MOST_WAITING = 1000
"""Events kept for an observer that is slow; then the oldest are dropped, and that is said."""


class Observers:
    """Hands each event to each observer; one that hangs or fails misses its own events only."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._waiting = {plugin: deque[Event]() for plugin in relay.implementations(HOOK)}
        self._news = {plugin: anyio.Event() for plugin in self._waiting}

    def tell(self, event: Event) -> None:
        """Have it observed soon; from the event loop."""
        for plugin, waiting in self._waiting.items():
            waiting.append(event)
            if len(waiting) > MOST_WAITING:
                waiting.popleft()
                what = f"it is too slow: more than {MOST_WAITING} events wait"
                self._relay.board.record(f"{plugin} {HOOK} queue", what, cost="older ones are lost")
            self._news[plugin].set()

    async def run(self) -> None:
        """Deliver, for ever."""
        async with anyio.create_task_group() as tasks:
            for plugin in self._waiting:
                tasks.start_soon(self._serve, plugin)

    async def _serve(self, plugin: str) -> None:
        waiting = self._waiting[plugin]
        while True:
            await self._news[plugin].wait()
            self._news[plugin] = anyio.Event()
            while waiting:
                await self._observe(plugin, waiting.popleft())
            self._relay.board.clear(f"{plugin} {HOOK} queue")

    async def _observe(self, plugin: str, event: Event) -> None:
        while True:
            try:
                await self._relay.plugin(HOOK, plugin, event=event)
            except HookLate:
                continue  # asking again joins the call that still runs: events keep their order
            except HardpointError:
                return  # it is on the fault board
            return
