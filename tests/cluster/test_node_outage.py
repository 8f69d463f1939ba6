"""The API server is away for longer than any delay of ours, and the node goes on."""

from __future__ import annotations

import os
import time
from pathlib import Path

from cluster import pods
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import ADAPTER, FIRST, LIKEN, SECOND, WHOLE, World

AWAY = 60.0
"""Seconds; our delays grow to 45."""
MOST_ATTEMPTS = 14
"""With delays of 0.25, 0.5, 1 … s at least, to 15: what fits into the time."""
ONE_CARD = {name for name in WHOLE if not name.startswith(SECOND)}


def test_a_node_goes_on_while_the_api_server_is_away_for_long(
    world: World, namespace: Namespace, short_path: Path
) -> None:
    start_pods(namespace, short_path)
    world.cluster.stop("kube-apiserver")
    ends, busy = time.monotonic() + AWAY, processor_time(world.agent.pid)

    world.machine.unplug_card()  # news that nobody can be told
    first = program(namespace.name)
    assert Path(f"/proc/{first}/root/dev/ttyUSB0").is_char_device()
    os.kill(first, 9)
    second = until("the container's second life", lambda: other_than(first, namespace.name))
    assert Path(f"/proc/{second}/root/dev/ttyUSB0").is_char_device()
    (short_path / "end").touch()
    until("the ended pod's claim is free", lambda: world.holds() == {ADAPTER: "held"})
    assert len(world.cdi_files()) == 1
    until("a long time", lambda: time.monotonic() > ends, patience=2 * AWAY)

    attempts = {one["source"]: one["count"] for one in world.agent.says("status")["faults"]}
    assert 2 < attempts[f"watch of slices of {LIKEN}"] < MOST_ATTEMPTS
    assert all(count < MOST_ATTEMPTS for count in attempts.values()), attempts
    assert processor_time(world.agent.pid) - busy < AWAY / 20
    world.cluster.start("kube-apiserver")
    world.until_server_is_ready()
    until("converged", lambda: set(world.published()) == ONE_CARD)
    namespace.until_running("stays")
    namespace.delete_pods("stays", "ends")
    assert world.holds() == {}
    assert world.cdi_files() == []
    until("no faults", lambda: world.agent.says("status")["faults"] == [])


def start_pods(namespace: Namespace, flags: Path) -> None:
    """Start a pod that stays, with the adapter, and one that ends by itself, with a card."""
    namespace.create(pods.claim("adapter", adapter="zigbee-adapter"))
    script = f": program-of-{namespace.name}; {pods.WAIT}"
    namespace.create(
        pods.pod("stays", {"a": "adapter"}, pods.container(script=script, uses=("a",)))
    )
    namespace.create(pods.claim("gpu", gpu="gpu-display"))
    waiting = pods.container(script="until test -e /flags/end; do sleep 0.1; done", uses=("gpu",))
    waiting["volumeMounts"] = [{"name": "flags", "mountPath": "/flags"}]
    volume = {"name": "flags", "hostPath": {"path": str(flags)}}
    body = pods.pod("ends", {"gpu": "gpu"}, waiting, volumes=[volume])
    body["spec"]["restartPolicy"] = "Never"
    namespace.create(body)
    namespace.until_running("stays", "ends")
    assert namespace.allocated("gpu")[0].startswith((FIRST, SECOND))


def program(name: str) -> int:
    """Return the process of the pod that stays, as this machine numbers it; 0 without one."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"sh") and f": program-of-{name};".encode() in b" ".join(words):
            return int(path.parent.name)
    return 0


def other_than(first: int, name: str) -> int:
    found = program(name)
    return found if found != first else 0


def processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
