"""Requests of the fake API server: what a path names, and what can go wrong with a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hardpoint.testing._api_http import HttpAnswer, HttpRequest
from hardpoint.testing._api_kinds import GROUP, KINDS, serves
from hardpoint.testing._api_patches import APPLY
from hardpoint.testing._api_status import ApiProblem, Json
from hardpoint.testing._api_store import EVICTION
from hardpoint.testing._api_watch import Target


def served_versions(minor: int) -> tuple[str, ...]:
    """Return the versions of resource.k8s.io that a minor release serves, newest first.

    Beta versions are off unless an administrator turns them on: before 1.34 one has to.
    """
    if minor >= 34:
        return ("v1",)
    return ("v1beta2", "v1beta1") if minor == 33 else ("v1beta1",)


@dataclass(slots=True)
class Seen:
    """One request as it came in; ``status`` is 0 until it is answered, or when it never was."""

    method: str
    path: str
    query: dict[str, str]
    body: Any = None
    status: int = 0


@dataclass(eq=False, slots=True)
class Trouble:
    """What happens to requests that match, until ``end()`` or for so many ``times``."""

    method: str = ""
    path: str = ""
    """A piece of the path; empty matches all."""
    saying: bytes = b""
    """A piece of what is sent: a webhook looks at that."""
    status: int = 0
    """Answer with this instead."""
    message: str = "trouble was asked for"
    body: bytes = b""
    """Answer with this and 200 instead, as somebody does who is no API server."""
    delay: float = 0.0
    hang: bool = False
    """Never answer."""
    drop: bool = False
    """Close the connection instead of answering."""
    lose: bool = False
    """Do what is asked, and close the connection instead of saying so."""
    times: int | None = None
    before: Callable[[], object] | None = None
    """Called first: for what another client does at the worst moment."""
    after: Callable[[], object] | None = None
    """Called when it is done and before that is said; it may be ``async``."""
    met: int = 0
    """How many requests it has hit."""

    def hits(self, request: HttpRequest) -> bool:
        """Say whether this request is in for it."""
        left = self.times is None or self.met < self.times
        right = self.method in ("", request.method) and self.path in request.path
        return left and right and self.saying in request.body

    def end(self) -> None:
        """Be over."""
        self.times = 0


def target_of(steps: list[str], versions: tuple[str, ...], minor: int) -> Target | None:
    """Return what a path names; None where there is nothing. Raises 404 inside of an API."""
    if steps[0] == "api" and len(steps) > 1:
        group, version, rest = "", steps[1], steps[2:]
        versions = ("v1",)
    elif steps[:2] == ["apis", GROUP] and len(steps) > 2:
        group, version, rest = GROUP, steps[2], steps[3:]
    else:
        return None
    namespace = ""
    if rest[0:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    kind = next((k for k in KINDS if rest and (k.group, k.plural) == (group, rest[0])), None)
    if kind is None or version not in versions or not serves(kind, version, minor):
        raise unknown_resource()
    name, subresource = (*rest[1:], "", "")[:2]
    wrong = subresource and subresource not in kind.below
    misplaced = bool(namespace) is not kind.namespaced and (name or namespace)
    if len(rest) > 3 or wrong or misplaced:
        raise unknown_resource()
    return Target(kind, version, namespace, name, subresource)


def unknown_resource() -> ApiProblem:
    """Return the refusal of a path that an API does not have."""
    return ApiProblem(404, "the server could not find the requested resource", details={})


def check_method(request: HttpRequest, target: Target) -> None:
    """Raise 405 for a method that a path has not."""
    known: tuple[str, ...] = ("GET", "POST", "DELETE")
    if target.subresource == EVICTION:
        known = ("POST",)
    elif target.subresource:
        known = ("GET", "PUT", "PATCH")
    elif target.name:
        known = ("GET", "PUT", "PATCH", "DELETE")
    elif target.kind.namespaced and not target.namespace:
        known = ("GET",)
    if request.method not in known:
        message = "the server does not allow this method on the requested resource"
        raise ApiProblem(405, message, details={})


_READABLE = ("*/*", "application/json")
_WRITABLE = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")


def check_media(request: HttpRequest) -> None:
    """Raise 406 or 415 for what this server does not write or read (it is JSON, always)."""
    accepted = request.headers.get("accept", "*/*").split(",")
    if not any(one.partition(";")[0].strip() in _READABLE for one in accepted):
        listed = ", ".join((*_WRITABLE, *(f"{one};stream=watch" for one in _WRITABLE[::2])))
        message = f"406: Not Acceptable\n\nAvailable representations: {listed}"
        raise ApiProblem(406, message, details={})
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if request.method in ("POST", "PUT") and kind and kind not in _WRITABLE:
        message = (
            "the body of the request was in an unknown format - accepted media types include: "
            + ", ".join(_WRITABLE)
        )
        raise ApiProblem(415, message)


def discovery(steps: list[str], minor: int, versions: tuple[str, ...]) -> Json | None:
    """Return what the server says of itself; None where the path is no such question."""
    listed = [{"groupVersion": f"{GROUP}/{v}", "version": v} for v in versions]
    group: Json = {"name": GROUP, "versions": listed, "preferredVersion": next(iter(listed), None)}
    answers: dict[str, Json] = {
        "version": {"major": "1", "minor": str(minor), "gitVersion": f"v1.{minor}.0"},
        "api": {"kind": "APIVersions", "versions": ["v1"]},
        "apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group] * bool(listed)},
        **({f"apis/{GROUP}": {"kind": "APIGroup", "apiVersion": "v1", **group}} if listed else {}),
        "api/v1": _resources("", "v1", minor),
        **{f"apis/{GROUP}/{v}": _resources(GROUP, v, minor) for v in versions},
    }
    return answers.get("/".join(steps))


def verb_of(request: HttpRequest, target: Target) -> str:
    """Return the verb that RBAC knows a request by."""
    if request.method == "GET":
        watching = request.query.get("watch") in ("true", "1")
        return "get" if target.name else "watch" if watching else "list"
    words = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    verb = words.get(request.method, request.method.lower())
    return "deletecollection" if verb == "delete" and not target.name else verb


def body_of(request: HttpRequest, kind: str) -> Any:
    """Return the request's JSON; an object of ``kind`` is asked for. Raises 400."""
    if request.method in ("GET", "DELETE") and not request.body:
        return None
    said = f"the object provided is unrecognized (must be of type {kind}): "
    content = request.headers.get("content-type", "")
    if request.method == "PATCH":
        said = "error encoding patch: " if content.startswith(APPLY) else "invalid JSON patch"
    elif request.method == "DELETE":
        said = ""
    if request.method != "PATCH":
        said += "couldn't get version/kind; json parse error: "
    try:
        found = json.loads(request.body)
    except ValueError as error:
        detail = "" if said == "invalid JSON patch" else str(error)
        raise ApiProblem(400, said + detail) from error
    if request.method in ("POST", "PUT"):
        found = {} if found is None else found
        if not isinstance(found, dict):
            raise ApiProblem(400, f"{said}json: cannot unmarshal into Go value")
    return found


def answer(status: int, found: Json, headers: tuple[tuple[str, str], ...] = ()) -> HttpAnswer:
    """Return JSON."""
    body = json.dumps(found, ensure_ascii=False).encode("utf-8", "replace")
    return HttpAnswer(status, body, headers=headers)


def _resources(group: str, version: str, minor: int) -> Json:
    return {
        "kind": "APIResourceList",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": list(_listed(group, version, minor)),
    }


def _listed(group: str, version: str, minor: int) -> Iterator[Json]:
    verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    for kind in KINDS:
        if kind.group != group or not serves(kind, version, minor):
            continue
        own = [verb for verb in verbs if (kind.plural, verb) != ("namespaces", "deletecollection")]
        plain: Json = {"kind": kind.name, "namespaced": kind.namespaced}
        yield {"name": kind.plural, "singularName": kind.name.lower(), **plain, "verbs": own}
        if kind.status:
            few = ["get", "patch", "update"]
            yield {"name": f"{kind.plural}/status", "singularName": "", **plain, "verbs": few}
