"""Requests of the fake API server: what a path names, and what can go wrong with a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hardpoint.testing._api_http import HttpAnswer, HttpRequest
from hardpoint.testing._api_status import ApiProblem, Json
from hardpoint.testing._api_verbs import CLAIMS, GROUP, KINDS, PODS, TAINT_RULES
from hardpoint.testing._api_watch import Target


def served_versions(minor: int) -> tuple[str, ...]:
    """Return the versions of resource.k8s.io that a minor release serves, newest first."""
    if minor >= 34:
        return ("v1", "v1beta2", "v1beta1")
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
    status: int = 0
    """Answer with this instead."""
    message: str = "trouble was asked for"
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
        return left and right

    def end(self) -> None:
        """Be over."""
        self.times = 0


def target_of(steps: list[str], versions: tuple[str, ...]) -> Target | None:
    """Return what a path names; None where this server serves nothing."""
    if steps[0] == "api" and steps[1:2] == ["v1"]:
        group, version, rest = "", "v1", steps[2:]
    elif steps[:2] == ["apis", GROUP] and steps[2:3] and steps[2] in versions:
        group, version, rest = GROUP, steps[2], steps[3:]
    else:
        return None
    namespace = ""
    if rest[0:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    kinds = [k for k in KINDS if (k.group, k.plural) == (group, rest[0] if rest else "")]
    if not kinds or len(rest) > 3 or (namespace and not kinds[0].namespaced):
        return None
    name, subresource = (*rest[1:], "", "")[:2]
    return (
        None
        if subresource not in ("", "status")
        else Target(kinds[0], version, namespace, name, subresource)
    )


def discovery(steps: list[str], minor: int, versions: tuple[str, ...]) -> Json | None:
    """Return what the server says of itself; None where the path is no such question."""
    listed = [{"groupVersion": f"{GROUP}/{v}", "version": v} for v in versions]
    group: Json = {"name": GROUP, "versions": listed, "preferredVersion": listed[0]}
    answers: dict[str, Json] = {
        "version": {"major": "1", "minor": str(minor), "gitVersion": f"v1.{minor}.0"},
        "api": {"kind": "APIVersions", "versions": ["v1"]},
        "apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]},
        f"apis/{GROUP}": {"kind": "APIGroup", "apiVersion": "v1", **group},
        "api/v1": _resources("v1", ""),
        **{f"apis/{GROUP}/{v}": _resources(f"{GROUP}/{v}", GROUP) for v in versions},
    }
    healthy = {"healthz", "livez", "readyz"}
    return {"status": "ok"} if steps[0] in healthy else answers.get("/".join(steps))


def verb_of(request: HttpRequest, target: Target) -> str:
    """Return the verb that RBAC knows a request by."""
    if request.method == "GET":
        watching = request.query.get("watch") in ("true", "1")
        return "get" if target.name else "watch" if watching else "list"
    words = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    verb = words.get(request.method, request.method.lower())
    return "deletecollection" if verb == "delete" and not target.name else verb


def body_of(request: HttpRequest) -> Any:
    """Return the request's JSON. Raises 400."""
    if not request.body:
        return None
    try:
        return json.loads(request.body)
    except ValueError as error:
        raise ApiProblem(400, f"couldn't get version/kind; json parse error: {error}") from error


def answer(status: int, found: Json, headers: tuple[tuple[str, str], ...] = ()) -> HttpAnswer:
    """Return JSON."""
    body = json.dumps(found, ensure_ascii=False).encode("utf-8", "replace")
    return HttpAnswer(status, body, headers=headers)


def _resources(group_version: str, group: str) -> Json:
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": list(_listed(group)),
    }


def _listed(group: str) -> Iterator[Json]:
    verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    for kind in KINDS:
        if kind.group == group:
            plain: Json = {"name": kind.plural, "kind": kind.name, "namespaced": kind.namespaced}
            yield {**plain, "singularName": kind.name.lower(), "verbs": verbs}
            if kind in (CLAIMS, PODS, TAINT_RULES) or kind.plural == "nodes":
                yield {
                    **plain,
                    "name": f"{kind.plural}/status",
                    "verbs": ["get", "patch", "update"],
                }
