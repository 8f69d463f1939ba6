"""What tests share: one cluster, the seed's machine, and the agent on it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cluster.agent import AgentProcess, agent_on, grant_role
from cluster.machine import Machine
from cluster.node import Cluster
from cluster.waiting import until
from cluster.witness import Namespace, Witness

LIKEN = "liken.sh"
ACME = "acme.example.com"
"""What a third party's boards are published under: cluster.boards."""
HOME = "home.example.com"
"""What the node with the device plugin frontend has: cluster.plugged."""
GPUS = "gpu.bcd.dev"
"""The DRA driver of the node with granted GPUs: cluster.granted."""
FIRST, SECOND = "pci-0000-00-02-0", "pci-0000-03-00-0"
ADAPTER = "usb-1-8-1-0"
WHOLE = {FIRST, f"{FIRST}-display", f"{FIRST}-i2c-dev", SECOND, f"{SECOND}-display", ADAPTER}
"""Every device of the machine."""
GUIDE = Path(__file__).parent / "guide"


class World:
    """The cluster with its node ``n0``, the machine below it and the agent there."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.witness = Witness(cluster.kubeconfig)
        self.machine = Machine(cluster.state / "machine")
        grant_role(self.witness, LIKEN, ACME, HOME, GPUS)
        self.witness.apply((GUIDE / "classes.yaml").read_text())
        settings = self.machine.environment() | {"HARDPOINT_DOMAIN": LIKEN}
        self.agent = agent_on(cluster, self.witness, "n0", settings)
        self.fresh = map(str, itertools.count(1))
        """Names that nothing has yet."""
        said = json.loads(self.witness.ask("GET", "/version"))
        self.version = (int(said["major"]), int(said["minor"]))
        """What the control plane is, or acts as."""
        self.modern = self.version >= (1, 36)
        """Taints and shared devices (consumable capacity) are kept, not dropped in silence."""
        self._boots = itertools.count(1)

    def close(self) -> None:
        self.agent.stop()
        self.witness.close()

    def whole(self) -> None:
        """Make everything be there and run, whatever the test before did to it."""
        down = [name for name, pid in self.cluster.parts().items() if not pid]
        for part in down:
            self.cluster.start(part)
        if down:
            self.until_server_is_ready()
        self.agent.start()
        if self.machine.renumbered:
            self.machine.unplug_adapter()
            self.until_published(WHOLE - {ADAPTER})  # else the agent might not have seen it
        self.machine.whole()
        self.until_published(WHOLE)
        self.until_registered()

    def until_server_is_ready(self) -> None:
        def look() -> bool:
            try:
                return self.witness.ask("GET", "/readyz") == "ok"
            except Exception:  # noqa: BLE001 - every way of not answering
                return False

        until("the API server is ready", look)

    @contextmanager
    def namespace(self, name: str = "") -> Iterator[Namespace]:
        """Give a namespace to a test, and take everything in it away after."""
        made = self.witness.namespace(name or f"test-{next(self.fresh)}")
        yield made
        self.agent.start()  # nothing ends without it
        made.clear()

    def reboot(self) -> None:
        """Reboot the node: the agent and all containers end, /run is lost, the kernel is new."""
        self.agent.kill()
        self.machine.boot(next(self._boots))
        self.cluster.reboot("n0")

    # -- what is seen -----------------------------------------------------------------------------

    def published(self) -> Mapping[str, object]:
        return self.witness.devices(LIKEN)

    def until_published(self, names: set[str]) -> None:
        until(f"exactly {sorted(names)} published", lambda: set(self.published()) == names)

    def until_tainted(self, device: str, *, tainted: bool = True) -> None:
        def look() -> bool:
            return bool(self.witness.devices(LIKEN).get(device, {}).get("taints")) is tainted

        until(f"{device} tainted={tainted}", look)

    def until_registered(self, agent: AgentProcess | None = None) -> None:
        """Wait until the kubelet has the driver connected and calls it."""
        running = agent or self.agent

        def look() -> bool:
            said = running.says("status")
            return said.get("pid") == running.pid and bool(said["ready"])

        until("registered", look)

    def cdi_files(self) -> list[str]:
        directory = self.cluster.paths()["cdi"]
        return sorted(path.name for path in directory.iterdir() if path.suffix == ".json")

    def holds(self) -> dict[str, str]:
        """Return which devices are held and in which state."""
        return {one["device"]: one["state"] for one in self.agent.says("holds")}
