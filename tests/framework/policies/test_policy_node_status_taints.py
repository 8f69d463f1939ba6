"""Taint drift is said with the command that mends it; one taint of ours goes with a condition."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from hardpoint.grants import NodeCondition
from hardpoint.policies.node_status.taints import Taint, drift, parse, remembered

from .node_world import NODE, STUCK, NodeWorld

GPU = "example.com/gpu=reserved:NoSchedule"
CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
UNUSABLE = {"key": "hardpoint.dev/unusable", "effect": "NoSchedule"}


def taint(world: NodeWorld, *taints: dict[str, str]) -> None:
    world.server.edit("nodes", NODE).change(lambda node: node["spec"].update(taints=list(taints)))


def drifted(world: NodeWorld) -> str:
    status, reason, message = world.conditions().get("TaintsDrift", ("", "", ""))
    return message if (status, reason) == ("True", "TaintsDiffer") else ""


async def test_the_command_that_mends_a_drift_is_said(node_world: NodeWorld) -> None:
    taint(node_world, {"key": "example.com/gpu", "value": "old", "effect": "NoSchedule"})
    wanted = [GPU, "example.com/b:NoExecute"]
    async with node_world.kept(taints=wanted):
        await node_world.until(lambda: drifted(node_world))

        assert drifted(node_world) == (
            f"run: kubectl taint node {NODE} --overwrite "
            "example.com/gpu=reserved:NoSchedule example.com/b:NoExecute"
        )
        assert node_world.agent.raised["TaintsDrift"].message == drifted(node_world)


async def test_a_drift_is_over_when_an_admin_has_run_it(node_world: NodeWorld) -> None:
    async with node_world.kept(taints=[GPU], conditions={"TaintsDrift": "KubernetesTaintsDrift"}):
        await node_world.until(lambda: "KubernetesTaintsDrift" in node_world.conditions())

        taint(node_world, {"key": "example.com/gpu", "value": "reserved", "effect": "NoSchedule"})

        await node_world.until(
            lambda: node_world.conditions()["KubernetesTaintsDrift"][0] == "False"
        )
        assert not node_world.agent.raised


async def test_a_taint_that_the_settings_no_longer_name_is_to_be_removed(
    node_world: NodeWorld,
) -> None:
    taint(
        node_world,
        {"key": "example.com/gpu", "value": "reserved", "effect": "NoSchedule"},
        {"key": "example.com/theirs", "effect": "NoSchedule"},
        CORDONED,
    )
    async with node_world.kept(taints=[GPU]):
        await node_world.until(lambda: node_world.writes() == 1)
    async with node_world.kept(taints=[]):
        await node_world.until(lambda: drifted(node_world))
        command = f"run: kubectl taint node {NODE} --overwrite example.com/gpu:NoSchedule-"
        assert drifted(node_world) == command

        taint(node_world, {"key": "example.com/theirs", "effect": "NoSchedule"}, CORDONED)

        await node_world.until(lambda: node_world.conditions()["TaintsDrift"][0] == "False")
        assert not node_world.node["metadata"].get("annotations")


async def test_taints_of_others_are_no_drift(node_world: NodeWorld) -> None:
    taint(node_world, CORDONED, {"key": "theirs", "effect": "NoExecute"})
    async with node_world.kept():
        await node_world.quiet()

    assert node_world.writes() == 0


def test_a_command_is_one_that_a_shell_understands() -> None:
    found = drift([parse(GPU)], [parse("old=1:NoExecute")], [Taint("old", "NoExecute", "2")])
    words = subprocess.run(
        ["/bin/sh", "-c", f"printf '%s\\n' {found.command('node-1')}"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert words.stdout.split("\n")[4:6] == ["--overwrite", GPU]
    assert words.stdout.split("\n")[6] == "old:NoExecute-"


@pytest.mark.parametrize("text", ["", ",", "x", "a=b:NoSchedule,,junk,=:NoSchedule", "\0"])
def test_what_somebody_made_of_our_annotation_counts_for_nothing(text: str) -> None:
    assert all(str(one) == "a=b:NoSchedule" for one in remembered(text))


# -- a taint while a condition is true ------------------------------------------------------------


def taints(world: NodeWorld) -> list[Any]:
    found: list[Any] = world.node["spec"].get("taints", [])
    return found


async def test_conditions_are_advisory_unless_the_settings_say_otherwise(
    node_world: NodeWorld,
) -> None:
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept():
        await node_world.until(node_world.conditions)
        await node_world.quiet()

    assert taints(node_world) == []


async def test_no_pod_is_scheduled_while_a_condition_is_true(node_world: NodeWorld) -> None:
    taint(node_world, CORDONED)
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept(no_schedule_taint=True):
        await node_world.until(lambda: taints(node_world) == [CORDONED, UNUSABLE])

        node_world.agent.clear_condition("ReleaseStuck")

        await node_world.until(lambda: taints(node_world) == [CORDONED])


async def test_an_advisory_condition_brings_no_taint(node_world: NodeWorld) -> None:
    node_world.agent.raise_condition(NodeCondition(type="Mild", reason="Why", message="so"))
    async with node_world.kept(no_schedule_taint=True, advisory=["Mild"]):
        await node_world.until(node_world.conditions)
        await node_world.quiet()

    assert taints(node_world) == []


async def test_a_taint_of_before_goes_when_the_setting_goes(node_world: NodeWorld) -> None:
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept(no_schedule_taint=True):
        await node_world.until(lambda: taints(node_world) == [UNUSABLE])
    async with node_world.kept():
        await node_world.until(lambda: taints(node_world) == [])


async def test_a_taint_stays_until_an_agent_that_starts_knows_better(
    node_world: NodeWorld,
) -> None:
    taint(node_world, UNUSABLE)
    async with node_world.kept(no_schedule_taint=True, settle=60.0):
        await node_world.quiet()
        assert taints(node_world) == [UNUSABLE]

        node_world.clock.advance(60)

        await node_world.until(lambda: taints(node_world) == [])


async def test_what_somebody_taints_meanwhile_is_not_lost(node_world: NodeWorld) -> None:
    node_world.server.trouble(
        method="PATCH", times=1, before=lambda: taint(node_world, {**CORDONED, "key": "new"})
    )
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept(no_schedule_taint=True):
        await node_world.until(lambda: UNUSABLE in taints(node_world))

    assert taints(node_world) == [{**CORDONED, "key": "new"}, UNUSABLE]


async def test_a_taint_that_is_forbidden_costs_no_condition(node_world: NodeWorld) -> None:
    node_world.server.deny("patch", "nodes")
    node_world.agent.raise_condition(STUCK)
    async with node_world.kept(no_schedule_taint=True):
        await node_world.until(node_world.conditions)
        await node_world.agent.until(lambda: bool(node_world.agent.faults))

        assert list(node_world.agent.faults) == ["policy/node_status: taint"]
        assert taints(node_world) == []
