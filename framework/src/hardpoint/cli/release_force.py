"""``hardpoint release --force`` and ``--clear-lost``: what ends against the evidence."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import anyio

from hardpoint._core.grants.lost import SOURCE as LOST
from hardpoint._core.ledger.grantrows import Book, DeviceKey, KnownRelease
from hardpoint._core.ledger.ledger import read_records
from hardpoint._core.ledger.records import Record
from hardpoint._core.levers import LeverRefused, Levers, is_lost, levers, read_book
from hardpoint._core.state import agent_runs, read_status
from hardpoint.cdi_files import CdiDirectory
from hardpoint.cli.holds_forget import holds_json, is_quarantined
from hardpoint.cli.operator import operator, sure
from hardpoint.settings import AgentSettings


def force(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Write down that a release is over, on an operator's word. Raises ``LeverRefused``."""
    book, word = read_book(settings.paths.state), arguments.force
    if any(row.startswith((f"release {word}:", f"grant {word}:")) for row in book.unreadable):
        return _forget_unreadable(word, settings, yes=arguments.yes)
    releases = _named(book, word, settings)
    keys = _devices(word, releases, arguments.device)
    releases = [one for one in releases if one.keys & keys]
    records = read_records(settings.paths.state)
    holds = [r for one in releases for r in holds_of(one, records) if _key(r) in keys]
    if holds and not arguments.holds:
        raise LeverRefused(_still_held(holds))
    names, users = sorted(key.name for key in keys), _users(settings, releases)
    for line in _said(releases[0], names, holds, users):
        print(line)
    if not sure("Call it over?", arguments.yes):
        return 1
    facts = {
        "releases": [one.id for one in releases],
        "allocation": releases[0].grant.allocation,
        "source": releases[0].grant.source,
        "devices": names,
        "users": users,
        "holds": holds_json(holds),
    }
    _pull(settings, lambda lever: lever.end(releases, keys, holds, facts))
    print(f"{', '.join(names)}: released on your word. {_what_next(settings)}")
    return 0


