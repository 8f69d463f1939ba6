"""How a pod goes: the seconds that its containers get, and what a delete answers."""

from __future__ import annotations

from hardpoint.testing._api_status import Json
from hardpoint.testing._api_store import now


def said_gone(pod: Json) -> Json:
    """Return what a delete answers of a pod that is gone at once."""
    going = {"deletionGracePeriodSeconds": 0, "deletionTimestamp": now()}
    return {**pod, "metadata": {**going, **pod["metadata"], "deletionGracePeriodSeconds": 0}}


def pod_grace(pod: Json, asked: int | None) -> int:
    """Return the seconds that a pod's containers get; none for one that runs nowhere.

    A second delete may shorten them (``BeforeDelete``).
    """
    spec, phase = pod.get("spec") or {}, (pod.get("status") or {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    given = pod["metadata"].get("deletionGracePeriodSeconds")
    if given is not None:
        return int(given) if asked is None else min(asked, int(given))
    return int(spec.get("terminationGracePeriodSeconds", 30)) if asked is None else asked
