"""A node of its own, ``n3``, whose agent serves the kubelet's device plugin API.

It has the machine of ``cluster.machine`` and three boards of a third party (``driver_boards``).
Each test begins with the device plugin frontend alone; ``configure`` starts the agent with another
part of the settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cluster import pods
from cluster.agent import AgentProcess, agent_on
from cluster.boards import SOURCE, install
from cluster.machine import Machine, kernel_event, lay_nodes
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import HOME, World

NODE = "n3"
BOARD, RENDER, USB = f"{HOME}/acme.board", f"{HOME}/drm.render", f"{HOME}/usb"
BOARDS = ("board-0", "board-1", "board-2")
MAJOR = 249
LOOK = ("/bin/sh", "-c", "echo $ACME_BOARD; ls /dev/acme")
PLAIN = {
    "HARDPOINT_DOMAIN": HOME,
    "HARDPOINT_DRIVERS": "boards,pci_drm,usb",
    "HARDPOINT_FRONTENDS": "deviceplugin",
}
"""The settings that each test begins with."""


class Plugged:
    """The node, the machine below it, the agent there, and what is seen of them."""

    def __init__(self, world: World, site: Path, root: Path) -> None:
        self.world, self.witness, self.cluster = world, world.witness, world.cluster
        self.machine = Machine(root)
        bus = self.machine.fake.platform("acme-bus")
        self._boards = {
            name: bus.child(name, klass="acme", serial=name, sort="board", taken="", freed="")
            .set(fault=None)
            .is_node(f"acme/{name}", MAJOR, number, mode=0o666)
            for number, name in enumerate(BOARDS)
        }
        lay_nodes(self.machine.fake)
        home = self.cluster.state / NODE
        home.mkdir()
        (home / "dev").symlink_to(root / "dev")
        self.cluster.add_node(NODE)
        self._fixed = self.machine.environment() | {"PYTHONPATH": str(site)}
        self.witness.create(pods.device_class("home-adapter", _with("serialNode")))
        self.agent: AgentProcess = agent_on(self.cluster, self.witness, NODE, self._fixed)
        self._base = dict(self.agent.environment)
        self._boots = iter(range(1, 1000))

    # -- what is done -----------------------------------------------------------------------------

    def whole(self) -> None:
        """Make everything be there and run, whatever the test before did to it."""
        for part, pid in self.cluster.parts().items():
            if not pid:
                self.cluster.start(part)
        for name, board in self._boards.items():
            self.set(name, fault=None, freed="")
            if not (board.path / "taken").exists():  # what a hold has written there stays
                self.set(name, taken="")
        self.configure()
        self.until_listed()
        if self.machine.renumbered:
            self.machine.unplug_adapter()
            self.until_allocatable(USB, 0)  # else the agent might not have seen it
        self.machine.whole()
        self.until_allocatable(USB, 1)
        self.until_allocatable(RENDER, 2)
        self.until_allocatable(BOARD, len(BOARDS))

    def configure(self, settings: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Have the agent run with these settings beside the plain ones: it starts anew for them.

        ``frontends="dra"`` is a key of the file; ``FRONTEND__…`` a variable without its prefix.
        """
        changes = {
            f"HARDPOINT_{k.upper()}": _text(v) for k, v in {**(settings or {}), **more}.items()
        }
        wanted = self._base | PLAIN | changes
        if wanted != self.agent.environment:
            if self.agent.running:
                self.agent.stop()
                self.until_allocatable(BOARD, 0)  # a pod that is placed before that fails
            self.agent.environment = wanted
        self.agent.start()

    def set(self, board: str, **attributes: str | None) -> None:
        """Set attributes of a board; None takes one away."""
        self._boards[board].set(**attributes)
        kernel_event()

    def told(self, board: str) -> str:
        """Return what the driver wrote to a board when it was last taken."""
        return (self._boards[board].path / "taken").read_text().strip()

    def freed(self, board: str) -> str:
        """Return what the driver wrote to a board when it was last given back."""
        return (self._boards[board].path / "freed").read_text().strip()

    def reboot(self) -> None:
        """Reboot the node: the agent and all containers end, /run is lost, the kernel is new."""
        self.agent.kill()
        self.machine.boot(next(self._boots))
        self.cluster.reboot(NODE)

    # -- what is seen -----------------------------------------------------------------------------

    def allocatable(self, resource: str) -> int:
        """Return how many of a resource the node says it can give, whoever has them."""
        return self._count("allocatable", resource)

    def capacity(self, resource: str) -> int:
        return self._count("capacity", resource)

    def _count(self, which: str, resource: str) -> int:
        node = self.witness.get("Node", NODE)
        assert node is not None
        return int(node["status"][which].get(resource, 0))

    def until_allocatable(self, resource: str, count: int) -> None:
        until(
            f"{count} of {resource} allocatable",
            lambda: (self.allocatable(resource) == count, self.allocatable(resource))[0],
        )

    def until_listed(self, resource: str = BOARD) -> None:
        """Wait until the kubelet that runs now listens to a resource."""
        directory = self.cluster.paths(NODE)["device_plugins"]

        def look() -> bool:
            said = self.agent.says("status")
            line = str(said.get("notes", {}).get("frontend/deviceplugin", {}).get(resource, ""))
            name = line.rpartition("socket ")[2]
            here = (directory / "kubelet.sock").exists() and (directory / name).is_socket()
            return here and said.get("pid") == self.agent.pid and "; listed," in line

        until(f"{resource} listed", look)

    def restart_kubelet(self, how: str = "restart") -> None:
        """End the kubelet and start it again; return once it listens to us, by other sockets."""
        old = self.sockets()
        getattr(self.cluster, how)(f"{NODE}-kubelet")  # it removes every socket in its directory
        until("other sockets", lambda: bool(new := self.sockets()) and not new & old)
        self.until_listed()

    def holds(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.agent.says("holds")
        return found

    def held(self) -> dict[str, str]:
        """Return what is held, by the id or the claim under which it is."""
        return {one["claim"]["name"]: one["device"] for one in self.holds()}

    def holders(self) -> list[str]:
        """Return what the holds that are not being undone are under, one for each."""
        return [one["claim"]["name"] for one in self.holds() if not one["releasing"]]

    def pods_with(self, device: str) -> list[str] | None:
        """Return which pods have a device, as the agent knows it from the kubelet."""
        return next((one["pods"] for one in self.holds() if one["device"] == device), None)

    def until_free(self, *devices: str) -> None:
        """Wait until nobody holds any of these; a kubelet has to be read twice for it."""
        until("free", lambda: not {one["device"] for one in self.holds()} & set(devices))

    def cdi_files(self) -> list[str]:
        directory = self.cluster.paths(NODE)["cdi"]
        return sorted(path.name for path in directory.iterdir() if path.suffix == ".json")

    def cdi_text(self, file: str) -> str:
        return (self.cluster.paths(NODE)["cdi"] / file).read_text()

    def sockets(self) -> frozenset[str]:
        """Return the sockets that the agent serves: each life of one has another inode or time."""
        directory = self.cluster.paths(NODE)["device_plugins"]
        found = set()
        for path in directory.glob("hardpoint-*.sock"):
            with suppress(FileNotFoundError):  # a kubelet that starts removes it this moment
                one = path.lstat()
                found.add(f"{one.st_ino} {one.st_ctime_ns}")
        return frozenset(found)

    def published(self) -> dict[str, Any]:
        """Return what the node's slices say: nothing, of a device plugin."""
        return self.witness.devices(HOME, NODE)


def _with(attribute: str) -> str:
    return f"device.driver == '{HOME}' && has(device.attributes['{HOME}'].{attribute})"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def wants(container: dict[str, Any], amount: int = 1, resource: str = BOARD) -> dict[str, Any]:
    """Return a container with a limit, as anyone asks for an extended resource."""
    return container | {"resources": {"limits": {resource: str(amount)}}}


def pod(name: str, resource: str = BOARD, amount: int = 1, **more: Any) -> dict[str, Any]:
    """Return a pod of one container that asks for a resource."""
    return pods.pod(name, {}, wants(pods.container(), amount, resource), **more)


def boards_of(namespace: Namespace, name: str, container: str = "c") -> list[str]:
    """Return the boards in a container's environment, then those in its /dev."""
    said = namespace.run(name, *LOOK, container=container).split()
    return [*said[0].split(","), *said[1:]] if said else []


def lives(namespace: Namespace, name: str, container: str = "c") -> int:
    """Return how often a container of a pod was started again."""
    status = namespace.pod(name)["status"]
    both = (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ()))
    return next(int(one["restartCount"]) for one in both if one["name"] == container)


@contextmanager
def plugged_on(world: World, work: Path) -> Iterator[Plugged]:
    """Install the boards' driver, add the node, and run an agent there."""
    made = Plugged(world, install(SOURCE, work), work / "machine")
    yield made
    made.agent.stop()
