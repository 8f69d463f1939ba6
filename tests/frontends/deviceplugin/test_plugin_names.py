"""What the kubelet would refuse is refused before it is asked, and no two things share a name."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hardpoint.allocation import device_id
from hardpoint.errors import BadValue
from hardpoint.kubelet.sockets import fits
from hardpoint_deviceplugin.names import check_resource, remove_dead, socket_path


@pytest.mark.parametrize(
    "name",
    [
        "example.com/zigbee",
        "hardpoint.dev/drm.render",
        "nvidia.com/mig-1g.5gb",
        "a.b/Upper_Case.and-dash",
        "x/y",
        f"{'a' * 60}.{'b' * 60}.{'c' * 60}.{'d' * 60}/x",
        f"example.com/{'x' * 63}",
        "notkubernetes.io.example/x",
    ],
)
def test_a_name_that_the_kubelet_takes_is_taken(name: str) -> None:
    assert check_resource(name) == name


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("zigbee", "a domain of your own"),
        ("", "a domain of your own"),
        ("kubernetes.io/zigbee", "Kubernetes' own"),
        ("example.kubernetes.io/zigbee", "Kubernetes' own"),
        ("requests.example.com/zigbee", "Kubernetes' own"),
        ("/zigbee", "DNS subdomain"),
        ("Example.com/zigbee", "DNS subdomain"),
        ("exa mple.com/zigbee", "DNS subdomain"),
        (f"{'.'.join(['a' * 60] * 4)}.bb/x", "DNS subdomain"),
        ("example.com/", "1 to 63"),
        ("example.com/a/b", "1 to 63"),
        ("example.com/-x", "1 to 63"),
        ("example.com/x.", "1 to 63"),
        ("example.com/" + "x" * 64, "1 to 63"),
        ("example.com/zigbee\n", "1 to 63"),
        ("example.com/zigbée", "1 to 63"),
    ],
)
def test_a_name_that_the_kubelet_refuses_is_refused_with_the_rule(name: str, rule: str) -> None:
    with pytest.raises(BadValue, match=rule):
        check_resource(name)


def test_an_id_says_the_device_its_share_and_its_grant() -> None:
    assert device_id("gpu-0") == "gpu-0"
    assert device_id("gpu-0", "alloc_01") == "gpu-0@alloc_01"
    assert device_id("gpu-0", replica=3) == "gpu-0::3"
    assert device_id("gpu-0", "alloc_01", 3) == "gpu-0::3@alloc_01"


def test_only_the_device_half_of_an_id_is_shortened() -> None:
    name, grant = "pci-" + "0" * 59, "a" * 36

    short = device_id(name, grant)

    assert len(short) == 63
    assert short.endswith(f"@{grant}")
    assert short != device_id(name[:-1] + "1", grant)


def test_a_grant_is_whole_however_long_it_is() -> None:
    grant = "g" * 100

    one, other = device_id("gpu-0", grant), device_id("gpu-" + "1" * 40, grant)

    assert one == f"gpu-0@{grant}"
    assert other.endswith(f"@{grant}")
    assert other.partition("@")[0] != device_id("gpu-" + "1" * 41, grant).partition("@")[0]


def test_a_socket_has_room_wherever_the_kubelet_keeps_its_directory() -> None:
    deep = Path("/var/snap/microk8s/common/var/lib/kubelet/device-plugins")
    paths = [
        socket_path(base, f"example.com/{word}", "0b1d0000-0000-4000-8000-00000000000d")
        for base in (Path("/var/lib/kubelet/device-plugins"), deep)
        for word in ("x" * 63, "x" * 62 + "y", "z")
    ]

    assert all(fits(path) for path in paths)
    assert len(set(paths)) == len(paths)


def test_two_instances_have_sockets_of_their_own_and_one_has_always_the_same() -> None:
    base = Path("/var/lib/kubelet/device-plugins")

    assert socket_path(base, "a.b/c", "one") != socket_path(base, "a.b/c", "two")
    assert socket_path(base, "a.b/c", "one") == socket_path(base, "a.b/c", "one")
    assert socket_path(base, "a.b/usb", "").name.startswith("hardpoint-usb-")


def test_only_dead_sockets_of_ours_are_removed(tmp_path: Path, short_path: Path) -> None:
    dead = socket_path(short_path, "a.b/c", "killed")
    live = socket_path(short_path, "a.b/c", "other")
    foreign = short_path / "hardpoint-theirs.sock"
    file = short_path / "hardpoint-file-0123456789ab.sock"
    file.write_text("a file, not a socket")
    for path in (dead, foreign):
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(live))
        listening.listen()

        assert remove_dead(short_path) == (dead,)
        assert {*short_path.iterdir()} == {live, foreign, file}
