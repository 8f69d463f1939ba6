"""What a holder receives: the driver's delivery, as the host has it, and as policies leave it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from hardpoint import cdi
from hardpoint._core.claims.narrowing import widened
from hardpoint._core.claims.ports import Hooks
from hardpoint._core.ledger.records import Record
from hardpoint.errors import BadValue, HookFault, TryAgain
from hardpoint.model import Addition, Claim, Delivery, Device, DeviceNode, Event
from hardpoint.node import Node

_T = TypeVar("_T")

_THREADS = 16

_LONGEST_ENV = 64 << 10
"""Bytes that one policy may add: ``execve`` takes no string of 128 KiB (MAX_ARG_STRLEN)."""
_NO_DEVICES = (["shm"], ["mqueue"], ["hugepages"])
"""What of /dev are file systems of memory."""


class Composer:
    """Composes deliveries. Pure but for looking at the host's nodes."""

    def __init__(self, node: Node, hooks: Hooks, report: Callable[[Event], None]) -> None:
        self.node, self._hooks, self._report = node, hooks, report
        self._threads: anyio.CapacityLimiter | None = None

    async def deliver(self, device: Device, parameters: Any, subject: str) -> Delivery:
        """Ask the driver; without ``deliver_device``, a holder receives the device's nodes."""
        answer = await self._hooks.owner(
            "deliver_device", device.driver, subject, device=device, parameters=parameters
        )
        if answer is None:
            return Delivery(nodes=device.nodes)
        if not isinstance(answer, Delivery):
            raise HookFault(device.driver, "deliver_device", f"answered {type(answer).__name__}")
        return answer

    async def compose(
        self, record: Record, claim: Claim, device: Device, parameters: Any
    ) -> Delivery:
        """Return the whole of what a holder receives. ``claim`` is what the hold is of.

        Raises ``TryAgain`` while a node is not there or not yet the one that the driver means, and
        what the hooks raise.
        """
        hold, subject = record.hold(), record.subject
        delivered = await self.deliver(device, parameters, subject)
        _refuse_mounted_devices(device, delivered)
        delivered = await self.in_thread(lambda: self._on_host(delivered))
        narrowed = await self._hooks.fold(
            "isolate_delivery", subject, "delivery", hold=hold, device=device, delivery=delivered
        )
        if not isinstance(narrowed, Delivery):
            raise HookFault("policies", "isolate_delivery", f"answered {type(narrowed).__name__}")
        more = widened(delivered, narrowed)
        if more:
            raise HookFault("policies", "isolate_delivery", f"it adds {more}; it may only narrow")
        additions = await self._hooks.gather(
            "annotate_delivery", subject, hold=hold, device=device, claim=claim
        )
        return self._annotated(narrowed, additions, record.cdi_vendor)

    async def numbered(self, nodes: Iterable[DeviceNode]) -> tuple[DeviceNode, ...]:
        """Fill in the numbers of nodes that are named by path alone, so that they are parts too."""
        delivery = Delivery(nodes=tuple(nodes))
        if all(node.part for node in delivery.nodes):
            return delivery.nodes
        return (await self.in_thread(lambda: cdi.resolve(delivery, self.node))).nodes

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        """Look at files without holding up the loop, in threads that no plugin can use up."""
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(_THREADS)
        return await anyio.to_thread.run_sync(work, limiter=self._threads)

    def _on_host(self, delivery: Delivery) -> Delivery:
        """Check that every node is there and is the one that is meant (nv-dra#1380), and fill in.

        After a replug or a renumbering the path may lead to another device for a moment.
        """
        if not self.node.recorded:
            for node in delivery.nodes:
                if not node.absent_ok:
                    self._check(node)
        return cdi.resolve(delivery, self.node)

    def _check(self, node: DeviceNode) -> None:
        info = self.node.info(node.source)
        if info is None:
            raise TryAgain(f"{node.source} is not there yet")
        if node.major is None:
            return
        if (info.type, info.major, info.minor) != (node.type, node.major, node.minor):
            raise TryAgain(
                f"{node.source} is {info.type} {info.major}:{info.minor}, "
                f"want {node.type} {node.major}:{node.minor}: it is being renumbered"
            )

    def _annotated(
        self, delivery: Delivery, additions: Mapping[str, Addition | None], vendor: str
    ) -> Delivery:
        """Add what policies add; one that CDI or the kernel would refuse costs only itself."""
        for policy, addition in additions.items():
            if not isinstance(addition, Addition):
                continue
            try:
                alone = Delivery(env=addition.env, annotations=addition.annotations)
                cdi.spec(vendor, [("d", alone)])
                _check_size(addition)
            except BadValue as error:
                message = f"annotate_delivery of {policy} is left out: {error}"
                self._report(Event(name="annotation-refused", message=message, warning=True))
                continue
            delivery = delivery.with_additions(addition)
        return delivery


def _check_size(addition: Addition) -> None:
    """Raise ``BadValue`` for variables with which no container could be started."""
    size = sum(len(f"{name}={value}".encode()) for name, value in addition.env.items())
    if size > _LONGEST_ENV:
        raise BadValue("env", f"{size} bytes", f"at most {_LONGEST_ENV} bytes of variables")


def _refuse_mounted_devices(device: Device, delivery: Delivery) -> None:
    """Raise ``HookFault`` where a device would be mounted instead of delivered as a node.

    A container sees it then and may not open it (moby/moby#46608), unless it is privileged: then it
    has what no ledger knows of, and what the machine may keep for itself.
    """
    for mount in delivery.mounts:
        parts = os.path.normpath(mount.host_path).lstrip("/").split("/")
        if parts[0] == "dev" and parts[1:2] not in _NO_DEVICES:
            why = f"it mounts {mount.host_path}: deliver its nodes as nodes"
            raise HookFault(device.driver, "deliver_device", why)