def clear_lost(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Remove the marker of lost releases. Raises ``LeverRefused``."""
    state = settings.paths.state
    if not is_lost(state):
        raise LeverRefused("no releases are lost: there is no marker")
    doubt = [one for one in _noticed(settings) if one.get("source") == LOST]
    devices = [str(name) for one in doubt for name in one["devices"]]
    users = [str(user) for one in doubt for user in one["users"]]
    known = ", ".join(devices) if doubt else "not known while no agent runs and has looked"
    print(f"In doubt: {known}.")
    print(f"Who may be using them: {'; '.join(users) or 'not known'}.")
    if not sure("Is it certain that nobody uses a device outside the grants?", arguments.yes):
        return 1
    facts = {"devices": devices, "users": users}
    _pull(settings, lambda lever: lever.clear_lost(state, facts))
    print("Nothing is in doubt any more, on your word.")
    return 0


def _forget_unreadable(word: str, settings: AgentSettings, *, yes: bool) -> int:
    print(f"What is written down of {word} cannot be read: neither its devices nor who has them.")
    if not sure("Is it certain that nobody has them? Forget it?", yes):
        return 1
    facts = {"unreadable": word}
    _pull(settings, lambda lever: lever.forget_unreadable(word, facts))
    print(f"{word} is forgotten; no source is told.")
    return 0


def _pull(settings: AgentSettings, act: Callable[[Levers], Awaitable[None]]) -> None:
    cdi = CdiDirectory(settings.paths.cdi, settings.cdi_version)

    async def pulled() -> None:
        async with levers(settings.paths.state, cdi, operator()) as lever:
            await act(lever)

    anyio.run(pulled)


# -- which one is meant ---------------------------------------------------------------------------


def _named(book: Book, word: str, settings: AgentSettings) -> Sequence[KnownRelease]:
    """Return the pending releases that a word means. Raises ``LeverRefused`` saying what is."""
    meant = [one for one in book.releases if word and word in _words(one)]
    pending = [one for one in meant if not one.over]
    if not pending:
        raise LeverRefused(_not_pending(book, word, meant, settings))
    sources = {one.grant.source for one in pending}
    if len(sources) > 1:
        ids = ", ".join(f"{one.id} ({one.grant.source})" for one in pending)
        raise LeverRefused(f"{word} is an allocation of {len(sources)} sources: say which, {ids}")
    return pending


def _words(release: KnownRelease) -> tuple[str, ...]:
    """Return what a release may be called: a drain has no allocation."""
    return release.id, release.word


def _not_pending(
    book: Book, word: str, meant: Sequence[KnownRelease], settings: AgentSettings
) -> str:
    if meant:
        return (
            f"the release of {word} is over; {meant[0].grant.source} has not heard of it yet, and "
            "is told again"
        )
    if any(known.grant.allocation == word for known in book.grants):
        ends = "it ends at its source, `hardpoint revoke`"
        if agent_runs(settings.paths.state):
            return f"allocation {word} is granted still: {ends}, which is noticed within 15 seconds"
        ends += ", and the next one notices"
        return f"allocation {word} was granted when an agent ran last: {ends}"
    if word == LOST:
        return "that is --clear-lost"
    if any(word in (one.get("id"), one.get("allocation")) for one in _noticed(settings)):
        return f"{word} is no release of a grant: it is over when the pods that have it are"
    names = ", ".join(sorted({_words(one)[1] for one in book.releases if not one.over}))
    return f"no release of {word} is pending; {f'pending is {names}' if names else 'none is'}"


def _noticed(settings: AgentSettings) -> Sequence[Mapping[str, Any]]:
    """Return what the agent that runs says of releases."""
    state = settings.paths.state
    found = read_status(state).get("releases", ()) if agent_runs(state) else ()
    return [one for one in found if isinstance(one, dict)]


def _devices(
    word: str, releases: Sequence[KnownRelease], names: Sequence[str]
) -> frozenset[DeviceKey]:
    """Return the devices that are meant: all of them unless some are named."""
    keys = frozenset(key for one in releases for key in one.keys)
    unknown = sorted(set(names) - {key.name for key in keys})
    if unknown:
        there = ", ".join(sorted(key.name for key in keys))
        raise LeverRefused(f"{unknown[0]} is not of the release of {word}, which has {there}")
    return frozenset(key for key in keys if not names or key.name in names)


def holds_of(release: KnownRelease, records: Iterable[Record]) -> tuple[Record, ...]:
    """Return what holds a release's devices: under its allocation, or nobody knows which."""
    own = ("", release.grant.allocation)
    return tuple(
        record
        for record in records
        if _key(record) in release.keys
        and (not release.grant.allocation or record.allotment.allocation in own)
    )


def _key(record: Record) -> DeviceKey:
    return DeviceKey(record.claim.dra_driver, record.device.name)


# -- what is said ---------------------------------------------------------------------------------


def _still_held(holds: Sequence[Record]) -> str:
    first = holds[0]
    lever = "quarantine clear" if is_quarantined(first) else "holds forget"
    return (
        f"device {first.device.name} is held still, for {first.holder} (UID {first.claim.uid}): "
        f"first `hardpoint {lever} {first.device.name}`, or --holds forgets that too"
    )


def _users(settings: AgentSettings, releases: Iterable[KnownRelease]) -> list[str]:
    ids = {one.id for one in releases}
    found = [one for one in _noticed(settings) if one.get("id") in ids]
    return [str(user) for one in found for user in one.get("users", ())]


def _said(
    release: KnownRelease, names: Sequence[str], holds: Sequence[Record], users: Sequence[str]
) -> Iterator[str]:
    yield f"Release of {release.word} ({release.grant.source}): {', '.join(names)}."
    yield f"Who may be using them: {'; '.join(users) or 'not known'}."
    for record in holds:
        yield f"{record.device.name} is held for {record.holder}; that is forgotten, not undone."
    yield "They are free to be given to somebody else then, whoever has them open still."


def _what_next(settings: AgentSettings) -> str:
    if agent_runs(settings.paths.state):
        return "The agent takes it up within seconds."
    return "No agent runs: the next one takes it up."
