"""One look at who holds what they must not: the kubelet's pods, the ledger, and claims in the API.

Everything is read first and judged then, by what is granted at that moment.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hardpoint._core.ledger.grantrows import Meant
from hardpoint._core.ledger.records import Record
from hardpoint._core.pods.claimpods import ClaimPods, Found, OfClaim, PodId
from hardpoint._core.pods.podlist import PodList
from hardpoint._core.pods.revoked import Facts, Granted, Had, had_by, names_of
from hardpoint.allocation import Assignment
from hardpoint.errors import HardpointError, KubeError
from hardpoint.grants import Release
from hardpoint.kubelet.pods import PodUse
from hardpoint.model import Domain

if TYPE_CHECKING:
    from hardpoint.kube import Kube

PodName = tuple[str, str]
"""Namespace and name."""

_UNKNOWN_EVERY = 300.0
"""Seconds between two looks for claims that nobody wrote down: those of a ledger that was lost."""


class PodsUnread(HardpointError):
    """The kubelet does not say which pod has what."""


class Pods(Protocol):
    """The kubelet's answer: ``PodSource``."""

    async def list(self) -> tuple[PodUse, ...]:
        """Return every pod. Raises ``HardpointError``."""


class Records(Protocol):
    """Where holds are written down: the ledger."""

    async def read(self) -> tuple[Record, ...]:
        """Return every record as it is now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is read, and what the agent knows at any moment."""

    pods: Pods
    records: Records
    kube: Callable[[], Kube]
    """Connects; raises ``KubeError`` where that is not possible."""
    granted: Callable[[], Iterable[Granted]]
    """Of every grant that is written down, those that are refused by now too."""
    releases: Callable[[], Iterable[Release]]
    """Those that are pending."""
    governed: Callable[[str], bool]
    """Whether a running source governs a kind."""
    known: Callable[[], bool]
    """Whether the last read of every source was good, and all that is written down is readable."""
    devices: Callable[[], Iterable[Meant]]
    """Every device that a driver lists, offered or not."""
    domains: Callable[[], Iterable[Domain]]
    """What is or was published under, that of drivers that do not run too."""
    announced: Callable[[], Mapping[tuple[str, str], Assignment]]
    """What each resource and id of the device plugin frontend stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overstay:
    """A pod that has what it must not have."""

    devices: tuple[str, ...]
    releases: tuple[Release, ...]
    """In order of their beginning."""
    uids: tuple[str, ...] = ()
    """Those that a claim names; none where the kubelet alone knows the pod."""
    twice: bool = False
    """Whether the kubelet lists two pods of that name: it does not say which is which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one look found."""

    pods: Mapping[PodName, Overstay]
    unread: str = ""
    """Why it is not known who has some of the claims."""


@dataclass(slots=True)
class _Notes:
    had: list[Had] = field(default_factory=list)
    releases: dict[str, Release] = field(default_factory=dict)
    uids: set[str] = field(default_factory=set)


class Holding:
    """Looks at who holds what."""

    def __init__(
        self, known: Known, *, node: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._known, self._clock = known, clock
        self._claims = ClaimPods(node)
        self._unknown: tuple[OfClaim, ...] = ()
        self._unknown_at: float | None = None

    async def look(self, *, anew: bool = False) -> View:
        """Read and judge. Raises ``HardpointError`` where nothing can be said of anybody.

        ``anew`` looks for claims that nobody wrote down too, which is done seldom otherwise.
        """
        pods = await self._listed()
        records = await self._known.records.read()
        found, why = await self._of_claims(self._facts(records), anew=anew)
        facts = self._facts(records)
        if not self._known.known():
            raise HardpointError("what is granted cannot be read: nothing follows from the last")
        notes: defaultdict[PodName, _Notes] = defaultdict(_Notes)
        for pod, had in self._all_had(facts, pods, found):
            release = facts.release_of(had)
            if release is not None:
                note = notes[pod.namespace, pod.name]
                note.had.append(had)
                note.releases[release.id] = release
                note.uids |= {pod.uid} - {""}
        listed = Counter((pod.namespace, pod.name) for pod in pods)
        return View(
            pods={name: _overstay(note, listed[name] > 1) for name, note in notes.items()},
            unread=why,
        )

    async def _listed(self) -> tuple[PodUse, ...]:
        try:
            return await self._known.pods.list()
        except HardpointError as error:
            raise PodsUnread(str(error)) from error

    def _facts(self, records: tuple[Record, ...]) -> Facts:
        known = self._known
        return Facts(
            granted=frozenset(known.granted()),
            releases=tuple(known.releases()),
            governed=known.governed,
            devices=tuple(known.devices()),
            domains=tuple(known.domains()),
            announced=known.announced(),
            records=records,
        )

    # -- claims -----------------------------------------------------------------------------------

    async def _of_claims(self, facts: Facts, *, anew: bool) -> tuple[Found, str]:
        """Return who has the claims that must not be had, and why that is not known of some."""
        keys = {
            record.claim.uid: record.claim
            for record in facts.records
            if (had := had_by(record, facts)) is not None and facts.release_of(had) is not None
        }
        governed = any(facts.governed(one.device.kind) for one in facts.devices)
        last = self._unknown_at
        due = anew or last is None or self._clock() - last >= _UNKNOWN_EVERY
        if not keys and not (governed and due):
            return Found(), ""
        try:
            async with self._known.kube() as kube:
                found = await self._claims.of(kube, keys.values())
                if governed and due:
                    await self._look_for_unknown(kube, facts)
        except KubeError as error:
            return Found(unread=dict.fromkeys(keys, str(error))), str(error)
        return found, next(iter(found.unread.values()), "")

    async def _look_for_unknown(self, kube: Kube, facts: Facts) -> None:
        written = [r for r in facts.records if had_by(r, facts) is not None]
        known = {(r.claim.namespace, r.claim.name): r for r in written}
        self._unknown = await self._claims.allocated(kube, known)
        self._unknown_at = self._clock()

    # -- who has what -----------------------------------------------------------------------------

    def _all_had(
        self, facts: Facts, pods: Iterable[PodUse], found: Found
    ) -> Iterator[tuple[PodId, Had]]:
        yield from _listed(facts, PodList.of(pods))
        for record in facts.records:
            yield from _each(found.pods.get(record.claim.uid, ()), had_by(record, facts))
        for one in self._unknown:
            had = facts.of_claim(one.namespace, one.claim, one.driver, one.device)
            yield from _each(one.pods, had)


def _listed(facts: Facts, pods: PodList) -> Iterator[tuple[PodId, Had]]:
    """Yield what the kubelet lists: it says no UIDs."""
    for (resource, id_), users in pods.ids.items():
        named = (PodId(user.namespace, user.pod, "") for user in users)
        yield from _each(named, facts.of_id(resource, id_))
    for key, users in pods.claims.items():
        named = (PodId(user.namespace, user.pod, "") for user in users)
        yield from _each(named, facts.of_claim(*key))


def _each(pods: Iterable[PodId], had: Had | None) -> Iterator[tuple[PodId, Had]]:
    if had is not None:
        yield from ((pod, had) for pod in pods)


def _overstay(note: _Notes, twice: bool) -> Overstay:
    return Overstay(
        devices=names_of(note.had),
        releases=tuple(sorted(note.releases.values(), key=lambda one: (one.since, one.id))),
        uids=tuple(sorted(note.uids)),
        twice=twice,
    )


__all__ = ["Holding", "Known", "Overstay", "PodName", "PodsUnread", "View"]
