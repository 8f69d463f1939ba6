"""What an admin may set, and what a claim may ask."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from hardpoint.errors import HoldDenied
from hardpoint.parameters import decode
from hardpoint_usb.settings import UsbParameters, UsbSettings

PULSE8 = {"protocol": "pulse8-cec", "vendor": "2548", "product": "1002"}


def test_ids_may_be_written_in_capitals() -> None:
    settings = UsbSettings.model_validate(
        {
            "serio": [PULSE8 | {"vendor": "25AF"}],
            "successors": [{"first": "1A6E:089A", "then": "18D1:9302"}],
        }
    )

    assert settings.serio[0].vendor == "25af"
    assert settings.successors[0].first == "1a6e:089a"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"serio": [PULSE8 | {"protocol": "mouse"}]}, "pulse8-cec"),
        ({"serio": [PULSE8 | {"vendor": "0x2548"}]}, "vendor"),
        ({"serio": [PULSE8 | {"product": "12"}]}, "product"),
        ({"serio": [PULSE8 | {"serial": "has blanks"}]}, "serial"),
        ({"serio": [PULSE8 | {"serial": ""}]}, "serial"),
        ({"serio": [PULSE8 | {"port": "1-2"}]}, "port"),
        ({"serio": [PULSE8, PULSE8]}, "two entries"),
        ({"successors": [{"first": "1a6e:089a", "then": "18d1"}]}, "then"),
        (
            {
                "successors": [
                    {"first": "1a6e:089a", "then": "18d1:9302"},
                    {"first": "1a6e:089b", "then": "18d1:9302"},
                ]
            },
            "same 'then'",
        ),
        (
            {
                "successors": [
                    {"first": "1a6e:089a", "then": "18d1:9302"},
                    {"first": "18d1:9302", "then": "18d1:9303"},
                ]
            },
            "very first",
        ),
        ({"settle_seconds": -1}, "settle_seconds"),
        ({"settle_seconds": 1e9}, "settle_seconds"),
        ({"settle_seconds": float("nan")}, "settle_seconds"),
        ({"no_such": 1}, "no_such"),
    ],
)
def test_a_setting_that_means_nothing_is_refused_with_a_word(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        UsbSettings.model_validate(settings)


def test_one_adapter_with_and_one_without_a_serial_are_two_entries() -> None:
    settings = UsbSettings.model_validate({"serio": [PULSE8, PULSE8 | {"serial": "v12"}]})

    assert [one.serial for one in settings.serio] == [None, "v12"]


def _block(**asked: Any) -> dict[str, Any]:
    return {"apiVersion": "hardpoint.dev/v1", "kind": "UsbParameters", **asked}


def test_a_claims_word_on_usbfs_beats_its_classs() -> None:
    asked = decode(UsbParameters, [_block(usbfs=True), _block(usbfs=False)], where="claim")

    assert asked == UsbParameters(usbfs=False)


@pytest.mark.parametrize("asked", [{"usbFS": True}, {"usbfs": "yes"}, {"usbfs": 1}])
def test_what_a_claim_may_not_ask_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(HoldDenied, match="usbfs"):
        decode(UsbParameters, [_block(**asked)], where="claim")
