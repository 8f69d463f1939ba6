"""Notices that the event loop stands still, and says in whose code.

An ``async def`` of a plugin that blocks stops everything: no call of the kubelet is answered, and
nothing that runs on the loop could say why. So a thread asks the loop for a sign of life.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from functools import partial
from types import FrameType
from typing import Any, cast

import anyio.lowlevel

from hardpoint._core.plugins.faults import FaultBoard

_log = logging.getLogger("hardpoint.agent")

SOURCE = "event loop"
_FORGIVEN = 600.0
_WAITING = {"select", "poll"}
"""Functions in which an idle loop waits: then it was the whole process that stood still."""


class LoopWatch:
    """Watches the loop it is made on, between ``start`` and ``stop``."""

    def __init__(self, board: FaultBoard, *, every: float = 1.0, patience: float = 2.0) -> None:
        self._board, self._every, self._patience = board, every, patience
        self._loop = cast("Any", anyio.lowlevel.current_token().native_token)
        self._thread = threading.get_ident()
        self._over = threading.Event()
        self._last: float | None = None

    def start(self) -> None:
        """Watch, in a thread."""
        threading.Thread(target=self._watch, name="hardpoint-watch", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            alive, asked = threading.Event(), time.monotonic()
            if not self._call(alive.set):
                return
            if alive.wait(self._patience):
                self._forgive()
                continue
            where = self._where()
            if where:
                _log.warning("the event loop stands still where=%r", where)
            while not alive.wait(self._every):
                if self._over.is_set():
                    return
            if where:
                self._last = time.monotonic()
                self._call(partial(self._say, where, self._last - asked))

    def _forgive(self) -> None:
        if self._last is not None and time.monotonic() - self._last > _FORGIVEN:
            self._last = None
            self._call(partial(self._board.clear, SOURCE))

    def _call(self, act: Any) -> bool:
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _where(self) -> str:
        """Return the innermost frames of the loop's thread; empty if it waits for something."""
        frame: FrameType | None = sys._current_frames().get(self._thread)
        if frame is None or frame.f_code.co_name in _WAITING:
            return ""
        found: list[str] = []
        while frame is not None and len(found) < 3:
            code = frame.f_code
            found.append(f"{code.co_filename}:{frame.f_lineno} {code.co_name}")
            frame = frame.f_back
        return " < ".join(found)

    def _say(self, where: str, seconds: float) -> None:
        what = f"it stood still for {seconds:.0f} s in {where}"
        self._board.record(SOURCE, what, cost="nothing was answered meanwhile")
