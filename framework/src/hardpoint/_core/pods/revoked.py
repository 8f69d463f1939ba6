"""Which of the things that pods have they must not have any more: pure.

A pod has an id (device plugin) or a device of a claim (DRA). What it stands for is in the ledger,
or in what a frontend announced, or in the name itself. It may be had if a grant that is known
covers it, or no source governs its kind. What stands for no device that anybody knows is left
alone: hardware that vanished takes nobody's pod with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

from hardpoint._core.ledger.grantrows import Meant
from hardpoint._core.ledger.records import Record
from hardpoint.allocation import (
    Assignment,
    allocation_key,
    grant_of_id,
    is_allocation,
    is_id_of,
)
from hardpoint.grants import Release, is_name_of, published_name
from hardpoint.model import Device, Domain

DRAIN, ORPHAN = "drain", "orphan"
"""Sources of releases that no grant source has stated."""

_HEAD = re.compile(r"([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)(?:::[0-9]{1,9})?@.+")


@dataclass(frozen=True, slots=True, order=True)
class Granted:
    """A device that somebody may have under an allocation."""

    dra_driver: str
    device: str
    allocation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Had:
    """What a pod has, by what is known of it."""

    device: Device
    dra_driver: str = ""
    """Empty where the name alone is known."""
    allocation: str = ""
    """Empty where it was not had under a grant, or under one that nobody knows any more."""

    @property
    def orphan_id(self) -> str:
        """What its release goes by, where no other is about it; the same after a restart."""
        words = "\0".join((self.dra_driver, self.device.name, self.allocation))
        digest = blake2b(words.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return f"{ORPHAN}-{digest}"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known, at one moment."""

    granted: frozenset[Granted]
    """Of every grant that is known, in force or not: one that is refused since its device is
    unplugged has ended for nobody."""
    releases: tuple[Release, ...]
    governed: Callable[[str], bool]
    """Whether a running source governs a kind."""
    devices: tuple[Meant, ...]
    """Every device that is known, offered or not."""
    domains: tuple[Domain, ...]
    announced: Mapping[tuple[str, str], Assignment]
    records: tuple[Record, ...]

    # -- what something stands for ----------------------------------------------------------------

    def of_id(self, resource: str, id_: str) -> Had | None:
        """Return what one of our ids stands for; None for one that is not ours, or unknown."""
        record = self._by_uid.get(allocation_key(resource, id_, "").uid)
        if record is not None:
            return _of_record(record, grant_of_id(id_))
        known = self.announced.get((resource, id_))
        if known is not None:
            return self._of_announced(known)
        return self._of_unknown_id(resource, id_)

    def of_claim(self, namespace: str, name: str, driver: str, published: str) -> Had | None:
        """Return what a device of a claim is, by the name that the scheduler knows it by."""
        record = self._by_claim.get((namespace, name, driver, published))
        if record is not None:
            return _of_record(record, self.allocation_in(published, record.device.name))
        if driver not in {domain.dra_driver for domain in self.domains}:
            return None
        own = [one.device for one in self._all if one.dra_driver == driver]
        exact = next((one for one in own if one.name == published), None)
        device = exact or next((one for one in own if is_name_of(published, one.name)), None)
        if device is None:
            return None
        allocation = "" if exact else self.allocation_in(published, device.name)
        return Had(device=device, dra_driver=driver, allocation=allocation)

    def _of_announced(self, known: Assignment) -> Had | None:
        driver = known.domain.dra_driver
        names = {(one.dra_driver, one.device.name): one.device for one in self._all}
        device = names.get((driver, known.device))
        if device is None:
            return None
        allocation = known.allocation or grant_of_id(known.id)
        return Had(device=device, dra_driver=driver, allocation=allocation)

    def _of_unknown_id(self, resource: str, id_: str) -> Had | None:
        """Return what an id stands for that nobody has written down or announced.

        One with an allocation was had under a grant: of such a one the resource says the kind, also
        where the driver does not run any more.
        """
        prefix, _, word = resource.partition("/")
        drivers = {d.dra_driver for d in self.domains if d.resource_prefix == prefix}
        if any(known == resource for known, _ in self.announced):
            drivers |= {domain.dra_driver for domain in self.domains}
        for one in self._all:
            if one.dra_driver in drivers and is_id_of(id_, one.device.name):
                return Had(
                    device=one.device, dra_driver=one.dra_driver, allocation=grant_of_id(id_)
                )
        head = _HEAD.fullmatch(id_)
        if head is None or all(domain.resource_prefix != prefix for domain in self.domains):
            return None
        return Had(device=Device(name=head[1], kind=word), allocation=grant_of_id(id_))

    def allocation_in(self, published: str, device: str) -> str:
        """Return the allocation that a published name tells; empty where nobody knows it."""
        known = {g.allocation for g in self.granted} | {r.allocation for r in self.releases}
        return next((a for a in sorted(known) if published_name(device, a) == published), "")

    # -- whether it may be had --------------------------------------------------------------------

    def release_of(self, had: Had) -> Release | None:
        """Return the release by which something must not be had any more; None while it may be.

        One that is about nothing else is made for what lies outside every grant: an orphan.
        """
        pending = [release for release in self.releases if _is_about(release, had)]
        drain = next((release for release in pending if release.source == DRAIN), None)
        if drain is not None:
            return drain
        if not self.governed(had.device.kind) or self._is_granted(had):
            return None
        return max(pending, key=lambda release: release.since, default=None) or _orphan(had)

    def _is_granted(self, had: Had) -> bool:
        return any(
            (one.device, one.allocation) == (had.device.name, had.allocation)
            and had.dra_driver in ("", one.dra_driver)
            for one in self.granted
        )

    # -- what is looked up ------------------------------------------------------------------------

    @cached_property
    def _all(self) -> tuple[Meant, ...]:
        """Every device, those that only the ledger knows too."""
        found = {(one.dra_driver, one.device.name): one for one in self.devices}
        for record in self.records:
            if record.readable:
                key = (record.claim.dra_driver, record.device.name)
                found.setdefault(key, Meant(key[0], record.device))
        return tuple(found.values())

    @cached_property
    def _by_uid(self) -> Mapping[str, Record]:
        return {record.claim.uid: record for record in self.records if record.readable}

    @cached_property
    def _by_claim(self) -> Mapping[tuple[str, str, str, str], Record]:
        return {
            (r.claim.namespace, r.claim.name, r.claim.dra_driver, published_as(r)): r
            for r in self.records
            if r.readable and not is_allocation(r.claim)
        }


