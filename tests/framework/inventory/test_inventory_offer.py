"""What is offered, given what drivers said, who holds what, and the admin's rules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint import Device, DeviceNode, Health, Taint, Unread, Withheld, exclusive, shared
from hardpoint._core.offer.inventory import (
    ABSENT,
    RIVAL,
    STALE,
    UNHEALTHY,
    Facts,
    Listing,
    as_offer,
    build,
    difference,
    idle_rules,
    vetoed,
)
from hardpoint.model import ClaimKey, Condition, Domain, Hold, HoldState, NodeType, Offer
from hardpoint.platform import Suspected
from hardpoint.settings import Rule

DOMAIN = Domain.named("hardpoint.dev")


def _facts(**values: Any) -> Facts:
    return Facts(domain_of=lambda driver: DOMAIN, **values)


def _device(name: str, *nodes: DeviceNode, **values: Any) -> Device:
    return Device(name=name, kind="k", nodes=nodes, **values)


def _listing(driver: str, *items: Any, now: float = 0.0) -> Listing:
    return Listing(driver).after(items, now)


def _hold(device: Device, state: HoldState = HoldState.HELD) -> Hold:
    key = ClaimKey("uid", "ns", "claim", DOMAIN.dra_driver)
    return Hold(claim=key, device=device, request="r", state=state)


def _names(devices: Iterable[Any]) -> list[str]:
    return [one.name for one in devices]


def _rules_of(built: Any) -> dict[str, str]:
    return {w.subject: w.rule for w in built.withheld}


# -- a failed look never loses a device -----------------------------------------------------------


def test_a_walk_that_failed_leaves_the_last_list_standing() -> None:
    listing = _listing("usb", _device("a"), _device("b")).failed(now=10.0)

    fresh = build([listing], _facts(now=60.0))
    stale = build([listing], _facts(now=70.0))

    assert _names(fresh.devices) == ["a", "b"]
    assert all(o.claimable and not o.taints for o in fresh.devices)
    assert _names(stale.devices) == ["a", "b"]
    assert all(not o.claimable and o.taints == (STALE,) for o in stale.devices)


def test_a_second_failure_does_not_make_the_list_younger() -> None:
    listing = _listing("usb", _device("a")).failed(now=10.0).failed(now=65.0)

    assert not build([listing], _facts(now=70.0)).devices[0].claimable


def test_an_answer_after_a_failure_is_fresh_again() -> None:
    listing = _listing("usb", _device("a")).failed(now=0.0).after([_device("a")], now=90.0)

    assert build([listing], _facts(now=500.0)).devices[0].claimable


def test_an_entry_that_could_not_be_read_keeps_what_was_last_read_from_it() -> None:
    first = _listing("usb", _device("a", entry="e/1"), _device("b", entry="e/2"))

    second = first.after([_device("b", entry="e/2"), Unread("e/1", "EIO")], now=5.0)

    built = build([second], _facts(now=66.0))
    assert _names(built.devices) == ["a", "b"]
    assert [o.name for o in built.devices if o.claimable] == ["b"]


def test_an_entry_never_read_is_withheld_with_the_reason() -> None:
    built = build([_listing("usb", Unread("e/9", "EIO: I/O error"))], _facts())

    assert built.withheld[0].rule == "unread"
    assert "EIO" in built.withheld[0].reason


def test_a_driver_cannot_forge_who_published_a_device() -> None:
    listing = _listing("usb", _device("a", driver="nvidia_gpu"))

    assert listing.devices[0].driver == "usb"


# -- what is held stays visible -------------------------------------------------------------------


def test_a_device_that_left_while_it_is_held_stays_tainted_and_takes_no_claim() -> None:
    gone = _device("a", DeviceNode(path="/dev/a", major=1, minor=1))

    built = build([_listing("usb")], _facts(holds=(_hold(gone),)))

    (only,) = built.devices
    assert (only.name, only.held, only.claimable) == ("a", True, False)
    assert only.taints == (ABSENT,)


def test_a_held_device_that_is_withheld_under_its_address_is_not_called_absent() -> None:
    gpu = _device("pci-0000-0a-00-0", origin={"address": "0000:0a:00.0"}, driver="pci_drm")
    other = _device("pci-0000-0b-00-0", origin={"address": "0000:0b:00.0"}, driver="pci_drm")
    bound = Withheld("pci 0000:0a:00.0", "passthrough", "it is bound to vfio-pci")
    node = Withheld("pci 0000:0b:00.0 /dev/fb0", "framebuffer", "nobody gets it")

    mine = build([_listing("pci_drm", bound, node)], _facts(holds=(_hold(gpu), _hold(other))))
    foreign = build([_listing("pci_drm"), _listing("vm", bound)], _facts(holds=(_hold(gpu),)))

    assert _names(mine.devices) == ["pci-0000-0b-00-0"]
    assert _names(foreign.devices) == ["pci-0000-0a-00-0"]


def test_a_device_that_left_and_that_nobody_holds_is_gone() -> None:
    listing = _listing("usb", _device("a")).after([], now=1.0)

    assert build([listing], _facts()).devices == ()


def test_a_rival_of_a_held_device_is_tainted_until_the_hold_ends() -> None:
    adapter = _device("bt-1", parts=(exclusive("usb:1-2"),))
    interface = _device("usb-1-2-1-0", parts=(exclusive("usb:1-2:1.0"), shared("usb:1-2")))
    other = _device("usb-1-3", parts=(exclusive("usb:1-3"),))
    listings = [_listing("bt", adapter), _listing("usb", interface, other)]

    held = build(listings, _facts(holds=(_hold(adapter),)))
    free = build(listings, _facts())

    assert {o.name for o in held.devices if RIVAL in o.taints} == {"usb-1-2-1-0"}
    assert not any(o.taints for o in free.devices)


def test_two_drivers_that_deliver_one_exclusive_node_are_rivals() -> None:
    node = DeviceNode(path="/dev/ttyUSB0", major=188, minor=0)
    one, two = _device("one", node), _device("two", node)

    built = build([_listing("a", one), _listing("b", two)], _facts(holds=(_hold(one),)))

    assert [o.name for o in built.devices if RIVAL in o.taints] == ["two"]


def test_holders_of_a_shareable_node_are_no_rivals() -> None:
    node = DeviceNode(path="/dev/dri/renderD128", major=226, minor=128)
    one = _device("one", node, shareable=True)

    built = build([_listing("a", one, _device("two"))], _facts(holds=(_hold(one),)))

    assert not any(o.taints for o in built.devices)


# -- what is withheld, and why --------------------------------------------------------------------


def test_the_second_of_two_equal_names_is_withheld() -> None:
    built = build([_listing("b", _device("x")), _listing("a", _device("x"))], _facts())

    assert [o.device.driver for o in built.devices] == ["a"]
    assert _rules_of(built) == {"x": "same-name"}


def test_equal_names_in_two_domains_are_two_devices() -> None:
    facts = Facts(domain_of=lambda driver: Domain.named(f"{driver}.dev"))

    built = build([_listing("b", _device("x")), _listing("a", _device("x"))], facts)

    assert len(built.devices) == 2


def _disk(name: str = "disk") -> Device:
    return _device(name, DeviceNode(path="/dev/sdb", type=NodeType.BLOCK, major=8, minor=16))


def test_a_block_device_is_offered_only_where_a_rule_says_so() -> None:
    allow = Rule(action="allow", where={"device": "disk-*"})
    listing = _listing("pci", _disk("disk-a"), _disk("nvme-b"))

    without = build([listing], _facts())
    with_rule = build([listing], _facts(rules=(allow,)))

    assert set(_rules_of(without).values()) == {"block-device"}
    assert _names(with_rule.devices) == ["disk-a"]


def test_why_a_block_device_is_withheld_names_its_node_and_the_rule_that_would_offer_it() -> None:
    disk = _device("disk-a", DeviceNode(path="/dev/sg0", major=21, minor=0), *_disk().nodes)
    rename = Rule(action="relabel", where={"device": "disk-a"}, name="scratch")

    (withheld,) = build([_listing("pci", disk)], _facts(rules=(rename,))).withheld
    said = re.search(r'where = \{device = "(.+)"\}', withheld.reason)
    assert said is not None
    allow = Rule(action="allow", where={"device": said[1]})

    assert withheld.subject == "scratch"
    assert withheld.reason.startswith("/dev/sdb is a block device")
    assert _names(build([_listing("pci", disk)], _facts(rules=(allow, rename))).devices)


def test_no_rule_offers_a_disk_that_the_node_itself_uses() -> None:
    allow = Rule(action="allow", where={"device": "*"})
    partition = DeviceNode(path="/dev/sdb1", type=NodeType.BLOCK, major=8, minor=17)
    disk = _device("disk", *_disk().nodes, partition)

    def used(node: DeviceNode) -> str | None:
        return "it is mounted at /" if node.path == "/dev/sdb1" else None

    built = build([_listing("pci", disk)], _facts(rules=(allow,), node_reason=used))

    assert built.devices == ()
    assert built.withheld[0].reason == "it is mounted at /"


def _signed(node: DeviceNode) -> str | None:
    return Suspected("/dev/sdb may be in use: it carries a signature of crypto_LUKS")


def test_a_rule_that_names_a_disk_knows_better_than_a_mere_signature() -> None:
    listing = _listing("pci", _disk("disk-a"))

    def with_rules(*rules: Rule, **facts: Any) -> Any:
        return build([listing], _facts(rules=rules, node_reason=_signed, **facts))

    named = Rule(action="allow", where={"device": "disk-a"})
    pattern = Rule(action="allow", where={"device": "disk-*"})
    deny = Rule(action="deny", where={"kind": "k"})

    (kept,) = with_rules(pattern).withheld
    assert kept.rule == "disk-in-use"
    assert kept.reason.endswith('where = {device = "disk-a"} offers it all the same')
    assert _rules_of(with_rules(deny, named)) == {"disk-a": "disk-in-use"}
    (offered,) = with_rules(named).devices
    assert (offered.name, offered.vouched) == ("disk-a", True)


def test_no_rule_knows_better_than_the_kernel() -> None:
    named = Rule(action="allow", where={"device": "disk"})
    partition = DeviceNode(path="/dev/sdb1", type=NodeType.BLOCK, major=8, minor=17)
    disk = _device("disk", *_disk().nodes, partition)

    def both(node: DeviceNode) -> str | None:
        return "it is mounted at /" if node.path == "/dev/sdb1" else _signed(node)

    built = build([_listing("pci", disk)], _facts(rules=(named,), node_reason=both))

    assert built.devices == ()
    assert built.withheld[0].reason == "it is mounted at /"


def test_a_console_is_taken_from_a_card_whose_other_port_stays() -> None:
    card = _device("uart", DeviceNode(path="/dev/ttyS0"), DeviceNode(path="/dev/ttyS1"))

    def console(node: DeviceNode) -> str | None:
        return "the kernel's console" if node.path == "/dev/ttyS0" else None

    built = build([_listing("pci", card)], _facts(node_reason=console))

    assert [n.path for n in built.devices[0].device.nodes] == ["/dev/ttyS1"]


def test_the_first_rule_that_matches_decides() -> None:
    rules = (
        Rule(action="allow", where={"vendor": "10c4", "kind": "k"}),
        Rule(action="deny", where={"vendor": "10c4"}, reason="kept for the lab"),
        Rule(action="deny", where={"plugin": "usb", "absent": False}),
    )
    zigbee = _device("a", attributes={"vendor": "10c4"})

    assert _names(build([_listing("usb", zigbee)], _facts(rules=rules)).devices) == ["a"]
    denied = build([_listing("usb", zigbee)], _facts(rules=rules[1:]))
    assert (denied.withheld[0].rule, denied.withheld[0].reason) == ("denied", "kept for the lab")
    unlabelled = build([_listing("usb", _device("b"))], _facts(rules=rules))
    assert _rules_of(unlabelled) == {"b": "denied"}


def test_a_rule_renames_and_labels_a_device() -> None:
    rule = Rule(
        action="relabel", where={"device": "usb-1-2"}, name="zigbee", attributes={"role": "radio"}
    )

    (only,) = build([_listing("usb", _device("usb-1-2"))], _facts(rules=(rule,))).devices

    assert (only.name, only.device.attributes["role"]) == ("zigbee", "radio")


def test_a_disk_is_both_allowed_and_labelled() -> None:
    rules = (
        Rule(action="relabel", where={"device": "disk-*"}, attributes={"role": "scratch"}),
        Rule(action="allow", where={"device": "disk-*"}),
    )

    (only,) = build([_listing("pci", _disk("disk-a"))], _facts(rules=rules)).devices

    assert only.device.attributes["role"] == "scratch"


def test_what_a_rule_says_passes_the_validator_too() -> None:
    rule = Rule(action="relabel", where={"device": "a"}, attributes={"note": "x" * 100})

    built = build([_listing("usb", _device("a"))], _facts(rules=(rule,)))

    assert built.devices[0].device.attributes["note"] == "x" * 64


def test_a_device_is_known_to_its_holder_by_the_name_that_a_rule_gave_it() -> None:
    rule = Rule(action="relabel", where={"device": "a"}, name="zigbee")
    node = DeviceNode(path="/dev/a", major=1, minor=1)
    facts = {"rules": (rule,), "node_reason": lambda node: "it is in use now"}

    free = build([_listing("usb", _device("a", node))], _facts(**facts))
    held = build(
        [_listing("usb", _device("a", node))],
        _facts(holds=(_hold(_device("zigbee", node)),), **facts),
    )

    assert free.devices == ()
    assert [(o.name, o.held) for o in held.devices] == [("zigbee", True)]


def test_a_rule_that_matches_nothing_says_what_is_misspelt() -> None:
    rules = (
        Rule(action="deny", where={"vender": "0403"}),
        Rule(action="deny", where={"vendor": 403}),
        Rule(action="deny", where={"vendor": "10c4"}),
        Rule(action="deny", where={"kind": "k"}),
    )
    built = build(
        [_listing("usb", _device("a", attributes={"vendor": "0403"}))], _facts(rules=rules)
    )

    idle = "[[rules]] number {} (deny) matches no device here"
    said = list(idle_rules(rules, built.used, {"vendor": str}))

    assert said == [
        f"{idle.format(1)}: no driver that runs describes vender, did you mean vendor?",
        f"{idle.format(2)}: vendor is of type str, not int",
        idle.format(3),
    ]


def test_a_quarantined_device_is_withheld_even_from_its_own_rule() -> None:
    facts = _facts(
        quarantined={("hardpoint.dev", "a"): "its driver could not undo claim x"},
        rules=(Rule(action="allow", where={"device": "a"}),),
    )

    assert _rules_of(build([_listing("usb", _device("a"))], facts)) == {"a": "quarantined"}


def test_a_device_the_api_would_refuse_costs_only_itself() -> None:
    built = build([_listing("usb", _device("Bad Name"), _device("good"))], _facts())

    assert _names(built.devices) == ["good"]
    assert built.withheld[0].rule == "bad-device"


@pytest.mark.field_case("F03")
def test_an_unhealthy_device_is_tainted_and_an_unknown_one_is_not() -> None:
    health = {
        ("usb", "a"): Health(Condition.UNHEALTHY, "it fell off the bus"),
        ("usb", "b"): Health(Condition.UNKNOWN, "late"),
    }

    a, b = build([_listing("usb", _device("a"), _device("b"))], _facts(health=health)).devices

    assert (a.taints, a.claimable) == ((UNHEALTHY,), False)
    assert (b.taints, b.claimable) == ((), True)


def test_a_veto_withdraws_at_once_whoever_holds() -> None:
    built = build(
        [_listing("usb", _device("a"), _device("b"))], _facts(holds=(_hold(_device("a")),))
    )

    left = vetoed(built, {"a": "the GPU operator offers it"})

    assert _names(left.devices) == ["b"]
    assert left.withheld[0] == Withheld("a", "vetoed", "the GPU operator offers it", "usb")


# -- changes --------------------------------------------------------------------------------------


def test_nothing_new_is_the_same_offer_and_generation() -> None:
    built = build([_listing("usb", _device("a"))], _facts())
    first = as_offer(built, Offer(generation=0), complete=True)

    again = as_offer(build([_listing("usb", _device("a"))], _facts()), first, complete=True)

    assert first.generation == 1
    assert again is first


def test_that_a_claim_holds_a_device_is_no_change_of_it() -> None:
    listing = _listing("usb", _device("a"), _device("b"))
    free = as_offer(build([listing], _facts()), Offer(generation=0), complete=True)
    held = as_offer(build([listing], _facts(holds=(_hold(_device("a")),))), free, complete=True)

    assert held.generation == 2
    assert list(difference(free, held)) == []


@given(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")))
def test_the_difference_of_two_offers_leads_from_one_to_the_other(
    before: set[str], after: set[str]
) -> None:
    def offer(names: set[str]) -> Offer:
        listed = build([_listing("usb", *(_device(n) for n in sorted(names)))], _facts())
        return as_offer(listed, Offer(generation=0), complete=True)

    changes = {name: what for what, name in difference(offer(before), offer(after))}

    assert {n for n, what in changes.items() if what == "added"} == after - before
    assert {n for n, what in changes.items() if what == "removed"} == before - after


@given(
    st.lists(
        st.tuples(st.sampled_from(["fail", "answer", "unread"]), st.sets(st.sampled_from("abc"))),
        max_size=12,
    )
)
def test_a_device_leaves_only_when_its_driver_said_so(
    looks: list[tuple[str, set[str]]],
) -> None:
    listing, model = Listing("usb"), set[str]()
    for now, (what, names) in enumerate(looks):
        if what == "fail":
            listing = listing.failed(float(now))
            continue
        answered = [_device(n, entry=n) for n in sorted(names)]
        unread = [Unread(n, "EIO") for n in "abc" if n not in names] if what == "unread" else []
        listing = listing.after([*answered, *unread], float(now))
        model = names | (model if what == "unread" else set())

    assert {d.name for d in listing.devices} == model


def test_a_drivers_own_taint_is_kept() -> None:
    lost = Taint("acme.dev/link-down")

    (only,) = build([_listing("usb", _device("a", taints=(lost,)))], _facts()).devices

    assert only.taints == (lost,)
