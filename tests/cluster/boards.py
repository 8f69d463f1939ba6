"""A third party's boards on a node of their own, ``n2``: devices that use all that DRA has.

The driver is ``driver_boards``, built as a wheel and installed where one agent looks.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster import pods
from cluster.agent import AgentProcess, agent_on
from cluster.machine import kernel_event, lay_nodes, trees
from cluster.waiting import until
from cluster.world import ACME, World

from hardpoint.testing.sysfs import FakeDevice, FakeMachine

NODE = "n2"
SOURCE = Path(__file__).parent / "driver_boards"
MAJOR = 248
RESOURCE = "acme.example.com/board"
"""The extended resource that boards are asked for by."""
ATTACHED, FAILED = "acme.example.com/attached", "acme.example.com/failed"
"""What a controller says of a remote board, in a claim's status."""
_REMOTE = {"sort": "remote", "waits_for": ATTACHED, "fails_with": FAILED}
QUARTERS = ("card.0", "card.1", "card.2", "card.3")
DEVICES: dict[str, dict[str, str]] = {
    "board-0": {"sort": "board"},
    "board-1": {"sort": "board"},
    "card": {"sort": "part", "size": "4", "slices": " ".join(QUARTERS)},
    "half-0": {"sort": "part", "size": "2", "slices": " ".join(QUARTERS[:2])},
    "half-1": {"sort": "part", "size": "2", "slices": " ".join(QUARTERS[2:])},
    "middle": {"sort": "part", "size": "2", "slices": " ".join(QUARTERS[1:3])},
    "pool": {"sort": "pool", "memory": "10Gi", "slices": "pool"},
    "pool-whole": {"sort": "pool", "slices": "pool"},
    "remote-0": _REMOTE,
    "remote-1": _REMOTE,
}
_CHANGED = ("fault", "taint", "effect")
"""What a test may set and the next one finds unset."""


class Boards:
    """The machine, the agent on it, and what is seen of them."""

    def __init__(self, world: World, site: Path, root: Path) -> None:
        self.world, self.witness = world, world.witness
        self._fake = FakeMachine(root)
        (self._fake.proc / "2").mkdir()
        (self._fake.proc / "2/comm").write_text("kthreadd\n")  # the host's processes are seen
        bus = self._fake.platform("acme-bus")
        self._entries = {
            name: _entry(bus, number, name, facts)
            for number, (name, facts) in enumerate(DEVICES.items())
        }
        lay_nodes(self._fake)
        world.cluster.add_node(NODE)
        settings = trees(root) | {
            "HARDPOINT_DOMAIN": ACME,
            "HARDPOINT_DRIVERS": "boards",
            "HARDPOINT_POLICIES": "observers",
            "PYTHONPATH": str(site),
        }
        self.agent: AgentProcess = agent_on(world.cluster, world.witness, NODE, settings)
        for sort in ("board", "part", "pool", "remote"):
            self.witness.create(pods.device_class(f"acme-{sort}", _of_sort(sort)))
        wanted = pods.device_class("acme-resource", _of_sort("board"))
        wanted["spec"]["extendedResourceName"] = RESOURCE
        self.witness.create(wanted)

    def whole(self) -> None:
        """Make everything be there and run, whatever the test before did to it."""
        self.set()
        self.agent.start()
        until("all boards published", lambda: set(self.published()) == set(DEVICES))
        until("no taints", lambda: not any(d.get("taints") for d in self.published().values()))
        self.world.until_registered(self.agent)

    def set(self, device: str = "", **attributes: str | None) -> None:
        """Set attributes of an entry, or with no name, unset those of all."""
        if not device:
            for entry in self._entries.values():
                entry.set(**dict.fromkeys(_CHANGED), taken="", freed="")
        else:
            self._entries[device].set(**attributes)
        kernel_event()

    def told(self, device: str, attribute: str) -> str:
        """Return what the driver wrote to a board."""
        return (self._entries[device].path / attribute).read_text().strip()

    # -- what is seen -----------------------------------------------------------------------------

    def published(self) -> dict[str, Any]:
        return self.witness.devices(ACME, NODE)

    def until_tainted(self, device: str, *keys: str) -> None:
        """Wait until a device has exactly these taints."""

        def look() -> bool:
            found = self.published().get(device, {}).get("taints") or ()
            return sorted(t["key"] for t in found) == sorted(keys)

        until(f"{device} has the taints {keys}", look)

    def holds(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.agent.says("holds")
        return found

    def held(self) -> list[str]:
        """Return the devices that are held, one for each hold."""
        return sorted(one["device"] for one in self.holds())


def _entry(bus: FakeDevice, number: int, name: str, facts: dict[str, str]) -> FakeDevice:
    entry = bus.child(name, klass="acme", serial=name, taken="", freed="").set(**facts)
    return entry.is_node(f"acme/{name}", MAJOR, 100 + number, mode=0o666)


def _of_sort(sort: str) -> str:
    return f"device.driver == '{ACME}' && device.attributes['{ACME}'].kind == 'acme.{sort}'"


def which(name: str, of: str, **more: Any) -> dict[str, Any]:
    """Return a request for the device of that name."""
    selectors = [{"cel": {"expression": f"device.attributes['{ACME}'].serial == '{name}'"}}]
    return {"deviceClassName": f"acme-{of}", "selectors": selectors} | more


def install(source: Path, work: Path) -> Path:
    """Build a package as a wheel and install it into a directory of its own; return that."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    apart = ["--no-deps", "--no-index"]
    wheels, site = work / "dist", work / "site"
    build = ["wheel", *apart, "--no-build-isolation", "--wheel-dir", str(wheels), str(source)]
    subprocess.run([*pip, *build], check=True)
    [wheel] = wheels.glob("*.whl")
    subprocess.run([*pip, "install", *apart, "--target", str(site), str(wheel)], check=True)
    return site


@contextmanager
def boards_on(world: World, work: Path) -> Iterator[Boards]:
    """Install the driver, add the node, and run an agent there."""
    made = Boards(world, install(SOURCE, work), work / "machine")
    yield made
    made.agent.stop()
