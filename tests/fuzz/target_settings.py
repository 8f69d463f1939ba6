"""Settings files and variables: taken or refused with a place and a reason, never anything else."""

from __future__ import annotations

import os
from collections.abc import Callable

from fuzz.choices import ODD_TEXTS, Choices
from fuzz.world import DOMAIN, Stage, check_published

from hardpoint._core.offer.inventory import Facts, Listing, as_offer, build
from hardpoint.attributes import is_subdomain
from hardpoint.errors import BadSettings
from hardpoint.model import Device, DeviceNode, Domain, Offer
from hardpoint.settings import AgentSettings, load, needs_labels

VARIABLES = (
    "DOMAIN",
    "DRA_DRIVER",
    "NODE_NAME",
    "DRIVERS",
    "FRONTENDS",
    "POLICIES",
    "NODES",
    "RULES",
    "NAMES",
    "DRIVER__USB__USBFS",
    "DRIVER__USB",
    "DRIVER",
    "PATHS",
    "PATHS__CDI",
    "PATHS__STATE",
    "NAMES__USB__DOMAIN",
    "LOG__LEVEL",
    "KUBE__URL",
    "KUBE",
    "SERVICE_HOST",
    "_",
    "__X",
    "X____Y",
    "",
)
VALUES = (
    *ODD_TEXTS[2:-1],
    "[",
    "[[",
    "[" * 5000,
    "{" * 2000,
    '{"a": 1}',
    "[1]",
    f"[{'1' * 5000}]",
    '[{"action": "deny", "where": {"kind": "card"}}]',
    '[{"settings": {"domain": "a.b"}}]',
    "true",
    "a,b,,",
    "NaN",
    "[NaN]",
    "\\u0000",
    "/a/../b",
    "example.com",
)
DEVICES = (
    Device(name="card-0", kind="card", attributes={"model": "X"}, driver="cards"),
    Device(
        name="disk-0",
        kind="disk",
        nodes=(DeviceNode(path="/dev/sdz", major=240, minor=0),),
        driver="cards",
    ),
)


class Fuzzed:
    """Loads one settings file after another."""

    def __init__(self) -> None:
        self.stage = Stage()

    def __enter__(self) -> Callable[[bytes], None]:
        self.stage.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stage.__exit__(None, None, None)

    def __call__(self, data: bytes) -> None:
        choices = Choices(data)
        variables = {
            "HARDPOINT_" + choices.pick(VARIABLES): choices.pick(VALUES)
            for _ in range(choices.below(4))
        }
        file = self.stage.root / "hardpoint.toml"
        file.write_bytes(choices.rest())
        try:
            found = load(file, variables, node="node-1", labels={"zone": "a"})
            needs_labels(file, variables)
        except BadSettings as refusal:
            assert str(refusal)
            return
        finally:
            self.stage.quiet("no secret here")
        _usable(found)


def _usable(found: AgentSettings) -> None:
    """What was taken can be worked with: names, paths, rules."""
    for driver in ("usb", "nvidia_gpu", *found.names):
        domain = found.domain_of(driver)
        assert all(map(is_subdomain, _names(domain))), domain
    for _, path in found.paths:
        os.path.lexists(path)  # raises for a path that no system call takes
    assert is_subdomain(found.node_name), found.node_name
    listing = Listing("cards").after(DEVICES, 0.0)
    built = build([listing], Facts(domain_of=lambda _: DOMAIN, rules=found.rules))
    check_published(as_offer(built, Offer(generation=0), complete=True))


def _names(domain: Domain) -> tuple[str, str, str]:
    return domain.dra_driver, domain.resource_prefix, domain.cdi_vendor
