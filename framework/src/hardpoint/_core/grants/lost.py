"""Releases that were lost with the ledger: nobody knows which were pending.

Somebody may still have the devices of one. So every device that a source governs and that no grant
in force named when the sources were first asked again counts as being released, until the evidence
says that nobody has any of them. ``releases.unreadable`` in the state directory says so, to an
operator too, who may remove it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import anyio.to_thread

from hardpoint import files
from hardpoint._core.grants.conditions import Conditions
from hardpoint._core.grants.grantplan import Stated, in_force
from hardpoint._core.ledger.grantrows import Book, DeviceKey, KnownRelease, Meant
from hardpoint._core.ledger.ledger import Ledger
from hardpoint.errors import LedgerUnwritable
from hardpoint.grants import Grant

_log = logging.getLogger("hardpoint.releases")

MARKER = "releases.unreadable"
WRITER = "writer.lock"
"""A file that is there once an agent has had a ledger."""
SOURCE = "lost"
CONDITION = "ReleasesUnreadable"
_LONGEST = 1 << 16


class Lost:
    """Whether releases were lost, and which devices wait for that."""

    def __init__(self, state: Path, conditions: Conditions) -> None:
        self.path = state / MARKER
        self._conditions = conditions
        self._live: set[str] = set()
        """Sources that have been asked since: what they granted then is not in doubt."""
        self._kept: set[str] = set()
        """Those of them that the marker tells."""
        self._waiting: tuple[Meant, ...] = ()
        self._complete = False
        self.lost = False
        self._since = 0.0

    async def begin(self, *, say: bool) -> None:
        """Look whether releases were lost: now, with the ledger, or by an agent before this one."""
        self.lost = await anyio.to_thread.run_sync(os.path.lexists, self.path)
        if self.lost:
            await anyio.to_thread.run_sync(self._recall)
        if self.lost and say:
            self._say()

    def _recall(self) -> None:
        """Read the marker, which the other of two agents may have written since."""
        self._since = self._since or time.time()
        try:
            facts = json.loads(files.read(self.path, _LONGEST))
            self._kept = {str(one) for one in facts.get("live") or ()}
            since = float(facts["at"])
            self._since = since if math.isfinite(since) else self._since
        except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
            return  # that it is there is what it says
        finally:
            self._live |= self._kept

    def _say(self) -> None:
        message = (
            "which releases were pending is not known any more, so no device outside the grants "
            "that are in force is granted before nobody can be using it; if you know that nobody "
            f"does, remove {self.path}"
        )
        self._conditions.set(CONDITION, "ReleasesFileUnreadable", message)

    async def look(self) -> bool:
        """See whether an operator has removed the marker, which ends it."""
        if not self.lost or await anyio.to_thread.run_sync(os.path.lexists, self.path):
            return False
        self._over("removed by an operator")
        return True

    async def clear(self) -> None:
        """Nobody has any of the devices. Raises ``OSError``."""
        await anyio.to_thread.run_sync(lambda: self.path.unlink(missing_ok=True))
        self._over("nobody uses them")

    def _over(self, why: str) -> None:
        self.lost, self._waiting = False, ()
        self._conditions.clear(CONDITION)
        _log.info("lost releases are over why=%r", why)

    async def keys(
        self,
        book: Book,
        devices: Iterable[Meant],
        stated: Mapping[str, Stated],
        *,
        complete: bool,
    ) -> frozenset[DeviceKey]:
        """Return the devices that may still be somebody's; all of them once it is complete."""
        self._complete = complete
        if not self.lost:
            return frozenset()
        await anyio.to_thread.run_sync(self._recall)
        answering = {source for source, one in stated.items() if one.grants is not None}
        fresh = answering - self._live
        if fresh and self._settled(book, fresh, stated):
            self._live |= fresh
        if self._live - self._kept:
            await anyio.to_thread.run_sync(self._keep_live)
        granted = {one.key for one, _ in in_force(book)}
        self._waiting = tuple(
            one for one in devices if one.key not in granted and self._is_in_doubt(one, stated)
        )
        return frozenset(one.key for one in self._waiting)

    def _settled(self, book: Book, fresh: set[str], stated: Mapping[str, Stated]) -> bool:
        """Say whether what these sources granted when they were first asked is written down."""
        known = {known.key for known in book.grants}
        return all(
            (source, grant.allocation) in known
            for source in fresh
            for grant in stated[source].grants or ()
        )

    def _is_in_doubt(self, one: Meant, stated: Mapping[str, Stated]) -> bool:
        governing = [source for source, s in stated.items() if s.governs(one.device.kind)]
        return bool(governing) and set(governing) <= self._live

    def _keep_live(self) -> None:
        try:
            facts = json.loads(files.read(self.path, _LONGEST))
            _write(self.path, {**facts, "live": sorted(self._live)})
            self._kept = set(self._live)
        except (OSError, ValueError, TypeError, RecursionError):
            _log.warning("marker not written path=%s", self.path)

    def release(self) -> KnownRelease | None:
        """Return what is in doubt as one release; None if nothing is, or not all is known yet."""
        if not self.lost or not self._live or not self._complete:
            return None
        grant = Grant(allocation="", source=SOURCE)
        return KnownRelease(
            id=SOURCE, grant=grant, devices=self._waiting, since=self._since, report=False
        )


def open_ledger(state: Path) -> Ledger:
    """Open the ledger of a node; where it was lost, that is written down before another is begun.

    Blocks. Raises ``LedgerError``.
    """
    was_here = os.path.lexists(state / WRITER)
    if was_here and not os.path.lexists(state / "ledger.db"):
        try:
            _mark(state, "the ledger was removed", None)
        except OSError as error:
            raise LedgerUnwritable(str(state / MARKER), str(error.strerror)) from error
    return Ledger(state, on_damage=partial(_mark, state))


def _mark(state: Path, damage: str, aside: Path | None) -> None:
    facts = {"at": time.time(), "error": damage, "aside": str(aside or ""), "live": []}
    _write(state / MARKER, facts)


def _write(path: Path, facts: Mapping[str, object]) -> None:
    content = json.dumps(facts).encode()
    files.replace(path, content, temporary=path.with_name(f".{path.name}.new"), mode=0o600)
