"""A server that drops fields in silence: what we do where each of them is missing.

Before 1.36 that is what the API server does with fields whose gates are off; these run on it with
``KUBERNETES=1.34`` or ``1.35``. Elsewhere they run on a second cluster, of the same release with
the gates switched off, as an administrator may have them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster import pods
from cluster.node import Cluster, own_directory
from cluster.programs import release
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import ADAPTER, FIRST, LIKEN, SECOND, WHOLE, World

OFF = dict.fromkeys(
    (
        "DRADeviceTaints",
        "DRADeviceTaintRules",
        "DRAConsumableCapacity",
        "DRAFractionalCapacityRange",
        "DRAPartitionableDevices",
        "DRADeviceBindingConditions",
    ),
    False,
)
ONE_CARD = {name for name in WHOLE if not name.startswith(SECOND)}


@pytest.fixture(scope="module")
def session_world(session_world: World) -> Iterator[World]:
    if not session_world.modern:
        yield session_world
        return
    with (
        own_directory() as state,
        Cluster.up(state, release(), feature_gates=OFF) as cluster,
    ):
        made = World(cluster)
        made.modern = False
        yield made
        made.close()


def test_a_shareable_device_is_given_to_one_claim_after_the_other(
    world: World, namespace: Namespace
) -> None:
    world.machine.unplug_card()
    world.until_published(ONE_CARD)
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
    adapter_pod(namespace, "p")
    world.machine.unplug_adapter()
    until("the agent knows", lambda: unhealthy(world))

    assert ADAPTER in world.published()
    assert "taints" not in world.witness.devices(LIKEN)[ADAPTER]
    namespace.delete_pods("p")

    world.until_published(WHOLE - {ADAPTER})


def test_a_pod_that_waits_for_a_device_which_went_runs_when_it_is_back(
    world: World, namespace: Namespace
) -> None:
    # The scheduler may take the device in the moment between its holder's end and its leaving the
    # slice. Then the agent refuses it, and the pod's events say why.
    adapter_pod(namespace, "first")
    namespace.create(pods.claim("second", adapter="zigbee-adapter"))
    namespace.create(pods.pod("second", {"adapter": "second"}))
    namespace.until_says("second", "cannot allocate all claims")
    world.machine.unplug_adapter()
    until("the agent knows", lambda: unhealthy(world))

    namespace.delete_pods("first")
    until("it is not offered", lambda: ADAPTER not in world.published() or world.holds() == {})
    assert world.holds() == {}
    world.machine.plug_adapter()

    namespace.until_running("second")
    assert world.holds() == {ADAPTER: "held"}


def test_what_the_server_lacks_is_learnt_once_and_not_written_again(world: World) -> None:
    """Fields that are dropped would differ from what is wanted for ever."""
    [before] = world.witness.slices(LIKEN)
    world.agent.kill()
    world.agent.start()
    world.until_registered()

    world.machine.unplug_adapter()
    world.until_published(WHOLE - {ADAPTER})
    [once] = world.witness.slices(LIKEN)
    world.machine.plug_adapter()
    world.until_published(WHOLE)
    [twice] = world.witness.slices(LIKEN)

    written = [one["metadata"]["generation"] for one in (before, once, twice)]
    assert written[2] - written[1] == 1
    assert "keeps not all of a slice" in world.agent.log.read_text()
    assert not any("allowMultipleAllocations" in one for one in twice["spec"]["devices"])


def adapter_pod(namespace: Namespace, name: str) -> None:
    namespace.create(pods.claim(name, adapter="zigbee-adapter"))
    namespace.create(pods.pod(name, {"adapter": name}))
    namespace.until_running(name)


def unhealthy(world: World) -> bool:
    devices = world.agent.says("status")["devices"]
    return any(one["name"] == ADAPTER and one["taints"] for one in devices)
