"""What the agent says of itself, as families of samples. Pure.

A label's value is a name (of a device, pod, plugin or allocation) or a closed word: no attribute of
the hardware, whose strings anybody may have written, and no message.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from hardpoint.policies.metrics.exposition import Family, Sample

Json: TypeAlias = "Mapping[str, Any]"

_WORD = re.compile(r"[A-Za-z0-9_./:-]{1,64}")


def families(status: Json, now: float) -> Iterator[Family]:
    """Yield what ``Agent.status`` says; ``now`` is in seconds since 1970."""
    yield from _of_agent(status)
    yield from _of_devices(status)
    yield from _of_holds(status)
    yield from _of_grants(status, now)
    yield from _of_troubles(status)


def _of_agent(status: Json) -> Iterator[Family]:
    labels = {"node": str(status.get("node", ""))}
    yield _gauge("hardpoint_agent_info", "The agent, and the node it serves.", [Sample(1, labels)])
    yield _gauge(
        "hardpoint_agent_writing",
        "1 in the one of two overlapping agents that writes slices and lists.",
        [Sample(bool(status.get("writing")))],
    )
    yield _gauge(
        "hardpoint_agent_ready",
        "1 once every frontend serves.",
        [Sample(bool(status.get("ready")))],
    )
    yield _gauge(
        "hardpoint_agent_start_time_seconds",
        "When the agent started, in seconds since 1970.",
        [Sample(float(status.get("started", 0)))],
    )


def _of_devices(status: Json) -> Iterator[Family]:
    devices = status.get("devices", ())
    yield _gauge(
        "hardpoint_devices_offered",
        "Devices that are offered, by driver, kind and health.",
        _counted(devices, "driver", "kind", "health"),
    )
    yield _gauge(
        "hardpoint_devices_held",
        "Those of them that somebody holds.",
        _counted((one for one in devices if one["held"]), "driver", "kind"),
    )
    yield _gauge(
        "hardpoint_devices_tainted",
        "Those of them that a taint keeps from new pods, by its key.",
        _counted(
            ({**one, "taint": taint["key"]} for one in devices for taint in one["taints"]),
            "driver",
            "kind",
            "taint",
        ),
    )
    yield _gauge(
        "hardpoint_devices_withheld",
        "Hardware that is seen and not offered, by driver and the rule that withholds it.",
        _counted(status.get("not_offered", ()), "driver", "rule"),
    )


def _of_holds(status: Json) -> Iterator[Family]:
    holds = status.get("holds", ())
    yield _gauge(
        "hardpoint_holds", "Holds of claims and allocations, by state.", _counted(holds, "state")
    )
    yield _gauge(
        "hardpoint_hold_info",
        "1 for each device, the claim or resource and id that hold it, and a container that has "
        "it; the pod is empty where nobody is known to have it.",
        [Sample(1, labels) for hold in holds for labels in _holders(hold)],
    )


def _holders(hold: Json) -> Iterator[dict[str, str]]:
    own = {name: str(hold[name]) for name in ("device", "claim", "state")}
    nobody = {"namespace": "", "pod": "", "container": ""}
    for user in hold.get("users") or (nobody,):
        yield own | {name: str(user[name]) for name in nobody}


def _of_grants(status: Json, now: float) -> Iterator[Family]:
    releases = status.get("releases", ())
    yield _gauge(
        "hardpoint_grants",
        "Grants, by source and what became of them.",
        _counted(status.get("grants", ()), "source", "outcome"),
    )
    yield _gauge(
        "hardpoint_releases_pending",
        "Releases that are not over: somebody may still use their devices.",
        [Sample(len(releases))],
    )
    yield _gauge(
        "hardpoint_release_age_seconds",
        "For how long each of them has been pending.",
        [
            Sample(max(0.0, now - float(one["since"])), {"release": one["id"], **_allocated(one)})
            for one in releases
        ],
    )
    yield _gauge(
        "hardpoint_node_withdrawn",
        "1 while the node is handed back and offers nothing.",
        [Sample(bool(status.get("withdrawn")))],
    )


def _allocated(release: Json) -> dict[str, str]:
    return {name: str(release[name]) for name in ("allocation", "source")}


def _of_troubles(status: Json) -> Iterator[Family]:
    faults = ({"source": _word(one["source"])} for one in status.get("faults", ()))
    yield _gauge(
        "hardpoint_faults",
        "Failures that stand, by who or what fails; `hardpoint doctor` says how.",
        _counted(faults, "source"),
    )
    yield _gauge(
        "hardpoint_devices_quarantined",
        "Devices whose driver could not undo or release them yet.",
        [Sample(len(status.get("quarantine", ())))],
    )
    yield _gauge(
        "hardpoint_plugins_not_running",
        "Plugins that are refused or missing.",
        _counted(status.get("plugins", ()), "role", "name", "state"),
    )
    yield _gauge(
        "hardpoint_node_condition",
        "1 for each condition that is true of the node.",
        _counted(status.get("conditions", ()), "type", "reason"),
    )


def _word(source: str) -> str:
    """Return who fails: the first word of a fault's source, where it is a name."""
    word = source.partition(" ")[0].rstrip(":")
    return word if _WORD.fullmatch(word) else "other"


def _counted(found: Iterable[Json], *names: str) -> list[Sample]:
    counts = Counter(tuple(str(one.get(name, "")) for name in names) for one in found)
    return [
        Sample(count, dict(zip(names, values, strict=True)))
        for values, count in sorted(counts.items())
    ]


def _gauge(name: str, help_: str, samples: Iterable[Sample]) -> Family:
    return Family(name, "gauge", help_, tuple(samples))
