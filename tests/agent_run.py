"""The whole agent as it is installed, ``hardpoint run``, between a kubelet and an API server."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
from e2e_node import ADAPTER, DISPLAY, RENDER, EndToEnd, end_to_end

from hardpoint._core.ledger.ledger import read_records
from hardpoint.testing.durable import DurableRun, mended, told
from hardpoint.testing.kubelet import Pod, PodFailed, Prepared

_T = TypeVar("_T")

LABEL = '[[rules]]\naction = "relabel"\nwhere = {kind = "usb"}\nattributes = {room = "attic"}\n'
"""What the admin adds to the settings before the agent is started anew."""


class WholeAgent(DurableRun):
    """First start, claims, a restart with other settings, a kubelet that forgot all, the end."""

    watch = ("state", "cdi", "kubelet")
    patience = 90.0
    restarts = 3

    def begin(self, root: Path) -> None:
        for name in ("kubelet/plugins_registry", "kubelet/plugins"):
            (root / name).mkdir(parents=True)

    def work(self, root: Path) -> None:
        """Be ``hardpoint run``, once the world around it is there."""
        file = root / "environment"
        while not file.exists():  # nothing else tells
            time.sleep(0.01)
        (root / "pid").write_text(str(os.getpid()))
        environment = {**os.environ, **json.loads(file.read_text())}
        with (root / "log").open("a") as log:
            os.dup2(log.fileno(), 2)
        command = [sys.executable, "-m", "hardpoint.cli", "run", "--sysfs", str(root / "machine")]
        os.execve(sys.executable, command, environment)

    def world(self, root: Path) -> None:
        anyio.run(self._world, root)

    async def _world(self, root: Path) -> None:
        async with end_to_end(root) as node:
            node.machine.save()
            node.environment["HARDPOINT_FRONTEND__DRA__METADATA"] = '["v1beta1", "v1alpha1"]'
            new = root / "environment.new"
            new.write_text(json.dumps(node.environment))
            new.rename(root / "environment")
            await Life(root, node).live()

    def reboot(self, root: Path) -> None:
        """The CDI directory is on tmpfs."""
        for path in (root / "cdi").glob("*"):
            path.unlink()

    def look(self, root: Path) -> None:
        assert read_records(root / "state") == ()
        assert list((root / "cdi").glob("*")) == []
        left = {path.name for path in (root / "state").iterdir()} - {"ledger.db-wal"}
        assert not [name for name in left if "damaged" in name or name.startswith(".ledger")], left
        hidden = re.compile(r"\.hp[0-9a-f]{4}")  # removed by whoever starts a minute later
        sockets = [
            path
            for path in (root / "kubelet").rglob("*")
            if path.is_socket() and not hidden.fullmatch(path.name)
        ]
        assert sockets == [], sockets
        log = (root / "log").read_text()
        assert "Traceback" not in log, log[-3000:]


class Life:
    """What the kubelet, the scheduler and the admin do."""

    def __init__(self, root: Path, node: EndToEnd) -> None:
        self.root, self.node = root, node
        self.answers: dict[str, Any] = {}

    async def live(self) -> None:
        await self._published()
        gpu, _ = self.node.claim("gpu", DISPLAY, RENDER)
        adapter, _ = self.node.claim("adapter", ADAPTER)
        for pod in (gpu, adapter):
            await self._prepare(pod)
        rival, _ = self.node.claim("rival", ADAPTER)
        await self._refused(rival)
        await self._end(adapter)
        await self._prepare(rival)
        await self._start_anew()
        await self._eventually(self._labelled)
        await self._retried(lambda: self.node.kubelet.restart(forget=True))
        for pod in (gpu, rival):
            await self._prepare(pod)
        for pod in (gpu, rival):
            await self._end(pod)
        await self._published()

    async def _published(self) -> None:
        await self._eventually(lambda: {RENDER, DISPLAY, ADAPTER} <= self.node.published.keys())

    async def _start_anew(self) -> None:
        """Stop the agent as a rolling update does; whoever runs it starts the next one."""
        (self.root / "hardpoint.toml").write_text(LABEL)
        pid = int((self.root / "pid").read_text())
        (self.root / "pid").unlink()
        os.kill(pid, signal.SIGTERM)
        await self._eventually((self.root / "pid").exists)

    def _labelled(self) -> bool:
        found = self.node.published.get(ADAPTER, {})
        return "room" in json.dumps(found)

    # -- the kubelet, which calls again -----------------------------------------------------------

    async def _prepare(self, pod: Pod) -> None:
        answer = await self._retried(lambda: self.node.kubelet.prepare(pod))
        known = self.answers.setdefault(pod.name, _ids(answer))
        assert known == _ids(answer), f"{_ids(answer)} is not {known}"
        told(self.root, "prepared", pod.name)
        assert self.node.inside(pod).nodes, pod.name

    async def _refused(self, pod: Pod) -> None:
        """Nobody gets what another has: the kubelet will call again."""
        while True:
            try:
                await self.node.kubelet.prepare(pod)
            except PodFailed as failed:
                mended(self.root)
                if "holds" in str(failed):
                    return
                await anyio.sleep(0.02)
            else:
                raise AssertionError("the adapter was handed out twice")

    async def _end(self, pod: Pod) -> None:
        await self._retried(lambda: self.node.kubelet.unprepare(pod))

    async def _retried(self, act: Callable[[], Awaitable[_T]]) -> _T:
        with anyio.fail_after(40):
            while True:
                try:
                    return await act()
                except PodFailed as failed:
                    told(self.root, "refused", str(failed))
                    mended(self.root)
                    await anyio.sleep(0.02)

    async def _eventually(self, true: Callable[[], bool]) -> None:
        """Wait for the agent's own work; what keeps failing it is mended after a second."""
        began = anyio.current_time()
        with anyio.fail_after(40):
            while not true():
                if anyio.current_time() > began + 1:
                    mended(self.root)
                await anyio.sleep(0.02)


def _ids(answer: tuple[Prepared, ...]) -> list[list[str]]:
    """Return the names of devices. Those of metadata may come later: they can fail no pod."""
    return [[name for name in one.cdi_ids if "/metadata=" not in name] for one in answer]
