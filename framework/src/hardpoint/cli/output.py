"""How commands answer: tables for people, JSON for programs, and one line for an error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from hardpoint.errors import HardpointError


def as_json(value: Any) -> None:
    """Print one JSON document."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    print()


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "") -> None:
    """Print a table: by rich on a terminal, in plain aligned columns into a pipe."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        if empty:
            print(empty)
        return
    if sys.stdout.isatty() and _rich(headings, cells):
        return
    widths = [max(len(row[i]) for row in (list(headings), *cells)) for i in range(len(headings))]
    for row in ([heading.upper() for heading in headings], *cells):
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _rich(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> bool:
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in headings:
        shown.add_column(heading, overflow="fold")
    for row in cells:
        shown.add_row(*(Text(cell) for cell in row))
    Console().print(shown)
    return True


def known(error: BaseException) -> tuple[Exception, ...] | None:
    """Return the errors that a sentence says enough of; None if there is one that it does not."""
    if isinstance(error, BaseExceptionGroup):
        inner = [known(one) for one in error.exceptions]
        return None if None in inner else tuple(one for found in inner for one in found or ())
    return (error,) if isinstance(error, HardpointError | OSError) else None


def in_words(error: BaseException) -> str:
    """Return what went wrong, and the file that it was about: none of Python's numbers."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def sentence(error: BaseException) -> str:
    """Return what went wrong, and what to do about it where that is known."""
    if isinstance(error, PermissionError) and os.geteuid() != 0:
        return f"{in_words(error)}; run it as root on the node, or in the agent's container"
    return in_words(error)


def hush() -> None:
    """Write nothing more to standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(message: object) -> int:
    """Print an error in one line; return the exit status."""
    print(f"hardpoint: {message}", file=sys.stderr)
    return 1
