"""Collections of the fake API server: selected, in pages, and watched."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping

from hardpoint.testing._api_options import check_read, limit_of
from hardpoint.testing._api_select import selector
from hardpoint.testing._api_status import ApiProblem, Json
from hardpoint.testing._api_store import Store, Stored
from hardpoint.testing._api_watch import Target, Watching, WatchSwitches, resumes, shown


class Lists:
    """Reads the collections of one store."""

    def __init__(self, store: Store, minor: int) -> None:
        self.switches = WatchSwitches()
        self._store, self._minor = store, minor

    def select(
        self, target: Target, query: Mapping[str, str], revision: int | None = None
    ) -> list[Stored]:
        """Return what is selected now, or was at a revision, in order of place. Raises 400."""
        matches = self._selector(target, query)
        found = (
            self._store.all(target.kind)
            if revision is None
            else self._store.at(target.kind, revision)
        )
        return [
            stored
            for (namespace, _), stored in sorted(found.items())
            if target.namespace in ("", namespace) and matches(stored.body)
        ]

    def _selector(self, target: Target, query: Mapping[str, str]) -> Callable[[Json], bool]:
        if "spec.pool.name" in query.get("fieldSelector", "") and self._minor < 37:
            what = f"{target.kind.group}/{target.version}, Kind={target.kind.name}"
            raise ApiProblem(400, f"field label not supported for {what}: spec.pool.name")
        return selector(target.kind, target.version, query)

    def list(self, target: Target, query: Mapping[str, str]) -> Json:
        """Return a collection, or one page of it. Raises 400, or 410 for a page long past."""
        check_read(query, watching=False)
        self._wait_for(query)
        revision, after = self._store.revision, ("", "")
        if query.get("continue"):
            revision, after = _token(query["continue"])
            if revision < self._store.compacted:
                raise ApiProblem(410, "The provided continue parameter is too old")
        chosen = self.select(target, query, revision)
        chosen = [stored for stored in chosen if _place(stored) > after]
        limit = limit_of(query) or len(chosen)
        metadata: Json = {"resourceVersion": str(revision)}
        if len(chosen) > limit:
            raw = json.dumps([revision, *_place(chosen[limit - 1])]).encode()
            metadata["continue"] = base64.urlsafe_b64encode(raw).decode()
            if not (query.get("labelSelector") or query.get("fieldSelector")):
                metadata["remainingItemCount"] = len(chosen) - limit
        return listing(target, chosen[:limit], metadata)

    def _wait_for(self, query: Mapping[str, str]) -> None:
        """Raise 504 for a version that is not yet: the real server waits three seconds for it."""
        version = int(query.get("resourceVersion") or 0)
        if version > self._store.revision:
            message = f"Too large resource version: {version}, current: {self._store.revision}"
            raise ApiProblem(504, message)

    def watch(self, target: Target, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Return the lines of a watch. Raises 400, 422 or 504 for one that cannot be."""
        check_read(query, watching=True)
        self._selector(target, query)
        present = [] if resumes(query, self._store) else self.select(target, query)
        return Watching(self._store, self.switches, target, query).lines(present)


def listing(target: Target, chosen: list[Stored], metadata: Json) -> Json:
    """Return objects as a list of their kind."""
    items = [shown(target, stored.body) for stored in chosen]
    for item in items:
        del item["apiVersion"], item["kind"]  # as the items of a typed list are
    group = target.kind.group
    return {
        "kind": f"{target.kind.name}List",
        "apiVersion": f"{group}/{target.version}" if group else target.version,
        "metadata": metadata,
        "items": items,
    }


def _token(text: str) -> tuple[int, tuple[str, str]]:
    try:
        revision, namespace, name = json.loads(base64.urlsafe_b64decode(text.encode()))
        return int(revision), (str(namespace), str(name))
    except ValueError as error:
        message = f"invalid continue token: continue key is not valid: {error}"
        raise ApiProblem(400, message) from error


def _place(stored: Stored) -> tuple[str, str]:
    metadata = stored.body["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
