"""Keeps one Node in step: one server-side apply for all that is said of it, when it differs."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

import anyio

from hardpoint.errors import KubeDenied, KubeError, KubeInvalid
from hardpoint.grants import NodeCondition
from hardpoint.kube import NODES, Json
from hardpoint.policies._own_node import Budget, Faults, OwnNode, Sleep, Writer
from hardpoint.policies.node_status import conditions, events, labels, owned, taints
from hardpoint.policies.node_status.contest import Contest
from hardpoint.policies.node_status.settings import KUBELETS

if TYPE_CHECKING:
    from hardpoint.agent import Agent
    from hardpoint.kube import Kube
    from hardpoint.policies.node_status.settings import NodeStatusSettings

_log = logging.getLogger("hardpoint.node_status")

Labels: TypeAlias = "Mapping[str, str]"

SOURCE = "policy/node_status"
DRIFT = "TaintsDrift"
UNUSABLE = "unusable"
"""The taint while a condition is true, below the prefix."""
_NAMED = 5
"""Names of very many that a fault has."""
REGISTERED = "registered-taints"
"""The annotation that remembers which taints the settings have named, below the prefix."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between two writes, and how long what a process before said is believed."""

    gap: float = 10.0
    settle: float = 60.0
    sleep: Sleep = anyio.sleep
    wall: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    writes: int = 30
    """Before what flaps is written once a minute."""
    events: int = 64

    def budget(self, most: int) -> Budget:
        """Return what a writer may spend."""
        return Budget(most, 60.0, self.clock)


