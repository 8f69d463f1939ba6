"""Keeps a cluster for as long as its own standard input is open, and leaves nothing of it behind.

Whoever wants a cluster starts this and holds the other end of the pipe: when that process ends, in
whatever way, the pipe closes. Everything of the cluster runs in a pid namespace, whose first
process (the supervisor) is killed then, and all others with it; its mounts and its network go with
its namespaces. What a namespace does not take along is its cgroups: they are removed here, and
those of a keeper that was killed by the next one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from cluster.plan import Plan

CGROUPS = Path("/sys/fs/cgroup")
_OURS = re.compile(r"hardpoint-(\d+)-n\d+")
_NAMESPACES = ("--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc")


def main(state: str) -> int:
    """Keep the cluster that is planned in a directory."""
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, lambda *_: sys.exit(1))
    remove_cgroups(lambda keeper: not _is_keeper(keeper))
    try:
        return _keep(Plan.load(state))
    finally:
        remove_cgroups(lambda keeper: keeper == os.getpid())


def _keep(plan: Plan) -> int:
    # A socket stays in the network that it was made in: this one is the way in from the host.
    with socket.create_server(("127.0.0.1", 0)) as door:
        replace(plan, outside=door.getsockname()[1], keeper=os.getpid()).save()
        inner = subprocess.Popen(
            [
                "unshare",
                *_NAMESPACES,
                *(sys.executable, "-m", "cluster.supervisor", plan.state, str(door.fileno())),
            ],
            pass_fds=[door.fileno()],
            stdin=subprocess.DEVNULL,
        )
    try:
        threading.Thread(target=_until_left, args=[inner], daemon=True).start()
        return inner.wait()
    finally:
        inner.kill()
        inner.wait()


def _until_left(inner: subprocess.Popen[bytes]) -> None:
    sys.stdin.buffer.read()
    inner.kill()


# -- cgroups --------------------------------------------------------------------------------------


def hierarchies() -> Iterator[Path]:
    """Yield where cgroups can be made: one place with version 2, one per controller with 1."""
    if (CGROUPS / "cgroup.controllers").exists():
        yield CGROUPS
    else:
        yield from sorted(path.parent for path in CGROUPS.glob("*/tasks"))


def try_cgroups() -> None:
    """Make a cgroup wherever a node needs one, and remove it. Raises ``OSError``."""
    found = list(hierarchies())
    if not found:
        raise FileNotFoundError(f"no hierarchy is mounted at {CGROUPS}")
    for hierarchy in found:
        probe = hierarchy / f"hardpoint-{os.getpid()}-n9"
        probe.mkdir()
        probe.rmdir()


def remove_cgroups(whose: Callable[[int], bool], patience: float = 10.0) -> None:
    """Remove cgroups of the keepers that ``whose`` chooses, as soon as nobody is in them."""
    end = time.monotonic() + patience
    while [path for path in _cgroups() if whose(_keeper_of(path)) and not _removed(path)]:
        if time.monotonic() > end:
            print("cgroups are still in use:", *_cgroups(), file=sys.stderr)  # noqa: T201
            return
        time.sleep(0.05)


def _cgroups() -> list[Path]:
    depth = "" if (CGROUPS / "cgroup.controllers").exists() else "*/"
    found = CGROUPS.glob(f"{depth}hardpoint-*")
    return [path for path in found if _OURS.fullmatch(path.name) and not path.parent.is_symlink()]


def _keeper_of(path: Path) -> int:
    found = _OURS.fullmatch(path.name)
    return int(found[1]) if found else 0


def remove_directories(pattern: str) -> None:
    """Remove the directories of clusters whose keeper was killed together with the tests."""
    for planned in Path(tempfile.gettempdir()).glob(f"{pattern}/plan.json"):
        try:
            keeper = int(json.loads(planned.read_text())["keeper"])
        except (OSError, ValueError, KeyError):
            continue
        if keeper and not _is_keeper(keeper):
            shutil.rmtree(planned.parent, ignore_errors=True)


def _removed(top: Path) -> bool:
    for directory, _, _ in os.walk(top, topdown=False):
        try:
            os.rmdir(directory)
        except OSError:
            return False
    return True


def _is_keeper(pid: int) -> bool:
    try:
        return b"cluster.keeper" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
