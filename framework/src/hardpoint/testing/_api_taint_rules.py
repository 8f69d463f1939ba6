"""What the real API server refuses in DeviceTaintRules."""

from __future__ import annotations

from hardpoint.testing import _api_text as text
from hardpoint.testing._api_metadata import check_conditions
from hardpoint.testing._api_names import Names, check_taint
from hardpoint.testing._api_status import Causes, Json


def check_rule(body: Json, minor: int) -> Causes:
    """Return what is wrong with a rule's spec: each part of its selector may be left out."""
    causes = Causes()
    names, spec = Names(causes, minor), body.get("spec") or {}
    selector = spec.get("deviceSelector") or {}
    if "driver" in selector:
        names.driver("spec.deviceSelector.driver", selector["driver"])
    if "pool" in selector:
        names.pool("spec.deviceSelector.pool", selector["pool"])
    if "device" in selector:
        causes.say("spec.deviceSelector.device", selector["device"], text.of_label)
    check_taint(causes, "spec.taint", spec.get("taint") or {}, minor)
    return causes


def check_rule_status(body: Json, minor: int) -> Causes:
    """Return what is wrong with what the taint eviction controller reports."""
    causes = Causes()
    conditions = (body.get("status") or {}).get("conditions") or []
    check_conditions(causes, "status.conditions", conditions, minor)
    if len(conditions) > 8:
        causes.too_many("status.conditions", len(conditions), 8)
    return causes
