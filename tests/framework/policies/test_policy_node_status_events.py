"""What is told on the Node as Kubernetes Events: what began, what ended, and nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hardpoint.grants import NodeCondition
from hardpoint.model import Event
from hardpoint.policies.node_status import NodeStatus
from hardpoint.policies.node_status.events import Happenings
from hardpoint.policies.node_status.settings import NodeStatusSettings

from .node_world import STUCK, NodeWorld

ROOT = Path(__file__).parents[3]
EXPOSED = NodeCondition(
    type="ForeignExposure", reason="OtherDevicePath", message="nvidia.com/gpu: switch it off"
)
OTHERS = NodeCondition(type="ReleaseStuck", reason="StillUsed", message="others too")
RELEASED = Event(name="allocation-released", message="a-1: nobody uses gpu-0 any more")
BEGAN = ("Warning", "ReleaseStuck", "StillUsed: alloc-1 holds gpu-0")
OVER = ("Normal", "ReleaseStuck", "Over. It was: alloc-1 holds gpu-0")


async def test_a_condition_is_told_when_it_begins_and_when_it_is_over(
    node_world: NodeWorld,
) -> None:
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept():
        await node_world.until(lambda: node_world.events() == [BEGAN])

        node_world.agent.raise_condition(OTHERS)
        await node_world.until(lambda: "others too" in str(node_world.conditions()))
        node_world.agent.raise_condition(STUCK)
        await node_world.until(lambda: "others too" not in str(node_world.conditions()))
        node_world.agent.clear_condition("ReleaseStuck")

        await node_world.until(lambda: len(node_world.events()) > 1)
        assert node_world.events() == [BEGAN, OVER], "other words are no beginning"


async def test_what_keeps_devices_back_is_told_with_the_remedy_under_the_settings_name(
    node_world: NodeWorld,
) -> None:
    node_world.agent.raise_condition(EXPOSED)
    async with node_world.kept(conditions={"ForeignExposure": "ForeignGpuExposure/OtherGpuPath"}):
        await node_world.until(node_world.events)

    told = ("Warning", "ForeignGpuExposure", "OtherGpuPath: nvidia.com/gpu: switch it off")
    assert node_world.events() == [told]


async def test_an_agent_that_starts_tells_nothing_that_the_node_says_already(
    node_world: NodeWorld,
) -> None:
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept():
        await node_world.until(node_world.events)
    async with node_world.kept():
        await node_world.quiet()

    assert node_world.events() == [BEGAN]


async def test_a_release_is_told_and_the_preparing_of_a_claim_is_not(
    node_world: NodeWorld,
) -> None:
    async with node_world.kept():
        node_world.happened.observe(Event(name="claim-prepared", message="ns/c: gpu-0"))
        node_world.happened.observe(RELEASED)
        await node_world.until(node_world.events)

    assert node_world.events() == [("Normal", "AllocationReleased", RELEASED.message)]


async def test_what_happened_before_there_was_a_connection_is_told_when_there_is(
    node_world: NodeWorld,
) -> None:
    node_world.happened.observe(RELEASED)
    async with node_world.kept():
        await node_world.until(node_world.events)


async def test_what_cannot_be_written_is_told_later_and_costs_no_condition(
    node_world: NodeWorld,
) -> None:
    node_world.server.deny("create", "events")
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept():
        await node_world.until(lambda: "policy/node_status: events" in node_world.agent.faults)
        assert "ReleaseStuck" in node_world.conditions()

        node_world.server.allow("create", "events")

        await node_world.until(lambda: node_world.events() == [BEGAN])
        await node_world.quiet()
        assert not node_world.agent.faults


def test_of_very_much_that_happened_the_newest_is_kept() -> None:
    touched: list[int] = []
    happened = Happenings()
    happened.touch = lambda: touched.append(1)
    for number in range(100):
        happened.observe(Event(name="grant-refused", message=str(number), warning=True))

    assert [one.message for one in happened.waiting] == [str(n) for n in range(36, 100)]
    assert len(touched) == 100


@pytest.mark.parametrize("events", [True, False])
async def test_the_policy_hears_of_what_the_agent_reports_where_it_is_to_tell_it(
    node_world: NodeWorld, events: bool
) -> None:
    policy = NodeStatus(node_world.agent.node, NodeStatusSettings(events=events))

    await policy.observe(RELEASED)

    assert [one.message for one in policy.happened.waiting] == [RELEASED.message] * events


async def test_nothing_is_told_where_the_settings_say_so(node_world: NodeWorld) -> None:
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept(events=False):
        await node_world.until(node_world.conditions)
        await node_world.quiet()

    assert node_world.events() == []


def test_the_role_that_is_shipped_lets_events_be_told() -> None:
    documents = yaml.safe_load_all((ROOT / "deploy/rbac-policies.yaml").read_text())
    (role,) = (
        one
        for one in documents
        if one["kind"] == "ClusterRole" and one["metadata"]["name"] == "hardpoint-node-status"
    )
    assert {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]} in role["rules"]
