"""Grants come and go while the API server is away: nothing is guessed, and all is made good after.

A minute long; ``HARDPOINT_TEST_OUTAGE_S=7200`` makes it hours.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import pytest
from cluster.granted import DRA, PLUGIN, Granted, run_with, seen
from cluster.waiting import PATIENCE, until
from cluster.witness import Namespace

AWAY = float(os.environ.get("HARDPOINT_TEST_OUTAGE_S", "60"))
SHORTEST_TOKEN = 600
"""Seconds: no API server gives a token for less. Over a longer outage the agent's expires, and the
kubelet cannot have another one made."""
LOOK = 5.0
MOST_GROWTH = 8 << 20
"""Bytes of memory, over the outage."""
MOST_LINES = 40
"""Of the log, over the outage: what is so all the time is said once."""


@pytest.mark.timeout(2 * AWAY + 1200, func_only=True)
@pytest.mark.parametrize("frontend", [PLUGIN, DRA], ids=["plugin", "dra"])
def test_an_api_server_that_is_away_frees_no_device_and_what_it_missed_is_made_good(
    granted: Granted, namespace: Namespace, frontend: Mapping[str, str]
) -> None:
    first, second = granted.names
    granted.begin(frontend)
    granted.grant("away-1", first)
    granted.until_offered(**{first.replace("-", "_"): "away-1"})
    run_with(namespace, "p", frontend)
    namespace.until_running("p")
    granted.grant("away-2", second)
    until("known", lambda: granted.report("away-2").get("outcome") == "in-force")
    granted.agent.token.renew(SHORTEST_TOKEN)
    granted.cluster.stop("kube-apiserver")

    granted.revoke("away-1")
    granted.revoke("away-2")

    granted.until_released("away-2")  # nobody has it: that is seen on the node alone
    granted.grant("away-3", second)
    until("known", lambda: granted.report("away-3").get("outcome") == "in-force")
    watch_it_wait(granted, AWAY / 2)
    granted.agent.kill()
    granted.agent.start()
    granted.until_runs()
    watch_it_wait(granted, AWAY / 2)
    granted.cluster.start("kube-apiserver")
    granted.world.until_server_is_ready()
    granted.agent.token.renew()

    released = granted.until_released("away-1")
    [deleted, *_] = granted.deletions("p")
    assert deleted.at <= released
    namespace.until_gone("p")
    granted.until_offered(**{second.replace("-", "_"): "away-3"})
    run_with(namespace, "q", frontend)
    namespace.until_running("q")
    assert seen(namespace, "q") == ([granted.node_of(second)], "away-3")
    until("no faults", lambda: not granted.status()["faults"])


def watch_it_wait(granted: Granted, seconds: float) -> None:
    """See for so long that the release waits, for its pod and without a fuss."""
    until("pending", lambda: granted.pending() == ["away-1"])
    until("tried", lambda: any("reaper" in one["source"] for one in granted.status()["faults"]))
    began, memory = time.monotonic(), granted.agent.memory()
    lines = len(granted.lines(""))

    def over() -> bool:
        assert granted.pending() == ["away-1"]
        assert not granted.report("away-1").get("released")
        time.sleep(LOOK)
        return time.monotonic() - began > seconds

    until("the API server was away for so long", over, patience=seconds + PATIENCE)
    assert granted.agent.memory() - memory < MOST_GROWTH
    said = granted.lines("")[lines:]
    assert len(said) < MOST_LINES, said[-20:]
