"""The program that attaches a serial line, as far as a pseudo terminal goes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from hardpoint_usb import attach

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "deploy/systemd/hardpoint-serio@.service"


def test_the_line_is_raw_at_9600_baud_and_eight_bits() -> None:
    master, line = pty.openpty()
    try:
        attach.make_raw(line)
        received, sent, control, local, speed, _, characters = termios.tcgetattr(line)
    finally:
        os.close(line)
        os.close(master)

    assert received == termios.IGNBRK | termios.IGNPAR
    assert (sent, local) == (0, 0)
    assert control & termios.CSIZE == termios.CS8
    assert control & termios.CREAD
    assert control & termios.CLOCAL
    assert not control & (termios.PARENB | termios.CSTOPB | termios.CRTSCTS)
    assert speed == termios.B9600
    assert (characters[termios.VMIN], characters[termios.VTIME]) in {(1, 0), (b"\x01", b"\x00")}


def test_the_numbers_are_those_of_the_kernels_headers() -> None:
    assert attach.PROTOCOLS == {"pulse8-cec": 0x40, "rainshadow-cec": 0x41}
    assert (0x40087101 if sys.maxsize > 2**32 else 0x40047101) == attach.SPIOCSTYPE
    assert (attach.TIOCSETD, attach.N_MOUSE) == (0x5423, 2)


def test_a_terminal_that_cannot_be_attached_is_said_and_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without serport, or the right to it, the kernel refuses the line discipline."""
    master, line = pty.openpty()
    name = os.ttyname(line).removeprefix("/dev/")
    monkeypatch.setattr(attach, "TIOCSETD", 0x54FF)  # where serport is there, it would wait
    try:
        status = attach.main([f"pulse8-cec:{name}"])
    finally:
        os.close(line)
        os.close(master)

    assert status == attach.NOT_ATTACHED
    assert capsys.readouterr().err.startswith("hardpoint-serio: ")


def test_a_line_that_is_not_there_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert attach.main(["pulse8-cec:ttyACM999"]) == attach.NO_LINE
    assert "/dev/ttyACM999" in capsys.readouterr().err


@pytest.mark.parametrize(
    "word", ["", "ttyACM0", "pulse8-cec", "pulse8-cec:", "mouse:ttyACM0", "pulse8-cec:../../x"]
)
def test_anything_but_a_protocol_and_a_line_ends_with_advice(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        attach.parse([word])

    assert end.value.code == 2
    assert "hardpoint-serio" in capsys.readouterr().err


def test_a_line_may_be_given_by_its_path() -> None:
    assert attach.parse(["rainshadow-cec:/dev/ttyUSB3"]) == ("rainshadow-cec", "/dev/ttyUSB3")


def test_it_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; import hardpoint_usb.attach; "
        "print([m for m in sys.modules if m in ('hardpoint', 'pydantic', 'anyio')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_the_unit_knows_the_exit_statuses() -> None:
    text = UNIT.read_text()

    assert f"RestartPreventExitStatus={attach.NO_LINE}" in text
    assert f"SuccessExitStatus={attach.NO_LINE}" in text
    assert "ExecStart=/usr/bin/env hardpoint-serio %i" in text
