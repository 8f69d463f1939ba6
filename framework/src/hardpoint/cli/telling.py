"""How ``hardpoint demo`` tells its stories: what all of them use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hardpoint._core.agent import HardpointAgent
from hardpoint.cli.output import fail
from hardpoint.model import Offered
from hardpoint.settings import AgentSettings, KubeSettings, PathSettings

NODE = "demo"
"""The node that they play on."""


def embedded(settings: AgentSettings, root: Path, url: str, **more: Any) -> AgentSettings:
    """Return settings of an agent below a directory, against an API server there."""
    paths = PathSettings(
        state=root / "state",
        cdi=root / "cdi",
        kubelet=root / "kubelet",
        device_plugins=root / "kubelet/device-plugins",
    )
    own = {"paths": paths, "kube": KubeSettings(url=url), "node_name": NODE}
    return settings.model_copy(update={**own, **more})


def stuck(agent: HardpointAgent, what: str) -> int:
    """Say why the agent did not do something in time."""
    for fault in agent.board.entries:
        fail(f"{fault.source}: {fault.message}")
    for plugin in agent.plugins.all if agent.plugins else ():
        if plugin.state in ("refused", "missing"):
            fail(f"{plugin.id}: {plugin.reason}")
    return fail(f"the agent did not {what} within 30 s")


def choose(devices: Sequence[Offered]) -> Offered:
    """Take what a newcomer understands best: a GPU's render node, else a plain device."""
    usable = [o for o in devices if o.claimable and not o.taints] or list(devices)
    return next((o for o in usable if o.device.kind == "drm.render"), usable[0])


def say(text: str) -> None:
    """Print a step."""
    print(f"\n{text}\n" if not text.startswith("This machine") else f"{text}")


def indented(text: str) -> str:
    """Return text as it stands in a document."""
    return "\n".join(f"    {line}" for line in text.splitlines())
