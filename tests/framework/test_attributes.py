"""Whatever hardware says, what is published is what the API server takes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint import (
    Capacity,
    Device,
    DeviceNode,
    Taint,
    Topology,
    Version,
    exclusive,
    shared,
)
from hardpoint.attributes import (
    attribute_name,
    fit_name,
    publishable,
    semver,
    text,
)
from hardpoint.errors import BadValue


def _published(**attributes: Any) -> dict[str, Any]:
    device = Device(name="d", kind="k", attributes=attributes)
    return dict(publishable(device, "hardpoint.dev")[0].attributes)


def test_absent_is_never_empty_or_false() -> None:
    found = _published(serial="", spaces="  \x00 ", renderNode=False, displayNode=True, zero=0)

    assert found == {"kind": "k", "displayNode": True, "zero": 0}


@pytest.mark.field_case("E01")
def test_text_is_cut_at_64_bytes_on_a_character_border() -> None:
    assert text("ä" * 40) == "ä" * 32
    assert text("x" + "ä" * 40) == "x" + "ä" * 31
    assert text("a\x1b[31mred\n") == "a [31mred"


def test_characters_that_hide_text_or_turn_it_round_are_gone() -> None:
    assert text("\u202egnp.exe\u202c zero\u200bwidth\ufeff") == "gnp.exe zerowidth"


@given(st.text())
def test_any_text_becomes_valid_utf8_of_at_most_64_bytes(value: str) -> None:
    found = text(value)

    assert len(found.encode("utf-8")) <= 64
    assert not re.search(r"[\x00-\x1f\x7f]", found)
    assert found == found.strip()


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("1.2.3", "1.2.3"),
        ("v535.104.05", "535.104.5"),
        ("2", "2.0.0"),
        ("5.10", "5.10.0"),
        ("6.1.0-18-amd64", "6.1.0-18-amd64"),
        ("1.2.3.4", None),
        ("", None),
        ("one", None),
    ],
)
def test_versions_become_strict_semver_or_none(said: str, version: str | None) -> None:
    assert semver(said) == (Version(version) if version else None)


def test_a_version_that_is_none_is_published_as_text() -> None:
    assert _published(firmware=Version("1.2.3.4"))["firmware"] == "1.2.3.4"


@pytest.mark.field_case("E04")
@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("model", "model"),
        ("numa-1", "numa_1"),
        ("2d", "_2d"),
        ("hardpoint.dev/model", "model"),
        ("resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pciBusID"),
    ],
)
def test_attribute_names_have_one_spelling(name: str, canonical: str) -> None:
    assert attribute_name(name, "hardpoint.dev") == canonical


@pytest.mark.field_case("E05")
@pytest.mark.parametrize("name", ["", "a/b/c", "UPPER.example/x", f"{'d' * 64}.example/x", "/x"])
def test_a_name_that_cannot_be_mended_is_left_out_and_said(name: str) -> None:
    device, problems = publishable(Device(name="d", kind="k", attributes={name: "v"}), "h.dev")

    assert dict(device.attributes) == {"kind": "k"}
    assert len(problems) == 1


@pytest.mark.field_case("E05")
def test_two_spellings_of_one_name_are_one_attribute() -> None:
    device = Device(name="d", kind="k", attributes={"x": 1, "h.dev/x": 2})

    published, problems = publishable(device, "h.dev")

    assert published.attributes["x"] == 1
    assert [p.field for p in problems] == ["attribute x"]


@pytest.mark.field_case("E05")
def test_two_spellings_of_one_capacity_are_one_and_it_is_said() -> None:
    device = Device(
        name="d",
        kind="k",
        capacity={"vf-s": Capacity(value="4"), "h.dev/vf_s": Capacity(value="8")},
    )

    published, problems = publishable(device, "h.dev")

    assert {name: amount.value for name, amount in published.capacity.items()} == {"vf_s": "4"}
    assert [p.field for p in problems] == ["capacity vf_s"]


@pytest.mark.field_case("E06")
def test_at_most_32_attributes_and_capacities_together() -> None:
    device = Device(
        name="d",
        kind="k",
        attributes={f"a{i}": i for i in range(40)},
        capacity={"memory": Capacity(value="1Gi")},
        topology=Topology(1, "pci0000:00"),
    )

    published, problems = publishable(device, "h.dev")

    assert len(published.attributes) + len(published.capacity) == 32
    assert published.attributes["resource.kubernetes.io/numaNode"] == 1
    assert len(problems) == 12


@pytest.mark.parametrize("name", ["", "Upper", "under_score", "-dash", "x" * 64, "a\nb"])
def test_a_device_without_a_usable_name_is_no_device(name: str) -> None:
    with pytest.raises(BadValue):
        publishable(Device(name=name, kind="k"), "h.dev")


def test_integers_beyond_64_bits_and_other_types_are_left_out() -> None:
    assert _published(big=2**63, odd=1.5, ok=-(2**63)) == {"kind": "k", "ok": -(2**63)}


@pytest.mark.parametrize("path", ["/dev/../etc/shadow", "/etc/passwd", "/dev/", "/dev//x", "dev/x"])
def test_a_node_outside_of_dev_is_left_out(path: str) -> None:
    device = Device(name="d", kind="k", nodes=(DeviceNode(path=path), DeviceNode(path="/dev/ok")))

    published, problems = publishable(device, "h.dev")

    assert [n.path for n in published.nodes] == ["/dev/ok"]
    assert len(problems) == 1


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (("up",), ()),
        ((), ("failed",)),
        (("up",), ("up",)),
        (("up", "up"), ("failed",)),
        (("not a name",), ("failed",)),
        (("Upper.dev/x",), ("failed",)),
        (("",), ("failed",)),
        (("up",), ("a/b/c",)),
        (tuple("abcde"), ("failed",)),
    ],
)
def test_a_device_whose_binding_conditions_the_api_refuses_is_not_published_without_them(
    good: tuple[str, ...], bad: tuple[str, ...]
) -> None:
    device = Device(name="d", kind="k", binding_conditions=good, binding_failure_conditions=bad)

    with pytest.raises(BadValue, match="binding_"):
        publishable(device, "h.dev")


@pytest.mark.parametrize(
    "facts",
    [
        {"parts": (exclusive("pci:0000:0a:00.0"), shared("bus:0"))},
        {"nodes": (DeviceNode(path="/dev/x", major=1, minor=2, takes=(exclusive("usb:1-2"),)),)},
    ],
)
def test_a_device_that_takes_a_part_alone_goes_to_one_claim_whatever_its_driver_says(
    facts: dict[str, Any],
) -> None:
    published, problems = publishable(Device(name="d", kind="k", shareable=True, **facts), "h.dev")

    assert not published.shareable
    assert [(p.field, "exclusive" in str(p)) for p in problems] == [("shareable", True)]


def test_a_device_whose_parts_are_shared_is_shared() -> None:
    node = DeviceNode(path="/dev/x", major=1, minor=2)
    device = Device(name="d", kind="k", shareable=True, parts=(shared("bus:0"),), nodes=(node,))

    published, problems = publishable(device, "h.dev")

    assert published.shareable
    assert problems == ()


def test_binding_conditions_are_published_as_they_are() -> None:
    good, bad = ("acme.dev/attached", "Cabled"), ("acme.dev/failed",)
    device = Device(name="d", kind="k", binding_conditions=good, binding_failure_conditions=bad)

    published, problems = publishable(device, "h.dev")

    assert (published.binding_conditions, published.binding_failure_conditions) == (good, bad)
    assert problems == ()


def test_a_taint_that_the_api_refuses_is_left_out() -> None:
    taints = (Taint("bad key"), Taint("acme.dev/lost"), Taint("UPPER.dev/x"), Taint("stale"))

    published, problems = publishable(Device(name="d", kind="k", taints=taints), "h.dev")

    assert [t.key for t in published.taints] == ["acme.dev/lost", "stale"]
    assert len(problems) == 2


@pytest.mark.parametrize(
    ("said", "kept"), [("1024Mi", "1Gi"), ("1e3", "1e3"), ("12 GB", None), ("5p", None)]
)
def test_capacities_are_spelled_as_the_api_server_keeps_them(said: str, kept: str | None) -> None:
    device = Device(name="d", kind="k", capacity={"memory": Capacity(value=said)})

    published, problems = publishable(device, "h.dev")

    assert [c.value for c in published.capacity.values()] == ([kept] if kept else [])
    assert len(problems) == (0 if kept else 1)


def test_a_policy_that_is_no_quantity_leaves_its_capacity_out_and_says_so() -> None:
    bad = Capacity(value="16Gi", default="1Gi", minimum="a little")

    published, problems = publishable(Device(name="d", kind="k", capacity={"m": bad}), "h.dev")

    assert not published.capacity
    assert problems[0].field == "capacity m"


@given(st.from_regex(r"[a-z]([a-z0-9-]{0,200}[a-z0-9])?", fullmatch=True), st.integers(0, 20))
def test_names_fit_with_room_for_a_suffix_and_stay_apart(name: str, room: int) -> None:
    fitted = fit_name(name, room)

    assert len(fitted) + room <= 63
    publishable(Device(name=fitted, kind="k"), "h.dev")
    assert fitted == name or fitted != fit_name(name + "x", room)
