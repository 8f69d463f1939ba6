"""What a ``FakeAgent`` holds for device plugin allocations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from hardpoint.allocation import Allocation, Assigned, Assignment, PodUser
from hardpoint.cdi import device_name, qualified
from hardpoint.cdi_files import CdiDirectory
from hardpoint.errors import HoldConflict, HoldDenied
from hardpoint.model import Condition, Delivery, Device, Hold, HoldState, Offer, Offered


class FakeAllocations:
    """Holds an offered device under an id, and keeps one CDI file for each."""

    def __init__(self, files: CdiDirectory, claims: Callable[[], Iterable[Hold]]) -> None:
        self._files, self._claims = files, claims
        self._assigned: dict[str, Assigned] = {}
        self._devices: dict[str, Device] = {}

    def allocate(self, wanted: Sequence[Assignment], offer: Offer) -> tuple[Assigned, ...]:
        """Hold all or none. Raises ``HoldError``."""
        before = set(self._assigned)
        try:
            return tuple(self._assign(one, offer) for one in wanted)
        except Exception:
            for uid in set(self._assigned) - before:
                self._end(uid)
            raise

    def end(self, resource: str, id_: str) -> None:
        """End what is held under an id."""
        for uid, one in list(self._assigned.items()):
            if (one.assignment.resource, one.assignment.id) == (resource, id_):
                self._end(uid)

    def show(self, users: Mapping[tuple[str, str], tuple[PodUser, ...]]) -> tuple[Allocation, ...]:
        """Return what is held, with the users that a test says."""
        wanted = [one.assignment for one in self._assigned.values()]
        return tuple(
            Allocation(
                resource=one.resource,
                id=one.id,
                device=one.device,
                dra_driver=one.domain.dra_driver,
                state=HoldState.HELD,
                users=users.get((one.resource, one.id)),
            )
            for one in wanted
        )

    def holds(self) -> tuple[Hold, ...]:
        """Return what is held, as holds."""
        return tuple(
            Hold(
                claim=one.assignment.key,
                device=device,
                request="",
                state=HoldState.HELD,
                allocation=one.assignment.allocation,
            )
            for uid, one in self._assigned.items()
            for device in (self._devices[uid],)
        )

    # -- one id -----------------------------------------------------------------------------------

    def _assign(self, wanted: Assignment, offer: Offer) -> Assigned:
        key = wanted.key
        offered = offer.find(wanted.device, wanted.domain.dra_driver)
        if offered is None:
            raise HoldDenied(f"device {wanted.device} is not offered", reason="not-offered")
        if offered.allocation != wanted.allocation:
            raise HoldDenied(f"device {wanted.device} is granted to another", reason="revoked")
        if key.uid not in self._assigned:
            _refuse_unusable(offered)
            self._refuse_held(offered.device)
        delivery = Delivery(
            nodes=tuple(node for node in offered.device.nodes if node.part),
            env={variable(wanted.device): wanted.id},
        )
        vendor, name = wanted.domain.cdi_vendor, device_name(key.uid, wanted.device)
        self._files.write(vendor, key.uid, [(name, delivery)])
        names = (qualified(vendor, name),)
        assigned = Assigned(assignment=wanted, cdi_ids=names, delivery=delivery)
        self._assigned[key.uid], self._devices[key.uid] = assigned, offered.device
        return assigned

    def _refuse_held(self, device: Device) -> None:
        for hold in (*self._claims(), *self.holds()):
            for part in hold.device.all_parts:
                if any(part.contends(own) for own in device.all_parts):
                    raise HoldConflict(device.name, part.name, str(hold.claim))
            if hold.device.name == device.name and not device.shareable:
                raise HoldConflict(device.name, "it", str(hold.claim))

    def _end(self, uid: str) -> None:
        ended = self._assigned.pop(uid)
        del self._devices[uid]
        self._files.remove(ended.assignment.domain.cdi_vendor, uid)


def variable(device: str) -> str:
    """Return the variable that shows a container which device it has."""
    return "HARDPOINT_" + device.upper().replace("-", "_")


def _refuse_unusable(offered: Offered) -> None:
    if not offered.claimable or offered.health.condition is Condition.UNHEALTHY:
        why = offered.health.message or "it takes no new claims now"
        raise HoldDenied(f"device {offered.name}: {why}", reason="unusable")
