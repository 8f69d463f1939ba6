"""Who uses the devices of a release, by the sources of evidence.

One that fails, is late or does not know says "in use"; that nobody does counts only of a reading
that began after the devices had left the offer.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable
from typing import Any

import anyio

from hardpoint._core.plugins.relay import Relay
from hardpoint._core.plugins.stating import is_not_applicable, kinds_of, sentence
from hardpoint.errors import HardpointError
from hardpoint.grants import Evidence, Release
from hardpoint.model import Device, Hold

USERS = "find_users"
NOBODY_ASKED = "no source of evidence runs: name pod_resources, prepared_claims or another policy"
_MOST_USERS, _LONGEST = 64, 200
"""Of what one source finds that is kept to be shown, and characters of each."""


class EvidenceSources:
    """Asks each that runs about a release."""

    def __init__(
        self, relay: Relay, *, agent: Any, ticks: Callable[[], float] = time.monotonic
    ) -> None:
        self._relay, self._agent, self._ticks = relay, agent, ticks

    async def users(self, release: Release, holds: tuple[Hold, ...]) -> list[str]:
        """Return who uses a release's devices, for people; why, where one cannot say.

        ``holds`` is all that the ledger says is held.
        """
        failed = self._relay.plugins.failed("policy")
        if failed:
            return [
                f"policy {name} is named in the settings and does not run" for name, _ in failed
            ]
        about = {source: self._about(source) for source in self._relay.implementations(USERS)}
        sources = [s for s, kinds in about.items() if any(map(kinds, release.devices))]
        if not sources:
            return [NOBODY_ASKED]
        unasked = [d.name for d in release.devices if not any(about[s](d) for s in sources)]
        if unasked:
            return [f"no source of evidence that runs is about the kind of {', '.join(unasked)}"]
        users: dict[str, tuple[str, ...]] = {}

        async def ask(source: str) -> None:
            users[source] = await self._ask_one(source, release, holds)

        async with anyio.create_task_group() as tasks:
            for source in sources:
                tasks.start_soon(ask, source)
        return [user for source in sources for user in users[source]]

    def _about(self, source: str) -> Callable[[Device], bool]:
        """Return whether a source can be asked on this node about a device, by its kind."""
        instance = self._relay.plugins.instance(source)
        if is_not_applicable(instance):
            return lambda device: False
        try:
            kinds = kinds_of(instance) or ("*",)
        except HardpointError:
            return lambda device: True
        return lambda device: any(fnmatch.fnmatchcase(device.kind, kind) for kind in kinds)

    async def _ask_one(
        self, source: str, release: Release, holds: tuple[Hold, ...]
    ) -> tuple[str, ...]:
        name = source.partition("/")[2]
        try:
            found: Evidence = await self._relay.plugin(
                USERS, source, release.id, release=release, holds=holds, agent=self._agent
            )
        except HardpointError as error:
            return (f"{name} cannot say: {error}",)
        if found.why:
            return (f"{name} cannot say: {sentence(found.why)}",)
        if found.users:
            return tuple(sentence(user, _LONGEST) or name for user in found.users[:_MOST_USERS])
        if found.began < release.left:
            return (f"{name} looked before the devices had left the offer",)
        if not found.began <= self._ticks():
            return (f"{name} cannot say: it has looked at no time of time.monotonic()",)
        return ()
