"""Allocation ids in what the runtime reads, and in what the kubelet is told."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hardpoint._core.plugins.discovery import Plugin
from hardpoint.allocation import Assignment
from hardpoint.model import Domain
from hardpoint.policies.container_facts import ContainerFacts
from hardpoint_deviceplugin.translate import by_cdi

from .conftest import World, claim, reading
from .grant_world import Played, grant, granting, until_so

NAME = "HARDPOINT_ALLOCATION_IDS"


@pytest.fixture
def played() -> Played:
    made = Played()
    made.grants = [grant("a-1", "radio0"), grant("b-1", "radio1")]
    return made


def facts() -> Plugin:
    return Plugin("policy", "container_facts", loaded=ContainerFacts)


def variables(world: World) -> list[list[str]]:
    """Return the variables of each device in the CDI files."""
    documents: list[dict[str, Any]] = [
        json.loads(file.read_text()) for file in world.paths.cdi.glob("*.json")
    ]
    return [e["containerEdits"].get("env", []) for one in documents for e in one["devices"]]


async def test_both_devices_of_one_claim_say_both_of_its_allocations(
    world: World, played: Played
) -> None:
    async with granting(world, played, facts()) as agent:
        await until_so(agent, lambda: len(agent.offer.devices) == 2)
        wanted = claim("radio0", "radio1")
        first, second = wanted.allotments
        wanted = replace(
            wanted,
            allotments=(replace(first, allocation="a-1"), replace(second, allocation="b-1")),
        )

        await agent.prepare(wanted.key, reading(wanted))

        assert variables(world) == [[f"{NAME}=a-1,b-1"]] * 2
    async with granting(world, played, facts()) as agent:
        await until_so(agent, lambda: len(agent.offer.devices) == 2)
        await agent.prepare(wanted.key, reading(wanted))
        assert variables(world) == [[f"{NAME}=a-1,b-1"]] * 2


async def test_a_container_with_ids_of_two_allocations_is_told_both(
    world: World, played: Played
) -> None:
    async with granting(world, played, facts()) as agent:
        await until_so(agent, lambda: len(agent.offer.devices) == 2)
        ids = {one.name: one.allocation for one in agent.offer.devices}
        wanted = [
            Assignment(
                resource="hardpoint.dev/radio",
                id=f"{name}@{allocation}",
                device=name,
                domain=Domain.named("hardpoint.dev"),
                allocation=allocation,
            )
            for name, allocation in sorted(ids.items())
        ]

        answer = by_cdi(await agent.allocate(wanted))

        assert dict(answer.envs) == {NAME: "a-1,b-1"}
        assert dict(answer.annotations) == {"hardpoint.dev/allocation-ids": "a-1,b-1"}
        assert variables(world) == [[], []]
