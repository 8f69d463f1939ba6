"""Who may act: one call at a time for a claim, and one agent of two that writes.

Calls for one claim run in the order in which they arrived. Two agents overlap in a rolling update,
so a claim's lock is also a byte of a file, locked through an open file description
(``F_OFD_SETLK``, fcntl(2)): the kernel gives it back when the process dies.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import anyio

from hardpoint._core.state import open_private
from hardpoint.errors import HoldBusy, HoldOvertaken

_AGAIN = 0.02
_STANDBY = 0.5


@dataclass(slots=True)
class _Queue:
    """Who waits for one claim. ``ends`` counts the unprepares that have arrived, by driver."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    users: int = 0
    ends: dict[str, int] = field(default_factory=dict)


class Turn:
    """A call's turn with its claim."""

    def __init__(self, queue: _Queue, claim: str, dra_driver: str) -> None:
        self._queue, self._claim, self._driver = queue, claim, dra_driver
        self._seen = queue.ends.get(dra_driver, 0)
        self.kept = False

    def check(self) -> None:
        """Raise ``HoldOvertaken`` if an unprepare for the claim has arrived since this call did."""
        if self._queue.ends.get(self._driver, 0) != self._seen:
            raise HoldOvertaken(self._claim)

    def keep(self) -> None:
        """Keep other agents off the claim after this turn: a call into its driver still runs."""
        self.kept = True


class ClaimLocks:
    """The turns of all claims, by UID. ``patience`` is how long a call waits, in seconds.

    The kubelet gives up after 45 s, and a call that waits longer only answers nobody.
    """

    def __init__(self, path: Path, patience: float = 35.0) -> None:
        self.patience = patience
        self._file = open_private(path)
        self._queues: dict[str, _Queue] = {}
        self._kept: set[str] = set()

    def close(self) -> None:
        """Give every lock back."""
        os.close(self._file)

    @asynccontextmanager
    async def turn(
        self,
        uid: str,
        claim: str,
        dra_driver: str = "",
        *,
        ends: bool = False,
        patience: float | None = None,
    ) -> AsyncIterator[Turn]:
        """Wait for a claim's turn. ``ends`` marks an unprepare: prepares before it are overtaken.

        Raises ``HoldBusy`` when the turn does not come in time.
        """
        queue = self._queues.setdefault(uid, _Queue())
        queue.users += 1
        if ends:
            queue.ends[dra_driver] = queue.ends.get(dra_driver, 0) + 1
        turn = Turn(queue, claim, dra_driver)
        try:
            await self._acquire(queue, uid, claim, self.patience if patience is None else patience)
            try:
                yield turn
            finally:
                self._release(queue, uid, keep=turn.kept)
        finally:
            queue.users -= 1
            if not queue.users:
                self._queues.pop(uid, None)

    def kept(self) -> tuple[str, ...]:
        """Return the UIDs of claims that stay locked against other agents."""
        return tuple(sorted(self._kept))

    async def _acquire(self, queue: _Queue, uid: str, claim: str, patience: float) -> None:
        with anyio.move_on_after(patience) as scope:
            await queue.lock.acquire()
        if scope.cancelled_caught:
            raise HoldBusy(claim, "an earlier call")
        locked = False
        try:
            with anyio.move_on_after(patience):
                while not (locked := self._lock(uid, fcntl.F_WRLCK)):  # noqa: ASYNC110 - a process cannot set our Event
                    await anyio.sleep(_AGAIN)
        finally:
            if not locked:
                queue.lock.release()
        if not locked:
            raise HoldBusy(claim, "another agent's call")

    def _release(self, queue: _Queue, uid: str, *, keep: bool) -> None:
        if keep:
            self._kept.add(uid)
        else:
            self._kept.discard(uid)
            self._lock(uid, fcntl.F_UNLCK)
        queue.lock.release()

    def _lock(self, uid: str, how: int) -> bool:
        offset = int.from_bytes(blake2b(uid.encode(), digest_size=7).digest(), "big")
        request = struct.pack("hhqqi", how, os.SEEK_SET, offset, 1, 0)
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, request)
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, fcntl(2)
            return False
        return True


class WriterLock:
    """Which of two agents writes slices and lists, refreshes and releases: who has this file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def writing(self) -> bool:
        """Say whether this process writes; take over where nobody does."""
        if self._file is not None:
            return True
        descriptor = open_private(self._path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._file = descriptor
        return True

    async def until_writing(self) -> None:
        """Wait until this process is the one that writes."""
        while not self.writing():  # noqa: ASYNC110 - another process cannot set our Event
            await anyio.sleep(_STANDBY)

    def close(self) -> None:
        """Let another agent write."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
