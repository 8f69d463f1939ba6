"""Group commit: one thread writes the ledger, and whatever waits shares one transaction.

A commit costs the disk's own flush, so 64 claims that are prepared at once must not pay for it one
after the other. Each piece of work stands in a savepoint: one that is refused (a part is held)
costs only itself. Where the transaction itself fails, each is tried alone.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import anyio
import anyio.lowlevel

from hardpoint.errors import LedgerError, LedgerUnwritable

_T = TypeVar("_T")

_log = logging.getLogger("hardpoint.ledger")

_TOGETHER = 256
_IDLE = 2.0


class _Job(Generic[_T]):
    __slots__ = ("error", "finished", "outcome", "wake", "work")

    def __init__(self, work: Callable[[sqlite3.Connection], _T]) -> None:
        self.work = work
        self.outcome: _T | None = None
        self.error: BaseException | None = None
        self.finished = threading.Event()
        self.wake: Callable[[], None] | None = None

    def finish(self) -> None:
        self.finished.set()
        if self.wake is not None:
            self.wake()

    def answer(self) -> _T:
        if self.error is not None:
            raise self.error
        return cast("_T", self.outcome)


class Committer:
    """Runs work in transactions of a thread of its own.

    ``connect`` opens a connection, ``told`` makes SQLite's errors ours, and ``committed`` is called
    in the thread after each commit, and about every two seconds while nothing happens. ``check`` is
    called before each, and raises where nothing may be written.
    """

    def __init__(
        self,
        path: str,
        connect: Callable[[], sqlite3.Connection],
        told: Callable[[sqlite3.Error], LedgerError],
        committed: Callable[[], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._path, self._connect, self._told, self._committed = path, connect, told, committed
        self._check = check
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._connection: sqlite3.Connection | None = connect()
        self._gate = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="hardpoint-ledger", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Do work in a transaction; durable when this returns.

        Not cancellable: what was written must never be unknown to the one who wrote it.
        """
        job, done = _Job(work), anyio.Event()
        loop = cast("Any", anyio.lowlevel.current_token().native_token)

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

        job.wake = wake
        self._put(job)
        with anyio.CancelScope(shield=True):
            await done.wait()
        return job.answer()

    def run_blocking(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Do work in a transaction, from a worker thread; durable when this returns."""
        job = _Job(work)
        self._put(job)
        job.finished.wait()
        return job.answer()

    def close(self) -> None:
        """Finish what waits and end the thread."""
        with self._gate:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(None)
        self._thread.join()

    def _put(self, job: _Job[Any]) -> None:
        with self._gate:
            if self._closed:
                raise LedgerUnwritable(self._path, "the agent is ending")
            self._jobs.put(job)

    # -- in the thread ----------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            batch, last = self._next()
            if batch:
                self._commit(batch)
                for job in batch:
                    job.finish()
            else:
                self._after()
            if last:
                break
        if self._connection is not None:
            self._connection.close()

    def _next(self) -> tuple[list[_Job[Any]], bool]:
        """Return all work that waits, and whether it is the last."""
        batch: list[_Job[Any]] = []
        try:
            job = self._jobs.get(timeout=_IDLE)
            while job is not None and len(batch) < _TOGETHER:
                batch.append(job)
                job = self._jobs.get_nowait()
            if job is not None:
                self._jobs.put(job)
                return batch, False
        except queue.Empty:
            return batch, False
        return batch, True

    def _commit(self, batch: list[_Job[Any]]) -> None:
        try:
            self._together(batch)
        except Exception as error:  # noqa: BLE001 - a thread that ended would answer nobody
            self._heal(error)
            if len(batch) > 1:
                for job in batch:
                    self._commit([job])
                return
            batch[0].error = self._told(error) if isinstance(error, sqlite3.Error) else error
            return
        self._after()

    def _together(self, batch: list[_Job[Any]]) -> None:
        self._check()
        connection = self._connection = self._connection or self._connect()
        connection.execute("BEGIN IMMEDIATE")
        for job in batch:
            job.outcome = job.error = None
            connection.execute("SAVEPOINT job")
            try:
                job.outcome = job.work(connection)
            except (sqlite3.OperationalError, sqlite3.InternalError):
                raise  # the disk or the file, not this piece of work
            except Exception as error:
                if type(error) is sqlite3.DatabaseError or not connection.in_transaction:
                    raise
                job.error = self._told(error) if isinstance(error, sqlite3.Error) else error
                connection.execute("ROLLBACK TO job")
            connection.execute("RELEASE job")
        connection.execute("COMMIT")

    def _heal(self, error: Exception) -> None:
        """End a transaction that failed; a connection that cannot is replaced.

        So is one that only reads: SQLite opens a file like that where opening it to write failed,
        once, and stays so when the disk is well again.
        """
        if self._connection is None:
            return
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            lasts = _name(error).startswith("SQLITE_READONLY")
        except sqlite3.Error:
            lasts = True
        if lasts:
            self._connection.close()
            self._connection = None

    def _after(self) -> None:
        try:
            self._check()
            self._committed()
        except Exception as error:  # noqa: BLE001
            _log.debug("the ledger was not read again why=%s", type(error).__name__)
            return  # what is shown is older than what is true; the next commit shows it


def _name(error: Exception) -> str:
    return getattr(error, "sqlite_errorname", None) or ""
