"""``hardpoint run``: the agent, until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import os
import signal
import sys

import anyio

from hardpoint._core import logs
from hardpoint._core.agent import HardpointAgent
from hardpoint._core.cluster import labels_of_node
from hardpoint.cli.common import add_settings, this_machine
from hardpoint.settings import AgentSettings, load, needs_labels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the agent to its end.

    The process ends by ``os._exit``: a driver that hangs in a thread must not keep it alive.
    """
    settings = load(arguments.config)
    logs.configure(settings.log.format, settings.log.level)
    if needs_labels(arguments.config):
        labels = anyio.run(labels_of_node, settings)
        settings = load(arguments.config, labels=labels)
    status = 0
    try:
        anyio.run(_serve, settings)
    except BaseExceptionGroup as group:
        status = _report(group)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def _serve(settings: AgentSettings) -> None:
    agent = HardpointAgent(settings, this_machine(settings))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_until_told, tasks.cancel_scope)
        await agent.run()


async def _until_told(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            scope.cancel()
            return


def _report(group: BaseExceptionGroup[BaseException]) -> int:
    from hardpoint.cli.output import fail
    from hardpoint.errors import HardpointError

    known, rest = group.split(HardpointError)
    if rest is not None:
        raise rest
    for error in known.exceptions if known else ():
        fail(error)
    return 1
