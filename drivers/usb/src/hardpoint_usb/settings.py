"""What an admin may set for this driver, and what a claim may ask of a USB device."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from hardpoint import Parameters, Settings

HexId = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{4}$"), AfterValidator(str.lower)]
"""A vendor or product id: four hexadecimal digits."""

HexPair = Annotated[
    str, StringConstraints(pattern=r"^[0-9a-fA-F]{4}:[0-9a-fA-F]{4}$"), AfterValidator(str.lower)
]
"""Vendor and product as ``lsusb`` prints them: ``1a6e:089a``."""

Protocol = Literal["pulse8-cec", "rainshadow-cec"]


class SerioAdapter(BaseModel):
    """A serial adapter whose line is attached to the kernel's input core: a USB-CEC adapter."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    protocol: Protocol
    """What it speaks; ``hardpoint-serio`` attaches the line with it."""
    vendor: HexId
    """Vendor id, four hexadecimal digits."""
    product: HexId
    """Product id, likewise."""
    serial: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,126}$")] | None = None
    """One unit; without it every adapter of these ids."""


class Successor(BaseModel):
    """Ids under which one physical device comes back after it re-enumerates."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    first: HexPair
    """The ids it has when it is plugged in; published as ``vendor`` and ``product`` always."""
    then: HexPair
    """The ids it has after its firmware was loaded; published as ``presentVendor`` and
    ``presentProduct``."""


class UsbSettings(Settings):
    """The section ``[driver.usb]``."""

    serio: tuple[SerioAdapter, ...] = ()
    """USB-CEC adapters, whose serial line ``hardpoint-serio`` attaches to the kernel's input core:
    ``protocol`` (pulse8-cec or rainshadow-cec), ``vendor``, ``product`` and, for one unit,
    ``serial``. They are published as their CEC and input nodes, never as a serial line."""
    successors: tuple[Successor, ...] = ()
    """Devices that come back under other ids once their firmware runs: ``first`` is what they are
    plugged in as, ``then`` what they become, both like ``1a6e:089a``. They are published with the
    ids of ``first`` throughout, so that selectors go on matching."""
    settle_seconds: float = Field(default=5.0, ge=0.0, le=600.0)
    """For so long after it was plugged in, a device with an interface that no driver is bound to
    takes no new claim: its module may still be loading."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        adapters = [(one.vendor, one.product, one.serial) for one in self.serio]
        if len(set(adapters)) < len(adapters):
            raise ValueError("serio: two entries for one vendor, product and serial")
        later = [one.then for one in self.successors]
        if len(set(later)) < len(later):
            raise ValueError("successors: two entries with the same 'then'")
        if set(later) & {one.first for one in self.successors}:
            raise ValueError("successors: a 'then' is the 'first' of an entry; name the very first")
        return self


class UsbParameters(Parameters, kind="UsbParameters"):
    """What a claim may ask of a USB device."""

    usbfs: bool | None = None
    """The node of the whole device, for libusb: true asks for it, false does without it. Unset, it
    is delivered where the device is published as one, and not where several owners share it."""
