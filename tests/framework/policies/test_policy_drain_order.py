"""A node that is handed back: in which order, what survives, and how it comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from hardpoint.errors import LedgerUnwritable
from hardpoint.grants import NodeCondition
from hardpoint.policies.drain import Drain
from hardpoint.policies.drain.settings import DrainSettings
from hardpoint.testing.agent import FakeAgent

from .drain_world import HELD, NODE, DrainWorld


async def test_a_node_that_nobody_asks_for_serves(drain_world: DrainWorld) -> None:
    drain_world.add_pod("train")
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.state == "in-service")
        await drain_world.quiet()

    assert drain_world.server.writes() == []
    assert not drain_world.agent.withdrawn


async def test_a_node_is_withdrawn_cordoned_and_emptied(drain_world: DrainWorld) -> None:
    drain_world.add_pod("train")
    drain_world.agent.set_state(releasing=[HELD])
    async with drain_world.served():
        drain_world.ask()
        await drain_world.until(lambda: drain_world.going() == {"train": 30})

        assert drain_world.agent.withdrawn.startswith("drain: asked for by root in ")
        assert drain_world.agent.withdrawn.endswith("drain: the machine moves")
        assert drain_world.cordoned
        assert drain_world.node["metadata"]["annotations"] == {"hardpoint.dev/cordoned": "drain"}
        await drain_world.until(lambda: drain_world.state == "draining")
        assert not drain_world.released


async def test_nothing_else_is_done_before_it_is_recorded(drain_world: DrainWorld) -> None:
    drain_world.add_pod("train")
    seen: list[bool] = []

    async def withdraw(why: str) -> None:
        seen.append(bool(drain_world.server.writes()))
        if len(seen) < 3:
            raise LedgerUnwritable("the ledger", "no space left")
        drain_world.agent.withdrawn = why

    drain_world.agent.withdraw = withdraw  # type: ignore[method-assign]
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(drain_world.going)

    assert seen == [False, False, False]


async def test_it_is_released_when_nobody_can_be_using_a_device(drain_world: DrainWorld) -> None:
    drain_world.add_pod("train")
    drain_world.agent.set_state(releasing=[HELD])
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(drain_world.going)
        drain_world.end("train")
        await drain_world.until(lambda: "pod default/train" not in _waits_for(drain_world))
        assert _waits_for(drain_world) == ["release of gpu-0"]
        assert not drain_world.released

        drain_world.agent.set_state(releasing=[])

        await drain_world.until(lambda: drain_world.released)
        assert drain_world.state == "released"
        assert drain_world.agent.raised["Released"].reason == "Drained"
        assert not drain_world.agent.raised["Released"].trouble


def _waits_for(world: DrainWorld) -> Any:
    return world.agent.notes.get("policy/drain", {}).get("waits_for", ["pod default/train"])


async def test_it_is_not_released_before_its_pods_could_be_looked_at(
    drain_world: DrainWorld,
) -> None:
    drain_world.server.down = True
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.state == "draining")
        await drain_world.quiet()
        assert drain_world.agent.withdrawn
        assert not drain_world.released

        drain_world.server.down = False

        await drain_world.until(lambda: drain_world.released and drain_world.cordoned)


async def test_it_is_not_released_while_a_pod_is_still_ending(drain_world: DrainWorld) -> None:
    drain_world.add_pod("train")
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(drain_world.going)
        await drain_world.quiet()

        assert not drain_world.released


# -- back -----------------------------------------------------------------------------------------


async def test_a_request_that_goes_away_brings_the_node_back(drain_world: DrainWorld) -> None:
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.released)

        drain_world.take_back()

        await drain_world.until(lambda: not drain_world.cordoned)
        assert not drain_world.agent.withdrawn
        assert not drain_world.released
        assert not drain_world.node["metadata"].get("annotations")
        await drain_world.until(lambda: drain_world.state == "in-service")


async def test_who_else_cordoned_the_node_keeps_it_cordoned(drain_world: DrainWorld) -> None:
    drain_world.server.edit("nodes", NODE).change(
        lambda node: node["spec"].update(unschedulable=True)
    )
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.released)
        drain_world.take_back()
        await drain_world.until(lambda: drain_world.state == "in-service")
        await drain_world.quiet()

    assert drain_world.cordoned
    assert drain_world.server.writes("nodes") == []


async def test_a_node_that_somebody_uncordons_is_cordoned_again(drain_world: DrainWorld) -> None:
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.cordoned)
        drain_world.server.edit("nodes", NODE).change(lambda node: node["spec"].clear())

        await drain_world.until(lambda: drain_world.cordoned)


async def test_what_another_has_withdrawn_is_left_to_it(drain_world: DrainWorld) -> None:
    await drain_world.agent.withdraw("acme: the node is being serviced")
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.state == "in-service")
        await drain_world.quiet()

    assert drain_world.agent.withdrawn == "acme: the node is being serviced"


async def test_a_drain_ends_nothing_that_another_has_withdrawn(drain_world: DrainWorld) -> None:
    await drain_world.agent.withdraw("acme: the node is being serviced")
    drain_world.add_pod("train")
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.going() == {"train": 30})
        drain_world.end("train")
        await drain_world.until(lambda: drain_world.released)
        assert drain_world.cordoned

        drain_world.take_back()
        await drain_world.until(lambda: drain_world.state == "in-service")
        await drain_world.until(lambda: not drain_world.cordoned)

    assert drain_world.agent.withdrawn == "acme: the node is being serviced"


async def test_a_node_that_another_takes_into_service_is_handed_back_still(
    drain_world: DrainWorld,
) -> None:
    await drain_world.agent.withdraw("acme: the node is being serviced")
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.released)
        await drain_world.agent.resume()

        await drain_world.until(lambda: drain_world.agent.withdrawn.startswith("drain: "))


async def test_a_node_may_be_handed_back_again(drain_world: DrainWorld) -> None:
    async with drain_world.served():
        for _ in range(2):
            drain_world.ask()
            await drain_world.until(lambda: drain_world.cordoned and drain_world.released)
            drain_world.take_back()
            await drain_world.until(lambda: not drain_world.cordoned and not drain_world.released)


# -- by annotation --------------------------------------------------------------------------------


async def test_an_annotation_of_the_node_asks_too(drain_world: DrainWorld) -> None:
    async with drain_world.served():
        drain_world.annotate(drain="")
        await drain_world.until(lambda: drain_world.released)
        assert "annotation hardpoint.dev/drain" in drain_world.agent.withdrawn

        drain_world.annotate(drain=None)

        await drain_world.until(lambda: not drain_world.cordoned)
        assert not drain_world.agent.withdrawn


@pytest.mark.parametrize("word", ["false", " False"])
async def test_an_annotation_that_says_false_deletes_nobody(
    drain_world: DrainWorld, word: str
) -> None:
    drain_world.add_pod("train")
    drain_world.annotate(drain=word)
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.state == "in-service")
        await drain_world.quiet()
        assert drain_world.going() == {}

        drain_world.annotate(drain="true")
        await drain_world.until(lambda: drain_world.going() == {"train": 30})
        drain_world.annotate(drain="false")
        await drain_world.until(lambda: not drain_world.cordoned)


async def test_an_annotation_is_not_followed_where_the_settings_say_so(
    drain_world: DrainWorld,
) -> None:
    drain_world.annotate(drain="")
    async with drain_world.served(follow_annotation=False):
        await drain_world.until(lambda: drain_world.state == "in-service")
        await drain_world.quiet()

    assert not drain_world.agent.withdrawn


async def test_both_have_to_go(drain_world: DrainWorld) -> None:
    drain_world.annotate(drain="")
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.released)
        drain_world.take_back()
        await drain_world.quiet()
        assert drain_world.cordoned
        assert drain_world.released

        drain_world.annotate(drain=None)

        await drain_world.until(lambda: not drain_world.cordoned)


async def test_an_annotation_that_cannot_be_read_is_not_gone(drain_world: DrainWorld) -> None:
    drain_world.annotate(drain="")
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.released)
    drain_world.server.down = True
    drain_world.another_agent()
    async with drain_world.served():
        await drain_world.quiet()
        assert drain_world.agent.withdrawn

        drain_world.server.down = False
        drain_world.annotate(drain=None)

        await drain_world.until(lambda: not drain_world.agent.withdrawn)


async def test_a_node_object_that_is_deleted_does_not_bring_the_node_back(
    drain_world: DrainWorld,
) -> None:
    drain_world.annotate(drain="")
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.released)
        drain_world.server.remove("nodes", NODE)
        await drain_world.quiet()
        assert drain_world.agent.withdrawn

        drain_world.server.add_node(NODE)  # the kubelet registers anew

        await drain_world.until(lambda: not drain_world.agent.withdrawn)


# -- restarts and failures ------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(5))
async def test_an_agent_that_ends_at_any_step_goes_on_where_it_was(
    drain_world: DrainWorld, steps: int
) -> None:
    drain_world.add_pod("train")
    drain_world.agent.set_state(releasing=[HELD])
    reached = [
        lambda: drain_world.agent.withdrawn,
        lambda: drain_world.cordoned,
        drain_world.going,
        lambda: drain_world.state == "draining",
        lambda: drain_world.server.writes("pods"),
    ]
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(reached[steps])
    drain_world.another_agent()
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.going() == {"train": 30})
        assert len(drain_world.server.writes("pods")) == 1
        drain_world.end("train")
        drain_world.agent.set_state(releasing=[])
        await drain_world.until(lambda: drain_world.released)
        drain_world.take_back()
        await drain_world.until(lambda: not drain_world.agent.withdrawn)
    drain_world.another_agent()
    async with drain_world.served():
        await drain_world.until(lambda: not drain_world.cordoned)


async def test_a_request_that_went_while_no_agent_ran_is_noticed(drain_world: DrainWorld) -> None:
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.released)
    drain_world.take_back()
    drain_world.another_agent()
    async with drain_world.served():
        await drain_world.until(lambda: not drain_world.cordoned)
        assert not drain_world.agent.withdrawn


async def test_a_cluster_that_forbids_to_cordon_is_drained_all_the_same(
    drain_world: DrainWorld,
) -> None:
    drain_world.server.deny("patch", "nodes")
    drain_world.add_pod("train")
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(drain_world.going)
        drain_world.end("train")
        await drain_world.until(lambda: drain_world.released)

        assert not drain_world.cordoned
        (said, *_) = drain_world.agent.faults["policy/drain: cordon"]
        assert "forbidden" in said


async def test_the_node_comes_back_by_its_file_where_even_reading_it_is_forbidden(
    drain_world: DrainWorld,
) -> None:
    drain_world.server.deny("*", "nodes")
    drain_world.ask()
    async with drain_world.served(follow_annotation=False):
        await drain_world.until(lambda: drain_world.released)
        drain_world.take_back()

        await drain_world.until(lambda: not drain_world.agent.withdrawn)


async def test_a_proxy_that_finds_no_server_ends_no_drain_and_keeps_nobody_from_one(
    drain_world: DrainWorld,
) -> None:
    """It answers 404 to everything: there is neither no Node, nor no pod."""
    drain_world.add_pod("train")
    lost = drain_world.server.trouble(path="/", status=404)
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.agent.withdrawn)
        await drain_world.until(
            lambda: (
                {"policy/drain: Node", "policy/drain: pods"} <= (drain_world.agent.faults.keys())
            )
        )
        assert not drain_world.released
        lost.end()

        await drain_world.until(lambda: drain_world.going() == {"train": 30})
        await drain_world.until(lambda: drain_world.cordoned)
        await drain_world.until(lambda: not drain_world.agent.faults)


async def test_a_node_is_not_released_on_the_word_of_who_is_no_api_server(
    drain_world: DrainWorld,
) -> None:
    drain_world.add_pod("train")
    odd = drain_world.server.trouble(path="/pods", body=b'{"status": "ok"}')
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: "policy/drain: pods" in drain_world.agent.faults)
        assert not drain_world.released
        odd.end()
        await drain_world.until(lambda: drain_world.going() == {"train": 30})


async def test_no_pod_is_deleted_from_a_node_of_our_name_that_is_another_machine(
    drain_world: DrainWorld,
) -> None:
    """A name that is misspelt may be another node's. Its kubelet tells which boot it runs on."""
    drain_world.add_pod("train")
    drain_world.boot("6b1d3a52-0000-4000-8000-00000000b007")
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.agent.faults.get("policy/drain: pods"))

        assert drain_world.agent.withdrawn  # this machine's devices are offered no more
        assert (drain_world.going(), drain_world.cordoned) == ({}, False)
        assert not drain_world.released
        assert "another machine's" in drain_world.agent.faults["policy/drain: pods"][-1]

        drain_world.boot(drain_world.agent.node.boot_id)  # it has told of this boot now
        await drain_world.until(lambda: drain_world.cordoned and drain_world.going())
        await drain_world.until(lambda: "policy/drain: pods" not in drain_world.agent.faults)


