"""The API server: objects as JSON dictionaries, every failure one of ``hardpoint.errors.Kube…``.

lightkube brings connection, TLS, kubeconfig and credentials (``_kube_session``); what a long-lived
node agent needs beside that is here: tokens read again when they change, time-outs on everything,
deletes with preconditions, and a watch that lists first, resumes, and never knocks in a tight loop.
The client is imported with the first request.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from hardpoint._kube import (
    EVENTS,
    GROUP,
    GROUPS,
    MARKED,
    NODES,
    PAGE,
    PODS,
    Backoff,
    Change,
    Json,
    Listing,
    Object,
    Resource,
    Stored,
    decode,
    dropped,
    from_status,
    lines,
    rank,
    refused,
    shaped,
)
from hardpoint._kube_session import (
    Request,
    Session,
    address,
    kubeconfig,
    said,
    service_account,
    transport_errors,
)
from hardpoint.errors import KubeError, KubeGone, KubeInvalid, KubeNotFound, KubeUnreachable

if TYPE_CHECKING:
    from types import TracebackType

    from httpx2 import Response
    from lightkube.config.kubeconfig import SingleConfig

__all__ = [
    "EVENTS",
    "FIELD_MANAGER",
    "NODES",
    "PODS",
    "Backoff",
    "Change",
    "Json",
    "Kube",
    "Listing",
    "Object",
    "Resource",
    "dropped",
    "shaped",
]

FIELD_MANAGER = "hardpoint"
"""One name for ever: server-side apply would take another for a rival (akri issue 801)."""

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

_PAGE = 500
_MOST_PAGES = 1000
_DEADLINE = 30.0
"""Seconds for one request from end to end, whatever the server dribbles."""
_RELIST_AFTER = 3
"""A watch that fails this often in a row is started again from a list."""


class Kube:
    """A connection to one API server. Close it with ``aclose``, or use it as ``async with``.

    Raises ``KubeUnreachable``, ``KubeDenied``, ``KubeNotFound``, ``KubeConflict``, ``KubeGone`` or
    ``KubeInvalid``, all of them ``KubeError``; their text never holds a credential.
    """

    def __init__(
        self,
        configure: Callable[[], SingleConfig],
        *,
        trust_env: bool = False,
        timeout: float = 10.0,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._configure, self._trust_env = configure, trust_env
        self._timeout, self._sleep = timeout, sleep
        self._lock = anyio.Lock()
        self._session: Session | None = None
        self._retired: list[Session] = []

    # -- where it comes from ----------------------------------------------------------------------

    @classmethod
    def in_cluster(cls, directory: str | Path = SERVICE_ACCOUNT, **options: Any) -> Kube:
        """Connect as the pod's service account. Raises ``KubeUnreachable`` outside a pod."""
        if not os.environ.get("KUBERNETES_SERVICE_HOST"):
            raise KubeUnreachable("not in a pod: KUBERNETES_SERVICE_HOST is not set")
        return cls(lambda: service_account(directory), **options)

    @classmethod
    def from_kubeconfig(cls, path: str | Path, **options: Any) -> Kube:
        """Connect as a kubeconfig's current context; the file is read again when it changes."""
        return cls(lambda: kubeconfig(path), trust_env=True, **options)

    @classmethod
    def at(
        cls,
        url: str,
        token_file: str | Path | None = None,
        ca_file: str | Path | None = None,
        **options: Any,
    ) -> Kube:
        """Connect to a URL; ``http://`` is meant for the test kit's server on loopback."""
        return cls(lambda: address(url, token_file, ca_file), **options)

    async def aclose(self) -> None:
        """Close every connection."""
        sessions = [*self._retired, *([self._session] if self._session else [])]
        self._session, self._retired = None, []
        for session in sessions:
            await session.close()

    async def __aenter__(self) -> Kube:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self.aclose()

    # -- one object -------------------------------------------------------------------------------

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Json:
        """Read one object."""
        request = Request("GET", resource.path(namespace, _known(name)))
        return shaped(Stored, await self._ask(request), str(request))

    async def create(
        self, resource: Resource, body: Json, *, namespace: str = "", dry_run: bool = False
    ) -> Json:
        """Create an object and return it as stored; a dry run is judged and not stored."""
        request = Request("POST", resource.path(namespace), body, _written(dry_run))
        return shaped(Object if dry_run else Stored, await self._ask(request), str(request))

    async def replace(self, resource: Resource, body: Json, *, namespace: str = "") -> Json:
        """Replace an object. ``metadata.resourceVersion`` must be the one it was read at."""
        metadata = body["metadata"]
        if not metadata.get("resourceVersion"):
            raise ValueError("a replacement carries the resourceVersion that it replaces")
        request = Request("PUT", resource.path(namespace, metadata["name"]), body, _written())
        return shaped(Stored, await self._ask(request), str(request))

    async def apply(
        self,
        resource: Resource,
        body: Json,
        *,
        namespace: str = "",
        subresource: str = "",
        manager: str = FIELD_MANAGER,
    ) -> Json:
        """Apply what we say of an object (server-side apply, forced), or of its ``status``.

        What ``manager`` said before and does not say now is removed, so two writers of one list
        need two names.
        """
        path = resource.path(namespace, body["metadata"]["name"], subresource)
        query = {**_written(), "fieldManager": manager, "force": "true"}
        request = Request("PATCH", path, body, query)
        return shaped(Object, await self._ask(request), str(request))

    async def merge(
        self, resource: Resource, name: str, changes: Json, *, namespace: str = "", version: str
    ) -> Json:
        """Change some fields of an object (JSON merge patch): null removes one, a list replaces.

        ``version`` is the resourceVersion that the changes were made for; ``KubeConflict`` where
        somebody was faster.
        """
        metadata = {**changes.get("metadata", {}), "resourceVersion": version}
        path = resource.path(namespace, _known(name))
        body = {**changes, "metadata": metadata}
        request = Request("PATCH", path, body, _written(), patch="merge-patch+json")
        return shaped(Stored, await self._ask(request), str(request))

    async def evict(self, name: str, *, namespace: str, uid: str, grace: int) -> bool:
        """Ask for the end of a pod that disruption budgets allow; False if there is none.

        Raises ``KubeBusy`` while one does not allow it, ``KubeConflict`` for a namesake.
        """
        options = {"preconditions": {"uid": uid}, "gracePeriodSeconds": grace}
        body: Json = {"apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": options}
        body["metadata"] = {"name": name, "namespace": namespace}
        try:
            await self._ask(Request("POST", PODS.path(namespace, _known(name), "eviction"), body))
        except KubeNotFound:
            return False
        return True

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        version: str = "",
        grace: int | None = None,
    ) -> bool:
        """Delete an object if it still is the one meant; False if there is none.

        ``uid`` and ``version`` are preconditions, ``KubeConflict`` if they do not hold; ``grace``
        is in seconds.
        """
        conditions = {"uid": uid, "resourceVersion": version}
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        body["preconditions"] = {key: value for key, value in conditions.items() if value}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            await self._ask(Request("DELETE", resource.path(namespace, _known(name)), body))
        except KubeNotFound:
            return False
        return True

    # -- collections ------------------------------------------------------------------------------

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        fields: Mapping[str, str] | None = None,
    ) -> Listing:
        """Read a collection, page by page; ``fields`` select by the values of fields."""
        query = {"limit": str(_PAGE), **_selector(fields)}
        try:
            return await self._pages(resource.path(namespace), query)
        except KubeGone:  # it changed for so long that the next page is lost: take it in one
            return await self._pages(resource.path(namespace), _selector(fields))

    async def _pages(self, path: str, query: dict[str, str]) -> Listing:
        items: list[Json] = []
        for _ in range(_MOST_PAGES):
            request = Request("GET", path, query=query)
            page = shaped(PAGE, await self._ask(request), str(request))
            kind = str(page["kind"]).removesuffix("List")
            named = {"apiVersion": page.get("apiVersion"), "kind": kind}
            items += ({**named, **item} for item in page.get("items") or ())
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return Listing(tuple(items), str(metadata.get("resourceVersion", "")))
            query = {**query, "continue": str(metadata["continue"])}
        raise KubeUnreachable(f"GET {path}: the list does not end")

    async def watch(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        fields: Mapping[str, str] | None = None,
        on_trouble: Callable[[KubeError | None], None] = lambda error: None,
    ) -> AsyncGenerator[Listing | Change, None]:
        """Yield the collection, then each change to it, for ever.

        A closed or broken watch is resumed where it stood; where that is too long ago the
        collection is listed again, so a reader replaces all it knows on a ``Listing``. Between two
        attempts there is always a delay, also after a clean end. ``on_trouble`` hears of every
        failure, and of None when it works again; not of a 410, which every server answers that was
        restarted meanwhile and which costs no more than the list. Raises ``KubeNotFound`` only:
        this server does not serve the API. Wrap it in ``contextlib.aclosing``.
        """
        backoff, version = Backoff(), ""
        while True:
            began = anyio.current_time()
            try:
                if not version:
                    listing = await self.list(resource, namespace=namespace, fields=fields)
                    version = listing.version
                    yield listing
                query = {**_selector(fields), "resourceVersion": version}
                stream = self._events(resource.path(namespace), query, on_trouble)
                async with aclosing(stream) as events:
                    async for version, change in events:  # noqa: B007 - where to resume
                        backoff.worked(anyio.current_time() - began)
                        if change is not None:
                            yield change
            except KubeNotFound:
                raise
            except KubeError as error:
                if not isinstance(error, KubeGone):
                    on_trouble(error)
                version = _resumable(version, error, backoff)
            await self._sleep(backoff.next())

    async def _events(
        self, path: str, query: Mapping[str, str], on_trouble: Callable[[KubeError | None], None]
    ) -> AsyncGenerator[tuple[str, Change | None], None]:
        """Yield the resource version that was reached and what changed; None for a bookmark."""
        seconds = random.randint(300, 600)  # noqa: S311 - jitter, not a secret
        asked = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        request = Request("GET", path, None, {**query, **asked}, stream=True)
        response = await self._exchange(request)
        try:
            if response.status_code >= 300:
                content = await response.aread()
                raise refused(str(request), response.status_code, content)
            on_trouble(None)
            async for line in lines(response.aiter_bytes()):
                yield _event(decode(line), path)
        except transport_errors() as error:
            raise KubeUnreachable(f"{request}: {said(error)}") from error
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()

    # -- the server -------------------------------------------------------------------------------

    async def versions(self, group: str) -> tuple[str, ...]:
        """Return the versions of an API group that this server serves, newest first.

        None of one that it does not serve: by its list of all groups, since what stands between
        answers 404 too while it has no server to ask.
        """
        try:
            request = Request("GET", f"apis/{group}")
            found = shaped(GROUP, await self._ask(request), str(request))
        except KubeNotFound as error:
            if group in await self._groups():
                raise KubeUnreachable(f"{error}, and its list of groups has it") from error
            return ()
        served = [str(entry["version"]) for entry in found.get("versions") or ()]
        return tuple(sorted(served, key=rank, reverse=True))

    async def _groups(self) -> frozenset[str]:
        request = Request("GET", "apis")
        try:
            found = shaped(GROUPS, await self._ask(request), str(request))
        except KubeNotFound as error:
            raise KubeUnreachable(f"{error}: who answers so is no API server") from error
        return frozenset(one["name"] for one in found["groups"])

    async def server_version(self) -> str:
        """Return the server's ``gitVersion``: ``v1.37.0``."""
        return str((await self._ask(Request("GET", "version"))).get("gitVersion", ""))

    # -- requests ---------------------------------------------------------------------------------

    async def _ask(self, request: Request) -> Json:
        try:
            with anyio.fail_after(max(_DEADLINE, 3 * self._timeout)):
                response = await self._exchange(request)
        except TimeoutError as error:
            raise KubeUnreachable(f"{request}: no whole answer in time") from error
        if response.status_code >= 300:
            raise refused(str(request), response.status_code, response.content)
        return decode(response.content)

    async def _exchange(self, request: Request) -> Response:
        """Send a request; once more with what the credentials say now, if they were refused."""
        try:
            response = await (await self._connected()).send(request)
            if response.status_code == 401:
                await response.aclose()
                response = await (await self._connected(renew=True)).send(request)
            return response
        except transport_errors() as error:
            raise KubeUnreachable(f"{request}: {said(error)}") from error

    async def _connected(self, renew: bool = False) -> Session:
        """Return the session, made anew if one of the files it was made from has changed."""
        async with self._lock:
            session = self._session
            fresh = await anyio.to_thread.run_sync(self._current, session, renew)
            if session is not None and fresh is not session:
                self._retired.append(session)
            self._session = fresh
            while len(self._retired) > 2:  # by now only a watch can still be on it: it resumes
                await self._retired.pop(0).close()
            return fresh

    def _current(self, session: Session | None, renew: bool) -> Session:
        """Stat the credentials, and read what changed. Blocks."""
        if session is not None and session.unchanged() and (session.token_file or not renew):
            session.read_token(renew)
            return session
        unusable: tuple[type[Exception], ...] = (KubeError, *transport_errors())
        try:
            return Session(self._configure(), self._trust_env, self._timeout)
        except unusable:
            if session is None:
                raise
            return session  # half-written files: what we have may still do


