"""The runs that are walked: lives of a broker, each with a fault at every one of its steps."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
from broker_story import Story

from hardpoint._core.claims.broker import Broker
from hardpoint.errors import HardpointError
from hardpoint.testing.durable import DurableRun, heard, resume

REASONS = (
    "ledger",
    "CDI",
    "cdi",
    "prepare_device",
    "the release after",
    "call",
    "renumbered",
    "the quarantine after",
)
"""Where it failed; or what it waits for, that did not fail itself."""
FILES = {"claims.lock", "ledger.db", "ledger.lock"}
"""What is in the state directory when nobody uses it."""
BOOT = "boot"
"""A file that exists once the node has booted again."""


class BrokerRun(DurableRun):
    """Tells a story to a broker; whoever is killed is started again and hears the rest of it."""

    watch = ("state", "cdi", "hw")
    restarts = 2
    story: tuple[str, ...] = ()
    alone = True
    """False where another agent may stop with the ledger locked."""
    may_lose = False
    """True where holds may be gone after a reboot: neither a ledger nor CDI files tell of them."""
    before: tuple[str, ...] = ()
    """What has happened before anything fails."""

    def begin(self, root: Path) -> None:
        story = Story(root)
        if self.before:
            self._run(story, lambda broker: story.tell(broker, *self.before))
        (root / "told").write_bytes(
            b"".join(
                line
                for line in (root / "told").read_bytes().splitlines(keepends=True)
                if b'"prepared"' in line or b'"ending"' in line
            )
        )

    def work(self, root: Path) -> None:
        story = self._told_so_far(root)
        if not self.alone:
            story.beside_another()
        self._run(story, self._go_on)

    async def _go_on(self, broker: Broker) -> None:
        story = self._story
        await story.tell(broker, *self.story, start=story.next())

    def reboot(self, root: Path) -> None:
        for name in ("cdi", "hw"):
            shutil.rmtree(root / name, ignore_errors=True)
        (root / BOOT).touch()

    def look(self, root: Path) -> None:
        story = self._told_so_far(root)
        story.renumber_nodes()  # while nobody looked
        self._run(story, self._check)
        left = {path.name for path in (root / "state").iterdir()} - FILES
        self._check_left(root, left)

    def _check_left(self, root: Path, left: set[str]) -> None:
        """Nothing is left half made, and no good ledger was set aside for a disk that failed."""
        assert not left, left

    async def _check(self, broker: Broker) -> None:
        story = self._story
        await broker.attend()
        story.check(broker)
        await story.check_known(broker, lost=self.may_lose and story.rebooted)
        await story.tell(broker, *self.story, start=story.next())
        await story.check_known(broker)
        await broker.refresh(story.world.offer())
        story.check(broker)
        await story.end_all(broker)
        self._check_messages(story.root)

    def _check_messages(self, root: Path) -> None:
        """A claim that failed says where and what."""
        for _, uid, message in (e for e in heard(root) if e[0] == "refused" and e[1] != "u6"):
            rival = not self.alone and "is in use" in message
            assert rival or any(word in message for word in REASONS), (uid, message)

    def _told_so_far(self, root: Path) -> Story:
        return Story(root, rebooted=(root / BOOT).exists())

    def _run(self, story: Story, work: Callable[[Broker], Awaitable[None]]) -> None:
        self._story = story

        async def live() -> None:
            async with self._started(story) as broker:
                await work(broker)

        anyio.run(live)

    @asynccontextmanager
    async def _started(self, story: Story) -> AsyncIterator[Broker]:
        """Start a broker; where that fails, end, for whoever runs it to start it again."""
        async with AsyncExitStack() as stack:
            for again in (True, False):
                try:
                    broker = await stack.enter_async_context(story.world.broker())
                    await broker.restore()
                    break
                except (HardpointError, OSError) as error:
                    if self.alone or not again:
                        raise SystemExit(str(error)) from error
                    story.on_refusal()  # nothing is begun while another opens the ledger
            yield broker


class Claims(BrokerRun):
    """Claims of every sort come and go, and nodes are renumbered meanwhile."""

    story: tuple[str, ...] = (
        *("+u1", "+u2", "+u4", "refused", "renumber", "+u5", "-u1", "attend", "+u3", "-u4"),
        *("attend", "-u2", "-u5", "attend", "+u6"),
    )


class Quarantine(BrokerRun):
    """A driver cannot undo; the device is withheld until it can, or an operator says so."""

    before = ("+u1", "+u2")
    story: tuple[str, ...] = (
        "jam",
        "-u1",
        "unjam",
        "attend",
        "attend",
        "+u3",
        "-u3",
        "attend",
        "jam",
        "-u2",
        "unjam",
        "keep_listings",
        "attend",
        "attend",
    )


class Cleared(BrokerRun):
    """An operator clears a quarantine."""

    before = ("+u1", "jam", "-u1", "unjam")
    story: tuple[str, ...] = ("clear", "+u3", "keep_listings")


class FirstStart(BrokerRun):
    """A node that never had an agent."""

    story: tuple[str, ...] = ("keep_listings", "+u2")

    def begin(self, root: Path) -> None:
        """Nothing of ours is there."""
        Story(root)


class Damaged(BrokerRun):
    """The ledger was damaged while claims were held, and is found again in the CDI files."""

    may_lose = True
    before = ("+u1", "+u4")
    story: tuple[str, ...] = ("+u2", "-u1", "attend", "+u3", "renumber", "-u4", "attend")

    def begin(self, root: Path) -> None:
        super().begin(root)
        self.spoil(root / "state")

    def spoil(self, state: Path) -> None:
        path = state / "ledger.db"
        path.write_bytes(path.read_bytes()[:100] + b"\xff" * 5000)

    def _check_left(self, root: Path, left: set[str]) -> None:
        assert len([name for name in left if not name.endswith("-wal")]) == 1, left


class Lost(Damaged):
    """The ledger is gone."""

    def spoil(self, state: Path) -> None:
        for path in state.iterdir():
            path.unlink()

    def _check_left(self, root: Path, left: set[str]) -> None:
        BrokerRun._check_left(self, root, left)


OLD: tuple[str, ...] = ("+u1", "renumber", "-u4", "attend", "+u5", "-u1", "attend")


class Beside(BrokerRun):
    """Two agents in a rolling update: the old one is stopped at each step of its work.

    The new one begins and ends claims meanwhile, and has ended when the old one goes on.
    """

    alone = False
    before = ("+u2", "+u4")
    story = OLD
    newcomers = ("+u7", "-u2", "contend")
    until = len(newcomers)
    """How much of that is over when the old one goes on, unless it has to before."""

    def beside(self, root: Path) -> None:
        self._newcomer(root)

    def _newcomer(self, root: Path) -> None:
        story = self._told_so_far(root)
        story.beside_another()

        async def work(broker: Broker) -> None:
            for number, what in enumerate(self.newcomers):
                if number >= self.until:
                    resume(root)
                await story.happen(broker, what)

        self._run(story, work)


class BesideLonger(Beside):
    """The new one outlives the old one, which goes on while the new one works."""

    until = 1


class Newcomer(Beside):
    """The new one is stopped at each step, while the old one does all its work."""

    story = ()

    def work(self, root: Path) -> None:
        self._newcomer(root)

    def beside(self, root: Path) -> None:
        story = self._told_so_far(root)
        story.beside_another()

        async def work(broker: Broker) -> None:
            for what in OLD:
                await story.happen(broker, what)

        self._run(story, work)
