"""What a stranger's driver may answer: any value in any field, and generators that end ill.

The driver is called through the relay, beside a good one. The good one's devices are offered as
ever, the API server would take every slice, and what is kept in the ledger can be read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from fuzz.choices import ODD_TEXTS, Choices
from fuzz.world import DOMAIN, Stage, check_published

from hardpoint import Node, hookimpl
from hardpoint._core.ledger.codec import load
from hardpoint._core.ledger.ledger import KeptListing, _kept
from hardpoint._core.logs import escaped
from hardpoint._core.offer.inventory import Facts, Listing, as_offer, build
from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint._core.plugins.faults import FaultBoard
from hardpoint._core.plugins.relay import Relay
from hardpoint.model import (
    Capacity,
    Device,
    DeviceNode,
    Effect,
    NodeType,
    Offer,
    Part,
    Taint,
    Topology,
    Unread,
    Version,
    Withheld,
    exclusive,
)

GOOD = (
    Device(
        name="good-0",
        kind="card",
        nodes=(DeviceNode(path="/dev/good0", major=240, minor=0),),
        attributes={"model": "X", "lanes": 4, "driverVersion": Version("1.2.3"), "hot": True},
        capacity={"memory": Capacity(value="16Gi")},
        parts=(exclusive("slot:0"),),
    ),
    Device(name="good-1", kind="card", attributes={"kind2": "y"}, shareable=True),
)


class Good:
    """A driver as it should be."""

    def __init__(self, node: Node, settings: Any) -> None:
        self.node = node

    @hookimpl
    def publish_devices(self) -> list[Device]:
        return list(GOOD)


class Stranger:
    """A driver that answers what the bytes say."""

    def __init__(self, node: Node, settings: Any) -> None:
        self.choices = Choices(b"")

    @hookimpl
    def publish_devices(self) -> Any:
        return answer(self.choices)


class Fuzzed:
    """Asks both drivers through one relay."""

    def __init__(self) -> None:
        self.stage = Stage()

    def __enter__(self) -> Callable[[bytes], None]:
        self.stage.__enter__()
        self.plugins = Plugins()
        for name, made in {"a_good": Good, "stranger": Stranger}.items():
            plugin = Plugin("driver", name, loaded=made)
            self.plugins.all.append(plugin)
            self.plugins.start(plugin, Node(name="n"), {})
        self.stranger = self.plugins.all[1].instance
        return self

    def __exit__(self, *exception: object) -> None:
        self.stage.__exit__(None, None, None)

    def __call__(self, data: bytes) -> None:
        self.stranger.choices = Choices(data)
        board = FaultBoard()
        answers = self.stage.run(self._ask(board))
        listings = [Listing(n[7:]).after(listed, 0.0) for n, listed in answers.items()]
        for listing in listings:
            kept = load(KeptListing, _kept(KeptListing(listing.devices, listing.withheld)))
            lost = len(listing.devices) - len(kept.devices)
            assert not lost or listing.driver == "stranger"
        built = build(listings, Facts(domain_of=lambda _: DOMAIN))
        offer = as_offer(built, Offer(generation=0), complete=True)
        assert [o.name for o in offer.devices if o.device.driver == "a_good"] == [
            "good-0",
            "good-1",
        ]
        check_published(offer)
        for entry in board.entries:
            assert escaped(entry.message) == entry.message, entry
        self.stage.quiet("\x1b", "\u202e")

    async def _ask(self, board: FaultBoard) -> dict[str, Any]:
        async with Relay(self.plugins, board) as relay:
            return await relay.gather("publish_devices")


# -- answers --------------------------------------------------------------------------------------


def answer(choices: Choices) -> Any:
    """Return what publish_devices of a stranger may."""
    how = choices.below(10)
    if how == 0:
        return choices.value()
    if how == 1:
        return _ends_ill(choices)
    items = [item(choices) for _ in range(choices.below(5))]
    return iter(items) if how == 2 else items


def _ends_ill(choices: Choices) -> Iterator[Any]:
    for _ in range(choices.below(3)):
        yield item(choices)
    raise choices.pick((ValueError, OSError, KeyboardInterrupt, SystemExit, RecursionError))(
        choices.text()
    )


def item(choices: Choices) -> Any:
    """Return a device that is odd in a few fields, or something else."""
    how = choices.below(8)
    if how == 0:
        return choices.value()
    if how == 1:
        return Withheld(choices.text(), choices.text(), choices.text())
    if how == 2:
        return Unread(choices.text(), choices.text())
    try:
        device = Device(**dict(_facts(choices)))
    except (TypeError, ValueError, AttributeError):  # it raises in the driver itself
        device = Device(name="zz-0", kind="card")
    if how == 3:
        name = choices.pick([field.name for field in fields(Device)])
        object.__setattr__(device, name, odd(choices))
    return device


def _facts(choices: Choices) -> Iterator[tuple[str, Any]]:
    yield "name", choices.pick(("zz-0", "zz-1", "good-0", choices.text(), "a" * 63, "A_b"))
    yield "kind", choices.pick(("card", "gpu.mig", choices.text()))
    for name in ("nodes", "attributes", "capacity", "parts", "taints", "topology", "shareable"):
        if choices.flag():
            yield name, _field(name, choices)
    if choices.flag():
        yield "origin", {choices.text(): choices.text()}
        yield "entry", choices.text()


def _field(name: str, choices: Choices) -> Any:
    count = range(choices.below(40) if choices.flag() else 1)
    if name == "attributes":
        return {choices.pick((choices.text(), f"a{n}")): odd(choices) for n in count}
    if name == "capacity":
        return {choices.pick((choices.text(), f"c{n}")): _capacity(choices) for n in count}
    if name == "nodes":
        return [_node(choices) for _ in count]
    if name == "parts":
        return [Part(choices.text(), choices.flag()) for _ in count]
    if name == "taints":
        return [_taint(choices) for _ in count]
    if name == "topology":
        return Topology(choices.pick((None, odd(choices))), choices.pick((None, odd(choices))))
    return choices.pick((True, False, "no"))


def _capacity(choices: Choices) -> Any:
    amounts = ("1Gi", "5", "0", "-1", "1e999", "0.1m", "9" * 400, "Gi", "1e-999", choices.text())
    if choices.flag():
        return choices.pick(amounts)
    return Capacity(
        value=choices.pick(amounts),
        default=choices.pick((None, *amounts)),
        valid=tuple(choices.pick(amounts) for _ in range(choices.below(12))),
        minimum=choices.pick((None, *amounts)),
        maximum=choices.pick((None, *amounts)),
        step=choices.pick((None, *amounts)),
    )


def _node(choices: Choices) -> Any:
    return DeviceNode(
        path=choices.pick(("/dev/x0", "/dev/../sda", "/dev/good0", choices.text())),
        type=choices.pick((NodeType.CHAR, NodeType.BLOCK, NodeType.CHAR)),
        major=choices.pick((240, None, 2**40, -1)),
        minor=choices.pick((0, 1, None)),
        permissions=choices.pick(("rw", "", "x", "rwm")),
    )


def _taint(choices: Choices) -> Any:
    key = choices.pick(("stale", "a.b/c", "/", "A/b", choices.text()))
    return Taint(key, choices.pick(tuple(Effect)), choices.pick(("", "v", choices.text())))


def odd(choices: Choices) -> Any:
    """Return a value that may stand where a fact should."""
    how = choices.below(8)
    if how == 0:
        return choices.value()
    if how == 1:
        return choices.pick((math.inf, math.nan, b"bytes", object, (), {1: 2}, 1j))
    if how == 2:
        return Version(choices.pick(("1.2.3", "v1", "01.2", choices.text())))
    if how == 3:
        return choices.pick(("\ud800", *ODD_TEXTS))
    if how == 4:
        return choices.pick((1, 2**63, -(2**63) - 1, True, False))
    return choices.text()
