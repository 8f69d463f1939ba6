"""Who is not root is told so: what a plain user may not see is not said to be absent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from shell import Answer, Shell

from hardpoint._core.state import mark_running, write_status

BECOME = """
import contextlib, importlib, io, os, sys
from hardpoint.cli.__main__ import COMMANDS, main
for command in COMMANDS:
    importlib.import_module(f"hardpoint.cli.{command}")
if sys.argv[1] in ("devices", "doctor"):  # whose modules are imported as they are needed
    with contextlib.redirect_stdout(io.StringIO()):
        main(sys.argv[1:])
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""
ADVICE = "Permission denied; run it as root on the node, or in the agent's container\n"


class PlainUser:
    """Asks as somebody who is not root, who need not be able to read this interpreter's files."""

    def __init__(self, shell: Shell) -> None:
        self.shell, self.state, self.config = shell, shell.state, shell.config

    def __call__(self, *words: str, **variables: str) -> Answer:
        done = subprocess.run(
            [sys.executable, "-c", BECOME, *words],
            env=self.shell.environment | variables,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def plain(shell: Shell) -> Iterator[PlainUser]:
    """Commands of a plain user, on a node where root's agent runs."""
    shell.root.chmod(0o755)
    shell.state.mkdir(mode=0o700)
    running = mark_running(shell.state)
    write_status(shell.state, {"ready": True})
    (shell.state / "ledger.db").touch()
    if os.geteuid() != 0:
        shell.state.chmod(0)
    yield PlainUser(shell)
    shell.state.chmod(0o700)
    os.close(running)


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (("status",), "running"),
        (("status", "--json"), "running"),
        (("status", "--ready"), "running"),
        (("drain", "--status"), "drain"),
        (("drain", "--undo"), "drain"),
        (("release",), "ledger.db"),
        (("release", "--force", "a-1", "--yes"), "ledger.db"),
        (("holds", "--device", "radio0"), "ledger.db"),
        (("audit",), "ledger.db"),
    ],
)
def test_who_may_not_look_is_told_whom_to_be(
    plain: Shell, words: tuple[str, ...], file: str
) -> None:
    answer = plain(*words)

    assert (answer.code, answer.out) == (1, "")
    assert answer.err == f"hardpoint: {plain.state}/{file}: {ADVICE}"


def test_who_may_not_ask_for_a_drain_is_told_whom_to_be(plain: PlainUser) -> None:
    plain.config.write_text('policies = ["drain"]\n')

    answer = plain("drain")

    assert (answer.code, answer.out) == (1, "")
    assert answer.err.endswith(ADVICE)


def test_the_devices_are_shown_with_a_note_that_the_agent_was_not_asked(plain: PlainUser) -> None:
    answer = plain("devices", HARDPOINT_PATHS__SYS=str(plain.shell.machine.save() / "sys"))

    assert (answer.code, answer.err) == (0, "")
    note = f"what an agent says of it is not known: {plain.state}/running: {ADVICE}"
    assert f"note: {note}" in answer.out


def test_the_doctor_does_not_say_that_no_agent_runs(plain: PlainUser) -> None:
    found = {one["subject"]: one for one in plain("doctor", "--json").json}

    assert found["agent"] == {
        "level": "warn",
        "subject": "agent",
        "found": f"cannot look: {plain.state}/running: Permission denied",
        "do": "run the doctor as root on the node",
    }