async def test_another_machines_node_is_not_uncordoned(drain_world: DrainWorld) -> None:
    """Our cordon on it is that of the agent that runs there."""
    drain_world.boot("6b1d3a52-0000-4000-8000-00000000b007")
    drain_world.annotate(cordoned="drain")
    drain_world.server.edit("nodes", NODE).change(
        lambda node: node["spec"].update(unschedulable=True)
    )
    async with drain_world.served(follow_annotation=False):
        await drain_world.until(lambda: drain_world.agent.faults.get("policy/drain: uncordon"))

    assert drain_world.cordoned


async def test_the_annotation_of_another_machines_node_drains_nothing_here(
    drain_world: DrainWorld,
) -> None:
    drain_world.boot("6b1d3a52-0000-4000-8000-00000000b007")
    drain_world.annotate(drain="yes")
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.agent.faults.get("policy/drain: name"))
        await drain_world.quiet()

    assert not drain_world.agent.withdrawn
    assert "node_name" in drain_world.agent.faults["policy/drain: name"][-1]


async def test_what_somebody_changes_on_the_node_meanwhile_is_kept(
    drain_world: DrainWorld,
) -> None:
    drain_world.server.trouble(
        method="PATCH", times=1, before=lambda: drain_world.annotate(other="kept")
    )
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.cordoned)

    notes = drain_world.node["metadata"]["annotations"]
    assert notes == {"hardpoint.dev/cordoned": "drain", "hardpoint.dev/other": "kept"}


