"""A small world for the broker: a node of cards, drivers called without a relay, an offer."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from hardpoint._core.claims.broker import Broker
from hardpoint._core.claims.ports import Granted
from hardpoint._core.ledger.ledger import Ledger
from hardpoint._core.ledger.locks import ClaimLocks
from hardpoint.cdi_files import CdiDirectory
from hardpoint.errors import HookFault, HookLate, Refuse, TryAgain
from hardpoint.model import (
    Addition,
    Allotment,
    Claim,
    ClaimKey,
    Delivery,
    Device,
    DeviceNode,
    Domain,
    Event,
    Hold,
    NodeType,
    Offer,
    Offered,
    Part,
    PreparedDevice,
    Taint,
    Verdict,
    Withheld,
    exclusive,
    shared,
)
from hardpoint.node import Node, NodeInfo
from hardpoint.parameters import Parameters

DOMAIN = Domain.named("hardpoint.dev")
MAJOR = 240


class CardParameters(Parameters, kind="CardParameters"):
    image: str = "plain"


class FakeNode(Node):
    """A machine whose nodes are named in a table, since making real ones takes root."""

    def __init__(self, root: Path, boot_id: str = "boot-1") -> None:
        super().__init__(name="node-1", sys=root, dev=root, proc=root, run=root)
        self.nodes: dict[str, NodeInfo] = {}
        self._boot = boot_id

    @property
    def boot_id(self) -> str:
        return self._boot

    def info(self, path: str) -> NodeInfo | None:
        return self.nodes.get(path)

    def put(self, path: str, minor: int, gid: int = 44, major: int = MAJOR) -> None:
        self.nodes[path] = NodeInfo(NodeType.CHAR, major, minor, 0o660, gid)


class Cards:
    """A driver whose hardware is a directory: a file per card, while it is prepared."""

    Parameters: type[Parameters] | None = CardParameters

    def __init__(self, hardware: Path, node: FakeNode) -> None:
        self.hardware, self.node = hardware, node
        self.calls: list[str] = []
        self.faults: dict[str, Exception] = {}
        self.releases = False

    def _called(self, hook: str, device: str) -> None:
        self.calls.append(f"{hook} {device}")
        fault = self.faults.get(f"{hook} {device}") or self.faults.get(hook)
        if fault is not None:
            raise fault

    def deliver_device(self, device: Device, parameters: Any) -> Delivery:
        fault = self.faults.get("deliver")
        if fault is not None:
            raise fault
        return Delivery(nodes=device.nodes, env={"IMAGE": parameters.image})

    def prepare_device(self, device: Device, hold: Hold, parameters: Any) -> None:
        file = self.hardware / device.name
        mine = ("", hold.claim.uid)  # or nobody's: a try that got half as far
        if not device.shareable and file.exists() and file.read_text() not in mine:
            raise AssertionError(f"{device.name} is prepared for {file.read_text()} already")
        hold.remember(was="blank")
        self._called("prepare", device.name)
        file.write_text(hold.claim.uid)

    def unprepare_device(self, device: Device | None, hold: Hold) -> None:
        self._called("unprepare", hold.device.name)
        file = self.hardware / hold.device.name
        if file.exists() and file.read_text() in ("", hold.claim.uid):  # or half prepared
            file.unlink()

    def release_device(self, device: Device, hold: Hold) -> None:
        self._called("release", device.name)


class Plain:
    """A driver that only publishes."""


class FakeHooks:
    """Calls drivers and policies: plain functions in threads, as the relay does."""

    def __init__(self, drivers: dict[str, Any]) -> None:
        self.drivers = drivers
        self.policies: dict[str, Any] = {}
        self.hanging: set[str] = set()
        """Hooks that do not come back."""
        self.under_way: set[tuple[str, str, str]] = set()

    async def owner(self, hook: str, driver: str, subject: str, **arguments: Any) -> Any:
        if not self.implements(driver, hook):
            return None
        key = (driver, hook, subject)
        if hook in self.hanging:
            self.under_way.add(key)
            raise HookLate(driver, hook, "no answer within 40 s")
        if key in self.under_way:
            self.under_way.discard(key)
            return None  # the call that was joined has ended
        return await self._call(driver, hook, self.drivers[driver], arguments)

    async def gather(self, hook: str, subject: str = "", **arguments: Any) -> dict[str, Any]:
        return {
            name: await self._call(name, hook, policy, arguments)
            for name, policy in self.policies.items()
            if hasattr(policy, hook)
        }

    async def fold(self, hook: str, subject: str, value_name: str, **arguments: Any) -> Any:
        for name, policy in self.policies.items():
            if hasattr(policy, hook):
                arguments[value_name] = await self._call(name, hook, policy, arguments)
        return arguments[value_name]

    def implements(self, driver: str, hook: str) -> bool:
        plugin = self.drivers.get(driver)
        if hook == "release_device" and not getattr(plugin, "releases", False):
            return False
        return hasattr(plugin, hook)

    def parameters_model(self, driver: str) -> type[Parameters] | None:
        return getattr(self.drivers.get(driver), "Parameters", None)

    def known_kinds(self) -> tuple[str, ...]:
        return ("CardParameters", "OtherParameters")

    def running(self, driver: str, hook: str, subject: str) -> bool:
        return (driver, hook, subject) in self.under_way

    async def _call(self, name: str, hook: str, plugin: Any, arguments: dict[str, Any]) -> Any:
        function = getattr(plugin, hook)
        wanted = inspect.signature(function).parameters
        given = {key: value for key, value in arguments.items() if key in wanted}
        try:
            if inspect.iscoroutinefunction(function):
                return await function(**given)
            return await anyio.to_thread.run_sync(partial(function, **given))
        except (HookFault, TryAgain, Refuse, AssertionError):
            raise
        except Exception as error:
            raise HookFault(name, hook, f"{type(error).__name__}: {error}") from error


class World:
    """One node, its hardware and its directories; opens brokers on it, also two at once."""

    CARDS = Cards

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("hw", "cdi"):
            (root / name).mkdir(exist_ok=True)
        self.state, self.cdi = root / "state", root / "cdi"
        self.node = FakeNode(root)
        self.cards = self.CARDS(root / "hw", self.node)
        self.hooks = FakeHooks({"cards": self.cards, "plain": Plain()})
        self.devices: dict[str, Offered] = {}
        self.withheld: list[Withheld] = []
        self.complete = True
        self.events: list[Event] = []
        self.now = 1_000_000.0
        self.patience = 5.0
        self.writing: Callable[[], bool] = lambda: True
        self.granted: Granted | None = None

    # -- hardware ---------------------------------------------------------------------------------

    def card(self, name: str, minor: int, *, shareable: bool = False) -> Device:
        """Plug a card in; it is offered."""
        slot = f"slot:{name}"
        return self.add(
            Device(
                name=name,
                kind="card",
                nodes=(DeviceNode(path=f"/dev/{name}", major=MAJOR, minor=minor),),
                parts=(shared(slot) if shareable else exclusive(slot), shared("bus:0")),
                shareable=shareable,
                origin={"slot": name},
                driver="cards",
            )
        )

    def add(self, device: Device, domain: Domain = DOMAIN) -> Device:
        for node in device.nodes:
            self.node.put(node.path, node.minor or 0, major=node.major or MAJOR)
        self.devices[device.name] = Offered(device=device, domain=domain)
        return device

    def unplug(self, name: str) -> None:
        """Take a card out: the offer keeps it, tainted, while somebody holds it."""
        offered = self.devices[name]
        for node in offered.device.nodes:
            self.node.nodes.pop(node.path, None)
        self.devices[name] = replace(offered, taints=(Taint("absent"),), claimable=False, held=True)

    def veto(self, name: str) -> None:
        self.withheld.append(Withheld(name, "vetoed", "another plugin offers it"))
        del self.devices[name]

    def offer(self) -> Offer:
        return Offer(
            generation=1,
            devices=tuple(self.devices.values()),
            withheld=tuple(self.withheld),
            complete=self.complete,
        )

    # -- brokers ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[Broker]:
        """Start a broker, as an agent does; several share the ledger."""
        ledger = await anyio.to_thread.run_sync(lambda: Ledger(self.state, lambda: self.now))
        locks = ClaimLocks(self.state / "claims.lock", patience=self.patience)
        broker = Broker(
            node=self.node,
            hooks=self.hooks,
            ledger=ledger,
            files=CdiDirectory(self.cdi),
            locks=locks,
            offer=self.offer,
            domains=lambda: (DOMAIN,),
            report=self.events.append,
            writing=self.writing,
            clock=lambda: self.now,
            granted=self.granted,
        )
        try:
            yield broker
        finally:
            locks.close()
            await anyio.to_thread.run_sync(ledger.close)

    def reboot(self) -> None:
        """Lose what a boot loses: the CDI directory on tmpfs, what the hardware was set to."""
        self.node._boot += "'"
        for directory in (self.cdi, self.root / "hw"):
            for file in directory.iterdir():
                file.unlink()

    # -- looking ----------------------------------------------------------------------------------

    def told(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    def files(self) -> list[str]:
        return sorted(path.name for path in self.cdi.iterdir())

    def file(self, uid: str) -> str:
        return (self.cdi / f"hardpoint.dev-{uid}.json").read_text()


def two_cards(root: Path) -> World:
    """A world of ``card-a`` and ``card-b``."""
    made = World(root)
    made.card("card-a", 1)
    made.card("card-b", 2)
    return made


def claim(
    uid: str, *devices: str, name: str = "", driver: str = "hardpoint.dev", **changes: Any
) -> Claim:
    """A claim, with a request for each device."""
    key = ClaimKey(uid, "ns", name or f"claim-{uid}", driver)
    allotments = tuple(
        Allotment(request=f"r{index}", device=device, pool="node-1", **changes)
        for index, device in enumerate(devices)
    )
    return Claim(key=key, allotments=allotments)


def reading(found: Claim | Exception) -> Callable[[], Awaitable[Claim]]:
    async def read() -> Claim:
        if isinstance(found, Exception):
            raise found
        return found

    return read


async def prepare(broker: Broker, wanted: Claim) -> tuple[PreparedDevice, ...]:
    return await broker.prepare(wanted.key, reading(wanted))


__all__ = [
    "DOMAIN",
    "MAJOR",
    "Addition",
    "CardParameters",
    "Cards",
    "FakeHooks",
    "FakeNode",
    "Iterable",
    "Part",
    "Verdict",
    "World",
    "claim",
    "prepare",
    "reading",
]
