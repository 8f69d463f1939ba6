"""``make cluster``: a node with the agent on it, until Ctrl-C.

See docs/howto/try-on-a-real-node.md."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from pathlib import Path

from cluster.agent import agent_on, grant_role
from cluster.node import CannotRun, Cluster, check_machine, own_directory
from cluster.programs import Release, programs, release
from cluster.waiting import until
from cluster.witness import Witness

ROOT = Path(__file__).parents[2]
MACHINE = ROOT / "tests/data/machines/desktop.tar.gz"
DOMAIN = "hardpoint.dev"


def main() -> int:
    """Bring it up, say how to reach it, and wait."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        check_machine()
        wanted = release(os.environ.get("KUBERNETES", ""))
        with own_directory() as state, Cluster.up(state, wanted, nodes=arguments.nodes) as cluster:
            _serve(cluster, wanted, arguments.machine)
    except CannotRun as error:
        print(f"no cluster here: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make cluster", description=__doc__)
    parser.add_argument(
        "--nodes", type=int, default=1, help="how many nodes; the first has the agent"
    )
    parser.add_argument(
        "--machine", type=Path, default=MACHINE, help="what `hardpoint run --sysfs` takes"
    )
    return parser.parse_args()


def _serve(cluster: Cluster, wanted: Release, machine: Path) -> None:
    witness = Witness(cluster.kubeconfig)
    grant_role(witness)
    agent = agent_on(cluster, witness, "n0", {"HARDPOINT_DOMAIN": DOMAIN}, "--sysfs", str(machine))
    agent.start()
    try:
        until("the agent publishes", lambda: witness.slices(DOMAIN))
        print(_TOLD.format(cluster=cluster, kube=programs(wanted.version).kube, agent=agent))  # noqa: T201
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    finally:
        agent.stop()
        witness.close()


_TOLD = """
A node with Hardpoint on it runs. In another shell:

  export KUBECONFIG={cluster.kubeconfig}
  alias kubectl='{kube} kubectl'
  kubectl get resourceslices

The image localhost/busybox:1 is on the node. Logs: {cluster.logs}
Ctrl-C ends it, and nothing of it stays.
"""

if __name__ == "__main__":
    sys.exit(main())
