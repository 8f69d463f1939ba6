"""`hardpoint devices` where grants decide: what the agent that runs says, or that none does."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import anyio
import pytest
from shell import Answer, Shell
from strange_policies import run

from hardpoint._core.ledger.grantrows import (
    KnownGrant,
    KnownRelease,
    Meant,
    keep_grant,
    keep_release,
)
from hardpoint._core.ledger.ledger import Ledger
from hardpoint._core.state import mark_running, write_status
from hardpoint.grants import Grant, GrantOutcome, Outcome
from hardpoint.model import Device

REASONS = {
    "not-granted": "no grant of radios that is in force names it",
    "releasing": "allocation a-1 has ended, and it is not certain yet that nobody uses the device",
    "withdrawn": "nothing is offered on this node: maintenance",
    "vetoed": "another DRA driver offers the same hardware: uninstall it",
    "quarantined": "it does not answer",
}


def ask(shell: Shell, *words: str) -> Answer:
    """Ask on the machine itself, not of a recorded one."""
    return shell("devices", *words, HARDPOINT_PATHS__SYS=str(shell.machine.save() / "sys"))


@contextmanager
def agent(shell: Shell, not_offered: Sequence[Mapping[str, str]]) -> Iterator[None]:
    shell.state.mkdir(mode=0o700, exist_ok=True)
    running = mark_running(shell.state)
    write_status(shell.state, {"not_offered": list(not_offered)})
    try:
        yield
    finally:
        os.close(running)


@pytest.mark.parametrize("rule", REASONS)
def test_why_gives_the_reason_that_the_agent_has(shell: Shell, rule: str) -> None:
    run(shell, "radios")
    said = {"subject": "radio0", "driver": "radios", "rule": rule, "reason": REASONS[rule]}
    with agent(shell, [said]):
        why, one, as_json = ask(shell, "--why"), ask(shell, "radio0"), ask(shell, "--json")

    (row,) = why.out.splitlines()[1:]
    assert row.split(maxsplit=3) == ["radio0", "radios", rule, REASONS[rule]]
    assert one.code == 1
    assert one.out.startswith("radio0 is not offered.\n")
    assert as_json.json["devices"] == []
    assert as_json.json["not_offered"] == [said]


def test_without_an_agent_it_is_said_that_nobody_knows_what_is_granted(shell: Shell) -> None:
    run(shell, "radios")

    answer = ask(shell)

    assert "radio0" in answer.out
    assert (
        "note: of radio the agent offers what radios grants and nothing else, which is not asked "
        "here; an agent has written down last: granted nothing\n"
    ) in answer.out


def test_without_an_agent_nothing_that_needs_a_grant_is_called_offered(shell: Shell) -> None:
    run(shell, "radios")

    assert "radio0 is offered while a grant names it.\n" in ask(shell, "--why", "radio0").out


def test_without_an_agent_what_was_granted_last_is_said(shell: Shell) -> None:
    run(shell, "radios")
    grant, radio = Grant(allocation="a-1", source="policy/radios"), Device(name="r0", kind="radio")
    known = KnownGrant(
        grant=grant, devices=(Meant("d", radio),), outcome=GrantOutcome(Outcome.IN_FORCE)
    )
    release = KnownRelease(id="i", grant=grant, devices=known.devices, since=1.0)
    ledger = Ledger(shell.state)
    anyio.run(ledger.write, lambda db: keep_grant(db, known))
    anyio.run(ledger.write, lambda db: keep_release(db, release))
    ledger.close()

    assert "granted r0 (a-1), being released r0\n" in ask(shell, "--why").out


def test_of_a_recorded_machine_no_agent_knows_anything(shell: Shell) -> None:
    run(shell, "radios")
    said = {"subject": "radio0", "driver": "radios", "rule": "vetoed", "reason": "by another"}
    with agent(shell, [said]):
        found = shell("devices", "--sysfs", shell.tree, "--json").json

    assert [one["name"] for one in found["devices"]] == ["radio0"]


def test_where_no_policy_is_named_nothing_is_noted(shell: Shell) -> None:
    run(shell)

    assert "note:" not in ask(shell).out
