"""One node for the tests of a frontend: a kubelet, a runtime, an API server, and agents."""

from __future__ import annotations

import shutil
import socket
import stat
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio

from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint.kube import Kube
from hardpoint.model import Device, Domain, Offered
from hardpoint.node import Node
from hardpoint.testing.agent import FakeAgent
from hardpoint.testing.api_server import FakeApiServer
from hardpoint.testing.kubelet import FakeKubelet

NODE = "node-1"
DOMAIN = Domain.named("contract.test")
TOKEN = "s3cret-token-of-the-contract"  # noqa: S105 - a secret that no log may show
_LOOK_EVERY = 0.01


class FrontendNode:
    """What a frontend under test serves: its kubelet, its API server, and the sockets it makes."""

    def __init__(
        self,
        root: Path,
        server: FakeApiServer,
        kubelet: FakeKubelet,
        made: type,
        settings: Mapping[str, Any],
    ) -> None:
        self.root, self.server, self.kubelet = root, server, kubelet
        self._made, self._settings = made, dict(settings)
        self._token = root / "token"
        self._token.write_text(TOKEN)
        server.require_token(TOKEN)

    def agent(
        self, *devices: Device | Offered, instance: str = "", writing: bool = True
    ) -> FakeAgent:
        """Return an agent that offers these devices; its frontend is not started yet."""
        agent = FakeAgent(
            self.root,
            node=Node(name=NODE, recorded=True),
            domains=[DOMAIN],
            instance=instance,
            writing=writing,
            kube=lambda: Kube.at(self.server.url, self._token),
        )
        agent.show(*devices)
        return agent

    def plugin(self, node: Node, **settings: Any) -> Plugin:
        """Load the frontend as the agent does; the record says whether it runs."""
        record = Plugin("frontend", "contract", loaded=self._made)
        Plugins([record]).start(record, node, self._settings | settings)
        return record

    @asynccontextmanager
    async def serving(
        self, agent: FakeAgent, *, wait: bool = True, **settings: Any
    ) -> AsyncIterator[anyio.Event]:
        """Serve an agent until the block ends; begins once the frontend is ready.

        With ``wait=False`` it begins at once; the event is set when the frontend is ready.
        """
        record = self.plugin(agent.node, **settings)
        assert record.state == "running", record.reason
        ready = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(record.instance.serve_frontend, agent, ready.set)
            if wait:
                with anyio.fail_after(10):
                    await ready.wait()
            yield ready
            tasks.cancel_scope.cancel()

    async def until(self, condition: Callable[[], object], within: float = 10.0) -> None:
        """Wait until something is true, wherever it is to be seen. Raises ``TimeoutError``."""
        with anyio.fail_after(within):
            while not condition():  # noqa: ASYNC110 - files and other processes set no Event
                await anyio.sleep(_LOOK_EVERY)

    @property
    def sockets(self) -> frozenset[Path]:
        """Every socket below the kubelet's directories."""
        return frozenset(
            path
            for base in (self.root / "kubelet", self.root / "device-plugins")
            for path in base.rglob("*")
            if stat.S_ISSOCK(path.lstat().st_mode)
        )


@asynccontextmanager
async def frontend_node(made: type, settings: Mapping[str, Any]) -> AsyncIterator[FrontendNode]:
    """Start a kubelet and an API server in a directory short enough for unix sockets."""
    root = Path(tempfile.mkdtemp(prefix="hp-", dir=short_place()))

    async def get_claim(namespace: str, name: str) -> dict[str, Any] | None:
        found = (one["metadata"] | {"claim": one} for one in server.items("resourceclaims"))
        return next(
            (m["claim"] for m in found if (m["namespace"], m["name"]) == (namespace, name)), None
        )

    async def wipe(driver: str | None) -> None:
        server.wipe(NODE, driver or "")

    try:
        async with (
            FakeApiServer() as server,
            FakeKubelet(
                root / "kubelet",
                get_claim=get_claim,
                wipe=wipe,
                cdi=[root / "cdi"],
                device_plugins=root / "device-plugins",
            ) as kubelet,
        ):
            server.add_node(NODE)
            yield FrontendNode(root, server, kubelet, made, settings)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def short_place() -> str | None:
    """Return /tmp where there is one: a unix socket's path has at most 107 bytes."""
    return "/tmp" if Path("/tmp").is_dir() else None  # noqa: S108 - mkdtemp makes it private


def leave_dead(path: Path) -> None:
    """Leave a socket that nobody serves, as a process does that was killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


@contextmanager
def watching_for_blocking(made: type) -> Iterator[list[str]]:
    """Collect calls that wait on the event loop, made from the plugin's own package.

    Of a policy that comes with the framework, from its module. Empty where blockbuster is not
    installed. Sockets have to be made, found and removed, so looking at directories is not counted;
    neither is what the fake agent does.
    """
    seen: list[str] = []
    try:
        import blockbuster.blockbuster as tool
    except ImportError:
        yield seen
        return

    class Seen(tool.BlockingError):
        def __init__(self, function: str) -> None:
            super().__init__(function)
            frames = [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_stack()[-8:-2]]
            seen.append(f"{function} in {' < '.join(reversed(frames))}")

    buster = tool.BlockBuster([_home(made)])
    for name, function in buster.functions.items():
        if name in _OF_DIRECTORIES:
            function.can_block_predicate = lambda *_, **__: True
        for module in ("testing/agent.py", "testing/_frontend_node.py", "testing/_policy_node.py"):
            function.can_block_in(f"hardpoint/{module}", _OURS)
    plain, tool.BlockingError = tool.BlockingError, Seen  # type: ignore[misc, assignment]
    buster.activate()
    try:
        yield seen
    finally:
        buster.deactivate()
        tool.BlockingError = plain  # type: ignore[misc]


def _home(made: type) -> ModuleType:
    """Return the package that a plugin is all of."""
    words = made.__module__.split(".")
    home = ".".join(words[:3] if words[0] == "hardpoint" else words[:1])
    return sys.modules.get(home) or sys.modules[made.__module__]


_OF_DIRECTORIES = frozenset(
    f"os.{call}"
    for call in ("stat", "listdir", "scandir", "mkdir", "unlink", "remove", "rename", "replace")
)
_OURS = ("prepare", "unprepare", "allocate", "connect")
