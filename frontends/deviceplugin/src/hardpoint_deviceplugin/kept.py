"""The names of the resources that the kubelet was told of, kept over a restart.

The kubelet remembers a name long after the plugin that registered it is gone (NVIDIA/k8s-device-
plugin#240). So a name that the settings no longer have is served once more, empty, and only then
let go.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from hardpoint.errors import BadValue
from hardpoint_deviceplugin.names import check_resource

log = logging.getLogger(__name__)

FILE = "deviceplugin-resources.json"
_LONGEST = 1 << 20


class KeptNames:
    """One small file in the agent's state directory. It is advice: losing it costs nothing but
    that a name which was renamed meanwhile is let go by the kubelet alone."""

    def __init__(self, state: Path) -> None:
        self._path = state / FILE

    def load(self) -> frozenset[str]:
        """Return the names that were kept; none if there is no such file, or it is not ours."""
        try:
            with self._path.open("rb") as file:
                found = json.loads(file.read(_LONGEST))
        except (OSError, ValueError, RecursionError):
            return frozenset()
        names = found if isinstance(found, list) else []
        return frozenset(name for name in names if isinstance(name, str) and _is_name(name))

    def save(self, names: Iterable[str]) -> None:
        """Keep these; a disk that is full costs only the memory."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps(sorted(names)), "utf-8")
            os.replace(fresh, self._path)
        except OSError as error:
            log.warning("names of resources not kept why=%s", error)


def _is_name(name: str) -> bool:
    try:
        check_resource(name)
    except BadValue:
        return False
    return True
