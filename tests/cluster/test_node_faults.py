"""What a real API server does that it should not: refuses, goes away, is written by others."""

from __future__ import annotations

import pytest
from cluster.refusals import refused
from cluster.waiting import until
from cluster.world import ADAPTER, LIKEN, SECOND, WHOLE, World

WHY = "slices are frozen until Monday"
ONE_CARD = {name for name in WHOLE if not name.startswith(SECOND)}


def faults(world: World) -> dict[str, str]:
    """Return what is on the fault board, by source."""
    return {one["source"]: one["message"] for one in world.agent.says("status")["faults"]}


# -- an API server that refuses -------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["Invalid", "Forbidden", "RequestEntityTooLarge"])
def test_a_refused_slice_is_said_with_the_servers_reason_and_is_written_when_it_may_be(
    world: World, reason: str
) -> None:
    with refused(world.witness, f"object.spec.driver != '{LIKEN}'", WHY, reason):
        world.machine.unplug_card()
        said = until("the reason", lambda: faults(world).get(f"slices of {LIKEN}", ""))
        found = {one["subject"]: one["found"] for one in world.agent.says("doctor")}
        stood = set(world.published())

    assert WHY in said
    assert WHY in found[f"slices of {LIKEN}"]
    assert stood == WHOLE
    world.until_published(ONE_CARD)
    until("no faults", lambda: faults(world) == {})


def test_a_policy_against_one_device_hides_no_other_and_its_end_is_noticed(world: World) -> None:
    allowed = f"object.spec.devices.all(d, d.name != '{ADAPTER}')"
    world.machine.unplug_adapter()
    world.until_published(WHOLE - {ADAPTER})
    with refused(world.witness, allowed, WHY):
        world.machine.plug_adapter()
        world.machine.unplug_card()
        world.until_published(ONE_CARD - {ADAPTER})
        said = until("the reason", lambda: faults(world).get(f"slice of device {ADAPTER}", ""))

    assert WHY in said
    # Nobody tells that a policy has gone: a minute later the device is tried again.
    until("the adapter is back", lambda: set(world.published()) == ONE_CARD)
    until("no faults", lambda: faults(world) == {})
