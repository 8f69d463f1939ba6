"""Watches of the fake API server: what changed after a revision, bookmarks, and how one ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass

import anyio

from hardpoint.testing._api_http import Dropped
from hardpoint.testing._api_select import selector
from hardpoint.testing._api_status import ApiProblem, Json
from hardpoint.testing._api_store import Kind, Logged, Store, Stored
from hardpoint.testing._api_versions import encoded

_LONGEST = "1800"
"""Seconds that a watch lasts where the client names no ``timeoutSeconds``."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a request's path names."""

    kind: Kind
    version: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(slots=True)
class WatchSwitches:
    """Counters that watches compare: each one raised by one is heard once by every watch."""

    closed: int = 0
    dropped: int = 0
    bookmarks: int = 0
    bookmark_seconds: float = 60.0


def shown(target: Target, body: Json) -> Json:
    """Return a stored object in the version that was asked for."""
    return encoded(target.kind.name, body, target.kind.group, target.version)


def resumes(query: Mapping[str, str], store: Store) -> bool:
    """Say whether a watch goes on from a revision. Raises 504 for one that is not yet."""
    version = query.get("resourceVersion", "")
    if version in ("", "0") or _stands_for_a_list(query):
        return False
    if int(version) > store.revision:
        raise ApiProblem(504, f"Too large resource version: {version}, current: {store.revision}")
    return True


def _stands_for_a_list(query: Mapping[str, str]) -> bool:
    return query.get("sendInitialEvents") == "true"


class Watching:
    """One watch."""

    def __init__(
        self, store: Store, switches: WatchSwitches, target: Target, query: Mapping[str, str]
    ) -> None:
        self._store, self._switches, self._target = store, switches, target
        self._matches = selector(target.kind, target.version, query)
        self._whole = _stands_for_a_list(query)
        self._closed, self._dropped = switches.closed, switches.dropped
        self._bookmarks = switches.bookmarks
        self._marked = query.get("allowWatchBookmarks") == "true"
        self._deadline = anyio.current_time() + float(query.get("timeoutSeconds") or _LONGEST)
        version = query.get("resourceVersion", "")
        now = version in ("", "0") or self._whole
        self._position = store.revision if now else int(version)

    async def lines(self, present: list[Stored]) -> AsyncIterator[bytes]:
        """Yield what is present, then each change, until its time is over or somebody ends it."""
        for stored in present:
            yield self._line("ADDED", stored.body)
        if self._whole and self._marked:
            yield self._bookmark({"annotations": {"k8s.io/initial-events-end": "true"}})
        while True:
            changed = self._store.changed
            if self._position < self._store.compacted:
                yield self._expired()
                return
            for line in self._news():
                yield line
            if self._switches.dropped != self._dropped:
                raise Dropped
            if self._switches.closed != self._closed or anyio.current_time() >= self._deadline:
                return
            await self._until(changed)

    def _news(self) -> Iterator[bytes]:
        for change in self._store.since(self._position):
            self._position = change.revision
            word = self._word(change)
            if word:
                yield self._line(word, change.body)
        if self._switches.bookmarks != self._bookmarks and self._marked:
            self._bookmarks = self._switches.bookmarks
            yield self._bookmark({})

    def _bookmark(self, metadata: Json) -> bytes:
        version = {"resourceVersion": str(self._store.revision)}
        return self._line("BOOKMARK", {"metadata": version | metadata})

    async def _until(self, changed: anyio.Event) -> None:
        """Wait for a change, a bookmark's time or the end."""
        with anyio.move_on_after(max(0.0, self._deadline - anyio.current_time())):
            with anyio.move_on_after(self._switches.bookmark_seconds) as patience:
                await changed.wait()
            if patience.cancelled_caught:
                self._bookmarks -= 1

    def _word(self, change: Logged) -> str:
        """Return what a change means to this watch; empty if nothing."""
        namespace = change.body["metadata"].get("namespace", "")
        if change.kind is not self._target.kind or self._target.namespace not in ("", namespace):
            return ""
        was = change.before is not None and self._matches(change.before)
        is_ = change.type != "DELETED" and self._matches(change.body)
        words = {(False, True): "ADDED", (True, True): "MODIFIED", (True, False): "DELETED"}
        return words.get((was, is_), "")

    def _line(self, type: str, body: Json) -> bytes:
        return _line(type, shown(self._target, body))

    def _expired(self) -> bytes:
        message = f"too old resource version: {self._position} ({self._store.compacted})"
        return _line("ERROR", ApiProblem(410, message).status())


def _line(type: str, found: Json) -> bytes:
    return (
        json.dumps({"type": type, "object": found}, ensure_ascii=False).encode("utf-8", "replace")
        + b"\n"
    )
