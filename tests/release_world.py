"""A release of GPUs, grants of others, and holds on them: for tests of policies."""

from __future__ import annotations

from hardpoint.allocation import allocation_key
from hardpoint.grants import Grant, GrantedDevice, Release
from hardpoint.model import (
    ClaimKey,
    Device,
    Domain,
    Hold,
    HoldState,
    Offered,
)

DOMAIN = Domain.named("hardpoint.dev")
GPU = "hardpoint.dev/gpu"


def gpu(name: str) -> Device:
    """A GPU."""
    return Device(name=name, kind="gpu")


def offered(name: str, allocation: str = "") -> Offered:
    """A GPU as it is offered, under a grant or under none."""
    return Offered(device=gpu(name), domain=DOMAIN, allocation=allocation)


def grant(allocation: str, *names: str) -> Grant:
    """A grant of GPUs."""
    return Grant(allocation=allocation, devices=tuple(GrantedDevice(name=name) for name in names))


def release(*names: str, allocation: str = "a1", source: str = "policy/cdi_grants") -> Release:
    """The release of GPUs."""
    return Release(
        id="r1",
        allocation=allocation,
        source=source,
        devices=tuple(gpu(name) for name in names),
        since=0.0,
        dra_drivers=(DOMAIN.dra_driver,),
    )


def claimed(name: str, *, allocation: str = "a1", state: HoldState = HoldState.HELD) -> Hold:
    """A hold of a claim's on a GPU."""
    key = ClaimKey("uid-1", "media", "player-gpu", DOMAIN.dra_driver)
    return Hold(claim=key, device=gpu(name), request="r", allocation=allocation, state=state)


def allocated(name: str, id_: str, *, allocation: str = "a1") -> Hold:
    """A hold of a device plugin's on a GPU."""
    key = allocation_key(GPU, id_, DOMAIN.dra_driver)
    return Hold(
        claim=key, device=gpu(name), request="", allocation=allocation, state=HoldState.HELD
    )
