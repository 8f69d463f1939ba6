"""Which ids, claims' devices and holds are uses of what is released."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from release_world import GPU, allocated, claimed, grant, offered, release

from hardpoint.allocation import allocation_key, device_id
from hardpoint.grants import Grant, Release, published_name
from hardpoint.kubelet.pods import HeldDevice, HeldResource, PodUse
from hardpoint.model import Domain, Hold, Offer, Offered
from hardpoint.policies._uses import Uses, holder, holds_released
from hardpoint.testing import FakeAgent

OTHER = Domain.named("other.dev")


@pytest.fixture
def agent(tmp_path: Path) -> FakeAgent:
    return FakeAgent(tmp_path)


def uses(
    agent: FakeAgent,
    released: Release,
    *,
    granted: tuple[Grant, ...] = (),
    shown: tuple[Offered, ...] = (),
    holds: tuple[Hold, ...] = (),
) -> Uses:
    agent.set_state(granted=granted)
    agent.offer = Offer(generation=agent.offer.generation + 1, devices=shown)
    return Uses.of(released, holds, agent)


def has(device: str, driver: str = "hardpoint.dev", claim: str = "c") -> HeldDevice:
    return HeldDevice(
        container="m",
        driver=driver,
        pool="node-1",
        device=device,
        claim_namespace="media",
        claim_name=claim,
    )


def test_an_id_of_one_of_the_devices_is_a_use_under_every_allocation(agent: FakeAgent) -> None:
    both = uses(agent, release("gpu0", "gpu1"))

    assert all(map(both.by_id, ("gpu0", "gpu1", "gpu0@a1", "gpu1@a7", "gpu0::3@a7")))
    assert not any(map(both.by_id, ("gpu2", "gpu2@a7", "gpu00", "")))


def test_an_id_of_the_allocation_is_a_use_only_if_all_of_it_has_ended(agent: FakeAgent) -> None:
    ended = uses(agent, release("gpu0"))
    shrunk = uses(agent, release("gpu0"), granted=(grant("a1", "gpu1"),))
    drained = uses(agent, release("gpu0", allocation="", source="drain"))

    assert ended.by_id("gpu9@a1")
    assert not shrunk.by_id("gpu1@a1")
    assert shrunk.by_id("gpu0@a1")
    assert not drained.by_id("gpu9")


def test_what_is_offered_now_is_somebodys_by_right_unless_it_is_what_is_released(
    agent: FakeAgent,
) -> None:
    shown = (offered("gpu0", "a2"), offered("gpu1"))
    now = uses(agent, release("gpu0"), shown=shown)

    assert not now.by_id("gpu0@a2")
    assert now.by_id("gpu0@a1")
    assert now.by_id("gpu0")
    bare = uses(agent, release("gpu0"), shown=(offered("gpu0"),))
    assert bare.by_id("gpu0"), "it is shown under no grant, so its name says nothing"


def test_another_device_that_is_offered_is_no_use_though_its_name_fits(agent: FakeAgent) -> None:
    """A device may be called what another is called under a grant."""
    twin = published_name("gpu0", "a1")
    assert uses(agent, release("gpu0")).by_device(has(twin))
    assert not uses(agent, release("gpu0"), shown=(offered(twin),)).by_device(has(twin))


def test_a_claims_device_is_a_use_by_its_name_of_its_own_driver(agent: FakeAgent) -> None:
    both = uses(agent, release("gpu0", "gpu1"))

    for name in ("gpu0", "gpu1", published_name("gpu1", "a7"), published_name("gpu9", "a1")):
        assert both.by_device(has(name)), name
        assert not both.by_device(has(name, "gpu.nvidia.com")), name
    assert not both.by_device(has(published_name("gpu9", "a7")))
    nameless = replace(release("gpu0"), dra_drivers=())
    assert uses(agent, nameless).by_device(has("gpu0", "gpu.nvidia.com"))


def test_a_claims_device_of_what_is_left_of_the_allocation_is_none(agent: FakeAgent) -> None:
    shrunk = uses(agent, release("gpu0"), granted=(grant("a1", "gpu1"),))

    assert not shrunk.by_device(has(published_name("gpu1", "a1")))
    assert shrunk.by_device(has(published_name("gpu0", "a1")))


def test_a_claims_device_that_is_offered_is_so_by_its_driver_and_its_grant(
    agent: FakeAgent,
) -> None:
    mine = uses(agent, release("gpu0"), shown=(offered("gpu0", "a2"),))
    theirs = uses(agent, release("gpu0"), shown=(replace(offered("gpu0", "a2"), domain=OTHER),))

    assert not mine.by_device(has(published_name("gpu0", "a2")))
    assert mine.by_device(has(published_name("gpu0", "a3")))
    assert theirs.by_device(has(published_name("gpu0", "a2")))


def test_a_claim_that_the_agent_holds_it_for_has_it_whatever_its_device_is_called(
    agent: FakeAgent,
) -> None:
    held = uses(agent, release("gpu0"), holds=(claimed("gpu0"), claimed("gpu1")))

    assert [one.device.name for one in held.holds] == ["gpu0"]
    assert held.by_device(has("renamed", claim="player-gpu"))
    assert not held.by_device(has("renamed", claim="another"))
    assert not held.by_device(has("renamed", "other.dev", claim="player-gpu"))


def test_a_pod_has_it_by_an_id_or_by_a_claim(agent: FakeAgent) -> None:
    one = uses(agent, release("gpu0"))

    def pod(*ids: str, device: str = "gpu9") -> PodUse:
        held = HeldResource(container="m", resource=GPU, ids=ids)
        devices = (has("gpu8"), has(device))
        return PodUse(namespace="n", name="p", resources=(held,), devices=devices)

    assert one.by_pod(pod("gpu8", "gpu0@a1"))
    assert one.by_pod(pod(device="gpu0"))
    assert not one.by_pod(pod("gpu8"))
    assert not one.by_pod(PodUse(namespace="n", name="p"))


def test_a_hold_is_on_what_is_released_by_its_device_and_driver() -> None:
    assert holds_released(claimed("gpu0", allocation="a9"), release("gpu0"))
    assert not holds_released(claimed("gpu1"), release("gpu0"))
    foreign = replace_driver(claimed("gpu0"), "other.dev")
    assert not holds_released(foreign, release("gpu0"))
    assert holds_released(foreign, replace(release("gpu0"), dra_drivers=()))


def replace_driver(hold: Hold, driver: str) -> Hold:
    key = replace(hold.claim, dra_driver=driver)
    return Hold(claim=key, device=hold.device, request="r", allocation="a1", state=hold.state)


def test_a_holder_is_said_for_people() -> None:
    found_again = allocated("gpu0", "gpu0@a1")
    nameless = Hold(
        claim=replace(allocation_key(GPU, device_id("gpu0"), "hardpoint.dev"), name=""),
        device=found_again.device,
        request="",
        allocation="",
        state=found_again.state,
    )

    assert holder(claimed("gpu0")) == "claim media/player-gpu"
    assert holder(found_again) == "a container that has gpu0@a1 of hardpoint.dev/gpu"
    assert holder(nameless) == "a container that has gpu0"
