"""Which ids, DRA devices and holds are uses of a release's devices.

Too much counts rather than too little: an id of one of the devices under whatever allocation, and
under whatever resource, since the settings may have called it otherwise when the pod was started.
What is offered at this moment is somebody's by right, and no use of what is released.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hardpoint.agent import Agent
from hardpoint.allocation import grant_of_id, is_allocation, is_id_of
from hardpoint.grants import Release, is_name_of, published_name, tag
from hardpoint.kubelet.pods import HeldDevice, PodUse
from hardpoint.model import Hold, Offered


@dataclass(frozen=True, slots=True)
class Uses:
    """What counts as a use of one release."""

    release: Release
    offered: tuple[Offered, ...]
    """What pods may have by right: nothing of the release, unless under another grant."""
    ended: bool
    """The whole allocation has ended, and not some of its devices alone."""
    holds: tuple[Hold, ...] = ()
    """What the agent itself holds of the release, for claims and for ids."""

    @classmethod
    def of(cls, release: Release, holds: Iterable[Hold], agent: Agent) -> Uses:
        """Return what counts now."""
        names = frozenset(release.names)
        live = {grant.allocation for grant in agent.grants()}
        return cls(
            release=release,
            offered=tuple(
                one for one in agent.offer.devices if one.allocation or one.name not in names
            ),
            ended=bool(release.allocation) and release.allocation not in live,
            holds=tuple(hold for hold in holds if holds_released(hold, release)),
        )

    def by_pod(self, pod: PodUse) -> bool:
        """Say whether a pod has one of the devices, by an id or by a claim."""
        ids = (id_ for held in pod.resources for id_ in held.ids)
        return any(map(self.by_id, ids)) or any(map(self.by_device, pod.devices))

    def by_id(self, id_: str) -> bool:
        """Say whether an id of a device plugin's is one of a released device."""
        allocation = grant_of_id(id_)
        if any(one.allocation == allocation and is_id_of(id_, one.name) for one in self.offered):
            return False
        if self.ended and allocation == self.release.allocation:
            return True
        return any(is_id_of(id_, name) for name in self.release.names)

    def by_device(self, held: HeldDevice) -> bool:
        """Say whether a claim's device is a released one."""
        claim = (held.driver, held.claim_namespace, held.claim_name)
        if any(_claim(hold) == claim for hold in self.holds):
            return True
        drivers = self.release.dra_drivers
        if (drivers and held.driver not in drivers) or self._is_offered(held):
            return False
        if self.ended and held.device.endswith(f"-{tag(self.release.allocation)}"):
            return True
        return any(is_name_of(held.device, name) for name in self.release.names)

    def _is_offered(self, held: HeldDevice) -> bool:
        return any(
            one.domain.dra_driver == held.driver
            and published_name(one.name, one.allocation) == held.device
            for one in self.offered
        )


def holds_released(hold: Hold, release: Release) -> bool:
    """Say whether a hold is on one of a release's devices, in whatever state it is.

    Under which allocation does not matter: a device has one grant at a time, so whoever holds it
    while it is being released has it from that one, or from a time when it had none.
    """
    drivers = release.dra_drivers
    ours = not drivers or hold.claim.dra_driver in drivers
    return ours and hold.device.name in release.names


def holder(hold: Hold) -> str:
    """Return who holds, for people."""
    if not is_allocation(hold.claim):
        return f"claim {hold.claim}"
    if not hold.claim.name:
        return f"a container that has {hold.device.name}"
    return f"a container that has {hold.claim.name} of {hold.claim.namespace}"


def _claim(hold: Hold) -> tuple[str, str, str]:
    return hold.claim.dra_driver, hold.claim.namespace, hold.claim.name
