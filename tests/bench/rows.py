"""What a bench says: a line for a person, and a row for ``build/bench.json``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROWS = "BENCH_ROWS"
"""Names the file to which each bench adds its rows, a JSON object on each line."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure; ``bound`` is the most it may be, or None where the design states none."""

    name: str
    value: float
    unit: str = ""
    bound: float | None = None

    @property
    def ok(self) -> bool:
        """Say whether the bound is kept, where there is one."""
        return self.bound is None or self.value <= self.bound

    def __str__(self) -> str:
        bound = "" if self.bound is None else f"  bound {self.bound:g}"
        return (
            f"  {self.name:<58}{self.value:10.2f} {self.unit}{bound}{'' if self.ok else '  MISSED'}"
        )


class Told:
    """The rows of one bench, shown as they come."""

    def __init__(self) -> None:
        self.missed = False

    def __call__(self, row: Row) -> None:
        """Show a row, and keep it."""
        self.missed = self.missed or not row.ok
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()
        file = os.environ.get(ROWS)
        if file:
            with Path(file).open("a") as rows:
                rows.write(json.dumps(asdict(row) | {"ok": row.ok}) + "\n")


def percentile(values: Sequence[float], share: int) -> float:
    """Return the value that so many percent of all are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * share // 100)]


def memory() -> str | None:
    """Return a directory in memory for trees that stand for sysfs, where there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
