"""Evidence from the agent's own ledger: what is prepared and not unprepared is in use.

The ledger is durable, and the kubelet unprepares a claim only after its pods' containers have
ended, so this is true also while the kubelet does not answer, or is too old to list claims.
"""

from __future__ import annotations

import time

from hardpoint.contract import hookimpl
from hardpoint.grants import Evidence, Release
from hardpoint.model import Hold
from hardpoint.node import Node
from hardpoint.policies._uses import holder, holds_released


class PreparedClaims:
    """Whoever holds a device of a release uses it, in whatever state the hold is.

    One that is being released has a driver that may still write to the device; one in quarantine
    could not be undone.
    """

    def __init__(self, node: Node, settings: None) -> None: ...

    @hookimpl
    def find_users(self, release: Release, holds: tuple[Hold, ...]) -> Evidence:
        """Name every claim, and every id of a device plugin's, that holds one of the devices."""
        users = [holder(hold) for hold in holds if holds_released(hold, release)]
        return Evidence.used_by(time.monotonic(), *dict.fromkeys(users))
