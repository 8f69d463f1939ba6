"""How much a Node is written: nothing while nothing changes, and little however it flaps."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel

from hardpoint.model import Event
from hardpoint.policies._own_node import Budget, Writer
from hardpoint.policies.node_status import NodeStatus
from hardpoint.policies.node_status.contest import Contest
from hardpoint.policies.node_status.keeping import Pace
from hardpoint.policies.node_status.settings import NodeStatusSettings
from hardpoint.testing.agent import FakeAgent

from .node_world import NODE, STUCK, NodeWorld

HOUR = 3600.0


class Time:
    """Passes while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.over = anyio.Event()

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > HOUR:
            self.over.set()
        await anyio.lowlevel.checkpoint()


async def _writes_of_an_hour(tmp_path: Path, gap: float, budget: int) -> int:
    """Count the acts of a writer that is touched all the time."""
    time, acts = Time(), 0

    async def act() -> bool:
        nonlocal acts
        acts += not time.over.is_set()
        writer.touch()
        return True

    spent = Pace(clock=time.clock).budget(budget)
    writer = Writer(FakeAgent(tmp_path), "test", act, gap=gap, budget=spent)
    async with anyio.create_task_group() as tasks:
        writer.touch()
        tasks.start_soon(writer.run, time.sleep)
        await time.over.wait()
        tasks.cancel_scope.cancel()
    return acts


async def test_a_condition_that_flaps_for_an_hour_is_written_once_a_minute_at_last(
    tmp_path: Path,
) -> None:
    pace = Pace()

    assert await _writes_of_an_hour(tmp_path, pace.gap, pace.writes) <= 30 + 60 + 1


async def test_events_that_never_end_are_told_once_a_minute_at_last(tmp_path: Path) -> None:
    assert await _writes_of_an_hour(tmp_path, 0.0, Pace().events) <= 64 + 60 + 1


def test_what_was_not_spent_is_there_later_but_no_more_than_at_first() -> None:
    now = 0.0
    budget = Budget(2, 60.0, lambda: now)
    assert [budget.take() for _ in range(3)] == [0.0, 60.0, 120.0]

    now = 1e6
    assert [budget.take() for _ in range(2)] == [0.0, 60.0]
    now -= 1e5  # no clock of ours does: it costs nothing
    assert budget.take() == 120.0


async def test_a_steady_node_is_written_once_however_often_it_is_looked_at(
    node_world: NodeWorld,
) -> None:
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept(site="site-1"):
        await node_world.until(node_world.conditions)
        for beat in range(100):  # the kubelet's own, and whoever else writes to it
            node_world.server.edit("nodes", NODE).update(metadata={"annotations": {"n": str(beat)}})
            node_world.agent.raise_condition(STUCK)
        await node_world.quiet()

    assert node_world.writes() == 1
    assert len(node_world.events()) == 1


# -- who does not let it stay so ------------------------------------------------------------------


async def test_a_webhook_that_stores_something_else_is_said(node_world: NodeWorld) -> None:
    """Else the only trace of it is a Node that is written for ever."""
    node_world.server.trouble(
        method="PATCH",
        times=6,
        after=lambda: node_world.server.edit("nodes", NODE).change(
            lambda node: node["metadata"]["labels"].update({"hardpoint.dev/site": "theirs"})
        ),
    )
    async with node_world.kept(site="site-1"):
        await node_world.agent.until(lambda: "policy/node_status: kept" in node_world.agent.faults)
        assert node_world.writes() >= 4

        await node_world.until(lambda: node_world.labels() == {"hardpoint.dev/site": "site-1"})


def test_what_is_written_again_and_again_is_contested_for_an_hour() -> None:
    now = 0.0
    contest = Contest(lambda: now)
    for _ in range(3):
        contest.wrote("a")
    assert not contest.lasts
    contest.wrote("a")
    assert contest.lasts

    now = HOUR + 1
    assert not contest.lasts


def test_what_changes_is_not_contested() -> None:
    contest = Contest(lambda: 0.0)
    for number in range(10):
        contest.wrote(number % 2)

    assert not contest.lasts


async def test_a_node_that_is_not_there_is_said_until_it_is(node_world: NodeWorld) -> None:
    """A wrong NODE_NAME looks like a node that has nothing to say."""
    node_world.server.remove("nodes", NODE)
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept():
        await node_world.agent.until(lambda: "policy/node_status: name" in node_world.agent.faults)
        (said, *_) = node_world.agent.faults["policy/node_status: name"]
        assert said.startswith("the API server has no Node node-1: ")

        node_world.server.add_node(NODE)

        await node_world.until(node_world.conditions)
        assert "policy/node_status: name" not in node_world.agent.faults


# -- events ---------------------------------------------------------------------------------------


async def test_an_event_that_the_api_takes_never_costs_no_other(node_world: NodeWorld) -> None:
    refused = node_world.server.trouble(method="POST", path="events", status=422, times=1)
    for message in ("first", "second"):
        node_world.happened.observe(Event(name="grant-refused", message=message))
    async with node_world.kept():
        await node_world.until(node_world.events)

    assert refused.met == 1
    assert [message for _, _, message in node_world.events()] == ["second"]


async def test_a_message_that_is_no_text_is_told_all_the_same(node_world: NodeWorld) -> None:
    policy = NodeStatus(node_world.agent.node, NodeStatusSettings())
    await policy.observe(
        Event(name="grant-refused", message="file \udcff of \u65e5" + "\u672c" * 999)
    )
    node_world.happened = policy.happened
    async with node_world.kept():
        await node_world.until(node_world.events)

    ((_, _, message),) = node_world.events()
    assert message.startswith("file ? of \u65e5\u672c")
    assert len(message.encode()) <= 1024
