"""A node of its own, ``n4``, with GPUs that Kubernetes has only while a control plane grants them.

It is set up as the seed's page says: domain ``bcd.dev``, DRA driver ``gpu.bcd.dev``, hold files in
the node's ``/etc/cdi``, which the container runtime reads as well. The driver is the test kit's
stand-in, installed as a stranger's; its nodes are real ones that a process can have open.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cluster import pods
from cluster.agent import HOME, ROOT, AgentProcess, agent_on
from cluster.boards import install
from cluster.gpus import SOURCE, NodeGpus
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import GPUS, World

from hardpoint.grants import published_name

NODE = "n4"
GPU = "bcd.dev/gpu"
POLICIES = (
    "cdi_grants",
    "container_facts",
    "kubepods_processes",
    "pod_reaper",
    "pod_resources",
    "prepared_claims",
)
QUICK = {"policy__pod_reaper__first_after_s": "2", "policy__pod_reaper__again_after_s": "4"}
"""For stories that are not about the time that a pod is left."""
PLUGIN, DRA = {"frontends": "deviceplugin"}, {"frontends": "dra"}


@dataclass(frozen=True, slots=True)
class Deletion:
    """A call that deletes a pod: when, and with which grace period in seconds."""

    at: float
    grace: int | None


class Granted:
    """The node, its control plane played by tests, the agent, and what is seen of them."""

    def __init__(self, world: World, site: Path, root: Path) -> None:
        self.world, self.witness, self.cluster = world, world.witness, world.cluster
        home = self.cluster.state / NODE
        home.mkdir()
        (home / "dev").symlink_to(root / "dev")
        for directory in (self.cluster.holds(NODE), self.cluster.static_pods(NODE)):
            directory.mkdir()
        self.gpus = NodeGpus(root)
        for _ in range(2):
            self.gpus.add()
        self.gpus.lay()
        self.names = [gpu.name for gpu in self.gpus.all]
        self.cluster.add_node(NODE)
        self.witness.apply((ROOT / "deploy/rbac-policies.yaml").read_text())
        self.witness.create(pods.device_class("bcd-gpu", f"device.driver == '{GPUS}'"))
        fixed = self.gpus.settings(site) | {
            "HARDPOINT_PATHS__PROC": "/proc",  # who has a GPU open are processes of this machine
            "HARDPOINT_DOMAIN": "bcd.dev",
            "HARDPOINT_DRA_DRIVER": GPUS,
            "HARDPOINT_POLICIES": ",".join(POLICIES),
            "HARDPOINT_POLICY__CDI_GRANTS__DIRECTORY": str(self.cluster.holds(NODE)),
            "HARDPOINT_POLICY__CDI_GRANTS__VENDOR": "bcd.dev",
            "HARDPOINT_POLICY__CONTAINER_FACTS__VARIABLE": "BCD_ALLOCATION_IDS",
            "HARDPOINT_POLICY__CONTAINER_FACTS__ANNOTATION": "bcd.dev/allocation-ids",
        }
        self.agent: AgentProcess = agent_on(self.cluster, self.witness, NODE, fixed)
        self._base = dict(self.agent.environment)
        self._began, self._log_begins = 0.0, 0
        self._boot_id = self.cluster.state / f"{NODE}-boot-id"

    # -- what is done -----------------------------------------------------------------------------

    def begin(self, frontend: Mapping[str, str], /, **more: str) -> None:
        """Start the agent with nothing granted and nothing pending, whatever was before."""
        self.agent.boot_id = None  # as the kubelet says of the Node
        for part, pid in self.cluster.parts().items():
            if not pid:
                self.cluster.start(part)
        for file in self.cluster.static_pods(NODE).iterdir():
            file.unlink()
        for file in self.cluster.holds(NODE).iterdir():
            file.unlink()
        if self.agent.environment != self._base and self.agent.says("holds"):
            self.agent.start()  # what was given through a frontend ends while that runs
            until("nothing held of before", lambda: not self.agent.says("holds"))
        self._began = time.time()
        log = self.agent.log
        self._log_begins = log.stat().st_size if log.exists() else 0
        self.configure(frontend, **more)
        until(
            "nothing granted or pending", lambda: not self.status()["grants"] and not self.pending()
        )

    def configure(self, frontend: Mapping[str, str], /, **more: str) -> None:
        """Have the agent run with these settings: it starts anew for others."""
        changes = {f"HARDPOINT_{k.upper()}": v for k, v in {**QUICK, **frontend, **more}.items()}
        wanted = self._base | changes
        if wanted != self.agent.environment:
            self.agent.stop()
            self.agent.environment = wanted
        self.agent.start()
        self.until_runs()

    def until_runs(self) -> None:
        until("the agent runs", lambda: self.agent.says("status").get("pid") == self.agent.pid)

    def grant(self, allocation: str, *devices: str) -> Path:
        """Grant devices as the control plane's node daemon does: a hold file in /etc/cdi."""
        document = {
            "cdiVersion": "0.6.0",
            "kind": "bcd.dev/gpu",
            "annotations": {"bcd.dev/binding": "kubernetes"},
            "devices": [
                {
                    "name": name,
                    "containerEdits": {
                        "deviceNodes": [{"path": f"/dev/acme/{self.node_of(name)}"}]
                    },
                }
                for name in devices
            ],
        }
        file = self.cluster.holds(NODE) / f"bcd-{allocation}.json"
        file.with_suffix(".new").write_text(json.dumps(document))
        file.with_suffix(".new").rename(file)
        return file

    def node_of(self, name: str) -> str:
        """Return what a GPU's node is called in ``/dev/acme``."""
        return str(next(one for one in self.gpus.all if one.name == name).device.name)

    def revoke(self, allocation: str) -> float:
        """End a grant; return when."""
        (self.cluster.holds(NODE) / f"bcd-{allocation}.json").unlink()
        return time.time()

    def kill(self, who: str) -> None:
        """Kill the agent, the kubelet or the API server, and start it again."""
        if who == "agent":
            self.agent.kill()
            self.agent.start()
        else:
            part = {"kubelet": f"{NODE}-kubelet", "API server": "kube-apiserver"}[who]
            self.cluster.crash(part)
            self.world.until_server_is_ready()

    def reboot(self) -> None:
        """Reboot the node: the agent and all containers end, /run is lost, the kernel is new."""
        self.agent.kill()
        self.cluster.reboot(NODE)
        self._boot_id.write_text(f"{uuid.uuid4()}\n")
        self.agent.boot_id = self._boot_id

    # -- what is seen -----------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.agent.says("status")
        return found

    def pending(self) -> list[str]:
        """Return the allocations whose release is not over."""
        return [one["allocation"] for one in self.status()["releases"]]

    def report(self, allocation: str) -> dict[str, Any]:
        """Return what the control plane was told last of an allocation; empty if nothing."""
        file = self.cluster.state / f"agent-{NODE}/grants/{allocation}.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def until_released(self, allocation: str) -> float:
        """Wait until the control plane is told that a release is over; return when that was."""
        until(f"{allocation} released", lambda: self.report(allocation).get("released"))
        return float(
            (self.cluster.state / f"agent-{NODE}/grants/{allocation}.json").stat().st_mtime
        )

    def until_allocatable(self, count: int) -> None:
        def look() -> bool:
            return int(self.node()["status"]["allocatable"].get(GPU, 0)) == count

        until(f"{count} of {GPU} allocatable", look)

    def until_published(self, **allocations: str) -> None:
        """Wait until exactly these devices are in slices: ``name`` with _ for -, to allocation."""
        wanted = {published_name(n.replace("_", "-"), a) for n, a in allocations.items()}
        until(f"exactly {wanted}", lambda: set(self.witness.devices(GPUS, NODE)) == wanted)

    def until_offered(self, **allocations: str) -> None:
        """Wait until exactly these devices are offered, by whatever frontend runs."""
        if self.agent.environment["HARDPOINT_FRONTENDS"] == PLUGIN["frontends"]:
            self.until_allocatable(len(allocations))
        else:
            self.until_published(**allocations)

    def condition(self, type_: str) -> str:
        """Return the message of a condition that the agent sees; empty if it is not so."""
        found = self.status()["conditions"]
        return next((str(one["message"]) for one in found if one["type"] == type_), "")

    def node(self) -> dict[str, Any]:
        """Return the Node."""
        found = self.witness.get("Node", NODE)
        assert found is not None
        return found

    def of_node(self, type_: str) -> str:
        """Return the message of a condition on the Node; empty where it is not so."""
        listed = self.node()["status"]["conditions"]
        true = (one for one in listed if (one["type"], one["status"]) == (type_, "True"))
        return next((str(one["message"]) for one in true), "")

    def taints(self) -> list[str]:
        """Return the keys of the Node's taints."""
        return [str(one["key"]) for one in self.node()["spec"].get("taints") or ()]

    def told(self, reason: str) -> list[str]:
        """Return the messages of the Events about the Node with a reason."""
        about = {"field_selector": f"involvedObject.name={NODE},reason={reason}"}
        return [str(one["message"]) for one in self.witness.items("Event", "default", **about)]

    def users(self, device: str) -> list[int]:
        """Return the processes that have a GPU open, as this machine numbers them."""
        return users_of(Path("/dev/acme") / self.node_of(device))

    def deletions(self, pod: str) -> list[Deletion]:
        """Return how the agent has deleted a pod, by the API server's audit log."""
        found = []
        for line in (self.cluster.logs / "audit.log").read_text().splitlines():
            if '"delete"' not in line or f"serviceaccount:{HOME}:{HOME}" not in line:
                continue
            entry = json.loads(line)
            about = entry["objectRef"]
            if (about["resource"], about.get("name")) == ("pods", pod):
                at = datetime.fromisoformat(entry["stageTimestamp"]).timestamp()
                grace = (entry.get("requestObject") or {}).get("gracePeriodSeconds")
                found.append(Deletion(at, grace))
        return [one for one in found if one.at >= self._began]

    def lines(self, words: str) -> list[str]:
        """Return the lines of the agent's log with these words, since the test began."""
        with self.agent.log.open("rb") as log:
            log.seek(self._log_begins)
            return [line for line in log.read().decode().splitlines() if words in line]


