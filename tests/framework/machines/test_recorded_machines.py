from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded_machines import DATA, NAMES, Recorded

from hardpoint import NodeType
from hardpoint.errors import NotAMachine
from hardpoint.node import NodeInfo
from hardpoint.recorded import open_machine
from hardpoint.testing.sysfs import FakeMachine

Add = Callable[[tarfile.TarFile], None]


def archive(path: Path, *members: tuple[str, bytes | str]) -> Path:
    """Write an archive of files (bytes) and links (str)."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


def special(path: Path, kind: bytes, **fields: object) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("sys/bus/odd")
        member.type = kind
        for name, value in fields.items():
            setattr(member, name, value)
        tar.addfile(member)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(NotAMachine) as caught, open_machine(path):
        pass
    return str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_machine_opens_and_has_a_pci_bus(recorded: Recorded, name: str) -> None:
    node = recorded(name)

    assert node.recorded
    assert node.name == name
    assert node.pci("0000:00:00.0").text("vendor").startswith("0x")


def test_dev_json_answers_for_the_nodes_of_a_recorded_machine(recorded: Recorded) -> None:
    node = recorded("desktop")

    assert node.info("/dev/nvme0n1p2") == NodeInfo(NodeType.BLOCK, 259, 2, 0o660, 6)
    assert node.info("/dev/no-such-node") is None


def test_a_recorded_machine_knows_nothing_of_this_ones_dev(recorded: Recorded) -> None:
    assert recorded("minimal").info("/dev/../../../../dev/null") is None


def test_names_in_dev_can_be_listed_and_their_links_followed(recorded: Recorded) -> None:
    by_id = recorded("desktop").dev / "serial/by-id"

    assert "usb-QEMU_QEMU_USB_SERIAL_FTAAAA01-if00-port0" in os.listdir(by_id)
    target = os.path.realpath(by_id / "usb-QEMU_QEMU_USB_SERIAL_FTAAAA01-if00-port0")
    assert os.path.basename(target).startswith("ttyUSB")


def test_a_directory_is_opened_in_place(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path / "box")
    machine.pci("0000:00:02.0", klass="030000").drm(card=0)
    machine.save()

    with open_machine(tmp_path / "box") as node:
        assert node.name == "box"
        assert node.info("/dev/dri/card0") == NodeInfo(NodeType.CHAR, 226, 0, 0o660, 44)
        assert node.sys == tmp_path / "box/sys"


def test_without_dev_json_the_nodes_are_what_sysfs_says(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.pci("0000:00:02.0").drm(card=0)

    with open_machine(tmp_path) as node:
        assert node.info("/dev/dri/card0") == NodeInfo(NodeType.CHAR, 226, 0, 0o600, 0)


def test_nothing_is_written_on_a_recorded_machine(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.pci("0000:00:02.0")
    with open_machine(tmp_path) as node, pytest.raises(PermissionError):
        node.pci("0000:00:02.0").write("enable", "0")


def test_the_temporary_directory_is_gone_afterwards() -> None:
    with open_machine(DATA / "minimal.tar.gz") as node:
        assert node.sys.is_dir()

    assert not node.sys.exists()


def test_a_plain_tar_is_read_like_a_compressed_one(tmp_path: Path) -> None:
    packed = archive(tmp_path / "m.tar.gz", ("sys/bus/pci/x", b"1"))
    plain = tmp_path / "m.tar"
    plain.write_bytes(gzip.decompress(packed.read_bytes()))

    with open_machine(plain) as node:
        assert (node.sys / "bus/pci/x").read_bytes() == b"1"


# -- what is no machine ---------------------------------------------------------------------------


def test_this_machine_itself_is_no_recorded_one() -> None:
    if not os.path.ismount("/sys"):
        pytest.skip("no sysfs here")
    assert "this machine's own" in refusal(Path("/"))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: None, "no such file"),
        (lambda p: p.mkdir(), "holds no sys"),
        (lambda p: [(p / d).mkdir(parents=True) for d in ("bus", "devices")], "a sys itself"),
        (lambda p: p.write_text("hello"), "no tar archive"),
        (lambda p: p.write_bytes(b"\x1f\x8b broken"), "no tar archive"),
        (lambda p: p.write_bytes(b""), "no tar archive"),
    ],
)
def test_a_wrong_path_is_answered_with_a_sentence(
    tmp_path: Path, make: Callable[[Path], object], says: str
) -> None:
    path = tmp_path / "odd"
    make(path)

    assert says in refusal(path)


def test_an_archive_cut_short_is_damaged(tmp_path: Path) -> None:
    whole = (DATA / "minimal.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])

    assert "damaged" in refusal(tmp_path / "cut.tar.gz")


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([("sys/../../evil", b"x")], "leads out"),
        ([("/sys/bus/x", b"x")], "leads out"),
        ([("sys/bus/x", "/etc/passwd")], "leads out"),
        ([("sys/bus/x", "../../../etc")], "leads out"),
        ([("sys/a/b/c/d", b"x"), ("sys/up", "a/b/../../../..")], "leads out"),
        ([("sys/bus/x", "pci"), ("sys/bus/x/evil", b"x")], "twice"),
        ([("sys/bus/x", b"x"), ("sys/bus/x/y", b"x")], "cannot be unpacked"),
        ([("sys/bus/" + "n" * 300, b"x")], "cannot be unpacked"),
        ([("sys/bus/x", b"x"), ("dev.json", b"{")], "not JSON"),
        ([("sys/bus/x", b"x"), ("dev.json", b"[]")], "no object named nodes"),
        ([("sys/bus/x", b"x"), ("dev.json", b"[" * 100_000)], "not JSON"),
        ([("sys/bus/x", b"x"), ("dev.json", b'{"nodes": {"/dev/x": 7}}')], "type, major and minor"),
        ([("sys/bus/x", b"x"), ("dev.json", "sys/bus/x")], "not a file"),
    ],
)
def test_a_hostile_archive_is_refused_and_nothing_lies_outside(
    tmp_path: Path, members: list[tuple[str, bytes | str]], says: str
) -> None:
    assert says in refusal(archive(tmp_path / "evil.tar.gz", *members))

    assert os.listdir(tmp_path) == ["evil.tar.gz"]


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.LNKTYPE])
def test_an_archive_of_special_files_is_refused(tmp_path: Path, kind: bytes) -> None:
    path = special(tmp_path / "evil.tar.gz", kind, linkname="sys/bus")

    assert "no plain file" in refusal(path)


def test_an_archive_that_claims_to_be_endless_is_refused(tmp_path: Path) -> None:
    member = tarfile.TarInfo("sys/bus/x")
    member.size = 1 << 40
    with gzip.open(tmp_path / "bomb.tar.gz", "wb") as out:
        out.write(member.tobuf())
        for _ in range(260):
            out.write(bytes(1 << 20))

    assert "more than 256 MiB" in refusal(tmp_path / "bomb.tar.gz")


def test_links_in_dev_that_lead_out_are_left_out(tmp_path: Path) -> None:
    table = {
        "nodes": {"/dev/ttyS0": {"type": "char", "major": 4, "minor": 64}},
        "links": {
            "/dev/core": "/proc/kcore",
            "/dev/up/x": "../../../../etc",
            "/dev/../y": "ttyS0",
            "/dev/fine": "ttyS0",
            "/dev/odd": 7,
        },
    }
    path = archive(
        tmp_path / "m.tar.gz", ("sys/bus/x", b"x"), ("dev.json", json.dumps(table).encode())
    )

    with open_machine(path) as node:
        assert sorted(os.listdir(node.dev)) == ["fine", "ttyS0"]


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda s: (s / "bus/out").symlink_to("/etc"), "bus/out leads out"),
        (lambda s: (s / "bus/out").symlink_to("../../../etc"), "bus/out leads out"),
        (lambda s: os.mkfifo(s / "bus/pipe"), "not a plain file"),
    ],
)
def test_a_directory_whose_links_lead_out_is_refused(
    tmp_path: Path, harm: Callable[[Path], None], says: str
) -> None:
    machine = FakeMachine(tmp_path / "box")
    harm(machine.sys)

    assert says in refusal(tmp_path / "box")
