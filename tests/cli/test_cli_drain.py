"""`hardpoint drain`, with and without an agent: the node is handed back, and comes again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest
from shell import NODE, Answer, Cluster, Shell, agent_of, cluster_of, ended

SETTINGS = """
drivers = ["radios"]
policies = ["drain", "node_status"]

[policy.node_status]
conditions = {Released = "KubernetesReleased"}
"""


@pytest.fixture
def drained(shell: Shell) -> Shell:
    shell.install_radios("radio0")
    shell.config.write_text(SETTINGS)
    return shell


def test_a_node_is_asked_for_with_no_agent_running(drained: Shell) -> None:
    answer = drained("drain", "--why", "it moves to another rack")

    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("No agent runs with ")
    file = drained.state / "drain"
    assert json.loads(file.read_text())["why"] == "it moves to another rack"
    assert file.stat().st_mode & 0o777 == 0o600
    assert drained.state.stat().st_mode & 0o777 == 0o700
    said = drained("drain", "--status")
    assert said.code == 3
    assert said.out.startswith("A drain is asked for since ")
    assert said.out.endswith(" (it moves to another rack); no agent runs.\n")


def test_a_drain_is_taken_back_with_no_agent_running(drained: Shell) -> None:
    drained("drain")
    first, second = drained("drain", "--undo"), drained("drain", "--undo")

    assert first == Answer(0, "The node is to serve again.\n", "")
    assert second == Answer(0, "No file has asked for a drain.\n", "")
    assert not (drained.state / "drain").exists()


def test_the_answer_may_be_json(drained: Shell) -> None:
    asked = drained("drain", "--json").json

    assert asked["by"]
    assert {k: v for k, v in asked.items() if k not in ("by", "since")} == {
        "requested": True,
        "why": "",
        "agent": False,
        "state": "unknown",
        "asked_by": "",
        "cordon": "",
        "waits_for": [],
    }
    assert drained("drain", "--undo", "--json").json["requested"] is False
    assert drained("drain", "--status", "--json").json["since"] is None


def test_without_the_policy_a_drain_is_refused(shell: Shell) -> None:
    answer = shell("drain")

    assert answer.code == 1
    assert 'policies = ["drain"]' in answer.err
    assert not (shell.state / "drain").exists()


def test_the_policies_that_run_stay_in_the_line_that_is_advised(shell: Shell) -> None:
    shell.config.write_text('policies = ["metrics"]\n')

    assert 'policies = ["metrics", "drain"]' in shell("drain").err


def test_where_no_agent_has_run_it_is_said_that_nothing_is_known(drained: Shell) -> None:
    answer = drained("drain", "--status")

    assert (answer.code, answer.out) == (1, "")
    assert f"there is no {drained.state}, which the agent makes" in answer.err
    assert "Errno" not in answer.err


def test_a_section_that_is_wrong_is_said(drained: Shell) -> None:
    drained.config.write_text('policies = ["drain"]\n[policy.drain]\nlongest_grace_s = "long"\n')

    answer = drained("drain")

    assert answer.code == 1
    assert "policy.drain.longest_grace_s" in answer.err


def test_who_waits_without_an_agent_is_told_and_does_not_wait_for_ever(drained: Shell) -> None:
    answer = drained("drain", "--wait", "--timeout", "0")

    assert answer.code == 1
    assert "note: no agent runs" in answer.err
    assert "not done within 0 s: unknown" in answer.err


def test_to_undo_and_to_look_are_two_things(drained: Shell) -> None:
    assert drained("drain", "--undo", "--status").code == 2


# -- beside an agent ------------------------------------------------------------------------------


@asynccontextmanager
async def running(shell: Shell) -> AsyncIterator[Cluster]:
    async with cluster_of(shell) as cluster, agent_of(shell) as agent:
        await cluster.server.until(lambda: cluster.published == ["radio0"], 15)
        yield cluster
        await ended(agent)


async def says(shell: Shell, *words: str) -> Answer:
    return await anyio.to_thread.run_sync(lambda: shell(*words))


def node_of(cluster: Cluster) -> Any:
    return cluster.server.get("nodes", NODE)


def conditions(cluster: Cluster) -> dict[str, str]:
    listed = node_of(cluster).get("status", {}).get("conditions", ())
    return {one["type"]: one["status"] for one in listed}


async def test_a_node_is_handed_back_and_comes_again(drained: Shell) -> None:
    async with running(drained) as cluster:
        done = await says(drained, "drain", "--wait", "--timeout", "30")
        assert (done.code, done.err) == (0, "")
        assert "The node is handed back: nobody can be using a device" in done.out
        assert node_of(cluster)["spec"] == {"unschedulable": True}
        await cluster.server.until(lambda: cluster.published == [], 15)
        await cluster.server.until(lambda: conditions(cluster) == {"KubernetesReleased": "True"})
        assert (await says(drained, "drain", "--status")).code == 0

        back = await says(drained, "drain", "--undo", "--wait", "--timeout", "30")
        assert (back.code, back.err) == (0, "")
        assert back.out == "The node is to serve again.\nThe node serves.\n"
        await cluster.server.until(lambda: node_of(cluster)["spec"] == {}, 15)
        await cluster.server.until(lambda: cluster.published == ["radio0"], 15)


async def test_what_is_held_is_waited_for_also_by_the_agent_after_this_one(
    drained: Shell,
) -> None:
    async with running(drained) as cluster:
        await cluster.kubelet.until_registered("hardpoint.dev")
        pod = cluster.allocate("radio0")
        await cluster.kubelet.prepare(pod)
        late = await says(drained, "drain", "--wait", "--timeout", "2")
        assert late.code == 1
        assert "radio0" in late.err
    async with cluster_of(drained) as cluster, agent_of(drained) as agent:
        await cluster.server.until(lambda: bool(node_of(cluster)["spec"]), 15)
        assert cluster.published == []
        shown = await says(drained, "drain", "--status")
        while "not said" in shown.out:  # what it knows is written down a moment after it is done
            shown = await says(drained, "drain", "--status")
        assert shown.code == 3
        assert "radio0" in shown.out
        await ended(agent)
