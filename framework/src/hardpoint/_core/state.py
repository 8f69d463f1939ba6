"""What the agent says of itself in the state directory, for commands that run beside it.

``status.json`` is written when something changed; ``running`` is locked, shared, by every agent.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

STATUS = "status.json"
RUNNING = "running"


def make_private(state: Path) -> None:
    """Make the state directory, for its owner alone."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(state, 0o700)


def mark_running(state: Path) -> int:
    """Say that an agent runs here, until the process ends; return the descriptor that says so."""
    descriptor = os.open(state / RUNNING, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def agent_runs(state: Path) -> bool:
    """Say whether an agent runs with this state directory."""
    try:
        descriptor = os.open(state / RUNNING, os.O_RDWR | os.O_CLOEXEC)
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
    temporary = state / f".{STATUS}.{os.getpid()}"
    temporary.write_text(json.dumps(status), "utf-8")
    temporary.replace(state / STATUS)


def read_status(state: Path) -> dict[str, Any]:
    """Return what the agent last said; empty if it never did, or it cannot be read."""
    try:
        status = json.loads((state / STATUS).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}
