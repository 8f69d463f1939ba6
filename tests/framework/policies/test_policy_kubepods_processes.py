"""A device that a process of a pod has open is in use, in whatever way it has it."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from pod_processes import SYSTEMD, UID, Procfs, Terminal, process, terminal

from hardpoint.grants import Evidence, Release
from hardpoint.kube import PODS, Json, Kube
from hardpoint.model import Device, DeviceNode
from hardpoint.node import Node
from hardpoint.policies._processes import Found, Processes, Wanted, pod_of
from hardpoint.policies.kubepods_processes import KubepodsProcesses, KubepodsProcessesSettings
from hardpoint.testing import FakeAgent
from hardpoint.testing.api_server import FakeApiServer

STATIC = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def device() -> Iterator[Terminal]:
    with terminal() as made:
        yield made


@pytest.fixture
def proc(tmp_path: Path) -> Procfs:
    return Procfs(tmp_path / "proc")


@pytest.fixture
def zombie() -> Iterator[int]:
    """A process that has ended and that nobody has waited for."""
    child = subprocess.Popen(["/bin/true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    yield child.pid
    child.wait()


def made_up(proc: Procfs, pid: int = 4000, *, maps: str = "", stat: str = "S") -> Path:
    """Show a process of a pod whose every file is a test's own."""
    directory = proc.comm(str(pid), "player")
    own = directory / f"task/{pid}"
    for made in (directory / "fd", own):
        made.mkdir(parents=True)
    (directory / "cgroup").write_text(f"{SYSTEMD}\n")
    (directory / "stat").write_text(f"{pid} (player (1) {stat} 1 1\n")
    (own / "fd").symlink_to(directory / "fd")
    (own / "root").symlink_to("/")
    (own / "maps").write_text(maps)
    return directory


def cannot_be_looked_into(directory: Path) -> None:
    """Make what a process has open unreadable, by another error than that of what is gone."""
    fd = directory / "fd"
    fd.unlink() if fd.is_symlink() else fd.rmdir()
    fd.write_text("")


def filesystem(path: str | Path) -> str:
    """Return the filesystem that a file is on, as proc_pid_maps(5) says it."""
    device = os.stat(path).st_dev
    return f"{os.major(device):02x}:{os.minor(device):02x}"


def release(*nodes: DeviceNode) -> Release:
    gpu = Device(name="gpu0", kind="gpu", nodes=nodes)
    return Release(
        id="r1", allocation="a1", source="policy/cdi_grants", devices=(gpu,), since=0.0, nodes=nodes
    )


async def look(proc: Procfs, tmp_path: Path, *nodes: DeviceNode, trusted: str = "") -> Evidence:
    policy = _policy(proc, tmp_path, trusted)
    return await policy.find_users(release(*nodes), FakeAgent(tmp_path, node=policy.node))


def _policy(proc: Procfs, tmp_path: Path, trusted: str = "") -> KubepodsProcesses:
    node = Node(name="node-1", proc=proc.root, dev=tmp_path / "dev")
    settings = KubepodsProcessesSettings(trusted_namespaces=(trusted,) if trusted else ())
    return KubepodsProcesses(node, settings)


@pytest.mark.parametrize(
    "way", ["opens", "a thread of its own table opens", "the first thread ends"]
)
async def test_a_process_of_a_pod_that_has_the_device_open_uses_it(
    proc: Procfs, tmp_path: Path, device: Terminal, way: str
) -> None:
    with process(way, device.path) as pid:
        proc.show(pid)
        found = await look(proc, tmp_path, device.node)

    assert found.users == (f"pod {UID} (process {pid} has it open)",)


async def test_a_mapping_is_a_use_also_when_the_descriptor_is_closed(
    proc: Procfs, tmp_path: Path
) -> None:
    zero = DeviceNode(path="/dev/acme0", major=1, minor=5)
    with process("maps", "/dev/zero") as pid, process("nothing", "") as idle:
        proc.show(pid)
        proc.show(idle)
        found = await look(proc, tmp_path, zero)

    assert found.users == (f"pod {UID} (process {pid} has it open)",)


async def test_a_mapping_is_found_without_the_right_to_follow_map_files(
    proc: Procfs, tmp_path: Path
) -> None:
    zero = DeviceNode(path="/dev/acme0", major=1, minor=5)
    with process("maps", "/dev/zero") as pid:
        (proc.show(pid) / "map_files").unlink()
        found = await look(proc, tmp_path, zero)

    assert len(found.users) == 1


