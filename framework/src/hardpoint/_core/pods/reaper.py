"""Who holds what they must not, and when they are reaped.

A pod that has a device of a release, or one outside every grant, has 30 seconds to let go of it.
Then the reaper's policy is asked to delete it, and again each minute that it holds on. Nothing is
decided after a read that failed: not of the grants, not of the kubelet's pods, not of the claims.
The seconds count from when this process saw it first: those of the next one, or of the other of two
agents, begin again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import anyio

from hardpoint._core.pods.holding import Holding, Known, Overstay, PodName, PodsUnread, View
from hardpoint._core.pods.revoked import ORPHAN
from hardpoint._core.pods.suspects import Suspect
from hardpoint.errors import HardpointError, Refuse
from hardpoint.grants import HoldingPod, Reaped, ReapResult, Release
from hardpoint.model import Event

_log = logging.getLogger("hardpoint.reaper")

SOURCE = "reaper"
"""What its faults go by."""

_COST = "pods that hold what they must not are not deleted"
_EVERY, _EVERY_HELD = 10.0, 5.0
"""Seconds between two looks, and while somebody holds what they must not."""
_SILENT = 10.0
"""Seconds of a kubelet that does not answer until that is said of the node: a policy that watches
the kubelet says it sooner, in its own words."""
_LATER = 10.0
"""Seconds after which a policy is asked again that could not do it now."""
_AT_ONCE = 4
"""Pods that are being deleted at the same time."""


class Hooks(Protocol):
    """The policies: the relay."""

    async def gather(self, hook: str, subject: str = "", **arguments: Any) -> dict[str, Any]:
        """Ask all."""

    async def first(self, hook: str, subject: str, **arguments: Any) -> Any:
        """Ask one after the other."""


class Board(Protocol):
    """Where faults stand."""

    def record(self, source: str, message: str, cost: str = "") -> None:
        """Put a fault on it."""

    def clear(self, source: str) -> None:
        """Take a fault off it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """When a pod is deleted; in seconds."""

    first_after: float = 30.0
    """From when it was first seen with what it must not have."""
    again_after: float = 60.0
    """From one attempt to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the reaper needs of the agent."""

    known: Known
    hooks: Hooks
    board: Board
    agent: Any
    """What policies are handed as ``agent``."""
    active: Callable[[], bool]
    """Whether there may be anything to reap: a source governs something, or a release is not
    over."""
    ask: Callable[[], Awaitable[bool]]
    """Asks every source of grants anew, and writes down what they say; False where one failed."""
    writing: Callable[[], bool]
    report: Callable[[Event], None]
    left: Callable[[], None] = lambda: None
    """Called when a pod is seen to hold nothing any more: a release may be over."""
    silent: Callable[[str], None] = lambda _: None
    """Called with why the kubelet does not say who has what, while it does not; else with ""."""
    timings: Callable[[], Timings] = Timings


