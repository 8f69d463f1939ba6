"""Which devices go well together, as their driver says: advice, which no pod may wait long for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import anyio

from hardpoint._core.plugins.relay import Relay
from hardpoint.allocation import RankRequest
from hardpoint.errors import HardpointError
from hardpoint.model import Offer

_HOOK = "rank_devices"


class Ranking:
    """Asks drivers, one question at a time each: a call that is joined answers another's."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._turns: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def rank(self, driver: str, request: RankRequest, offer: Offer) -> tuple[str, ...]:
        """Return what a driver would choose, at most ``request.count`` names; () for no advice.

        A driver that fails, or is still at an earlier question, gives none.
        """
        if not self._relay.implements(driver, _HOOK):
            return ()
        async with self._turns[driver]:
            if self._relay.running(driver, _HOOK, ""):
                return ()
            try:
                answer = await self._relay.owner(_HOOK, driver, "", request=request, offer=offer)
            except HardpointError:  # it is on the fault board
                return ()
        return chosen(answer, request)


def chosen(answer: Iterable[str], request: RankRequest) -> tuple[str, ...]:
    """Return what of an answer may be chosen: the required first, each name once."""
    allowed = set(request.available)
    ordered = dict.fromkeys((*request.required, *answer))
    return tuple(name for name in ordered if name in allowed)[: request.count]
