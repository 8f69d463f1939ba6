"""Taints of the Node: those it was registered with, and what it has instead.

A kubelet may set its Node's taints only when it registers (NodeRestriction), so that a drift is
said with the command that an admin of the cluster runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hardpoint.policies.node_status.words import is_key, is_value

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    """One taint; a node has each key and effect once."""

    key: str
    effect: str
    value: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """What there is one of."""
        return self.key, self.effect

    @property
    def removal(self) -> str:
        """What ``kubectl taint`` removes it by."""
        return f"{self.key}:{self.effect}-"

    def __str__(self) -> str:
        value = f"={self.value}" if self.value else ""
        return f"{self.key}{value}:{self.effect}"


def parse(text: str) -> Taint:
    """Understand ``key=value:Effect`` or ``key:Effect``. Raises ``ValueError``."""
    named, _, effect = text.rpartition(":")
    key, _, value = named.partition("=")
    if effect not in EFFECTS or not is_key(key) or not is_value(value):
        raise ValueError(f"{text:.80} is no taint: want key=value:{'|'.join(EFFECTS)}")
    return Taint(key, effect, value)


def of_node(node: Mapping[str, Any]) -> tuple[Taint, ...]:
    """Return the taints that a Node has."""
    listed = (node.get("spec") or {}).get("taints") or ()
    return tuple(
        Taint(str(t.get("key", "")), str(t.get("effect", "")), str(t.get("value") or ""))
        for t in listed
    )


def remembered(text: str) -> tuple[Taint, ...]:
    """Understand what was remembered on the Node; what somebody made of it counts for nothing."""
    found = []
    for word in text.split(","):
        try:
            found.append(parse(word))
        except ValueError:
            continue
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Drift:
    """What is other than registered."""

    missing: tuple[Taint, ...]
    """Not there, or with another value."""
    stale: tuple[Taint, ...]
    """There still, and named by the settings of before alone."""

    def __bool__(self) -> bool:
        return bool(self.missing or self.stale)

    def command(self, node: str) -> str:
        """Return the command that puts it right."""
        words = [*map(str, self.missing), *(taint.removal for taint in self.stale)]
        return shlex.join(["kubectl", "taint", "node", node, "--overwrite", *words])


def drift(wanted: Sequence[Taint], before: Iterable[Taint], present: Sequence[Taint]) -> Drift:
    """Compare: what others have tainted is theirs."""
    places, there = {t.place for t in wanted}, {t.place for t in present}
    return Drift(
        missing=tuple(t for t in wanted if t not in present),
        stale=tuple(t for t in before if t.place not in places and t.place in there),
    )
