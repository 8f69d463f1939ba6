"""What is so of the node, for people and schedulers; whoever shows it on the Node is a policy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from hardpoint._core.plugins.stating import sentence
from hardpoint.grants import NodeCondition

_log = logging.getLogger("hardpoint.conditions")

UNAVAILABLE = "PodResourcesUnavailable"
"""The kubelet does not say which pod has what; policies that ask it have the same word for it."""
_LONGEST = 4096
"""Characters of a message: the API takes 32768 bytes."""
MOST = 64
"""Conditions of policies that stand at once: with very many the API takes none of the Node's."""
_LONGEST_WORD = 316
"""Of a type, which the API takes with a prefix; a reason may be longer."""


class Conditions:
    """One condition of each type, while it is so."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._standing: dict[str, NodeCondition] = {}

    @property
    def all(self) -> tuple[NodeCondition, ...]:
        """What is so, in order of type."""
        return tuple(self._standing[type_] for type_ in sorted(self._standing))

    def put(self, condition: NodeCondition) -> None:
        """Say that something is so. Text that no API takes is mended: it would take no other."""
        condition = replace(
            condition,
            type=sentence(condition.type, _LONGEST_WORD),
            reason=sentence(condition.reason, _LONGEST_WORD),
            message=sentence(condition.message, _LONGEST),
            trouble=bool(condition.trouble),
        )
        if self._standing.get(condition.type) != condition:
            if condition.type not in self._standing:
                said = (condition.type, condition.reason, condition.message)
                level = logging.WARNING if condition.trouble else logging.INFO
                _log.log(level, "condition begins type=%s reason=%s what=%r", *said)
            self._standing[condition.type] = condition
            self._changed()

    def has_room(self, type_: str) -> bool:
        """Say whether a policy may put one of that type; what the agent itself says always fits."""
        return len(self._standing) < MOST or sentence(type_, _LONGEST_WORD) in self._standing

    def reason(self, type_: str) -> str:
        """Return the reason of one that stands; empty where none does."""
        found = self._standing.get(sentence(type_, _LONGEST_WORD))
        return found.reason if found else ""

    def clear(self, type_: str) -> None:
        """Say that it is so no more."""
        over = self._standing.pop(sentence(type_, _LONGEST_WORD), None)
        if over is not None:
            _log.info("condition ends type=%s reason=%s", over.type, over.reason)
            self._changed()

    def share(self, type_: str, reason: str, message: str) -> None:
        """Say or take back what a policy may say too: what it has said is left to it."""
        standing = self._standing.get(type_)
        if standing is None or standing.reason == reason:
            self.set(type_, reason, message)

    def set(self, type_: str, reason: str, message: str) -> None:
        """Say that it is so, if there is something to say; else that it is not."""
        if message:
            self.put(NodeCondition(type=type_, reason=reason, message=message))
        else:
            self.clear(type_)
