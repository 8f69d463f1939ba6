"""Waiting for what a cluster brings about by and by."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 180.0
"""Seconds: for a machine that is ten times slower than ours, so that it only takes longer."""
_T = TypeVar("_T")


class Never(AssertionError):
    """What was waited for did not come about; says what was seen last."""


def until(what: str, look: Callable[[], _T], patience: float = PATIENCE) -> _T:
    """Look until the answer is true and return it. Raises ``Never``.

    A look may be a program of its own: at least as long as one takes, those looked at have the
    processors.
    """
    end = time.monotonic() + patience
    while True:
        began = time.monotonic()
        if seen := look():
            return seen
        now = time.monotonic()
        if now > end:
            raise Never(f"{what}: not within {patience:.0f} s; last seen: {seen!r}")
        time.sleep(max(0.05, now - began))
