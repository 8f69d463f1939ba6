"""Who pulls a lever, whether they mean it, and what the node knows against it."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping

import anyio

from hardpoint._core.ledger.records import Record
from hardpoint._core.pods.podlist import PodList
from hardpoint.cli.output import fail
from hardpoint.errors import HardpointError
from hardpoint.settings import AgentSettings


def operator() -> str:
    """Return who runs this command: by its user, and who became that by ``sudo``."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # of a container's user there may be no entry
        name = f"user {os.getuid()}"
    before = os.environ.get("SUDO_USER", "")
    return f"{name}, by sudo of {before:.64}" if before and before != name else name


def sure(question: str, yes: bool) -> bool:
    """Ask, unless that was answered by ``--yes``; where nobody can be asked, it is no."""
    if yes:
        return True
    if not sys.stdin or not sys.stdin.isatty():
        fail("nobody can be asked here: say --yes")
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    fail("nothing is done")
    return False


def users_of(
    settings: AgentSettings, records: tuple[Record, ...]
) -> tuple[Mapping[int, tuple[str, ...]], str]:
    """Ask the kubelet which pods have what is held, by the hold's row; or why that is not known."""
    try:
        listed = anyio.run(_listed, settings)
    except (HardpointError, OSError, ImportError) as error:
        return {}, str(error)
    users = {
        record.id: listed.users(record.claim, record.device.name, record.allotment.allocation)
        for record in records
    }
    return {row: tuple(dict.fromkeys(map(str, found))) for row, found in users.items()}, ""


async def _listed(settings: AgentSettings) -> PodList:
    from hardpoint.kubelet.podsource import PodSource

    source = PodSource(settings.paths.kubelet, settings.paths.device_plugins)
    return PodList.of(await source.list())
