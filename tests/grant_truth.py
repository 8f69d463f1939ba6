"""What is so of grants, by what was told; a source and evidence that answer by it, and a driver.

What the source states, who uses what and which pods run is written down by whoever tells a story
(``told``), also when the agent's process was killed in between. The source notes what is wrong the
moment that it is said to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hardpoint import (
    Device,
    DeviceNode,
    Evidence,
    Grant,
    GrantedDevice,
    GrantOutcome,
    Release,
    exclusive,
    hookimpl,
)
from hardpoint._core.ledger.ledger import read_records
from hardpoint.agent import Agent
from hardpoint.testing.durable import heard, told

MINORS = {"radio0": 10, "radio1": 11, "radio2": 12}
MAJOR = 240


@dataclass
class Truth:
    """What is so, by what was told."""

    grants: dict[str, list[str]] = field(default_factory=dict)
    users: list[str] = field(default_factory=list)
    """Allocations, or sources of releases without one, that processes still use."""
    deaf: bool = False
    pods: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Which allocation and device each pod has."""
    wrong: list[str] = field(default_factory=list)
    reported: dict[str, str] = field(default_factory=dict)
    """What the source heard of each allocation last."""
    drained: bool = False
    done: int = -1

    @classmethod
    def of(cls, root: Path) -> Truth:
        truth = cls()
        for word, *rest in heard(root):
            getattr(truth, f"_{word}")(*rest)
        return truth

    def _grants(self, grants: dict[str, list[str]]) -> None:
        self.grants = grants

    def _users(self, users: list[str]) -> None:
        self.users = users

    def _deaf(self, deaf: bool) -> None:
        self.deaf = deaf

    def _runs(self, pod: str, allocation: str, device: str) -> None:
        others = {had: one for one, (_, had) in self.pods.items() if one != pod}
        if device in others:
            self.wrong.append(f"{device} went to {pod} while {others[device]} had it")
        self.pods[pod] = allocation, device

    def _over(self, pod: str) -> None:
        self.pods.pop(pod, None)

    def _reported(self, allocation: str, what: str) -> None:
        self.reported[allocation] = what

    def _wrong(self, what: str) -> None:
        self.wrong.append(what)

    def _drained(self, drained: bool) -> None:
        self.drained = drained

    def _done(self, number: int) -> None:
        self.done = number

    def _refused(self, why: str) -> None:
        """It is for who reads what was kept."""

    # -- what must not be -------------------------------------------------------------------------

    def uses(self, allocation: str) -> str:
        """Return who uses an allocation's devices; empty for nobody."""
        pods = [pod for pod, (under, _) in self.pods.items() if under == allocation]
        return ", ".join([*pods, *(["a process"] if allocation in self.users else [])])

    def ended(self) -> list[str]:
        """Return the allocations that were in force and are not stated any more."""
        in_force = {one for one, what in self.reported.items() if what == "in-force"}
        return sorted(in_force - self.grants.keys())


class Played:
    """A source of grants and one of evidence that say what was told."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def source(self) -> type:
        played = self

        class Source:
            kinds = ("radio",)

            def __init__(self, node: object, settings: object) -> None: ...

            @hookimpl
            def grant_devices(self) -> Iterator[Grant]:
                for allocation, devices in Truth.of(played.root).grants.items():
                    named = tuple(GrantedDevice(name=name) for name in devices)
                    yield Grant(allocation=allocation, devices=named)

            @hookimpl
            def report_grant(self, grant: Grant, outcome: GrantOutcome, agent: Agent) -> None:
                played.hear_grant(grant, outcome, agent)

            @hookimpl
            def report_release(self, grant: Grant, release: Release, agent: Agent) -> None:
                played.hear_release(grant, agent)

        return Source

    def evidence(self) -> type:
        played = self

        class Evident:
            def __init__(self, node: object, settings: object) -> None: ...

            @hookimpl
            def find_users(self, release: Release) -> Evidence:
                began = time.monotonic()
                found = {release.allocation, release.source} & {*Truth.of(played.root).users}
                return Evidence.used_by(began, *found) if found else Evidence.none(began)

        return Evident

    # -- what they are told -----------------------------------------------------------------------

    def hear_grant(self, grant: Grant, outcome: GrantOutcome, agent: Agent) -> None:
        truth, said = Truth.of(self.root), outcome.outcome.value
        self._check_writing(agent, f"a report of grant {grant.allocation}")
        if said == "in-force":
            for pod, (allocation, device) in truth.pods.items():
                named = {one.name for one in grant.devices}
                if device in named and allocation != grant.allocation:
                    told(self.root, "wrong", f"{grant.allocation} has {device}, which {pod} has")
        if not truth.deaf:
            told(self.root, "reported", grant.allocation, said)
        else:
            raise OSError("nobody listens")

    def hear_release(self, grant: Grant, agent: Agent) -> None:
        truth, allocation = Truth.of(self.root), grant.allocation
        self._check_writing(agent, f"a report of release {allocation}")
        if truth.deaf:
            raise OSError("nobody listens")
        for why in self.not_released(truth, allocation):
            told(self.root, "wrong", f"{allocation} was reported released: {why}")
        told(self.root, "reported", allocation, "released")

    def not_released(self, truth: Truth, allocation: str) -> Iterator[str]:
        if allocation in truth.grants:
            yield "it is stated"
        if truth.uses(allocation):
            yield f"{truth.uses(allocation)} uses it"
        for record in read_records(self.root / "state"):
            if record.allotment.allocation == allocation:
                yield f"{record.holder} holds {record.device.name} under it"

    def _check_writing(self, agent: Agent, what: str) -> None:
        if not agent.writing():
            told(self.root, "wrong", f"{what} by the agent that does not write")


class Radios:
    """A driver of three radios."""

    def __init__(self, node: object, settings: object) -> None: ...

    @hookimpl
    def publish_devices(self) -> Iterator[Device]:
        for name, minor in MINORS.items():
            node = DeviceNode(path=f"/dev/{name}", major=MAJOR, minor=minor)
            yield Device(name=name, kind="radio", nodes=(node,), parts=(exclusive(f"x:{name}"),))
