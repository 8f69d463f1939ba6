"""A story of claims, told to a broker step by step, and what must be true after any of its steps.

A kubelet tells it: it calls again until it has an answer, and remembers what it was answered
(``told``), also when the broker's process has been killed in between.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
from broker_world import MAJOR, FakeNode, World, claim, prepare

from hardpoint._core.claims.broker import Broker
from hardpoint._core.ledger import schema
from hardpoint._core.ledger.locks import WriterLock
from hardpoint.errors import HardpointError, HookFault
from hardpoint.model import (
    Device,
    DeviceNode,
    HoldState,
    PreparedDevice,
    exclusive,
    shared,
)
from hardpoint.node import NodeInfo
from hardpoint.testing.durable import heard, mended, resume, told

_T = TypeVar("_T")

CARDS = {"card-a": 1, "card-b": 2, "card-c": 3, "spare": 8}
SHARED = {"shared": 4}
PARTS = {"part-1": 5, "part-2": 6}
WHOLE = {"whole": 7}
MINORS = CARDS | SHARED | PARTS | WHOLE
ALONE = {*CARDS, *PARTS, *WHOLE}
"""Devices that one claim has at a time; the parts and the whole exclude each other, too."""

CLAIMS = {
    "u1": ("card-a", "card-b"),
    "u2": ("card-c",),
    "u3": ("card-a",),
    "u4": ("part-1", "shared"),
    "u5": ("part-2", "shared"),
    "u6": ("whole",),
    "u7": ("spare",),
}
NUMBERS = "numbers"
"""A file that grows with each time that the kernel renumbers nodes."""
TRIES = 5
"""How often a kubelet here calls again: a fault that is over must not be met so often."""


class NumberedNode(FakeNode):
    """A machine whose nodes have the numbers that every process on it sees."""

    def info(self, path: str) -> NodeInfo | None:
        found = super().info(path)
        minor = MINORS[os.path.basename(path)] + renumbered(self.sys)
        return replace(found, minor=minor) if found else None


def renumbered(root: Path) -> int:
    """Return by how much the kernel has renumbered nodes since the begin."""
    with suppress(FileNotFoundError):
        return 10 * (root / NUMBERS).stat().st_size
    return 0


class Story:
    """Tells a broker what happens. ``done`` says what has, in every process."""

    def __init__(self, root: Path, *, rebooted: bool = False) -> None:
        schema._BUSY = schema._OPENING = 0.3  # nobody waits so long here for one that is stopped
        self.root, self.rebooted = root, rebooted
        self.world = World(root)
        self.world.node.__class__ = NumberedNode
        self.world.patience = 0.3
        self.world.cards.releases = True
        self.world.node._boot = "boot-2" if rebooted else "boot-1"
        self.tries, self.pause = TRIES, 0.0
        self.on_refusal: Callable[[], None] = partial(mended, root)
        self.plug()

    def beside_another(self) -> None:
        """Be one of two agents: let the other go on when it is in the way, and wait for it."""
        self.tries, self.pause = 200, 0.05
        self.on_refusal = partial(resume, self.root)
        lock = WriterLock(self.root / "writer")
        self.world.writing = lock.writing

    def plug(self) -> None:
        """Look what is plugged in, and under which numbers now."""
        self.minor = renumbered(self.root)
        for name in CARDS | SHARED:
            self.world.card(name, self.minor + MINORS[name], shareable=name in SHARED)
        for name in PARTS:
            self._part(name, shared("slot:whole"), exclusive(f"slot:whole/{name}"))
        self._part("whole", exclusive("slot:whole"))

    def _part(self, name: str, *parts: Any) -> None:
        node = DeviceNode(path=f"/dev/{name}", major=MAJOR, minor=self.minor + MINORS[name])
        device = Device(name=name, kind="card", nodes=(node,), parts=parts, driver="cards")
        self.world.add(device)

    # -- what happens -----------------------------------------------------------------------------

    async def tell(self, broker: Broker, *happenings: str, start: int = 0) -> None:
        """Let things happen: ``+u1`` prepares a claim, ``-u1`` ends it; words are methods."""
        for number, what in enumerate(happenings):
            if number < start:
                continue
            await self.happen(broker, what)
            told(self.root, "done", number)

    async def happen(self, broker: Broker, what: str) -> None:
        if what[0] == "+":
            await self.begin(broker, what[1:])
        elif what[0] == "-":
            await self.end(broker, what[1:])
        else:
            await getattr(self, what)(broker)

    async def begin(self, broker: Broker, uid: str) -> None:
        wanted = claim(uid, *CLAIMS[uid])
        answer = await self.insist(broker, uid, lambda: prepare(broker, wanted))
        told(self.root, "prepared", uid, ids(answer))

    async def end(self, broker: Broker, uid: str) -> None:
        told(self.root, "ending", uid)
        await self.insist(broker, uid, lambda: broker.unprepare(claim(uid).key))
        told(self.root, "ended", uid)

    async def insist(self, broker: Broker, uid: str, call: Callable[[], Awaitable[_T]]) -> _T:
        """Call until it succeeds, as the kubelet does; a disk that was full has room then.

        Meanwhile the broker tends to what waits, as it does every few seconds.
        """
        for _ in range(self.tries):
            try:
                return await call()
            except HardpointError as error:
                told(self.root, "refused", uid, str(error))
                self.on_refusal()
                self.plug()
                await self.attend(broker)
                await anyio.sleep(self.pause)
        return await call()

    async def renumber(self, broker: Broker) -> None:
        self.renumber_nodes()
        if self.world.writing():  # one of two agents lets files follow
            await broker.refresh(self.world.offer())

    def renumber_nodes(self) -> None:
        with (self.root / NUMBERS).open("a") as file:
            file.write(".")
        self.plug()

    async def attend(self, broker: Broker) -> None:
        self.world.now += 5000  # whatever waits is due
        await broker.attend()

    async def refused(self, broker: Broker) -> None:
        """The whole, while somebody has a part of it."""
        try:
            await prepare(broker, claim("u6", "whole"))
        except HardpointError as error:
            told(self.root, "refused", "u6", str(error))
        else:
            raise AssertionError("the whole was handed out beside its part")

    async def contend(self, broker: Broker) -> None:
        """Ask for what somebody may have: whoever gets it, it is in turns (``known``)."""
        for uid in ("u3", "u6"):
            try:
                answer = await prepare(broker, claim(uid, *CLAIMS[uid]))
            except HardpointError:
                continue
            told(self.root, "prepared", uid, ids(answer))
            await self.end(broker, uid)

    async def jam(self, broker: Broker) -> None:
        self.world.cards.faults["unprepare"] = HookFault("cards", "unprepare_device", "stuck")

    async def unjam(self, broker: Broker) -> None:
        self.world.cards.faults.clear()

    async def clear(self, broker: Broker) -> None:
        """An operator has looked: the cards are blank, whatever their driver says."""
        for name in CLAIMS["u1"]:
            try:
                (self.root / "hw" / name).unlink(missing_ok=True)
            except OSError:
                mended(self.root)
                (self.root / "hw" / name).unlink(missing_ok=True)
            clear = partial(broker.clear_quarantine, name)
            await self.insist(broker, "operator", clear)

    async def keep_listings(self, broker: Broker) -> None:
        """A driver's list is kept, as the agent does after each scan; a full disk costs that."""
        devices = [offered.device for offered in self.world.devices.values()]
        try:
            await broker._ledger.keep_listing("cards", devices, ())
        except HardpointError:
            mended(self.root)

    # -- what must be true ------------------------------------------------------------------------

    def known(self) -> dict[str, list[list[str]]]:
        """Return what the kubelet knows to be prepared, with its answers, and who may be."""
        prepared: dict[str, list[list[str]]] = {}
        for word, *rest in heard(self.root):
            if word == "prepared":
                self._alone(rest[0], prepared)
                prepared[rest[0]] = rest[1]
            elif word == "ending":
                prepared.pop(rest[0], None)
        return prepared

    def _alone(self, uid: str, prepared: dict[str, Any]) -> None:
        for other in prepared.keys() - {uid}:
            common = ALONE & {*CLAIMS[uid]} & {*CLAIMS[other]}
            assert not common, f"{common} were given to {uid} while {other} had them"
            parts = {*CLAIMS[uid], *CLAIMS[other]}
            assert not ("whole" in parts and parts & {*PARTS}), f"{uid} beside {other}"

    def check(self, broker: Broker) -> None:
        """Hold, file and hardware say the same of every claim."""
        held = [hold for hold in broker.holds() if hold.state is HoldState.HELD]
        states = {str(hold.state) for hold in broker.holds()}
        assert states <= {"held", "releasing", "quarantined"}, states
        files = sorted({f"hardpoint.dev-{hold.claim.uid}.json" for hold in held})
        assert self.world.files() == files, f"{self.world.files()} for {files}"
        hardware = {p.name: p.read_text() for p in (self.root / "hw").iterdir()}
        owners = {h.device.name: h.claim.uid for h in held if h.device.name in ALONE}
        for hold in broker.holds():
            if hold.state is HoldState.QUARANTINED:
                hardware.pop(hold.device.name, None)
        hardware.pop("shared", None)
        assert hardware == owners, f"{hardware} for {owners}"
        for hold in held:
            minor = self.minor + MINORS[hold.device.name]
            assert f'"minor": {minor},' in self.world.file(hold.claim.uid), hold
        rows = broker._ledger._reader.query("SELECT part FROM owners WHERE exclusive")
        assert len({row["part"] for row in rows}) == len(rows)

    async def check_known(self, broker: Broker, *, lost: bool = False) -> None:
        """Whatever the kubelet knows is held, and a repeated call gets the same answer.

        After a reboot it calls for every claim, also for one that was ``lost`` with the ledger.
        """
        known = self.known()
        held = {h.claim.uid for h in broker.holds() if h.state is HoldState.HELD}
        assert lost or known.keys() <= held, f"lost {known.keys() - held}"
        for uid, answer in known.items():
            again = ids(await prepare(broker, claim(uid, *CLAIMS[uid])))
            assert again == answer, f"{again} is not {answer}"

    async def end_all(self, broker: Broker) -> None:
        """End every claim; then every device can be had, and nothing is left anywhere."""
        for uid in CLAIMS:
            await broker.unprepare(claim(uid).key)
        for _ in range(2):  # what was undone in the first round is released in the second
            await self.attend(broker)
        self.check(broker)
        assert broker.holds() == (), f"left {broker.holds()}"
        for uid, devices in (("u8", (*CARDS, *PARTS, *SHARED)), ("u9", ("whole",))):
            await prepare(broker, claim(uid, *devices))
            await broker.unprepare(claim(uid).key)
            await self.attend(broker)
        left = [p.name for d in (self.world.cdi, self.root / "hw") for p in d.iterdir()]
        assert left == [], f"left {left}"

    def next(self) -> int:
        """Return the first happening that is not known to be over."""
        done = [entry[1] for entry in heard(self.root) if entry[0] == "done"]
        return max(done, default=-1) + 1


def ids(answers: tuple[PreparedDevice, ...]) -> list[list[str]]:
    """Return what the kubelet was answered, as JSON."""
    return [list(answer.cdi_ids) for answer in answers]
