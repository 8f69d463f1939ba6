"""Whether a claim may have what it was allocated, at this moment: asked before anything is held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hardpoint import cdi
from hardpoint._core.claims.composing import Composer
from hardpoint._core.claims.ports import Granted, Hooks
from hardpoint._core.ledger.ledger import Ledger, Want
from hardpoint._core.ledger.records import subject_of
from hardpoint.errors import HoldConflict, HoldDenied, TryAgain
from hardpoint.grants import is_name_of
from hardpoint.model import (
    Allotment,
    Claim,
    Device,
    DeviceNode,
    Offer,
    Offered,
    Part,
    Verdict,
    parts_of,
)
from hardpoint.parameters import decode
from hardpoint.platform import Platform, Suspected


@dataclass(frozen=True, slots=True)
class Admitted:
    """One allotment that may be held."""

    offered: Offered
    parameters: Any
    want: Want


class Admission:
    """Judges claims: is each device offered, are its parameters good, does every policy agree."""

    def __init__(self, hooks: Hooks, ledger: Ledger, composer: Composer, granted: Granted) -> None:
        self._hooks, self._ledger, self._composer = hooks, ledger, composer
        self._granted = granted

    async def admit(self, claim: Claim, offer: Offer) -> tuple[Admitted, ...]:
        """Return what is to be held. Raises ``HoldError``, or what a hook raises."""
        offered = [await self._offered(claim, one, offer) for one in claim.allotments]
        parameters = [
            parameters_of(self._hooks, claim, allotment, found.device.driver)
            for allotment, found in zip(claim.allotments, offered, strict=True)
        ]
        await self._granted.confirm(offered)
        await self._ask_policies(claim, tuple(offered))
        repeated = Counter((one.device, one.share_id) for one in claim.allotments)
        admitted = []
        for allotment, found, wanted in zip(claim.allotments, offered, parameters, strict=True):
            twice = repeated[allotment.device, allotment.share_id] > 1
            want = await self._want(claim, allotment, found, wanted, twice=twice)
            admitted.append(Admitted(found, wanted, want))
        return tuple(admitted)

    async def _offered(self, claim: Claim, allotment: Allotment, offer: Offer) -> Offered:
        name = allotment.device
        found = offer.find(name, claim.key.dra_driver)
        if found is None:
            raise HoldDenied(f"device {name} is {_why_not(name, offer)}", reason="not-offered")
        if found.allocation != allotment.allocation:
            raise HoldDenied(f"device {name} is {_granted_now(found)} now", reason="revoked")
        if found.claimable:
            return found
        parts = () if allotment.admin_access else found.device.all_parts
        other = await self._ledger.contender(claim.key.uid, parts)
        if other is not None:
            raise HoldConflict(name, *other)
        words = ", ".join(t.key for t in found.taints) or "its driver does not answer"
        message = f": {found.health.message}" if found.health.message else ""
        raise HoldDenied(
            f"device {name} takes no new claims now ({words}){message}", reason="unusable"
        )

    async def _ask_policies(self, claim: Claim, offered: tuple[Offered, ...]) -> None:
        holds = tuple(record.hold() for record in await self._ledger.read())
        answers: Mapping[str, Verdict | None] = await self._hooks.gather(
            "admit_claim", str(claim.key.uid), claim=claim, devices=offered, holds=holds
        )
        for policy, verdict in answers.items():
            if verdict is not None and not verdict.allowed:
                raise HoldDenied(f"{verdict.reason or 'not admitted'} ({policy})")
        admitted = any(verdict is not None for verdict in answers.values())
        for allotment in claim.allotments:
            if allotment.admin_access and not admitted:
                raise HoldDenied(
                    f"admin access to device {allotment.device} is refused: it would reach what "
                    "another claim holds, and no policy admits it",
                    reason="admin-access",
                )

    async def _want(
        self, claim: Claim, allotment: Allotment, offered: Offered, parameters: Any, *, twice: bool
    ) -> Want:
        device, vendor = offered.device, offered.domain.cdi_vendor
        request = allotment.request if twice else ""
        nodes = await self._nodes(claim, allotment, device, parameters)
        await self._refuse_kept_nodes(offered, nodes)
        return Want(
            allotment=allotment,
            device=device,
            cdi_vendor=vendor,
            cdi_name=cdi.device_name(claim.key.uid, device.name, allotment.share_id, request),
            parts=() if allotment.admin_access else _parts(offered, nodes),
            undo=self._undoes(device.driver) and not allotment.admin_access,
        )

    def _undoes(self, driver: str) -> bool:
        return self._hooks.implements(driver, "unprepare_device")

    async def _nodes(
        self, claim: Claim, allotment: Allotment, device: Device, parameters: Any
    ) -> tuple[DeviceNode, ...]:
        """Return what the holder would receive, with the numbers of every node."""
        nodes = device.nodes
        try:
            subject = subject_of(claim.key.uid, allotment)
            nodes = (await self._composer.deliver(device, parameters, subject)).nodes
        except TryAgain:  # a node that only preparing the device makes
            if not self._hooks.implements(device.driver, "prepare_device"):
                raise
        return await self._composer.numbered(nodes)

    async def _refuse_kept_nodes(self, offered: Offered, nodes: tuple[DeviceNode, ...]) -> None:
        """Refuse what the machine itself uses at this moment, whatever was offered.

        A disk may have been mounted since the last scan: nothing announces that.
        """
        device = offered.device
        _, kept = await self._composer.in_thread(
            lambda: Platform.of(self._composer.node).keep(nodes)
        )
        for node, reason in kept:
            if offered.vouched and isinstance(reason, Suspected):
                continue
            raise HoldDenied(
                f"device {device.name} cannot be given: {node.path}: {reason}", reason="platform"
            )


def _parts(offered: Offered, nodes: tuple[DeviceNode, ...]) -> tuple[Part, ...]:
    """Return what the hold takes; the device itself too, should it name no part at all."""
    device = offered.device
    itself = Part(f"device:{offered.domain.dra_driver}/{device.name}", not device.shareable)
    return (itself, *parts_of(device, nodes))


def parameters_of(hooks: Hooks, claim: Claim, allotment: Allotment, driver: str) -> Any:
    """Decode what a claim asks of a device. Raises ``HoldDenied``, saying which key is wrong."""
    return decode(
        hooks.parameters_model(driver),
        allotment.parameters,
        where=f"claim {claim.key}, request {allotment.request}",
        named=allotment.named,
        known_kinds=hooks.known_kinds(),
    )


def _granted_now(offered: Offered) -> str:
    """Say of a device that it is not offered as it was when somebody was allocated it."""
    if offered.allocation:
        return "granted under another allocation"
    return "offered without a grant"


def _why_not(name: str, offer: Offer) -> str:
    """Say why a device is not offered; under a grant it has another name in DRA."""
    for withheld in offer.withheld:
        if is_name_of(name, withheld.subject):
            return f"not offered: {withheld.reason}"
    for offered in offer.devices:
        if is_name_of(name, offered.name):
            return f"not offered: {offered.name} is {_granted_now(offered)} now"
    return "not offered" if offer.complete else "not offered yet: its driver has not answered"
