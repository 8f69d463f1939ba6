"""The agent's side of policies: grants, releases, conditions, and a node that is handed back."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import anyio
from anyio.abc import TaskGroup

from hardpoint._core.grants.conditions import MOST as MOST_CONDITIONS
from hardpoint._core.grants.conditions import UNAVAILABLE, Conditions
from hardpoint._core.grants.granting import Granting
from hardpoint._core.grants.grantplan import in_force
from hardpoint._core.grants.lost import Lost
from hardpoint._core.grants.releases import Releases
from hardpoint._core.ledger.ledger import Ledger
from hardpoint._core.offer.scanner import Scanner
from hardpoint._core.plugins.relay import Relay
from hardpoint._core.pods.holding import Known
from hardpoint._core.pods.reaper import Reaper, Surroundings, Timings, timings_of
from hardpoint._core.pods.revoked import Granted
from hardpoint._core.signals import Signal
from hardpoint.grants import Grant, NodeCondition, Release
from hardpoint.model import Device, Event, Offer, Veto

_log = logging.getLogger("hardpoint.policies")

_CONDITIONS = "conditions"
"""What a fault of very many goes by."""


class PolicySide:
    """What policies see of the agent and what the agent asks of them, beside the offer itself.

    ``agent`` is what hooks are handed; ``touch`` makes the offer again.
    """

    def __init__(
        self,
        relay: Relay,
        ledger: Ledger,
        *,
        agent: Any,
        writing: Callable[[], bool],
        touch: Callable[[], None],
        report: Callable[[Event], None],
        changed: Callable[[], None],
        known: Callable[[PolicySide], Known],
    ) -> None:
        self._relay, self._ledger, self._agent, self._touch = relay, ledger, agent, touch
        self._writing, self._show = writing, changed
        self._altered = anyio.Event()
        self._offer: Offer | None = None
        self._pending: frozenset[str] = frozenset()
        self._vetoed: dict[str, str] = {}
        """The conditions that vetoes stand for: type and reason."""
        self._earned: dict[str, Mapping[Any, Any]] = {}
        """What each plugin said last of the labels that the node earns."""
        self.conditions = Conditions(self.alter)
        self.lost = Lost(agent.paths.state, self.conditions)
        shared: dict[str, Any] = {
            "agent": agent,
            "conditions": self.conditions,
            "writing": writing,
            "touch": touch,
        }
        self.granting = Granting(relay, ledger, lost=self.lost, **shared)
        self.releases = Releases(
            relay, ledger, self.granting, self.lost, report=report, show=changed, **shared
        )
        self.reaper = self._reaper(known, report)

    def _reaper(
        self, known: Callable[[PolicySide], Known], report: Callable[[Event], None]
    ) -> Reaper:
        around = Surroundings(
            known=known(self),
            hooks=self._relay,
            board=self._relay.board,
            agent=self._agent,
            active=self._is_active,
            ask=self.granting.settle,
            writing=self._writing,
            report=report,
            left=self.releases.wake,
            silent=self._say_silent,
            timings=self._timings,
        )
        return Reaper(around, node=self._agent.node.name)

    def _is_active(self) -> bool:
        """Say whether there may be anything to reap."""
        return bool(self.granting.sources or self.releases.ids)

    def _say_silent(self, why: str) -> None:
        """Say that pods are not known, for what is granted or released cannot be had back then."""
        needed = bool(self.granting.in_force() or self.releases.ids)
        message = f"which pods have which devices is not known, so none is reaped: {why}"
        self.conditions.share(UNAVAILABLE, "PodsUnread", message if why and needed else "")

    def _timings(self) -> Timings:
        reaping = self._relay.implementations("reap_pod")
        return timings_of(map(self._relay.plugins.instance, reaping))

    def granted(self) -> Iterator[Granted]:
        """Yield what may be had under each grant that is written down."""
        for one, known in in_force(self.granting.book):
            yield Granted(one.dra_driver, one.device.name, known.grant.allocation)

    async def begin(self) -> None:
        """Find out what was lost with a ledger."""
        await self.lost.begin(say=bool(self.granting.sources))

    def start(self, tasks: TaskGroup) -> None:
        """Ask sources of grants, and hear of their changes."""
        tasks.start_soon(self.granting.run)
        hint = Signal(self.hint)
        self._relay.supervise("watch_devices", lambda _: {"hint": hint}, role="policy")

    def serve(self, tasks: TaskGroup) -> None:
        """See releases to their end, and run what policies keep in step."""
        tasks.start_soon(self.releases.run)
        tasks.start_soon(self.reaper.run)
        self._relay.supervise("serve_policy", lambda _: {"agent": self._agent})

    def hint(self) -> None:
        """A policy might answer differently."""
        self.granting.hint()
        self.releases.wake()
        self._touch()

    def on_offer(self, offer: Offer) -> None:
        """The offer was made again."""
        self.releases.on_offer(offer)
        pending = self.releases.ids
        if pending - self._pending:
            self.reaper.wake()
        self._pending = pending
        if offer is not self._offer:
            self._offer = offer
            self.alter()

    def on_vetoes(self, vetoes: Iterable[Veto]) -> None:
        """Say what vetoes stand for, as conditions of the node."""
        found: dict[str, tuple[str, dict[str, None]]] = {}
        for veto in vetoes:
            if veto.condition is not None:
                type_, reason = veto.condition
                found.setdefault(type_, (reason, {}))[1][veto.reason] = None
        for gone in self._vetoed.keys() - found.keys():
            if self._vetoed[gone] == self.conditions.reason(gone):  # else somebody else says it
                self.conditions.clear(gone)
        for type_, (reason, messages) in found.items():
            self.put(NodeCondition(type=type_, reason=reason, message=" ".join(messages)))
        self._vetoed = {type_: self.conditions.reason(type_) for type_ in found}

    def put(self, condition: NodeCondition) -> None:
        """Say what a policy says of the node, but for one condition too many."""
        if self.conditions.has_room(condition.type):
            self.conditions.put(condition)
            if len(self.conditions.all) < MOST_CONDITIONS:
                self._relay.board.clear(_CONDITIONS)
        else:
            what = f"policies raise more than {MOST_CONDITIONS} conditions"
            self._relay.board.record(_CONDITIONS, what, cost="the others are not said of the node")

    def alter(self) -> None:
        """Wake who waits for changes."""
        altered, self._altered = self._altered, anyio.Event()
        altered.set()
        self._show()

    async def changes(self) -> AsyncIterator[None]:
        """Yield now, and after each change."""
        while True:
            altered = self._altered
            yield
            await altered.wait()

    async def labels(self) -> Mapping[str, str]:
        """Return the labels that plugins say the node has earned; of two the first by name.

        Of one that fails what it said last stands: that nobody can count is not that there is none.
        """
        self._earned |= await self._relay.gather("label_node")
        found: dict[str, str] = {}
        for plugin in self._relay.implementations("label_node"):
            for key, value in self._earned.get(plugin, {}).items():
                if found.setdefault(str(key), str(value)) != str(value):
                    _log.debug("a label of two plugins key=%s second=%s", key, plugin)
        return found

    def status(self) -> dict[str, Any]:
        """Return what is so, as JSON values, for ``hardpoint status``."""
        book, users = self.granting.book, self.releases.users
        return {
            "withdrawn": book.withdrawn,
            "grants": [
                {
                    "allocation": known.grant.allocation,
                    "source": known.grant.source,
                    "devices": [one.device.name for one in known.devices],
                    "outcome": known.outcome.outcome.value,
                    "reason": known.outcome.reason,
                    "since": known.since,
                }
                for known in book.grants
            ],
            "releases": [
                {
                    "id": one.id,
                    "allocation": one.allocation,
                    "source": one.source,
                    "devices": list(one.names),
                    "since": one.since,
                    "users": list(users.get(one.id, ())),
                }
                for one in (*self.releases.pending(), *self.reaper.orphans())
            ],
            "conditions": [asdict(one) for one in self.conditions.all],
        }


class PolicyFace:
    """The part of ``hardpoint.agent.Agent`` that policies use; a base of the agent."""

    policies: PolicySide
    _scanner: Scanner

    def grants(self) -> tuple[Grant, ...]:
        """Every grant that is in force."""
        return self.policies.granting.in_force()

    def governed(self) -> tuple[Device, ...]:
        """Every device of the node whose kind a running grant source governs."""
        governs = self.policies.granting.governs
        listed = (one for each in self._scanner.listings.values() for one in each.devices)
        return tuple(one for one in listed if governs(one.kind))

    def releases(self) -> tuple[Release, ...]:
        """Every release that is not over."""
        return (*self.policies.releases.pending(), *self.policies.reaper.orphans())

    def conditions(self) -> tuple[NodeCondition, ...]:
        """What is so of the node now."""
        return self.policies.conditions.all

    def raise_condition(self, condition: NodeCondition) -> None:
        """Say that something is so of the node."""
        self.policies.put(condition)

    def clear_condition(self, type_: str) -> None:
        """Say that it is so no more."""
        self.policies.conditions.clear(type_)

    def changes(self) -> AsyncIterator[None]:
        """Yield now, and after each change of offer, grants, releases or conditions."""
        return self.policies.changes()

    async def labels(self) -> Mapping[str, str]:
        """Return the labels that the node has earned."""
        return await self.policies.labels()

    @property
    def withdrawn(self) -> str:
        """Why nothing is offered; empty where something may be."""
        return self.policies.granting.book.withdrawn

    async def withdraw(self, why: str) -> None:
        """Offer nothing from now on, also after a restart."""
        await self.policies.releases.withdraw(why)

    async def resume(self) -> None:
        """Offer again what may be offered."""
        await self.policies.releases.resume()