class Keeping:
    """One connection's work."""

    def __init__(
        self,
        agent: Agent,
        settings: NodeStatusSettings,
        kube: Kube,
        pace: Pace,
        happened: events.Happenings | None = None,
    ) -> None:
        self._agent, self._settings, self._kube, self._pace = agent, settings, kube, pace
        self._own = OwnNode(kube, agent, SOURCE, self._touch)
        self._status = self._writer("status", self._say, pace.gap, pace.writes)
        self._taint = self._writer("taint", self._set_taint, pace.gap, pace.writes)
        self._events = self._writer("events", self._tell, 0.0, pace.events)
        self._happened = happened or events.Happenings()
        self._happened.touch = self._events.touch
        self._faults, self._contest = Faults(agent), Contest(pace.clock)
        self._noted: dict[str, object] = {}
        self._settled = False

    def _writer(
        self, what: str, act: Callable[[], Awaitable[bool]], gap: float, most: int
    ) -> Writer:
        budget = self._pace.budget(most)
        return Writer(self._agent, f"{SOURCE}: {what}", act, gap=gap, budget=budget)

    async def run(self) -> None:
        """Keep it in step for ever."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._own.follow)
            tasks.start_soon(self._settle)
            tasks.start_soon(self._status.run, self._pace.sleep)
            tasks.start_soon(self._taint.run, self._pace.sleep)
            tasks.start_soon(self._events.run, self._pace.sleep)
            async for _ in self._agent.changes():
                self._touch()

    def _touch(self) -> None:
        self._status.touch()
        self._taint.touch()
        self._events.touch()

    async def _settle(self) -> None:
        await self._pace.sleep(self._pace.settle)
        self._settled = True
        self._touch()

    # -- labels and conditions --------------------------------------------------------------------

    async def _say(self) -> bool:
        """Write what is different; say whether anything was."""
        earned = await self._agent.labels()
        node = self._own.found
        if node is None:
            return False
        ours = owned.of_node(node)
        said = {**self._believed(node, ours), **self._labels(earned)}
        notes = self._notes(node)
        before = _before(node, ours)
        true = self._conditions(before)
        self._note({"labels": said, "conditions": [one["type"] for one in true]})
        self._complain_of_others()
        if _is_said(node, ours, said, notes, true):
            return False
        stored, refused = await self._write(node, said, notes, true)
        self._own.wrote(stored)
        self._contest.wrote((said, notes, conditions.words(true)))
        if self._settings.events:
            self._happened.put(*events.turned(true, before, self._pace.wall()))
        name = node["metadata"]["name"]
        _log.info("said node=%s labels=%d conditions=%d", name, len(said), len(true))
        if refused is not None:
            raise refused
        return True

    async def _write(
        self, node: Json, said: Labels, notes: Labels, true: tuple[Json, ...]
    ) -> tuple[Json, KubeError | None]:
        """Write all of it; the conditions alone where a label is refused, and why it was."""
        try:
            return await self._apply(node, said, notes, true), None
        except (KubeDenied, KubeInvalid) as error:
            ours = owned.of_node(node)
            there = node["metadata"]
            labels_ = _of(there.get("labels") or {}, ours.labels)
            notes_ = _of(there.get("annotations") or {}, ours.annotations)
            if (labels_, notes_) == (said, notes) or _has_conditions(node, true):
                raise
            return await self._apply(node, labels_, notes_, true), error

    async def _apply(self, node: Json, said: Labels, notes: Labels, true: tuple[Json, ...]) -> Json:
        metadata = {"name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
        metadata |= {"labels": dict(said), "annotations": dict(notes)}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        body["status"] = {"conditions": list(true)}
        # Labels go with the status: what a kubelet's own credentials may do too, in one write.
        return await self._kube.apply(NODES, body, subresource="status", manager=owned.MANAGER)

    def _note(self, facts: dict[str, object]) -> None:
        if facts != self._noted:
            self._noted = facts
            self._agent.note(SOURCE, facts)

    def _believed(self, node: Json, ours: owned.Owned) -> dict[str, str]:
        """Return the labels of a process before, which stand for a while: drivers may be slow."""
        if self._settled:
            return {}
        there = node["metadata"].get("labels") or {}
        return {key: str(there[key]) for key in ours.labels if key in there}

    def _labels(self, earned: Mapping[str, str]) -> dict[str, str]:
        governed = bool(self._agent.governed())
        found, bad = labels.wanted(self._settings, earned, governed=governed)
        self._complain("labels", bad, "no label of a plugin's may be called so")
        return found

    def _complain(self, what: str, bad: tuple[str, ...], why: str) -> None:
        more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        said = f"{', '.join(sorted(bad)[:_NAMED])}{more}: {why}" if bad else ""
        self._faults.set(f"{SOURCE}: {what}", said)

    def _complain_of_others(self) -> None:
        why = "a webhook, another controller or a second agent of this node changes it"
        said = f"what is said of the Node does not stay so: {why}" if self._contest.lasts else ""
        self._faults.set(f"{SOURCE}: kept", said)

    async def _tell(self) -> bool:
        """Tell what has happened, as Events of the Node, one at a time."""
        node = self._own.found
        return node is not None and await self._happened.tell(self._kube, node)

    def _conditions(self, before: conditions.Before) -> tuple[Json, ...]:
        raised = self._agent.conditions()
        true, bad = conditions.named(raised, self._settings.renamed, KUBELETS)
        self._complain("conditions", bad, "no condition of a Node's own may be called so")
        now = datetime.fromtimestamp(self._pace.wall(), UTC)
        return conditions.wanted(true, before, now, settled=self._settled)

    # -- taints -----------------------------------------------------------------------------------

    def _notes(self, node: Json) -> dict[str, str]:
        """Say whether the taints drift; return the annotation that remembers them."""
        key = f"{self._settings.prefix}/{REGISTERED}"
        notes, wanted = node["metadata"].get("annotations") or {}, self._settings.registered
        before = taints.remembered(str(notes.get(key, "")))
        found = taints.drift(wanted, before, taints.of_node(node))
        self._say_drift(found)
        known = sorted({*wanted, *found.stale})
        return {key: ",".join(map(str, known))} if known else {}

    def _say_drift(self, found: taints.Drift) -> None:
        if found:
            message = f"run: {found.command(self._agent.node.name)}"
            drifts = NodeCondition(type=DRIFT, reason="TaintsDiffer", message=message)
            if drifts not in self._agent.conditions():
                self._agent.raise_condition(drifts)
        elif any(one.type == DRIFT for one in self._agent.conditions()):
            self._agent.clear_condition(DRIFT)

    async def _set_taint(self) -> bool:
        """Keep the Node from new pods while a condition is true, if that is set."""
        node = self._own.found
        if node is None:
            return False
        ours = taints.Taint(f"{self._settings.prefix}/{UNUSABLE}", "NoSchedule")
        has = ours.place in {taint.place for taint in taints.of_node(node)}
        if has == self._is_unusable(has):
            return False
        listed = (node.get("spec") or {}).get("taints") or ()
        kept = [one for one in listed if (one.get("key"), one.get("effect")) != ours.place]
        new = kept if has else [*kept, {"key": ours.key, "effect": ours.effect}]
        metadata = node["metadata"]
        stored = await self._kube.merge(
            NODES, metadata["name"], {"spec": {"taints": new}}, version=metadata["resourceVersion"]
        )
        self._own.wrote(stored)
        _log.info("%s node=%s taint=%s", "untainted" if has else "tainted", metadata["name"], ours)
        return True

    def _is_unusable(self, has: bool) -> bool:
        """Say whether the taint is to be there: what a process before has set stays for a while."""
        if not self._settings.no_schedule_taint:
            return False
        true = {one.type for one in self._agent.conditions()} - {*self._settings.advisory}
        return bool(true) or (has and not self._settled)


def _before(node: Json, ours: owned.Owned) -> conditions.Before:
    listed = (node.get("status") or {}).get("conditions") or ()
    return conditions.Before({str(one.get("type")): one for one in listed}, ours.conditions)


def _of(there: Labels, ours: Collection[str]) -> dict[str, str]:
    return {key: value for key, value in there.items() if key in ours}


def _has_conditions(node: Json, true: tuple[Json, ...]) -> bool:
    listed = (node.get("status") or {}).get("conditions") or ()
    there = {str(one.get("type")): one for one in listed}
    return all(there.get(str(one["type"])) == one for one in true)


def _is_said(
    node: Json,
    ours: owned.Owned,
    said: Labels,
    notes: Labels,
    true: tuple[Json, ...],
) -> bool:
    """Say whether the Node says all this already, and nothing else of ours."""
    metadata = node["metadata"]
    types = {str(one["type"]) for one in true}
    recorded = ours.labels == said.keys() and ours.annotations == notes.keys()
    return (
        said.items() <= (metadata.get("labels") or {}).items()
        and notes.items() <= (metadata.get("annotations") or {}).items()
        and _has_conditions(node, true)
        and (not ours.known or (recorded and ours.conditions == types))
    )
