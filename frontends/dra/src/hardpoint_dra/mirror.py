"""What the API server has of our slices, as far as we know: fed by list, watch and our own writes.

A write's reply may come after the news of what happened later: an update, then somebody's delete,
then the reply (kubernetes pull request 140011). So the newest resource version wins, whoever
brought it, and a deletion is remembered as long as an older reply may still be under way.
"""

from __future__ import annotations

from collections.abc import Mapping

from hardpoint.kube import Change, Json, Listing
from hardpoint.reading import decimal


class Mirror:
    """Slices by name, in the shape of v1. The answers say whether the server has something new."""

    def __init__(self) -> None:
        self.ready = False
        """True once there was a listing."""
        self._objects: dict[str, Json] = {}
        self._versions: dict[str, int] = {}
        self.heard = -1
        """The newest version that the watch has told."""

    @property
    def slices(self) -> Mapping[str, Json]:
        """What there is, by name."""
        return self._objects

    def forget(self) -> None:
        """Know nothing: the objects will come again in another version of the API."""
        self.ready = False
        self._objects.clear()
        self._versions.clear()

    def listed(self, listing: Listing, since: int | None = None) -> bool:
        """Take over a listing, but for what was learnt after it was made.

        It is never older than what the watch told before it was asked for, unless the server was
        restored from a backup: then nothing counts that was learnt before. ``since`` is what was
        ``heard`` by then, where it is not the watch's own listing.
        """
        at, before = _number(listing.version), self.heard if since is None else since
        if at < before:
            self.forget()
        if since is None or at < before:
            self.heard = at
        found = {str(item["metadata"]["name"]): item for item in listing.items}
        news = not self.ready
        self.ready = True
        for name in [name for name in self._versions if name not in found]:
            if self._versions[name] <= at:
                news = self._objects.pop(name, None) is not None or news
                del self._versions[name]
        for item in found.values():
            news = self._take(item) or news
        return news

    def changed(self, change: Change) -> bool:
        """Take over an event; False for the echo of a write of ours, and for what is old."""
        self.heard = max(self.heard, _version(change.object))
        if change.type == "DELETED":
            return self._drop(str(change.object["metadata"]["name"]), _version(change.object))
        return self._take(change.object)

    def wrote(self, stored: Json) -> None:
        """Take over what the server answered to a write of ours."""
        self._take(stored)

    def deleted(self, old: Json) -> None:
        """Note that we deleted this very state of an object."""
        self._drop(str(old["metadata"]["name"]), _version(old))

    def _take(self, item: Json) -> bool:
        name, version = str(item["metadata"]["name"]), _version(item)
        if version <= self._versions.get(name, -1):
            return False
        self._versions[name] = version
        self._objects[name] = item
        return True

    def _drop(self, name: str, version: int) -> bool:
        if version < self._versions.get(name, -1):
            return False
        self._versions[name] = version
        return self._objects.pop(name, None) is not None


def _version(item: Json) -> int:
    return _number(str(item["metadata"].get("resourceVersion", "")))


def _number(version: str) -> int:
    """Resource versions are numbers that grow with every write (enhancement 5504)."""
    return decimal(version) or 0
