"""One round of a walk: a process with its calls held, a fault at one of them, and what follows."""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hardpoint.testing import _seccomp
from hardpoint.testing._calls import Change, change_of
from hardpoint.testing._disk import Disk
from hardpoint.testing.durable import (
    MENDED,
    RESUME,
    TOLD,
    DurableRun,
    Fail,
    Fault,
    Overlap,
    Reboot,
    Step,
)

_DIE_WITH_PARENT = 1
_EXCEPTION = 70
"""The exit status of a function that raised: ``EX_SOFTWARE`` of sysexits.h."""
_TICK = 0.02


class Failed(Exception):
    """What went wrong in a round, for the one who reads the report."""


class Child:
    """A function in a process of its own; with ``held``, its calls wait for us."""

    def __init__(self, name: str, function: Callable[[], None], *, held: bool = False) -> None:
        self.name, self.status = name, -1
        self.listener = -1
        reading, writing = os.pipe()
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            os.close(reading)
            ours.close()
            _live(function, writing, theirs if held else None)
        os.close(writing)
        theirs.close()
        self._message, self.said = reading, ""
        self.ended = os.pidfd_open(self.pid)
        with ours:
            if held:
                self.listener = _seccomp.listener(ours)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.status < 0:
            signal.pidfd_send_signal(self.ended, number)

    def reap(self) -> str:
        """Wait for its end; return what it said of a failure."""
        if self.status < 0:
            self.status = os.waitpid(self.pid, 0)[1]
            with open(self._message, "rb") as pipe:
                self.said = pipe.read().decode("utf-8", "replace")
            os.close(self.ended)
            if self.listener >= 0:
                os.close(self.listener)
        return self.said

    def kill(self) -> None:
        """End it at once."""
        self.signal(signal.SIGKILL)
        self.reap()

    def check(self) -> None:
        """Raise ``Failed`` unless it ended well."""
        said = self.reap()
        if self.status:
            raise Failed(f"{self.name} ended with {self.status}: {said}")


def _live(function: Callable[[], None], writing: int, channel: socket.socket | None) -> None:
    """Be the child, to its end."""
    status = _EXCEPTION
    try:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if channel is not None:
            _seccomp.hold_calls(channel)
        function()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:  # noqa: BLE001 - told to the parent
        os.write(writing, traceback.format_exc()[-4000:].encode())
    finally:
        os._exit(status)