async def test_a_directory_that_cannot_be_looked_at_says_nothing(drain_world: DrainWorld) -> None:
    drain_world.ask()
    state = drain_world.agent.paths.state
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.released)
        state.rename(state.with_name("away"))
        await drain_world.until(lambda: "policy/drain: request" in drain_world.agent.faults)
        assert drain_world.agent.withdrawn

        state.with_name("away").rename(state)
        drain_world.take_back()

        await drain_world.until(lambda: not drain_world.agent.withdrawn)
        assert "policy/drain: request" not in drain_world.agent.faults


async def test_a_node_without_an_api_server_is_withdrawn_all_the_same(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path)
    agent.paths.state.mkdir()
    (agent.paths.state / "drain").touch()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Drain(agent.node, DrainSettings()).serve_policy, agent)
        await agent.until(lambda: "Released" in agent.raised)
        assert agent.withdrawn

        (agent.paths.state / "drain").unlink()

        await agent.until(lambda: not agent.withdrawn)
        tasks.cancel_scope.cancel()


async def test_a_condition_of_that_name_is_taken_off_when_the_node_serves(
    drain_world: DrainWorld,
) -> None:
    drain_world.agent.raise_condition(NodeCondition(type="Released", reason="Old", message="old"))
    async with drain_world.served():
        await drain_world.until(lambda: not drain_world.released)
