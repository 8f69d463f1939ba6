"""The real agent as a process of its own: started, killed and started again.

It stands for the pod that a DaemonSet would run on a node, and reaches the API server with that
pod's token: a service account under the role of ``deploy/rbac.yaml``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.node import Cluster
from cluster.pods import container
from cluster.witness import Witness

ROOT = Path(__file__).parents[2]
HOME = "hardpoint"
"""The namespace and the service account."""
_MORTAL = ("setpriv", "--pdeathsig", "KILL")
"""Ends the agent with the tests, however they end."""
_RUN = ("-m", "hardpoint.cli", "run")
_IN_OWN_MOUNTS = ("unshare", "--mount", "--propagation", "slave")
_BOOTED = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'


class Token:
    """The agent's token, bound to a pod on the node as pods' own tokens are; a kubelet renews it.

    The authorizer reads the node's name from it (KEP-4193), for ``associated-node:…``.
    """

    def __init__(self, witness: Witness, node: str, file: Path) -> None:
        self._witness, self.file = witness, file
        spec = {
            "nodeName": node,
            "hostNetwork": True,
            "serviceAccountName": HOME,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container()],
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": _pod(node)}, "spec": spec}
        made = witness.create(body, HOME)
        bound = {"name": _pod(node), "uid": made["metadata"]["uid"]}
        self._pod = {"kind": "Pod", "apiVersion": "v1"} | bound
        self.renew()

    def renew(self, seconds: int = 7200) -> None:
        """Write another one, good for so long."""
        request = {"spec": {"expirationSeconds": seconds, "boundObjectRef": self._pod}}
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"} | request
        path = f"/api/v1/namespaces/{HOME}/serviceaccounts/{HOME}/token"
        answer = json.loads(self._witness.ask("POST", path, asked))
        self.file.write_text(answer["status"]["token"])


class AgentProcess:
    """``hardpoint run`` on one node. ``log`` has all its lives."""

    boot_id: Path | None = None
    """A file with the kernel's boot id as the agent shall see it, after a reboot that was none."""
    token: Token
    """What it calls the API server with; only where ``agent_on`` made it."""

    def __init__(self, log: Path, environment: Mapping[str, str], words: tuple[str, ...]) -> None:
        self.log, self.environment, self._words = log, dict(environment), words
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, if it does not run; return at once."""
        if self.running:
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_MORTAL, *self._booted(), sys.executable, *_RUN, *self._words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
            )

    def _booted(self) -> tuple[str, ...]:
        return (*_IN_OWN_MOUNTS, "sh", "-ec", _BOOTED, str(self.boot_id)) if self.boot_id else ()

    def kill(self) -> None:
        """End it as the kernel's OOM killer does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it as a DaemonSet does."""
        self._end(signal.SIGTERM)

    def _end(self, how: int) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(how)
            self._process.wait(60)

    def memory(self) -> int:
        """Return how much memory it has of its own and of others, in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) << 10

    def says(self, *words: str) -> Any:
        """Return what a read command answers as JSON: ``says("holds")``."""
        done = subprocess.run(
            [sys.executable, "-m", "hardpoint.cli", *words, "--json"],
            capture_output=True,
            text=True,
            check=False,
            env=self._environment(),
        )
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HARDPOINT_")}
        return kept | {"HARDPOINT_CONFIG": os.devnull} | self.environment


def agent_on(
    cluster: Cluster,
    witness: Witness,
    node: str,
    settings: Mapping[str, str],
    *words: str,
) -> AgentProcess:
    """Return an agent for a node, not yet started."""
    state = cluster.state / f"agent-{node}"
    token = Token(witness, node, cluster.state / f"{_pod(node)}.token")
    environment = {
        "HARDPOINT_NODE_NAME": node,
        "POD_NAMESPACE": HOME,
        "POD_NAME": _pod(node),
        "HARDPOINT_PATHS__STATE": str(state),
        "HARDPOINT_KUBE__URL": cluster.server,
        "HARDPOINT_KUBE__CA_FILE": str(cluster.authority),
        "HARDPOINT_KUBE__TOKEN_FILE": str(token.file),
        **{f"HARDPOINT_PATHS__{k.upper()}": str(v) for k, v in cluster.paths(node).items()},
    }
    made = AgentProcess(cluster.logs / f"{node}-agent.log", environment | dict(settings), words)
    made.token = token
    return made


def grant_role(witness: Witness, *drivers: str) -> None:
    """Create what deploy/rbac.yaml says, for these driver names."""
    witness.namespace(HOME)
    text = (ROOT / "deploy/rbac.yaml").read_text()
    assert "[hardpoint.dev, gpu.hardpoint.dev]" in text
    names = ", ".join(("hardpoint.dev", "gpu.hardpoint.dev", *drivers))
    witness.apply(text.replace("hardpoint.dev, gpu.hardpoint.dev", names))


def _pod(node: str) -> str:
    return f"agent-{node}"
