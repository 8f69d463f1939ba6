"""What a request asks for beside its object: queries and delete options, judged like objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hardpoint.testing._api_status import ApiProblem, Causes, invalid

_META = "meta.k8s.io"
_VALIDATIONS = ("", "Ignore", "Strict", "Warn")
_POLICIES = ("Foreground", "Background", "Orphan", "nil")
_MATCHES = ("Exact", "NotOlderThan", "")


def check_write(kind: str, query: Mapping[str, str], *, apply: bool = False) -> None:
    """Check the query of a write; ``kind`` is ``CreateOptions`` and so on. Raises 422."""
    causes = Causes()
    _dry_run(causes, query.get("dryRun", ""))
    manager = query.get("fieldManager", "")
    if apply and not manager:
        causes.required("fieldManager", "is required for apply patch")
    if len(manager.encode()) > 128:
        causes.too_long("fieldManager", 128)
    validation = query.get("fieldValidation", "")
    if validation not in _VALIDATIONS:
        causes.unsupported("fieldValidation", validation, _VALIDATIONS)
    if causes:
        raise invalid(_META, kind, "", causes)


def _dry_run(causes: Causes, value: str) -> None:
    if value not in ("", "All"):
        causes.unsupported("dryRun", [value], ("All",))


def is_dry(query: Mapping[str, str], options: Mapping[str, Any] | None = None) -> bool:
    """Say whether a write is to be judged only."""
    return query.get("dryRun") == "All" or "All" in ((options or {}).get("dryRun") or ())


def is_strict(query: Mapping[str, str]) -> bool:
    """Say whether unknown fields are to be refused."""
    return query.get("fieldValidation") == "Strict"


def warns(query: Mapping[str, str]) -> bool:
    """Say whether unknown fields are told of, as they are where nothing is asked."""
    return query.get("fieldValidation", "Warn") in ("", "Warn")


def check_delete(options: Any, query: Mapping[str, str], minor: int) -> dict[str, Any]:
    """Return a delete's options. Raises 400 (500 before 1.35) or 422."""
    code, reason = (400, "BadRequest") if minor >= 35 else (500, None)
    if options is not None and not isinstance(options, dict):
        message = "couldn't get version/kind; json parse error: json: cannot unmarshal"
        raise ApiProblem(code, message, reason)
    chosen: dict[str, Any] = dict(options or {})
    kind, version = chosen.get("kind", "DeleteOptions"), chosen.get("apiVersion", "v1")
    if kind != "DeleteOptions":
        message = f'no kind "{kind}" is registered for version "{version}" in scheme "fake"'
        raise ApiProblem(code, message, reason)
    causes = Causes()
    for value in chosen.get("dryRun") or [query.get("dryRun", "")]:
        _dry_run(causes, value)
    policy = chosen.get("propagationPolicy", query.get("propagationPolicy"))
    if policy is not None and policy not in _POLICIES[:3]:
        causes.unsupported("propagationPolicy", policy, _POLICIES)
    if causes:
        raise invalid(_META, "DeleteOptions", "", causes)
    return chosen


# -- collections ----------------------------------------------------------------------------------


def check_read(query: Mapping[str, str], *, watching: bool) -> None:
    """Check the query of a list or a watch. Raises 400 or 422."""
    for name in ("limit", "timeoutSeconds"):
        if not re.fullmatch(r"[+-]?\d+|", query.get(name, "")):
            message = f'strconv.ParseInt: parsing "{query[name]}": invalid syntax'
            raise ApiProblem(400, message)
    version = query.get("resourceVersion", "")
    causes = Causes()
    _match(causes, query, watching)
    if causes:
        raise invalid(_META, "ListOptions", "", causes)
    if not re.fullmatch(r"\d*", version):
        said = f'Invalid value: "{version}": strconv.ParseUint: parsing "{version}": invalid syntax'
        if watching:
            raise ApiProblem(500, f"resourceVersion: {said}", reason=None)
        raise ApiProblem(400, f"invalid resource version: resourceVersion: {said}")


def _match(causes: Causes, query: Mapping[str, str], watching: bool) -> None:
    path, match = "resourceVersionMatch", query.get("resourceVersionMatch", "")
    initial = "sendInitialEvents" in query
    if match not in _MATCHES:
        causes.unsupported(path, match, _MATCHES)
    elif watching and initial and match != "NotOlderThan":
        detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        causes.forbidden(path, detail)
    elif watching and match and not initial:
        detail = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        causes.forbidden(path, detail)
    elif not watching and match and not query.get("resourceVersion"):
        detail = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        causes.forbidden(path, detail)


def limit_of(query: Mapping[str, str]) -> int:
    """Return how many items a page has; 0 for all."""
    return max(0, int(query.get("limit") or 0))
