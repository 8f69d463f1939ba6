"""``hardpoint grant``: give devices to Kubernetes under an allocation, without a control plane."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

import anyio

from hardpoint._core.offline import Look, look
from hardpoint.cli.common import (
    add_json,
    add_machine,
    machine,
    note_no_agent,
    policies_with,
    policy_section,
    settings_of,
)
from hardpoint.cli.output import as_json
from hardpoint.model import Device
from hardpoint.policies.cdi_grants import NAME, CdiGrantsSettings
from hardpoint.policies.cdi_grants.holds import Holds, read_holds, shown
from hardpoint.policies.cdi_grants.writing import (
    NotGranted,
    check_free,
    composed,
    file_of,
    governed,
    grant,
)
from hardpoint.settings import AgentSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_machine(parser)
    add_json(parser)
    parser.add_argument("allocation", help="an id of your own, by which it is revoked")
    parser.add_argument("device", nargs="*", help="name of a device, as `hardpoint devices` has it")
    parser.add_argument(
        "--uuid", action="append", default=[], help="a device by its UUID; may be given again"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write a hold file; the agent takes it up within seconds."""
    settings = settings_of(arguments)
    own = grants_settings(settings)
    file_of(own, arguments.allocation)
    holds = read_holds(own)
    _say_bad(holds)
    with machine(arguments, settings) as node:
        found = anyio.run(look, node, settings)
        mine = [o.device for o in found.offer.devices if governed(own, o.device.kind)]
        wanted = _wanted(own, mine, arguments.device, arguments.uuid, found)
        check_free(holds, own, wanted, mine)
        document = composed(own, wanted, node, known=mine, newest=settings.cdi_version)
    path = grant(own, arguments.allocation, document)
    if arguments.json:
        names = [device.name for device in wanted]
        as_json({"allocation": arguments.allocation, "file": str(path), "devices": names})
    else:
        print(f"{path} grants {', '.join(device.name for device in wanted)}.", flush=True)
    if NAME in settings.policies:
        note_no_agent(settings, "they are offered once one does")
    return 0


def grants_settings(settings: AgentSettings) -> CdiGrantsSettings:
    """Return the policy's section; say so where the policy is not among those that run."""
    if NAME not in settings.policies:
        print(
            f"hardpoint: note: {NAME} is not among the policies; hold files have an effect with "
            f"{policies_with(settings, NAME)}",
            file=sys.stderr,
        )
    return policy_section(settings, NAME, CdiGrantsSettings)


def _say_bad(holds: Holds) -> None:
    for bad in holds.bad:
        print(
            f"hardpoint: note: {shown(bad.name)}: {bad.reason}; what it grants is not known",
            file=sys.stderr,
        )


def _wanted(
    settings: CdiGrantsSettings,
    mine: Sequence[Device],
    names: Iterable[str],
    uuids: Iterable[str],
    found: Look,
) -> list[Device]:
    """Return the devices that are meant, each by its name or its UUID. Raises ``NotGranted``."""
    wanted = [
        _one([one for one in mine if one.name == name], name, settings, mine, found)
        for name in names
    ]
    wanted += [
        _one([o for o in mine if o.attributes.get("uuid") == uuid], uuid, settings, mine, found)
        for uuid in uuids
    ]
    if not wanted:
        raise NotGranted(f"name a device, or give --uuid; {_there_are(settings, mine)}")
    return wanted


def _one(
    fits: Sequence[Device],
    word: str,
    settings: CdiGrantsSettings,
    mine: Sequence[Device],
    found: Look,
) -> Device:
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise NotGranted(f"{len(fits)} devices are called {shown(word)}")
    other = found.offer.find(word)
    if other is not None:
        kinds = ", ".join(settings.kinds)
        raise NotGranted(
            f"{word} is a {other.device.kind}, which needs no grant: {NAME} governs {kinds}"
        )
    for withheld in found.offer.withheld:
        if withheld.subject == word:
            raise NotGranted(f"{word} is not offered: {withheld.reason}")
    raise NotGranted(f"this node has no device {shown(word)}; {_there_are(settings, mine)}")


def _there_are(settings: CdiGrantsSettings, mine: Sequence[Device]) -> str:
    names = ", ".join(sorted(device.name for device in mine)) or "none"
    return f"of the kinds {', '.join(settings.kinds)} there are: {names}"
