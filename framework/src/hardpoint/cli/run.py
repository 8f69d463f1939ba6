"""``hardpoint run``: the agent, until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
from anyio.abc import TaskStatus

from hardpoint._core import logs
from hardpoint._core.agent import HardpointAgent
from hardpoint._core.cluster import labels_of_node
from hardpoint.cli.common import add_machine, machine, this_machine
from hardpoint.cli.output import fail, known, sentence
from hardpoint.node import Node
from hardpoint.settings import AgentSettings, load, needs_labels

_log = logging.getLogger("hardpoint.agent")

LAST_WORDS = 5.0
"""Seconds between a signal and the end of the process; the kubelet kills it after 30."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_machine(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the agent to its end.

    The process ends by ``os._exit``: a driver that hangs in a thread must not keep it alive.
    """
    settings = load(arguments.config)
    os.umask(0o022)  # what is made below is nobody else's to write, whoever started us
    logs.configure(settings.log.format, settings.log.level)
    with _machine(arguments, settings) as node:
        try:
            anyio.run(_serve, arguments, settings, node)
            status = 0
        except Exception as error:  # noqa: BLE001 - it ends the process, not only the command
            status = _report(error)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


@contextmanager
def _machine(arguments: argparse.Namespace, settings: AgentSettings) -> Iterator[Node]:
    """Open the machine to serve. A recorded one is served under the name of this node."""
    with machine(arguments, settings) as node:
        if node.recorded:
            node.name = this_machine(settings).name
            _log.warning(
                "serving a recorded machine node=%s tree=%s: its device numbers are delivered "
                "unchecked, and on this node they may be other hardware",
                node.name,
                arguments.sysfs,
            )
        yield node


async def _serve(arguments: argparse.Namespace, settings: AgentSettings, node: Node) -> None:
    async with anyio.create_task_group() as tasks:
        await tasks.start(_until_told, tasks.cancel_scope)
        if needs_labels(arguments.config):
            settings = load(arguments.config, labels=await labels_of_node(settings))
        await HardpointAgent(settings, node).run()


async def _until_told(
    scope: anyio.CancelScope, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """End everything at the first signal. A process that is PID 1 would else not hear it."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for received in signals:
            _log.info("stopping signal=%s", received.name)
            _end_at_the_latest()
            scope.cancel()
            return


def _end_at_the_latest() -> None:
    """End the process soon, also if a plugin keeps a task of its own from being cancelled."""

    def end() -> None:
        _log.error("a plugin does not end; ending without it")
        os._exit(1)

    last = threading.Timer(LAST_WORDS, end)
    last.daemon = True
    last.start()


def _report(error: Exception) -> int:
    causes = known(error)
    if causes is None:
        print(logs.trace(error), file=sys.stderr)
    for cause in causes or ():
        fail(sentence(cause))
    return 1
