from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint._core.ledger.codec import dump, load, load_facts
from hardpoint._core.ledger.ledger import KeptListing
from hardpoint.errors import BadValue
from hardpoint.model import (
    Allotment,
    Capacity,
    Delivery,
    Device,
    DeviceNode,
    Effect,
    Hook,
    Mount,
    NodeType,
    Part,
    PreparedDevice,
    Taint,
    Topology,
    Version,
    Withheld,
)

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
numbers = st.integers(-(2**63), 2**63 - 1)
words_by_word = st.dictionaries(words, words, max_size=3)
parts = st.builds(Part, words, st.booleans())
nodes = st.builds(
    DeviceNode,
    path=words,
    type=st.sampled_from(NodeType),
    major=st.none() | st.integers(0, 4095),
    minor=st.none() | st.integers(0, 1 << 20),
    host_path=words,
    subsystem=words,
    permissions=words,
    mode=st.none() | st.integers(0, 0o7777),
    gid=st.none() | st.integers(0, 1 << 31),
    shared=st.booleans(),
    absent_ok=st.booleans(),
    takes=st.lists(parts, max_size=2).map(tuple),
)
devices = st.builds(
    Device,
    name=words,
    kind=words,
    nodes=st.lists(nodes, max_size=2).map(tuple),
    attributes=st.dictionaries(
        words, st.booleans() | numbers | words | st.builds(Version, words), max_size=4
    ),
    capacity=st.dictionaries(
        words,
        st.builds(
            Capacity,
            value=words,
            default=st.none() | words,
            valid=st.lists(words, max_size=2).map(tuple),
            minimum=st.none() | words,
        ),
        max_size=2,
    ),
    shareable=st.booleans(),
    parts=st.lists(parts, max_size=3).map(tuple),
    taints=st.lists(st.builds(Taint, words, st.sampled_from(Effect), words), max_size=2).map(tuple),
    topology=st.builds(Topology, st.none() | st.integers(0, 9), st.none() | words),
    origin=words_by_word,
    entry=words,
    driver=words,
)
deliveries = st.builds(
    Delivery,
    nodes=st.lists(nodes, max_size=2).map(tuple),
    mounts=st.lists(
        st.builds(Mount, host_path=words, container_path=words, type=words), max_size=2
    ).map(tuple),
    env=words_by_word,
    annotations=words_by_word,
    hooks=st.lists(
        st.builds(Hook, name=words, path=words, args=st.lists(words, max_size=2).map(tuple)),
        max_size=1,
    ).map(tuple),
    gids=st.lists(st.integers(0, 1 << 31), max_size=2).map(tuple),
    cdi_devices=st.lists(words, max_size=2).map(tuple),
)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=5,
)
allotments = st.builds(
    Allotment,
    request=words,
    device=words,
    pool=words,
    share_id=words,
    admin_access=st.booleans(),
    parameters=st.lists(st.dictionaries(words, json_values, max_size=2), max_size=2).map(tuple),
    named=st.booleans(),
    consumed=words_by_word,
)


@given(devices)
def test_a_device_comes_back_as_it_was(device: Device) -> None:
    again = load(Device, dump(device))
    assert again == device
    assert {k: type(v) for k, v in again.attributes.items()} == {
        k: type(v) for k, v in device.attributes.items()
    }


@given(deliveries)
def test_a_delivery_comes_back_as_it_was(delivery: Delivery) -> None:
    assert load(Delivery, dump(delivery)) == delivery


@given(allotments)
def test_an_allotment_comes_back_as_it_was(allotment: Allotment) -> None:
    assert load(Allotment, dump(allotment)) == allotment


@given(st.dictionaries(words, json_values, max_size=4))
def test_what_a_driver_remembers_comes_back_as_it_was(facts: dict[str, Any]) -> None:
    assert load_facts(dump(facts)) == facts


def test_answers_and_listings_come_back_as_they_were() -> None:
    answer = PreparedDevice(request="r", pool="p", device="d", cdi_ids=("a/b=c",), share_id="s")
    listing = KeptListing((Device(name="d", kind="k"),), (Withheld("1-2", "rule", "reason"),))
    assert load(PreparedDevice, dump(answer)) == answer
    assert load(KeptListing, dump(listing)) == listing


def with_extras(value: Any) -> Any:
    """Add a key to every object, as a newer release may."""
    if isinstance(value, dict):
        return {k: with_extras(v) for k, v in value.items()} | {"added_in_2031": [1, {"x": None}]}
    return [with_extras(item) for item in value] if isinstance(value, list) else value


@given(deliveries)
@pytest.mark.field_case("C03", "C12")
def test_keys_of_a_newer_release_are_skipped(delivery: Delivery) -> None:
    raw = json.loads(dump(delivery))
    raw["nodes"] = with_extras(raw["nodes"])
    raw["hooks"] = with_extras(raw["hooks"])
    raw["added"] = 1
    assert load(Delivery, json.dumps(raw)) == delivery


@pytest.mark.field_case("C03")
def test_keys_that_an_older_release_did_not_write_take_their_defaults() -> None:
    assert load(Device, '{"name": "d", "kind": "k"}') == Device(name="d", kind="k")


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", '{"name": 1, "kind": "k"}', '{"name": "d"}', "\0", '{"a":']
)
def test_a_text_that_is_no_device_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        load(Device, text)


@pytest.mark.parametrize("value", [{"a": object()}, {"a": "\ud800"}, {"a": {1j}}])
def test_what_is_not_json_is_not_remembered(value: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        dump(value)


def test_a_value_that_contains_itself_is_not_remembered() -> None:
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    with pytest.raises(BadValue):
        dump(loop)
