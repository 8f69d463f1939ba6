"""Translation: what one offered device looks like to the API server."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
from slice_pool import DOMAIN, NODE, device, many, offer, offered, rivals

from hardpoint.model import (
    Capacity,
    Condition,
    Domain,
    Effect,
    Health,
    Offered,
    Taint,
    Version,
)
from hardpoint.testing.api_server import FakeApiServer
from hardpoint_dra.translate import VERSIONS, Profile, device_body, render, shown, slice_name

SICK = Health(Condition.UNHEALTHY, "fell off the bus")


def body(found: Offered, profile: Profile | None = None) -> dict[str, Any]:
    return device_body(found, profile or Profile())


def test_every_attribute_is_sent_with_its_type() -> None:
    facts = {
        "model": "A100",
        "numa": 0,
        "display": True,
        "driver": Version("535.104.5"),
        "resource.kubernetes.io/pcieRoot": "pci0000:3a",
    }

    assert body(offered("gpu-0", attributes=facts))["attributes"] == {
        "display": {"bool": True},
        "driver": {"version": "535.104.5"},
        "model": {"string": "A100"},
        "numa": {"int": 0},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:3a"},
    }


def test_an_exclusive_device_says_nothing_of_sharing() -> None:
    found = body(offered("gpu-0", capacity={"memory": Capacity(value="1024Mi", default="1Gi")}))

    assert found["capacity"] == {"memory": {"value": "1Gi"}}
    assert "allowMultipleAllocations" not in found


@pytest.mark.parametrize(
    ("capacity", "policy"),
    [
        (Capacity(value="8Gi"), {"default": "0", "validRange": {"min": "0"}}),
        (Capacity(value="8Gi", default="1024Mi"), {"default": "1Gi"}),
        (
            Capacity(value="8Gi", default="2Gi", valid=("1Gi", "2Gi")),
            {"default": "2Gi", "validValues": ["1Gi", "2Gi"]},
        ),
        (
            Capacity(value="8Gi", valid=("1Gi", "2Gi")),
            {"default": "1Gi", "validValues": ["1Gi", "2Gi"]},
        ),
        (
            Capacity(value="8Gi", default="2Gi", minimum="1Gi", maximum="7Gi", step="1Gi"),
            {"default": "2Gi", "validRange": {"min": "1Gi", "max": "7Gi", "step": "1Gi"}},
        ),
        (
            Capacity(value="8Gi", minimum="1Gi"),
            {"default": "1Gi", "validRange": {"min": "1Gi"}},
        ),
    ],
)
async def test_a_shared_capacity_is_consumed_as_its_policy_says(
    capacity: Capacity, policy: dict[str, Any]
) -> None:
    found = offered("gpu-0", shareable=True, capacity={"memory": capacity})

    sent = body(found)
    async with FakeApiServer() as server:
        stored = server.add(render(offer(found), DOMAIN, NODE)[0])

    assert sent["allowMultipleAllocations"] is True
    assert sent["capacity"]["memory"]["requestPolicy"] == policy
    assert stored["spec"]["devices"][0]["capacity"] == sent["capacity"]


def test_a_capacity_that_is_no_quantity_costs_itself_alone() -> None:
    found = body(offered("gpu-0", capacity={"memory": "lots", "slots": "4"}))

    assert found["capacity"] == {"slots": {"value": "4"}}


def test_taints_are_the_drivers_own_the_gravest_first_each_once() -> None:
    taints = (
        Taint("note", Effect.NONE),
        Taint("rival"),
        Taint("rival", value="again"),
        Taint("example.com/gone", Effect.NO_EXECUTE),
    )

    assert body(offered("gpu-0", taints=taints))["taints"] == [
        {"key": "example.com/gone", "effect": "NoExecute"},
        {"key": "hardpoint.dev/rival", "effect": "NoSchedule"},
        {"key": "hardpoint.dev/note", "effect": "None"},
    ]


def test_only_as_many_taints_are_sent_as_the_oldest_release_takes() -> None:
    taints = tuple(Taint(f"t{number}") for number in range(9))

    assert len(body(offered("gpu-0", taints=taints))["taints"]) == 4


def test_an_unhealthy_device_is_tainted_once() -> None:
    already = offered("gpu-0", health=SICK, taints=(Taint("unhealthy", Effect.NO_EXECUTE),))

    assert body(offered("gpu-0", health=SICK))["taints"] == [
        {"key": "hardpoint.dev/unhealthy", "effect": "NoSchedule"}
    ]
    assert len(body(already)["taints"]) == 1


def test_an_unknown_health_is_no_taint() -> None:
    found = offered("gpu-0", health=Health(Condition.UNKNOWN))

    assert "taints" not in body(found)


# -- what a server does not keep ------------------------------------------------------------------


def names(found: list[Offered]) -> list[str]:
    return [offered.name for offered in found]


def test_where_taints_are_dropped_an_unusable_device_leaves_unless_it_is_held() -> None:
    mixed = offer(
        offered("fine"),
        offered("gone", taints=(Taint("absent"),)),
        offered("kept", taints=(Taint("absent"),), held=True),
        offered("sick", health=SICK),
        offered("noted", taints=(Taint("note", Effect.NONE),)),
    )
    poor = Profile(taints=False)

    seen = shown(mixed, DOMAIN, poor)

    assert names(seen) == ["fine", "kept", "noted"]
    assert all("taints" not in body(found, poor) for found in seen)
    assert len(shown(mixed, DOMAIN, Profile())) == 5


def test_an_unhealthy_device_can_be_withdrawn_instead_of_tainted() -> None:
    mixed = offer(
        offered("fine"), offered("sick", health=SICK), offered("ill", health=SICK, held=True)
    )

    assert names(shown(mixed, DOMAIN, Profile(withdraw_unhealthy=True))) == ["fine", "ill"]


def test_where_sharing_is_dropped_no_policy_is_sent() -> None:
    found = offered("gpu-0", shareable=True, capacity={"memory": "8Gi"})

    assert body(found, Profile(sharing=False)) == {
        "name": "gpu-0",
        "attributes": {"model": {"string": "A100"}},
        "capacity": {"memory": {"value": "8Gi"}},
    }


def test_binding_conditions_are_sent_unless_the_server_drops_them() -> None:
    facts: dict[str, Any] = {
        "binding_conditions": ("acme.dev/up",),
        "binding_failure_conditions": ("Failed",),
    }
    found = offered("fabric-0", **facts)

    sent, plain = body(found), body(found, Profile(binding=False))

    assert sent["bindingConditions"] == ["acme.dev/up"]
    assert sent["bindingFailureConditions"] == ["Failed"]
    assert not {"bindingConditions", "bindingFailureConditions"} & plain.keys()
    assert "bindingConditions" not in body(offered("gpu-0"))


@pytest.mark.parametrize(
    ("path", "lacks"),
    [
        ("devices[0].taints", ("taints",)),
        ("sharedCounters", ("counters",)),
        ("devices[3].consumesCounters", ("counters",)),
        ("devices[0].allowMultipleAllocations", ("sharing",)),
        ("devices[0].capacity.memory.requestPolicy", ("sharing",)),
        ("devices[0].bindingConditions", ("binding",)),
        ("devices[0].bindingFailureConditions", ("binding",)),
        ("devices[0].somethingElse", ()),
    ],
)
def test_a_dropped_field_says_which_feature_is_off(path: str, lacks: tuple[str, ...]) -> None:
    assert Profile().without([path]).lacks == lacks


def test_only_a_domains_own_devices_are_shown_each_name_once() -> None:
    other = Domain.named("other.dev")
    mixed = offer(offered("a"), offered("b", domain=other), offered("a"))

    assert names(shown(mixed, DOMAIN, Profile())) == ["a"]
    assert names(shown(mixed, other, Profile())) == ["b"]


# -- slices ---------------------------------------------------------------------------------------


def test_slices_are_named_after_node_and_driver() -> None:
    slices = render(offer(*many(300)), DOMAIN, NODE)

    assert [item["metadata"]["name"] for item in slices] == [
        "node-a-hardpoint.dev",
        "node-a-hardpoint.dev-00001",
        "node-a-hardpoint.dev-00002",
    ]
    assert [len(item["spec"]["devices"]) for item in slices] == [128, 128, 44]
    assert slices[0]["spec"]["pool"] == {
        "name": "node-a",
        "generation": 1,
        "resourceSliceCount": 3,
    }


def test_devices_stand_in_the_order_people_count_in() -> None:
    (item,) = render(offer(*reversed(many(12))), DOMAIN, NODE)

    assert [d["name"] for d in item["spec"]["devices"]] == [f"gpu-{n}" for n in range(12)]


def test_a_slice_goes_with_its_node() -> None:
    (owned,) = render(offer("gpu-0"), DOMAIN, NODE, node_uid="1234")
    (free,) = render(offer("gpu-0"), DOMAIN, NODE)

    assert owned["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "1234", "controller": True}
    ]
    assert "ownerReferences" not in free["metadata"]


def test_no_device_is_no_slice() -> None:
    assert render(offer(), DOMAIN, NODE) == []


def test_names_too_long_for_the_api_are_cut_and_stay_apart() -> None:
    long = ["a" * 120 + "." + end * 120 for end in ("x", "y")]
    driver = "d" * 55 + ".example"

    names = {slice_name(node, driver, index) for node in long for index in (0, 1)}

    assert len(names) == 4
    assert all(len(name) <= 253 for name in names)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_rendered_is_valid_and_reads_back(version: str) -> None:
    whole = offer(
        *many(70),
        *rivals(),
        offered("bad", taints=(Taint("absent"),)),
        offered("shared", shareable=True, capacity={"memory": "8Gi"}),
    )

    slices = render(whole, DOMAIN, NODE, "1234", version)

    assert len(slices) == 3
    for item in slices:
        kubernetes_validate.validate(item, "1.37", strict=True)
    assert [VERSIONS[version].decode(item) for item in slices] == render(
        whole, DOMAIN, NODE, "1234"
    )


def test_v1beta1_has_its_wrapper() -> None:
    (item,) = render(offer("gpu-0"), DOMAIN, NODE, version="v1beta1")

    assert item["apiVersion"] == "resource.k8s.io/v1beta1"
    assert item["spec"]["devices"] == [
        {"name": "gpu-0", "basic": {"attributes": {"model": {"string": "A100"}}}}
    ]


@pytest.mark.parametrize(("minor", "version"), [(32, "v1beta1"), (33, "v1beta2"), (37, "v1")])
async def test_every_release_takes_what_is_rendered_for_it(minor: int, version: str) -> None:
    whole = offer(*many(70), *rivals(), offered("bad", taints=(Taint("absent"),)))
    async with FakeApiServer(minor=minor) as server:
        for item in render(whole, DOMAIN, NODE, "1234", version):
            server.add(item)

        assert len(server.items("resourceslices")) == 3


def test_an_unknown_version_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        render(offer("gpu-0"), DOMAIN, NODE, version="v9")


def test_a_device_of_one_kind_is_not_changed_by_rendering() -> None:
    found = device("gpu-0")
    render(offer(offered("gpu-0")), DOMAIN, NODE)

    assert found == device("gpu-0")
