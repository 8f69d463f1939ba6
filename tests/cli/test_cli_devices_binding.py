"""``hardpoint devices`` says of a device what a claim on it waits for."""

from __future__ import annotations

import json
from importlib import resources

import jsonschema

from hardpoint.cli.devices import document
from hardpoint.model import Device, Domain, Offer, Offered


def answer(device: Device) -> dict[str, object]:
    offered = Offered(device=device, domain=Domain.named("acme.dev"))
    found = document(Offer(generation=1, devices=(offered,)), ())
    schema = resources.files("hardpoint.cli").joinpath("devices.schema.json").read_text("utf-8")
    jsonschema.validate(found, json.loads(schema))
    shown: dict[str, object] = found["devices"][0]
    return shown


def test_a_device_that_nobody_has_to_attach_says_nothing_of_it() -> None:
    plain = Device(name="d", kind="k", driver="acme")

    assert not [key for key in answer(plain) if "binding" in key]


def test_a_device_says_which_conditions_a_claim_on_it_waits_for() -> None:
    found = answer(
        Device(
            name="d",
            kind="k",
            driver="acme",
            binding_conditions=("acme.dev/attached",),
            binding_failure_conditions=("acme.dev/failed",),
        )
    )

    assert found["binding_conditions"] == ["acme.dev/attached"]
    assert found["binding_failure_conditions"] == ["acme.dev/failed"]
