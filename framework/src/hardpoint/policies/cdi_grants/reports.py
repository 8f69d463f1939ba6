"""What became of grants, as files for whoever wrote the holds: ``<allocation>.json``.

``docs/howto/grants.md`` has the format. A report is replaced at once, and is on disk when the agent
takes its source for told.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hardpoint import files
from hardpoint.grants import Grant, GrantOutcome, Release
from hardpoint.policies.cdi_grants.documents import ALLOCATION

_SUFFIX = ".json"
_LARGEST = 1 << 20
_SEEN = 3600.0
"""Seconds for which this process must have seen a report before it is removed: the clock may be set
forward by a year."""


class Reports:
    """The reports of one source of grants. Blocking."""

    def __init__(
        self,
        directory: Path,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = directory
        self._clock, self._monotonic = clock, monotonic
        self._first_seen: dict[str, float] = {}

    def path(self, allocation: str) -> Path:
        """Return where an allocation's report is."""
        return self.directory / f"{allocation}{_SUFFIX}"

    def read(self, allocation: str) -> dict[str, Any]:
        """Return an allocation's report; empty where there is none that can be read."""
        try:
            found = json.loads(files.read(self.path(allocation), _LARGEST))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def tell_grant(self, grant: Grant, outcome: GrantOutcome) -> None:
        """Say that a grant is in force, or refused and why. Raises ``OSError``."""
        said = {"outcome": str(outcome.outcome), "reason": outcome.reason}
        self._tell(grant.allocation, said)

    def tell_release(self, grant: Grant, release: Release) -> None:
        """Say that nobody can be using a grant's devices any more. Raises ``OSError``."""
        said = {"released": True, "since": release.since, "devices": list(release.names)}
        self._tell(grant.allocation, said)

    def _tell(self, allocation: str, said: Mapping[str, Any]) -> None:
        if not ALLOCATION.fullmatch(allocation):
            return  # no file of ours stated it
        told = self.read(allocation)
        told.pop("at", None)
        wanted = {"allocation": allocation, **said}
        self._make_directory()
        if told == wanted:  # by a try that failed, perhaps before it was on disk
            files.sync_directory(self.directory)
            return
        document = {**wanted, "at": self._clock()}
        path = self.path(allocation)
        files.replace(
            path,
            (json.dumps(document, indent=2) + "\n").encode(),
            temporary=path.with_name(f".{path.name}.tmp"),
            mode=0o600,
        )
        self._first_seen.pop(allocation, None)

    def _make_directory(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.sync_directory(self.directory.parent)

    def sweep(self, live: Collection[str], keep: float) -> None:
        """Remove what is said of grants that nobody speaks of any more.

        ``live`` are allocations that are stated, in force or being released. The report of a
        release stays for ``keep`` seconds, another one until it was seen for a while.
        """
        try:
            names = [name for name in os.listdir(self.directory) if name.endswith(_SUFFIX)]
        except (FileNotFoundError, NotADirectoryError):
            return
        now = self._monotonic()
        there = {n.removesuffix(_SUFFIX) for n in names if not n.startswith(".")}
        idle = {allocation for allocation in there - set(live) if ALLOCATION.fullmatch(allocation)}
        self._first_seen = {one: self._first_seen.get(one, now) for one in idle}
        for allocation, seen in list(self._first_seen.items()):
            if now - seen >= min(_SEEN, keep) and self._is_old(allocation, keep):
                with suppress(OSError):
                    files.remove(self.path(allocation))

    def _is_old(self, allocation: str, keep: float) -> bool:
        told = self.read(allocation)
        if not told.get("released"):
            return bool(told)  # what is no report of ours is not ours to remove
        at = told.get("at")
        return isinstance(at, int | float) and self._clock() - at >= keep
