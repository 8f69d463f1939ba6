"""What is written into a ledger in tests of it alone."""

from __future__ import annotations

from broker_world import claim

from hardpoint._core.ledger.ledger import Ledger, Record, Want
from hardpoint.model import Allotment, Device, Part


def want(name: str, *parts: Part, request: str = "r") -> Want:
    return Want(
        allotment=Allotment(request=request, device=name, pool="p"),
        device=Device(name=name, kind="k", driver="d"),
        cdi_vendor="a.dev",
        cdi_name=f"u-{name}",
        parts=parts,
        undo=True,
    )


async def take(ledger: Ledger, uid: str, *wants: Want) -> tuple[Record, ...]:
    return await ledger.take(claim(uid), wants, "boot")
