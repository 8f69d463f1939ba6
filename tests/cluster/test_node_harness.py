"""The harness leaves nothing behind, and says what it lacks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from cluster import images, plan, pods
from cluster.keeper import CGROUPS, remove_directories, try_cgroups
from cluster.node import CannotRun, check_machine
from cluster.programs import GO, at_hand, key, release
from cluster.skipping import cannot
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import World

TESTS = Path(__file__).parents[1]
HOLDER = """
import sys, time
from pathlib import Path
from cluster.node import Cluster
from cluster.programs import release
cluster = Cluster.up(Path(sys.argv[1]), release(), nodes=1)
print("up", flush=True)
time.sleep(3600)
"""


def traces(state: Path) -> list[str]:
    """Return what there is of a cluster: its processes, mounts and cgroups."""
    about = str(state)
    processes = [str(p) for p in Path("/proc").glob("[0-9]*/cmdline") if about in _read(p)]
    mounts = [m for m in _read(Path("/proc/mounts")).splitlines() if about in m]
    keeper = json.loads((state / "plan.json").read_text())["keeper"]
    groups = [str(p) for at in ("", "*/") for p in CGROUPS.glob(f"{at}hardpoint-{keeper}-*")]
    return [*processes, *mounts, *groups]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def test_a_running_cluster_shows_nothing_in_the_hosts_mounts_and_network(world: World) -> None:
    state = str(world.cluster.state)

    assert state not in _read(Path("/proc/mounts"))
    assert [p.name for p in Path("/sys/class/net").iterdir() if p.name.startswith("pods-")] == []
    assert "198.51.100." not in _read(Path("/proc/net/fib_trie"))


def test_logs_of_pods_are_not_among_the_hosts(namespace: Namespace) -> None:
    told = pods.container(script=f"echo here; {pods.WAIT}")
    namespace.create(pods.pod("p", {}, told))
    namespace.until_running("p")

    assert namespace.log("p") == "here\n"
    assert list(Path("/var/log").glob(f"pods/{namespace.name}_*")) == []
    assert list(Path("/var/log").glob(f"containers/*{namespace.name}_*")) == []


@pytest.mark.usefixtures("world")  # marks it as one that needs a cluster
def test_a_killed_test_run_takes_its_cluster_along(short_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(short_path)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        assert any("/sys/fs/cgroup/" in trace for trace in traces(short_path))

        holder.send_signal(signal.SIGKILL)

    until("nothing is left", lambda: traces(short_path) == [])


# -- without a cluster ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "version", "emulated"),
    [
        ("", "1.37.2", ""),
        ("1.34", "1.34.4", ""),
        ("1.37.2", "1.37.2", ""),
        ("1.36", "1.37.2", "1.36"),
    ],
)
def test_a_version_is_built_or_emulated(wanted: str, version: str, emulated: str) -> None:
    found = release(wanted)

    assert (found.version, found.emulate) == (version, emulated)


@pytest.mark.parametrize("wanted", ["1.33", "1.38", "2.35", "newest"])
def test_a_version_that_cannot_be_had_is_refused_with_those_that_can(wanted: str) -> None:
    with pytest.raises(ValueError, match=r"want 1\.34 to 1\.37"):
        release(wanted)


def test_a_binary_is_kept_under_a_key_of_all_its_sources(tmp_path: Path) -> None:
    module = GO / "kube-1.37.2"
    changed = tmp_path / "main.go"
    changed.write_text((GO / "kube/main.go").read_text() + "// changed\n")
    sources = (module / "go.mod", module / "go.sum")

    assert key(*sources, changed) != key(*sources, GO / "kube/main.go")


def test_a_version_that_is_neither_kept_nor_prebuilt_is_not_at_hand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HARDPOINT_CLUSTER_CACHE", str(tmp_path))
    monkeypatch.setenv("HARDPOINT_CLUSTER_BIN", str(tmp_path))

    assert not at_hand("1.37.2")


def test_the_images_are_one_layer_of_busybox_under_two_names(tmp_path: Path) -> None:
    busybox = tmp_path / "busybox"
    busybox.write_text("#!/bin/sh\necho busybox\necho ls\n")
    busybox.chmod(0o755)

    images.write(busybox, tmp_path / "first.tar")
    images.write(busybox, tmp_path / "second.tar")

    assert (tmp_path / "first.tar").read_bytes() == (tmp_path / "second.tar").read_bytes()
    with tarfile.open(tmp_path / "first.tar") as tar:
        index = tar.extractfile("index.json")
        assert index is not None
        text = index.read().decode()
    assert images.PAUSE in text
    assert images.BUSYBOX in text


def test_nodes_have_addresses_that_nobody_uses() -> None:
    assert [plan.address(node) for node in ("n0", "n1")] == ["192.0.2.10", "192.0.2.11"]


# -- where it cannot run --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strict", "outcome"), [("", pytest.skip.Exception), ("1", pytest.fail.Exception)]
)
def test_what_cannot_run_is_skipped_with_the_reason_and_in_ci_a_failure(
    monkeypatch: pytest.MonkeyPatch, strict: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("HARDPOINT_CI", strict)

    with pytest.raises(outcome, match="runc not found"):
        cannot("runc not found")


def test_a_machine_without_a_needed_program_says_which_package_brings_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)

    with pytest.raises(CannotRun, match=r"runc.* not found \(apt-get install"):
        check_machine()


def test_a_machine_whose_cgroups_cannot_be_written_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("cluster.keeper.CGROUPS", tmp_path)

    with pytest.raises(FileNotFoundError, match="no hierarchy"):
        try_cgroups()


def test_directories_of_killed_runs_are_removed_and_those_of_living_ones_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    keeper = [sys.executable, "-c", "import sys; sys.stdin.read()", "cluster.keeper"]
    with subprocess.Popen(keeper, stdin=subprocess.PIPE) as living:
        plans = {"hpc-killed": 2**22 + 1, "hpc-living": living.pid, "hpc-starting": 0}
        for name, pid in plans.items():
            (tmp_path / name / "logs").mkdir(parents=True)
            (tmp_path / name / "plan.json").write_text(json.dumps({"keeper": pid}))

        remove_directories("hpc-*")

        assert sorted(os.listdir(tmp_path)) == ["hpc-living", "hpc-starting"]
        living.kill()
