"""Requests to an API server and what is looked at in its answers: what two servers must share.

What differs from one server or run to the next (UIDs, revisions, times, made up names) is shown as
a word in angle brackets, so that an answer can be written down and compared.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2

Json = dict[str, Any]
GROUP = "/apis/resource.k8s.io/v1"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"

_VOLATILE = {
    "uid": "<uid>",
    "resourceVersion": "<version>",
    "creationTimestamp": "<time>",
    "deletionTimestamp": "<time>",
    "time": "<time>",
    "continue": "<continue>",
}
_WORDS = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<uid>"),
    (
        re.compile(r"((?:resource ?version|in the precondition|in record)[^0-9]{0,3})\d+", re.I),
        r"\1<n>",
    ),
    (re.compile(r"(resource version: )<n> \(\d+\)"), r"\1<n> (<n>)"),
    (re.compile(r"\w+ \"system:serviceaccount:[^\"]+\""), "<user>"),
)
_MANY, _LONG = 12, 1200
_LOOSE = (
    # What Go says of JSON, of its types and files is not for us to repeat.
    re.compile(r"(cannot be handled as a \w+: (?!strict)).*", re.S),
    re.compile(r"(parse error: |error decoding patch: |error encoding patch: ).*", re.S),
    re.compile(r"(continue key is not valid: |no kind \".*?\" is registered ).*", re.S),
    re.compile(r"((?<!\w)patch: Invalid value: ).*", re.S),
    re.compile(r'^(Invalid value: )"(?:\{"apiVersion|\{\\"apiVersion|…).*', re.S),
    re.compile(r"^(unable to parse requirement: |found '.*', expected: ).*", re.S),
)
_DUMP = re.compile(
    r"((?:Invalid|Duplicate) value: )[\[{].*?[\]}](?=: [A-Za-z`]|, [a-z]+[.\[]|\]?$)"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; ``body`` is JSON, or text under ``text``."""

    code: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        return str(self.body["metadata"]["resourceVersion"])

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])


class Api:
    """One test's way to a server. Names that it makes are nobody else's."""

    _fresh = itertools.count(1)

    def __init__(self, client: httpx2.AsyncClient, run: str) -> None:
        self.client = client
        self.prefix = f"c{run}-{next(self._fresh)}-"

    def name(self, word: str) -> str:
        return self.prefix + word

    @asynccontextmanager
    async def forbidden(self, verb: str, path: str) -> AsyncIterator[dict[str, str]]:
        """Give headers under which a verb on a path is forbidden for a while."""
        raise AssertionError(f"no way to forbid {verb} on {path}")
        yield {}

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        **words: str,
    ) -> Answer:
        """Send one request; ``body`` is JSON, or bytes as they are; ``words`` are of the query."""
        raw = body if isinstance(body, bytes) else _compact(body)
        sent = {"Content-Type": kind} if body is not None else {}
        found = await self.client.request(
            method,
            path,
            content=raw if body is not None else None,
            headers=sent | dict(headers or {}),
            params=dict(query or {}) | words,
        )
        return Answer(found.status_code, _body(found), dict(found.headers))

    @asynccontextmanager
    async def watch(self, path: str, **query: Any) -> AsyncIterator[Watch]:
        """Open a watch."""
        asked = {"watch": "true", "timeoutSeconds": "60"} | query
        async with self.client.stream("GET", path, params=asked) as stream:
            yield Watch(self, stream)

    def look(self, *answers: Answer) -> list[Json]:
        """Return what is compared of answers."""
        return [{"code": one.code, "body": self.seen(one.body)} for one in answers]

    def seen(self, body: Any) -> Any:
        """Return JSON without what differs between two runs; of what is long the beginning."""
        if isinstance(body, dict):
            few = dict(sorted(body.items())[:_MANY]) if len(body) > _MANY else body
            shown = {self.said(k): self._field(k, v) for k, v in few.items()}
            return shown | ({"…": len(body)} if few is not body else {})
        if isinstance(body, list):
            more = [f"… {len(body)}"] if len(body) > _MANY else []
            return [self.seen(item) for item in body[:_MANY]] + more
        return self.said(body) if isinstance(body, str) else body

    def _field(self, name: str, value: Any) -> Any:
        if name in _VOLATILE and isinstance(value, str):
            return _VOLATILE[name] if value else ""
        if name == "causes":
            unique = {json.dumps(cause, sort_keys=True): cause for cause in self.seen(value)}
            return [unique[key] for key in sorted(unique)]
        if name == "managedFields":
            return sorted(self.seen([_owned(one) for one in value]), key=json.dumps)
        return self.seen(value)

    def said(self, text: str) -> str:
        """Return a text without what differs between two runs, or between two compilers."""
        text = text.replace(self.prefix, "X-")
        for form in _LOOSE:
            text = form.sub(r"\1…", text)
        text = _DUMP.sub(r"\1…", text)
        for form, word in _WORDS:
            text = form.sub(word, text)
        return text if len(text) <= _LONG else f"{text[:_LONG]}… {len(text)}"


class Watch:
    """A watch that is open; events as they come."""

    def __init__(self, api: Api, stream: httpx2.Response) -> None:
        self._api, self._stream = api, stream
        self._lines = stream.aiter_lines()
        self.code = stream.status_code

    async def next(self) -> Json:
        """Wait for the next event. An ended watch answers ``{"type": "END"}``."""
        with anyio.fail_after(30):
            async for line in self._lines:
                event: Json = json.loads(line)
                return event
        return {"type": "END"}

    async def look(self, count: int) -> list[Any]:
        """Return what is compared of so many events: type, name, and the whole of an error."""
        return [self._event(await self.next()) for _ in range(count)]

    def _event(self, event: Json) -> Any:
        found = event.get("object", {})
        if event["type"] == "ERROR":
            return self._api.seen(event)
        return [event["type"], self._api.said(found.get("metadata", {}).get("name", ""))]


def _compact(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _owned(entry: Json) -> Json:
    """Return an entry of managedFields; a map's own mark (".") only says who made it first."""
    kept = {key: value for key, value in entry.items() if key != "time"}
    return kept | {"fieldsV1": _unmarked(entry["fieldsV1"])}


def _unmarked(fields: Json) -> Json:
    return {key: _unmarked(value) for key, value in fields.items() if key != "."}


def _body(found: httpx2.Response) -> Any:
    try:
        return found.json()
    except ValueError:
        return {"text": found.text}
