"""Which device stands in which slice, so that one that comes or goes changes one slice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hardpoint.reading import decimal

MOST_DEVICES = 128
"""Devices of a slice (``ResourceSliceMaxDevices``)."""
MOST_ADVANCED = 64
"""Devices of a slice in which any has taints or consumes counters."""


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Order names as people do, ``gpu-2`` before ``gpu-10``: the scheduler takes the first fit."""
    words = (word for word in re.split(r"([0-9]+)", name) if word)
    return tuple((-1, word) if (n := decimal(word)) is None else (n, "") for word in words)


def place(
    advanced: Mapping[str, bool], previous: Mapping[str, int], most: int = MOST_DEVICES
) -> list[list[str]]:
    """Return the devices of each slice, by name, in order.

    ``advanced`` says of every device whether it has taints or counters; ``previous`` is where
    devices stood: each stays, unless its slice has become too full. ``most`` is a smaller limit
    than the API's own, where a server has one.
    """
    limits = (min(most, MOST_DEVICES), min(most, MOST_ADVANCED))
    slices = _standing(advanced, previous)
    homeless = [name for name in advanced if name not in previous]
    for members in slices:
        homeless += _overflow(members, advanced, limits)
    for name in sorted(homeless, key=natural):
        home = next((s for s in slices if _fits([*s, name], advanced, limits)), None)
        if home is None:
            slices.append(home := [])
        home.append(name)
    kept = [sorted(members, key=natural) for members in slices if members]
    if previous and len(kept) > -(-len(advanced) // limits[1]) + 1:
        return place(advanced, {}, most)  # worn to shreds by years of coming and going
    return kept


def _standing(advanced: Mapping[str, bool], previous: Mapping[str, int]) -> list[list[str]]:
    slices: list[list[str]] = [[] for _ in range(max(previous.values(), default=-1) + 1)]
    for name in advanced:
        if name in previous:
            slices[previous[name]].append(name)
    return slices


def _fits(members: Iterable[str], advanced: Mapping[str, bool], limits: tuple[int, int]) -> bool:
    flags = [advanced[name] for name in members]
    return len(flags) <= limits[any(flags)]


def _overflow(
    members: list[str], advanced: Mapping[str, bool], limits: tuple[int, int]
) -> list[str]:
    """Take out of a slice what it cannot hold any more: the fewest devices that need to move."""
    if _fits(members, advanced, limits):
        return []
    special = [name for name in members if advanced[name]]
    plain = [name for name in members if not advanced[name]]
    if len(plain) <= limits[0] and len(special) <= max(0, len(members) - limits[1]):
        members[:] = plain
        return special
    ordered = [*special, *plain]
    members[:] = ordered[: limits[1]]
    return ordered[limits[1] :]
