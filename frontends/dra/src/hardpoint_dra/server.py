"""NodePrepareResources and NodeUnprepareResources: requests to answers, without gRPC.

The kubelet sends a pod's claims together and wants exactly one entry for each UID. One claim's
failure stands in its own entry and costs no other claim anything; different claims never wait for
each other. An answer comes before the kubelet hangs up (45 s), also if it has to be "try again".
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from types import ModuleType
from typing import Any, Protocol

import anyio

from hardpoint.errors import HardpointError
from hardpoint.kubelet.work import Workshop
from hardpoint.model import ClaimKey, PreparedDevice

log = logging.getLogger(__name__)

LONGEST_ERROR = 1000
"""Characters: an answer's error ends in a pod's events, which hold 1024."""


class ClaimWork(Protocol):
    """What is done for one claim; raises ``HardpointError`` with a sentence for the pod."""

    async def prepare(self, key: ClaimKey) -> tuple[PreparedDevice, ...]:
        """Prepare a claim's devices, or say again how they were prepared."""

    async def unprepare(self, key: ClaimKey) -> None:
        """Undo it; success for an unknown claim."""


class NodeService:
    """The node service of one driver, in any version of its messages."""

    def __init__(
        self, driver: str, work: ClaimWork, workshop: Workshop, *, deadline: float
    ) -> None:
        self._driver, self._work, self._workshop = driver, work, workshop
        self._deadline = deadline

    def methods(self, messages: ModuleType) -> dict[str, Callable[[Any], Awaitable[Any]]]:
        """Return the handlers for ``dra_v1_pb2`` or ``dra_v1beta1_pb2``."""

        async def prepare(request: Any) -> Any:
            entries = await self._each(request.claims, self._prepared(messages))
            return messages.NodePrepareResourcesResponse(claims=entries)

        async def unprepare(request: Any) -> Any:
            entries = await self._each(request.claims, self._unprepared(messages))
            return messages.NodeUnprepareResourcesResponse(claims=entries)

        return {"NodePrepareResources": prepare, "NodeUnprepareResources": unprepare}

    def _prepared(self, messages: ModuleType) -> Callable[[ClaimKey], Awaitable[Any]]:
        async def answer(key: ClaimKey) -> Any:
            devices: tuple[PreparedDevice, ...] = ()
            said = ""
            try:
                devices = await self._within(lambda: self._work.prepare(key))
            except Exception as error:  # noqa: BLE001 -- one claim's failure is its own entry
                said = _said("prepare", key, error)
            return messages.NodePrepareResourceResponse(
                devices=[_device(messages, device) for device in devices], error=said
            )

        return answer

    def _unprepared(self, messages: ModuleType) -> Callable[[ClaimKey], Awaitable[Any]]:
        async def answer(key: ClaimKey) -> Any:
            said = ""
            try:
                await self._within(lambda: self._work.unprepare(key))
            except Exception as error:  # noqa: BLE001 -- as above
                said = _said("unprepare", key, error)
            return messages.NodeUnprepareResourceResponse(error=said)

        return answer

    async def _within(self, work: Callable[[], Awaitable[Any]]) -> Any:
        return await self._workshop.do(work, self._deadline)

    async def _each(
        self, claims: Iterable[Any], answer: Callable[[ClaimKey], Awaitable[Any]]
    ) -> dict[str, Any]:
        """Answer for every UID once, all at the same time."""
        keys = {one.uid: ClaimKey(one.uid, one.namespace, one.name, self._driver) for one in claims}
        entries: dict[str, Any] = {}

        async def fill(key: ClaimKey) -> None:
            entries[key.uid] = await answer(key)

        async with anyio.create_task_group() as tasks:
            for key in keys.values():
                tasks.start_soon(fill, key)
        return entries


def _device(messages: ModuleType, prepared: PreparedDevice) -> Any:
    """Return the message: the base name of a request, a share id where there is a field for it."""
    device = messages.Device(
        request_names=[prepared.request.partition("/")[0]],
        pool_name=prepared.pool,
        device_name=prepared.device,
        cdi_device_ids=prepared.cdi_ids,
    )
    if prepared.share_id and "share_id" in messages.Device.DESCRIPTOR.fields_by_name:
        device.share_id = prepared.share_id
    return device


def _said(what: str, key: ClaimKey, error: Exception) -> str:
    """Return an error as a pod's events will show it, and log it."""
    if isinstance(error, TimeoutError):
        said = f"{what} of claim {key} is still running; try again"
    elif isinstance(error, HardpointError):
        said = str(error) or type(error).__name__
    else:
        log.error("%s failed claim=%s uid=%s", what, key, key.uid, exc_info=error)
        return f"internal error in {what} of claim {key}: {type(error).__name__}"
    log.warning("%s failed claim=%s uid=%s error=%s", what, key, key.uid, said)
    return said[:LONGEST_ERROR]
