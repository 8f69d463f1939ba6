"""Devices that the API server refuses: found by its causes or by trial, and withheld one by one.

One odd device must not hide the others of its slice (kubernetes pull request 142218). The server
mostly says which field it dislikes (``spec.devices[0].attributes[bad].string``); where it does not,
dry runs with halves of the slice tell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hardpoint.errors import KubeError, KubeInvalid
from hardpoint_dra.translate import Json

Trial = Callable[[Sequence[Json]], Awaitable[str]]
"""Asks the server about a slice of these devices; answers why not, empty if it would be stored."""

_LONGEST_REASON = 400
"""Characters; an admission policy's own words come last."""
_DEVICE = re.compile(r"spec\.devices\[(\d+)\]")
_COUNTERS = ("sharedCounters", "consumesCounters")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A device as it was refused, and why."""

    body: str
    reason: str


class Refusals:
    """The devices that are withheld until they change, or are tried again."""

    def __init__(self) -> None:
        self._refused: dict[str, Refusal] = {}
        self._on_trial: set[str] = set()

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why each refused device is not published, by name."""
        return {name: refusal.reason for name, refusal in self._refused.items()}

    def add(self, body: Json, reason: str) -> None:
        """Withhold a device as long as it stays as it is."""
        name = str(body["name"])
        self._refused[name] = Refusal(_fingerprint(body), reason)
        self._on_trial.discard(name)

    def try_again(self) -> None:
        """Let every refused device pass once: what refused it may be gone, an admin's policy."""
        self._on_trial.update(self._refused)

    def accepted(self) -> list[str]:
        """Forgive what was tried again and is stored by now; return the names."""
        names = sorted(self._on_trial)
        self._on_trial.clear()
        for name in names:
            del self._refused[name]
        return names

    def sift(self, bodies: Iterable[Json]) -> tuple[list[Json], list[str]]:
        """Return the devices that may be tried, and the names of those that are forgiven.

        A refused device that has changed, or that has left, is not withheld any more.
        """
        known = {str(body["name"]): body for body in bodies}
        forgiven = [
            name
            for name, refusal in self._refused.items()
            if name not in known or _fingerprint(known[name]) != refusal.body
        ]
        for name in forgiven:
            del self._refused[name]
            self._on_trial.discard(name)
        withheld = self._refused.keys() - self._on_trial
        return [body for name, body in known.items() if name not in withheld], forgiven

    def clear(self) -> list[str]:
        """Forgive everything: it is another server, or another version. Return the names."""
        names = list(self._refused)
        self._refused.clear()
        self._on_trial.clear()
        return names


def _fingerprint(body: Json) -> str:
    """Return a device without its counters, which change with its neighbours."""
    own = {key: value for key, value in body.items() if key != "consumesCounters"}
    return json.dumps(own, sort_keys=True)


def causes(error: KubeError) -> tuple[tuple[str, str], ...]:
    """Return what the server says is wrong, field by field; empty where it does not say."""
    return error.causes if isinstance(error, KubeInvalid) else ()


def named_devices(error: KubeError, devices: Sequence[Json]) -> dict[str, str]:
    """Return the devices that the server's causes name, with what is wrong with each."""
    found: dict[str, str] = {}
    for path, message in causes(error):
        match = _DEVICE.match(path)
        if match and int(match[1]) < len(devices) and not _of_counters(path):
            name = str(devices[int(match[1])]["name"])
            found.setdefault(
                name, f"{path[match.end() :].lstrip('.') or 'device'}: {quiet(message)}"
            )
    return found


def counters_refused(paths: Iterable[str]) -> bool:
    """Say whether it is the counters that the server dislikes: no device is to blame for them."""
    return any(_of_counters(path) for path in paths)


def _of_counters(path: str) -> bool:
    return any(word in path for word in _COUNTERS)


def quiet(message: str) -> str:
    """Return a server's message without the values it quotes: they come from the hardware."""
    return re.sub(r'"[^"]*"', "…", message)[:_LONGEST_REASON]


_SAMPLES = 8
"""Devices that are tried alone before a slice counts as refused for no device's sake."""


async def any_passes(devices: Sequence[Json], trial: Trial) -> bool:
    """Say whether some device alone would be stored, by a few of them from all over the slice.

    An empty slice tells nothing of them: a policy over ``object.spec.devices`` fails on it.
    """
    for device in devices[:: -(-len(devices) // _SAMPLES) or 1]:
        if not await trial([device]):
            return True
    return False


async def tried(devices: Sequence[Json], trial: Trial) -> dict[str, str]:
    """Return the devices that are refused even alone, found by halving; empty if none is."""
    why = await trial(devices)
    if not why:
        return {}
    if len(devices) == 1:
        return {str(devices[0]["name"]): quiet(why)}
    middle = len(devices) // 2
    return {**await tried(devices[:middle], trial), **await tried(devices[middle:], trial)}
