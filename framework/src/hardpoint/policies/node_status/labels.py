"""Labels of the Node: what drivers earn, what the settings say, what the node is able to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hardpoint.attributes import is_subdomain
from hardpoint.reading import printable

if TYPE_CHECKING:
    from hardpoint.policies.node_status.settings import NodeStatusSettings

LONGEST = 63
"""Characters of a label's value, and of the name in its key (``LabelValueMaxLength``)."""

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_ODD = re.compile(r"[^-A-Za-z0-9_.]+")
_ENDS = "-_."
_TAKEN = ("kubernetes.io", "k8s.io")
"""Domains of the cluster's own labels: by ``kubernetes.io/hostname`` and its like pods are placed,
and one that we had said would be removed from the Node once nobody earns it any more."""


def is_key(key: str) -> bool:
    """Say whether a label may be called so: ``pool``, ``example.com/pool``."""
    domain, slash, name = key.rpartition("/")
    named = len(name) <= LONGEST and _NAME.fullmatch(name) is not None
    return named and (not slash or is_subdomain(domain))


def _is_taken(name: str) -> bool:
    domain = name.rpartition("/")[0]
    return any(domain == one or domain.endswith(f".{one}") for one in _TAKEN)


def is_value(value: str) -> bool:
    """Say whether a label may have this value."""
    return not value or (len(value) <= LONGEST and _NAME.fullmatch(value) is not None)


def fitting(value: str) -> str:
    """Return a label's value for any text: ``NVIDIA H100 80GB`` is ``NVIDIA-H100-80GB``.

    What the API would refuse becomes a dash, and what is too long is cut; nothing may be left.
    """
    return _ODD.sub("-", value).strip(_ENDS)[:LONGEST].rstrip(_ENDS)


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
