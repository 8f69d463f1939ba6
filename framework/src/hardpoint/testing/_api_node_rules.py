"""What the real API server refuses in Nodes: labels are checked with the metadata, taints here."""

from __future__ import annotations

from hardpoint.testing import _api_text as text
from hardpoint.testing._api_status import Causes, Json

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def check_node(node: Json) -> Causes:
    """Return what is wrong with a node. Conditions are taken as they come."""
    causes, seen = Causes(), set()
    for index, taint in enumerate((node.get("spec") or {}).get("taints") or ()):
        path = f"metadata.taints[{index}]"  # sic
        key, effect = taint.get("key", ""), taint.get("effect", "")
        causes.say(f"{path}.key", key, text.of_key)
        causes.say(f"{path}.value", taint.get("value", ""), text.of_value)
        if not effect:
            causes.required(f"{path}.effect")
        elif effect not in _EFFECTS:
            causes.unsupported(f"{path}.effect", effect, _EFFECTS)
        if (key, effect) in seen:
            detail = "taints must be unique by key and effect pair"
            causes.duplicate(path, {k: v for k, v in taint.items() if v}, detail)
        seen.add((key, effect))
    return causes