async def test_each_mapped_file_is_looked_at_for_itself(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    others = (
        f"7f01-7f02 r--p 00000000 00:06 2 {tmp_path}\n7f02-7f03 rw-p 00000000 00:00 0 \n"
        f"7f03-7f04 r--p 00000000 00:06 3 {tmp_path}/gone\n7f04-7f05 rw-p 00000000 00:00 0 [heap]\n"
    )
    made_up(proc, maps=others)
    assert not (await look(proc, tmp_path, device.node)).users
    maps = f"{others}7f06-7f07 rw-s 00000000 00:06 4                  {device.path}\n"
    made_up(proc, 4001, maps=maps)
    (found,) = (await look(proc, tmp_path, device.node)).users
    assert "process 4001" in found


async def test_a_mapping_of_a_deleted_node_that_may_not_be_followed_is_in_use(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    maps = f"7f01-7f02 rw-s 00000000 {filesystem('/dev')} 4 /dev/acme0 (deleted)\n"
    made_up(proc, 4000, maps=maps)
    elsewhere = filesystem("/proc")  # as of a library that was replaced, or memory shared by name
    library = f"7f01-7f02 r-xp 00000000 {elsewhere} 4 /dev/shm/x (deleted)\n"
    made_up(proc, 4001, maps=library)
    (found,) = (await look(proc, tmp_path, device.node)).users

    assert "process 4000" in found
    assert "ESTALE" in found


async def test_a_node_that_was_removed_is_still_open(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    gone = tmp_path / "acme0"
    gone.symlink_to(device.path)
    with process("opens", str(gone)) as pid:
        gone.unlink()
        proc.show(pid)
        assert (await look(proc, tmp_path, device.node)).users


async def test_processes_that_are_in_no_pod_or_have_other_devices_are_no_users(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    own_table = process("a thread of its own table opens", "/dev/null")
    with process("opens", device.path) as host, own_table as pod:
        proc.show(host, "0::/system.slice/persistenced.service")
        proc.show(pod)
        before = time.monotonic()
        found = await look(proc, tmp_path, device.node)

    assert (found.users, found.why) == ((), "")
    assert before <= found.began <= time.monotonic()


async def test_the_agents_own_container_is_not_looked_at(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    with process("opens", device.path) as pid:
        proc.show(pid)
        (proc.root / "self").mkdir()
        (proc.root / "self/cgroup").write_text(f"{SYSTEMD}\n")
        assert not (await look(proc, tmp_path, device.node)).users


async def test_a_process_that_cannot_be_looked_into_is_in_use(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    with process("nothing", "") as pid:
        cannot_be_looked_into(proc.show(pid))
        found = await look(proc, tmp_path, device.node)

    assert found.users == (
        f"pod {UID}: what process {pid} has open cannot be read (ENOTDIR: Not a directory (fd))",
    )


async def test_a_process_that_ended_meanwhile_has_nothing(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    with process("opens", device.path) as pid:
        proc.show(pid)
    assert not (await look(proc, tmp_path, device.node)).users


async def test_a_zombie_that_may_not_be_looked_into_has_nothing(
    proc: Procfs, tmp_path: Path, device: Terminal, zombie: int
) -> None:
    cannot_be_looked_into(proc.show(zombie))
    assert not (await look(proc, tmp_path, device.node)).users


async def test_a_process_that_is_reaped_while_it_is_looked_into_has_nothing(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    cannot_be_looked_into(made_up(proc, 4000, stat="X"))
    gone = made_up(proc, 4001)
    cannot_be_looked_into(gone)
    (gone / "stat").unlink()
    assert not (await look(proc, tmp_path, device.node)).users


async def test_a_process_of_which_nobody_can_say_whether_it_has_ended_is_in_use(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    directory = made_up(proc)
    cannot_be_looked_into(directory)
    (directory / "stat").unlink()
    (directory / "stat").mkdir()
    assert (await look(proc, tmp_path, device.node)).users


async def test_a_process_runs_on_after_its_first_thread_has_ended(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    with process("the first thread ends", device.path) as pid:
        cannot_be_looked_into(proc.show(pid))
        (found,) = (await look(proc, tmp_path, device.node)).users
    assert "cannot be read" in found


async def test_a_thread_that_ended_meanwhile_costs_only_itself(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    tasks = made_up(proc) / "task"
    shutil.rmtree(tasks / "4000")
    for task in ("4001", "4002"):
        (tasks / task).mkdir()
    ended, other = os.listdir(tasks)  # in whatever order: the one that has nothing comes first
    (tasks / other / "fd").mkdir()
    (tasks / other / "fd/3").symlink_to(device.path)

    assert not list((tasks / ended).iterdir())
    assert (await look(proc, tmp_path, device.node)).users


async def test_a_descriptor_that_was_closed_meanwhile_costs_only_itself(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    fd = made_up(proc) / "fd"
    for closed in range(20):
        (fd / f"{closed}").symlink_to(tmp_path / "closed")
    assert not (await look(proc, tmp_path, device.node)).users
    (fd / "20").symlink_to(device.path)
    assert (await look(proc, tmp_path, device.node)).users


def test_a_child_that_is_made_during_the_look_is_found_and_found_once(
    proc: Procfs, device: Terminal
) -> None:
    parent = proc.comm("1000", "sh")
    os.mkfifo(parent / "cgroup")

    def forks(child: int) -> None:
        with open(parent / "cgroup", "w"):  # it is being read now
            proc.show(child)

    with process("opens", device.path) as pid:
        forking = threading.Thread(target=forks, args=(pid,), daemon=True)
        forking.start()
        wanted = Wanted.of([device.node], Node(proc=proc.root))
        found = Processes(proc.root).look(wanted)
        forking.join()

    assert found == (Found(pid, UID),)


async def test_nodes_that_a_live_grant_shares_are_not_looked_for(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    with process("opens", device.path) as pid:
        proc.show(pid)
        found = await look(proc, tmp_path)

    assert (found.users, found.why) == ((), "")


async def test_numbers_that_the_driver_does_not_state_are_the_hosts(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    node = DeviceNode(path="/dev/acme0", host_path=device.path)
    policy = KubepodsProcesses(Node(name="n", proc=proc.root), KubepodsProcessesSettings())
    with process("opens", device.path) as pid:
        proc.show(pid)
        found = await policy.find_users(release(node), FakeAgent(tmp_path, node=policy.node))

    assert found.users


@pytest.mark.parametrize(("major", "minor"), [(1, None), (None, 5)])
async def test_half_a_number_is_none(
    proc: Procfs, tmp_path: Path, device: Terminal, major: int | None, minor: int | None
) -> None:
    node = DeviceNode(path="/dev/acme0", host_path=device.path, major=major, minor=minor)
    with process("opens", device.path) as pid:
        proc.show(pid)
        assert (await look(proc, tmp_path, node)).users


async def test_whoever_has_what_is_at_a_devices_path_by_now_does_not_use_the_device(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    node = Node(name="n", proc=proc.root)
    policy = KubepodsProcesses(node, KubepodsProcessesSettings())
    with terminal() as other, process("opens", other.path) as pid:
        proc.show(pid)
        renumbered = replace(device.node, host_path=other.path)
        found = await policy.find_users(release(renumbered), FakeAgent(tmp_path, node=node))

    assert not found.users


async def test_a_path_with_a_space_in_it_is_a_path(proc: Procfs, tmp_path: Path) -> None:
    made_up(proc, maps="7f01-7f02 rw-s 00000000 00:06 4      /dev/acme 0\n")
    assert (await look(proc, tmp_path, DeviceNode(path="/dev/acme 0"))).users
    assert not (await look(proc, tmp_path, DeviceNode(path="/dev/acme"))).users


@pytest.mark.parametrize("way", ["opens", "maps"])
async def test_a_device_whose_numbers_nobody_knows_any_more_is_known_by_its_path(
    proc: Procfs, tmp_path: Path, way: str
) -> None:
    with process(way, "/dev/zero") as pid:
        proc.show(pid)
        assert (await look(proc, tmp_path, DeviceNode(path="/dev/zero"))).users
        assert not (await look(proc, tmp_path, DeviceNode(path="/dev/acme0"))).users


async def test_a_pod_is_called_by_its_name_where_the_api_server_knows_it(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    async with FakeApiServer() as server, Kube.at(server.url) as kube:
        server.add_node("node-1")
        pod = await _pod(kube, "kube-system", "exporter")
        with process("opens", device.path) as pid:
            proc.show(pid, f"0::/kubepods/besteffort/pod{pod['metadata']['uid']}/1")
            agent = FakeAgent(tmp_path, kube=lambda: Kube.at(server.url))
            seen = await _policy(proc, tmp_path).find_users(release(device.node), agent)
            trusting = _policy(proc, tmp_path, trusted="kube-*")
            trusted = await trusting.find_users(release(device.node), agent)
            other = _policy(proc, tmp_path, trusted="monitoring")
            untrusted = await other.find_users(release(device.node), agent)
            hears_nothing = _policy(proc, tmp_path, trusted="kube-*")
            deaf = await hears_nothing.find_users(release(device.node), FakeAgent(tmp_path))

    assert seen.users == (f"pod kube-system/exporter (process {pid} has it open)",)
    assert not trusted.users
    assert untrusted.users
    assert deaf.users, "who it is cannot be said, so it is not trusted"


async def _pod(kube: Kube, namespace: str, name: str) -> Json:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "busybox"}]},
    }
    return await kube.create(PODS, body, namespace=namespace)


@pytest.mark.parametrize(
    ("cgroup", "pod"),
    [
        (SYSTEMD, UID),
        (f"0::/kubepods/burstable/pod{UID}/77aa", UID),
        (f"0::/kubepods/pod{UID}/crio-77aa", UID),
        (f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{STATIC}.slice", STATIC),
        (f"12:pids:/system.slice\n4:memory:/kubepods/besteffort/pod{UID}/77aa\n0::/", UID),
        (f"0::/../../pod{UID}/77aa", UID),
        (f"0::/../kubepods-besteffort-pod{UID.replace('-', '_')}.slice/crio-1.scope", UID),
        ("0::/kubepods.slice/kubepods-podcustom.slice/x", ""),
        ("0::/system.slice/containerd.service", None),
        ("0::/user.slice/podman-1.scope", None),
        ("0::/", None),
        ("", None),
    ],
)
def test_a_pods_cgroup_is_known_by_every_driver_runtime_and_version(
    cgroup: str, pod: str | None
) -> None:
    assert pod_of(cgroup) == pod


def test_a_procfs_that_shows_the_kernels_threads_shows_all(proc: Procfs, tmp_path: Path) -> None:
    assert _policy(proc, tmp_path).not_applicable == ""


def test_a_procfs_that_shows_the_container_runtime_shows_all_that_it_made(
    proc: Procfs, tmp_path: Path
) -> None:
    proc.comm("2", "bash")
    (proc.comm("300", "containerd") / "cgroup").write_text("0::/system.slice/containerd.service\n")
    assert _policy(proc, tmp_path).not_applicable == ""


def test_a_container_without_the_hosts_processes_cannot_be_asked(
    proc: Procfs, tmp_path: Path
) -> None:
    proc.comm("2", "bash")
    (proc.comm("7", "kubelet") / "cgroup").write_text(f"{SYSTEMD}\n")
    assert "hostPID" in _policy(proc, tmp_path).not_applicable
    nothing = Procfs(tmp_path / "empty")
    (nothing.root / "2/comm").unlink()
    assert "hostPID" in _policy(nothing, tmp_path).not_applicable


@pytest.mark.parametrize(
    ("comm", "cgroup", "itself"),
    [
        ("bash", "0::/", False),
        ("kubelet", "", False),  # its cgroup cannot be read
        ("kubelet", "0::/", True),  # the agent, whatever it is called
    ],
)
def test_who_may_not_be_the_container_runtime_does_not_say_that_all_is_seen(
    proc: Procfs, tmp_path: Path, comm: str, cgroup: str, itself: bool
) -> None:
    proc.comm("2", "bash")
    (proc.comm("300", comm) / "cgroup").write_text(cgroup)
    if itself:
        (proc.root / "self").symlink_to("300")
    assert "hostPID" in _policy(proc, tmp_path).not_applicable


async def test_where_processes_of_pods_are_not_seen_it_is_not_said_that_none_uses_it(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    proc.comm("2", "bash")
    found = await look(proc, tmp_path, device.node)
    assert "hostPID" in found.why


async def test_a_look_that_hangs_is_given_up_with_its_time(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    policy = _policy(proc, tmp_path)
    over, waited = threading.Event(), list[bool]()

    def hangs(released: Release) -> tuple[Found, ...]:
        waited.append(over.wait(5))
        return ()

    policy._look = hangs  # type: ignore[method-assign, assignment]
    with anyio.move_on_after(0.05) as scope:
        await policy.find_users(release(device.node), FakeAgent(tmp_path, node=policy.node))
    still = not waited
    over.set()
    assert (scope.cancelled_caught, still) == (True, True)


async def test_a_procfs_that_cannot_be_listed_is_an_error(
    proc: Procfs, tmp_path: Path, device: Terminal
) -> None:
    policy = _policy(proc, tmp_path)
    proc.root.rename(tmp_path / "away")
    with pytest.raises(OSError, match="No such file"):
        await policy.find_users(release(device.node), FakeAgent(tmp_path, node=policy.node))
