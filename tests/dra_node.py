"""What the tests of the DRA frontend's node side share: a claim, a device, a running part."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio

from hardpoint.model import ClaimKey, Device
from hardpoint.testing.kubelet import Pod

DRIVER = "hardpoint.dev"
NODE = "node-1"
POD = Pod(name="train", claims=("gpu",))
KEY = ClaimKey("uid-1", "default", "gpu", DRIVER)


def device(name: str = "pci-0", **facts: Any) -> Device:
    return Device(name=name, kind="gpu", driver="pci_drm", **facts)


def result(
    device: str = "pci-0", request: str = "r", driver: str = DRIVER, pool: str = NODE, **more: Any
) -> dict[str, Any]:
    return {"request": request, "driver": driver, "pool": pool, "device": device, **more}


def claim(
    *results: dict[str, Any],
    uid: str = "uid-1",
    name: str = "gpu",
    pod: Pod = POD,
    config: list[dict[str, Any]] | None = None,
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return an allocated ResourceClaim, reserved for a pod."""
    devices = {"results": list(results or (result(),)), "config": config or []}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": pod.namespace,
            "uid": uid,
            "annotations": annotations or {},
        },
        "status": {
            "allocation": {"devices": devices},
            "reservedFor": [{"resource": "pods", "name": pod.name, "uid": pod.identity}],
        },
    }


@asynccontextmanager
async def running(*parts: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run what never ends, as long as the block lasts."""
    async with anyio.create_task_group() as tasks:
        for part in parts:
            tasks.start_soon(part)
        yield
        tasks.cancel_scope.cancel()
