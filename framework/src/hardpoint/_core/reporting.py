"""What the agent says of itself, for ``hardpoint status`` and ``doctor``; written when it changed.

At most once a second, and by the agent that writes: of two, the one that serves last.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from hardpoint._core.pods.podlist import PodList, Users
from hardpoint._core.state import write_status
from hardpoint.model import Hold, Offered

if TYPE_CHECKING:
    from hardpoint._core.agent import HardpointAgent

_log = logging.getLogger("hardpoint.status")
_AT_MOST_EVERY = 1.0


class Reporter:
    """Keeps ``status.json`` current for one agent."""

    def __init__(self, agent: HardpointAgent) -> None:
        self._agent = agent
        self._notes: dict[str, Mapping[str, object]] = {}
        self._started = time.time()
        self._dirty = anyio.Event()
        self._written: dict[str, Any] = {}

    def touch(self) -> None:
        """Write again soon: something may have changed."""
        self._dirty.set()

    def note(self, source: str, facts: Mapping[str, object]) -> None:
        """Keep what a frontend says of itself, as JSON values."""
        plain = {str(key): value for key, value in facts.items()}
        self._notes[str(source)] = json.loads(json.dumps(plain, default=str, skipkeys=True))
        self.touch()

    async def run(self) -> None:
        """Write for ever. A disk that is full costs the report only."""
        self.touch()
        while True:
            await self._dirty.wait()
            self._dirty = anyio.Event()
            try:
                await self._write()
            except OSError as error:
                _log.warning("status not written why=%s", error)
            except Exception:  # noqa: BLE001 - a report must not end the agent
                _log.exception("status not written")
            await anyio.sleep(_AT_MOST_EVERY)

    async def _write(self) -> None:
        status = self.status()
        if self._agent.writing() and status != self._written:
            await anyio.to_thread.run_sync(write_status, self._agent.paths.state, status)
            self._written = status

    def status(self) -> dict[str, Any]:
        """Return what is so now, as JSON values."""
        agent, offer = self._agent, self._agent.offer
        quarantined = sorted(agent.quarantined().items())
        return {
            "pid": os.getpid(),
            "instance": agent.instance,
            "node": agent.node.name,
            "started": self._started,
            "writing": agent.writing(),
            "ready": agent.ready,
            "generation": offer.generation,
            "devices": [device_status(offered) for offered in offer.devices],
            "not_offered": [_fields(w, "subject driver rule reason") for w in offer.withheld],
            "holds": [_hold(h, agent.pods.latest) for h in agent.holds()],
            "quarantine": [{"device": name, "why": why} for (_, name), why in quarantined],
            "faults": [_fields(f, "source message cost count") for f in agent.board.entries],
            "plugins": [
                _fields(p, "role name state reason")
                for p in (agent.plugins.all if agent.plugins else ())
                if p.state in ("refused", "missing")
            ],
            "notes": dict(self._notes),
            **agent.policies.status(),
        }


def _hold(hold: Hold, listed: PodList | None) -> dict[str, Any]:
    if listed is None:
        return hold_status(hold, None)
    return hold_status(hold, listed.users(hold.claim, hold.device.name, hold.allocation))


def hold_status(hold: Hold, users: Users | None) -> dict[str, Any]:
    """Return a hold; ``pods`` and ``users`` have it, and are null while nobody can say."""
    return {
        "device": hold.device.name,
        "claim": str(hold.claim),
        "uid": hold.claim.uid,
        "state": hold.state.value,
        "pods": None if users is None else list(dict.fromkeys(map(str, users))),
        "users": None if users is None else [_fields(u, "namespace pod container") for u in users],
    }


def device_status(offered: Offered) -> dict[str, Any]:
    """Return a device that is offered."""
    return {
        "name": offered.name,
        "kind": offered.device.kind,
        "driver": offered.device.driver,
        "domain": offered.domain.dra_driver,
        "health": offered.health.condition.value,
        "held": offered.held,
        "taints": [
            {"key": t.key, "effect": t.effect.value, "value": t.value} for t in offered.taints
        ],
    }


def _fields(value: object, names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names.split()}
