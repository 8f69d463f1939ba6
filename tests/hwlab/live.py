"""The agent as it ships, on the machine that these tests run on, with a kubelet and an API server.

Nothing of it is under the tests' hand: it is a process, it hears the kernel, and what it says is
read where a cluster reads it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.abc import Process
from hwlab import kernel, witness
from shell import NODE, Cluster

from hardpoint.testing.api_server import FakeApiServer
from hardpoint.testing.cdi import CdiError, Injected
from hardpoint.testing.kubelet import Behaviour, FakeKubelet, Pod, PodFailed

DRIVER = "hardpoint.dev"
PATIENCE = 300.0
"""Seconds until something has not come true: processors are emulated here, and shared."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim that holds a device."""

    device: str
    uid: str
    pod: Pod


class Live:
    """The node. One agent serves all tests; one that wants another agent stops it first."""

    def __init__(self, root: Path, logs: Path, cluster: Cluster) -> None:
        self.root, self.logs, self.cluster = root, logs, cluster
        self.server, self.kubelet = cluster.server, cluster.kubelet
        self.config = root / "hardpoint.toml"
        self.config.write_text("")
        self.cdi = root / "cdi"
        self.witness = witness.Witness(self.cdi)
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
            "HOME": str(root),
            "PYTHONWARNINGS": "error",
            "HARDPOINT_CONFIG": str(self.config),
            "HARDPOINT_NODE_NAME": NODE,
            "HARDPOINT_PATHS__STATE": str(root / "state"),
            "HARDPOINT_PATHS__CDI": str(self.cdi),
            "HARDPOINT_PATHS__KUBELET": str(root / "kubelet"),
            "HARDPOINT_PATHS__DEVICE_PLUGINS": str(root / "kubelet/device-plugins"),
            "HARDPOINT_KUBE__URL": self.server.url,
            "HARDPOINT_DRIVER__PCI_DRM__PCI_IDS": "[]",  # names are this workstation's
        }
        self._process: Process | None = None
        self._count = itertools.count()
        self._claims: list[Claimed] = []
        self._plugged: dict[str, bool] = {}
        self._free: set[str] = set()
        self._settings = ""

    # -- the agent --------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        file = self.logs / "agent.log"
        return file.read_text("utf-8", "replace") if file.exists() else ""

    async def start(self, settings: str = "") -> None:
        """Start `hardpoint run`, and wait until it serves and has published."""
        self.config.write_text(settings)
        with (self.logs / "agent.log").open("ab") as log:
            words = [sys.executable, "-m", "hardpoint.cli", "run"]
            self._process = await anyio.open_process(
                words, env=self.environment, stdout=log, stderr=log
            )
        await self.until(lambda: self._serves() and bool(self.published), "it serves")

    def _serves(self) -> bool:
        assert self._process is not None
        assert self._process.returncode is None, self.log[-4000:]
        return self._connected()

    async def stop(self) -> None:
        """End it as a kubelet does; it leaves what is held."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            with anyio.move_on_after(60):
                await process.wait()
            assert process.returncode == 0, self.log[-4000:]
            await process.aclose()
            await self.until(lambda: not self.kubelet.instances(DRIVER), "it is gone")

    async def ended(self) -> None:
        """Wait until a killed agent is gone, also for the kubelet."""
        process, self._process = self._process, None
        assert process is not None
        await process.wait()
        await process.aclose()
        await self.until(lambda: not self._connected(), "the kubelet has lost it")

    def _connected(self) -> bool:
        return any(one.connected for one in self.kubelet.instances(DRIVER))

    async def restart(self, settings: str = "") -> None:
        await self.stop()
        await self.start(settings)

    async def begin(self, settings: str) -> None:
        """Begin a test with an agent of these settings; note what is plugged in and offered."""
        if self._process is None or self.config.read_text() != settings:
            await self.restart(settings)
            await self.quiet()
        self._plugged, self._free, self._settings = await kernel.plugged(), self.free, settings

    async def end(self) -> None:
        """End a test: give back and plug in what it left, then see that all is as before it."""
        for claimed in list(self._claims):
            await self.give_back(claimed)
        for name, state in (await kernel.plugged()).items():
            if state != self._plugged.get(name, False):
                await kernel.ctl("unplug" if state else "plug", name)
        self.witness.strays.clear()
        assert "Traceback" not in self.log, self.log[-8000:]
        if self._process is not None and self.config.read_text() == self._settings:
            assert self._process.returncode is None, self.log[-4000:]
            await self.until(
                lambda: self.free == self._free, "as before", lambda: self.free ^ self._free
            )

    # -- what it says -----------------------------------------------------------------------------

    @property
    def slices(self) -> list[dict[str, Any]]:
        return self.server.items("resourceslices")

    @property
    def published(self) -> dict[str, dict[str, Any]]:
        """Every device of every slice, by name."""
        devices = (device for one in self.slices for device in one["spec"].get("devices", ()))
        return {device["name"]: device for device in devices}

    @property
    def free(self) -> set[str]:
        """Names of published devices without a taint."""
        return {name for name, device in self.published.items() if not device.get("taints")}

    async def command(self, *words: str, status: int = 0) -> str:
        """Run `hardpoint` with the agent's settings; return what it printed."""
        done = await anyio.run_process(
            [sys.executable, "-m", "hardpoint.cli", *words], env=self.environment, check=False
        )
        assert done.returncode == status, done.stderr.decode()
        return done.stdout.decode()

    async def json(self, *words: str) -> Any:
        return json.loads(await self.command(*words, "--json"))

    async def snapshot(self) -> Path:
        """Record this machine as the lab does; return the tree, which is to be removed."""
        program = Path(os.environ["HWLAB_LIB"], "snap.pyc")
        tree = self.root / "snapshot"
        tree.mkdir()

        def record() -> None:
            words = [sys.executable, "-I", "-S", str(program), "{}", "[]"]
            with subprocess.Popen(words, stdout=subprocess.PIPE) as recorder:
                unpack = ["tar", "--extract", f"--directory={tree}"]
                subprocess.run(unpack, stdin=recorder.stdout, check=True)
            assert recorder.returncode == 0

        await anyio.to_thread.run_sync(record)
        return tree

    # -- claims -----------------------------------------------------------------------------------

    def allocate(self, device: str) -> Claimed:
        """Make a claim that is allocated this device; nothing is prepared."""
        name = f"claim-{next(self._count)}"
        pod = self.cluster.allocate(device, DRIVER, name)
        uid = str(self.server.get("resourceclaims", name, "default")["metadata"]["uid"])
        claimed = Claimed(device, uid, pod)
        self._claims.append(claimed)
        return claimed

    async def take(self, device: str, *homes: str) -> Claimed:
        """Claim and prepare a device; from now on its file is watched for what is not below
        these directories of sysfs."""
        await self.until_offered(device)
        claimed = self.allocate(device)
        self.witness.homes[claimed.uid] = homes
        await self.kubelet.prepare(claimed.pod)
        assert self.witness.look() == []
        return claimed

    async def is_refused(self, device: str, why: str) -> None:
        """Try to prepare a claim of a device; it must not have it, for this reason."""
        claimed = self.allocate(device)
        with pytest.raises(PodFailed, match=why):
            await self.kubelet.prepare(claimed.pod)
        assert self.delivered(claimed) == {}
        await self.give_back(claimed)

    async def give_back(self, claimed: Claimed) -> None:
        self._claims.remove(claimed)
        await self.kubelet.unprepare(claimed.pod)
        self.witness.homes.pop(claimed.uid, None)
        self.server.remove("resourceclaims", claimed.pod.claims[0], "default")

    def delivered(self, claimed: Claimed) -> dict[str, tuple[int, int]]:
        """Return the nodes in a claim's file with their numbers; none in a sentinel."""
        return {path: found for _, path, found in witness.nodes(self.cdi, claimed.uid)}

    def injected(self, claimed: Claimed) -> Injected | None:
        """Start a container of the claim's pod; None where the runtime would not."""
        try:
            return self.kubelet.inject(claimed.pod)
        except CdiError:
            return None

    # -- waiting ----------------------------------------------------------------------------------

    async def until(
        self,
        true: Callable[[], object],
        what: str,
        now: Callable[[], object] = lambda: "",
    ) -> None:
        """Wait until something is true; else fail, saying what, and what is so instead."""
        with anyio.move_on_after(PATIENCE):
            while not true():  # noqa: ASYNC110 - the kernel sets no Event
                await anyio.sleep(0.2)
            return
        raise AssertionError(f"not so: {what}; now: {now()}")

    async def until_offered(self, *devices: str) -> None:
        await self.until(
            lambda: set(devices) <= self.free, f"{devices} offered", lambda: sorted(self.free)
        )

    async def until_gone(self, *devices: str) -> None:
        await self.until(
            lambda: not set(devices) & set(self.published),
            f"{devices} gone",
            lambda: sorted(self.published),
        )

    async def until_delivered(
        self, claimed: Claimed, nodes: Callable[..., Mapping[str, tuple[int, int]]], *of: Any
    ) -> None:
        """Wait until the claim's file has exactly the nodes that a function returns by then.

        The runtime must take them too.
        """
        wanted: Mapping[str, tuple[int, int]] = {}

        def true() -> bool:
            nonlocal wanted
            try:
                wanted = nodes(*of)
            except (OSError, ValueError):  # they are just being made
                return False
            is_so = bool(wanted) and self.delivered(claimed) == wanted
            return is_so and self.injected(claimed) is not None

        await self.until(
            true, f"what {claimed.device} delivers", lambda: (self.delivered(claimed), wanted)
        )

    async def until_held_back(self, claimed: Claimed) -> None:
        """Wait until no container of the claim can start."""
        await self.until(
            lambda: self.injected(claimed) is None and not self.delivered(claimed),
            f"{claimed.device} held back",
            lambda: self.delivered(claimed),
        )

    async def quiet(self) -> None:
        """Wait until nothing has been written to the API server for some seconds."""
        still = 0
        before = -1
        while still < 5:
            now = len(self.server.writes())
            still = still + 1 if now == before else 0
            before = now
            await anyio.sleep(1)