def published_as(record: Record) -> str:
    """Return the name by which the scheduler knows a device that is held."""
    return record.allotment.published or record.allotment.device


def had_by(record: Record, facts: Facts) -> Had | None:
    """Return what the holder of a claim has; None where the record does not say.

    One that was found again in a CDI file does not know under which grant it was had: its pod must
    not be taken for one without.
    """
    if not record.readable or record.retired or is_allocation(record.claim):
        return None
    told = facts.allocation_in(published_as(record), record.device.name)
    found = _of_record(record, told)
    return None if record.rebuilt and not found.allocation else found


def names_of(pairs: Iterable[Had]) -> tuple[str, ...]:
    """Return the devices' names, for people."""
    return tuple(sorted({had.device.name for had in pairs}))


def _of_record(record: Record, told: str) -> Had:
    """Return what a record says; ``told`` where it does not say under which grant."""
    return Had(
        device=record.device,
        dra_driver=record.claim.dra_driver,
        allocation=record.allotment.allocation or told,
    )


def _is_about(release: Release, had: Had) -> bool:
    """Say whether a release has a device back from what somebody has."""
    drivers, allocation = release.dra_drivers, release.allocation
    return (
        had.device.name in release.names
        and (not drivers or not had.dra_driver or had.dra_driver in drivers)
        and (not allocation or not had.allocation or allocation == had.allocation)
    )


def _orphan(had: Had) -> Release:
    """Return a release without a beginning: who keeps it knows when it was first seen."""
    return Release(
        id=had.orphan_id,
        allocation=had.allocation,
        source=ORPHAN,
        devices=(had.device,),
        since=0.0,
        dra_drivers=(had.dra_driver,) if had.dra_driver else (),
    )
