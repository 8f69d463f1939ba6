"""One physical thing is offered through one frontend, or through none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from hardpoint._core.offer.shares import DISPUTED, TWO_FRONTENDS, FrontendView, Shares
from hardpoint.errors import BadSettings
from hardpoint.model import Device, Domain, Offer, Offered, exclusive, shared
from hardpoint.settings import AgentSettings

DOMAIN = Domain.named("hardpoint.dev")
SPLIT = {"dra": {"without": [{"kind": "usb"}]}, "deviceplugin": {"only": [{"kind": "usb"}]}}


def shares(**sections: Any) -> Shares:
    return Shares.of(AgentSettings.model_validate({"frontend": sections}), sections)


def offered(name: str, kind: str = "usb", *, held: bool = False, **facts: Any) -> Offered:
    return Offered(device=Device(name=name, kind=kind, **facts), domain=DOMAIN, held=held)


def names(offer: Offer) -> list[str]:
    return [one.name for one in offer.devices]


# -- what the settings say ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sections",
    [
        {"dra": {}, "deviceplugin": {}},
        {"dra": {}, "deviceplugin": {"only": [{"kind": "usb"}]}},
        {"dra": {"only": [{"kind": "usb"}]}, "deviceplugin": {}},
    ],
)
def test_a_frontend_that_leaves_nothing_to_the_other_is_refused_with_both_named(
    sections: dict[str, Any],
) -> None:
    with pytest.raises(BadSettings) as raised:
        shares(**sections).check()
    assert "frontend.dra" in str(raised.value)
    assert "frontend.deviceplugin" in str(raised.value)


@pytest.mark.parametrize(
    "sections",
    [
        {"dra": {}},
        {},
        SPLIT,
        {"dra": {}, "deviceplugin": {"only": []}},
        {"dra": {"only": [{"kind": "a"}]}, "deviceplugin": {"only": [{"kind": "b"}]}},
    ],
)
def test_frontends_that_leave_each_other_room_may_run_together(sections: dict[str, Any]) -> None:
    shares(**sections).check()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"only": "usb"}, "dra.only"),
        ({"only": [{}]}, "dra.only[0]"),
        ({"without": [{"kind": 1.5}]}, "dra.without[0]"),
        ({"without": None}, "dra.without"),
    ],
)
def test_a_share_that_is_no_table_of_devices_is_refused(section: Any, said: str) -> None:
    with pytest.raises(ValueError, match="frontend") as raised:
        AgentSettings.model_validate({"frontend": {"dra": section}})
    assert said in str(raised.value)


# -- what each frontend sees ----------------------------------------------------------------------


def test_each_frontend_sees_its_share_and_the_rest_is_the_others() -> None:
    offer = Offer(generation=3, devices=(offered("usb-0"), offered("gpu-0", "drm.render")))

    assert names(shares(**SPLIT).view("dra", offer)) == ["gpu-0"]
    assert names(shares(**SPLIT).view("deviceplugin", offer)) == ["usb-0"]


def test_attributes_choose_too() -> None:
    stick = offered("usb-0", attributes={"serial": "0001"}, driver="usb")
    offer = Offer(generation=1, devices=(stick, offered("usb-1", driver="usb")))
    one = {"only": [{"plugin": "usb", "serial": "0001"}]}

    assert names(shares(a=one, b={"without": one["only"]}).view("a", offer)) == ["usb-0"]
    assert names(shares(a=one, b={"without": one["only"]}).view("b", offer)) == ["usb-1"]


def test_a_lone_frontend_sees_everything() -> None:
    offer = Offer(generation=1, devices=(offered("usb-0"),))

    assert shares(dra={}).view("dra", offer) is offer


async def test_a_frontend_hears_only_of_what_changes_for_it() -> None:
    usb, gpu = offered("usb-0"), offered("gpu-0", "drm.render")
    whole = [
        Offer(generation=1, devices=(usb,)),
        Offer(generation=2, devices=(usb, gpu)),
        Offer(generation=3, devices=(gpu,)),
    ]

    class Agent:
        offer = whole[-1]
        instance = "me"

        async def offers(self) -> AsyncIterator[Offer]:
            for one in whole:
                yield one

    view: Any = FrontendView(Agent(), "deviceplugin", shares(**SPLIT))  # type: ignore[arg-type]

    assert [names(one) async for one in view.offers()] == [["usb-0"], []]
    assert names(view.offer) == []
    assert view.instance == "me"


# -- what two of them would offer -----------------------------------------------------------------


OVERLAP = {"dra": {"only": [{"kind": "usb"}]}, "deviceplugin": {"only": [{"device": "usb-*"}]}}


def test_a_device_of_two_frontends_is_offered_through_neither_and_both_places_are_said() -> None:
    kept, withheld = shares(**OVERLAP).judge([offered("usb-0"), offered("gpu-0", "drm.render")])

    assert [one.name for one in kept] == ["gpu-0"]
    (said,) = withheld
    assert (said.subject, said.rule) == ("usb-0", TWO_FRONTENDS)
    assert "[frontend.deviceplugin] and [frontend.dra]" in said.reason


def test_two_devices_that_are_one_thing_are_not_offered_through_two_frontends() -> None:
    whole = offered("usb-0", parts=(exclusive("usb:1-2"),))
    node = offered("tty-0", "tty", parts=(shared("usb:1-2"), exclusive("char:188:0")))
    other = offered("tty-1", "tty", parts=(shared("usb:1-3"),))

    kept, withheld = shares(**SPLIT).judge([whole, node, other])

    assert [one.name for one in kept] == ["tty-1"]
    assert {one.subject for one in withheld} == {"usb-0", "tty-0"}
    assert "usb:1-2" in withheld[0].reason


def test_two_devices_that_share_what_is_between_them_may_go_through_two() -> None:
    render = offered("gpu-0", "drm.render", parts=(shared("pci:0000:0a:00.0"),))
    stick = offered("usb-0", parts=(shared("pci:0000:0a:00.0"), exclusive("usb:1-2")))

    kept, withheld = shares(**SPLIT).judge([render, stick])

    assert (len(kept), withheld) == (2, ())


def test_what_somebody_holds_of_it_stays_for_nobody_new() -> None:
    (kept,), withheld = shares(**OVERLAP).judge([offered("usb-0", held=True)])

    assert withheld == ()
    assert not kept.claimable
    assert DISPUTED in kept.taints