class Reaper:
    """Looks at who holds what they must not, and has them deleted; one look at a time."""

    def __init__(
        self,
        around: Surroundings,
        *,
        node: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._around, self._clock, self._wall = around, clock, wall
        self._holding = Holding(around.known, node=node, clock=clock)
        self._suspects: dict[PodName, Suspect] = {}
        self._orphans: dict[str, Release] = {}
        self._wake: anyio.Event | None = None
        self._silent_since: float | None = None
        self._looked = -math.inf
        """When the last look began. About who was due then and is so still nothing can be done."""

    # -- what others ask --------------------------------------------------------------------------

    def orphans(self) -> tuple[Release, ...]:
        """Return a release for each thing that is had outside every grant."""
        return tuple(self._orphans[id_] for id_ in sorted(self._orphans))

    def wake(self) -> None:
        """Look soon: a release has begun, or pods have changed."""
        if self._wake is not None:
            self._wake.set()

    # -- looking ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look for ever."""
        self._wake = anyio.Event()
        while True:
            with anyio.move_on_after(self._pause()):
                await self._wake.wait()
            self._wake = anyio.Event()  # before the look: what happens during it wants another
            await self.sweep()
            await anyio.sleep(1)

    def _pause(self) -> float:
        """Return the seconds until somebody is due; who was due at the last look waits like all."""
        now, every = self._clock(), _EVERY_HELD if self._suspects else _EVERY
        due = [one.due for one in self._suspects.values() if one.due > self._looked]
        return max(0.0, min([every, *(one - now for one in due)]))

    async def sweep(self) -> None:
        """Look once, and do what is due. What fails is on the fault board."""
        self._looked = self._clock()
        if not self._around.writing() or not self._around.active():
            self._forget()
            return
        if not self._around.known.known():
            return  # that grants cannot be read is a condition of the node already
        try:
            view = await self._holding.look()
        except HardpointError as error:
            self._around.board.record(SOURCE, str(error), cost=_COST)
            self._say_silent(str(error) if isinstance(error, PodsUnread) else "")
            return
        self._say_silent("")
        if view.unread:
            self._around.board.record(SOURCE, view.unread, cost=_COST)
        else:
            self._around.board.clear(SOURCE)
        view = self._see(view)
        await self._reap(view)

    def _forget(self) -> None:
        for name in list(self._suspects):
            self._acquit(name)
        self._orphans.clear()
        self._around.board.clear(SOURCE)
        self._say_silent("")

    def _acquit(self, name: PodName) -> None:
        del self._suspects[name]
        self._around.board.clear(_source(name))

    def _say_silent(self, why: str) -> None:
        """Say of the node that the kubelet does not answer, once it has not for a while."""
        now = self._clock()
        if not why:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        lasts = self._silent_since is not None and now - self._silent_since >= _SILENT
        self._around.silent(why if lasts else "")

    def _see(self, view: View) -> View:
        """Note who is seen first, and who holds nothing any more; date the orphans."""
        now = self._clock()
        for name, overstay in view.pods.items():
            known = self._suspects.get(name)
            if known is None or known.is_another(overstay):
                due = now + self._around.timings().first_after
                self._suspects[name] = Suspect(now, self._wall(), due)
                self._say("pod-overstays", name, overstay, "it has what it must not have any more")
            self._suspects[name].see(overstay)
        if not view.unread:
            gone = self._suspects.keys() - view.pods.keys()
            for name in gone:
                self._acquit(name)
            if gone:
                self._around.left()
        return self._dated(view)

    def _dated(self, view: View) -> View:
        """Give each orphan the moment at which it was first seen."""
        seen = {
            release.id: release
            for overstay in view.pods.values()
            for release in overstay.releases
            if release.source == ORPHAN
        }
        now, left = self._wall(), self._clock()
        known = self._orphans if view.unread else {}
        self._orphans = known | {
            id_: self._orphans.get(id_) or replace(release, since=now, left=left)
            for id_, release in seen.items()
        }
        dated = {
            name: replace(
                overstay,
                releases=tuple(self._orphans.get(one.id, one) for one in overstay.releases),
            )
            for name, overstay in view.pods.items()
        }
        return replace(view, pods=dated)

    # -- reaping ----------------------------------------------------------------------------------

    async def _reap(self, view: View) -> None:
        """Have those deleted that are due."""
        limiter, now = anyio.CapacityLimiter(_AT_ONCE), self._clock()

        async def reap(name: PodName, overstay: Overstay) -> None:
            async with limiter:
                await self._attempt(name, overstay)

        async with anyio.create_task_group() as tasks:
            for name, overstay in view.pods.items():
                if self._suspects[name].due <= now:
                    tasks.start_soon(reap, name, overstay)

    async def _attempt(self, name: PodName, overstay: Overstay) -> None:
        suspect = self._suspects[name]
        result = await self._ask(name, overstay, suspect)
        pause = _LATER if result.what is Reaped.LATER else self._around.timings().again_after
        suspect.due = self._clock() + pause
        _log.debug(
            "reap pod=%s/%s attempt=%d what=%s why=%r",
            *name,
            suspect.attempt,
            result.what.value,
            result.reason,
        )
        if result.what is Reaped.DELETED:
            self._say("pod-reaped", name, overstay, f"attempt {suspect.attempt}: {result.reason}")
            suspect.attempt += 1
        elif result.what is Reaped.GONE:
            self._around.left()
        elif suspect.is_news(result):
            self._say(_WORDS[result.what], name, overstay, result.reason)
        self._complain(name, suspect.hinders(result))

    def _complain(self, name: PodName, why: str) -> None:
        if why:
            self._around.board.record(_source(name), why, cost="it is not deleted yet")
        else:
            self._around.board.clear(_source(name))

    async def _ask(self, name: PodName, overstay: Overstay, suspect: Suspect) -> ReapResult:
        if overstay.twice:
            return ReapResult(Reaped.SPARED, "the kubelet lists two pods of that name")
        pod = HoldingPod(
            namespace=name[0],
            name=name[1],
            devices=overstay.devices,
            since=suspect.since,
            uids=overstay.uids,
            still_holds=partial(self._still_holds, name),
        )
        release = overstay.releases[-1]  # the one that a pod may be the oldest for
        try:
            verdicts = await self._around.hooks.gather(
                "admit_reap",
                subject=str(pod),
                pod=pod,
                release=release,
                agent=self._around.agent,
            )
            denied = next((v for v in verdicts.values() if v is not None and not v.allowed), None)
            if denied is not None:
                return ReapResult(Reaped.SPARED, denied.reason)
            found = await self._around.hooks.first(
                "reap_pod",
                subject=str(pod),
                pod=pod,
                release=release,
                attempt=suspect.attempt,
                agent=self._around.agent,
            )
        except Refuse as refusal:
            return ReapResult(Reaped.SPARED, str(refusal))
        except HardpointError as error:
            return ReapResult(Reaped.LATER, str(error))
        if isinstance(found, ReapResult):
            return found
        return ReapResult(Reaped.LATER, "no policy that reaps has answered")

    async def _still_holds(self, name: PodName) -> bool:
        """Say whether a pod has what it must not have, by what is so now.

        Raises ``HardpointError`` where that cannot be said.
        """
        if not await self._around.ask():
            raise HardpointError("what is granted cannot be read now")
        view = await self._holding.look(anew=True)
        found = view.pods.get(name)
        if found is None and view.unread:
            raise HardpointError(view.unread)
        return found is not None and not found.twice and self._around.writing()

    # -- saying -----------------------------------------------------------------------------------

    def _say(self, event: str, name: PodName, overstay: Overstay, what: str) -> None:
        pod, devices = "/".join(name), ", ".join(overstay.devices)
        release = overstay.releases[-1]
        facts = {"pod": pod, "devices": devices, "allocation": release.allocation}
        about = "outside every grant" if release.source == ORPHAN else str(release)
        message = f"pod {pod} has {devices} ({about}): {what}"
        self._around.report(Event(name=event, message=message, facts=facts, warning=True))


def _source(name: PodName) -> str:
    return f"{SOURCE} pod {'/'.join(name)}"


_WORDS = {
    Reaped.SPARED: "pod-spared",
    Reaped.WOULD_DELETE: "pod-would-be-reaped",
    Reaped.LATER: "pod-not-reaped-yet",
}


def timings_of(plugins: Iterable[object]) -> Timings:
    """Return the timings of the first plugin that has some: attributes of a policy that reaps."""
    for plugin in plugins:
        try:
            found = getattr(plugin, "first_after_s", None), getattr(plugin, "again_after_s", None)
        except Exception:  # noqa: BLE001, S112 - a stranger's property
            continue
        if all(isinstance(one, int | float) and 0 < one < math.inf for one in found):
            return Timings(first_after=float(found[0]), again_after=float(found[1]))  # type: ignore[arg-type]
    return Timings()
