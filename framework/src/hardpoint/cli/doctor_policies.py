"""The doctor's look at policies: whether what is granted can end, and what keeps it from that."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import anyio

from hardpoint._core.grants.lost import CONDITION as LOST
from hardpoint._core.grants.lost import MARKER
from hardpoint._core.grants.releases import STUCK, STUCK_AFTER
from hardpoint._core.ledger.grantrows import Book, KnownRelease
from hardpoint._core.levers import is_lost, read_book
from hardpoint._core.offline import look, start_plugins
from hardpoint._core.plugins.policywords import PolicyWords, words_of
from hardpoint._core.state import agent_runs, read_status
from hardpoint.cli.common import policies_with, this_machine
from hardpoint.cli.findings import Finding
from hardpoint.cli.holds import age
from hardpoint.settings import AgentSettings

_EVIDENCE = (
    'name one in policies = [...]: "pod_resources" asks the kubelet, "prepared_claims" what is '
    'prepared, "kubepods_processes" the processes; without one nothing is ever released'
)


def policies(settings: AgentSettings) -> Iterator[Finding]:
    """Say which policies run, and whether those that grants need are among them."""
    plugins = start_plugins(settings, this_machine(settings), roles=("policy",))
    words = words_of(plugins)
    if words:
        names = ", ".join(one.id.partition("/")[2] for one in words)
        yield Finding("ok", "policies", f"{names} run")
    elif not settings.policies:
        yield Finding("ok", "policies", "none is named: all is granted, and nobody is reaped")
    for plugin in plugins.all:
        if (
            plugin.role == "policy"
            and plugin.state == "disabled"
            and plugin.name in settings.policy
        ):
            remedy = f"{policies_with(settings, plugin.name)}, if it is to run on this node"
            yield Finding("warn", plugin.id, plugin.reason, remedy)
    for one in words:
        if "find_users" in one.hooks and one.not_applicable:
            yield Finding("warn", one.id, f"does not apply here: {one.not_applicable}")
    sources = [one for one in words if "grant_devices" in one.hooks]
    if sources:
        kinds = _kinds_here(settings)
        yield from _governed(sources, kinds)
        yield from _evidence(words, [k for k in kinds if any(s.is_about(k) for s in sources)])
        yield from _reaper(words)


def _kinds_here(settings: AgentSettings) -> tuple[str, ...]:
    found = anyio.run(look, this_machine(settings), settings)
    return tuple(sorted({one.device.kind for one in found.offer.devices}))


def _governed(sources: Iterable[PolicyWords], kinds: Sequence[str]) -> Iterator[Finding]:
    for source in sources:
        mine = [kind for kind in kinds if source.is_about(kind)]
        patterns = ", ".join(source.kinds) or "none"
        if mine:
            yield Finding("ok", source.id, f"governs what is here of {', '.join(mine)}")
        elif source.kinds:
            there = ", ".join(kinds) or "no device"
            yield Finding(
                "warn",
                source.id,
                f"governs {patterns}, and no device of this node is of such a kind",
                f"here are: {there}",
            )
        else:
            yield Finding("warn", source.id, "names no kinds, so that it governs nothing")


def _evidence(words: Iterable[PolicyWords], kinds: Iterable[str]) -> Iterator[Finding]:
    """Say for which kinds nobody could ever say that a device is free."""
    sources = [one for one in words if "find_users" in one.hooks and not one.not_applicable]
    if not sources:
        yield Finding("fail", "evidence", "no source of evidence can be asked here", _EVIDENCE)
        return
    dark = [kind for kind in kinds if not any(not s.kinds or s.is_about(kind) for s in sources)]
    if dark:
        what = f"no source of evidence is about {', '.join(dark)}"
        yield Finding("fail", "evidence", what, _EVIDENCE)
    else:
        names = ", ".join(one.id.partition("/")[2] for one in sources)
        yield Finding("ok", "evidence", f"{names} say who uses what is released")


def _reaper(words: Iterable[PolicyWords]) -> Iterator[Finding]:
    names = ", ".join(one.id.partition("/")[2] for one in words if "reap_pod" in one.hooks)
    if names:
        yield Finding("ok", "reaper", names)
    else:
        yield Finding(
            "warn",
            "reaper",
            "none runs: pods keep a device whose grant has ended for as long as they like",
            'name "pod_reaper" in policies = [...]',
        )


def grants(settings: AgentSettings) -> Iterator[Finding]:
    """Say what of grants and releases does not go on by itself."""
    state = settings.paths.state
    book = read_book(state)
    for known in book.grants:
        if not known.outcome.in_force:
            why = f"refused, {known.outcome.outcome.value}: {known.outcome.reason}"
            yield Finding("warn", f"grant {known.grant.allocation}", why)
    yield from _releases(book)
    for row in book.unreadable:
        yield Finding("fail", "ledger", f"{row}: what it was about is not known")
    if is_lost(state):
        yield Finding(
            "fail",
            "releases",
            f"which were pending is not known any more ({state / MARKER}): what is not granted "
            "now is granted once nobody uses it",
            "wait; or make sure that nobody does: hardpoint release --clear-lost",
        )
    if book.withdrawn:
        why = f"nothing is offered on this node: {book.withdrawn}"
        yield Finding(
            "warn", "withdrawn", why, "the policy `drain` ends it once nothing asks for it"
        )
    yield from _conditions(settings)


def _releases(book: Book) -> Iterator[Finding]:
    for release in book.releases:
        if time.time() - release.since >= STUCK_AFTER:
            yield _late(release)


def _late(release: KnownRelease) -> Finding:
    devices = ", ".join(one.device.name for one in release.devices)
    if release.over:
        what = f"over, and {release.grant.source} has not taken that in"
        return Finding("warn", f"release {release.word}", f"{devices}: {what}", "see its faults")
    return Finding(
        "fail",
        f"release {release.word}",
        f"{devices}: pending for {age(release.since)}",
        "`hardpoint release` says who uses them; --force is the way out",
    )


def _conditions(settings: AgentSettings) -> Iterator[Finding]:
    """Say what the agent that runs says of the node, but for what the ledger has said above."""
    state = settings.paths.state
    found = read_status(state).get("conditions", ()) if agent_runs(state) else ()
    for one in found:
        if one["type"] not in (STUCK, LOST):
            level = "fail" if one.get("trouble", True) else "ok"
            yield Finding(level, one["type"], f"{one['reason']}: {one['message']}")