@dataclass(slots=True)
class Round:
    """A run with a fault at its ``at``-th step; ``at`` 0 has none and lists the steps."""

    run: DurableRun
    root: Path
    fault: Fault
    at: int
    steps: list[Step] = field(default_factory=list)
    reached: Step | None = None
    restarts: int = 0
    _failing: bool = False
    _disk: Disk | None = None
    _actor: Child | None = None
    _others: list[Child] = field(default_factory=list)
    _waiting: list[tuple[Child, _seccomp.Held]] = field(default_factory=list)

    def play(self) -> None:
        """Go through it. Raises ``Failed``."""
        self.root.mkdir(parents=True)
        (self.root / TOLD).touch()
        try:
            self._alone("begin", self.run.begin)
            self._play()
            self._cut_at_the_end()
            self._end_beside()
            self._alone("look", self.run.look)
        finally:
            for child in (self._actor, *self._others):
                if child is not None:
                    child.kill()
        shutil.rmtree(self.root)

    def _alone(self, name: str, work: Callable[[Path], None]) -> None:
        child = Child(name, lambda: work(self.root))
        self._supervise(until=(child,))
        child.check()

    def _play(self) -> None:
        if isinstance(self.fault, Reboot) and self.fault.lost:
            self._disk = Disk(*self._watched())
        self._actor = self._act(held=True)
        if self._has("world"):
            world = self._other("world", self.run.world)
            self._to_the_end_of(world)
            self._actor.signal(signal.SIGTERM)
            self._supervise(until=(self._actor,))
            return
        while True:
            self._supervise(until=(self._actor,))
            self._actor.reap()
            if self.reached and not isinstance(self.fault, Fail | Overlap):
                return
            if not self._actor.status or not self._may_restart():
                break
        self._actor.check()

    def _to_the_end_of(self, world: Child) -> None:
        """Keep the actor alive, as whoever runs it does, until the world around it has ended."""
        assert self._actor is not None
        while world.status < 0:
            over = self._supervise(until=(world, self._actor))
            if over is world:
                world.check()
            elif not self._ended_well() and not self._may_restart():
                self._actor.check()
                raise Failed(f"the run ended before the world around it: {self._actor.said}")

    def _ended_well(self) -> bool:
        """Start the actor again if the world has ended it, as a rolling update does."""
        assert self._actor is not None
        self._actor.reap()
        if self._actor.status:
            return False
        self._actor = self._act(held=True)
        return True

    def _may_restart(self) -> bool:
        """Start the actor again where the fault has ended it; say whether it was."""
        assert self._actor is not None
        self._actor.reap()
        most = self.run.restarts + (not isinstance(self.fault, Fail | Overlap))
        raised = os.waitstatus_to_exitcode(self._actor.status) == _EXCEPTION
        if raised or self.reached is None or self.restarts >= most:
            return False
        self.restarts += 1
        self._failing = False
        self._actor = self._act(held=True)
        return True

    def _act(self, *, held: bool) -> Child:
        return Child("work", lambda: self.run.work(self.root), held=held)

    def _other(self, name: str, work: Callable[[Path], None]) -> Child:
        child = Child(name, lambda: work(self.root))
        self._others.append(child)
        return child

    def _has(self, name: str) -> bool:
        return getattr(type(self.run), name) is not getattr(DurableRun, name)

    def _end_beside(self) -> None:
        """Let what was started beside it end too; where nothing was stopped, it runs now."""
        if isinstance(self.fault, Overlap):
            beside = self._others[-1] if self.reached else self._other("beside", self.run.beside)
            self._supervise(until=(beside,))
            beside.check()

    # -- supervising ------------------------------------------------------------------------------

    def _supervise(self, until: Iterable[Child]) -> Child:
        """Decide on calls until one of these has ended; return which. Raises ``Failed``."""
        awaited = tuple(until)
        deadline = time.monotonic() + self.run.patience
        while True:
            for child in awaited:
                if child.status >= 0:
                    return child
            events = self._poll(awaited)
            for child in awaited:
                if child.ended in events:
                    self._drain(events)
                    return child
            self._drain(events)
            if time.monotonic() > deadline:
                names = ", ".join(child.name for child in awaited)
                raise Failed(f"{names} did not end within {self.run.patience:g} s")

    def _poll(self, awaited: tuple[Child, ...]) -> set[int]:
        poll = select.poll()
        for child in awaited:
            poll.register(child.ended, select.POLLIN)
        actor = self._actor
        if actor is not None and actor.status < 0 and actor.listener >= 0:
            poll.register(actor.listener, select.POLLIN)
        ready = poll.poll(1000 * _TICK)
        return {number for number, event in ready if event & select.POLLIN}

    def _drain(self, events: set[int]) -> None:
        actor = self._actor
        if actor is None or actor.status >= 0 or actor.listener not in events:
            return
        held = _seccomp.receive(actor.listener)
        if held is not None:
            self._decide(actor, held)

    def _decide(self, actor: Child, held: _seccomp.Held) -> None:
        change = change_of(held)
        step = None if change is None else self._step(change)
        if change is None or step is None:
            self._let(actor, held, change)
            return
        due = self.at > 0 and self.reached is None and step.number >= self.at
        if due and self.fault.concerns(step):
            self.reached = step
            self._strike(actor, held)
        elif self._failing and self.fault.concerns(step):
            _seccomp.answer(actor.listener, held, _errno(self.fault))
        else:
            self._let(actor, held, change)

    def _let(self, actor: Child, held: _seccomp.Held, change: Change | None) -> None:
        if self._disk is not None and change is not None and change.call != "reply":
            self._disk.before(change)
        _seccomp.answer(actor.listener, held)

    def _step(self, change: Change) -> Step | None:
        """Return the step that a change is; None for one that is not watched."""
        if change.path == str(self.root / MENDED):
            self._failing = False
            return None
        if change.path == str(self.root / TOLD):
            if change.call != "write":
                return None
            change = Change("reply", change.path)
        elif not any(Path(change.path).is_relative_to(where) for where in self._watched()):
            return None
        name = os.path.relpath(change.path, self.root)
        step = Step(len(self.steps) + 1, change.call, name)
        self.steps.append(step)
        return step

    def _watched(self) -> tuple[Path, ...]:
        return tuple(self.root / name for name in self.run.watch)

    # -- faults -----------------------------------------------------------------------------------

    def _strike(self, actor: Child, held: _seccomp.Held) -> None:
        if isinstance(self.fault, Fail):
            self._failing = self.fault.lasts
            _seccomp.answer(actor.listener, held, _errno(self.fault))
            return
        if isinstance(self.fault, Overlap):
            self._overlap(actor, held)
            return
        actor.kill()
        if isinstance(self.fault, Reboot):
            self._reboot()

    def _reboot(self) -> None:
        if self._disk is not None:
            self._disk.cut()
            self._disk = None
        self._alone("reboot", self.run.reboot)

    def _cut_at_the_end(self) -> None:
        """Reboot after the last step, where the round got that far."""
        if self.at and self.reached is None and isinstance(self.fault, Reboot):
            self.reached = Step(len(self.steps) + 1, "end", "")
            self._reboot()

    def _overlap(self, actor: Child, held: _seccomp.Held) -> None:
        """Stop it as it is, let another work beside it, and let it go on."""
        actor.signal(signal.SIGSTOP)
        beside = self._other("beside", self.run.beside)
        deadline = time.monotonic() + self.run.patience
        poll = select.poll()
        poll.register(beside.ended, select.POLLIN)
        while not poll.poll(1000 * _TICK) and not (self.root / RESUME).exists():
            if time.monotonic() > deadline:
                raise Failed(f"beside did not go on within {self.run.patience:g} s")
        actor.signal(signal.SIGCONT)
        _seccomp.answer(actor.listener, held)


def _errno(fault: Fault) -> int:
    return fault.error if isinstance(fault, Fail) else 0
