"""Which ids a container had best get; the kubelet may choose otherwise, and never waits long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint.allocation import device_id
from hardpoint.model import Device, Domain, Offered, Topology
from hardpoint_deviceplugin.preferred import Wanted, preferred
from hardpoint_deviceplugin.resources import Entry

DOMAIN = Domain.named("hardpoint.dev")


def entry(
    name: str,
    grant: str = "",
    numa: int | None = None,
    root: str | None = None,
    replica: int | None = None,
) -> Entry:
    device = Device(name=name, kind="gpu", driver="gpus", topology=Topology(numa, root))
    offered = Offered(device=device, domain=DOMAIN, allocation=grant)
    return Entry(id=device_id(name, grant, replica), offered=offered)


def choose(
    count: int, *entries: Entry, must: tuple[str, ...] = (), advice: tuple[str, ...] = ()
) -> list[str]:
    known = {one.id: one for one in entries}
    return preferred(Wanted.of(known, known, must, count), advice)


def test_what_must_be_included_comes_first_and_what_is_near_it_next() -> None:
    gpus = [entry(f"gpu-{n}", numa=n // 2) for n in range(4)]

    assert choose(2, *gpus, must=("gpu-3",)) == ["gpu-3", "gpu-2"]


def test_devices_of_one_grant_on_one_numa_node_go_together() -> None:
    gpus = [
        entry("gpu-0", "a", 0),
        entry("gpu-1", "b", 0),
        entry("gpu-2", "a", 1),
        entry("gpu-3", "a", 1),
    ]

    assert choose(2, *gpus) == ["gpu-2@a", "gpu-3@a"]


def test_one_grant_over_two_numa_nodes_is_better_than_two_grants_on_one() -> None:
    gpus = [entry("gpu-0", "a", 0), entry("gpu-1", "b", 0), entry("gpu-2", "a", 1)]

    assert choose(2, *gpus) == ["gpu-0@a", "gpu-2@a"]


def test_where_no_grant_has_enough_the_one_with_most_is_taken_first() -> None:
    gpus = [entry("gpu-0", "a"), entry("gpu-1", "b"), entry("gpu-2", "b")]

    assert choose(3, *gpus) == ["gpu-1@b", "gpu-2@b", "gpu-0@a"]


def test_of_two_grants_that_have_room_the_freer_is_taken() -> None:
    gpus = [entry("gpu-0", "a"), entry("gpu-1", "b"), entry("gpu-2", "b")]

    assert choose(1, *gpus) == ["gpu-1@b"]


def test_a_small_request_leaves_a_whole_numa_node_to_a_large_one() -> None:
    gpus = [entry(f"gpu-{n}", numa=0) for n in range(4)] + [entry("gpu-9", numa=1)]

    assert choose(1, *gpus) == ["gpu-9"]


def test_devices_below_one_pcie_root_go_together() -> None:
    gpus = [
        entry("gpu-0", numa=0, root="pci0000:10"),
        entry("gpu-1", numa=0, root="pci0000:20"),
        entry("gpu-2", numa=0, root="pci0000:10"),
    ]

    assert choose(2, *gpus) == ["gpu-0", "gpu-2"]


def test_shares_are_taken_of_different_devices_and_of_the_least_shared() -> None:
    shares = [entry("gpu-0", replica=n) for n in range(2)]
    shares += [entry("gpu-1", replica=n) for n in range(4)]

    assert choose(1, *shares) == ["gpu-1::0"]
    assert choose(3, *shares) == ["gpu-1::0", "gpu-0::0", "gpu-1::1"]


def test_a_share_that_must_be_included_counts_for_its_device() -> None:
    shares = [entry(f"gpu-{d}", replica=n) for d in range(2) for n in range(2)]

    assert choose(2, *shares, must=("gpu-0::1",)) == ["gpu-0::1", "gpu-1::0"]


def test_the_driver_knows_better_where_it_says_so() -> None:
    gpus = [entry(f"gpu-{n}", numa=n // 2) for n in range(4)]

    assert choose(2, *gpus, advice=("gpu-3", "gpu-0")) == ["gpu-3", "gpu-0"]
    assert choose(2, *gpus, advice=("gpu-3",)) == ["gpu-3", "gpu-2"]
    assert choose(2, *gpus, must=("gpu-1",), advice=("gpu-1", "gpu-2")) == ["gpu-1", "gpu-2"]


def test_ids_that_are_not_offered_any_more_are_left_out() -> None:
    known = {"gpu-0": entry("gpu-0")}

    assert preferred(Wanted.of(known, ["gpu-0", "gone"], ["also-gone"], 2)) == ["gpu-0"]


@pytest.mark.parametrize("count", [0, 5])
def test_odd_counts_are_answered_with_what_there_is(count: int) -> None:
    assert choose(count, entry("gpu-0")) == ["gpu-0"][:count]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1, 2), st.integers(1, 3)), max_size=10),
    st.integers(0, 12),
    st.data(),
)
def test_whatever_is_asked_the_answer_is_whole_and_holds_what_it_must(
    devices: list[tuple[str, int, int]], count: int, data: st.DataObject
) -> None:
    entries = [
        entry(f"gpu-{n}", grant, None if numa < 0 else numa, replica=share)
        for n, (grant, numa, shares) in enumerate(devices)
        for share in range(shares)
    ]
    ids = [one.id for one in entries]
    must = data.draw(st.lists(st.sampled_from(ids), unique=True, max_size=count)) if ids else []
    advice = tuple(data.draw(st.lists(st.sampled_from([f"gpu-{n}" for n in range(12)]))))

    answer = choose(count, *entries, must=tuple(must), advice=advice)

    assert len(answer) == len(set(answer)) == min(count, len(ids))
    assert set(must) <= set(answer) <= set(ids)
    assert answer == choose(count, *reversed(entries), must=tuple(must), advice=advice)
