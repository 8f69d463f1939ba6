"""What the doctor finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's: ``ok``, ``warn`` or ``fail``, what was found, and what to do."""

    level: str
    subject: str
    found: str
    do: str = ""
