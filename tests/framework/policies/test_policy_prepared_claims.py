"""What the agent has prepared and not unprepared is in use, whatever the kubelet says."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from release_world import allocated, claimed, release

from hardpoint.model import ClaimKey, Hold, HoldState
from hardpoint.node import Node
from hardpoint.policies.prepared_claims import PreparedClaims


@pytest.fixture
def policy() -> PreparedClaims:
    return PreparedClaims(Node(name="node-1", recorded=True), None)


@pytest.mark.parametrize("state", list(HoldState))
def test_a_hold_is_a_use_in_whatever_state_it_is(policy: PreparedClaims, state: HoldState) -> None:
    found = policy.find_users(release("gpu0"), (claimed("gpu0", state=state),))

    assert found.users == ("claim media/player-gpu",)


def test_who_took_the_device_before_it_was_granted_uses_it_too(policy: PreparedClaims) -> None:
    assert policy.find_users(release("gpu0"), (claimed("gpu0", allocation=""),)).users


def test_an_allocation_of_the_device_plugin_is_a_use(policy: PreparedClaims) -> None:
    found = policy.find_users(release("gpu0"), (allocated("gpu0", "gpu0@a1"),))

    assert found.users == ("a container that has gpu0@a1 of hardpoint.dev/gpu",)


def test_a_hold_that_was_found_again_without_a_name_is_a_use(policy: PreparedClaims) -> None:
    known = allocated("gpu0", "gpu0@a1")
    nameless = Hold(
        claim=replace(known.claim, namespace="", name=""), device=known.device, request=""
    )

    assert policy.find_users(release("gpu0"), (nameless,)).users == ("a container that has gpu0",)


def test_holds_of_other_devices_and_of_another_drivers_namesake_are_none(
    policy: PreparedClaims,
) -> None:
    key = ClaimKey("uid-2", "media", "other", "gpu.example.com")
    namesake = Hold(claim=key, device=claimed("gpu0").device, request="r")
    before = time.monotonic()
    found = policy.find_users(release("gpu0"), (claimed("gpu1"), namesake))

    assert (found.users, found.why) == ((), "")
    assert found.began >= before
