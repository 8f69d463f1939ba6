"""Which labels a node has earned, by all that its plugins say."""

from __future__ import annotations

from typing import Any

from hardpoint import hookimpl
from hardpoint._core.plugins.discovery import Plugin

from .conftest import World

VERY_MANY = {f"gpu-{number}": "true" for number in range(300)}


class Lazy(dict[str, str]):
    """Labels that fail when they are looked at."""

    def items(self) -> Any:
        raise RuntimeError("NVML is away")


class Played:
    """A plugin that says what a test says, or fails."""

    def __init__(self, **labels: str) -> None:
        self.labels: Any = {key.replace("_", "."): value for key, value in labels.items()}

    def plugin(self, name: str, role: str = "driver") -> Plugin:
        played = self

        class Labels:
            def __init__(self, node: object, settings: object) -> None: ...

            @hookimpl
            def label_node(self) -> Any:
                if isinstance(played.labels, Exception):
                    raise played.labels
                return played.labels

        return Plugin(role, name, loaded=Labels)


async def test_each_plugin_says_what_the_node_has_earned(world: World) -> None:
    gpus, switches = Played(gpu_count="8"), Played(switch_count="2", gpu_count="9")
    async with world.agent(gpus.plugin("a"), switches.plugin("b", "policy")) as agent:
        assert await agent.labels() == {"gpu.count": "8", "switch.count": "2"}

        gpus.labels = {}
        assert await agent.labels() == {"gpu.count": "9", "switch.count": "2"}


async def test_what_a_plugin_has_said_stands_while_it_fails(world: World) -> None:
    """A count that cannot be read now is not that of a node without GPUs."""
    gpus, switches = Played(gpu_count="8"), Played(switch_count="2")
    async with world.agent(gpus.plugin("a"), switches.plugin("b")) as agent:
        await agent.labels()
        for failing in (OSError("NVML is away"), ["gpu.count"], VERY_MANY, Lazy(gpu="8")):
            gpus.labels, switches.labels = failing, {"switch.count": "3"}
            assert await agent.labels() == {"gpu.count": "8", "switch.count": "3"}

            assert "driver/a label_node" in {one.source for one in agent.board.entries}

        gpus.labels = {}
        assert await agent.labels() == {"switch.count": "3"}
