"""A device with binding conditions is prepared once they are true, whoever waited for them."""

from __future__ import annotations

from typing import Any

import pytest
from dra_node import DRIVER, KEY, NODE, claim, device, result

from hardpoint.errors import HoldDenied, HoldFailed
from hardpoint.model import Domain, Offer, Offered
from hardpoint_dra.binding import bound_by
from hardpoint_dra.claims import to_claim

ATTACHED, FAILED = "acme.dev/attached", "acme.dev/failed"
OFFER = Offer(
    generation=1,
    devices=(
        Offered(
            device=device(
                "fabric-0",
                binding_conditions=(ATTACHED, "Cabled"),
                binding_failure_conditions=(FAILED,),
            ),
            domain=Domain.named(DRIVER),
        ),
        Offered(device=device("pci-0"), domain=Domain.named(DRIVER)),
    ),
)


def said(name: str, status: str = "True", message: str = "") -> dict[str, Any]:
    return {"type": name, "status": status, "message": message}


def entry(*conditions: dict[str, Any], **more: Any) -> dict[str, Any]:
    about = {"driver": DRIVER, "pool": NODE, "device": "fabric-0", "conditions": list(conditions)}
    return about | more


def check(devices: Any, found: dict[str, Any] | None = None) -> None:
    found = found or claim(result("fabric-0"))
    found["status"]["devices"] = devices
    bound_by(lambda: OFFER)(to_claim(KEY, found, NODE), found)


@pytest.mark.parametrize(
    "devices",
    [
        None,
        [],
        [entry(conditions=None)],
        [entry(said(ATTACHED))],
        [entry(said(ATTACHED), said("Cabled", "False"))],
        [entry(said(ATTACHED), said("Cabled", "Unknown"))],
        [entry(said(ATTACHED), said("Cabled"), driver="other.dev")],
        [entry(said(ATTACHED), said("Cabled"), pool="elsewhere")],
        [entry(said(ATTACHED), said("Cabled"), device="fabric-1")],
        [entry(said(ATTACHED), said("Cabled"), shareID="another")],
    ],
)
def test_a_claim_waits_until_every_condition_is_true_of_its_own_device(devices: Any) -> None:
    with pytest.raises(HoldFailed, match=r"fabric-0 is not ready .* waits for .*Cabled"):
        check(devices)


def test_a_claim_whose_conditions_are_true_is_let_through() -> None:
    check([entry(said("Ready", "False"), said(ATTACHED), said("Cabled"))])


def test_a_failure_condition_is_told_with_its_message() -> None:
    with pytest.raises(HoldFailed, match=f"fabric-0 failed: {FAILED}: no free port"):
        check([entry(said(ATTACHED), said("Cabled"), said(FAILED, message="no free port"))])


def test_each_share_of_a_device_has_its_own_conditions() -> None:
    both = [result("fabric-0", shareID=share) for share in ("s1", "s2")]
    true = [said(ATTACHED), said("Cabled")]

    check([entry(*true, shareID=share) for share in ("s1", "s2")], claim(*both))
    with pytest.raises(HoldFailed):
        check([entry(*true, shareID="s1")], claim(*both))


def test_admin_access_and_devices_without_conditions_wait_for_nothing() -> None:
    check([], claim(result("pci-0"), result("fabric-0", adminAccess=True), result("unknown")))


@pytest.mark.parametrize("devices", ["text", [{"driver": 1}], [entry("yes")]])  # type: ignore[arg-type]
def test_a_status_that_is_none_refuses_the_claim(devices: Any) -> None:
    with pytest.raises(HoldDenied, match=r"status\.devices"):
        check(devices)
