"""A whole cluster, up and down: what tests and ``make cluster`` hold.

    with Cluster.up(Path("/tmp/hp")) as cluster:
        cluster.restart("n0-kubelet")

It ends with the block, and with this process however that ends (see ``cluster.keeper``).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from cluster import images
from cluster.keeper import remove_directories, try_cgroups
from cluster.plan import Plan
from cluster.programs import Release, programs

_PREFIX = "hpc-"
NEEDED = ("runc", "busybox", "openssl", "unshare", "nsenter", "setpriv")


class CannotRun(Exception):
    """This machine cannot run a cluster; the message says why."""


def check_machine() -> None:
    """Raise ``CannotRun`` where something is missing that no build could bring."""
    if os.geteuid() != 0:
        raise CannotRun("a cluster needs root")
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        what = "apt-get install runc busybox-static openssl util-linux"
        raise CannotRun(f"{', '.join(missing)} not found ({what})")
    tried = subprocess.run(
        ["unshare", "--mount", "--pid", "--net", "--fork", "true"], capture_output=True, text=True
    )
    if tried.returncode:
        raise CannotRun(f"namespaces cannot be made here: {tried.stderr.strip()}")
    try:
        try_cgroups()
    except OSError as error:
        raise CannotRun(f"no cgroup can be made here: {error}") from error


@contextmanager
def own_directory() -> Iterator[Path]:
    """A directory for a cluster, gone after; those of runs that were killed are removed first."""
    remove_directories(f"{_PREFIX}*")
    made = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


class Cluster:
    """A running cluster. ``kubeconfig`` is the superuser's; ``logs`` has a file for each part."""

    def __init__(self, state: Path, keeper: subprocess.Popen[bytes]) -> None:
        self.state, self._keeper = state, keeper
        self.times: dict[str, float] = {}

    @classmethod
    def up(
        cls,
        state: Path,
        release: Release,
        *,
        nodes: int = 1,
        kubelet: Release | None = None,
        **wishes: Any,
    ) -> Self:
        """Start one in a new directory with a short path; return once its nodes are ready.

        ``wishes`` are fields of ``Plan``. Raises ``RuntimeError`` with the end of the log.
        """
        state.mkdir(parents=True, exist_ok=True)
        made = programs(release.version)
        archive = state / "images.tar"
        images.write(Path(shutil.which("busybox") or "busybox"), archive)
        planned = Plan(
            state=str(state),
            kube=str(made.kube),
            tools=str(made.tools),
            runc=str(shutil.which("runc")),
            images=str(archive),
            kubelet=str(programs(kubelet.version).kube if kubelet else made.kube),
            nodes=tuple(f"n{i}" for i in range(nodes)),
            emulate=release.emulate,
            **wishes,
        )
        planned.save()
        cluster = cls(state, _keeper(state))
        cluster._until_up()
        return cluster

    def _until_up(self) -> None:
        outcome = self.state / "outcome"
        while not outcome.exists():
            if self._keeper.poll() is not None:
                raise RuntimeError(f"the cluster did not start:\n{self._said()}")
            time.sleep(0.05)
        found = json.loads(outcome.read_text())
        self.times = found["times"]
        if "error" in found:
            self.down()
            raise RuntimeError(f"the cluster did not start: {found['error']}\n{self._said()}")

    def _said(self) -> str:
        return (self.state / "keeper.log").read_text()[-2000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def down(self) -> None:
        """End it; its directory stays, with the logs."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()

    # -- where things are -------------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def server(self) -> str:
        """The API server's address, on the host."""
        config = json.loads(self.kubeconfig.read_text())
        return str(config["clusters"][0]["cluster"]["server"])

    @property
    def authority(self) -> Path:
        return self.state / "pki/apiserver.crt"

    def holds(self, node: str) -> Path:
        """Return a node's ``/etc/cdi``, where a control plane puts what it grants."""
        return self.state / node / "etc-cdi"

    def static_pods(self, node: str) -> Path:
        """Return the directory whose files are a node's static pods."""
        return self.state / node / "static"

    def paths(self, node: str = "n0") -> Mapping[str, Path]:
        """Return a node's directories that an agent needs, as the host sees them."""
        home = self.state / node
        kubelet = home / "kubelet"
        return {
            "kubelet": kubelet,
            "device_plugins": kubelet / "device-plugins",
            "cdi": home / "cdi",
        }

    # -- its parts --------------------------------------------------------------------------------

    def parts(self) -> dict[str, int]:
        """Return each part's process, 0 while it does not run, as numbered in the cluster."""
        found: dict[str, int] = self._ask("parts")
        return found

    def stop(self, part: str) -> None:
        """End a part as an administrator would."""
        self._ask("stop", part)

    def start(self, part: str) -> None:
        self._ask("start", part)

    def restart(self, part: str) -> None:
        self._ask("restart", part)

    def kill(self, part: str) -> None:
        """End a part by SIGKILL."""
        self._ask("kill", part)

    def crash(self, part: str) -> None:
        """Kill a part and start it again."""
        self._ask("crash", part)

    def reboot(self, node: str) -> None:
        """Lose what a node's reboot loses, and start its programs again."""
        self._ask("reboot", node)

    def add_node(self, node: str) -> None:
        self._ask("add-node", node)

    def _ask(self, verb: str, part: str = "") -> Any:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self.state / "control"))
            with line.makefile("rw") as text:
                text.write(json.dumps({"do": verb, "part": part}) + "\n")
                text.flush()
                answer = json.loads(text.readline())
        if "error" in answer:
            raise RuntimeError(f"{verb} {part}: {answer['error']}")
        return answer["is"]


def _keeper(state: Path) -> subprocess.Popen[bytes]:
    tests = str(Path(__file__).parents[1])
    with (state / "keeper.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "cluster.keeper", str(state)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": tests},
        )
