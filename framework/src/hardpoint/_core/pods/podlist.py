"""One answer of pod-resources: which containers have what, by the names that holds go by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from hardpoint.allocation import PodUser, allocation_key, is_allocation
from hardpoint.grants import is_name_of, published_name
from hardpoint.kubelet.pods import PodUse
from hardpoint.model import ClaimKey

Users = tuple[PodUser, ...]

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class PodList:
    """Who has what. ``ids`` are by resource and id, ``claims`` by claim, driver and device."""

    pods: frozenset[tuple[str, str]]
    """Namespace and name of each pod, also of those that have nothing."""
    ids: Mapping[tuple[str, str], Users]
    claims: Mapping[tuple[str, str, str, str], Users]
    uids: frozenset[str]
    """What the ids go by in the ledger."""

    @classmethod
    def of(cls, pods: Iterable[PodUse]) -> PodList:
        """Sort an answer by who has what."""
        pods = tuple(pods)
        ids: dict[tuple[str, str], Users] = {}
        claims: dict[tuple[str, str, str, str], Users] = {}
        for pod in pods:
            for held in pod.resources:
                user = PodUser(pod.namespace, pod.name, held.container)
                for id_ in held.ids:
                    _add(ids, (held.resource, id_), user)
            for one in pod.devices:
                user = PodUser(pod.namespace, pod.name, one.container)
                _add(claims, (one.claim_namespace, one.claim_name, one.driver, one.device), user)
        return cls(
            pods=frozenset((pod.namespace, pod.name) for pod in pods),
            ids=ids,
            claims=claims,
            uids=frozenset(allocation_key(*names, "").uid for names in ids),
        )

    def users(self, claim: ClaimKey, device: str, allocation: str = "") -> Users:
        """Return who has a device that is held for a claim or an allocation.

        A hold that was found again in a CDI file knows neither its grant nor, at first, what its
        claim is called: it is had by whoever has the device under any name that it may have.
        """
        if is_allocation(claim):
            return self._of_id(claim)
        place = claim.namespace, claim.name, claim.dra_driver
        exact = self.claims.get((*place, published_name(device, allocation)))
        return exact if exact is not None else self._of_device(claim, device)

    def _of_id(self, claim: ClaimKey) -> Users:
        if claim.name:
            return self.ids.get((claim.namespace, claim.name), ())
        found = (n for n in self.ids if allocation_key(*n, "").uid == claim.uid)
        return next((self.ids[names] for names in found), ())

    def _of_device(self, claim: ClaimKey, device: str) -> Users:
        found = (
            users
            for (namespace, name, driver, published), users in self.claims.items()
            if driver == claim.dra_driver
            and (not claim.name or (namespace, name) == (claim.namespace, claim.name))
            and is_name_of(published, device)
        )
        return tuple(dict.fromkeys(user for users in found for user in users))


def _add(found: dict[_Key, Users], key: _Key, user: PodUser) -> None:
    have = found.get(key, ())
    if user not in have:
        found[key] = (*have, user)
