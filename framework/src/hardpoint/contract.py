"""The marks of the contract: ``hookspec`` on our side, ``hookimpl`` on a plugin's.

pluggy checks signatures; what it does not have stands on each hookspec as a ``Spec``: how
answers are gathered (``Dispatch``), what a failure means (``Fault``), and how long one may take
(``budget``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import pluggy

PROJECT = "hardpoint"

_F = TypeVar("_F", bound=Callable[..., Any])
_mark_spec = pluggy.HookspecMarker(PROJECT)
_mark_impl = pluggy.HookimplMarker(PROJECT)


class Dispatch(enum.Enum):
    """Who is asked, and how several answers become one."""

    GATHER = "gather"
    """All at once; each plugin has its own answer, and a fault costs only that one."""
    FIRST = "first"
    """In order of name; the first answer that is not None."""
    OWNER = "owner"
    """Only the driver that published the device."""
    FOLD = "fold"
    """In order of name; each plugin sees what the one before it answered."""
    SUPERVISED = "supervised"
    """Runs for the life of the agent; started again with back-off when it ends."""


class Fault(enum.Enum):
    """What it means when a plugin raises, is late, or answers what it must not."""

    SKIP = "skip"
    """Go on without its answer."""
    REFUSE = "refuse"
    """The operation fails."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What stands beside a hook's signature. ``budget`` is in seconds; None is for ever."""

    dispatch: Dispatch
    on_fault: Fault
    budget: float | None


def hookspec(*, dispatch: Dispatch, on_fault: Fault, budget: float | None) -> Callable[[_F], _F]:
    """Declare a hook of the contract."""

    def mark(function: _F) -> _F:
        function.__dict__["dispatched_as"] = Spec(dispatch, on_fault, budget)
        return _mark_spec(function)

    return mark


def spec_of(function: Callable[..., Any]) -> Spec:
    """Return the ``Spec`` that ``hookspec`` put on a function of ``hardpoint.hookspecs``."""
    return cast("Spec", function.__dict__["dispatched_as"])


def hookimpl(function: _F) -> _F:
    """Mark a method of a plugin as its answer to the hook of the same name.

    A plugin names only the arguments it wants; naming one that the hook does not have is refused
    when the plugin is loaded.
    """
    return _mark_impl(function)
