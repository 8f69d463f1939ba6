"""What becomes of grants when their sources have answered: pure.

What is written down and what the sources state go in; what is to be written comes out. A grant that
is in force is never lost to a newcomer, nor to a mistake in its own new wording: what it had and
still names stays, also where it is being released.
"""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hardpoint._core.ledger.grantrows import (
    Book,
    DeviceKey,
    KnownGrant,
    KnownRelease,
    Meant,
    without,
)
from hardpoint.grants import Grant, GrantedDevice, GrantOutcome, Outcome
from hardpoint.model import Part

_IN_FORCE = GrantOutcome(Outcome.IN_FORCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What one source says."""

    source: str
    kinds: tuple[str, ...]
    """Patterns of the kinds that it governs."""
    grants: tuple[Grant, ...] | None
    """None where it cannot be asked: what is known stands."""

    def governs(self, kind: str) -> bool:
        """Say whether devices of a kind are offered under its grants alone."""
        return any(fnmatch.fnmatchcase(kind, pattern) for pattern in self.kinds)


@dataclass(slots=True)
class Plan:
    """What is to be written, in one transaction."""

    keep: list[KnownGrant] = field(default_factory=list)
    forget: list[tuple[str, str]] = field(default_factory=list)
    begin: list[KnownRelease] = field(default_factory=list)
    """Releases, new or with other devices than before."""
    drop: list[str] = field(default_factory=list)
    """Releases whose devices are all granted again, or that nobody has to be told of."""

    @property
    def empty(self) -> bool:
        """True where everything is as it was."""
        return not (self.keep or self.forget or self.begin or self.drop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a plan is made of."""

    book: Book
    stated: Mapping[str, Stated]
    """By source, for every source that the settings want."""
    devices: Sequence[Meant]
    """Everything that the node has now."""
    complete: bool
    """False while a driver has not answered: what a grant names may yet come."""
    withheld: Mapping[str, str] = field(default_factory=dict)
    """Why devices that the node has are not among them, by name."""
    lost: frozenset[DeviceKey] = frozenset()
    """Devices that somebody may have whom nobody knows any more."""
    now: float = 0.0
    new_id: Callable[[], str] = lambda: ""


def plan(scene: Scene) -> Plan:
    """Return what is to be written."""
    return _Planner(scene).run()


class _Planner:
    def __init__(self, scene: Scene) -> None:
        self._scene, self._plan = scene, Plan()
        self._known = {known.key: known for known in scene.book.grants}
        self._in_force: dict[DeviceKey, tuple[tuple[str, str], Meant]] = {}
        self._stated = {
            (source, grant.allocation)
            for source, one in scene.stated.items()
            for grant in one.grants or ()
        }
        self._takers: defaultdict[str, list[tuple[Part, DeviceKey]]] = defaultdict(list)
        for known in scene.book.grants:
            self._take(known)

    def run(self) -> Plan:
        for known in self._scene.book.grants:
            if not self._stands(known):
                self._end(known)
        for release in self._scene.book.releases:
            if release.report and release.grant.source not in self._scene.stated and release.over:
                self._plan.drop.append(release.id)  # its source is gone from the settings
        for grant in self._in_order():
            self._settle(grant)
        return self._plan

    def _in_order(self) -> list[Grant]:
        """Return what is stated: what is known first, so that a newcomer takes nothing from it."""
        stated = [grant for one in self._scene.stated.values() for grant in one.grants or ()]
        fresh = {
            (g.source, g.allocation): (g.source, g.allocation) not in self._known for g in stated
        }
        return sorted(stated, key=lambda g: (fresh[g.source, g.allocation], g.source, g.allocation))

    def _stands(self, known: KnownGrant) -> bool:
        """Say whether a known grant is stated still, or nobody can say that it is not."""
        stated = self._scene.stated.get(known.grant.source)
        if stated is None:
            return False
        if stated.grants is None:
            return True
        return known.key in self._stated

    def _end(self, known: KnownGrant) -> None:
        self._plan.forget.append(known.key)
        self._give_up(known, known.devices)
        if known.grant.source not in self._scene.stated:
            return
        taken = [one for one in self._scene.book.releases if one.key == known.key]
        if known.devices:
            self._plan.begin.append(self._release(known, known.devices, report=True))
        elif taken:  # nothing is left of it but what was taken out of it, and is in use still
            self._plan.begin.append(replace(taken[-1], report=True))

    def _release(
        self, known: KnownGrant, devices: Iterable[Meant], *, report: bool
    ) -> KnownRelease:
        return KnownRelease(
            id=self._scene.new_id(),
            grant=known.grant,
            devices=tuple(devices),
            since=self._scene.now,
            report=report,
        )

    # -- one grant --------------------------------------------------------------------------------

    def _settle(self, grant: Grant) -> None:
        known = self._known.get((grant.source, grant.allocation))
        meant, outcome = self._meant(grant)
        if outcome is None:
            return  # it names what may yet come
        # Never half honoured; what it had already and names still is not a mistake's to take.
        devices = meant if outcome.in_force else self._had_and_named(grant, known)
        kept = {one.key for one in devices}
        gone = [one for one in (known.devices if known else ()) if one.key not in kept]
        if known and gone:
            self._give_up(known, gone)
            self._plan.begin.append(self._release(known, gone, report=False))
        self._keep(grant, known, devices, outcome)
        self._grant_again(grant, kept)

    def _had_and_named(self, grant: Grant, known: KnownGrant | None) -> tuple[Meant, ...]:
        """Return what a refused grant had and names still, and what it names of its own releases.

        A file that is removed and written anew is the same as one that is changed, whether
        somebody looked in between or not.
        """
        leaving = (
            one
            for release in self._scene.book.releases
            if release.key == (grant.source, grant.allocation) and not release.over
            for one in release.devices
        )
        had = (*(known.devices if known else ()), *leaving)
        return tuple({one.key: one for one in had if _names(grant, one)}.values())

    def _keep(
        self,
        grant: Grant,
        known: KnownGrant | None,
        devices: tuple[Meant, ...],
        outcome: GrantOutcome,
    ) -> None:
        same = known is not None and known.grant == grant and known.outcome == outcome
        new = KnownGrant(
            grant=grant,
            devices=devices,
            outcome=outcome,
            told=bool(known and known.told) and same,
            since=known.since if known else self._scene.now,
        )
        if new != known:
            self._plan.keep.append(new)
        self._take(new)

    def _grant_again(self, grant: Grant, keys: set[DeviceKey]) -> None:
        """End the releases of what is granted again, without a word to anybody."""
        if not keys:
            return  # it is refused: its releases are told as before
        for release in self._scene.book.releases:
            if release.key != (grant.source, grant.allocation):
                continue
            left = without(release, keys)
            if not left.devices:
                self._plan.drop.append(release.id)
            elif left.devices != release.devices or release.report:
                self._plan.begin.append(replace(left, report=False))

    # -- what it means ----------------------------------------------------------------------------

    def _meant(self, grant: Grant) -> tuple[tuple[Meant, ...], GrantOutcome | None]:
        """Return the devices that a grant means, and what becomes of it; None while open."""
        if grant.unsupported:
            return (), GrantOutcome(Outcome.UNSUPPORTED, grant.unsupported)
        if not grant.devices:
            return (), GrantOutcome(Outcome.UNKNOWN_DEVICE, "it names no device")
        found = self._named(grant)
        if not isinstance(found, list):
            return (), found
        for one in found:
            why = self._taken(one, grant)
            if why:
                return (), GrantOutcome(Outcome.OVERLAP, why)
        return tuple(found), _IN_FORCE

    def _named(self, grant: Grant) -> list[Meant] | GrantOutcome | None:
        """Return the device of each entry, or why there is none for one; None while open."""
        found: list[Meant] = []
        for entry in grant.devices:
            one = self._find(entry, grant)
            if one is None:
                return self._unknown(entry, grant) if self._scene.complete else None
            found.append(one)
        if len({one.key for one in found}) < len(found):
            return GrantOutcome(Outcome.UNKNOWN_DEVICE, "two of its names mean one device")
        return found

    def _unknown(self, entry: GrantedDevice, grant: Grant) -> GrantOutcome:
        why = self._scene.withheld.get(entry.name.replace("/", "_"))
        if why:
            reason = f"device {entry.name} is withheld: {why}"
            return GrantOutcome(Outcome.UNKNOWN_DEVICE, reason)
        reason = f"no device of the kinds that {grant.source} governs is called {entry.name}" + (
            " or has its uuid" if entry.uuid else ""
        )
        return GrantOutcome(Outcome.UNKNOWN_DEVICE, reason)

    def _find(self, entry: GrantedDevice, grant: Grant) -> Meant | None:
        """Return the device that an entry means: by name, then by UUID; never by guessing."""
        stated = self._scene.stated[grant.source]
        mine = [one for one in self._scene.devices if stated.governs(one.device.kind)]
        name = entry.name.replace("/", "_")
        named = [one for one in mine if name in (one.device.name, one.device.origin.get("cdi"))]
        if not named and entry.uuid:
            named = [one for one in mine if one.device.attributes.get("uuid") == entry.uuid]
        if len(named) == 1:
            return named[0]
        if named:
            return None
        known = self._known.get((grant.source, grant.allocation))
        had = known.devices if known else ()  # it is not listed now: unplugged, or being looked at
        return next((one for one in had if entry_means(entry, one)), None)

    def _taken(self, one: Meant, grant: Grant) -> str:
        """Return why a grant may not have a device; empty if it may."""
        mine = (grant.source, grant.allocation)
        holder = self._in_force.get(one.key)
        if holder is not None and holder[0] != mine:
            return f"device {one.device.name} is granted under allocation {holder[0][1]}"
        if holder is not None:
            return ""
        if one.key in self._scene.lost:
            return (
                f"device {one.device.name} may still be in use after a release that could not be "
                "read"
            )
        if self._scene.book.blocked.get(one.key, mine) != mine:
            return (
                f"what is written down of the last grant of device {one.device.name} cannot be "
                "read; see `hardpoint release`"
            )
        return self._releasing(one, mine) or self._contended(one, mine)

    def _releasing(self, one: Meant, mine: tuple[str, str]) -> str:
        for release in (*self._scene.book.releases, *self._plan.begin):
            if self._is_pending(release, one, mine):
                return (
                    f"device {one.device.name} is not released from allocation {release.word} yet"
                )
        return ""

    def _contended(self, one: Meant, mine: tuple[str, str]) -> str:
        for part in one.device.all_parts:
            for other, key in self._takers.get(part.name, ()):
                owner = self._in_force[key][0]
                if owner != mine and part.contends(other):
                    return f"device {one.device.name} is one with {key.name} of {owner[1]}"
        return ""

    def _is_pending(self, release: KnownRelease, one: Meant, mine: tuple[str, str]) -> bool:
        if (release.grant.source, release.grant.allocation) == mine:
            return False
        if one.key in release.keys:
            return True
        return any(
            part.contends(other)
            for held in release.devices
            for other in held.device.all_parts
            for part in one.device.all_parts
        )

    # -- who has what -----------------------------------------------------------------------------

    def _take(self, known: KnownGrant) -> None:
        for one in known.devices:
            if one.key not in self._in_force:
                for part in one.device.all_parts:
                    self._takers[part.name].append((part, one.key))
            self._in_force[one.key] = known.key, one

    def _give_up(self, known: KnownGrant, devices: Iterable[Meant]) -> None:
        """Let a device go; its release keeps it from others until that is over."""
        for one in devices:
            if self._in_force.get(one.key, (None,))[0] == known.key:
                del self._in_force[one.key]
                for part in one.device.all_parts:
                    self._takers[part.name] = [
                        taken for taken in self._takers[part.name] if taken[1] != one.key
                    ]


def _names(grant: Grant, one: Meant) -> bool:
    return any(entry_means(entry, one) for entry in grant.devices)


def entry_means(entry: GrantedDevice, one: Meant) -> bool:
    """Say whether a grant's entry means a device: by name, else by UUID."""
    name = entry.name.replace("/", "_")
    if name in (one.device.name, one.device.origin.get("cdi")):
        return True
    return bool(entry.uuid) and one.device.attributes.get("uuid") == entry.uuid


def in_force(book: Book) -> Iterator[tuple[Meant, KnownGrant]]:
    """Yield each device that is granted, and under what."""
    for known in book.grants:
        for one in known.devices:
            yield one, known
