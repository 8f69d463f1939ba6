"""What the agent says of itself in the state directory, for commands that run beside it.

``status.json`` is written when something changed; ``running`` is locked, shared, by every agent.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hardpoint.errors import LedgerUnwritable

STATUS = "status.json"
LABELS = "node-labels.json"
RUNNING = "running"
_LEFT_BEHIND = 60.0
"""Seconds after which a file that is half written belongs to a process that was killed."""


def make_private(state: Path) -> None:
    """Make the state directory, for its owner alone; it is there after a power cut too.

    A claim that is answered would else be lost with the directory that its ledger is in. Raises
    ``LedgerUnwritable`` for one that is another user's.
    """
    made = [path for path in (state, *state.parents) if not path.exists()]
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(state)
    if state.stat().st_mode & 0o077:
        state.chmod(0o700)
    for path in dict.fromkeys((*made, state)):  # made by a process that was killed before this
        _flush_directory(path.parent)


def _check_owner(state: Path) -> None:
    owner = state.stat().st_uid
    if owner not in (0, os.geteuid()):
        what = f"it belongs to user {owner}, who could say who holds what: give it to root"
        raise LedgerUnwritable(str(state), what)


def open_private(path: Path) -> int:
    """Open a file to lock, made for its owner alone; a link that stands there is not followed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)


def _flush_directory(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # it is not ours: whoever made it sees to it
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def mark_running(state: Path) -> int:
    """Say that an agent runs here, until the process ends; return the descriptor that says so.

    What a killed one left half written is removed.
    """
    before = time.time() - _LEFT_BEHIND
    for name in (STATUS, LABELS):
        for left in state.glob(f".{name}.*"):
            with suppress(OSError):
                if left.lstat().st_mtime < before:
                    left.unlink()
    descriptor = open_private(state / RUNNING)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def agent_runs(state: Path) -> bool:
    """Say whether an agent runs with this state directory.

    Raises ``PermissionError`` for a user who may not see it: that none is seen says nothing then.
    """
    try:
        descriptor = os.open(state / RUNNING, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        raise
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def write_status(state: Path, status: dict[str, Any]) -> None:
    """Replace the status file; readers see the old or the new one, never half of it."""
    _replace(state / STATUS, status, durable=False)


def read_status(state: Path) -> dict[str, Any]:
    """Return what the agent last said; empty if it never did, or it cannot be read."""
    status = _read(state / STATUS)
    return status if isinstance(status, dict) else {}


def keep_labels(state: Path, labels: dict[str, str]) -> None:
    """Keep the node's labels for when nobody can be asked; what is the same is not written.

    Raises ``OSError`` with the ones kept before left as they were.
    """
    if kept_labels(state) != labels:
        _replace(state / LABELS, labels, durable=True)


def kept_labels(state: Path) -> dict[str, str] | None:
    """Return the node's labels as the API server last said them; None if it never did."""
    found = _read(state / LABELS)
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        return None
    return found


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _replace(path: Path, value: object, *, durable: bool) -> None:
    """Write a file beside the old one and put it in its place, by a name that nobody else uses."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump(value, file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
