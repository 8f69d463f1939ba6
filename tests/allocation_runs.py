"""Lives of a broker that holds devices for pods, to be walked with a fault at each step.

The kubelet remembers what it was answered (``told``), also when the broker's process was killed in
between: a pod whose ``Allocate`` did not come back is no pod.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
from broker_world import World, claim, prepare
from pod_world import CARD, Pods, Watched, assignment, watched

from hardpoint._core.claims.broker import Broker
from hardpoint._core.ledger import schema
from hardpoint.allocation import Assigned, Assignment
from hardpoint.errors import HardpointError, HoldConflict, LedgerUnwritable
from hardpoint.kubelet.podsource import Checkpoint
from hardpoint.model import HoldState
from hardpoint.testing.cdi import CdiRegistry
from hardpoint.testing.durable import DurableRun, heard, mended, resume, told

MINORS = {"card-a": 1, "card-b": 2, "card-c": 3}
BOOT = "boot"
PODS: dict[str, tuple[str, ...]] = {
    "one": ("card-a", "card-b"),
    "two": ("card-c",),
    "three": ("card-a",),
}


def wanted(pod: str) -> list[Assignment]:
    """What a pod's container is given; the third goes by another resource."""
    resource = "acme.dev/stick" if pod == "three" else CARD
    return [replace(assignment(device), resource=resource) for device in PODS[pod]]


class Kubelet:
    """A kubelet that is told a story, and who it is told to."""

    def __init__(self, root: Path) -> None:
        schema._BUSY = schema._OPENING = 0.3
        self.root, self.world, self.pods = root, World(root), Pods()
        self.world.patience = 0.3
        self.world.cards.releases = True
        if (root / BOOT).exists():
            self.world.node._boot = "boot-2"
        self.pods.has("bystander")
        for name, minor in MINORS.items():
            self.world.card(name, minor)
        self.on_refusal: Callable[[], None] = lambda: mended(root)
        self.tries, self.pause = 5, 0.0

    def beside_another(self) -> None:
        """Be one of two agents: let the other go on when it is in the way, and wait for it."""
        self.tries, self.pause = 200, 0.05
        self.on_refusal = lambda: resume(self.root)

    # -- what it knows ----------------------------------------------------------------------------

    def running(self) -> dict[str, list[list[str]]]:
        """Return the pods that run, with the names that their devices go by."""
        found: dict[str, list[list[str]]] = {}
        for word, pod, *rest in heard(self.root):
            if word == "runs":
                taken = {d for other in found.keys() - {pod} for d in PODS[other]}
                assert not taken & {*PODS[pod]}, f"{pod} was given what {[*found]} have"
                found[pod] = rest[0]
            elif word == "over":
                found.pop(pod, None)
        return found

    def list(self) -> None:
        """List the pods that run, and write down what they have."""
        self.pods.listed = {"bystander": self.pods.listed["bystander"]}
        for pod in self.running():
            self.pods.has(pod, *PODS[pod], resource=wanted(pod)[0].resource)
        self.write_down()

    def write_down(self) -> None:
        """Write the checkpoint: that a pod is over is in it at once, whatever was listed last."""
        had = [(one.resource, one.id) for pod in self.running() for one in wanted(pod)]
        self.pods.written = Checkpoint(frozenset(had), (1, 1))

    def next(self) -> int:
        """Return the first happening that is not known to be over."""
        return max((entry[1] for entry in heard(self.root) if entry[0] == "done"), default=-1) + 1

    # -- what happens -----------------------------------------------------------------------------

    async def tell(self, one: Watched, story: tuple[str, ...]) -> None:
        """Let things happen: ``+one`` starts a pod, ``-one`` ends it; words are methods."""
        for number in range(self.next(), len(story)):
            what = story[number]
            if what[0] == "+":
                await self.start(one, what[1:])
            elif what[0] == "-":
                await self.end(one, what[1:])
            else:
                await getattr(self, what)(one)
            told(self.root, "done", number)

    async def start(self, one: Watched, pod: str) -> None:
        """Start a pod; what its init container was given stands in the checkpoint already."""
        self.write_down()
        got = await self.insist(one, lambda: one.allocate(*wanted(pod)))
        told(self.root, "runs", pod, names(got))

    async def end(self, one: Watched, pod: str) -> None:
        told(self.root, "over", pod)
        for _ in range(self.tries):
            await self.look(one)
            held = {hold.claim.uid for hold in await self.held(one)}
            if not held & {each.key.uid for each in wanted(pod)}:
                return
            self.on_refusal()
            await anyio.sleep(self.pause)

    async def held(self, one: Watched) -> Any:
        return [record.hold() for record in await one.broker._ledger.read()]

    async def again(self, one: Watched) -> None:
        """Ask again for what the first pod has: its init container had it before."""
        await self.start(one, "one")

    async def replace(self, one: Watched) -> None:
        """End the first pod, and start another in its place before anybody has looked."""
        told(self.root, "over", "one")
        self.pods.listed.pop("one", None)
        await self.start(one, "one")

    async def refused(self, one: Watched) -> None:
        """A pod that wants what another has, beside what is free, gets nothing of it."""
        greedy = [assignment("card-c"), replace(assignment("card-a"), resource="acme.dev/stick")]
        try:
            await one.allocate(*greedy)
        except HoldConflict:
            return
        except HardpointError:
            self.on_refusal()
        else:
            raise AssertionError("card-a was handed out twice")

    async def renumber(self, one: Watched) -> None:
        for name, minor in MINORS.items():
            self.world.card(name, minor + 10)
        await one.broker.refresh(self.world.offer())

    async def look(self, one: Watched) -> None:
        """Look until all that no pod has could be ended, and what waits is done."""
        self.list()
        for _ in range(8):
            try:
                await one.look()
            except HardpointError:
                self.on_refusal()
            self.world.now += 5000
            await one.broker.attend()

    async def insist(
        self, one: Watched, call: Callable[[], Awaitable[tuple[Assigned, ...]]]
    ) -> tuple[Assigned, ...]:
        """Start a pod, and another in its place where it fails, as its controller does."""
        for _ in range(self.tries):
            try:
                return await call()
            except HardpointError as error:
                told(self.root, "refused", "", str(error))
                self.on_refusal()
                await self.look(one)
                await anyio.sleep(self.pause)
        return await call()

    # -- what must be true ------------------------------------------------------------------------

    async def check(self, one: Watched) -> None:
        """Every pod that runs has what it was given, and may be started again with it."""
        await self.look(one)
        for pod, names_before in self.running().items():
            held = {(a.resource, a.id) for a in one.shown() if a.state is HoldState.HELD}
            assert {(a.resource, a.id) for a in wanted(pod)} <= held, (pod, held)
            runtime = CdiRegistry(self.world.cdi, info=self.world.node.info)
            for each in names_before:
                assert runtime.inject(each).nodes, each
            assert names(await one.allocate(*wanted(pod))) == names_before
        hardware = {path.name for path in (self.root / "hw").iterdir()}
        assert hardware == {d for pod in self.running() for d in PODS[pod]}, hardware

    async def end_all(self, one: Watched) -> None:
        """End every pod: then every device can be had by a claim, and nothing is left."""
        for pod in self.running():
            told(self.root, "over", pod)
        await self.look(one)
        await self.look(one)
        assert one.broker.holds() == (), one.broker.holds()
        assert self.world.files() == []
        await prepare(one.broker, claim("u1", *MINORS))
        await one.broker.unprepare(claim("u1").key)


