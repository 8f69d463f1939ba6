"""Entry point of the ``hardpoint`` command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

import hardpoint
from hardpoint.cli.output import fail
from hardpoint.errors import HardpointError

COMMANDS = {
    "run": "run the agent",
    "status": "what is offered, held, pending and wrong on this node",
    "devices": "the devices of this node or of a recorded one, and why others are not offered",
    "slice": "the ResourceSlices that would be written",
    "attributes": "the attribute reference of the installed drivers",
    "plugins": "what is installed, what runs, and why the rest does not",
    "holds": "which claim holds which device",
    "quarantine": "devices that a driver could not give back, and how to clear them",
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
    words = sys.argv[1:] if argv is None else argv
    arguments = parser(words).parse_args(words)
    try:
        status: int = importlib.import_module(f"hardpoint.cli.{arguments.command}").run(arguments)
        sys.stdout.flush()
    except HardpointError as error:
        return fail(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
