"""What commands print does not depend on where it goes, and its reader may leave at any time."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
from pathlib import Path

import pytest
from shell import Shell

ESCAPES = re.compile(r"\x1b")


@pytest.fixture
def some(shell: Shell) -> Shell:
    for number in range(3):
        shell.machine.pci(f"0000:00:0{number}.0", driver="ptp").node(
            "ptp", f"ptp{number}", 247, number
        )
    return shell


def on_terminal(shell: Shell, *words: str, **variables: str) -> str:
    """Run a command on a terminal of 200 columns and return what it shows."""
    master, slave = pty.openpty()
    environment = shell.environment | {"TERM": "xterm", "COLUMNS": "200"} | variables
    process = subprocess.Popen(
        shell.words(*words), env=environment, stdout=slave, stderr=slave, stdin=slave
    )
    os.close(slave)
    shown = b""
    while select.select([master], [], [], 30)[0]:
        try:
            piece = os.read(master, 4096)
        except OSError:  # EIO: nobody has the terminal open any more
            break
        shown += piece
    os.close(master)
    assert process.wait(30) == 0
    return shown.decode()


def words_of(text: str) -> list[list[str]]:
    """Return the rows of a table, without the line that stands under a terminal's headings."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return [line.lower().split() for line in plain.splitlines() if line.strip(" ─\r")]


def test_a_terminal_shows_the_same_rows_as_a_pipe(some: Shell) -> None:
    piped = some("devices", "--sysfs", some.tree).out

    assert words_of(on_terminal(some, "devices", "--sysfs", some.tree)) == words_of(piped)


def test_no_color_is_obeyed(some: Shell) -> None:
    shown = on_terminal(some, "devices", "--sysfs", some.tree, NO_COLOR="1", TERM="xterm")

    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", shown)


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "CLICOLOR_FORCE"])
def test_a_pipe_gets_plain_text_whatever_is_set(some: Shell, variable: str) -> None:
    plain = some("devices", "--sysfs", some.tree)

    assert some("devices", "--sysfs", some.tree, **{variable: "1"}) == plain
    assert not ESCAPES.search(plain.out)


def test_json_is_plain_on_a_terminal_too(some: Shell) -> None:
    shown = on_terminal(some, "devices", "--sysfs", some.tree, "--json")

    assert shown.replace("\r\n", "\n") == some("devices", "--sysfs", some.tree, "--json").out


def test_names_are_printed_in_a_locale_without_utf_8(some: Shell) -> None:
    some.machine.usb("1-1", product_name="Zünder", serial="ß").interface(0, driver="cp210x").node(
        "tty", "ttyUSB0", 188, 0
    )
    c_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    for words in (("devices",), ("devices", "--json"), ("slice",)):
        answer = some(*words, "--sysfs", some.tree, **c_locale)
        assert (answer.code, answer.err) == (0, "")
        assert "nder" in answer.out


def test_text_that_kubectl_would_read_as_a_number_is_quoted(shell: Shell) -> None:
    card = shell.machine.pci("0000:00:05.0", device="46e4", klass="068000", driver="acme")
    card.node("acme", "acme0", 240, 0)
    port = shell.machine.usb("1-1", serial="y")
    port.interface(0, driver="acme").node("acme", "acme1", 240, 1)

    text = shell("slice", "--sysfs", shell.tree).out

    for value in ("46e4", "068000", "y"):
        assert f"string: '{value}'" in text
        assert f"string: {value}\n" not in text


@pytest.mark.parametrize("words", [("devices",), ("devices", "--json"), ("slice",), ("demo",)])
def test_a_reader_that_leaves_is_no_error_worth_words(some: Shell, words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        some.words(*words, "--sysfs", some.tree),
        env=some.environment,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writer)

    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_in_a_sentence(some: Shell) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            some.words("devices", "--json", "--sysfs", some.tree),
            env=some.environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )

    assert (done.returncode, done.stderr) == (
        1,
        "hardpoint: No space left on device\n",
    )
