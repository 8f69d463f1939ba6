"""Which resource a device is in, under which ids, and who may have it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hardpoint.allocation import allocation_key
from hardpoint.model import (
    ClaimKey,
    Condition,
    Device,
    Domain,
    Effect,
    Health,
    Hold,
    Offer,
    Offered,
    Taint,
)
from hardpoint_deviceplugin.resources import Arranged, Arranger
from hardpoint_deviceplugin.settings import DevicePluginSettings
from hardpoint_deviceplugin.size import MOST_IDS

DOMAIN = Domain("dra.example", "res.example", "cdi.example")
STICK = 'device.attributes["dra.example"].?serial.orValue("") == "0001"'


def offered(name: str, kind: str = "usb", **facts: Any) -> Offered:
    of_device = {
        key: facts.pop(key) for key in ("attributes", "shareable", "topology") if key in facts
    }
    return Offered(device=Device(name=name, kind=kind, **of_device), domain=DOMAIN, **facts)


def arrange(*devices: Offered, holds: tuple[Hold, ...] = (), **settings: Any) -> Arranged:
    arranger = Arranger(DevicePluginSettings.model_validate(settings))
    return arranger.arrange(Offer(generation=1, devices=devices), holds)


def ids(arranged: Arranged) -> dict[str, list[str]]:
    return {name: [e.id for e in one.entries] for name, one in arranged.resources.items()}


def refusals(arranged: Arranged) -> dict[str, str]:
    return {e.id: e.refusal for one in arranged.resources.values() for e in one.entries}


def resource(
    name: str = "example.com/zigbee", selector: str = STICK, **more: Any
) -> dict[str, Any]:
    return {"name": name, "selector": selector, **more}


# -- kinds ----------------------------------------------------------------------------------------


def test_each_kind_is_a_resource_below_the_prefix() -> None:
    found = arrange(offered("usb-1"), offered("card-0", "sound.card"), offered("usb-0"))

    assert ids(found) == {
        "res.example/usb": ["usb-0", "usb-1"],
        "res.example/sound.card": ["card-0"],
    }


def test_names_of_kinds_can_be_others() -> None:
    names = {"usb": "serial", "sound.card": "other.example/sound"}

    found = arrange(offered("usb-0"), offered("card-0", "sound.card"), names=names)

    assert ids(found) == {"res.example/serial": ["usb-0"], "other.example/sound": ["card-0"]}


def test_kinds_that_are_not_named_have_no_resource() -> None:
    found = arrange(offered("usb-0"), offered("card-0", "sound.card"), kinds=["sound.*"])

    assert ids(found) == {"res.example/sound.card": ["card-0"]}


def test_two_devices_of_one_id_in_one_resource_are_never_both_offered() -> None:
    other = replace(offered("usb-0"), domain=Domain.named("z.example"))

    found = arrange(offered("usb-0"), other, names={"usb": "example.com/usb"})

    assert ids(found) == {"example.com/usb": ["usb-0"]}
    assert "usb-0 of z.example is left out" in found.problems["example.com/usb"]


# -- selectors ------------------------------------------------------------------------------------


def test_a_device_is_in_the_first_resource_whose_selector_matches_it_and_in_no_other() -> None:
    stick = offered("usb-1", attributes={"serial": "0001"})
    second = resource("example.com/any", "true")

    found = arrange(offered("usb-0"), stick, resources=[resource(), second])

    assert ids(found) == {"example.com/zigbee": ["usb-1"], "example.com/any": ["usb-0"]}


def test_what_no_selector_matches_is_in_the_resource_of_its_kind() -> None:
    stick = offered("usb-1", attributes={"serial": "0001"})

    found = arrange(offered("usb-0"), stick, resources=[resource()])

    assert ids(found) == {"example.com/zigbee": ["usb-1"], "res.example/usb": ["usb-0"]}


def test_a_selected_resource_is_there_before_its_device_is() -> None:
    assert ids(arrange(resources=[resource()])) == {"example.com/zigbee": []}


def test_the_name_of_a_selected_resource_is_nobody_elses() -> None:
    found = arrange(offered("usb-0"), resources=[resource("res.example/usb")])

    assert ids(found) == {"res.example/usb": []}


def test_a_selector_that_fails_on_a_device_costs_that_device_and_is_said() -> None:
    reads = 'device.attributes["dra.example"].serial == "0001"'
    stick = offered("usb-1", attributes={"serial": "0001"})

    found = arrange(offered("usb-0"), stick, kinds=[], resources=[resource(selector=reads)])

    assert ids(found) == {"example.com/zigbee": ["usb-1"]}
    assert "usb-0" in found.problems["example.com/zigbee"]


def test_selectors_are_asked_again_on_each_offer() -> None:
    arranger = Arranger(DevicePluginSettings.model_validate({"resources": [resource()]}))
    before = offered("usb-0")
    after = offered("usb-0", attributes={"serial": "0001"})

    assert (
        ids(arranger.arrange(Offer(generation=1, devices=(before,)), ()))["example.com/zigbee"]
        == []
    )
    assert ids(arranger.arrange(Offer(generation=2, devices=(after,)), ())) == {
        "example.com/zigbee": ["usb-0"]
    }


# -- limits ---------------------------------------------------------------------------------------


def test_what_is_beyond_the_limit_goes_to_the_next_resource_that_it_fits() -> None:
    devices = [offered(f"usb-{n}") for n in range(4)]
    two = [resource("a.example/x", "true", limit=1), resource("b.example/x", "true", limit=2)]

    found = arrange(*devices, resources=two)

    assert ids(found) == {
        "a.example/x": ["usb-0"],
        "b.example/x": ["usb-1", "usb-2"],
        "res.example/usb": ["usb-3"],
    }


def test_a_newcomer_does_not_push_out_who_is_in_a_limited_resource() -> None:
    settings = {"resources": [resource("a.example/x", "true", limit=1)], "kinds": []}
    arranger = Arranger(DevicePluginSettings.model_validate(settings))
    arranger.arrange(Offer(generation=1, devices=(offered("usb-5"),)), ())

    found = arranger.arrange(Offer(generation=2, devices=(offered("usb-1"), offered("usb-5"))), ())

    assert ids(found) == {"a.example/x": ["usb-5"]}


def test_after_a_restart_a_limited_resource_keeps_what_is_held() -> None:
    held = offered("usb-5", held=True)

    found = arrange(
        offered("usb-1"), held, kinds=[], resources=[resource("a.example/x", "true", limit=1)]
    )

    assert ids(found) == {"a.example/x": ["usb-5"]}


# -- replicas and grants --------------------------------------------------------------------------


def test_a_shareable_device_is_offered_as_often_as_the_settings_say() -> None:
    gpu = offered("gpu-0", "drm.render", shareable=True)

    found = arrange(gpu, resources=[resource("example.com/render", "true", replicas=3)])

    assert ids(found) == {"example.com/render": ["gpu-0::0", "gpu-0::1", "gpu-0::2"]}


def test_a_device_that_is_not_shareable_is_offered_once_and_that_is_said() -> None:
    found = arrange(offered("usb-0"), resources=[resource("a.example/x", "true", replicas=3)])

    assert ids(found) == {"a.example/x": ["usb-0"]}
    assert found.problems == {"a.example/x": "usb-0 is not shareable: it is offered once"}


def test_more_ids_than_one_list_holds_are_left_out_and_said() -> None:
    devices = [offered(f"gpu-{n}", shareable=True) for n in range(2)]
    many = resource("a.example/x", "true", replicas=MOST_IDS - 10)

    found = arrange(*devices, resources=[many])

    assert len(found.resources["a.example/x"].entries) == MOST_IDS
    assert f"holds {MOST_IDS} ids" in found.problems["a.example/x"]


def test_under_a_grant_a_device_is_another_one_than_under_the_next() -> None:
    first = arrange(offered("gpu-0", "gpu", allocation="a1"))
    second = arrange(offered("gpu-0", "gpu", allocation="a2"))

    assert ids(first) == {"res.example/gpu": ["gpu-0@a1"]}
    assert ids(second) == {"res.example/gpu": ["gpu-0@a2"]}


# -- who may have it ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"health": Health(Condition.UNHEALTHY, "its fan stopped")}, "its fan stopped"),
        ({"taints": (Taint("in-use"),)}, "tainted: in-use"),
        ({"taints": (Taint("gone", Effect.NO_EXECUTE),)}, "tainted: gone"),
        ({"claimable": False}, "takes no new claims"),
    ],
)
def test_what_the_agent_would_not_hold_is_in_the_list_as_not_usable(
    facts: dict[str, Any], said: str
) -> None:
    assert said in refusals(arrange(offered("usb-0", **facts)))["usb-0"]


@pytest.mark.parametrize(
    "facts",
    [
        {"health": Health(Condition.UNKNOWN, "no answer")},
        {"taints": (Taint("note", Effect.NONE),)},
        {"held": True},
    ],
)
def test_what_nothing_speaks_against_is_usable(facts: dict[str, Any]) -> None:
    assert refusals(arrange(offered("usb-0", **facts))) == {"usb-0": ""}


def hold(claim: ClaimKey, name: str = "usb-0") -> Hold:
    return Hold(claim=claim, device=Device(name=name, kind="usb"), request="")


def test_a_device_that_its_own_id_holds_stays_as_it_is() -> None:
    own = hold(allocation_key("res.example/usb", "usb-0", "dra.example"))

    assert refusals(arrange(offered("usb-0", held=True), holds=(own,))) == {"usb-0": ""}


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (ClaimKey("uid", "default", "kiosk", "dra.example"), "claim default/kiosk holds it"),
        (allocation_key("old.example/usb", "usb-0", "dra.example"), "usb-0 of old.example/usb"),
        (allocation_key("res.example/usb", "usb-0@a1", "dra.example"), "usb-0@a1 of res.example"),
    ],
)
def test_a_device_that_something_else_holds_is_not_to_be_had(claim: ClaimKey, said: str) -> None:
    found = arrange(offered("usb-0", held=True), holds=(hold(claim),))

    assert said in refusals(found)["usb-0"]


def test_a_shareable_device_has_room_beside_other_holders() -> None:
    gpu = offered("usb-0", shareable=True, held=True)
    claim = ClaimKey("uid", "default", "kiosk", "dra.example")

    assert refusals(arrange(gpu, holds=(hold(claim),))) == {"usb-0": ""}
