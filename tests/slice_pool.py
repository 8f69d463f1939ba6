"""A small agent whose offer a test sets, and devices to offer, for tests of slices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel

from hardpoint.model import (
    Condition,
    Device,
    Domain,
    Event,
    Health,
    Hold,
    Offer,
    Offered,
    Part,
    Taint,
)
from hardpoint.node import Node
from hardpoint.testing.api_server import FakeApiServer

DOMAIN = Domain.named("hardpoint.dev")
NODE = "node-a"


def device(name: str, **facts: Any) -> Device:
    return Device(name=name, kind="gpu", **{"attributes": {"model": "A100"}, **facts})


def offered(
    name: str,
    *,
    taints: tuple[Taint, ...] = (),
    held: bool = False,
    health: Health | None = None,
    domain: Domain = DOMAIN,
    **facts: Any,
) -> Offered:
    return Offered(
        device=device(name, **facts),
        domain=domain,
        health=health or Health(Condition.HEALTHY),
        taints=taints,
        held=held,
    )


def offer(*devices: Offered | str, complete: bool = True, generation: int = 1) -> Offer:
    whole = tuple(offered(d) if isinstance(d, str) else d for d in devices)
    return Offer(generation=generation, devices=whole, complete=complete)


def many(count: int, **facts: Any) -> list[Offered]:
    return [offered(f"gpu-{number}", **facts) for number in range(count)]


def rivals() -> tuple[Offered, Offered]:
    """A whole device and one node of it: both cannot be held at once."""
    whole = offered("whole", parts=(Part("usb:1-2", True),))
    return whole, offered("half", parts=(Part("usb:1-2", False), Part("char:188:0", True)))


class OfferingAgent:
    """As much of the agent as publishing needs."""

    def __init__(self, offer: Offer | None = None) -> None:
        self.node = Node(name=NODE)
        self.offer = offer or Offer(generation=0, complete=False)
        self.faults: dict[str, str] = {}
        self.events: list[Event] = []
        self.held: tuple[Hold, ...] = ()
        self._writing = True
        self._changed, self._faulted = anyio.Event(), anyio.Event()

    async def until(self, condition: Callable[[dict[str, str]], object]) -> None:
        """Wait until something is true of the fault board."""
        with anyio.fail_after(10):
            while not condition(self.faults):
                await self._faulted.wait()

    def _say(self) -> None:
        self._faulted.set()
        self._faulted = anyio.Event()

    def set(self, *devices: Offered | str) -> None:
        self.offer = offer(*devices, generation=self.offer.generation + 1)
        self.wake()

    def wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def offers(self) -> AsyncIterator[Offer]:
        while True:
            changed = self._changed
            yield self.offer
            await changed.wait()

    def holds(self) -> tuple[Hold, ...]:
        return self.held

    def writing(self) -> bool:
        return self._writing

    def let_write(self, writing: bool) -> None:
        self._writing = writing
        self.wake()

    async def until_writing(self) -> None:
        while not self._writing:
            await self._changed.wait()

    def on_fault(self, source: str, message: str) -> None:
        self.faults[source] = message
        self._say()

    def clear_fault(self, source: str) -> None:
        self.faults.pop(source, None)
        self._say()

    def report(self, event: Event) -> None:
        self.events.append(event)


class ManualClock:
    """Delays that last until the test says so; short ones only give way."""

    def __init__(self, shortest: float = 60.0) -> None:
        self.asked: list[float] = []
        self._shortest, self._go = shortest, anyio.Event()

    async def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        if seconds < self._shortest:
            await anyio.lowlevel.checkpoint()
        else:
            await self._go.wait()

    def advance(self) -> None:
        self._go.set()
        self._go = anyio.Event()


def published_devices(server: FakeApiServer) -> list[str]:
    """Every device of the pool on the server, slice by slice."""
    return [
        found["name"]
        for item in server.items("resourceslices")
        for found in item["spec"].get("devices", ())
    ]


def stamps(server: FakeApiServer) -> set[tuple[int, int]]:
    """Generation and slice count of every slice."""
    pools = (item["spec"]["pool"] for item in server.items("resourceslices"))
    return {(pool["generation"], pool["resourceSliceCount"]) for pool in pools}
