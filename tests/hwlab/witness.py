"""Looks at the CDI files again and again, and notes each node that is another device's."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hwlab import kernel

_EVERY = 0.1


@dataclass(frozen=True, slots=True)
class Stray:
    """A node in a claim's file that stood for what the claim does not hold."""

    claim: str
    path: str
    numbers: tuple[int, int]
    where: str


@dataclass(slots=True)
class Seen:
    """When a stray node was first and last seen."""

    first: float
    last: float

    @property
    def seconds(self) -> float:
        return self.last - self.first


@dataclass(slots=True)
class Witness:
    """Knows by UID where the hardware of each claim is; runs as a thread of its own."""

    cdi: Path
    homes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    strays: dict[Stray, Seen] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(_EVERY):
            now = time.monotonic()
            for stray in self.look():
                self.strays.setdefault(stray, Seen(now, now)).last = now

    def look(self) -> list[Stray]:
        """Return what is wrong at this moment."""
        return [stray for uid in list(self.homes) for stray in self._of(uid)]

    def _of(self, uid: str) -> Iterator[Stray]:
        homes = self.homes.get(uid, ())
        for kind, path, numbers in nodes(self.cdi, uid):
            where = kernel.owner(kind, numbers)
            if homes and where and not any(_within(where, home) for home in homes):
                yield Stray(uid, path, numbers, where)


def _within(where: str, home: str) -> bool:
    return where == home or where.startswith(f"{home}/")


def nodes(cdi: Path, uid: str) -> list[tuple[str, str, tuple[int, int]]]:
    """Return what a claim's files deliver: ``char`` or ``block``, the path, the numbers."""
    found = []
    for file in cdi.glob(f"*-{uid}.json"):
        try:
            spec = json.loads(file.read_text())
        except (OSError, ValueError):
            continue
        for device in spec.get("devices", ()):
            for node in device.get("containerEdits", {}).get("deviceNodes", ()):
                if "major" in node:
                    kind = "block" if node.get("type") == "b" else "char"
                    found.append((kind, node["path"], (node["major"], node.get("minor", 0))))
    return found
