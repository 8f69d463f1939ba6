"""Labels of the Node: what drivers earn, what the settings say, what the node is able to do."""

from __future__ import annotations

from collections.abc import Mapping

from hardpoint.policies.node_status.settings import NodeStatusSettings
from hardpoint.policies.node_status.words import fitting, is_key
from hardpoint.reading import printable

_TAKEN = ("kubernetes.io", "k8s.io")
"""Domains of the cluster's own labels: by ``kubernetes.io/hostname`` and its like pods are placed,
and one that we had said would be removed from the Node once nobody earns it any more."""


def _is_taken(name: str) -> bool:
    domain = name.rpartition("/")[0]
    return any(domain == one or domain.endswith(f".{one}") for one in _TAKEN)


def wanted(
    settings: NodeStatusSettings, earned: Mapping[str, str], *, governed: bool
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return every label that is ours to set, and the keys that plugins may not use.

    The settings win over drivers, and the admin's own labels over both.
    """
    found: dict[str, str] = {}
    bad: list[str] = []
    for name, value in earned.items():
        key = name if "/" in name else f"{settings.prefix}/{name}"
        if is_key(key) and not _is_taken(name):
            found[key] = fitting(str(value))
        else:
            bad.append(printable(name)[:80])
    for word, given in (("node-id", settings.node_id), ("site", settings.site)):
        if given:
            found[f"{settings.prefix}/{word}"] = fitting(given)
    able = settings.capabilities if governed else ()
    domain = settings.capability_prefix or settings.prefix
    found |= {f"{domain}/cap.{name}": "true" for name in able}
    return {**found, **settings.labels}, tuple(bad)
