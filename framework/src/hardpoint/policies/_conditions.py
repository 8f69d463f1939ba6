"""A condition that several policies may raise: each takes back only what it has said itself."""

from __future__ import annotations

from hardpoint.agent import Agent
from hardpoint.grants import NodeCondition

UNAVAILABLE = "PodResourcesUnavailable"
"""The kubelet does not say which pod has what, or what other plugins have."""


def say(agent: Agent, type_: str, reason: str, message: str) -> None:
    """Raise a condition, unless another policy has; with an empty message, take it back."""
    standing = {one.type: one for one in agent.conditions()}.get(type_)
    ours = standing is not None and standing.reason == reason
    if message and (standing is None or ours):
        agent.raise_condition(NodeCondition(type=type_, reason=reason, message=message))
    elif ours and not message:
        agent.clear_condition(type_)
