"""Grants from hold files: CDI specs that somebody with root puts into a directory of the host."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from hardpoint import inotify
from hardpoint.contract import hookimpl
from hardpoint.errors import BadValue, TryAgain
from hardpoint.grants import Grant, GrantOutcome, Release
from hardpoint.model import Device, Offered
from hardpoint.node import Node
from hardpoint.policies.cdi_grants.copies import Copies
from hardpoint.policies.cdi_grants.documents import HoldFile, find_device, grant_of
from hardpoint.policies.cdi_grants.holds import Holds, Seen, Unreadable, read_holds
from hardpoint.policies.cdi_grants.mending import mended, same_but_nodes
from hardpoint.policies.cdi_grants.reports import Reports
from hardpoint.policies.cdi_grants.settings import CdiGrantsSettings
from hardpoint.policies.cdi_grants.wrong import NAME, Look, Wrong, names_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from hardpoint.agent import Agent

_SECOND_LOOK = 10.0
"""Seconds for which another directory must have been there before it ends a grant."""
_SWEEP = 60.0
_LEFT = f"policy/{NAME} copies"

__all__ = ["NAME", "CdiGrants", "CdiGrantsSettings"]


class CdiGrants:
    """Devices are given to Kubernetes by hold files, one for each allocation.

    A file that is bad costs no other file's grant, and keeps what it granted before.
    """

    Settings = CdiGrantsSettings

    def __init__(self, node: Node, settings: CdiGrantsSettings) -> None:
        self.node, self.settings = node, settings
        self.kinds = settings.kinds
        self._known: dict[str, Grant] = {}
        """What was stated last, by allocation."""
        self._files: dict[str, str] = {}
        """Which allocation each file was of, by its name."""
        self._seen: dict[str, Seen] = {}
        self._whole = False
        """Whether everything was known once: a file that is bad later has granted nothing."""
        self._directory: tuple[int, int] | None = None
        self._swapped: tuple[tuple[int, int], float] | None = None
        self._unmended: Mapping[str, str] = {}
        self._judged: Mapping[str, tuple[Device, ...]] = {}
        """The devices that each hold's nodes were held against, as they were offered then."""
        self._hint: Callable[[], None] = lambda: None
        self._wrong = Wrong(settings.directory)
        self._reports: Reports | None = None

    @property
    def unread(self) -> str:
        """What cannot be read now, though it is known what it granted before."""
        return self._wrong.unread

    # -- grants -----------------------------------------------------------------------------------

    @hookimpl
    async def watch_devices(self, hint: Callable[[], None]) -> None:
        """Look again when something in the directory changed."""
        self._hint = hint
        await inotify.watch(self.settings.directory, hint)

    @hookimpl
    async def grant_devices(self, agent: Agent) -> tuple[Grant, ...]:
        """Return what the files grant. Raises ``Unreadable`` where something is not known."""
        copies = Copies(agent.paths.cdi, self.settings.file_prefix)
        devices = _offered(agent)
        writes = agent.writing()
        look = await anyio.to_thread.run_sync(partial(self._look, copies, devices, writes=writes))
        self._check_directory(look.holds)
        unknown = self._keep_bad(look, agent)
        self._wrong.tell(look, unknown, agent)
        if unknown:
            raise Unreadable(
                f"{self.settings.directory}: what {names_of(unknown)} granted is not known"
            )
        self._whole = True
        self._known, self._unmended = look.grants, look.unmended
        self._files = {hold.name: hold.allocation for hold in look.holds.good} | {
            bad.name: bad.allocation for bad in look.holds.bad if bad.allocation in look.grants
        }
        self._judged = devices
        if writes:
            await self._sweep(copies, look, agent)
        return tuple(look.grants.values())

    async def _sweep(self, copies: Copies, look: Look, agent: Agent) -> None:
        """Remove copies whose holds are gone."""
        if look.copies <= {copies.path(allocation).name for allocation in look.grants}:
            left = []
        else:
            left = await anyio.to_thread.run_sync(copies.sweep, frozenset(look.grants))
        if left:
            agent.on_fault(_LEFT, f"{'; '.join(left)}: a hold that is gone is delivered still")
        else:
            agent.clear_fault(_LEFT)

    def _look(
        self, copies: Copies, devices: Mapping[str, tuple[Device, ...]], *, writes: bool
    ) -> Look:
        """Read the files and see to their corrected copies. In a thread."""
        look = Look(read_holds(self.settings, self._files, self._seen))
        there = copies.listed()
        for hold in look.holds.good:
            known = devices.get(hold.allocation, ())
            is_there = copies.path(hold.allocation).name in there
            copy = copies.read(hold.allocation) if is_there else None
            grant, why = self._settled(hold, known, copies, copy, writes=writes)
            look.grants[hold.allocation] = grant
            if why:
                look.unmended[hold.allocation] = why
        look.copies = copies.listed()
        return look

    def _settled(
        self,
        hold: HoldFile,
        devices: tuple[Device, ...],
        copies: Copies,
        copy: Mapping[str, Any] | None,
        *,
        writes: bool,
    ) -> tuple[Grant, str]:
        """Return a grant, and why its CDI names do not deliver the right nodes yet."""
        grant = grant_of(hold, self.settings)
        before = copy if copy and same_but_nodes(copy, hold.document) else hold.document
        try:
            wanted = hold.document
            if not hold.unsupported:
                wanted = mended(hold.document, before, _meant(grant, devices), self.node)
            target = None if wanted == hold.document else wanted
            if copy != target:
                self._put(copies, hold.allocation, target, writes=writes)
        except TryAgain as error:
            return _without_ids(grant), str(error)
        except (OSError, BadValue) as error:
            return _without_ids(grant), f"its corrected copy cannot be written: {error}"
        if target is None:
            return grant, ""
        return grant_of(replace(hold, document=target), self.settings), ""

    def _put(
        self,
        copies: Copies,
        allocation: str,
        document: Mapping[str, Any] | None,
        *,
        writes: bool,
    ) -> None:
        if _same(self.settings.directory, copies.directory):
            raise TryAgain("paths.cdi has to be another directory, for a corrected copy")
        if not writes:
            raise TryAgain("the agent that writes has not corrected it yet")
        copies.put(allocation, document)

    def _check_directory(self, holds: Holds) -> None:
        """Raise where files are gone with the directory that they were in, until a second look."""
        stated = {hold.name for hold in holds.good} | {bad.name for bad in holds.bad}
        same = self._directory in (None, holds.directory)
        if same or stated.issuperset(self._files):
            self._directory, self._swapped = holds.directory, None
            return
        now = time.monotonic()
        if self._swapped is None or self._swapped[0] != holds.directory:
            self._swapped = holds.directory, now
        if now - self._swapped[1] < _SECOND_LOOK:
            raise Unreadable(
                f"{self.settings.directory} is another directory than before, without "
                f"{names_of(sorted(set(self._files) - stated))}: it is looked at once more"
            )
        self._directory, self._swapped = holds.directory, None

    def _keep_bad(self, look: Look, agent: Agent) -> list[str]:
        """Let bad files grant what they granted before; return those of which nobody knows that."""
        in_force = {grant.allocation: grant for grant in agent.grants() if _is_ours(grant)}
        unknown = []
        for bad in look.holds.bad:
            last = self._known.get(bad.allocation) or in_force.get(bad.allocation)
            if last is not None:
                look.grants.setdefault(bad.allocation, last)
            elif not self._whole:
                unknown.append(bad.name)
        return unknown

    # -- claims -----------------------------------------------------------------------------------

    @hookimpl
    def admit_claim(self, devices: tuple[Offered, ...]) -> None:
        """Let nobody have a device by a CDI name that delivers another one's nodes."""
        for offered in devices:
            why = self._unmended.get(offered.allocation, "")
            if not why and not self._is_judged(offered):
                why = "its file has not been looked at since"
            if why:
                raise TryAgain(
                    f"{offered.name}: the hold of allocation {offered.allocation} may name other "
                    f"nodes than the device has now; {why}"
                )

    def _is_judged(self, offered: Offered) -> bool:
        """Say whether a hold was held against the nodes that its device has now."""
        if offered.allocation not in self._known:
            return True
        judged = self._judged.get(offered.allocation, ())
        return any(offered.device.nodes == one.nodes for one in judged)

    # -- reports ----------------------------------------------------------------------------------

    @hookimpl
    def report_grant(self, grant: Grant, outcome: GrantOutcome, agent: Agent) -> None:
        """Write down what became of a grant."""
        self._reports_of(agent.paths.state).tell_grant(grant, outcome)

    @hookimpl
    def report_release(self, grant: Grant, release: Release, agent: Agent) -> None:
        """Write down that a grant is over, unless a file that cannot be read may state it again."""
        self._wrong.check_over(grant.allocation)
        self._reports_of(agent.paths.state).tell_release(grant, release)

    @hookimpl
    async def serve_policy(self, agent: Agent) -> None:
        """Look at a hold again when its devices change; remove reports that nobody needs."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow, agent)
            await agent.until_writing()
            while True:
                await anyio.sleep(_SWEEP)
                await self._tidy(agent)

    async def _follow(self, agent: Agent) -> None:
        hinted = -1
        async for _ in agent.changes():
            offer = agent.offer
            if hinted != offer.generation and not all(map(self._is_judged, offer.devices)):
                hinted = offer.generation  # once: a failure to look is a change too
                self._hint()

    async def _tidy(self, agent: Agent) -> None:
        if not self._whole:
            return
        live = {grant.allocation for grant in agent.grants()} | set(self._known)
        live |= {release.allocation for release in agent.releases()}
        sweep = self._reports_of(agent.paths.state).sweep
        await anyio.to_thread.run_sync(sweep, live, self.settings.keep_reports)

    def _reports_of(self, state: Path) -> Reports:
        if self._reports is None:
            self._reports = Reports(self.settings.reports or state / "grants")
        return self._reports


def _offered(agent: Agent) -> dict[str, tuple[Device, ...]]:
    """Return the devices that are offered under each allocation."""
    found: dict[str, tuple[Device, ...]] = {}
    for offered in agent.offer.devices:
        if offered.allocation:
            found[offered.allocation] = (*found.get(offered.allocation, ()), offered.device)
    return found


def _meant(grant: Grant, devices: tuple[Device, ...]) -> dict[str, Device]:
    """Return which device each entry of a hold means, of those that are offered."""
    found = {entry.name: find_device(entry, devices) for entry in grant.devices}
    return {name: device for name, device in found.items() if device is not None}


def _without_ids(grant: Grant) -> Grant:
    """Return a grant whose claims get all that they need from files of their own."""
    devices = (replace(one, cdi_id="", nodes=()) for one in grant.devices)
    return replace(grant, devices=tuple(devices))


def _is_ours(grant: Grant) -> bool:
    return grant.source in ("", NAME, f"policy/{NAME}")


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
