"""Entry point of the ``hardpoint`` command."""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import sys
import threading
from collections.abc import Sequence

import hardpoint
from hardpoint.cli.output import fail, hush, known, sentence

COMMANDS = {
    "run": "run the agent",
    "status": "what is offered, held, pending and wrong on this node",
    "devices": "the devices of this node or of a recorded one, and why others are not offered",
    "slice": "the ResourceSlices that would be written",
    "attributes": "the attribute reference of the installed drivers",
    "plugins": "what is installed, what runs, and why the rest does not",
    "holds": "which claim holds which device",
    "grant": "give devices to Kubernetes under an allocation, by a hold file",
    "revoke": "take back what was granted under an allocation",
    "release": "grants that ended, who uses their devices still, and how to end that",
    "drain": "hand this node back to its cluster, or take it into service again",
    "quarantine": "devices that a driver could not give back, and how to clear them",
    "audit": "what operators did against what the agent knew",
    "doctor": "look for what keeps this node from working",
    "demo": "publish this machine to an embedded cluster and walk one claim through",
}


def parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the command's parser for these words; only the subcommand among them is imported."""
    top = argparse.ArgumentParser(
        prog="hardpoint", description="Hardware of a Kubernetes node, offered to its pods."
    )
    top.add_argument("--version", action="version", version=f"hardpoint {hardpoint.__version__}")
    subcommands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    wanted = next((word for word in words if word in COMMANDS), None)
    for name, summary in COMMANDS.items():
        sentence = f"{summary[0].upper()}{summary[1:]}."
        sub = subcommands.add_parser(name, help=summary, description=sentence)
        if wanted in (None, name):
            importlib.import_module(f"hardpoint.cli.{name}").add_arguments(sub)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 done, 1 not done, 2 not understood."""
    if argv is None:
        _speak_utf8()
    status = _outcome(sys.argv[1:] if argv is None else argv)
    if argv is None and any(_is_stuck(thread) for thread in threading.enumerate()):
        sys.stderr.flush()
        os._exit(status)  # a driver hangs in it, and Python would wait for it for ever
    return status


def _speak_utf8() -> None:
    """Print hardware's own names in whatever locale: JSON and YAML are UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _is_stuck(thread: threading.Thread) -> bool:
    return thread is not threading.main_thread() and not thread.daemon


def _outcome(words: Sequence[str]) -> int:
    arguments = parser(words).parse_args(words)
    logging.getLogger("hardpoint").addHandler(logging.NullHandler())  # commands say what fails
    try:
        status: int = importlib.import_module(f"hardpoint.cli.{arguments.command}").run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        causes = known(error)
        if causes is None:
            raise
        return _not_done(causes)
    return status


def _not_done(causes: Sequence[Exception]) -> int:
    """Say why in one line each; nothing to a reader that has left, as ``head`` does."""
    if any(isinstance(cause, BrokenPipeError) for cause in causes):
        hush()
        return 1
    for cause in causes:
        fail(sentence(cause))
    if any(isinstance(cause, OSError) for cause in causes):
        hush()  # what is buffered for a full disk would fail again when Python ends
    return 1


if __name__ == "__main__":
    sys.exit(main())
