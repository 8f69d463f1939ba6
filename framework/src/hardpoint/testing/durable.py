"""Whether what is durable survives: a run that is killed, failed or cut off at each of its steps.

Write down a run, what it leaves behind and what must be true of that; ``walk`` finds every step at
which the run changes something that lasts, and replays it once for each, with a fault there:

    class Saves(DurableRun):
        def work(self, root):                    # in a process of its own
            save(root / "state", "blue")
            told(root, "saved", "blue")          # somebody knows it now

        def look(self, root):                    # in another, after the fault
            for _, colour in heard(root):
                assert load(root / "state") == colour

    def test_what_was_answered_is_kept(tmp_path):
        walked = walk(Saves, tmp_path, Kill())
        assert not walked.problems

Steps are system calls, of every thread and library: opening for writing, write, truncate, fsync,
rename, link, unlink, mkdir, chmod below ``watch``, and what is sent on a unix socket bound there.
Writing through ``mmap`` and io_uring is not seen. Linux 5.5 or newer; no root.
"""

from __future__ import annotations

import errno
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOLD, MENDED, RESUME = "told", "mended", "resume"

_GROWS = frozenset({"open", "write", "sync", "mkdir", "rename", "link", "truncate"})
_CHANGES = frozenset({*_GROWS, "unlink", "rmdir", "chmod"})
_OPENS = frozenset({"open", "opendir"})
_CONCERNS = {
    errno.ENOSPC: _GROWS,
    errno.EDQUOT: _GROWS,
    errno.EROFS: _CHANGES,
    errno.EIO: _CHANGES | _OPENS,
    errno.EMFILE: _OPENS,
    errno.ENFILE: _OPENS,
}


@dataclass(frozen=True, slots=True)
class Step:
    """A call that changes something that lasts, or tells somebody."""

    number: int
    call: str
    """``open`` for writing, ``opendir``, ``write``, ``truncate``, ``sync``, ``rename``, ``link``,
    ``unlink``, ``mkdir``, ``rmdir``, ``chmod``, or ``reply`` for what is sent on a socket or
    ``told``."""
    path: str
    """Relative to the run's directory."""

    def __str__(self) -> str:
        return f"{self.number} {self.call} {self.path}"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at a step."""

    def concerns(self, step: Step) -> bool:
        """Say whether it can happen at such a step."""
        return True


@dataclass(frozen=True, slots=True)
class Kill(Fault):
    """The process is killed just before the step."""


@dataclass(frozen=True, slots=True)
class Reboot(Fault):
    """The process is killed, and ``reboot`` of the run loses what a boot loses.

    With ``lost``, so is everything below ``watch`` that was not flushed: file and directory. It
    happens once more after the last step.
    """

    lost: bool = True


@dataclass(frozen=True, slots=True)
class Fail(Fault):
    """The call fails with an error number and does not happen.

    With ``lasts``, so does every later call that can, until the run calls ``mended``.
    """

    error: int = errno.EIO
    lasts: bool = False

    def concerns(self, step: Step) -> bool:
        """Say whether the call can fail like that."""
        return step.call in _CONCERNS.get(self.error, _CHANGES)

    def __str__(self) -> str:
        return f"{errno.errorcode[self.error]}{' for a while' if self.lasts else ''}"


@dataclass(frozen=True, slots=True)
class Overlap(Fault):
    """The process is stopped (SIGSTOP) while ``beside`` runs in another, and then goes on."""


class DurableRun:
    """A run to be walked. Every method is called in a process of its own.

    An exception in any of them is a problem of the round, and so is a ``work`` that ends with one
    though nothing killed it.
    """

    watch: tuple[str, ...] = ("",)
    """Directories, below the run's own, in which changes are steps."""
    patience: float = 30.0
    """Seconds that each part may take."""
    restarts: int = 0
    """How often ``work`` is started again where it exits because of a fault (``sys.exit``, or a
    program that was executed), as whoever runs a service does; an exception is a problem."""

    def begin(self, root: Path) -> None:
        """Lay the ground; nothing fails yet."""

    def work(self, root: Path) -> None:
        """Do what is walked. For a service that serves until SIGTERM, write ``world`` too."""
        raise TypeError(f"{type(self).__name__} has no work that could be walked")

    def world(self, root: Path) -> None:
        """Be who uses the service, for as long as the round lasts, faults and restarts included.

        Where it is written, ``work`` is started again after a kill, and ended when this has ended.
        """

    def beside(self, root: Path) -> None:
        """Be another process beside the one that is stopped, for ``Overlap``.

        The other goes on when this ends, or once this has called ``resume``.
        """

    def reboot(self, root: Path) -> None:
        """Lose what a boot loses: empty what stands for ``/run``, take another boot id."""

    def look(self, root: Path) -> None:
        """Start again and raise if anything is not as it must be."""


def told(root: Path, *words: Any) -> None:
    """Write down, for ``heard``, what somebody outside knows from now on: an answer was given.

    It is a step, and survives every fault.
    """
    with (root / TOLD).open("ab", buffering=0) as file:
        file.write(json.dumps(words).encode() + b"\n")


def heard(root: Path) -> list[list[Any]]:
    """Return what was told, in order."""
    return [json.loads(line) for line in (root / TOLD).read_bytes().splitlines()]


def mended(root: Path) -> None:
    """End a failure that lasts: there is room on the disk again."""
    (root / MENDED).open("w").close()  # opened for writing each time: that is what is seen


def resume(root: Path) -> None:
    """In ``beside``: let the process that was stopped go on, and go on oneself."""
    (root / RESUME).touch()


@dataclass(frozen=True, slots=True)
class Walked:
    """What a walk found."""

    steps: tuple[Step, ...]
    """Every step of a round without a fault."""
    rounds: int
    """How many rounds had the fault."""
    restarts: Mapping[str, int]
    """Steps at which the fault ended the run by itself, so that it was started again."""
    problems: tuple[str, ...]
    """What went wrong, with the step; the directory of such a round is kept."""


def unsupported() -> str:
    """Return why no run can be walked on this machine, in a sentence; empty where it can."""
    from hardpoint.testing._seccomp import unsupported as reason

    return reason()


def walk(
    run: type[DurableRun], directory: Path, fault: Fault, *, sample: int | None = None
) -> Walked:
    """Replay a run with a fault at each step; with ``sample``, at so many of them.

    A sample is the same every time: each sort of step once, and the rest evenly from begin to end.
    """
    order = {
        "path": sys.path,
        "file": inspect.getsourcefile(run),
        "name": run.__qualname__,
        "directory": str(directory.resolve()),
        "fault": [type(fault).__name__, _fields(fault)],
        "sample": sample,
    }
    done = subprocess.run(
        [sys.executable, "-m", "hardpoint.testing._walker"],
        input=json.dumps(order),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return Walked(
        steps=tuple(Step(*step) for step in found["steps"]),
        rounds=found["rounds"],
        restarts=found["restarts"],
        problems=tuple(found["problems"]),
    )


def _fields(fault: Fault) -> dict[str, Any]:
    return {name: getattr(fault, name) for name in type(fault).__dataclass_fields__}
