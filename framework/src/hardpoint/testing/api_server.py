"""A fake API server: real HTTP on loopback, as strict as the real one about DRA objects.

``resource.k8s.io`` in v1, v1beta2 and v1beta1 over one storage, core ``v1`` nodes, pods, namespaces
and events; list, watch, server-side apply, preconditions, limits, feature gates of a chosen minor
release, tokens that expire. Tests and ``make run`` use it; nothing in it needs a cluster::

    async with FakeApiServer(minor=37) as server:
        server.add_node("node-a")
        kube = Kube.at(server.url)
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

import anyio
from anyio.abc import SocketAttribute, SocketStream

from hardpoint.testing._api_gates import GATES
from hardpoint.testing._api_http import Dropped, HttpAnswer, HttpRequest, serve_connection
from hardpoint.testing._api_kinds import BEGINNING, KINDS, NAMESPACES, SLICES
from hardpoint.testing._api_lists import listing
from hardpoint.testing._api_options import check_delete, warns
from hardpoint.testing._api_paths import (
    Seen,
    Trouble,
    answer,
    body_of,
    check_media,
    check_method,
    discovery,
    served_versions,
    target_of,
    verb_of,
)
from hardpoint.testing._api_status import ApiProblem, Json, named, qualified
from hardpoint.testing._api_store import EVICTION, Backup, Kind, Store
from hardpoint.testing._api_verbs import Asked, Verbs
from hardpoint.testing._api_watch import Target, shown

_ANONYMOUS = "system:anonymous"
_USER = "system:serviceaccount:hardpoint:hardpoint"
_WRITES = ("POST", "PUT", "PATCH", "DELETE")


class FakeApiServer:
    """An API server on a loopback port; ``async with`` it.

    ``minor`` is the release it behaves as, ``gates`` feature gates that differ from that release's
    defaults, ``versions`` what it serves of resource.k8s.io, ``settling`` how many seconds it
    forbids everything after it was ``down``.
    """

    def __init__(
        self,
        *,
        minor: int = 37,
        versions: tuple[str, ...] | None = None,
        gates: Mapping[str, bool] | None = None,
        port: int = 0,
        settling: float = 0.05,
    ) -> None:
        self.minor, self._port, self.settling = minor, port, settling
        self.versions = served_versions(minor) if versions is None else versions
        self.gates = {name: minor >= since for name, since in GATES.items()} | dict(gates or {})
        self.requests: list[Seen] = []
        self._store = Store()
        self._verbs = Verbs(self._store, minor, lambda gate: self.gates.get(gate, False))
        self._tokens: set[str] = set()
        self._denied: set[tuple[str, str]] = set()
        self._troubles: list[Trouble] = []
        self._connections: set[anyio.CancelScope] = set()
        self._down = False
        self._settled_at = 0.0
        self._exits = AsyncExitStack()
        for name in BEGINNING:
            self._add_namespace(name)

    # -- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> FakeApiServer:
        await self._exits.__aenter__()
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=self._port)
        self._exits.push_async_callback(listener.aclose)
        self._port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - a socket
        tasks = await self._exits.enter_async_context(anyio.create_task_group())
        tasks.start_soon(listener.serve, self._connection)
        self._exits.callback(tasks.cancel_scope.cancel)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._exits.__aexit__(kind, error, trace)

    @property
    def url(self) -> str:
        """Where it listens: ``http://127.0.0.1:41234``."""
        return f"http://127.0.0.1:{self._port}"

    async def _connection(self, stream: SocketStream) -> None:
        with anyio.CancelScope() as scope:
            self._connections.add(scope)
            try:
                if self._down:
                    await stream.aclose()
                else:
                    await serve_connection(stream, self._answer)
            finally:
                self._connections.discard(scope)

    # -- what goes wrong --------------------------------------------------------------------------

    @property
    def down(self) -> bool:
        """True while every connection is closed as it comes.

        A server that comes back remembers no changes from before: its watch cache is in memory.
        For a moment (``settling`` seconds) it knows no roles either, and forbids everything.
        """
        return self._down

    @down.setter
    def down(self, value: bool) -> None:
        if self._down and not value:
            self.compact()
            self._settled_at = anyio.current_time() + self.settling
        self._down = value
        for scope in list(self._connections) if value else ():
            scope.cancel()

    def trouble(self, **what: Any) -> Trouble:
        """Let requests fail; the fields of ``Trouble`` say which and how."""
        trouble = Trouble(**what)
        self._troubles.append(trouble)
        return trouble

    def require_token(self, *tokens: str) -> None:
        """Accept these bearer tokens alone; none accepts everybody again."""
        self._tokens = set(tokens)

    def deny(self, verb: str, plural: str) -> None:
        """Answer 403, as RBAC does: ``deny("create", "resourceslices")``; ``*`` is every verb."""
        self._denied.add((verb, plural))

    def allow(self, verb: str, plural: str) -> None:
        """End a ``deny``."""
        self._denied.discard((verb, plural))

    def close_watches(self) -> None:
        """End every watch as if its time was over."""
        self._verbs.lists.switches.closed += 1
        self._store.wake()

    def drop_watches(self) -> None:
        """Break every watch in the middle."""
        self._verbs.lists.switches.dropped += 1
        self._store.wake()

    def bookmark(self) -> None:
        """Send every watch a bookmark now; otherwise there is one a minute."""
        self._verbs.lists.switches.bookmarks += 1
        self._store.wake()

    def compact(self) -> None:
        """Forget the past: a watch from before gets 410."""
        self._store.compact()
        self._store.wake()

    def backup(self) -> Backup:
        """Return all that is stored, for ``restore``."""
        return self._store.backup()

    def restore(self, backup: Backup) -> None:
        """Start anew from a backup: resource versions go back, and will be used a second time."""
        self.down = True
        self._store.restore(backup)
        self.down = False

    @property
    def _unsynced(self) -> bool:
        return self._settled_at > 0 and anyio.current_time() < self._settled_at

    async def until_settled(self) -> None:
        """Wait until it knows roles again after it was ``down``."""
        await anyio.sleep_until(self._settled_at)

    # -- what others do ---------------------------------------------------------------------------

    @property
    def resource_version(self) -> str:
        """The revision of the last write."""
        return str(self._store.revision)

    def add(self, body: Json) -> Json:
        """Create an object as another client would, any status included; return it as stored.

        Raises ``ApiProblem`` for what the server would refuse.
        """
        target = self._target_of(body)
        if target.namespace and ("", target.namespace) not in self._store.all(NAMESPACES):
            self._add_namespace(target.namespace)
        status = copy.deepcopy(body.get("status"))
        stored = self._verbs.create(target, copy.deepcopy(body), Asked({}, "test"))
        if status is not None:
            self.edit(target.kind.plural, stored["metadata"]["name"], target.namespace).update(
                status=status
            )
            stored = self.get(target.kind.plural, stored["metadata"]["name"], target.namespace)
        return shown(target, stored)

    def _add_namespace(self, name: str) -> None:
        body = {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}}
        self._verbs.create(Target(NAMESPACES, "v1", "", name), body, Asked({}, "test"))

    def add_node(self, name: str, labels: Mapping[str, str] | None = None) -> Json:
        """Create a node; its UID is new every time."""
        return self.add(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": dict(labels or {})},
            }
        )

    def get(self, plural: str, name: str, namespace: str = "", version: str = "v1") -> Json:
        """Return a copy of one object. Raises ``ApiProblem`` with code 404."""
        kind = self._kind(plural)
        target = Target(kind, version, namespace, name)
        return shown(target, self._store.get(kind, namespace, name).body)

    def items(self, plural: str, version: str = "v1") -> list[Json]:
        """Return copies of a collection, in order of name."""
        kind = self._kind(plural)
        stored = sorted(self._store.all(kind).items())
        return [shown(Target(kind, version), found.body) for _, found in stored]

    def edit(self, plural: str, name: str, namespace: str = "") -> _Edit:
        """Change an object behind everybody's back: ``edit(...).update(status={...})``."""
        return _Edit(self, self._kind(plural), namespace, name)

    def remove(self, plural: str, name: str, namespace: str = "") -> None:
        """Take an object away at once, without preconditions, grace or finalizers."""
        kind = self._kind(plural)
        self._store.remove(kind, self._store.get(kind, namespace, name))

    def wipe(self, node: str, driver: str = "") -> int:
        """Delete a node's slices, as its kubelet does when it starts; return how many."""
        fields = f"spec.nodeName={node}" + (f",spec.driver={driver}" if driver else "")
        target = Target(SLICES, self.versions[0])
        return len(self._verbs.delete_collection(target, {"fieldSelector": fields}))

    def allocate(
        self,
        namespace: str,
        name: str,
        results: list[Json],
        *,
        config: list[Json] | None = None,
        reserved_for: list[Json] | None = None,
    ) -> Json:
        """Allocate a claim, as the scheduler does; return it."""
        devices: Json = {"results": results, "config": config or []}
        status = {"allocation": {"devices": devices}, "reservedFor": reserved_for or []}
        self.edit("resourceclaims", name, namespace).update(status=status)
        return self.get("resourceclaims", name, namespace)

    async def until(self, condition: Callable[[], object], seconds: float = 10.0) -> None:
        """Wait until something is true of the server; looks after every change and request.

        Raises ``TimeoutError``.
        """
        with anyio.fail_after(seconds):
            while not condition():
                await self._store.changed.wait()

    # -- what was asked of it ---------------------------------------------------------------------

    def writes(self, plural: str = "") -> list[Seen]:
        """Return the requests that changed something, dry runs excepted."""
        return [
            seen
            for seen in self.requests
            if seen.method in _WRITES
            and seen.status in (200, 201)
            and "dryRun" not in seen.query
            and f"/{plural}" in seen.path
        ]

    # -- requests ---------------------------------------------------------------------------------

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        seen = Seen(request.method, request.path, dict(request.query))
        self.requests.append(seen)
        self._store.wake()
        try:
            trouble = await self._meet_trouble(request)
            said = HttpAnswer(200, trouble.body, "application/json")
            if not trouble.body:
                said = self._handle(request, seen)
            await _called(trouble.after)
            lose = trouble.lose
        except ApiProblem as problem:
            later = (("Retry-After", "1"),) if problem.code in (429, 503) else ()
            said = answer(problem.code, problem.status(), later)
            lose = False
        except (TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            broken = ApiProblem(500, f"this fake cannot do it: {type(error).__name__}: {error}")
            said, lose = answer(500, broken.status()), False
        if lose:
            raise Dropped
        seen.status = said.status
        self._store.wake()
        return said

    async def _meet_trouble(self, request: HttpRequest) -> Trouble:
        """Meet what this request is in for; return what is left for when it is done."""
        left = Trouble()
        for trouble in [found for found in self._troubles if found.hits(request)]:
            trouble.met += 1
            await _called(trouble.before)
            if trouble.hang:
                await anyio.sleep_forever()
            await anyio.sleep(trouble.delay)
            if trouble.drop:
                raise Dropped
            if trouble.status:
                raise ApiProblem(trouble.status, trouble.message)
            left.lose, left.after = left.lose or trouble.lose, trouble.after or left.after
            left.body = left.body or trouble.body
        return left

    def _handle(self, request: HttpRequest, seen: Seen) -> HttpAnswer:
        steps = request.path.strip("/").split("/")
        if steps[0] in ("healthz", "livez", "readyz"):
            return HttpAnswer(200, b"ok", "text/plain; charset=utf-8")
        known = self._authenticate(request)
        if request.too_large:
            raise ApiProblem(413, "Request entity too large: limit is 3145728")
        found = discovery(steps, self.minor, self.versions)
        if found is not None and not known and steps != ["version"]:
            message = f'forbidden: User "{_ANONYMOUS}" cannot get path "{request.path}"'
            raise ApiProblem(403, message, details={})
        if found is not None:
            return answer(200, found)
        target = target_of(steps, self.versions, self.minor)
        if target is None:
            return HttpAnswer(404, b"404 page not found\n", "text/plain; charset=utf-8")
        self._authorize(verb_of(request, target), target, known)
        check_method(request, target)
        check_media(request)
        seen.body = body_of(request, target.kind.name)
        return self._dispatch(request, target, seen.body)

    def _authenticate(self, request: HttpRequest) -> bool:
        """Say whether somebody is known; who shows no bearer token is anonymous. Raises 401."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if not self._tokens:
            return True
        if scheme == "Bearer" and token not in self._tokens:
            raise ApiProblem(401, "Unauthorized")
        return scheme == "Bearer"

    def _authorize(self, verb: str, target: Target, known: bool) -> None:
        plural, group = target.kind.plural, target.kind.group
        resource = f"{plural}/{target.subresource}" if target.subresource else plural
        denied = self._denied & {(verb, resource), ("*", resource)}
        if known and not denied and not self._unsynced:
            return
        scope = (
            f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
        )
        what = qualified(group, plural) + (f' "{target.name}"' if target.name else "")
        user = _USER if known else _ANONYMOUS
        message = (
            f'{what} is forbidden: User "{user}" cannot {verb} resource '
            f'"{resource}" in API group "{group}" {scope}'
        )
        raise ApiProblem(403, message, details=named(group, plural, target.name))

    def _dispatch(self, request: HttpRequest, target: Target, body: Any) -> HttpAnswer:
        who = request.headers.get("user-agent", "unknown").split("/")[0]
        query, verbs = request.query, self._verbs
        asked = Asked(query, who)
        if request.method == "GET":
            return self._read(target, query)
        if request.method == "DELETE":
            return self._delete(target, body, asked)
        code = 200
        if target.subresource == EVICTION:
            return answer(201, {**verbs.evict(target, body, asked), "code": 201})
        if request.method == "POST":
            code, stored = 201, verbs.create(target, body, asked)
        elif request.method == "PUT":
            stored = verbs.replace(target, body, asked)
        else:
            content = request.headers.get("content-type", "").partition(";")[0]
            code, stored = verbs.patch(target, body, content, asked)
        told = asked.unknown if warns(query) else []
        warnings = ", ".join(f'299 - "unknown field \\"{path}\\""' for path in told)
        return answer(code, shown(target, stored), (("Warning", warnings),) if warnings else ())

    def _delete(self, target: Target, body: Any, asked: Asked) -> HttpAnswer:
        options = check_delete(body, asked.query, self.minor)
        if not target.name:
            gone = self._verbs.delete_collection(target, asked.query)
            version = {"resourceVersion": self.resource_version}
            return answer(200, listing(target, gone, version))
        stored = self._verbs.delete(target, options, asked)
        if target.kind.returned or stored["metadata"].get("deletionTimestamp"):
            return answer(200, shown(target, stored))
        details = named(target.kind.group, target.kind.plural, target.name)
        details["uid"] = stored["metadata"]["uid"]
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return answer(200, {**status, "details": details})

    def _read(self, target: Target, query: dict[str, str]) -> HttpAnswer:
        if target.name:
            found = self._store.get(target.kind, target.namespace, target.name)
            return answer(200, shown(target, found.body))
        if query.get("watch") in ("true", "1"):
            return HttpAnswer(200, chunks=self._verbs.lists.watch(target, query))
        return answer(200, self._verbs.lists.list(target, query))

    # -- paths ------------------------------------------------------------------------------------

    def _kind(self, plural: str) -> Kind:
        return next(kind for kind in KINDS if kind.plural == plural)

    def _target_of(self, body: Json) -> Target:
        group, _, version = body["apiVersion"].rpartition("/")
        kind = next(k for k in KINDS if (k.group, k.name) == (group, body["kind"]))
        namespace = body["metadata"].get("namespace", "") if kind.namespaced else ""
        return Target(kind, version, namespace, body["metadata"].get("name", ""))


class _Edit:
    """A change to one object that no client of the API made."""

    def __init__(self, server: FakeApiServer, kind: Kind, namespace: str, name: str) -> None:
        self._store, self._kind = server._store, kind
        self._key = (namespace, name)

    def update(self, **parts: Any) -> None:
        """Replace whole parts: ``spec``, ``status``, or fields of ``metadata``."""

        def change(body: Json) -> None:
            body["metadata"].update(parts.pop("metadata", {}))
            body.update(parts)

        self.change(change)

    def change(self, change: Callable[[Json], object]) -> None:
        """Let a function change a copy of the object, and store that: its age and UID, too."""
        old = self._store.get(self._kind, *self._key)
        body = copy.deepcopy(old.body)
        change(body)
        self._store.alter(self._kind, old, body, old.owners)


async def _called(act: Callable[[], object] | None) -> None:
    done = act() if act is not None else None
    if isinstance(done, Awaitable):
        await done
