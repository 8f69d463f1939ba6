"""Settings that cannot be used are said in one line: where, what, and what would do."""

from __future__ import annotations

import pytest
from shell import Answer, Shell

COMMANDS = ("devices", "status", "run")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_settings_file_that_is_not_there_is_named(shell: Shell, command: str) -> None:
    answer = shell(command, "--config", "/no/such.toml")

    assert answer == Answer(1, "", "hardpoint: /no/such.toml: no such file\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("domain = ", "is not TOML: Invalid value (at end of document)"),
        ("domain = 7", ": domain: want text (found 7)"),
        ('domain = "Not A Name"', ": domain: want a lower-case DNS subdomain"),
        ('domian = "a.b"', ": domian: unknown key; the keys are cdi_vendor, cdi_version, domain, "),
        ('[paths]\nstat = "/x"', ": paths.stat: unknown key; the keys are cdi, "),
        ('[log]\nlevel = "loud"', ": log.level: want 'debug', 'info', "),
        ('[[rules]]\naction = "deny"', ": rules[0].where: it is missing"),
        ('[names.usb]\ndomane = "a.b"', ": names.usb.domane: unknown key; the keys are "),
        ("[nodes]\nx = 1", ": nodes: is not a list; write [[nodes]]"),
        ("[[nodes]]\nname = 'x'", ": nodes[0]: settings: it is missing"),
    ],
)
def test_a_wrong_setting_is_said_with_its_file_and_key(shell: Shell, text: str, said: str) -> None:
    shell.config.write_text(text)

    answer = shell("holds")

    assert (answer.code, answer.out) == (1, "")
    (line,) = answer.err.splitlines()
    assert line.startswith(f"hardpoint: {shell.config}")
    assert said in line


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("HARDPOINT_DOMAIN", "Not A Name", "HARDPOINT_DOMAIN: want a lower-case DNS subdomain"),
        ("HARDPOINT_DOMIAN", "a.b", "HARDPOINT_DOMIAN: unknown key"),
        ("HARDPOINT_LOG__FORMAT", "xml", "HARDPOINT_LOG__FORMAT: want 'text' or 'json'"),
        ("HARDPOINT_DOMAIN__X", "y", "HARDPOINT_DOMAIN: want text"),
    ],
)
def test_a_wrong_variable_is_said(shell: Shell, variable: str, value: str, said: str) -> None:
    answer = shell("holds", **{variable: value})

    assert (answer.code, answer.out) == (1, "")
    (line,) = answer.err.splitlines()
    assert said in line


def test_a_settings_file_that_is_a_directory_is_said(shell: Shell) -> None:
    answer = shell("holds", "--config", str(shell.root))

    assert answer.code == 1
    assert answer.err.startswith(f"hardpoint: {shell.root}: cannot be read: ")


@pytest.mark.parametrize(
    "words", [(), ("no-such",), ("devices", "--no-such"), ("slice", "--api", "v2")]
)
def test_what_is_not_understood_has_status_2(shell: Shell, words: tuple[str, ...]) -> None:
    answer = shell(*words)

    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("usage: hardpoint")


def test_help_names_every_command(shell: Shell) -> None:
    answer = shell("--help")

    assert answer.code == 0
    for command in ("run", "status", "devices", "slice", "holds", "quarantine", "doctor"):
        assert f"\n    {command}" in answer.out


def test_the_version_is_that_of_the_package(shell: Shell) -> None:
    import hardpoint

    assert shell("--version").out == f"hardpoint {hardpoint.__version__}\n"
