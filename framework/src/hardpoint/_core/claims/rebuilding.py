"""A ledger that was lost, found again in the CDI files, and in what pods have.

The kubelet does not prepare a claim twice, so what a running container has would look free
(kubernetes-sigs/dra-example-driver#248). A hold that is found again lasts until its claim ends or
is prepared anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TypeAlias

from hardpoint import cdi
from hardpoint._core.claims.steps import UNPREPARE, Steps
from hardpoint._core.ledger.ledger import Want
from hardpoint._core.ledger.records import Found
from hardpoint.allocation import Assignment
from hardpoint.cdi_files import ClaimFile
from hardpoint.errors import HoldConflict, HoldDenied
from hardpoint.model import (
    Allotment,
    ClaimKey,
    Delivery,
    Device,
    DeviceNode,
    Domain,
    Event,
    Part,
    parts_of,
)

Turns: TypeAlias = Callable[[ClaimKey], AbstractAsyncContextManager[object]]
"""Waits for a claim's turn, not long."""


async def rebuild(
    steps: Steps,
    domains: Iterable[Domain],
    vendors: Collection[str],
    turn: Turns,
    listed: Callable[[], Awaitable[None]],
) -> None:
    """Hold again what CDI files say is held, and then what pods have (``listed``), for nobody else.

    Each under its claim's turn: another agent may end that claim at this moment. Raises ``OSError``
    where the directory cannot be read, and ``HardpointError``; it is begun anew then.
    """
    good, bad = await steps.composer.in_thread(lambda: steps.files.claims(vendors))
    for file in bad:
        _tell(steps, "cdi-unreadable", f"{file.path}: {file.reason}")
    own = tuple(domains)
    for found in good:
        if not await _is_known(steps, found):
            async with turn(ClaimKey(found.uid, "", "", "")):
                await _adopt_file(steps, own, found)
    await listed()
    await steps.ledger.rebuilt()


async def adopt(steps: Steps, assignment: Assignment, turn: Turns) -> bool:
    """Hold what a pod has under an id, if nothing holds it; say whether it is held anew.

    Raises ``HoldDenied`` for a device that is not offered: what it delivers is not known then.
    """
    key, name = assignment.key, assignment.device
    async with turn(key):
        if any(not r.retired for r in await steps.ledger.of_claim(key.uid)):
            return False
        offered = steps.offer().find(name, key.dra_driver)
        if offered is None:
            raise HoldDenied(f"device {name} of a pod is not offered", reason="not-offered")
        device = offered.device
        nodes = await steps.composer.numbered(device.nodes)
        allotment = Allotment(
            request="", device=name, pool=steps.node.name, allocation=assignment.allocation
        )
        want = Want(
            allotment=allotment,
            device=device,
            cdi_vendor=assignment.domain.cdi_vendor,
            cdi_name=cdi.device_name(key.uid, name),
            parts=_parts(assignment.domain, device, nodes),
            undo=steps.hooks.implements(device.driver, UNPREPARE),
        )
        known = tuple(node for node in nodes if node.part)
        await _hold(steps, [Found(key, want, Delivery(nodes=known))])
    _tell(steps, "hold-rebuilt", f"device {name} is held by {key} again: a pod has it")
    return True


async def _is_known(steps: Steps, file: ClaimFile) -> bool:
    return any(r.cdi_vendor == file.vendor for r in await steps.ledger.of_claim(file.uid))


async def _adopt_file(steps: Steps, domains: tuple[Domain, ...], file: ClaimFile) -> None:
    """Hold all that a file says, or nothing: what is held alone is in the file when it is written.

    Another agent may have done it, or ended the claim, while its turn was waited for.
    """
    gone = not await steps.composer.in_thread(file.path.exists)
    if gone or await _is_known(steps, file):
        return
    taken = {
        _said(record.claim.dra_driver, record.allotment)
        for record in await steps.ledger.of_claim(file.uid)
    }
    found: list[Found] = []
    for name, delivery in file.devices.items():
        one = _find(steps, domains, file, name, delivery, taken)
        taken.add(_said(one.claim.dra_driver, one.want.allotment))
        found.append(one)
    await _hold(steps, found)
    for one in found:
        what = f"device {one.want.device.name} is held by claim {file.uid}"
        _tell(steps, "hold-rebuilt", f"{what}: {file.path}")


def _said(dra_driver: str, allotment: Allotment) -> tuple[str, ...]:
    """Return what no two holds of a claim may have alike."""
    return dra_driver, allotment.request, allotment.device, allotment.share_id


def _find(
    steps: Steps,
    domains: tuple[Domain, ...],
    file: ClaimFile,
    name: str,
    delivery: Delivery,
    taken: Collection[tuple[str, ...]],
) -> Found:
    base, _, request = name.partition(":")
    device, domain = _recognise(steps, domains, file.vendor, base, delivery)
    share = base.removeprefix(device.name).removeprefix("-")
    if (domain.dra_driver, request, device.name, share) in taken:
        share = f"{file.vendor}/{name}"  # two names that say the same: both are kept apart
    want = Want(
        allotment=Allotment(
            request=request,
            device=device.name,
            pool=steps.node.name,
            share_id=share,
        ),
        device=device,
        cdi_vendor=file.vendor,
        cdi_name=f"{file.uid}-{name}",
        parts=_parts(domain, device, delivery.nodes),
        undo=steps.hooks.implements(device.driver, UNPREPARE),
    )
    return Found(ClaimKey(file.uid, "", "", domain.dra_driver), want, delivery)


async def _hold(steps: Steps, found: Sequence[Found]) -> None:
    """Write holds down; the parts of one are kept already where another that was found has them."""
    while True:
        try:
            await steps.ledger.adopt(found, steps.boot_id)
        except HoldConflict as error:
            twice, key = error.device, found[0].claim
            _tell(steps, "device-twice", f"{key} has device {twice} already, and {error}")
            found = [_without_parts(o) if o.want.device.name == twice else o for o in found]
        else:
            return


def _without_parts(one: Found) -> Found:
    return replace(one, want=replace(one.want, parts=()))


def _parts(domain: Domain, device: Device, nodes: Iterable[DeviceNode]) -> tuple[Part, ...]:
    itself = Part(f"device:{domain.dra_driver}/{device.name}", not device.shareable)
    return (itself, *parts_of(device, nodes))


def _recognise(
    steps: Steps, domains: tuple[Domain, ...], vendor: str, base: str, delivery: Delivery
) -> tuple[Device, Domain]:
    """Find the device that a name in a CDI file means: the longest that fits.

    One that nobody publishes is held by its nodes, alone.
    """
    fits = [
        offered
        for offered in steps.offer().devices
        if offered.domain.cdi_vendor == vendor and f"{base}-".startswith(f"{offered.name}-")
    ]
    if fits:
        found = max(fits, key=lambda offered: len(offered.name))
        return found.device, found.domain
    domain = next((d for d in domains if d.cdi_vendor == vendor), Domain.named(vendor))
    return Device(name=base, kind="unknown", nodes=delivery.nodes), domain


def _tell(steps: Steps, name: str, message: str) -> None:
    steps.report(Event(name=name, message=message, warning=True))
