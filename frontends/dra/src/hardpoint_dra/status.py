"""status.devices of a claim: that a device was prepared, and what it was, for people and tools.

Written by server-side apply after the kubelet has its answer, under a field manager of the driver's
own, since other drivers share the list. Nobody waits for it and nothing depends on it: where the
server does not serve or allow it, it is left out and said once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio

from hardpoint.agent import Agent
from hardpoint.errors import KubeConflict, KubeDenied, KubeError, KubeInvalid, KubeNotFound
from hardpoint.kube import FIELD_MANAGER, Backoff, Resource
from hardpoint.model import ClaimKey, Device, PreparedDevice, Version
from hardpoint_dra.claims import GROUP, PLURAL

if TYPE_CHECKING:
    from hardpoint.kube import Kube

log = logging.getLogger(__name__)

_TRIES = 6
_TRIES_DENIED = 3
"""A server that was restarted knows no roles for a moment, and forbids what it allows then."""
_LEAVE_OFF = 300.0
"""Seconds without trying after the server said that it does not take it from us."""

Entries = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class _Wanted:
    key: ClaimKey
    entries: Entries
    tries: int = 0


class StatusWriter:
    """Writes the status of one driver's devices, from ``run`` until that is cancelled."""

    def __init__(
        self,
        agent: Agent,
        driver: str,
        connect: Callable[[], Kube],
        version: Callable[[], Awaitable[str]],
    ) -> None:
        self._agent, self._driver = agent, driver
        self._connect, self._version = connect, version
        self._source = f"dra claim status of {driver}"
        self._wanted: dict[str, _Wanted] = {}
        self._off_until = 0.0
        self._news = anyio.Event()

    def prepared(
        self, key: ClaimKey, devices: Sequence[PreparedDevice], known: Mapping[str, Device]
    ) -> None:
        """Have it written that a claim's devices are ready. Returns at once."""
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        entries = tuple(self._entry(device, known.get(device.device), at) for device in devices)
        self._want(_Wanted(key, entries))

    def unprepared(self, key: ClaimKey) -> None:
        """Have our entries removed, for a claim that stays allocated. Returns at once."""
        self._want(_Wanted(key, ()))

    def _want(self, wanted: _Wanted) -> None:
        """Keep the latest for each claim: what came before it is not true any more."""
        self._wanted.pop(wanted.key.uid, None)
        self._wanted[wanted.key.uid] = wanted
        news, self._news = self._news, anyio.Event()
        news.set()

    def _entry(self, device: PreparedDevice, known: Device | None, at: str) -> Mapping[str, Any]:
        entry: dict[str, Any] = {
            "driver": self._driver,
            "pool": device.pool,
            "device": device.device,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Prepared",
                    "message": "",
                    "lastTransitionTime": at,
                }
            ],
        }
        if device.share_id:
            entry["shareID"] = device.share_id
        if known is not None:
            entry["data"] = _data(known)
        return entry

    # -- writing ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write what is wanted, one after another, for ever."""
        backoff = Backoff()
        while True:
            news = self._news
            if not self._wanted:
                await news.wait()
            for wanted in list(self._wanted.values()):
                again = await self._write(wanted)
                if self._wanted.get(wanted.key.uid) is wanted:
                    self._settle(wanted, again)
                if again:
                    break
                backoff.reset()
            if self._wanted:
                await anyio.sleep(backoff.next())

    def _settle(self, wanted: _Wanted, again: bool) -> None:
        key, tries = wanted.key, wanted.tries + 1
        del self._wanted[key.uid]
        if again and tries < _TRIES:
            self._wanted[key.uid] = _Wanted(key, wanted.entries, tries)
        elif again:
            log.warning("status given up claim=%s uid=%s tries=%d", key, key.uid, tries)

    async def _write(self, wanted: _Wanted) -> bool:
        """Write one claim's entries; say whether it should be tried again."""
        if anyio.current_time() < self._off_until:
            return False
        try:
            stored = await self._apply(wanted)
        except (KubeDenied, KubeNotFound, KubeConflict, KubeInvalid) as error:
            if isinstance(error, KubeDenied) and wanted.tries + 1 < _TRIES_DENIED:
                return True
            self._leave(wanted, error)
            return False
        except KubeError as error:
            log.debug("status not written claim=%s error=%s", wanted.key, error)
            return True
        if wanted.entries and not (stored.get("status") or {}).get("devices"):
            self._leave_off("the API server drops status.devices (DRAResourceClaimDeviceStatus)")
        else:
            self._agent.clear_fault(self._source)
        return False

    async def _apply(self, wanted: _Wanted) -> dict[str, Any]:
        key, resource = wanted.key, Resource(GROUP, await self._version(), PLURAL)
        body = {
            "apiVersion": resource.api_version,
            "kind": "ResourceClaim",
            "metadata": {"name": key.name, "namespace": key.namespace, "uid": key.uid},
            "status": {"devices": list(wanted.entries)},
        }
        return await self._connect().apply(
            resource,
            body,
            namespace=key.namespace,
            subresource="status",
            manager=f"{FIELD_MANAGER}-{self._driver}",
        )

    def _leave(self, wanted: _Wanted, error: KubeError) -> None:
        """Leave a claim alone: gone, another of its name, or not for us to write."""
        if isinstance(error, KubeDenied):
            self._leave_off(
                f"the API server refuses the status of claims: {error}; grant patch on "
                "resourceclaims/status and associated-node:patch on resourceclaims/driver"
            )
        elif isinstance(error, KubeInvalid) and not _of_another(error):
            log.warning("status refused claim=%s error=%s", wanted.key, error)

    def _leave_off(self, why: str) -> None:
        self._off_until = anyio.current_time() + _LEAVE_OFF
        self._agent.on_fault(self._source, why)


def _of_another(error: KubeInvalid) -> bool:
    """Say whether the claim was made anew: our UID would have to become its own."""
    return [path for path, _ in error.causes] == ["metadata.uid"]


def _data(device: Device) -> dict[str, Any]:
    """Return what a device was when it was given: at most 32 short attributes, far below 10 KiB."""
    attributes = {
        name: value.text if isinstance(value, Version) else value
        for name, value in sorted(device.attributes.items())
    }
    return {
        "apiVersion": "hardpoint.dev/v1",
        "kind": "GivenDevice",
        "deviceKind": device.kind,
        "attributes": attributes,
    }
