"""What one claim's prepare and unprepare mean for this frontend: the agent's part, and our own.

The agent holds and delivers. Beside that the frontend has the claim read for it, adds metadata
files, and has the claim's status written; neither of the latter two can fail a pod.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from hardpoint.agent import Agent
from hardpoint.errors import HardpointError
from hardpoint.model import AttributeValue, Claim, ClaimKey, Device, HoldState, PreparedDevice
from hardpoint_dra.claims import ClaimReader
from hardpoint_dra.metadata import MetadataFiles, with_metadata
from hardpoint_dra.published import as_published, given
from hardpoint_dra.status import StatusWriter

log = logging.getLogger(__name__)

_PATIENCE = 3.0
"""Seconds that a held claim waits for the API server, where its metadata files are not there."""
_MARGIN = 60.0
"""Seconds before our start within which a claim may have been prepared unknown to us."""


class ClaimHandler:
    """Prepares and unprepares the claims of one driver."""

    def __init__(
        self,
        agent: Agent,
        driver: str,
        reader: ClaimReader,
        *,
        metadata: MetadataFiles | None = None,
        status: StatusWriter | None = None,
        started: float | None = None,
    ) -> None:
        self._agent, self._driver, self._reader = agent, driver, reader
        self._metadata, self._status = metadata, status
        self._started = time.time() if started is None else started
        self._source = f"dra metadata of {driver}"
        self._left: dict[str, ClaimKey] = {}
        """Claims that have ended and whose files may be there still, by UID."""
        self._turns: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def prepare(self, key: ClaimKey) -> tuple[PreparedDevice, ...]:
        """Prepare a claim's devices, or say again how they were prepared.

        Raises ``HardpointError``. The API server is asked only for a claim that is not held.
        """
        claims: list[Claim] = []

        async def read() -> Claim:
            claims.append(await self._reader.read(key))
            return claims[-1]

        devices = await self._agent.prepare(key, read)
        claim = claims[-1] if claims else None
        if claim is not None and self._status is not None and devices:
            self._status.prepared(key, devices, self._held(key))
        if self._metadata is None:
            return devices
        return with_metadata(devices, await self._describe(self._metadata, key, claim, devices))

    async def unprepare(self, key: ClaimKey) -> None:
        """Undo it; success for an unknown claim. Raises ``HardpointError``.

        The API server is not asked: by now the claim may be gone from it.
        """
        held = bool(self._held(key))
        await self._agent.unprepare(key)
        if self._metadata is not None:
            self._left[key.uid] = key
            await self._remove_left(self._metadata)
        if held and self._status is not None:
            self._status.unprepared(key)

    def _held(self, key: ClaimKey) -> Mapping[str, Device]:
        """Return what a claim has, by the names that the scheduler knows."""
        held = (
            given(hold.device, hold.allocation)
            for hold in self._agent.holds()
            if (hold.claim.uid, hold.claim.dra_driver) == (key.uid, self._driver)
        )
        return {device.name: device for device in held}

    # -- metadata ---------------------------------------------------------------------------------

    async def _describe(
        self,
        metadata: MetadataFiles,
        key: ClaimKey,
        claim: Claim | None,
        devices: tuple[PreparedDevice, ...],
    ) -> Mapping[str, str]:
        """Write what a container may read; without it the pod starts all the same."""
        async with self._turn(key):
            held = self._held(key)
            if not held:  # unprepared meanwhile: nobody would remove the files again
                return {}
            if claim is None and not await self._try(lambda: metadata.has(key, devices)):
                claim = await self._read_again(key)
            if claim is None:
                names = await self._try(lambda: metadata.again(key))
            else:
                known = partial(_attributes, held)
                names = await self._try(lambda: metadata.write(claim, devices, known))
        return names if isinstance(names, Mapping) else {}

    async def _remove_left(self, metadata: MetadataFiles) -> None:
        """Remove the files of claims that have ended, those too where that failed before."""
        for key in tuple(self._left.values()):
            async with self._turn(key):
                if self._in_use(key) or await self._try(partial(_remove, metadata, key.uid)):
                    self._left.pop(key.uid, None)

    def _in_use(self, key: ClaimKey) -> bool:
        """Say whether a claim was prepared anew since; what is only being released is not."""
        own = [h for h in self._agent.holds() if h.claim.uid == key.uid]
        return any(
            hold.claim.dra_driver == self._driver
            and hold.state in (HoldState.PREPARING, HoldState.HELD)
            for hold in own
        )

    async def _read_again(self, key: ClaimKey) -> Claim | None:
        """Read a held claim whose files are not there: they were lost, or never written.

        The agent was killed between holding the claim and writing them. An API server that is away
        costs the files, and not the pod.
        """
        with anyio.move_on_after(_PATIENCE):
            try:
                return await self._reader.read(key)
            except HardpointError as error:
                log.warning("metadata files are missing claim=%s why=%s", key, error)
        return None

    async def restore_metadata(self) -> None:
        """Before anything is registered: the kubelet may use the CDI names of before a reboot.

        Leavings are removed by the agent that writes alone: the other one of two may hold claims
        that this one has not heard of yet.
        """
        metadata = self._metadata
        if metadata is not None:
            before = self._started - _MARGIN if self._agent.writing() else 0.0
            held = [hold.claim for hold in self._agent.holds()]
            await self._try(lambda: metadata.restore(held, before=before))

    async def refresh_metadata(self) -> None:
        """Let files follow the offer, for ever."""
        metadata = self._metadata
        async for offer in self._agent.offers():
            if metadata is None or not self._agent.writing():
                continue
            offered = {
                one.name: one.device
                for one in as_published(offer).devices
                if one.domain.dra_driver == self._driver
            }
            await self._try(partial(metadata.refresh, partial(_attributes, offered)))
            await self._remove_left(metadata)

    async def _try(self, work: Callable[[], Any]) -> Any:
        try:
            result = await anyio.to_thread.run_sync(work)
        except (OSError, HardpointError) as error:
            self._agent.on_fault(self._source, f"metadata files are not up to date: {error}")
            return None
        self._agent.clear_fault(self._source)
        return result

    def _turn(self, key: ClaimKey) -> anyio.Lock:
        return self._turns.setdefault(key.uid, anyio.Lock())


def _remove(metadata: MetadataFiles, uid: str) -> bool:
    metadata.remove(uid)
    return True


def _attributes(devices: Mapping[str, Device], name: str) -> Mapping[str, AttributeValue]:
    return devices[name].attributes if name in devices else {}
