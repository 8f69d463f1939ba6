"""Work that gRPC handlers hand over to the frontend's own task group.

gRPC runs each handler on a task of its own and cancels it when the kubelet hangs up. What a handler
asked for must go on then, as a driver may be half way through changing hardware; and no cancel
scope of ours may reach into gRPC's tasks. So a handler sends its work through a memory stream and
waits, for as long as it likes, for the answer.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio

from hardpoint.errors import TryAgain

_T = TypeVar("_T")

_STOPPING = "the agent is stopping; try again"


@dataclass(eq=False, slots=True)
class _Job:
    work: Callable[[], Awaitable[Any]]
    done: anyio.Event = field(default_factory=anyio.Event)
    answer: Any = None
    error: Exception | None = None

    async def run(self) -> None:
        try:
            self.answer = await self.work()
        except Exception as error:  # noqa: BLE001 -- it is the waiting handler's to answer
            self.error = error
        except BaseException:
            self.error = TryAgain(_STOPPING)
            raise
        finally:
            self.done.set()


class Workshop:
    """Runs jobs side by side, from ``run`` until that is cancelled; then never again."""

    def __init__(self) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[_Job](math.inf)

    async def run(self) -> None:
        """Take jobs for ever."""
        try:
            async with anyio.create_task_group() as tasks:
                async for job in self._receive:
                    tasks.start_soon(job.run)
        finally:
            self._close()

    def _close(self) -> None:
        """Take no more jobs, and answer those that were not begun."""
        self._send.close()
        with suppress(anyio.EndOfStream):
            while True:
                job = self._receive.receive_nowait()
                job.error = TryAgain(_STOPPING)
                job.done.set()
        self._receive.close()

    async def do(self, work: Callable[[], Awaitable[_T]], within: float) -> _T:
        """Have work done and return its answer, or raise its error.

        ``TimeoutError`` after ``within`` seconds ends the waiting, not the work. ``TryAgain`` if
        nobody works any more.
        """
        job = _Job(work)
        try:
            self._send.send_nowait(job)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            raise TryAgain(_STOPPING) from error
        with anyio.fail_after(within):
            await job.done.wait()
        if job.error is not None:
            raise job.error
        return job.answer  # type: ignore[no-any-return]
