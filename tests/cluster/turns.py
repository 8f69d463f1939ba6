"""Which tests run where nobody has the time for all: what matters most, and a part of the rest.

``TURN=today`` chooses them, as CI does on every change: the modules of ``CORE`` always, and of the
others each test on one day of ``DAYS``. They are dealt out one after the other, so that days take
about as long, and each sees something of every module. Without ``TURN`` everything runs.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

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


def in_turn(nodeids: Iterable[str], day: datetime.date) -> frozenset[str]:
    """Return which of all tests run on a day; they go by ``tests/…/test_node_guide.py::test_a``."""
    core: set[str] = set()
    others: set[str] = set()
    for nodeid in nodeids:
        module = nodeid.partition(".py::")[0].rpartition("/")[2]
        (core if module in CORE else others).add(nodeid)
    return frozenset(core).union(sorted(others)[day.toordinal() % DAYS :: DAYS])


def wants_all(environment: Mapping[str, str]) -> bool:
    """Say whether everything runs: ``TURN`` is not set. Raises ``UnknownTurn``."""
    wanted = environment.get("TURN", "")
    if wanted not in ("", "today"):
        raise UnknownTurn(wanted)
    return not wanted
