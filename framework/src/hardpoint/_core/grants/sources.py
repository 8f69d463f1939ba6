"""What sources of grants say, and why what is known stands where one cannot be believed now.

A source that cannot be read is not a source without grants: what is known of it stands. Nor is one
whose grants are all gone at once believed before a second look, 10 seconds later: a directory that
is not mounted yet looks like that.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio

from hardpoint._core.grants.grantplan import Stated
from hardpoint._core.plugins.relay import Relay
from hardpoint._core.plugins.stating import checked, governed_by, unread_of
from hardpoint.errors import HardpointError
from hardpoint.grants import Grant

HOOK = "grant_devices"
CONFIRM_AFTER = 10.0
"""Seconds after which it is believed that all of a source's grants are gone."""
LASTS = 5.0
"""Seconds after which a file that cannot be read is not one that is being written."""


@dataclass(slots=True)
class _Answer:
    """What a source said last, and why it cannot be asked now."""

    kinds: tuple[str, ...] = ("*",)
    """What it governs: everything, where it has never said that."""
    grants: tuple[Grant, ...] | None = None
    why: str = ""
    """Why what is known stands; empty where the answer does."""
    empty_since: float | None = None
    """Since when it states none of the grants that it had, which is not believed yet."""
    unread: str = ""
    """What of it cannot be read, though it has answered: a part of it may be another by now."""
    unread_since: float = 0.0

    @property
    def is_whole(self) -> bool:
        """Whether all of it is known: nobody is reaped while it is not."""
        return not (self.why or self.unread)


class Sources:
    """Asks sources and keeps their answers; ``had`` says whether one had grants, by the ledger.

    ``hint`` has them asked soon.
    """

    def __init__(
        self,
        relay: Relay,
        *,
        agent: Any,
        had: Callable[[str], bool],
        hint: Callable[[], None],
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._relay, self._agent, self._had, self._hint = relay, agent, had, hint
        self.ticks = ticks
        self._answers = {s: self._unasked(s) for s in relay.implementations(HOOK)}
        self._asking = anyio.Lock()
        self._begun = self._ended = 0
        """Readings of all sources, counted."""

    # -- what they say ----------------------------------------------------------------------------

    @property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """The kinds that each running source governs."""
        return {source: answer.kinds for source, answer in self._answers.items()}

    @property
    def asked(self) -> bool:
        """True once every source has been asked."""
        return bool(self._ended)

    @property
    def whole(self) -> bool:
        """True while every source's last answer was: without that nobody may be reaped."""
        return all(one.is_whole for one in self._answers.values()) and not self._failed()

    def stated(self) -> dict[str, Stated]:
        """Return what each source that the settings name says, with none where that stands."""
        return {one: Stated(source=one, kinds=(), grants=None) for one in self._failed()} | {
            source: Stated(
                source=source,
                kinds=answer.kinds,
                grants=None if answer.why else answer.grants,
            )
            for source, answer in self._answers.items()
        }

    def answers(self, source: str) -> bool:
        """Say whether a source's last answer was good; True of what is no source that runs."""
        answer = self._answers.get(source)
        return answer is None or not answer.why

    def may_have_ended(self, source: str) -> bool:
        """Say whether all of a source's grants are gone, which is not believed yet."""
        answer = self._answers.get(source)
        return answer is not None and answer.empty_since is not None

    def unreadable(self) -> list[str]:
        """Return what cannot be read of them, for people."""
        said = ((source, self._unreadable(one)) for source, one in self._answers.items())
        return [f"{source.partition('/')[2]}: {why}" for source, why in said if why]

    def _unreadable(self, answer: _Answer) -> str:
        if answer.why:
            return answer.why if answer.empty_since is None else ""
        return answer.unread if self.ticks() - answer.unread_since >= LASTS else ""

    def _failed(self) -> list[str]:
        """Return the policies that the settings name and that do not run.

        One of them may be a source: what is known of its grants stands, whatever they govern.
        """
        return [f"policy/{name}" for name, _ in self._relay.plugins.failed("policy")]

    # -- asking -----------------------------------------------------------------------------------

    async def ask(self, before: Callable[[], Awaitable[None]]) -> None:
        """Ask every source now, and ``before`` that; who asks meanwhile shares the next reading."""
        wanted = self._begun + 1
        async with self._asking:
            if self._ended >= wanted:
                return
            self._begun += 1
            await before()
            async with anyio.create_task_group() as tasks:
                for source in self._answers:
                    tasks.start_soon(self._ask, source)
            self._ended = self._begun

    async def _ask(self, source: str) -> None:
        answer = self._answers[source]
        try:
            found: tuple[Grant, ...] = await self._relay.plugin(HOOK, source, agent=self._agent)
            grants = checked(source, found)
            answer.kinds = self._kinds_of(source)
            self._note_unread(source, answer)
        except HardpointError as error:
            answer.why, answer.empty_since = str(error), None
            return
        if grants or not self._had(source):
            answer.grants, answer.why, answer.empty_since = grants, "", None
            return
        now = self.ticks()
        if answer.empty_since is None:
            answer.empty_since = now
            self._relay.later(CONFIRM_AFTER, self._hint)
        if now - answer.empty_since < CONFIRM_AFTER:
            answer.why = "all its grants are gone at once, which a second look has to confirm"
            return
        answer.grants, answer.why, answer.empty_since = (), "", None

    def _note_unread(self, source: str, answer: _Answer) -> None:
        unread = unread_of(self._relay.plugins.instance(source))
        if not answer.unread:
            answer.unread_since = self.ticks()
        answer.unread = unread

    def _unasked(self, source: str) -> _Answer:
        try:
            return _Answer(kinds=self._kinds_of(source))
        except HardpointError:
            return _Answer()

    def _kinds_of(self, source: str) -> tuple[str, ...]:
        """Return what a source says that it governs. Raises ``HardpointError``."""
        return governed_by(self._relay.plugins.instance(source))
