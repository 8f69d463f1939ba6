"""Which devices each frontend offers: one physical thing goes through one of them only.

Two frontends that offer the same hardware would have two schedulers give it away. The settings say
who offers what; where they leave it open they are refused, and a device that two of them claim is
offered through neither.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from hardpoint._core.offer.rules import facts_of
from hardpoint._where import Share
from hardpoint.agent import Agent
from hardpoint.errors import BadSettings
from hardpoint.model import Offer, Offered, Part, Taint, Withheld
from hardpoint.settings import AgentSettings

TWO_FRONTENDS = "two-frontends"
"""The rule of a device that is withheld since two frontends would offer it."""
DISPUTED = Taint(TWO_FRONTENDS)


class Shares:
    """What each of the frontends that run may offer."""

    def __init__(self, shares: Mapping[str, Share]) -> None:
        self._shares = dict(shares)

    @classmethod
    def of(cls, settings: AgentSettings, frontends: Iterable[str]) -> Shares:
        """Read the shares of these frontends."""
        return cls({name: settings.share_of(name) for name in sorted(frontends)})

    def check(self) -> None:
        """Raise ``BadSettings`` where one offers everything beside another that offers anything."""
        for one, other in combinations(self._shares, 2):
            for whole, part in ((one, other), (other, one)):
                if self._shares[whole].is_everything and not self._shares[part].is_nothing:
                    raise BadSettings(
                        f"frontend.{whole}",
                        f"offers every device, and frontend.{part} offers devices too",
                        "one physical device is offered through one frontend: say with `only` or "
                        f"`without` in [frontend.{whole}] which it does not offer, or name one of "
                        "them in `frontends`",
                    )

    def view(self, frontend: str, offer: Offer) -> Offer:
        """Return what of an offer a frontend sees."""
        share = self._shares.get(frontend)
        if share is None or share.is_everything:
            return offer
        mine = tuple(o for o in offer.devices if share.wants(facts_of(o.device)))
        return replace(offer, devices=mine)

    def judge(self, devices: Sequence[Offered]) -> tuple[tuple[Offered, ...], tuple[Withheld, ...]]:
        """Return devices without those that two frontends would offer, and why not.

        What somebody holds already stays, for nobody new.
        """
        reasons = self._disputes(devices)
        kept: list[Offered] = []
        withheld: list[Withheld] = []
        for index, one in enumerate(devices):
            if index not in reasons:
                kept.append(one)
            elif one.held:
                kept.append(replace(one, taints=(*one.taints, DISPUTED), claimable=False))
            else:
                why = reasons[index]
                withheld.append(Withheld(one.name, TWO_FRONTENDS, why, one.device.driver))
        return tuple(kept), tuple(withheld)

    def _disputes(self, devices: Sequence[Offered]) -> dict[int, str]:
        """Return what is claimed twice, itself or in a part, by index, and by whom."""
        if len(self._shares) < 2:
            return {}
        wanted = [self._who(one) for one in devices]
        reasons = {
            index: f"it is offered through {_both(names)}"
            for index, names in enumerate(wanted)
            if len(names) > 1
        }
        for part, a, b in _contending(devices, wanted):
            names = _both((*wanted[a], *wanted[b]))
            for index, other in ((a, b), (b, a)):
                what = f"it and {devices[other].name} are one thing ({part})"
                reasons.setdefault(index, f"{what}, offered through {names}")
        return reasons

    def _who(self, offered: Offered) -> tuple[str, ...]:
        facts = facts_of(offered.device)
        return tuple(name for name, share in self._shares.items() if share.wants(facts))


def _contending(
    devices: Sequence[Offered], wanted: Sequence[tuple[str, ...]]
) -> Iterator[tuple[str, int, int]]:
    """Yield the part and the indices of two devices that two frontends want and one holder gets."""
    takers: defaultdict[str, list[tuple[int, Part]]] = defaultdict(list)
    for index, one in enumerate(devices):
        for part in one.device.all_parts if wanted[index] else ():
            takers[part.name].append((index, part))
    for name, taken in takers.items():
        if len({wanted[index] for index, _ in taken}) < 2:
            continue
        for (a, of_a), (b, of_b) in combinations(taken, 2):
            if wanted[a] != wanted[b] and of_a.contends(of_b):
                yield name, a, b


def _both(names: Sequence[str]) -> str:
    """Name the places in the settings."""
    places = " and ".join(f"[frontend.{name}]" for name in dict.fromkeys(names))
    return f"both {places}: `only` and `without` there say which of them has it"


class FrontendView:
    """The agent, as a frontend sees it that offers some of the devices alone."""

    def __init__(self, agent: Agent, frontend: str, shares: Shares) -> None:
        self._agent, self._frontend, self._shares = agent, frontend, shares
        self._last: tuple[Offer, Offer] | None = None

    def __getattr__(self, name: str) -> Any:
        """Everything else is the agent's own."""
        return getattr(self._agent, name)

    @property
    def offer(self) -> Offer:
        """What it may offer now."""
        return self._seen(self._agent.offer)

    async def offers(self) -> AsyncIterator[Offer]:
        """Yield its offer now and after each change."""
        last: Offer | None = None
        async for whole in self._agent.offers():
            seen = self._seen(whole)
            if last is None or replace(seen, generation=last.generation) != last:
                last = seen
                yield seen

    def _seen(self, whole: Offer) -> Offer:
        if self._last is None or self._last[0] is not whole:
            self._last = whole, self._shares.view(self._frontend, whole)
        return self._last[1]
