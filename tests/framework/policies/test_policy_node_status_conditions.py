"""The Node's conditions: true while they are, false afterwards, written when they change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio.lowlevel
import pytest

from hardpoint._core.grants import lost, releases
from hardpoint.errors import KubeUnreachable
from hardpoint.grants import NodeCondition
from hardpoint.policies import exclusive_source
from hardpoint.policies._conditions import UNAVAILABLE
from hardpoint.policies.drain import draining
from hardpoint.policies.node_status import NodeStatus
from hardpoint.policies.node_status.settings import NodeStatusSettings
from hardpoint.testing.agent import FakeAgent

from .node_world import BEGAN, NODE, STUCK, NodeWorld

BEGUN, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z"
IS_STUCK = ("True", "StillUsed", "alloc-1 holds gpu-0")
WAS_STUCK = ("False", "Resolved", "It was: alloc-1 holds gpu-0")


async def test_a_condition_is_true_while_it_is_and_then_false(node_world: NodeWorld) -> None:
    async with node_world.kept():
        node_world.agent.raise_condition(STUCK)
        await node_world.until(node_world.conditions)
        assert node_world.conditions() == {"ReleaseStuck": IS_STUCK}
        assert node_world.times("ReleaseStuck") == (BEGUN, BEGUN)

        node_world.clock.advance(600)
        node_world.agent.clear_condition("ReleaseStuck")

        await node_world.until(lambda: node_world.conditions()["ReleaseStuck"] == WAS_STUCK)
        assert node_world.times("ReleaseStuck") == (LATER, LATER)


async def test_another_message_is_no_transition(node_world: NodeWorld) -> None:
    async with node_world.kept():
        node_world.agent.raise_condition(STUCK)
        await node_world.until(node_world.conditions)
        node_world.clock.advance(600)

        node_world.agent.raise_condition(_stuck(message="alloc-1 holds gpu-1"))

        await node_world.until(lambda: node_world.times("ReleaseStuck") == (BEGUN, LATER))


async def test_an_equal_condition_is_not_written_again(node_world: NodeWorld) -> None:
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept():
        await node_world.until(node_world.conditions)
        node_world.agent.raise_condition(STUCK)
        await node_world.quiet()
    async with node_world.kept():
        await node_world.quiet()

    assert node_world.writes() == 1


async def test_types_and_reasons_have_the_names_that_the_settings_give(
    node_world: NodeWorld,
) -> None:
    names = {"ReleaseStuck": "KubernetesReleaseStuck/PodsHoldDevices", "Other": "KubernetesOther"}
    node_world.agent.raise_condition(STUCK)
    node_world.agent.raise_condition(NodeCondition(type="Other", reason="Why", message="so"))
    async with node_world.kept(conditions=names):
        await node_world.until(node_world.conditions)

        assert node_world.conditions() == {
            "KubernetesReleaseStuck": ("True", "PodsHoldDevices", "alloc-1 holds gpu-0"),
            "KubernetesOther": ("True", "Why", "so"),
        }


SEEDS = {
    exclusive_source.ExclusiveSourceSettings().condition: ("ForeignGpuExposure", "OtherGpuPath"),
    (releases.STUCK, "PodsHoldDevices"): ("KubernetesReleaseStuck", "PodsHoldDevices"),
    (lost.CONDITION, "ReleasesFileUnreadable"): (
        "KubernetesReleasesUnreadable",
        "ReleasesFileUnreadable",
    ),
    (draining.RELEASED, "Drained"): ("KubernetesReleased", "Drained"),
    (UNAVAILABLE, "KubeletSilent"): ("PodResourcesUnavailable", "KubeletSilent"),
}
"""What the agent and its policies raise, and what a control plane that knows the seed's names
hears; a drift of taints has a test of its own."""


async def test_every_condition_can_have_the_name_that_a_control_plane_knows(
    node_world: NodeWorld,
) -> None:
    for type_, reason in SEEDS:
        raised = NodeCondition(type=type_, reason=reason, message="so")
        node_world.agent.raise_condition(raised)
    names = {type_: "/".join(seeds) for (type_, _), seeds in SEEDS.items()}
    async with node_world.kept(conditions=names):
        await node_world.until(lambda: len(node_world.conditions()) == len(SEEDS))

        assert node_world.conditions() == {
            type_: ("True", reason, "so") for type_, reason in SEEDS.values()
        }


async def test_a_condition_of_another_name_ends_the_one_of_before(node_world: NodeWorld) -> None:
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept():
        await node_world.until(node_world.conditions)
    async with node_world.kept(conditions={"ReleaseStuck": "Stuck"}):
        await node_world.until(
            lambda: node_world.conditions() == {"Stuck": IS_STUCK, "ReleaseStuck": WAS_STUCK}
        )


async def test_two_conditions_of_one_name_are_one(node_world: NodeWorld) -> None:
    node_world.agent.raise_condition(STUCK)
    node_world.agent.raise_condition(NodeCondition(type="Other", reason="Why", message="so"))
    async with node_world.kept(conditions={"ReleaseStuck": "Bad", "Other": "Bad"}):
        await node_world.until(node_world.conditions)

        assert node_world.conditions() == {"Bad": ("True", "Why", "so; alloc-1 holds gpu-0")}


async def test_the_kubelets_own_conditions_are_never_written(node_world: NodeWorld) -> None:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "it is"}
    node_world.server.edit("nodes", NODE).update(status={"conditions": [ready]})
    node_world.agent.raise_condition(NodeCondition(type="Ready", reason="Why", message="mine"))
    node_world.agent.raise_condition(NodeCondition(type="no type", reason="Why", message="mine"))
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept():
        await node_world.until(lambda: len(node_world.conditions()) == 2)

        found = node_world.conditions()
        assert found == {"Ready": ("True", "KubeletReady", "it is"), "ReleaseStuck": IS_STUCK}
        (said,) = node_world.agent.faults["policy/node_status: conditions"]
        assert said.startswith("Ready, no type: ")


@pytest.mark.parametrize("reason", ["not a word", "", "9lives", "Ends:"])
async def test_a_reason_that_is_no_word_is_not_said(node_world: NodeWorld, reason: str) -> None:
    node_world.agent.raise_condition(_stuck(reason=reason))
    async with node_world.kept():
        await node_world.until(node_world.conditions)

        assert node_world.conditions()["ReleaseStuck"][1] == "Unspecified"


async def test_an_agent_that_starts_believes_for_a_while_what_was_said_before_it(
    node_world: NodeWorld,
) -> None:
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept():
        await node_world.until(node_world.conditions)
    node_world.agent.clear_condition("ReleaseStuck")  # it is not found out again yet
    async with node_world.kept(settle=60.0):
        await node_world.quiet()
        assert node_world.conditions() == {"ReleaseStuck": IS_STUCK}

        node_world.clock.advance(60)

        await node_world.until(lambda: node_world.conditions()["ReleaseStuck"] == WAS_STUCK)


async def test_changes_in_a_burst_are_one_write_and_the_next_waits_its_time(
    node_world: NodeWorld,
) -> None:
    async with node_world.kept(gap=10.0):
        node_world.agent.raise_condition(STUCK)
        await node_world.until(node_world.conditions)
        for count in range(20):
            node_world.agent.raise_condition(_stuck(message=f"{count} pods"))
            await anyio.lowlevel.checkpoint()
        await node_world.quiet()
        assert node_world.writes() == 1

        node_world.clock.advance(10)

        await node_world.until(lambda: node_world.conditions()["ReleaseStuck"][2] == "19 pods")
        assert node_world.writes() == 2


async def test_very_many_old_conditions_are_forgotten(node_world: NodeWorld) -> None:
    async with node_world.kept():
        for count in range(20):
            node_world.agent.raise_condition(
                NodeCondition(type=f"Type{count}", reason="Why", message="so")
            )
        await node_world.until(lambda: len(node_world.conditions()) == 20)
        for count in range(20):
            node_world.agent.clear_condition(f"Type{count}")

        await node_world.until(lambda: len(node_world.conditions()) == 16)


# -- the API server and the Node ------------------------------------------------------------------


async def test_a_node_that_is_deleted_and_made_again_is_told_anew(node_world: NodeWorld) -> None:
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept(site="site-1"):
        await node_world.until(node_world.conditions)
        node_world.server.remove("nodes", NODE)
        await node_world.quiet()
        node_world.server.add_node(NODE)

        await node_world.until(node_world.conditions)
        assert node_world.labels() == {"hardpoint.dev/site": "site-1"}


async def test_a_node_that_is_not_there_is_not_made(node_world: NodeWorld) -> None:
    node_world.server.remove("nodes", NODE)
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept(site="site-1"):
        await node_world.quiet()

    assert node_world.server.items("nodes") == []
    assert node_world.writes() == 0


async def test_a_node_that_goes_in_the_moment_of_writing_is_not_made(node_world: NodeWorld) -> None:
    away = node_world.server.trouble(
        method="PATCH", times=1, before=lambda: node_world.server.remove("nodes", NODE)
    )
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept():
        await node_world.until(lambda: away.met)
        await node_world.quiet()

    assert node_world.server.items("nodes") == []


async def test_an_api_server_that_was_away_is_told_what_is_so_by_then(
    node_world: NodeWorld,
) -> None:
    async with node_world.kept():
        await node_world.until(lambda: node_world.server.requests)
        node_world.server.down = True
        node_world.agent.raise_condition(STUCK)
        await node_world.agent.until(lambda: bool(node_world.agent.faults))
        node_world.agent.raise_condition(_stuck(message="by then"))
        node_world.server.down = False

        await node_world.until(node_world.conditions)
        assert node_world.conditions()["ReleaseStuck"][2] == "by then"
        await node_world.agent.until(lambda: not node_world.agent.faults)


async def test_a_server_that_was_restored_from_a_backup_is_believed(node_world: NodeWorld) -> None:
    """Its resource versions are lower than those that were seen, and it lacks what was said."""
    backup = node_world.server.backup()
    async with node_world.kept():
        node_world.agent.raise_condition(STUCK)
        await node_world.until(node_world.conditions)
        for count in range(50):
            node_world.server.edit("nodes", NODE).update(
                metadata={"annotations": {"n": str(count)}}
            )
        await node_world.quiet()

        node_world.server.restore(backup)

        await node_world.until(node_world.conditions)
        node_world.agent.clear_condition("ReleaseStuck")
        await node_world.until(lambda: node_world.conditions()["ReleaseStuck"] == WAS_STUCK)


async def test_a_write_that_is_forbidden_is_said_and_tried_again(node_world: NodeWorld) -> None:
    node_world.server.deny("patch", "nodes/status")
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept():
        await node_world.agent.until(lambda: bool(node_world.agent.faults))
        (said, *_) = node_world.agent.faults["policy/node_status: status"]
        assert "forbidden" in said

        node_world.server.allow("patch", "nodes/status")

        await node_world.until(node_world.conditions)
        await node_world.agent.until(lambda: not node_world.agent.faults)


async def test_a_write_whose_answer_is_lost_is_not_written_twice(node_world: NodeWorld) -> None:
    lost = node_world.server.trouble(method="PATCH", lose=True, times=1)
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept():
        await node_world.until(lambda: lost.met)
        await node_world.quiet()

        assert node_world.conditions() == {"ReleaseStuck": IS_STUCK}
        assert node_world.times("ReleaseStuck") == (BEGUN, BEGUN)


async def test_without_an_api_server_the_policy_says_why_it_ends(
    tmp_path: Path,
) -> None:
    agent = FakeAgent(tmp_path / "lonely")
    with pytest.raises(KubeUnreachable):
        await NodeStatus(agent.node, NodeStatusSettings()).serve_policy(agent)


def _stuck(*, reason: str = STUCK.reason, message: str = STUCK.message) -> NodeCondition:
    return replace(STUCK, reason=reason, message=message)


def test_the_clock_of_these_tests_began_then() -> None:
    assert BEGAN == 1767225600
