"""Kill an agent at every step of its work, start another, and look: ``python … <directory>``.

The first process of each round is killed (SIGKILL) just before one of the calls that change
something: a commit, a flush, a rename, a removal, a driver's work on the hardware. The second
starts as an agent does and checks that no device is lost, held twice or left in a file.
Prints one JSON object for each round that went wrong, and the number of rounds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any

import anyio
from broker_world import World, claim, prepare

from hardpoint._core.broker import Broker
from hardpoint._core.committer import Committer
from hardpoint.model import HoldState, PreparedDevice

CARDS = {"card-a": 1, "card-b": 2, "card-c": 3}


class Points:
    """Counts the calls that change something, and dies at one of them."""

    def __init__(self, fatal: int) -> None:
        self.fatal, self.passed = fatal, 0
        self._gate = threading.Lock()

    def reach(self) -> None:
        with self._gate:
            self.passed += 1
            if self.passed == self.fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.reach()
            return function(*args, **kwargs)

        return wrapped


def world_of(root: Path, *, minor: int = 0) -> World:
    world = World(root)
    for name, number in CARDS.items():
        world.card(name, number + minor)
    world.cards.releases = True
    return world


def journal(root: Path, *words: object) -> None:
    """Write down what a caller was told, as the kubelet does in its checkpoint."""
    with (root / "journal").open("a") as file:
        file.write(json.dumps(words) + "\n")


def told(answers: tuple[PreparedDevice, ...]) -> list[list[str]]:
    return [list(answer.cdi_ids) for answer in answers]


async def work(root: Path) -> None:
    """A few minutes of an agent's life."""
    world = world_of(root)
    async with world.broker() as broker:
        await broker.restore()
        for uid, devices in (("u1", ("card-a", "card-b")), ("u2", ("card-c",))):
            journal(root, "prepared", uid, told(await prepare(broker, claim(uid, *devices))))
        for name, number in CARDS.items():
            world.card(name, number + 10)
        await broker.refresh(world.offer())
        journal(root, "ending", "u1")
        await broker.unprepare(claim("u1").key)
        journal(root, "ended", "u1")
        await broker.attend()
        journal(root, "prepared", "u3", told(await prepare(broker, claim("u3", "card-a"))))
        journal(root, "ending", "u2")
        await broker.unprepare(claim("u2").key)
        await broker.attend()


async def look(root: Path, reboot: bool) -> None:
    """Start again, check everything, and use every device."""
    story = [json.loads(line) for line in (root / "journal").read_text().splitlines()]
    world = world_of(root, minor=20)
    if reboot:
        world.reboot()
    async with world.broker() as broker:
        await broker.restore()
        check_state(world, broker)
        prepared = {entry[1]: entry[2] for entry in story if entry[0] == "prepared"}
        ending = {entry[1] for entry in story if entry[0] == "ending"}
        held = {hold.claim.uid for hold in broker.holds() if hold.state is HoldState.HELD}
        kept = prepared.keys() - ending
        assert kept <= held, f"lost {kept - held}"
        devices = {"u1": ("card-a", "card-b"), "u2": ("card-c",), "u3": ("card-a",)}
        for uid in kept:
            again = told(await prepare(broker, claim(uid, *devices[uid])))
            assert again == prepared[uid], f"{again} is not {prepared[uid]}"
        for uid in devices:
            await broker.unprepare(claim(uid).key)
        await broker.attend()
        check_state(world, broker)
        assert broker.holds() == (), f"left {broker.holds()}"
        await prepare(broker, claim("u9", *CARDS))
        await broker.unprepare(claim("u9").key)
        await broker.attend()
    left = [p.name for d in (world.cdi, root / "hw") for p in d.iterdir()]
    assert left == [], f"left {left}"
    state = sorted(p.name for p in world.state.iterdir())
    assert state == ["claims.lock", "ledger.db", "ledger.lock"], state


def check_state(world: World, broker: Broker) -> None:
    held = [hold for hold in broker.holds() if hold.state is HoldState.HELD]
    states = [str(hold.state) for hold in broker.holds()]
    assert set(states) <= {"held", "releasing"}, states
    files = sorted({f"hardpoint.dev-{hold.claim.uid}.json" for hold in held})
    assert world.files() == files, f"{world.files()} for {files}"
    hardware = {path.name: path.read_text() for path in (world.root / "hw").iterdir()}
    assert hardware == {h.device.name: h.claim.uid for h in held}, f"{hardware} for {held}"
    for hold in held:
        assert f'"minor": {CARDS[hold.device.name] + 20}' in world.file(hold.claim.uid)
    owners = broker._ledger._reader.query("SELECT part FROM owners WHERE exclusive")
    assert len({row["part"] for row in owners}) == len(owners)


def in_child(run: Callable[[], Awaitable[None]], points: Points | None = None) -> tuple[int, str]:
    """Run in a process of its own; return its wait status and what went wrong."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            anyio.run(run)
            message = str(points.passed) if points else ""
        except BaseException as error:  # noqa: BLE001 - reported by the parent
            message = f"{type(error).__name__}: {error}"
            os.write(writing, message.encode()[:4000])
            os._exit(1)
        os.write(writing, message.encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        message = pipe.read()
    return os.waitpid(child, 0)[1], message


def arm(points: Points) -> None:
    os.fsync = points.before(os.fsync)
    os.rename = points.before(os.rename)
    os.unlink = points.before(os.unlink)
    Committer._together = points.before(Committer._together)  # type: ignore[method-assign]
    for hook in ("prepare_device", "unprepare_device", "release_device"):
        setattr(World.CARDS, hook, points.before(getattr(World.CARDS, hook)))


def one_round(base: Path, fatal: int, *, reboot: bool) -> tuple[int, str, str]:
    root = base / f"{fatal}-{reboot}"
    root.mkdir()
    (root / "journal").touch()
    points = Points(fatal)

    async def armed() -> None:
        arm(points)
        await work(root)

    status, message = in_child(armed, points)
    if not os.WIFSIGNALED(status):
        return status, message, "" if status == 0 else message
    status, problem = in_child(lambda: look(root, reboot))
    return -1, message, problem if status else ""


def main(base: Path) -> None:
    fatal = 0
    while True:
        fatal += 1
        status, message, problem = one_round(base, fatal, reboot=fatal % 2 == 0)
        if problem:
            problem = json.dumps({"killed at": fatal, "problem": problem, "work": message})
            sys.stdout.write(problem + "\n")
        if status >= 0:
            break
    sys.stdout.write(f"{fatal - 1}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
