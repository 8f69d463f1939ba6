"""What a ``FakeAgent`` says as its status, in the agent's own words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hardpoint._core.reporting import device_status, hold_status
from hardpoint.allocation import PodUser, is_allocation
from hardpoint.model import Hold

if TYPE_CHECKING:
    from hardpoint.testing.agent import FakeAgent


def status_of(agent: FakeAgent) -> dict[str, Any]:
    """Return JSON values."""
    return {
        "node": agent.node.name,
        "instance": agent.instance,
        "started": 0.0,
        "writing": agent.writing(),
        "ready": True,
        "generation": agent.offer.generation,
        "devices": [device_status(one) for one in agent.offer.devices],
        "not_offered": [
            {"subject": w.subject, "driver": w.driver, "rule": w.rule, "reason": w.reason}
            for w in agent.offer.withheld
        ],
        "holds": [hold_status(hold, _users(agent, hold)) for hold in agent.holds()],
        "quarantine": [],
        "faults": [
            {"source": source, "message": said[-1], "cost": "", "count": len(said)}
            for source, said in agent.faults.items()
        ],
        "plugins": [],
        "notes": dict(agent.notes),
        "withdrawn": agent.withdrawn,
        "grants": [
            {"allocation": one.allocation, "source": one.source, "outcome": "in-force"}
            for one in agent.grants()
        ],
        "releases": [
            {"id": r.id, "allocation": r.allocation, "source": r.source, "since": r.since}
            for r in agent.releases()
        ],
        "conditions": [{"type": c.type, "reason": c.reason} for c in agent.conditions()],
    }


def _users(agent: FakeAgent, hold: Hold) -> tuple[PodUser, ...] | None:
    if not is_allocation(hold.claim):
        return None
    return agent.users.get((hold.claim.namespace, hold.claim.name))