def pod(name: str, amount: int = 1, *, script: str = pods.WAIT, **more: Any) -> dict[str, Any]:
    """Return a pod that asks for GPUs by extended resource."""
    asks = {"resources": {"limits": {GPU: str(amount)}}}
    more = {"nodeSelector": {"kubernetes.io/hostname": NODE}} | more
    return pods.pod(name, {}, pods.container(script=script) | asks, **more)


def claiming(name: str, claim: str, *, script: str = pods.WAIT, **more: Any) -> dict[str, Any]:
    """Return a pod that uses a claim."""
    return pods.pod(name, {"gpu": claim}, pods.container(script=script, uses=("gpu",)), **more)


def run_with(
    namespace: Namespace, name: str, frontend: Mapping[str, str], *, script: str = pods.WAIT
) -> None:
    """Run a pod that uses a GPU: by extended resource, or by a claim of its name."""
    if frontend == PLUGIN:
        namespace.create(pod(name, script=script))
        return
    namespace.create(pods.claim(name, gpu="bcd-gpu"))
    namespace.create(claiming(name, name, script=script))


def seen(namespace: Namespace, name: str) -> tuple[list[str], str]:
    """Return the GPU nodes in a pod's container and the allocations in its environment."""
    said = namespace.run(name, "/bin/sh", "-c", "ls /dev/acme; echo =$BCD_ALLOCATION_IDS")
    nodes, _, ids = said.partition("=")
    return nodes.split(), ids.strip()


def users_of(node: Path) -> list[int]:
    """Return the processes that have a device node open, by the path they know it by."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(link) == str(node):
                found.append(int(link.parts[2]))
    return found


@contextmanager
def granted_on(world: World, work: Path) -> Iterator[Granted]:
    """Install the GPUs' driver, add the node, and run an agent there."""
    made = Granted(world, install(SOURCE, work), work / "machine")
    yield made
    made.agent.stop()
