"""A container is told which allocations its devices are of, under whatever names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from hardpoint.model import Addition, Allotment, Claim, ClaimKey, Device, Hold
from hardpoint.node import Node
from hardpoint.policies.container_facts import ContainerFacts, ContainerFactsSettings
from hardpoint.testing import PolicyContract

KEY = ClaimKey("uid-1", "ml", "train", "gpu.bcd.dev")
GPU = Device(name="gpu0", kind="gpu")


class TestContainerFacts(PolicyContract):
    plugin = ContainerFacts
    writes_api = False

    def configure(self, root: Path) -> Mapping[str, Any]:
        return {}


def said(*allocations: str, **settings: str) -> list[Addition | None]:
    """Return what is added for each device of a claim, held under these allocations."""
    policy = ContainerFacts(Node(name="node-1"), ContainerFactsSettings(**settings))
    claim = Claim(
        key=KEY,
        allotments=tuple(
            Allotment(request=f"r{i}", device=f"gpu{i}", pool="node-1", allocation=one)
            for i, one in enumerate(allocations)
        ),
    )
    holds = [Hold(claim=KEY, device=GPU, request="r", allocation=one) for one in allocations]
    return [policy.annotate_delivery(hold, GPU, claim) for hold in holds]


def test_it_is_said_in_a_variable_and_an_annotation() -> None:
    (found,) = said("a-1")

    assert found == Addition(
        env={"HARDPOINT_ALLOCATION_IDS": "a-1"},
        annotations={"hardpoint.dev/allocation-ids": "a-1"},
    )


def test_the_names_are_the_admins() -> None:
    (found,) = said("a-1", variable="BCD_ALLOCATION_IDS", annotation="bcd.dev/allocation-ids")

    assert found == Addition(
        env={"BCD_ALLOCATION_IDS": "a-1"}, annotations={"bcd.dev/allocation-ids": "a-1"}
    )


def test_either_can_be_left_out_and_not_both() -> None:
    (found,) = said("a-1", variable="")
    assert found == Addition(annotations={"hardpoint.dev/allocation-ids": "a-1"})
    (found,) = said("a-1", annotation="")
    assert found == Addition(env={"HARDPOINT_ALLOCATION_IDS": "a-1"})
    with pytest.raises(ValidationError, match="with neither nothing is said"):
        ContainerFactsSettings(variable="", annotation="")


def test_what_is_held_under_no_grant_says_nothing() -> None:
    assert said("") == [None]


def test_each_device_of_a_claim_says_all_of_its_allocations() -> None:
    """The runtime gives a container the variables of its last device."""
    first, second, ungoverned, third = said("b-1", "a-1", "", "b-1")

    assert first == second == third
    assert first is not None
    assert first.env == {"HARDPOINT_ALLOCATION_IDS": "b-1,a-1"}
    assert ungoverned is None


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"variable": "1ST"}, "no digit first"),
        ({"variable": "A=B"}, "letters, digits and _"),
        ({"variable": "A\n"}, "letters, digits and _"),
        ({"variable": "ALLOCATION-IDS"}, "letters, digits and _"),
        ({"variable": "A" * 200}, "letters, digits and _"),
        ({"variable": "PATH"}, "changes what a container runs"),
        ({"variable": "LD_PRELOAD"}, "changes what a container runs"),
        ({"variable": "NVIDIA_VISIBLE_DEVICES"}, "changes what a container runs"),
        ({"annotation": "no key"}, "at most 63 letters"),
        ({"annotation": "-a/ids"}, "DNS name before the slash"),
        ({"annotation": "a.dev/"}, "at most 63 letters"),
        ({"annotation": "cdi.k8s.io/ids"}, "runtimes act on"),
        ({"annotation": "K8S.IO/ids"}, "runtimes act on"),
        ({"annotation": "container.apparmor.security.beta.kubernetes.io/x"}, "runtimes act on"),
    ],
)
def test_a_name_that_is_none_or_means_something_else_is_refused(
    settings: dict[str, str], why: str
) -> None:
    with pytest.raises(ValidationError, match=why):
        ContainerFactsSettings(**settings)
