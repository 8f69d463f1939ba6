"""Placement and counters: who stands where, and who is whose rival."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slice_pool import DOMAIN, NODE, device, offer, offered, rivals

from hardpoint.model import Device, DeviceNode, Part, exclusive, shared
from hardpoint_dra.counters import count
from hardpoint_dra.placement import natural, place
from hardpoint_dra.translate import render


def plain(*names: str) -> dict[str, bool]:
    return dict.fromkeys(names, False)


def numbered(count: int, advanced: bool = False) -> dict[str, bool]:
    return {f"gpu-{number}": advanced for number in range(count)}


def where(layout: list[list[str]]) -> dict[str, int]:
    return {name: index for index, members in enumerate(layout) for name in members}


@pytest.mark.parametrize(
    ("devices", "sizes"),
    [
        ({}, []),
        (numbered(1), [1]),
        (numbered(128), [128]),
        (numbered(129), [128, 1]),
        (numbered(64, True), [64]),
        (numbered(65, True), [64, 1]),
    ],
)
def test_slices_are_filled_to_their_limit(devices: dict[str, bool], sizes: list[int]) -> None:
    assert [len(members) for members in place(devices, {})] == sizes


def test_a_device_that_leaves_changes_its_own_slice_alone() -> None:
    devices = numbered(300)
    before = place(devices, {})
    del devices["gpu-5"]

    after = place(devices, where(before))

    assert after[1:] == before[1:]
    assert set(before[0]) - set(after[0]) == {"gpu-5"}


def test_a_device_that_comes_takes_the_first_free_place() -> None:
    devices = numbered(300)
    before = place(devices, {})
    del devices["gpu-5"]
    less = place(devices, where(before))
    devices["new"] = False

    after = place(devices, where(less))

    assert [
        index for index, pair in enumerate(zip(less, after, strict=True)) if pair[0] != pair[1]
    ] == [0]


def test_one_taint_moves_one_device_out_of_a_full_slice() -> None:
    devices = numbered(128)
    before = place(devices, {})
    devices["gpu-7"] = True

    after = place(devices, where(before))

    assert [len(members) for members in after] == [127, 1]
    assert after[1] == ["gpu-7"]


def test_a_taint_that_goes_moves_nothing_back() -> None:
    devices = numbered(128)
    devices["gpu-7"] = True
    tainted = place(devices, where(place(numbered(128), {})))
    devices["gpu-7"] = False

    assert where(place(devices, where(tainted))) == where(tainted)


def test_an_emptied_slice_leaves_no_hole() -> None:
    previous = {"a": 0, "b": 1}

    assert place(plain("b"), previous) == [["b"]]


def test_slices_worn_to_shreds_are_packed_again() -> None:
    previous = {f"gpu-{number}": number for number in range(4)}

    assert place(numbered(4), previous) == [["gpu-0", "gpu-1", "gpu-2", "gpu-3"]]


def test_a_server_may_take_fewer_devices_than_the_api_says() -> None:
    assert [len(members) for members in place(numbered(10), {}, 4)] == [4, 4, 2]


def test_numbers_in_names_count_as_numbers() -> None:
    assert sorted(["gpu-10", "gpu-2", "gpu-2b", "a"], key=natural) == [
        "a",
        "gpu-2",
        "gpu-2b",
        "gpu-10",
    ]


STEPS = st.lists(
    st.dictionaries(st.integers(0, 200).map(lambda n: f"d-{n}"), st.booleans(), max_size=200),
    min_size=1,
    max_size=6,
)


@pytest.mark.field_case("E06")
@given(STEPS)
def test_whatever_comes_and_goes_every_slice_is_within_the_limits(
    steps: list[dict[str, bool]],
) -> None:
    previous: dict[str, int] = {}
    for devices in steps:
        layout = place(devices, previous)
        previous = where(layout)

        assert sorted(name for members in layout for name in members) == sorted(devices)
        assert all(members for members in layout)
        for members in layout:
            assert len(members) <= (64 if any(devices[name] for name in members) else 128)


# -- counters -------------------------------------------------------------------------------------


def parts(name: str, *taken: Part) -> Device:
    return device(name, parts=taken)


def test_devices_that_share_a_part_are_no_rivals() -> None:
    found = count([parts("a", shared("pci:1")), parts("b", shared("pci:1"))])

    assert found.sets == ()
    assert found.consumed == {}


def test_a_whole_device_and_its_pieces_never_fit_at_once() -> None:
    found = count(
        [
            parts("whole", exclusive("pci:0000:0a:00.0")),
            parts("left", shared("pci:0000:0a:00.0")),
            parts("right", shared("pci:0000:0a:00.0")),
        ]
    )

    key = "pci-0000-0a-00-0"
    assert found.sets == ({"name": key, "counters": {key: {"value": "2"}}},)
    amounts = {name: share["counters"][key]["value"] for name, share in found.consumed.items()}
    assert amounts == {"whole": "2", "left": "1", "right": "1"}


def test_two_that_want_one_thing_alone_take_turns() -> None:
    found = count([parts("a", exclusive("x")), parts("b", exclusive("x"))])

    assert found.sets[0]["counters"] == {"x": {"value": "1"}}
    assert {share["counters"]["x"]["value"] for share in found.consumed.values()} == {"1"}


def test_one_node_delivered_by_two_devices_makes_them_rivals() -> None:
    node = DeviceNode(path="/dev/ttyUSB0", major=188, minor=0)

    found = count([device("a", nodes=(node,)), device("b", nodes=(node,))])

    assert set(found.consumed) == {"a", "b"}


def test_devices_that_hang_together_share_one_set() -> None:
    found = count(
        [
            parts("a", exclusive("x"), exclusive("y")),
            parts("b", exclusive("x")),
            parts("c", exclusive("y")),
            parts("d", exclusive("z")),
            parts("e", exclusive("z")),
        ]
    )

    assert [found_set["name"] for found_set in found.sets] == ["x", "z"]
    assert set(found.consumed["a"]["counters"]) == {"x", "y"}
    assert found.consumed["b"]["counterSet"] == found.consumed["c"]["counterSet"] == "x"


def test_what_does_not_fit_the_limits_is_left_to_the_ledger() -> None:
    wide = [parts("whole", *(exclusive(f"p{n}") for n in range(33)))]
    wide += [parts(f"piece-{n}", exclusive(f"p{n}")) for n in range(33)]
    narrow = [parts("a", exclusive("x")), parts("b", exclusive("x"))]

    found = count([*wide, *narrow])

    assert set(found.consumed) == {"a", "b"}


def test_counter_sets_are_spread_over_slices_that_every_release_takes() -> None:
    pairs = [
        parts(f"{side}-{number}", *(exclusive(f"p{number}x{n}") for n in range(5)))
        for number in range(20)
        for side in ("a", "b")
    ]

    slices = count(pairs).slices()

    assert sum(len(sets) for sets in slices) == 20
    assert all(len(sets) <= 8 for sets in slices)
    assert all(sum(len(s["counters"]) for s in sets) <= 32 for sets in slices)


def test_names_of_parts_become_labels_that_stay_apart() -> None:
    found = count(
        [
            parts("a", exclusive("x:1"), exclusive("x.1"), exclusive("y" * 80)),
            parts("b", exclusive("x:1"), exclusive("x.1"), exclusive("y" * 80)),
        ]
    )

    (counters,) = [found_set["counters"] for found_set in found.sets]
    assert len(counters) == 3
    assert all(len(key) <= 63 for key in counters)


def test_rivals_get_a_slice_of_counters_of_their_own() -> None:
    devices, counters = render(offer(*rivals(), offered("free")), DOMAIN, NODE)

    assert counters["metadata"]["name"] == "node-a-hardpoint.dev-counters"
    assert "devices" not in counters["spec"]
    consumers = [d["name"] for d in devices["spec"]["devices"] if "consumesCounters" in d]
    assert consumers == ["half", "whole"]
    assert counters["spec"]["pool"]["resourceSliceCount"] == 2
