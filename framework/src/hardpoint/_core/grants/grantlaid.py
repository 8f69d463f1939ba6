"""Grants laid over an offer in the making: pure. What no source governs is granted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from hardpoint._core.grants.grantplan import Stated, entry_means, in_force
from hardpoint._core.ledger.grantrows import Book, DeviceKey, KnownGrant, KnownRelease, Meant
from hardpoint._core.offer.inventory import QUARANTINED, Built
from hardpoint.model import Offered, Part, Withheld

NOT_GRANTED, RELEASING, WITHDRAWN = "not-granted", "releasing", "withdrawn"
"""Rules of what is withheld here."""


class Words:
    """What sources state, to be looked up."""

    def __init__(self, stated: Mapping[str, Stated]) -> None:
        self._stated = stated
        self._entries = {
            (source, grant.allocation): grant.devices
            for source, one in stated.items()
            for grant in one.grants or ()
        }

    def name(self, device: Meant, known: KnownGrant) -> bool:
        """Say whether a device is granted still: what ended is withdrawn before that is on disk."""
        one = self._stated.get(known.grant.source)
        if one is None:
            return False
        if one.grants is None:
            return True
        return any(entry_means(entry, device) for entry in self._entries.get(known.key, ()))

    def govern(self, kind: str) -> list[Stated]:
        """Return who governs a kind."""
        return [one for one in self._stated.values() if one.governs(kind)]


def laid_over(built: Built, book: Book, stated: Mapping[str, Stated], lost: bool) -> Built:
    """Return an offer in the making with grants; ``lost`` where releases are not known any more."""
    words = Words(stated)
    granted = {one.key: known for one, known in in_force(book) if words.name(one, known)}
    pending = {key: release for release in book.releases for key in release.keys}
    parts = _parts_of(book)
    devices: list[Offered] = []
    withheld: list[Withheld] = []
    for one in built.devices:
        key = DeviceKey(one.domain.dra_driver, one.name)
        known, governed = granted.get(key), words.govern(one.device.kind)
        kept = _kept_back(book, pending.get(key)) or _unread(book, key, known)
        if not kept and not governed and not one.held:
            kept = _in_the_way(one, parts)
        if not kept and governed and known is None:
            kept = NOT_GRANTED, _why_not(governed, lost)
        if kept:
            withheld.append(Withheld(one.name, *kept, one.device.driver))
        elif governed and known is not None:
            devices.append(replace(one, allocation=known.grant.allocation))
        else:
            devices.append(one)
    before = _over_quarantine(built.withheld, book)
    return replace(built, devices=tuple(devices), withheld=(*before, *withheld))


def _over_quarantine(withheld: Iterable[Withheld], book: Book) -> Iterator[Withheld]:
    """Yield what is withheld; of a device in quarantine, that its grant has ended too.

    What another one holds of it stays in use, as long as it is in quarantine alone.
    """
    releases = {
        (one.device.driver, one.device.name): release
        for release in book.releases
        for one in release.devices
    }
    for one in withheld:
        kept = _kept_back(book, releases.get((one.driver, one.subject)))
        if kept is not None and one.rule == QUARANTINED:
            rule, why = kept
            yield replace(one, rule=rule, reason=f"{why}; and {one.reason}")
        else:
            yield one


def _kept_back(book: Book, release: KnownRelease | None) -> tuple[str, str] | None:
    """Return the rule by which nobody may have a device now, and why."""
    if book.withdrawn:
        return WITHDRAWN, f"nothing is offered on this node: {book.withdrawn}"
    if release is None:
        return None
    why = "is over, and its source has not heard of it yet"
    if not release.over:
        why = "has ended, and it is not certain yet that nobody uses the device"
    return RELEASING, f"allocation {release.word} {why}"


def _parts_of(book: Book) -> dict[str, list[tuple[Part, KnownRelease]]]:
    """Return what is being released, by the names of its parts."""
    found: dict[str, list[tuple[Part, KnownRelease]]] = {}
    for release in book.releases:
        for part in (part for one in release.devices for part in one.device.all_parts):
            found.setdefault(part.name, []).append((part, release))
    return found


def _in_the_way(
    offered: Offered, parts: Mapping[str, Sequence[tuple[Part, KnownRelease]]]
) -> tuple[str, str] | None:
    """Return why a device that wants no grant is kept back: it is one with what has not come back.

    Of two devices with grants the plan sees to that.
    """
    for part in offered.device.all_parts:
        for other, release in parts.get(part.name, ()):
            if part.contends(other):
                rule, why = _kept_back(Book(), release) or (RELEASING, "")
                return rule, f"it is one with a device of which {why}"
    return None


def _unread(book: Book, key: DeviceKey, known: KnownGrant | None) -> tuple[str, str] | None:
    """Return the same for a device of a grant or a release that nobody can read."""
    if known is not None or key not in book.blocked:
        return None
    return RELEASING, (
        "what is written down of its last grant cannot be read; see `hardpoint release`"
    )


def _why_not(governed: Sequence[Stated], lost: bool) -> str:
    names = ", ".join(one.source.partition("/")[2] for one in governed)
    if all(one.grants is None for one in governed):
        return f"{names} has not said yet what is granted"
    more = "; a release that could not be read may not be over" if lost else ""
    return f"no grant of {names} that is in force names it{more}"
