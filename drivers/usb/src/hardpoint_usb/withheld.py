"""Why something on the bus is not offered: a word for the rule and a sentence for a person."""

from __future__ import annotations

import re

from hardpoint import Withheld
from hardpoint_usb.ports import USBFS, Interface, Port

_ALIAS = re.compile(r"[\w:*.-]{1,128}", re.ASCII)


def hub(port: Port) -> Withheld:
    """A hub."""
    return Withheld(
        port.address, "hub", "a hub is shared by what is plugged into it, which is offered itself"
    )


def unauthorized(address: str, what: str) -> Withheld:
    """A device or interface that the administrator did not authorise."""
    return Withheld(
        address,
        "unauthorized",
        f"the {what} is not authorised: write 1 to /sys/bus/usb/devices/{address}/authorized "
        "if you trust it",
    )


def unconfigured(port: Port) -> Withheld:
    """A device of which the kernel uses no configuration."""
    return Withheld(
        port.address,
        "unconfigured",
        "it has no interface: the kernel is still reading it, or chose no configuration "
        "(too little power at its hub, or descriptors that make no sense; see the kernel log)",
    )


def other_model(port: Port, held: str) -> Withheld:
    """Another device in the port of one that a claim holds."""
    return Withheld(
        port.address,
        "other-model",
        f"a claim holds {held}, which was in this port before: put that back, or end the claim. "
        "If they are one device that changed its ids, name both in driver.usb.successors",
    )


def undriven(one: Interface, reach: str) -> Withheld:
    """An interface that no kernel driver has; ``reach`` says who can reach it all the same."""
    if not one.authorized:
        return unauthorized(one.address, "interface")
    if one.driver == USBFS:
        return Withheld(one.address, "in-use", "a program has claimed this interface through usbfs")
    if one.driver:
        return Withheld(one.address, "plumbing", f"the {one.driver} driver only serves the bus")
    hint = f"; modprobe -R '{one.modalias}' names modules" if _ALIAS.fullmatch(one.modalias) else ""
    return Withheld(one.address, "undriven", f"no kernel driver is bound{hint}{reach}")


def second_half(one: Interface, first: Interface) -> Withheld:
    """An interface that its driver uses for what another one stands for."""
    return Withheld(
        one.address,
        "second-half",
        f"its driver {one.driver} uses it together with {first.address}, which stands for both",
    )


def no_node(one: Interface) -> Withheld:
    """A driven interface with nothing to hand over."""
    return Withheld(
        one.address,
        "no-node",
        f"its driver {one.driver} makes no device node that a container could be given "
        "(network interfaces have none)",
    )


def nothing_left(one: Interface, why: str) -> Withheld:
    """An adapter without nodes whose usbfs is not handed out."""
    return Withheld(
        one.address,
        "no-node",
        f"it has no node of its own (module uhid would give it one), and usbfs is not handed out: "
        f"{why}",
    )


def in_use(one: Interface, reason: str) -> Withheld:
    """An interface whose nodes the machine itself uses."""
    return Withheld(one.address, "in-use", reason)


def not_attached(one: Interface) -> Withheld:
    """A CEC adapter whose serial line nobody has attached."""
    return Withheld(
        one.address,
        "not-attached",
        "the settings make it a serio adapter, and its serial line is not attached: see whether "
        "hardpoint-serio runs for it and its kernel module is loaded",
    )
