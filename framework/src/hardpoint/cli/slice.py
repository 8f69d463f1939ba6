"""``hardpoint slice``: the objects that frontends would write to Kubernetes, with no cluster."""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import Any

import anyio

from hardpoint._core.offer.shares import Shares
from hardpoint._core.offline import look, shares, start_plugins
from hardpoint._core.plugins.faults import FaultBoard
from hardpoint._core.plugins.relay import Relay
from hardpoint.cli.common import add_json, add_machine, machine, settings_of
from hardpoint.cli.output import as_json, fail
from hardpoint.errors import HardpointError
from hardpoint.model import Offer
from hardpoint.node import Node
from hardpoint.settings import AgentSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_machine(parser)
    add_json(parser)
    parser.add_argument(
        "--api",
        default="v1",
        choices=("v1", "v1beta2", "v1beta1"),
        help="version of resource.k8s.io to show (default: v1)",
    )
    parser.add_argument("--node", metavar="NAME", help="name of the node in what is shown")


def run(arguments: argparse.Namespace) -> int:
    """Look at the machine, ask the frontends, print YAML (or JSON)."""
    settings = settings_of(arguments)
    with machine(arguments, settings) as node:
        node.name = arguments.node or node.name
        objects, faults = anyio.run(_objects, node, settings, arguments.api)
    if arguments.json:
        as_json(objects)
    elif objects:
        print("---\n".join(_yaml(each) for each in objects), end="")
    else:
        print("# nothing would be written: this machine offers no device")
    for fault in faults:
        fail(fault)
    return 1 if faults else 0


async def _objects(
    node: Node, settings: AgentSettings, version: str
) -> tuple[list[Any], list[str]]:
    found = await look(node, settings)
    plugins, board = start_plugins(settings, node, roles=("frontend",)), FaultBoard()
    async with Relay(plugins, board) as relay:
        answers = await _previews(relay, shares(settings, plugins), found.offer, version)
    refused = [f"{p.id}: {p.reason}" for p in plugins.all if p.state in ("refused", "missing")]
    faults = [f"{e.source}: {e.message}" for e in (*found.faults, *board.entries)]
    return [each for answer in answers for each in answer], refused + faults


async def _previews(relay: Relay, shares: Shares, offer: Offer, version: str) -> list[Any]:
    """Ask each frontend for what it would write of the devices that it offers."""
    answers = []
    for plugin in relay.implementations("preview_offer"):
        view = shares.view(plugin.removeprefix("frontend/"), offer)
        with suppress(HardpointError):  # it is on the board
            answers.append(await relay.plugin("preview_offer", plugin, offer=view, version=version))
    return answers


def _yaml(value: Any) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes text that another reader of YAML takes for something else."""

    Dumper.add_representer(str, _text)
    return str(yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100))


def _text(dumper: Any, value: str) -> Any:
    """Write text, quoted where it begins as a number or is one letter.

    The library has rules of its own for what is text without quotes: the class code 068000 and the
    product 46e4, which kubectl reads as numbers, and y, which it reads as true. Then it refuses
    the slice.
    """
    style = "'" if value[:1] in set("0123456789+-.") or len(value) == 1 else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)
