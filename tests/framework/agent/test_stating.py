"""What a policy says of itself is read as it is meant, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hardpoint._core.plugins.stating import (
    checked,
    governed_by,
    is_not_applicable,
    kinds_of,
    sentence,
    unread_of,
)
from hardpoint.errors import HardpointError
from hardpoint.grants import Grant, GrantedDevice
from hardpoint.model import DeviceNode


class Fails:
    """A policy of which nothing can be read."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("_") else RuntimeError("gone")


def grant(allocation: str = "a-1", **device: Any) -> Grant:
    return Grant(allocation=allocation, devices=(GrantedDevice(**{"name": "gpu-0", **device}),))


# -- itself ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("listed", [tuple, list, set, frozenset])
def test_patterns_of_kinds_may_be_listed_in_any_way(listed: Callable[[list[str]], Any]) -> None:
    policy = SimpleNamespace(kinds=listed(["gpu", "gpu.*"]))
    assert sorted(kinds_of(policy)) == ["gpu", "gpu.*"]
    assert sorted(governed_by(policy)) == ["gpu", "gpu.*"]
    assert kinds_of(SimpleNamespace()) == ()


@pytest.mark.parametrize("kinds", [("gpu", ""), ("gpu", 7), "gpu", None, iter(["gpu"])])
@pytest.mark.parametrize("asked", [kinds_of, governed_by])
def test_what_are_no_patterns_are_not_taken_for_few(
    asked: Callable[[Any], Any], kinds: Any
) -> None:
    with pytest.raises(HardpointError, match="its kinds are of type"):
        asked(SimpleNamespace(kinds=kinds))


@pytest.mark.parametrize("policy", [SimpleNamespace(), SimpleNamespace(kinds=())])
def test_a_source_that_governs_nothing_is_none(policy: Any) -> None:
    with pytest.raises(HardpointError, match="names no kinds"):
        governed_by(policy)


def test_kinds_that_cannot_be_read_are_not_taken_for_none() -> None:
    with pytest.raises(HardpointError, match="its kinds cannot be read"):
        kinds_of(Fails())


@pytest.mark.parametrize(
    ("policy", "left_out"),
    [
        (SimpleNamespace(not_applicable="no kubelet here"), True),
        (SimpleNamespace(not_applicable=""), False),
        (SimpleNamespace(), False),
        (Fails(), False),
    ],
)
def test_evidence_is_done_without_only_where_its_source_says_so(
    policy: Any, left_out: bool
) -> None:
    assert is_not_applicable(policy) is left_out


@pytest.mark.parametrize(
    ("policy", "unread"),
    [
        (SimpleNamespace(), ""),
        (SimpleNamespace(unread=""), ""),
        (SimpleNamespace(unread="a.json:\nit is no JSON"), "a.json: it is no JSON"),
        (SimpleNamespace(unread=None), "something, and it does not say what"),
        (Fails(), "what it cannot read cannot be told: RuntimeError"),
    ],
)
def test_a_source_that_cannot_say_what_it_did_not_read_has_not_read_all(
    policy: Any, unread: str
) -> None:
    found = unread_of(policy)
    assert found.startswith(unread)
    assert bool(found) is bool(unread)


# -- grants ---------------------------------------------------------------------------------------


def test_grants_are_their_sources_own_whatever_they_say() -> None:
    stranger = Grant(allocation="a-1", source="policy/another", unsupported="not\nhere")
    (found,) = checked("policy/mine", [stranger])
    assert (found.source, found.unsupported) == ("policy/mine", "not here")


@pytest.mark.parametrize("allocation", ["a", "7", "a.b_c-9", "x" * 128])
def test_an_allocation_is_an_id(allocation: str) -> None:
    (found,) = checked("policy/mine", [grant(allocation)])
    assert found.allocation == allocation


@pytest.mark.parametrize("allocation", ["", "a/b", "-a", "a-", "a b", "a\n", "x" * 129])
def test_what_is_no_id_is_no_answer(allocation: str) -> None:
    with pytest.raises(HardpointError, match="is no id"):
        checked("policy/mine", [grant("a-1"), grant(allocation)])


def test_an_allocation_that_is_stated_twice_is_no_answer() -> None:
    with pytest.raises(HardpointError, match="states allocation a-1 twice"):
        checked("policy/mine", [grant("a-1"), grant("a-2"), grant("a-1")])


def nodes(**path: str) -> dict[str, Any]:
    return {"nodes": (DeviceNode(path="/dev/a"), DeviceNode(**{"path": "/dev/b", **path}))}  # type: ignore[arg-type]


_PLACES: list[tuple[str, Callable[[str], dict[str, Any]]]] = [
    ("device", lambda text: {"name": text}),
    ("uuid", lambda text: {"uuid": text}),
    ("CDI name", lambda text: {"cdi_id": text}),
    ("node", lambda text: nodes(path=text)),
    ("node", lambda text: nodes(host_path=text)),
]


@pytest.mark.parametrize(("word", "place"), _PLACES)
def test_what_no_file_could_take_is_no_answer_wherever_it_stands(
    word: str, place: Callable[[str], dict[str, Any]]
) -> None:
    assert checked("policy/mine", [grant(**place("ä" * 256))])
    with pytest.raises(HardpointError, match=f"a-1 it states a {word} of 513 bytes"):
        checked("policy/mine", [grant(**place("ä" * 256 + "x"))])
    with pytest.raises(HardpointError, match=f"a-1 it states a {word} that is no UTF-8"):
        checked("policy/mine", [grant(**place("\ud800"))])


def test_more_devices_than_any_node_has_are_no_answer() -> None:
    half = Grant(allocation="a-1", devices=(GrantedDevice(name="x"),) * 8191)
    assert checked("policy/mine", [half, grant("a-2")])
    with pytest.raises(HardpointError, match="name 8193 devices"):
        checked("policy/mine", [half, grant("a-2"), grant("a-3")])


def test_a_sentence_is_told_as_far_as_it_goes() -> None:
    assert sentence("x" * 2000) == "x" * 1000
    assert sentence("\ud800 is no text") == "? is no text"
    assert sentence("\ud800" * 30, longest=20) == "?" * 20