def usb_name(address: str) -> str:
    """Return the name of a USB device or interface: ``usb-1-4-1-2-1-0`` for ``1-4.1.2:1.0``."""
    return f"usb-{re.sub('[.:]', '-', address)}"


def numbered(*paths: str) -> dict[str, tuple[int, int]]:
    """Return nodes with the numbers that the machine's /dev has them under."""
    return {path: kernel.numbers(path) for path in paths}


def nodes_of(directory: str, *subsystems: str) -> dict[str, tuple[int, int]]:
    """Return the nodes of everything below a device, with their numbers."""
    return numbered(*kernel.nodes_below(directory, *subsystems))


@asynccontextmanager
async def living(boot: str) -> AsyncIterator[Live]:
    """Run a node until the block ends."""
    root = Path(tempfile.mkdtemp(prefix="hp-", dir="/tmp"))
    logs = Path(os.environ.get("HARDPOINT_HWLAB_LOGS", "") or root)

    async def get_claim(namespace: str, name: str) -> dict[str, Any] | None:
        found = (one for one in server.items("resourceclaims") if one["metadata"]["name"] == name)
        return next(found, None)

    async def wipe(driver: str | None) -> None:
        server.wipe(NODE, driver or "")

    async with FakeApiServer() as server:
        server.add_node(NODE)
        slow = Behaviour(get_info_timeout=30, notify_timeout=30, call_timeout=120, poll=0.05)
        kubelet = FakeKubelet(
            root / "kubelet", get_claim=get_claim, wipe=wipe, cdi=[root / "cdi"], behaviour=slow
        )
        async with kubelet:
            live = Live(root, logs, Cluster(server, kubelet))
            live.witness.start()
            try:
                await live.start()
                await live.quiet()
                yield live
            finally:
                live.witness.stop()
                await live.stop()
    shutil.rmtree(root, ignore_errors=True)
