"""Who pulls a lever, and whether they mean it."""

from __future__ import annotations

import os
import pty
import subprocess

import anyio
import anyio.to_thread
import pytest
from shell import Answer, Shell

from hardpoint._core.ledger.ledger import Ledger, Want
from hardpoint._core.ledger.locks import ClaimLocks
from hardpoint.cli.operator import operator
from hardpoint.model import Allotment, Claim, ClaimKey, Device, HoldState

KEY = ClaimKey("uid-1", "media", "player", "hardpoint.dev")


def hold(shell: Shell, *, quarantined: bool = False) -> int:
    """Hold a radio, or let its driver have failed to give it back; return the row."""
    want = Want(
        allotment=Allotment(request="r", device="radio0", pool="node-1"),
        device=Device(name="radio0", kind="radio", driver="radios"),
        cdi_vendor="hardpoint.dev",
        cdi_name=f"{KEY.uid}-radio0",
        parts=(),
        undo=False,
    )

    async def write() -> int:
        ledger = Ledger(shell.state)
        try:
            (record,) = await ledger.take(Claim(key=KEY), [want], "boot-1")
            if quarantined:
                await ledger.retire(record, HoldState.QUARANTINED, "it does not answer")
            return record.id
        finally:
            ledger.close()

    return anyio.run(write)


def at_a_terminal(shell: Shell, answer: str, *words: str) -> subprocess.CompletedProcess[str]:
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer.encode())
        return subprocess.run(
            shell.words(*words),
            env=shell.environment,
            stdin=theirs,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)


def test_at_a_terminal_it_is_asked_and_yes_does_it(shell: Shell) -> None:
    hold(shell)

    done = at_a_terminal(shell, "y\n", "holds", "forget", "radio0")

    assert done.returncode == 0
    assert done.stderr == "Forget that it is held? [y/N] "
    assert shell("holds", "--json").json == []


@pytest.mark.parametrize("answer", ["\n", "n\n", "yess\n"])
def test_anything_but_yes_does_nothing(shell: Shell, answer: str) -> None:
    hold(shell)

    done = at_a_terminal(shell, answer, "holds", "forget", "radio0")

    assert done.returncode == 1
    assert done.stderr.endswith("hardpoint: nothing is done\n")
    assert [one["device"] for one in shell("holds", "--json").json] == ["radio0"]


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    monkeypatch.delenv("SUDO_USER", raising=False)

    assert operator() == "user 54321"


def test_who_became_root_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setenv("SUDO_USER", "alice")

    assert operator() == "root, by sudo of alice"


def test_a_quarantine_is_not_cleared_while_a_call_into_its_driver_runs(shell: Shell) -> None:
    """It might undo what the next claim has been given by then."""
    row = hold(shell, quarantined=True)

    async def asked() -> Answer:
        locks = ClaimLocks(shell.state / "claims.lock")
        try:
            async with locks.turn(f"{KEY.uid}/{row}", "media/player"):
                return await anyio.to_thread.run_sync(
                    lambda: shell("quarantine", "clear", "radio0")
                )
        finally:
            locks.close()

    answer = anyio.run(asked)

    assert answer.code == 1
    assert "a call for the quarantine after media/player is under way" in answer.err
    assert shell("quarantine", "clear", "radio0").code == 0


def test_what_waits_for_its_driver_is_not_for_this_lever(shell: Shell) -> None:
    hold(shell, quarantined=True)

    answer = shell("holds", "forget", "radio0", "--yes")

    said = "no claim holds radio0; it waits for its driver: hardpoint quarantine clear radio0"
    assert answer == Answer(1, "", f"hardpoint: {said}\n")
