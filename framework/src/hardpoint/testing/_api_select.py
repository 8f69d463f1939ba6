"""Label and field selectors, as the API server reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from hardpoint.testing._api_status import ApiProblem, Json

if TYPE_CHECKING:
    from hardpoint.testing._api_store import Kind

Match: TypeAlias = Callable[[Mapping[str, str]], bool]

_TOKENS = re.compile(r"\s*(==|!=|[=!,()<>]|[^\s=!,()<>]+)")
_WORDS = ("in", "notin")
_OPERATORS = ("=", "==", "!=", ">", "<", *_WORDS)


def selector(kind: Kind, version: str, query: Mapping[str, str]) -> Callable[[Json], bool]:
    """Return the test for ``fieldSelector`` and ``labelSelector``. Raises 400."""
    labels = _Labels(query.get("labelSelector", "")).read()
    fields = _fields(query.get("fieldSelector", ""))
    for path, _, _ in fields:
        _check_known(kind, version, path)

    def matches(body: Json) -> bool:
        owned = body["metadata"].get("labels") or {}
        return all((_at(body, path) == value) is same for path, same, value in fields) and all(
            match(owned) for match in labels
        )

    return matches


# -- labels ---------------------------------------------------------------------------------------


class _Labels:
    """Reads requirements between commas: ``a=b``, ``a!=b``, ``a``, ``!a``, ``a in (b, c)``."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKENS.findall(text)
        self._at = 0

    def read(self) -> list[Match]:
        found: list[Match] = []
        while self._next() is not None:
            if found:
                self._expect(",", "',' or 'end of string'")
            found.append(self._requirement())
        return found

    def _next(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self) -> str:
        token = self._next()
        self._at += 1
        return "" if token is None else str(token)

    def _expect(self, token: str, wanted: str) -> None:
        found = self._take()
        if found != token:
            raise ApiProblem(400, f"found '{found}', expected: {wanted}")

    def _requirement(self) -> Match:
        missing = self._next() == "!"
        self._at += missing
        key = self._take()
        if not re.fullmatch(r"[^=!,()<>]+", key):
            raise ApiProblem(400, f"found '{key}', expected: identifier after ','")
        if missing:
            return lambda labels: key not in labels
        if self._next() in (None, ","):
            return lambda labels: key in labels
        return self._compared(key)

    def _compared(self, key: str) -> Match:
        operator = self._take()
        if operator not in _OPERATORS:
            words = "in, notin, =, ==, !=, gt, lt"
            raise ApiProblem(
                400, f"unable to parse requirement: found '{operator}', expected: {words}"
            )
        values = self._values() if operator in _WORDS else {self._value()}
        if operator in (">", "<"):
            return _by_number(key, operator, values.pop())
        if operator in ("!=", "notin"):
            return lambda labels: labels.get(key) not in values
        return lambda labels: labels.get(key) in values

    def _value(self) -> str:
        return "" if self._next() in (None, ",") else self._take()

    def _values(self) -> set[str]:
        if (found := self._take()) != "(":
            raise ApiProblem(400, f"unable to parse requirement: found '{found}' expected: '('")
        values = {self._take()} if self._next() != ")" else {""}
        while self._next() == ",":
            self._at += 1
            values.add(self._take())
        self._expect(")", "',' or ')'")
        return values


def _by_number(key: str, operator: str, value: str) -> Match:
    if not re.fullmatch(r"-?\d+", value):
        raise ApiProblem(400, f"unable to parse requirement: values[0]: Invalid value: {value!r}")
    bound = int(value)

    def match(labels: Mapping[str, str]) -> bool:
        found = labels.get(key, "")
        if not re.fullmatch(r"-?\d+", found):
            return False
        return int(found) > bound if operator == ">" else int(found) < bound

    return match


# -- fields ---------------------------------------------------------------------------------------


def _fields(text: str) -> list[tuple[str, bool, str]]:
    """Return path, whether it must be equal, and value of each term."""
    terms = re.findall(r"(?:\\.|[^,\\])+", text)
    return [_field(term, text) for term in terms]


def _field(term: str, whole: str) -> tuple[str, bool, str]:
    match = re.fullmatch(r"([^=!]*)(!=|==|=)(.*)", term, re.S)
    if match is None:
        raise ApiProblem(400, f"invalid selector: '{whole}'; can't understand '{term}'")
    path, operator, value = match.groups()
    unescaped = re.sub(r"\\[\\,=]", "", value)
    if "=" in unescaped:
        message = f"invalid field selector: unescaped character in value: {ord('=')}"
        raise ApiProblem(400, message)
    return path, operator != "!=", re.sub(r"\\([\\,=])", r"\1", value)


def _check_known(kind: Kind, version: str, path: str) -> None:
    plain = ("metadata.name", "metadata.namespace") if kind.namespaced else ("metadata.name",)
    if path in (*plain, *kind.fields):
        return
    if not kind.group:
        raise ApiProblem(400, f"field label not supported: {path}")
    if kind.fields:
        what = f"{kind.group}/{version}, Kind={kind.name}"
        raise ApiProblem(400, f"field label not supported for {what}: {path}")
    known = '"metadata.name", "metadata.namespace"'
    raise ApiProblem(400, f'"{path}" is not a known field selector: only {known}')


def _at(body: Json, path: str) -> str:
    value: object = body
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    missing = "false" if path in ("spec.unschedulable", "spec.hostNetwork") else ""
    return missing if value is None else str(value)
