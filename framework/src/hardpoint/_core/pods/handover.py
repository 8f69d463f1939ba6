"""Whether who had an id before is gone, when the kubelet asks for it again while it is held.

The device plugin API has no word for the end of an allocation: a hold lasts until the pods have
been read twice without it. Meanwhile ``Allocate`` may come for its id, and there are two reasons
for that, of which the call says nothing:

- The pod that had it is over, and another one gets its device. What the first one left has to go:
  the driver undoes and scrubs.
- It is the same pod. What an ordinary init container was given is given again to the containers
  after it, all in one admission, before any of them runs. The device stays as it is.

The kubelet's device manager (``pkg/kubelet/cm/devicemanager/manager.go``) knows which it is. Right
before it calls ``Allocate`` it forgets the devices of all pods that are over
(``UpdateAllocatedDevices``), and of the pod that it admits at this moment it forgets none
(``pendingAdmissionPod``). It writes down what it knows at every list that a plugin sends
(``genericDeviceUpdateCallback``), and the frontend sends its list again while ``Allocate`` takes
long. So a checkpoint that was written after the call had come names the id if, and only if, it is
the same pod's; and a container that is started again, or a kubelet that is, asks for nothing: what
was answered is replayed.

One such checkpoint that lacks the id is enough, unless pod-resources says otherwise; one that names
it is not, since its content may be older than its file: two are.
"""

from __future__ import annotations

from typing import Protocol

import anyio

from hardpoint._core.pods.podlist import PodList
from hardpoint.errors import HardpointError, HoldFailed
from hardpoint.kubelet.pods import PodUse
from hardpoint.kubelet.podsource import Checkpoint
from hardpoint.model import ClaimKey

_PATIENCE = 3.0
"""Seconds that a kubelet has for writing down what it knows: it takes a few milliseconds."""
_EVERY = 0.01
_NOTHING = (0, 0)
"""What a checkpoint is known by that is not there."""


class Kubelets(Protocol):
    """The kubelet's answers: ``PodSource``."""

    async def list(self) -> tuple[PodUse, ...]:
        """Return every pod. Raises ``HardpointError``."""

    def written_at(self) -> tuple[int, int]:
        """Return what tells one checkpoint from the next."""

    async def checkpoint(self) -> Checkpoint:
        """Return what the device manager has written down. Raises ``HardpointError``."""


class Handover:
    """Finds out, by the kubelet's own word and without the network, who asks for an id again."""

    def __init__(self, kubelet: Kubelets, *, patience: float = _PATIENCE) -> None:
        self._kubelet, self._patience = kubelet, patience

    async def is_over(self, key: ClaimKey) -> bool:
        """Say whether the pod that had an allocation is gone; to be asked while ``Allocate`` runs.

        Raises ``HoldFailed`` where that cannot be known: the pod is refused then, and another one
        in its place finds the kubelet answering, or the device free.
        """
        names = (key.namespace, key.name)
        before, named = self._kubelet.written_at(), 0
        with anyio.move_on_after(self._patience):
            while named < 2:
                await anyio.sleep(_EVERY)
                now = self._kubelet.written_at()
                if now in (before, _NOTHING):
                    continue
                before = now
                if names not in await self._written_down(key):
                    return not await self._is_listed(names)
                named += 1
            return False
        raise _unknown(key, f"the kubelet has written no checkpoint within {self._patience:g} s")

    async def _written_down(self, key: ClaimKey) -> frozenset[tuple[str, str]]:
        try:
            return (await self._kubelet.checkpoint()).ids
        except HardpointError as error:
            raise _unknown(key, str(error)) from error

    async def _is_listed(self, names: tuple[str, str]) -> bool:
        """Say whether a pod is listed with an id; a list that cannot be had says nothing."""
        try:
            listed = PodList.of(await self._kubelet.list())
        except HardpointError:
            return False
        return names in listed.ids


def _unknown(key: ClaimKey, why: str) -> HoldFailed:
    return HoldFailed(
        f"{key} is held for a pod of before, and whether that one is over is not known ({why}); "
        "try again",
        "try-again",
    )
