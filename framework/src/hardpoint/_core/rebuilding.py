"""A ledger that was lost, found again in the CDI files.

The kubelet does not prepare a claim twice, so what a running container has would look free
(kubernetes-sigs/dra-example-driver#248). A hold that is found again lasts until its claim ends or
is prepared anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from hardpoint._core.ledger import Want
from hardpoint._core.steps import UNPREPARE, Steps
from hardpoint.cdi_files import ClaimFile
from hardpoint.errors import HoldConflict
from hardpoint.model import (
    Allotment,
    ClaimKey,
    Delivery,
    Device,
    Domain,
    Event,
    Part,
    parts_of,
)


async def rebuild(
    steps: Steps,
    domains: Iterable[Domain],
    vendors: Collection[str],
    turn: Callable[[ClaimKey], AbstractAsyncContextManager[object]],
) -> None:
    """Hold again what CDI files say is held, so that nobody else gets it.

    Each under its claim's turn: another agent may end that claim at this moment. Raises ``OSError``
    where the directory cannot be read, and ``HardpointError``; it is begun anew then.
    """
    good, bad = await steps.composer.in_thread(lambda: steps.files.claims(vendors))
    for file in bad:
        _tell(steps, "cdi-unreadable", f"{file.path}: {file.reason}")
    known = {(r.claim.uid, r.cdi_vendor) for r in await steps.ledger.read()}
    own = tuple(domains)
    for found in good:
        if (found.uid, found.vendor) not in known:
            async with turn(ClaimKey(found.uid, "", "", "")):
                await _adopt_all(steps, own, found)
    await steps.ledger.rebuilt()


async def _adopt_all(steps: Steps, domains: tuple[Domain, ...], file: ClaimFile) -> None:
    if await steps.composer.in_thread(file.path.exists):
        for name, delivery in file.devices.items():
            await _adopt(steps, domains, file, name, delivery)


async def _adopt(
    steps: Steps, domains: tuple[Domain, ...], file: ClaimFile, name: str, delivery: Delivery
) -> None:
    base, _, request = name.partition(":")
    device, domain = _recognise(steps, domains, file.vendor, base, delivery)
    share = base.removeprefix(device.name).removeprefix("-")
    if await _is_taken(steps, (file.uid, domain.dra_driver, request, device.name, share)):
        share = f"{file.vendor}/{name}"  # two names that say the same: both are kept apart
    itself = Part(f"device:{domain.dra_driver}/{device.name}", not device.shareable)
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
        parts=(itself, *parts_of(device, delivery.nodes)),
        undo=steps.hooks.implements(device.driver, UNPREPARE),
    )
    key = ClaimKey(file.uid, "", "", domain.dra_driver)
    try:
        await steps.ledger.adopt(key, want, delivery, steps.boot_id)
    except HoldConflict:  # the part is kept already, by another claim that was found with it
        await steps.ledger.adopt(key, replace(want, parts=()), delivery, steps.boot_id)
    _tell(steps, "hold-rebuilt", f"device {device.name} is held by claim {file.uid}: {file.path}")


async def _is_taken(steps: Steps, wanted: tuple[str, ...]) -> bool:
    return any(
        wanted == (r.claim.uid, r.claim.dra_driver, one.request, one.device, one.share_id)
        for r in await steps.ledger.read()
        for one in (r.allotment,)
        if not r.retired
    )


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
    nodes = tuple(node for node in delivery.nodes if node.part)
    return Device(name=base, kind="unknown", nodes=nodes), domain


def _tell(steps: Steps, name: str, message: str) -> None:
    steps.report(Event(name=name, message=message, warning=True))
