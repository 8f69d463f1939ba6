"""Two frontends beside each other in one agent: each has its own devices, or the agent says no."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import anyio
import pytest

from hardpoint import hookimpl
from hardpoint._core.plugins.discovery import Plugin
from hardpoint.agent import Agent
from hardpoint.errors import BadSettings
from hardpoint.model import Offer


class Shop:
    """A frontend that keeps what it is shown."""

    seen: ClassVar[dict[str, list[str]]]
    name: ClassVar[str]

    def __init__(self, node: Any, settings: None) -> None:
        pass

    @hookimpl
    async def serve_frontend(self, agent: Agent, ready: Callable[[], None]) -> None:
        ready()
        async for offer in agent.offers():
            self.seen[self.name] = [one.name for one in offer.devices]


def two() -> tuple[dict[str, list[str]], list[Plugin]]:
    seen: dict[str, list[str]] = {}
    made = {name: type(name, (Shop,), {"seen": seen, "name": name}) for name in ("one", "two")}
    return seen, [Plugin("frontend", name, loaded=kind) for name, kind in made.items()]


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not true():  # noqa: ASYNC110 - a plain dict sets no Event
            await anyio.sleep(0.01)


async def test_each_frontend_is_shown_its_devices_alone(world: Any) -> None:
    seen, plugins = two()
    sections = {
        "one": {"only": [{"device": "radio0"}]},
        "two": {"without": [{"device": "radio0"}]},
    }
    async with world.agent(*plugins, frontend=sections):
        await until(lambda: seen == {"one": ["radio0"], "two": ["radio1"]})


async def test_a_device_of_both_is_shown_to_neither_and_said(world: Any) -> None:
    seen, plugins = two()
    sections = {"one": {"only": [{"kind": "radio"}]}, "two": {"only": [{"device": "radio1"}]}}
    async with world.agent(*plugins, frontend=sections) as agent:
        await until(lambda: seen == {"one": ["radio0"], "two": []})
        offer: Offer = agent.offer

        assert [w.subject for w in offer.withheld if w.rule == "two-frontends"] == ["radio1"]
        (entry,) = (e for e in agent.board.entries if e.source.startswith("settings"))
        assert "[frontend.one] and [frontend.two]" in entry.message


async def test_frontends_that_leave_each_other_nothing_end_the_agent_with_a_sentence(
    world: Any,
) -> None:
    _, plugins = two()
    with pytest.raises(ExceptionGroup) as raised:
        async with world.agent(*plugins):
            raise AssertionError("it started")
    assert raised.group_contains(BadSettings, match=r"frontend\.one.*frontend\.two")