def _known(name: str) -> str:
    """Return a name. Raises ``KubeInvalid`` for none, which would mean the whole collection."""
    if not name:
        raise KubeInvalid("an object without a name")
    return name


def _written(dry_run: bool = False) -> dict[str, str]:
    return {"fieldManager": FIELD_MANAGER, **({"dryRun": "All"} if dry_run else {})}


def _selector(fields: Mapping[str, str] | None) -> dict[str, str]:
    """Return the query that selects by fields; commas, equal signs and backslashes are escaped."""
    if not fields:
        return {}
    terms = (key + "=" + re.sub(r"([,=\\])", r"\\\1", value) for key, value in fields.items())
    return {"fieldSelector": ",".join(terms)}


def _event(event: Json, path: str) -> tuple[str, Change | None]:
    """Return the resource version that a watch event reached, and the change unless a bookmark."""
    kind, found = event.get("type"), event.get("object")
    if not isinstance(kind, str) or not isinstance(found, dict):
        raise KubeUnreachable(f"watch of {path}: not an event")
    if kind == "ERROR":
        raise from_status(found, f"watch of {path}")
    shaped(MARKED if kind == "BOOKMARK" else Stored, found, f"watch of {path}")
    version = str((found.get("metadata") or {}).get("resourceVersion", ""))
    return version, None if kind == "BOOKMARK" else Change(kind, found)


def _resumable(version: str, error: KubeError, backoff: Backoff) -> str:
    """Return where to resume a watch that failed; nowhere after 410, or many failures in a row."""
    lost = isinstance(error, KubeGone) or (backoff.failures + 1) % _RELIST_AFTER == 0
    return "" if lost else version
