"""A whole node for end-to-end tests: the real agent with the real drivers and the DRA frontend,
chosen by settings alone, between a fake kubelet and a fake API server, on a machine of files.

The machine is that of the seed's guide: one Alder Lake-N GPU and a USB serial adapter.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from hardpoint._core.agent import HardpointAgent
from hardpoint.model import Offered
from hardpoint.settings import AgentSettings, load
from hardpoint.testing.api_server import FakeApiServer
from hardpoint.testing.cdi import Injected
from hardpoint.testing.kubelet import FakeKubelet, Pod
from hardpoint.testing.sysfs import FakeMachine, FakeUsb

NODE = "node-1"
LIKEN = "liken.sh"
RENDER = "pci-0000-00-02-0"
DISPLAY = "pci-0000-00-02-0-display"
I2C = "pci-0000-00-02-0-i2c-dev"
ADAPTER = "usb-1-8-1-0"

PCI_IDS = """\
8086  Intel Corporation
\t46d2  Alder Lake-N [UHD Graphics]
"""


def guide_machine(root: Path) -> FakeMachine:
    machine = FakeMachine(root)
    gpu = machine.pci("0000:00:02.0", vendor="8086", device="46d2", klass="030000", driver="i915")
    gpu.drm(card=0, render=128, connectors=("HDMI-A-1", "DP-1")).i2c(4, 5, 6).fb(0)
    plug(machine, devnum=2, tty=0)
    (machine.proc / "2").mkdir()
    (machine.proc / "2/comm").write_text("kthreadd\n")  # the host's processes are seen
    return machine


def plug(machine: FakeMachine, *, devnum: int, tty: int) -> FakeUsb:
    """Plug the adapter in, under the numbers that the kernel happens to give it."""
    adapter = machine.usb(
        "1-8",
        vendor="10c4",
        product="ea60",
        serial="0001",
        manufacturer="Silicon Labs",
        product_name="CP2102N",
        devnum=devnum,
    )
    line = adapter.interface(0, klass="ff", driver="cp210x")
    line.node("tty", f"ttyUSB{tty}", 188, tty, gid=20)
    return adapter


class EndToEnd:
    """The node. Agents are started on it one after the other, or side by side."""

    def __init__(self, root: Path, server: FakeApiServer, kubelet: FakeKubelet) -> None:
        self.root, self.server, self.kubelet = root, server, kubelet
        self.machine = guide_machine(root / "machine")
        (root / "pci.ids").write_text(PCI_IDS)
        self.environment = {
            "HARDPOINT_CONFIG": str(root / "hardpoint.toml"),
            "HARDPOINT_DOMAIN": LIKEN,
            "HARDPOINT_NODE_NAME": NODE,
            "HARDPOINT_DRIVERS": "pci_drm,usb",
            "HARDPOINT_DRIVER__PCI_DRM__PCI_IDS": f'["{root}/pci.ids"]',
            "HARDPOINT_PATHS__STATE": str(root / "state"),
            "HARDPOINT_PATHS__CDI": str(self.cdi),
            "HARDPOINT_PATHS__KUBELET": str(root / "kubelet"),
            "HARDPOINT_KUBE__URL": server.url,
        }
        (root / "hardpoint.toml").write_text("")

    @property
    def cdi(self) -> Path:
        return self.root / "cdi"

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.cdi.iterdir()) if self.cdi.is_dir() else []

    @property
    def slices(self) -> list[dict[str, Any]]:
        return self.server.items("resourceslices")

    @property
    def published(self) -> dict[str, dict[str, Any]]:
        """Every device of every slice, by name."""
        devices = (device for one in self.slices for device in one["spec"].get("devices", ()))
        return {device["name"]: device for device in devices}

    def settings(self) -> AgentSettings:
        return load(environment=self.environment)

    # -- agents -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def agent(self, instance: str = "") -> AsyncIterator[HardpointAgent]:
        """Run an agent until the block ends; begins once it holds, serves and has published."""
        settings = self.settings()
        node = self.machine.node(writable=True)
        node.name = settings.node_name
        agent = HardpointAgent(settings, node, instance=instance, events=False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run)
            with anyio.fail_after(10):
                await agent.started.wait()
                for domain in agent.domains:
                    await self.until_served(domain.dra_driver)
            yield agent
            tasks.cancel_scope.cancel()

    async def until_served(self, driver: str) -> None:
        await self.kubelet.until(
            lambda: any(one.connected for one in self.kubelet.instances(driver))
        )

    async def look_again(
        self, agent: HardpointAgent, true: Callable[[dict[str, Offered]], bool]
    ) -> None:
        """Tell the agent, as the kernel would, that something changed; wait until it knows what."""
        agent._scanner.wake.set()
        with anyio.fail_after(10):
            async for offer in agent.offers():
                if true({offered.name: offered for offered in offer.devices}):
                    return

    # -- claims -----------------------------------------------------------------------------------

    def claim(
        self, name: str, *devices: str, driver: str = LIKEN, admin: bool = False
    ) -> tuple[Pod, str]:
        """Create a claim, allocate it as the scheduler would; return its pod and its UID."""
        requests = [
            {"name": f"r{i}", "exactly": {"deviceClassName": "any"} | _admin(admin, "adminAccess")}
            for i in range(len(devices))
        ]
        made = self.server.add(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": requests}},
            }
        )
        pod = Pod(name=f"pod-of-{name}", claims=(name,))
        results = [
            {"request": f"r{i}", "driver": driver, "pool": NODE, "device": device}
            | _admin(admin, "adminAccess")
            for i, device in enumerate(devices)
        ]
        reserved = [{"resource": "pods", "name": pod.name, "uid": pod.identity}]
        self.server.allocate("default", name, results, reserved_for=reserved)
        return pod, str(made["metadata"]["uid"])

    def inside(self, pod: Pod, request: str | None = None) -> Injected:
        """Start a container of the pod that names the request; return what it finds."""
        return self.kubelet.inject(pod, request)

    async def eventually(self, true: Callable[[], bool]) -> None:
        with anyio.fail_after(10):
            while not true():  # noqa: ASYNC110 - files set no Event
                await anyio.sleep(0.01)


def _admin(wanted: bool, field: str) -> dict[str, bool]:
    return {field: True} if wanted else {}


@asynccontextmanager
async def end_to_end(root: Path) -> AsyncIterator[EndToEnd]:
    async def get_claim(namespace: str, name: str) -> dict[str, Any] | None:
        found = (one for one in server.items("resourceclaims") if one["metadata"]["name"] == name)
        return next(found, None)

    async def wipe(driver: str | None) -> None:
        server.wipe(NODE, driver or "")

    async with FakeApiServer() as server:
        server.add_node(NODE)
        kubelet = FakeKubelet(root / "kubelet", get_claim=get_claim, wipe=wipe, cdi=[root / "cdi"])
        async with kubelet:
            yield EndToEnd(root, server, kubelet)
