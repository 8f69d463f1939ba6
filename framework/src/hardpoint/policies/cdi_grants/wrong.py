"""What is wrong with hold files: told to people, and what nobody may rely on meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hardpoint.errors import TryAgain
from hardpoint.grants import Grant
from hardpoint.policies.cdi_grants.holds import BadHold, Holds, shown

if TYPE_CHECKING:
    from hardpoint.agent import Agent

NAME = "cdi_grants"
_MOST = 3
"""Files that are named in one sentence."""


@dataclass(slots=True)
class Look:
    """What one look at the directory came to."""

    holds: Holds
    grants: dict[str, Grant] = field(default_factory=dict)
    unmended: dict[str, str] = field(default_factory=dict)
    """Why the corrected copy of an allocation's hold is not there yet."""
    copies: frozenset[str] = frozenset()
    """Files of corrected copies, by name."""


class Wrong:
    """What is wrong with the files of one directory, by the last look at it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._faults: set[str] = set()
        self._left = ""
        self._bad: tuple[BadHold, ...] = ()

    @property
    def unread(self) -> str:
        """The files that cannot be read, and why; empty where all can."""
        return _few([f"{self._path(bad.name)}: {bad.reason}" for bad in self._bad])

    def check_over(self, allocation: str) -> None:
        """Raise ``TryAgain`` where an allocation may be stated by a file that cannot be read."""
        for bad in self._bad:
            if bad.allocation in ("", allocation):
                raise TryAgain(f"{self._path(bad.name)} may state it again: {bad.reason}")

    def tell(self, look: Look, unknown: Sequence[str], agent: Agent) -> None:
        """Put what is wrong with each file on the fault board, and take off what is not."""
        self._bad = look.holds.bad
        faults = {
            _source(bad.name): self._said(bad, look, unknown)
            for bad in self._bad
            if not bad.young or bad.name in unknown
        }
        for hold in look.holds.good:
            why = look.unmended.get(hold.allocation)
            if why:
                faults[_source(hold.name)] = f"{self._path(hold.name)} names other nodes: {why}"
        for source in self._faults - set(faults):
            agent.clear_fault(source)
        for source, message in faults.items():
            agent.on_fault(source, message)
        self._faults = set(faults)
        self._tell_left(look, agent)

    def _tell_left(self, look: Look, agent: Agent) -> None:
        """Say which files are about somebody else, and why: it may be a mistake."""
        now = _few([f"{shown(one.name)}: {one.reason}" for one in look.holds.left])
        if now != self._left:
            agent.note(f"policy/{NAME}", {"left alone": now})
        self._left = now

    def _said(self, bad: BadHold, look: Look, unknown: Sequence[str]) -> str:
        cost = "it grants nothing, and nobody is reaped"
        if bad.name in unknown:
            cost = "what it granted is not known, and nothing is granted or released until it is"
        elif bad.allocation in look.grants:
            cost = "what it granted before stands, and nobody is reaped"
        return f"{self._path(bad.name)}: {bad.reason}; {cost}; mend or remove the file"

    def _path(self, name: str) -> str:
        return f"{self._directory}/{shown(name)}"


def _few(said: Sequence[str]) -> str:
    """Return the first of many in one sentence, and how many more there are."""
    more = [f"{len(said) - _MOST} more"] if len(said) > _MOST else []
    return "; ".join([*said[:_MOST], *more])


def _source(name: str) -> str:
    return f"policy/{NAME} {shown(name)}"


def names_of(names: Iterable[str]) -> str:
    """Return files' names for people."""
    return ", ".join(shown(name) for name in names)
