"""What policies keep back, told in the log: once when it begins, and once when it is over."""

from __future__ import annotations

import logging
from collections.abc import Mapping

_log = logging.getLogger("hardpoint.offer")


class Vetoed:
    """Which devices are vetoed, and why."""

    def __init__(self) -> None:
        self._reasons: Mapping[str, str] = {}

    def note(self, reasons: dict[str, str]) -> dict[str, str]:
        """Log what is other than before, one line for each reason; return the reasons."""
        before, self._reasons = self._reasons, reasons
        fresh: dict[str, list[str]] = {}
        for device, why in reasons.items():
            if before.get(device) != why:
                fresh.setdefault(why, []).append(device)
        for why, devices in fresh.items():
            _log.warning("vetoed devices=%s why=%r", ",".join(sorted(devices)), why)
        free = sorted(before.keys() - reasons.keys())
        if free:
            _log.info("no longer vetoed devices=%s", ",".join(free))
        return reasons