class AllocationRun(DurableRun):
    """Pods come and go; whoever is killed is started again and hears the rest."""

    watch = ("state", "cdi", "hw")
    restarts = 2
    story: tuple[str, ...] = (
        "+one",
        "again",
        "refused",
        "+two",
        "replace",
        "-one",
        "+three",
        "renumber",
    )

    def begin(self, root: Path) -> None:
        Kubelet(root)
        (root / "told").touch()

    def work(self, root: Path) -> None:
        kubelet = Kubelet(root)
        self.run(kubelet, lambda one: kubelet.tell(one, self.story))

    def reboot(self, root: Path) -> None:
        for name in ("cdi", "hw"):
            shutil.rmtree(root / name, ignore_errors=True)
        (root / BOOT).touch()

    def look(self, root: Path) -> None:
        kubelet = Kubelet(root)

        async def check(one: Watched) -> None:
            await kubelet.check(one)
            await kubelet.tell(one, self.story)
            await kubelet.check(one)
            await kubelet.end_all(one)

        self.run(kubelet, check)

    def run(self, kubelet: Kubelet, work: Callable[[Watched], Awaitable[None]]) -> None:
        async def live() -> None:
            async with self._started(kubelet) as broker:
                await work(watched(kubelet.world, broker, kubelet.pods))

        anyio.run(live)

    @asynccontextmanager
    async def _started(self, kubelet: Kubelet) -> AsyncIterator[Broker]:
        """Start a broker; where that fails, end, for whoever runs it to start it again."""
        async with AsyncExitStack() as stack:
            try:
                broker = await self._opened(stack, kubelet)
                kubelet.list()
                await broker.restore()
            except (HardpointError, OSError) as error:
                raise SystemExit(str(error)) from error
            yield broker

    async def _opened(self, stack: AsyncExitStack, kubelet: Kubelet) -> Broker:
        try:
            return await stack.enter_async_context(kubelet.world.broker())
        except LedgerUnwritable:  # nothing is begun while another opens the ledger
            kubelet.on_refusal()
            return await stack.enter_async_context(kubelet.world.broker())


class BesideRun(AllocationRun):
    """Two agents overlap: one is stopped at each step, the other answers the kubelet meanwhile."""

    story = ("+two", "-two", "+one", "again")

    def work(self, root: Path) -> None:
        kubelet = Kubelet(root)
        kubelet.beside_another()
        self.run(kubelet, lambda one: kubelet.tell(one, self.story))

    def beside(self, root: Path) -> None:
        kubelet = Kubelet(root)
        kubelet.beside_another()
        kubelet.world.writing = lambda: False

        async def meanwhile(one: Watched) -> None:
            await self.contend(kubelet, one)

        self.run(kubelet, meanwhile)

    async def contend(self, kubelet: Kubelet, one: Watched) -> None:
        """Ask for what the other may have: whoever gets it, it is in turns (``running``)."""
        try:
            got = await one.allocate(*wanted("three"))
        except HardpointError:
            return
        told(kubelet.root, "runs", "three", names(got))
        told(kubelet.root, "over", "three")


def names(got: tuple[Assigned, ...]) -> list[list[str]]:
    """Return what the kubelet was answered, as JSON."""
    return [list(one.cdi_ids) for one in got]
