"""Kubernetes Events of the Node: what began and what ended, for ``kubectl describe node``."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hardpoint.errors import KubeError, KubeInvalid

if TYPE_CHECKING:
    from hardpoint.kube import Json, Kube
    from hardpoint.model import Event
    from hardpoint.policies.node_status.conditions import Before

_log = logging.getLogger("hardpoint.node_status")

NAMESPACE = "default"
"""Where Events about what is in no namespace belong: the API takes them nowhere else."""
TOLD = frozenset(
    {
        "allocation-released",
        "devices-released",
        "grant-in-force",
        "grant-refused",
        "node-resumed",
        "node-withdrawn",
        "pod-spared",
    }
)
"""Events of the agent that are about the Node; those of claims and pods are told on them."""

_MOST = 64
_LONGEST = 1024
"""Bytes of an Event's message that the API takes."""


@dataclass(frozen=True, slots=True)
class Happened:
    """One thing to tell, and when it was, in seconds since 1970."""

    reason: str
    message: str
    warning: bool
    at: float


class Happenings:
    """What is to be told yet: the newest, where the API server is away for long."""

    def __init__(self) -> None:
        self._waiting: deque[Happened] = deque(maxlen=_MOST)
        self.touch: Callable[[], None] = lambda: None
        """Called when there is something to tell."""

    @property
    def waiting(self) -> tuple[Happened, ...]:
        """What is not told yet, the oldest first."""
        return tuple(self._waiting)

    def observe(self, event: Event) -> None:
        """Take what the agent reports, if it is about the Node."""
        if event.name in TOLD:
            reason = "".join(word.capitalize() for word in event.name.split("-"))
            self.put(Happened(reason, event.message, event.warning, time.time()))

    def put(self, *happened: Happened) -> None:
        """Have it told."""
        self._waiting.extend(happened)
        if happened:
            self.touch()

    async def tell(self, kube: Kube, node: Json) -> bool:
        """Write an Event for the oldest; say whether one was written.

        Raises ``KubeError``; what is not written is told later, but for what the API takes never.
        """
        from hardpoint.kube import EVENTS

        if not self._waiting:
            return False
        one = self._waiting.popleft()
        try:
            await kube.create(EVENTS, _written(one, node), namespace=NAMESPACE)
        except KubeInvalid as error:
            _log.warning("not told reason=%s why=%r", one.reason, str(error))
        except KubeError:
            if len(self._waiting) < _MOST:
                self._waiting.appendleft(one)
            raise
        if self._waiting:
            self.touch()
        return True


def turned(written: Iterable[Json], before: Before, now: float) -> Iterator[Happened]:
    """Yield each condition that has begun or ended, seen from what the Node said before."""
    for one in written:
        old, true = before.said(one["type"]), one["status"] == "True"
        if true == (old is not None and old.status == "True"):
            continue
        reason = str(one["type"]).rpartition("/")[2]
        message = f"{one['reason']}: {one['message']}" if true else f"Over. {one['message']}"
        yield Happened(reason, message, true, now)


def _written(one: Happened, node: Json) -> Json:
    name, at = node["metadata"]["name"], datetime.fromtimestamp(one.at, UTC)
    time_ = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{name}.", "namespace": NAMESPACE},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Node",
            "name": name,
            "uid": node["metadata"]["uid"],
        },
        "reason": one.reason,
        "message": one.message.encode(errors="replace")[:_LONGEST].decode(errors="ignore"),
        "type": "Warning" if one.warning else "Normal",
        "source": {"component": "hardpoint", "host": name},
        "firstTimestamp": time_,
        "lastTimestamp": time_,
        "count": 1,
    }
