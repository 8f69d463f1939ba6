"""Which tests run where nobody has the time for all: what matters most, and a part of the rest.

``TURN=today`` chooses them, as CI does on every change: the modules of ``CORE`` always, and of the
others those whose turn it is by date, so that all have run within ``DAYS`` days. A new module needs
no entry: it takes its turn. Without ``TURN`` everything runs.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path

MODULES = tuple(sorted(path.stem for path in Path(__file__).parent.glob("test_node_*.py")))
"""All that need a cluster, whatever a run has collected of them."""
CORE = frozenset(
    {
        "test_node_api_server_conforms",
        "test_node_claim_life",
        "test_node_guide",
        "test_node_kubelet_conforms",
        "test_node_plugin_pods",
    }
)
"""A claim's life and a pod's with extended resources, the guide's manifests, and what our own
servers are held to."""
DAYS = 5


class UnknownTurn(ValueError):
    """A turn that there is not."""

    def __init__(self, name: str) -> None:
        super().__init__(f"TURN={name}: there is only today; without TURN everything runs")


def in_turn(day: datetime.date) -> frozenset[str]:
    """Return the modules that run on a day."""
    others = [name for name in MODULES if name not in CORE]
    return CORE | frozenset(others[day.toordinal() % DAYS :: DAYS])


def chosen(environment: Mapping[str, str], day: datetime.date) -> frozenset[str]:
    """Return the modules that ``TURN`` names: today's, or all. Raises ``UnknownTurn``."""
    wanted = environment.get("TURN", "")
    if wanted not in ("", "today"):
        raise UnknownTurn(wanted)
    return in_turn(day) if wanted else frozenset(MODULES)
