"""Lives of grants, to be walked with a fault at each of their steps."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from grant_story import Site, beside_another, hurry, reboot

from hardpoint.testing.durable import DurableRun, resume


class GrantRun(DurableRun):
    """Tells a story to an agent; whoever is killed is started again and hears the rest of it."""

    watch = ("state", "cdi")
    patience = 90.0
    restarts = 3
    site: type[Site] = Site
    before: tuple[str, ...] = ()
    """What has happened before anything fails."""
    story: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    """Allocations whose release may be forgotten: it was lost with the ledger."""

    def begin(self, root: Path) -> None:
        site = self.site(root)
        if self.before:
            self.run(site, lambda: site.tell(self.before))

    @property
    def whole(self) -> tuple[str, ...]:
        return (*self.before, *self.story)

    def work(self, root: Path) -> None:
        site = self.site(root)
        self.run(site, lambda: site.tell(self.whole))

    def reboot(self, root: Path) -> None:
        reboot(root)

    def look(self, root: Path) -> None:
        site = self.site(root)

        async def check() -> None:
            await site.check_known(self.lost)
            await site.tell(self.whole)
            await site.finish(self.lost)

        self.run(site, check)
        left = {path.name for path in (root / "state").iterdir()}
        assert not [name for name in left if "tmp" in name or ".new" in name], left
        self.check_left(left)

    def check_left(self, left: set[str]) -> None:
        assert not [name for name in left if "damaged" in name], left

    def run(self, site: Site, work: Callable[[], Awaitable[None]]) -> None:
        hurry()
        logging.getLogger("hardpoint").addHandler(logging.FileHandler(site.root / "log"))

        async def live() -> None:
            async with site.running():
                await work()

        anyio.run(live)


GRANTED = ("grant a:radio0 b:radio1", "run u1 a radio0", "use a")
HELD = (
    *("grant b:radio1", "pending a", "cut u1", "denied u2 a radio0"),
    *("grant b:radio1 !c:radio0", "stays a"),
)
FREE = ("end u1", "stays a", "use", "released a", "grant b:radio1 c:radio0", "run u2 c radio0")


class Ends(GrantRun):
    """A grant appears, is held, and ends under its pod; another gets the device afterwards."""

    story = (*GRANTED, *HELD, *FREE)


class ComesBack(GrantRun):
    """A grant is stated again before its release was over, and once more before it was told."""

    before = GRANTED
    story = (
        *("grant b:radio1", "pending a", "grant a:radio0 b:radio1", "pending"),
        *("run u1 a radio0", "grant b:radio1", "pending a", "end u1", "deaf yes", "use"),
        *("over a", "grant a:radio0 b:radio1", "pending", "deaf no", "stays a"),
        *("grant a:radio0,radio2 b:radio1", "grant a:radio2 b:radio1", "pending"),
    )


class Drained(GrantRun):
    """A node is handed back while a pod has a device, and taken again."""

    before = ("grant a:radio0 b:radio1", "run u1 a radio0", "use drain")
    story = (
        *("drain", "pending drain", "denied u2 b radio1", "cut u1", "end u1"),
        *("pending drain", "use", "pending", "undrain", "grant a:radio0 b:radio1"),
        *("run u2 b radio1",),
    )


class Damaged(GrantRun):
    """The ledger is damaged while a release is pending."""

    before = (*GRANTED, "run u2 b radio1", "use a lost", "grant b:radio1", "pending a")
    story = (
        *("grant b:radio1", "asked", "grant b:radio1 !c:radio0", "end u1", "waits c", "use"),
        *("grant b:radio1 c:radio0", "unmarked", "run u3 c radio0"),
    )
    lost = ("a",)

    def begin(self, root: Path) -> None:
        super().begin(root)
        self.spoil(root / "state")

    def spoil(self, state: Path) -> None:
        path = state / "ledger.db"
        path.write_bytes(path.read_bytes()[:100] + b"\xff" * 5000)

    def check_left(self, left: set[str]) -> None:
        assert len([n for n in left if "damaged" in n and not n.endswith("-wal")]) == 1, left


class Gone(Damaged):
    """The ledger is removed."""

    def spoil(self, state: Path) -> None:
        for path in state.glob("ledger.db*"):
            path.unlink()

    def check_left(self, left: set[str]) -> None:
        GrantRun.check_left(self, left)


class Beside(GrantRun):
    """Two agents in a rolling update: the old one is stopped at each step, and goes on then.

    The new one writes nothing until the old one has ended; what that leaves it finishes.
    """

    before = GRANTED
    story = ("grant b:radio1", "pending a", "cut u1", "stays a")
    rest = (*HELD, *FREE)

    @property
    def whole(self) -> tuple[str, ...]:
        return (*self.before, *self.story)

    def work(self, root: Path) -> None:
        site = self.site(root)
        beside_another(site)
        self.run(site, lambda: site.tell(self.whole))

    def beside(self, root: Path) -> None:
        site = self.site(root)
        beside_another(site)

        async def take_over() -> None:
            resume(root)
            await site.until("the other has ended", site.agent.writing)
            await site.tell((*self.whole, *self.rest))

        with anyio.from_thread.start_blocking_portal() as portal:
            portal.start_task_soon(_resume_soon, root)
            while True:
                try:
                    self.run(site, take_over)
                except SystemExit:  # the one that is stopped has the ledger locked
                    continue
                return

    def look(self, root: Path) -> None:
        site = self.site(root)

        async def check() -> None:
            await site.tell((*self.whole, *self.rest))
            await site.finish()

        self.run(site, check)


async def _resume_soon(root: Path) -> None:
    """Let the one that is stopped go on, also where its being stopped keeps us from starting."""
    await anyio.sleep(1.5)
    resume(root)
