"""Conditions of the Node: true while they are, then false, so that people see since when."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hardpoint.grants import NodeCondition
from hardpoint.kube import Json

OVER = "Resolved"
"""Reason of a condition that is false."""

_LONGEST = 1024
_MOST_OVER = 16
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_TYPE = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z]([-A-Za-z0-9_.]{0,98}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Said:
    """What is said of a condition, without the times."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Before:
    """What the Node says now: its conditions, and the types of those that are ours."""

    conditions: Mapping[str, Json] = field(default_factory=dict)
    ours: Collection[str] = ()

    def said(self, type_: str) -> Said | None:
        """Return what is said of a condition; None where nothing is."""
        found = self.conditions.get(type_)
        if found is None:
            return None
        return _said(found)


def words(listed: Iterable[Json]) -> list[tuple[str, Said]]:
    """Return what conditions say, without the times."""
    return [(str(one.get("type")), _said(one)) for one in listed]


def _said(found: Json) -> Said:
    return Said(*(str(found.get(key) or "") for key in ("status", "reason", "message")))


def named(
    raised: Iterable[NodeCondition],
    renamed: Callable[[str, str], tuple[str, str]],
    kept: Collection[str],
) -> tuple[dict[str, Said], tuple[str, ...]]:
    """Return what is true under the names it has on the Node, and what cannot be said there.

    ``kept`` are types that others write. Of two conditions that are called alike the messages are
    joined.
    """
    found: dict[str, Said] = {}
    bad: list[str] = []
    for one in raised:
        type_, reason = renamed(one.type, one.reason)
        if type_ in kept or not _TYPE.fullmatch(type_):
            bad.append(one.type)
            continue
        said = Said("True", _fitting(reason), one.message[:_LONGEST])
        if type_ in found:
            joined = f"{found[type_].message}; {one.message}"[:_LONGEST]
            said = Said("True", found[type_].reason, joined)
        found[type_] = said
    return found, tuple(bad)


def _fitting(reason: str) -> str:
    return reason if _REASON.fullmatch(reason) else "Unspecified"


def wanted(
    true: Mapping[str, Said], before: Before, now: datetime, *, settled: bool
) -> tuple[Json, ...]:
    """Return every condition of ours as it is to be on the Node, in order of type.

    What the Node says already is returned as it is. Until everything is known that the agent knew
    before it was started anew (``settled``), what was true is believed to be so.
    """
    found = {type_: _written(type_, said, before, now) for type_, said in true.items()}
    over = [type_ for type_ in before.ours if type_ in before.conditions and type_ not in true]
    for type_ in _newest(over, before):
        old = before.said(type_)
        if old is None or old.status == "False" or not settled:
            found[type_] = before.conditions[type_]
            continue
        message = f"It was: {old.message}"[:_LONGEST] if old.message else ""
        found[type_] = _written(type_, Said("False", OVER, message), before, now)
    return tuple(found[type_] for type_ in sorted(found))


def _newest(types: list[str], before: Before) -> list[str]:
    """Forget the oldest of very many."""
    since = {t: str(before.conditions[t].get("lastTransitionTime") or "") for t in types}
    return sorted(types, key=since.__getitem__, reverse=True)[:_MOST_OVER]


def _written(type_: str, said: Said, before: Before, now: datetime) -> Json:
    """Return a condition; its times are those of before where nothing is different."""
    old, time = before.said(type_), _time(now)
    if old == said:
        return before.conditions[type_]
    since = before.conditions[type_].get("lastTransitionTime") if old is not None else None
    same = old is not None and old.status == said.status
    return {
        "type": type_,
        "status": said.status,
        "reason": said.reason,
        "message": said.message,
        "lastHeartbeatTime": time,
        "lastTransitionTime": since if same and since else time,
    }


def _time(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
