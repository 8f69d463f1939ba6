"""Telling the event loop something from any thread, without ever waiting for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import anyio.lowlevel

_log = logging.getLogger("hardpoint.agent")


class Signal:
    """Has something done on the loop that it was made on; calls in a burst count as one.

    A thread that waited for the loop could wait for ever: the loop may be waiting for that thread,
    as a driver's ``async def prepare_device`` does that remembers something in the ledger.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self._loop = cast("Any", anyio.lowlevel.current_token().native_token)
        self._act = act
        self._due = False

    def __call__(self) -> None:
        """Have it done soon."""
        if self._due:
            return
        self._due = True
        try:
            self._loop.call_soon_threadsafe(self._do)
        except RuntimeError:  # the loop is closed
            _log.debug("the agent has ended")

    def _do(self) -> None:
        self._due = False
        self._act()
