"""What the doctor says of the container runtime, SELinux and systemd on a host made of files."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
import pytest
from shell import NODE, Shell

from hardpoint.testing.api_server import FakeApiServer


class Host:
    """A host that process 1 sees, and the doctor of a node on it."""

    def __init__(self, shell: Shell) -> None:
        self.shell, self.machine = shell, shell.machine
        self.root = shell.machine.proc / "1/root"
        self.root.mkdir(parents=True)
        (shell.machine.sys / "bus/pci").mkdir(parents=True, exist_ok=True)

    def file(self, path: str, text: str) -> None:
        at = self.root / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)

    def says(self, subject: str, **more: str) -> list[dict[str, Any]]:
        at = more | {
            f"HARDPOINT_PATHS__{name.upper()}": str(self.machine.root / name)
            for name in ("sys", "dev", "proc", "run")
        }
        return [
            one for one in self.shell("doctor", "--json", **at).json if one["subject"] == subject
        ]


@pytest.fixture
def host(shell: Shell) -> Host:
    return Host(shell)


CONTAINERD = '[plugins."io.containerd.cri.v1.runtime"]\n'
OLD = '[plugins."io.containerd.grpc.v1.cri"]\n'


@pytest.mark.field_case("D03")
def test_a_runtime_that_is_told_of_other_directories_is_named_with_them(host: Host) -> None:
    host.file("/etc/containerd/config.toml", CONTAINERD + 'cdi_spec_dirs = ["/var/cdi/dynamic"]\n')

    (found,) = host.says("runtime")

    assert found["level"] == "fail"
    assert "reads CDI files from /var/cdi/dynamic only" in found["found"]
    assert f"add {host.shell.cdi} to cdi_spec_dirs there" in found["do"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/etc/containerd/config.toml", CONTAINERD),
        ("/var/lib/rancher/k3s/agent/etc/containerd/config.toml", OLD + "enable_cdi = true\n"),
        ("/etc/crio/crio.conf", "[crio.runtime]\n"),
    ],
)
def test_a_runtime_that_reads_our_directory_is_well(host: Host, path: str, text: str) -> None:
    host.file(path, f'{text}cdi_spec_dirs = ["/etc/cdi", "{host.shell.cdi}"]\n')

    (found,) = host.says("runtime")

    assert (found["level"], found["found"]) == ("ok", f"nothing against CDI in {path}")


def test_what_a_configuration_takes_in_counts(host: Host) -> None:
    host.file("/etc/containerd/config.toml", 'imports = ["conf.d/*.toml"]\n' + CONTAINERD)
    host.file("/etc/containerd/conf.d/cdi.toml", CONTAINERD + "enable_cdi = false\n")
    host.file("/etc/crio/crio.conf.d/10-x.conf", '[crio.runtime]\ncdi_spec_dirs = ["/opt/cdi"]\n')

    said = [one["found"] for one in host.says("runtime")]

    assert any("enable_cdi = false" in one for one in said)
    assert any("/opt/cdi only" in one for one in said)


@pytest.mark.parametrize(
    "text", ["", "plugins = 3", "[plugins]\n'io.containerd.grpc.v1.cri' = 1", "{"]
)
def test_a_configuration_of_any_shape_is_no_trouble_of_the_doctors(host: Host, text: str) -> None:
    host.file("/etc/containerd/config.toml", text)

    assert all(set(one) == {"level", "subject", "found", "do"} for one in host.says("runtime"))


@pytest.mark.field_case("D02", "D03")
@pytest.mark.parametrize(
    ("version", "settings", "says"),
    [
        ("containerd://1.7.24", "", ["CDI off unless", "reads CDI 0.6.0 at most", "/etc/cdi"]),
        ("containerd://1.7.24", 'cdi_version = "0.6.0"\n', ["CDI off unless", "/etc/cdi"]),
        ("containerd://1.6.8-k3s1", "", ["knows no CDI"]),
        ("containerd://2.1.4", "", ["nothing against CDI in containerd://2.1.4"]),
        ("cri-o://1.33.1", "", ["nothing against CDI in cri-o://1.33.1"]),
        ("something else", "", ["nothing against CDI in something else"]),
    ],
)
async def test_the_runtimes_version_says_what_it_reads(
    host: Host, version: str, settings: str, says: list[str]
) -> None:
    host.shell.config.write_text(settings)
    async with FakeApiServer() as server:
        info = {"containerRuntimeVersion": version}
        node = {"metadata": {"name": NODE}, "status": {"nodeInfo": info}}
        server.add({"apiVersion": "v1", "kind": "Node", **node})
        host.shell.environment["HARDPOINT_KUBE__URL"] = server.url
        found = await anyio.to_thread.run_sync(host.says, "runtime")

    assert len(found) == len(says)
    assert all(word in one["found"] for word, one in zip(says, found, strict=True))


@pytest.mark.field_case("D07")
def test_a_node_that_systemd_cannot_find_by_its_numbers_is_named(host: Host) -> None:
    gpu = host.machine.pci("0000:00:02.0", klass="030000", driver="i915").drm(card=0, render=128)
    assert gpu
    links = host.machine.dev / "char"
    links.mkdir()
    (links / "226:0").symlink_to("../dri/card0")

    (lost,) = host.says("/dev/char")
    (links / "226:128").symlink_to("../dri/renderD128")
    (well,) = host.says("/dev/char")

    assert (lost["level"], lost["found"]) == ("warn", "has no link to /dev/dri/renderD128")
    assert well["level"] == "ok"


@pytest.mark.field_case("H02")
def test_selinux_that_enforces_is_said_with_what_it_takes(host: Host) -> None:
    enforce = host.machine.sys / "fs/selinux/enforce"
    enforce.parent.mkdir(parents=True)
    enforce.write_text("1")

    (found,) = host.says("SELinux")
    enforce.write_text("0")

    assert (found["level"], found["found"]) == ("warn", "is enforcing")
    assert "container_use_devices" in found["do"]
    assert host.says("SELinux") == []


_WITHOUT_DRA = {"HARDPOINT_FRONTENDS": "deviceplugin"}


def test_without_cdi_a_runtime_that_lacks_it_is_no_trouble_and_the_way_in_force_is_said(
    host: Host,
) -> None:
    host.file("/etc/containerd/config.toml", CONTAINERD + "enable_cdi = false\n")
    specs = {"HARDPOINT_FRONTEND__DEVICEPLUGIN__DEVICES": "specs"}

    by_cdi = host.says("runtime", **_WITHOUT_DRA)
    (without,) = host.says("runtime", **_WITHOUT_DRA, **specs)
    (section,) = host.says("frontend/deviceplugin", **_WITHOUT_DRA, **specs)
    (groups,) = host.says("groups", **_WITHOUT_DRA, **specs)

    assert "fail" in [one["level"] for one in by_cdi]
    assert without["level"] == "ok"
    assert "without CDI" in without["found"]
    assert "devices = specs" in section["found"]
    assert groups["level"] == "warn"
    assert "supplementalGroups" in groups["do"]
    assert host.says("groups", **_WITHOUT_DRA) == []


def test_an_odd_cdi_directory_is_said_once_with_all_that_is_odd(host: Host) -> None:
    (absent,) = host.says("CDI")
    assert absent["level"] == "warn"
    assert absent["found"].endswith("is not there, and is not a usual directory")
    assert "cdi_spec_dirs" in absent["do"]
    host.shell.cdi.mkdir()
    (there,) = host.says("CDI")
    assert there["found"].endswith("is writable, and is not a usual directory")


@pytest.mark.field_case("D03")
def test_a_directory_that_the_runtime_says_that_it_reads_is_no_odd_one(host: Host) -> None:
    host.shell.cdi.mkdir()
    dirs = f'cdi_spec_dirs = ["{host.shell.cdi}"]\n'
    host.file("/etc/containerd/config.toml", CONTAINERD + dirs)

    (found,) = host.says("CDI")

    assert (found["level"], found["found"]) == ("ok", f"{host.shell.cdi} is writable")


def test_frontends_that_leave_each_other_nothing_are_found_before_the_agent_starts(
    host: Host,
) -> None:
    (found,) = (
        one
        for one in host.says("frontends", HARDPOINT_FRONTENDS="dra,deviceplugin")
        if one["level"] == "fail"
    )

    assert "frontend.dra" in found["found"]
    assert "frontend.deviceplugin" in found["found"]
