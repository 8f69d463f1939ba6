"""One bad entry costs one entry, whichever way a driver walks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hardpoint import Device, Entry, Node, Unread
from hardpoint._core.plugins.listing import listing
from hardpoint.model import Listed


@pytest.fixture
def node(tmp_path: Path) -> Node:
    for name in ("a", "b", "c"):
        card = tmp_path / "sys/class/acme" / name
        card.mkdir(parents=True)
        (card / "model").write_text(f"Model {name}\n")
    return Node(name="n", sys=tmp_path / "sys", dev=tmp_path / "dev")


def _spoil(node: Node, name: str) -> None:
    """Make an attribute exist and be unreadable, for root too."""
    model = node.sys / "class/acme" / name / "model"
    model.unlink()
    model.mkdir()


class Loop:
    def __init__(self, node: Node) -> None:
        self.node, self.walks = node, 0

    def publish(self) -> Iterator[Device]:
        self.walks += 1
        for card in self.node.each("class/acme"):
            yield Device(name=card.name, kind="acme", attributes={"model": card.text("model")})


def _names(items: tuple[Listed, ...]) -> list[str]:
    return [item.name for item in items if isinstance(item, Device)]


def test_a_plain_loop_loses_only_the_entry_it_falls_over(node: Node) -> None:
    _spoil(node, "b")

    items = listing(Loop(node).publish)

    assert _names(items) == ["a", "c"]
    assert [i for i in items if isinstance(i, Unread)] == [
        Unread("class/acme/b", "EISDIR: Is a directory")
    ]


def test_a_healthy_walk_is_made_once_and_a_bad_entry_costs_one_more(node: Node) -> None:
    loop = Loop(node)
    listing(loop.publish)
    assert loop.walks == 1

    _spoil(node, "a")
    _spoil(node, "c")
    listing(loop.publish)

    assert loop.walks == 4


def test_a_describing_walk_needs_no_second_one(node: Node) -> None:
    _spoil(node, "b")
    seen: list[str] = []

    def describe(card: Entry) -> Iterator[Listed]:
        seen.append(card.name)
        yield Device(name=card.name, kind="acme", attributes={"model": card.text("model")})

    items = listing(lambda: node.each("class/acme", describe))

    assert _names(items) == ["a", "c"]
    assert seen == ["a", "b", "c"]


@pytest.mark.field_case("G10")
def test_an_entry_that_vanishes_while_it_is_read_is_gone_not_unread(node: Node) -> None:
    def publish() -> Iterator[Device]:
        for card in node.each("class/acme"):
            if card.name == "b":
                _vanish(Path(card.link_path))
            yield Device(name=card.name, kind="acme", attributes={"model": card.text("model")})

    items = listing(publish)

    assert _names(items) == ["a", "c"]
    assert not [i for i in items if isinstance(i, Unread)]


def _vanish(path: Path) -> None:
    (path / "model").unlink()
    path.rmdir()


def test_every_device_says_which_entry_it_was_read_from(node: Node) -> None:
    devices = [i for i in listing(Loop(node).publish) if isinstance(i, Device)]

    assert [d.entry for d in devices] == ["class/acme/a", "class/acme/b", "class/acme/c"]


def test_a_failure_outside_of_a_walk_is_the_drivers(node: Node) -> None:
    def publish() -> Iterator[Device]:
        yield from ()
        raise OSError("no library")

    with pytest.raises(OSError, match="no library"):
        listing(publish)


def test_a_missing_bus_is_empty_but_a_missing_sysfs_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    there = Node(name="n", sys=tmp_path / "sys")
    not_there = Node(name="n", sys=tmp_path / "nothing")

    assert list(there.each("bus/usb/devices")) == []
    with pytest.raises(FileNotFoundError):
        list(not_there.each("bus/usb/devices"))
