"""A user's shell: `hardpoint` as a process of its own, with directories that are the test's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process

from hardpoint.testing.api_server import FakeApiServer
from hardpoint.testing.kubelet import FakeKubelet, Pod
from hardpoint.testing.sysfs import FakeMachine

NODE = "node-1"
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp"
"""Where 40,000 small files of a recorded machine cost two seconds rather than twenty."""

RADIOS = '''
"""A stranger's driver, which a test tells to fail: `run/radios/<hook>` says how."""
import threading
from hardpoint import Device, hookimpl


class Radios:
    def __init__(self, node, settings):
        self.node = node

    def obey(self, hook):
        word = self.node.run_text(f"radios/{hook}").strip()
        if word == "hang":
            threading.Event().wait()
        if word:
            raise RuntimeError(word)

    @hookimpl
    def publish_devices(self):
        self.obey("publish")
        for radio in self.node.each("class/radio"):
            yield Device(name=radio.name, kind="radio", nodes=radio.nodes(), parts=radio.whole())

    @hookimpl
    def describe_attributes(self):
        self.obey("describe")
        return ()

    @hookimpl
    def prepare_device(self, device):
        self.obey("prepare")

    @hookimpl
    def unprepare_device(self, hold):
        self.obey("unprepare")

    @hookimpl
    def release_device(self, hold):
        self.obey("release")
'''


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command said, and its exit status."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Shell:
    """Runs commands in a home of its own; `machine` is a tree to fill and to name as `tree`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "hardpoint.toml"
        self.config.write_text("")
        (root / "tmp").mkdir()
        self.state, self.cdi = root / "state", root / "cdi"
        self.kubelet = root / "kubelet"
        self.machine = FakeMachine(root / "machine")
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(root),
            "PYTHONPATH": str(root / "packages"),
            "PYTHONWARNINGS": "error",
            "TMPDIR": str(root / "tmp"),
            "HARDPOINT_CONFIG": str(self.config),
            "HARDPOINT_NODE_NAME": NODE,
            "HARDPOINT_PATHS__STATE": str(self.state),
            "HARDPOINT_PATHS__CDI": str(self.cdi),
            "HARDPOINT_PATHS__KUBELET": str(self.kubelet),
            "HARDPOINT_PATHS__DEVICE_PLUGINS": str(self.kubelet / "device-plugins"),
        }

    @property
    def tree(self) -> str:
        """The machine, written, as an argument of `--sysfs`."""
        return str(self.machine.save())

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "hardpoint.cli", *words]

    def __call__(self, *words: str, **variables: str) -> Answer:
        done = subprocess.run(
            self.words(*words),
            env=self.environment | variables,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    # -- a stranger's driver ----------------------------------------------------------------------

    def install_radios(self, *names: str) -> None:
        """Install the driver as a distribution of its own, and run it alone."""
        packages = self.root / "packages"
        (info := packages / "radios-1.0.dist-info").mkdir(parents=True)
        (packages / "radios.py").write_text(RADIOS)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: radios\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[hardpoint.drivers]\nradios = radios:Radios\n")
        self.config.write_text('drivers = ["radios"]\n')
        for minor, name in enumerate(names):
            self.machine.platform(f"acme-{name}").node("radio", name, 240, minor)

    def tell_radios(self, hook: str, word: str) -> None:
        """Let the driver's hook `hang`, or raise this; nothing lets it work again."""
        at = self.machine.run / "radios" / hook
        at.parent.mkdir(exist_ok=True)
        at.write_text(word)


class Cluster:
    """The kubelet and the API server of one node."""

    def __init__(self, server: FakeApiServer, kubelet: FakeKubelet) -> None:
        self.server, self.kubelet = server, kubelet

    def allocate(self, device: str, driver: str = "hardpoint.dev", name: str = "claim") -> Pod:
        """Make a claim that has the device, and return the pod it is reserved for."""
        request = {"name": "r", "exactly": {"deviceClassName": "any"}}
        self.server.add(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": [request]}},
            }
        )
        pod = Pod(name=f"pod-of-{name}", claims=(name,))
        self.server.allocate(
            "default",
            name,
            [{"request": "r", "driver": driver, "pool": NODE, "device": device}],
            reserved_for=[{"resource": "pods", "name": pod.name, "uid": pod.identity}],
        )
        return pod

    @property
    def published(self) -> list[str]:
        """Names of the devices in all slices, without those that are tainted."""
        slices = self.server.items("resourceslices")
        devices = (device for one in slices for device in one["spec"].get("devices", ()))
        return sorted(device["name"] for device in devices if not device.get("taints"))


@asynccontextmanager
async def cluster_of(
    shell: Shell, *static: Path, device_plugins: Path | None = None
) -> AsyncIterator[Cluster]:
    """Start both; the runtime reads these directories too, and the shell's own wins.

    With ``device_plugins`` the kubelet serves that, and pod-resources.
    """

    async def get_claim(namespace: str, name: str) -> dict[str, Any] | None:
        found = (one for one in server.items("resourceclaims") if one["metadata"]["name"] == name)
        return next(found, None)

    async def wipe(driver: str | None) -> None:
        server.wipe(NODE, driver or "")

    async with FakeApiServer() as server:
        server.add_node(NODE)
        kubelet = FakeKubelet(
            shell.kubelet,
            get_claim=get_claim,
            wipe=wipe,
            cdi=[*static, shell.cdi],
            device_plugins=device_plugins,
        )
        shell.environment["HARDPOINT_KUBE__URL"] = server.url
        async with kubelet:
            yield Cluster(server, kubelet)


@asynccontextmanager
async def agent_of(shell: Shell) -> AsyncIterator[Process]:
    """Run `hardpoint run` on the shell's machine; it is ended, at the latest, with the block."""
    log = (shell.root / "agent.log").open("ab")
    process = await anyio.open_process(
        shell.words("run", "--sysfs", shell.tree), env=shell.environment, stdout=log, stderr=log
    )
    log.close()
    try:
        yield process
    except BaseException:
        sys.stderr.write(log_of(shell))  # pytest shows it where the test fails
        raise
    finally:
        if process.returncode is None:
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()


async def ended(process: Process) -> int:
    """Tell it to end, as a kubelet does, and return its exit status."""
    process.terminate()
    with anyio.fail_after(15):
        return await process.wait()


def log_of(shell: Shell) -> str:
    return (shell.root / "agent.log").read_text()
