"""A story of grants, told to a real agent step by step, and what must be true after any of it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from grant_truth import MAJOR, MINORS, Played, Radios, Truth

from hardpoint._core import agent as agent_module
from hardpoint._core.agent import HardpointAgent
from hardpoint._core.claims import upkeep
from hardpoint._core.grants import granting, releases, sources
from hardpoint._core.grants.lost import MARKER
from hardpoint._core.ledger import schema
from hardpoint._core.ledger.grantrows import Book
from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint.cdi_files import CdiDirectory
from hardpoint.errors import HardpointError, HoldDenied, LedgerUnwritable
from hardpoint.model import Allotment, Claim, ClaimKey, NodeType
from hardpoint.node import NodeInfo
from hardpoint.recorded import RecordedNode
from hardpoint.settings import AgentSettings, PathSettings
from hardpoint.testing.durable import mended, resume, told

DRIVER = "hardpoint.dev"
SENTINEL = "device-withheld"
QUICK = 0.05
"""Seconds between two looks, of which nobody here waits five."""
PATIENT = 20.0
MENDED_AFTER = 0.6
"""Seconds after which somebody makes room on a full disk."""


FASTER: tuple[tuple[Any, str, float], ...] = (
    (schema, "_BUSY", 0.3),
    (schema, "_OPENING", 0.3),
    *((module, "EVERY", QUICK) for module in (granting, releases)),
    (sources, "CONFIRM_AFTER", 4 * QUICK),
    (agent_module, "_AGAIN", QUICK),
    (upkeep, "_PAUSE", QUICK),
)
"""What nobody here waits so long for: for a process of its own, or a test that takes it back."""


def hurry() -> None:
    for module, name, value in FASTER:
        setattr(module, name, value)


class Site:
    """A node, its agent, and whoever tells the story to it."""

    def __init__(self, root: Path) -> None:
        self.root, self.played = root, Played(root)
        self.paths = PathSettings(state=root / "state", cdi=root / "cdi", kubelet=root / "kubelet")
        self.agent: HardpointAgent
        self.on_trouble: Callable[[], None] = lambda: mended(root)

    # -- the agent --------------------------------------------------------------------------------

    def plugins(self) -> list[tuple[Plugin, Mapping[str, Any]]]:
        return [
            (Plugin("driver", "radios", loaded=Radios), {}),
            (Plugin("policy", "source", loaded=self.played.source()), {}),
            (Plugin("policy", "evident", loaded=self.played.evidence()), {}),
        ]

    def node(self) -> RecordedNode:
        machine = self.root / "machine"
        if not machine.exists():
            (machine / "sys/bus").mkdir(parents=True)
            boot = machine / "proc/sys/kernel/random/boot_id"
            boot.parent.mkdir(parents=True)
            boot.write_text("6b1d3a52-0000-4000-8000-00000000b007")
        nodes = {
            f"/dev/{n}": NodeInfo(NodeType.CHAR, MAJOR, m, 0o660, 0) for n, m in MINORS.items()
        }
        return RecordedNode(machine, nodes, name="node-1")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run an agent; where it cannot start or go on, end for whoever runs it to start again."""
        node, plugins = self.node(), self.plugins()
        started = Plugins([plugin for plugin, _ in plugins])
        for plugin, section in plugins:
            started.start(plugin, node, section)
            assert plugin.state == "running", plugin.reason
        settings = AgentSettings(paths=self.paths, node_name="node-1")
        self.agent = HardpointAgent(settings, node, instance="", plugins=started, events=False)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.agent.run)
                with anyio.fail_after(PATIENT):
                    await self.agent.started.wait()
                yield
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            _, others = group.split((LedgerUnwritable, OSError))
            if others is not None:
                raise
            raise SystemExit(str(group.exceptions)) from group

    async def book(self) -> Book:
        return await self.agent.policies.granting.read()

    # -- the story --------------------------------------------------------------------------------

    def truth(self) -> Truth:
        truth = Truth.of(self.root)
        assert not truth.wrong, truth.wrong
        return truth

    async def tell(self, story: tuple[str, ...]) -> None:
        """Let things happen: a word is a method, and what stands after it its arguments."""
        for number in range(self.truth().done + 1, len(story)):
            word, *arguments = story[number].split()
            happen: Callable[..., Awaitable[None]] = getattr(self, word)
            await happen(*arguments)
            told(self.root, "done", number)

    async def until(self, what: str, true: Callable[[], Awaitable[Any] | Any]) -> None:
        """Wait for the agent's own work; what keeps failing it is mended after a while."""
        began = anyio.current_time()
        while True:
            found = true()
            if not isinstance(found, bool):
                found = await found
            self.check()
            if found:
                return
            passed = anyio.current_time() - began
            if passed > MENDED_AFTER:
                self.on_trouble()
            assert passed < PATIENT, f"{what}: {self.said()}"
            await anyio.sleep(QUICK / 2)

    def said(self) -> str:
        agent = self.agent
        users = agent.policies.releases.users
        return f"{self.truth()} {agent.policies.granting.book} {users} {agent.board.entries}"

    def check(self) -> None:
        """Look at what is always so: nothing is offered that another allocation's pod has."""
        truth = self.truth()
        for one in self.agent.offer.devices:
            for pod, (allocation, device) in truth.pods.items():
                assert device != one.name or allocation == one.allocation, (pod, one)
        if self.agent.writing():
            return
        assert not self.agent.policies.granting._wrote

    def offered(self) -> dict[str, str]:
        return {one.name: one.allocation for one in self.agent.offer.devices}

    # -- grants -----------------------------------------------------------------------------------

    async def grant(self, *stated: str) -> None:
        """State these and no others, ``a:radio0``; wait until they are offered, or refused."""
        self.state(dict(_named(one) for one in stated if not one.startswith("!")))
        refused = dict(_named(one[1:]) for one in stated if one.startswith("!"))
        grants = self.truth().grants | refused
        told(self.root, "grants", grants)
        wanted = {d: a for a, devices in grants.items() if a not in refused for d in devices}

        def so() -> bool:
            reported = self.truth().reported
            said = all(reported.get(one, "overlap") == "overlap" for one in refused)
            heard = refused.keys() <= reported.keys() and said
            return self.offered() == wanted and (heard or self.truth().deaf)

        await self.until(f"{wanted} is offered", so)

    def state(self, grants: dict[str, list[str]]) -> None:
        told(self.root, "grants", grants)

    async def use(self, *users: str) -> None:
        told(self.root, "users", list(users))

    async def deaf(self, word: str) -> None:
        told(self.root, "deaf", word == "yes")

    async def pending(self, *allocations: str) -> None:
        """Wait until these and no others are being released."""
        wanted = sorted("" if one == "drain" else one for one in allocations)
        await self.until(
            f"{wanted} are pending",
            lambda: sorted(one.allocation for one in self.agent.releases()) == wanted,
        )

    async def stays(self, allocation: str) -> None:
        """Look again and again: it is not released, whoever is asked."""
        for _ in range(3):
            try:
                await self.agent.policies.releases.look()
            except (HardpointError, OSError):
                self.on_trouble()
        assert self.truth().reported.get(allocation) != "released"
        assert allocation in await self.known()

    async def known(self) -> set[str]:
        """Return the allocations that the ledger knows, as grants or releases."""
        while True:
            try:
                book = await self.book()
            except HardpointError:
                self.on_trouble()
                continue
            granted = {one.grant.allocation for one in book.grants}
            return granted | {one.grant.allocation for one in book.releases}

    async def over(self, allocation: str) -> None:
        """Wait until it is free, and its source does not hear of it."""

        async def so() -> bool:
            found = (await self.book()).releases
            return any(one.over and one.grant.allocation == allocation for one in found)

        await self.until(f"{allocation} is over", so)

    async def released(self, *allocations: str) -> None:
        """Wait until their source was told, and they are forgotten."""

        async def so() -> bool:
            reported = self.truth().reported
            heard = all(reported.get(one) == "released" for one in allocations)
            return heard and not {*allocations} & await self.known()

        await self.until(f"{allocations} are released", so)

    async def asked(self) -> None:
        """Wait until the marker of lost releases tells that the source was asked since."""
        marker = self.paths.state / MARKER
        await self.until("the source was asked", lambda: "policy/source" in marker.read_text())

    async def waits(self, allocation: str) -> None:
        """Look again and again: it is not in force, and the marker stays."""
        for _ in range(3):
            try:
                await self.agent.policies.granting.settle()
                await self.agent.policies.releases.look()
            except (HardpointError, OSError):
                self.on_trouble()
        assert allocation not in self.offered().values()
        assert (self.paths.state / MARKER).exists()

    async def unmarked(self) -> None:
        marker = self.paths.state / MARKER
        await self.until("the marker is gone", lambda: not marker.exists())

    # -- pods -------------------------------------------------------------------------------------

    async def run(self, pod: str, allocation: str, device: str) -> None:
        """Start a pod, as a kubelet that calls until it has an answer."""
        key, read = claim_of(pod, allocation, device)
        with anyio.fail_after(PATIENT):
            while True:
                try:
                    await self.agent.prepare(key, read)
                except HardpointError as error:
                    told(self.root, "refused", str(error))
                    self.on_trouble()
                    await anyio.sleep(QUICK)
                else:
                    break
        told(self.root, "runs", pod, allocation, device)

    async def denied(self, pod: str, allocation: str, device: str) -> None:
        """A pod gets nothing, and will not by trying again."""
        key, read = claim_of(pod, allocation, device)
        with anyio.fail_after(PATIENT):
            while True:
                try:
                    await self.agent.prepare(key, read)
                except HoldDenied:
                    return
                except HardpointError:
                    self.on_trouble()
                    await anyio.sleep(QUICK)
                else:
                    raise AssertionError(f"{pod} got {device} under {allocation}")

    async def end(self, pod: str) -> None:
        told(self.root, "over", pod)
        with anyio.fail_after(PATIENT):
            while True:
                try:
                    await self.agent.unprepare(claim_of(pod, "", "")[0])
                except HardpointError as error:
                    told(self.root, "refused", str(error))
                    self.on_trouble()
                    await anyio.sleep(QUICK)
                else:
                    return

    async def cut(self, pod: str) -> None:
        """Wait until no container of a pod can be started with its device."""
        await self.until(f"{pod} is cut off", lambda: SENTINEL in self.file(pod))

    def file(self, pod: str) -> str:
        try:
            return CdiDirectory(self.paths.cdi).file(DRIVER, pod).read_text()
        except FileNotFoundError:
            return ""

    # -- a node that is handed back ---------------------------------------------------------------

    async def drain(self) -> None:
        await self._insist(lambda: self.agent.withdraw("maintenance"))
        told(self.root, "drained", True)
        await self.until("nothing is offered", lambda: not self.agent.offer.devices)

    async def undrain(self) -> None:
        told(self.root, "drained", False)
        await self._insist(self.agent.resume)

    async def _insist(self, act: Callable[[], Awaitable[None]]) -> None:
        with anyio.fail_after(PATIENT):
            while True:
                try:
                    await act()
                except HardpointError:
                    self.on_trouble()
                    await anyio.sleep(QUICK)
                else:
                    return

    # -- what must be true ------------------------------------------------------------------------

    async def check_known(self, lost: tuple[str, ...] = ()) -> None:
        """No grant that ended is forgotten in silence; a drained node stays so."""
        truth, known = self.truth(), await self.known()
        assert {*truth.ended()} - {*lost} <= known, f"{truth.ended()} of {known}"
        if truth.drained:
            assert self.agent.withdrawn
            assert not self.agent.offer.devices

    async def finish(self, lost: tuple[str, ...] = ()) -> None:
        """End everything but one grant: nothing of it is left anywhere, and all can be had."""
        await self.undrain()
        await self.deaf("no")
        await self.use()
        for pod in ("u1", "u2", "u3"):
            await self.end(pod)
        await self.grant("last:radio0,radio1,radio2")
        await self.released(*(one for one in self.truth().ended() if one not in lost))
        await self.until("nothing is pending", lambda: not self.agent.releases())
        await self.run("u9", "last", "radio0")
        await self.end("u9")
        assert self.agent.holds() == ()
        assert not (self.paths.state / MARKER).exists()
        await self.until("no file is left", self._is_clean)
        types = {one.type for one in self.agent.conditions()}
        assert not types, types

    def _is_clean(self) -> bool:
        return not [path.name for path in self.paths.cdi.glob("*")]


def reboot(root: Path) -> None:
    """The CDI directory is on tmpfs, and processes are gone; the kubelet starts pods anew."""
    for path in (root / "cdi").glob("*"):
        path.unlink()
    boot = root / "machine/proc/sys/kernel/random/boot_id"
    boot.write_text("6b1d3a52-0000-4000-8000-00000000b008")


def beside_another(site: Site) -> None:
    """Let the other of two agents go on when it is in the way."""
    site.on_trouble = lambda: resume(site.root)


def _named(stated: str) -> tuple[str, list[str]]:
    allocation, _, devices = re.sub(r"\s", "", stated).partition(":")
    return allocation, devices.split(",")


def claim_of(
    pod: str, allocation: str, device: str
) -> tuple[ClaimKey, Callable[[], Awaitable[Claim]]]:
    """Return the claim of a pod, and how it is read."""
    key = ClaimKey(pod, "ns", pod, DRIVER)
    one = Allotment(request="r", device=device or "none", pool="node-1", allocation=allocation)

    async def read() -> Claim:
        return Claim(key=key, allotments=(one,))

    return key, read
