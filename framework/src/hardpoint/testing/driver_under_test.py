"""One driver on one machine, called through the relay as the agent calls it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import anyio

from hardpoint import hookspecs
from hardpoint._core.offer.inventory import Listing
from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint._core.plugins.faults import FaultBoard
from hardpoint._core.plugins.relay import Relay
from hardpoint.contract import Dispatch, spec_of
from hardpoint.model import Allotment, Claim, ClaimKey, Delivery, Device, Hold
from hardpoint.node import Node
from hardpoint.parameters import decode

__all__ = ["DOMAIN", "DriverUnderTest", "claim_for", "hold_on"]

DOMAIN = "contract.test"


class DriverUnderTest:
    """A driver of a class, on a node, with its section of the settings.

    ``record`` says whether it runs: ``record.state``, and why not: ``record.reason``.
    """

    def __init__(self, made: type, node: Node, settings: dict[str, Any] | None = None) -> None:
        self.made, self.node, self.settings = made, node, settings or {}
        self.record = Plugin("driver", "contract", loaded=made)
        self.plugins = Plugins([self.record])
        self.plugins.start(self.record, node, self.settings)

    def call(self, hook: str, subject: str = "", **arguments: Any) -> Any:
        """Call one hook; None if the driver does not implement it.

        Raises ``TryAgain`` or ``Refuse`` as the driver does, and ``HookFault`` for all else.
        """
        answer, error = anyio.run(self._ask, hook, subject, arguments)
        if error is not None:
            raise error
        return answer

    async def _ask(
        self, hook: str, subject: str, arguments: dict[str, Any]
    ) -> tuple[Any, Exception | None]:
        """Answer what was raised rather than raise it: out of a task group it would be wrapped."""
        async with Relay(self.plugins, FaultBoard()) as relay:
            if not relay.implements("contract", hook):
                return None, None
            try:
                if spec_of(getattr(hookspecs, hook)).dispatch is Dispatch.GATHER:
                    found = await relay.plugin(hook, "driver/contract", subject, **arguments)
                else:
                    found = await relay.owner(hook, "contract", subject, **arguments)
            except Exception as error:  # noqa: BLE001 - it is raised again, outside
                return None, error
            return found, None

    def scan(self) -> Listing:
        """Walk the machine once; raises what the walk raises."""
        return Listing("contract").after(self.call("publish_devices"), 0.0)

    def again_on(self, node: Node) -> DriverUnderTest:
        """Return a fresh driver of the same class on another machine."""
        return DriverUnderTest(self.made, node, self.settings)

    def parameters(self, asked: Mapping[str, Any] | None = None) -> Any:
        """Return what a claim with this block gives, ``apiVersion`` and ``kind`` added.

        Without a block it is what a claim without parameters gives. Raises ``HoldDenied`` for a
        block that the driver's model refuses.
        """
        model = self.record.parameters_model
        if not asked:
            return decode(model, (), where="claim")
        named = {"apiVersion": model.api_version, "kind": model.kind} if model else {}
        return decode(model, ({**named, **asked},), where="claim", named=True)

    def deliver(self, device: Device, asked: Mapping[str, Any] | None = None) -> Delivery:
        """Return the driver's delivery, or the default: the device's nodes."""
        parameters = self.parameters(asked)
        if not self.implements("deliver_device"):
            return Delivery(nodes=device.nodes)
        answer = self.call("deliver_device", device.name, device=device, parameters=parameters)
        return cast("Delivery", answer)

    def prepare(self, device: Device, hold: Hold, asked: Mapping[str, Any] | None = None) -> None:
        """Prepare the device for the claim of ``claim_for`` with these parameters."""
        self.call(
            "prepare_device",
            device.name,
            device=device,
            claim=claim_for(device),
            parameters=self.parameters(asked),
            hold=hold,
        )

    def unprepare(self, device: Device | None, hold: Hold) -> None:
        """End the claim of a hold; ``device`` is None where it is gone."""
        self.call("unprepare_device", hold.device.name, device=device, hold=hold)

    def implements(self, hook: str) -> bool:
        """Say whether the driver has this hook."""
        return bool(getattr(self.made, hook, None))


def claim_for(device: Device) -> Claim:
    """Return a claim that was allocated this device."""
    key = ClaimKey("11111111-2222-3333-4444-555555555555", "contract", "claim", DOMAIN)
    allotment = Allotment(request="device", device=device.name, pool="node")
    return Claim(key=key, allotments=(allotment,))


def hold_on(device: Device) -> Hold:
    """Return a hold of that claim, which remembers in memory."""
    return Hold(claim=claim_for(device).key, device=device, request="device")
