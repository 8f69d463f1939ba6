"""A node that is handed back: an agent, its Node and the pods on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from hardpoint.grants import Release
from hardpoint.kube import Json, Kube
from hardpoint.model import Device
from hardpoint.policies.drain.draining import Draining, Pace
from hardpoint.policies.drain.request import remove, write
from hardpoint.policies.drain.settings import DrainSettings
from hardpoint.testing.agent import FakeAgent
from hardpoint.testing.api_server import FakeApiServer

NODE = "node-1"
GPU = Device(name="gpu-0", kind="gpu")
HELD = Release(id="r-1", allocation="", source="drain", devices=(GPU,), since=1.0)
DAEMON = [
    {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
]


async def no_delay(seconds: float) -> None:
    await anyio.lowlevel.checkpoint()


class DrainWorld:
    """What the tests of ``drain`` change and look at."""

    def __init__(self, root: Path, server: FakeApiServer) -> None:
        self.root, self.server = root, server
        self.agent = self.another_agent()
        self.agent.paths.state.mkdir(parents=True)
        server.add_node(NODE)
        self.now = 0.0

    def another_agent(self) -> FakeAgent:
        """The same node's, after a restart: only what is durable is left of the one before."""
        old = getattr(self, "agent", None)
        self.agent = FakeAgent(self.root, kube=self.kube, instance="uid-of-the-agents-pod")
        if old is not None:
            self.agent.withdrawn, self.agent.releasing = old.withdrawn, old.releasing
        return self.agent

    def kube(self) -> Kube:
        return Kube.at(self.server.url, sleep=no_delay)

    @asynccontextmanager
    async def served(self, *, own: str = "", **settings: Any) -> AsyncIterator[None]:
        """Follow requests until the block ends."""
        pace = Pace(busy=0.02, idle=0.2, first=0.01, clock=self._clock)
        own_pod = frozenset({self.agent.instance, own} - {""})
        async with self.kube() as kube, anyio.create_task_group() as tasks:
            chosen = DrainSettings(**settings)
            tasks.start_soon(Draining(self.agent, chosen, kube, own_pod, pace).run)
            yield
            tasks.cancel_scope.cancel()

    def _clock(self) -> float:
        return anyio.current_time() + self.now

    # -- the request ------------------------------------------------------------------------------

    @property
    def file(self) -> Path:
        return self.agent.paths.state / "drain"

    def ask(self) -> None:
        write(self.file, by="root", why="the machine moves")

    def take_back(self) -> None:
        assert remove(self.file)

    def annotate(self, **notes: str | None) -> None:
        """Set annotations below hardpoint.dev, or remove them."""

        def change(node: Json) -> None:
            kept = node["metadata"].setdefault("annotations", {})
            for name, value in notes.items():
                kept.pop(f"hardpoint.dev/{name}", None)
                if value is not None:
                    kept[f"hardpoint.dev/{name}"] = value

        self.server.edit("nodes", NODE).change(change)

    def boot(self, boot_id: str) -> None:
        """Let the Node's kubelet tell which boot it runs on."""

        def change(node: Json) -> None:
            node.setdefault("status", {})["nodeInfo"] = {"bootID": boot_id}

        self.server.edit("nodes", NODE).change(change)

    # -- what is seen -----------------------------------------------------------------------------

    def add_pod(
        self,
        name: str,
        *,
        node: str = NODE,
        phase: str = "Running",
        metadata: Json | None = None,
        resources: Json | None = None,
        **spec: Any,
    ) -> str:
        """Create a pod; return its UID."""
        container = {"name": "c", "image": "i", "resources": resources or {}}
        body = {"apiVersion": "v1", "kind": "Pod", "status": {"phase": phase}}
        body["metadata"] = {"name": name, "namespace": "default", **(metadata or {})}
        body["spec"] = {"nodeName": node, "containers": [container], **spec}
        return str(self.server.add(body)["metadata"]["uid"])

    def going(self) -> dict[str, int]:
        """Pods that are being deleted, and with what grace."""
        found = (one["metadata"] for one in self.server.items("pods"))
        return {
            one["name"]: one["deletionGracePeriodSeconds"]
            for one in found
            if "deletionTimestamp" in one
        }

    def end(self, name: str) -> None:
        """The kubelet has ended a pod."""
        self.server.remove("pods", name, "default")

    @property
    def node(self) -> Json:
        return self.server.get("nodes", NODE)

    @property
    def cordoned(self) -> bool:
        return bool(self.node["spec"].get("unschedulable"))

    @property
    def released(self) -> bool:
        return "Released" in self.agent.raised

    @property
    def state(self) -> object:
        return self.agent.notes.get("policy/drain", {}).get("state")

    async def until(self, condition: Callable[[], object], within: float = 10.0) -> None:
        """Wait until something is true, of the server or of the agent."""
        with anyio.fail_after(within):
            while not condition():  # noqa: ASYNC110 - two sources of news, and files
                await anyio.sleep(0.005)

    async def quiet(self) -> None:
        """Let everything happen that is going to happen."""
        await anyio.sleep(0.3)
