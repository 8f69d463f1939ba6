"""One Node on an API server, and an agent whose policies say things of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from hardpoint.grants import NodeCondition
from hardpoint.kube import Json, Kube
from hardpoint.policies.node_status.events import Happenings
from hardpoint.policies.node_status.keeping import Keeping, Pace
from hardpoint.policies.node_status.settings import NodeStatusSettings
from hardpoint.testing.agent import FakeAgent
from hardpoint.testing.api_server import FakeApiServer
from hardpoint.testing.clock import ManualClock

NODE = "node-1"
STUCK = NodeCondition(type="ReleaseStuck", reason="StillUsed", message="alloc-1 holds gpu-0")
BEGAN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


async def no_delay(seconds: float) -> None:
    await anyio.lowlevel.checkpoint()


class NodeWorld:
    """What the tests of ``node_status`` change and look at."""

    def __init__(self, root: Path, server: FakeApiServer) -> None:
        self.server = server
        self.clock = ManualClock(BEGAN)
        self.agent = FakeAgent(root, kube=self.kube)
        self.happened = Happenings()
        server.add_node(NODE, {"kubernetes.io/hostname": NODE})

    def kube(self) -> Kube:
        return Kube.at(self.server.url, sleep=no_delay)

    @asynccontextmanager
    async def kept(
        self, *, gap: float = 0.0, settle: float = 0.0, **settings: Any
    ) -> AsyncIterator[None]:
        """Keep the Node in step; delays of a back-off take no time, those of the pace do."""

        async def sleep(seconds: float) -> None:
            if (gap and seconds == gap) or (settle and seconds == settle):
                await self.clock.sleep(seconds)
            else:
                await anyio.sleep(0.001)

        pace = Pace(gap=gap, settle=settle, sleep=sleep, wall=self.clock.now)
        async with self.kube() as kube, anyio.create_task_group() as tasks:
            given = NodeStatusSettings(**settings)
            keeping = Keeping(self.agent, given, kube, pace, self.happened)
            tasks.start_soon(keeping.run)
            yield
            tasks.cancel_scope.cancel()

    # -- what the Node says -----------------------------------------------------------------------

    @property
    def node(self) -> Json:
        return self.server.get("nodes", NODE)

    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self.node["metadata"].get("labels", {})
        return {key: value for key, value in found.items() if key != "kubernetes.io/hostname"}

    def conditions(self) -> dict[str, tuple[str, str, str]]:
        """Status, reason and message by type."""
        listed = self.node.get("status", {}).get("conditions", ())
        return {one["type"]: (one["status"], one["reason"], one["message"]) for one in listed}

    def times(self, type_: str) -> tuple[str, str]:
        """Last transition and last heartbeat."""
        listed = self.node["status"]["conditions"]
        found = next(one for one in listed if one["type"] == type_)
        return found["lastTransitionTime"], found["lastHeartbeatTime"]

    def events(self) -> list[tuple[str, str, str]]:
        """Type, reason and message of what is told on the Node, in the order of its writing."""
        told = sorted(
            self.server.items("events"), key=lambda one: int(one["metadata"]["resourceVersion"])
        )
        assert all(one["involvedObject"]["uid"] == self.node["metadata"]["uid"] for one in told)
        return [(one["type"], one["reason"], one["message"]) for one in told]

    def writes(self) -> int:
        return len(self.server.writes("nodes"))

    async def until(self, condition: Callable[[], object]) -> None:
        await self.server.until(condition)

    async def quiet(self) -> None:
        """Let everything happen that is going to happen."""
        seen = -1
        while seen != len(self.server.requests):
            seen = len(self.server.requests)
            await anyio.sleep(0.1)  # what is on its way through a socket
