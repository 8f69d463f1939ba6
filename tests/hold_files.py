"""Hold files for tests, a source that reads them, and an agent that offers what they grant."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hardpoint import Device, DeviceNode, Grant, Node, Offered
from hardpoint.node import NodeInfo
from hardpoint.policies.cdi_grants import CdiGrants, CdiGrantsSettings
from hardpoint.recorded import RecordedNode
from hardpoint.testing.agent import FakeAgent

MAJOR = 195


def device(name: str, minor: int, *, at: str = "", uuid: str = "") -> Device:
    """A GPU whose node is ``/dev/nvidia<minor>``, or another of that number."""
    node = DeviceNode(path=at or f"/dev/nvidia{minor}", major=MAJOR, minor=minor)
    return Device(
        name=name, kind="gpu", nodes=(node,), attributes={"uuid": uuid or f"GPU-{name}"}, driver="x"
    )


def node_entry(minor: int, *, path: str = "", **more: Any) -> dict[str, Any]:
    """A node of a CDI device."""
    return {"path": path or f"/dev/nvidia{minor}", "major": MAJOR, "minor": minor} | more


def spec(*devices: str | Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A hold as bcd writes it: ``gpu-3`` is given ``/dev/nvidia3``."""
    entries = [
        {"name": one, "containerEdits": {"deviceNodes": [node_entry(int(one[-1]))]}}
        if isinstance(one, str)
        else one
        for one in devices
    ]
    return {
        "cdiVersion": "0.6.0",
        "kind": "bcd.dev/gpu",
        "annotations": {"bcd.dev/binding": "kubernetes"},
        "devices": entries,
    } | more


class Ground:
    """A directory of holds on a machine, a source that reads it, and an agent."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root, self.directory = root, root / "etc-cdi"
        self.directory.mkdir(mode=0o755)
        self.numbers: dict[str, NodeInfo] = {}
        self.node: Node = RecordedNode(root, self.numbers, name="node-1", recorded=True)
        self.settings = CdiGrantsSettings(directory=self.directory, vendor="bcd.dev", **settings)
        self.agent = FakeAgent(root, node=self.node)
        self.source = CdiGrants(self.node, self.settings)

    def hold(self, allocation: str, content: Any, *, name: str = "") -> Path:
        """Put a hold there as a control plane does: another file, and a rename."""
        path = self.directory / (name or f"bcd-{allocation}.json")
        temporary = path.with_name(f".{path.name}.new")
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        temporary.write_bytes(raw)
        temporary.chmod(0o644)
        os.utime(temporary, (1e9, 1e9))  # long ago: nobody is writing it
        temporary.rename(path)
        return path

    async def grants(self) -> dict[str, Grant]:
        """Ask the source."""
        return {grant.allocation: grant for grant in await self.source.grant_devices(self.agent)}

    def restart(self) -> None:
        """Begin anew with another object, as another process would."""
        self.source = CdiGrants(self.node, self.settings)
        self.agent.faults.clear()

    def offer(self, allocation: str, *devices: Device) -> None:
        """Offer devices under an allocation, and nothing else."""
        domain = self.agent.domains[0]
        self.agent.show(
            *(Offered(device=one, domain=domain, allocation=allocation) for one in devices)
        )

    def host(self, path: str, minor: int, major: int = MAJOR) -> None:
        """Let the host have a node of this name, in place of the one that it had."""
        self.numbers[path] = NodeInfo(DeviceNode(path=path).type, major, minor, 0o666, 0)

    @property
    def copies(self) -> dict[str, Any]:
        """What is in the runtime's directory, by name."""
        return {p.name: json.loads(p.read_bytes()) for p in self.agent.paths.cdi.iterdir()}


Made = Callable[..., Ground]
