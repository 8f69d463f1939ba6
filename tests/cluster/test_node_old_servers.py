"""Before 1.36 the API server drops, in silence, fields whose gates are off there: what we do then.

These run with ``KUBERNETES=1.34`` or ``1.35``; a newer server keeps the fields.
"""

from __future__ import annotations

import pytest
from cluster import pods
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import ADAPTER, FIRST, LIKEN, SECOND, WHOLE, World


@pytest.fixture(autouse=True)
def old(world: World) -> None:
    if world.modern:
        pytest.skip("this server keeps the fields: KUBERNETES=1.34 does not")


def test_a_shareable_device_is_given_to_one_claim_after_the_other(
    world: World, namespace: Namespace
) -> None:
    world.machine.unplug_card()
    world.until_published({name for name in WHOLE if not name.startswith(SECOND)})
    for name in ("one", "two"):
        namespace.create(pods.claim(name, gpu="gpu-render"))
        namespace.create(pods.pod(name, {"gpu": name}))
        if name == "one":
            namespace.until_running("one")
    namespace.until_says("two", "cannot allocate all claims")

    namespace.delete_pods("one")

    namespace.until_running("two")
    assert namespace.allocated("two") == [FIRST]


def test_an_unplugged_device_stays_while_it_is_held_and_leaves_when_it_is_not(
    world: World, namespace: Namespace
) -> None:
    namespace.create(pods.claim("adapter", adapter="zigbee-adapter"))
    namespace.create(pods.pod("p", {"adapter": "adapter"}))
    namespace.until_running("p")
    world.machine.unplug_adapter()
    until("the agent knows", lambda: unhealthy(world))

    assert ADAPTER in world.published()
    assert "taints" not in world.witness.devices(LIKEN)[ADAPTER]
    namespace.delete_pods("p")

    world.until_published(WHOLE - {ADAPTER})


def unhealthy(world: World) -> bool:
    devices = world.agent.says("status")["devices"]
    return any(one["name"] == ADAPTER and one["taints"] for one in devices)
